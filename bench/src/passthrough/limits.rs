//! What does not grow: memory after everything was forgotten, descriptors in a large tree.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, CWD, statat};

use super::site::{Place, Site, TOLLGATE, USER_SPACE};
use crate::harness::{Better, Must, Options, Report, Row, interrupt};
use crate::mounts::forget_names;

const MIB: f64 = 1024.0 * 1024.0;
/// Files that are looked up for the row about memory.
const LOOKED_UP: usize = 100_000;
/// Files that are walked and read for the row about descriptors.
const READ: usize = 60_000;
/// Descriptors that the server may have meanwhile.
const DESCRIPTORS: u64 = 1_024;
const FILES_PER_DIRECTORY: usize = 500;
/// Memory counts as settled when it has not changed for this long, or after [`PATIENCE`].
const SETTLED: Duration = Duration::from_millis(2500);
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures all rows. Each is measured once: it is a limit, not a speed.
pub(super) fn run(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    let memory = Row::new("resident memory kept of 100,000 lookups", "MiB", Better::Lower);
    let peak = Row::new("resident memory held by 100,000 lookups", "MiB", Better::Lower);
    let failures =
        Row::new("60,000 files with 1,024 descriptors: failures", "files", Better::Lower);
    let each = Row::new("60,000 files with 1,024 descriptors: each", "us", Better::Lower);
    report.section("limits (one round)");
    report.must(Must::at_most((memory.name(), TOLLGATE), 5.0));
    report.must(Must::at_most((failures.name(), TOLLGATE), 0.0));
    if ![&memory, &peak, &failures, &each].into_iter().any(|row| report.wants(row)) {
        return Ok(());
    }
    make_tree(&site.lower().join("large"))?;
    site.settle()?;
    let columns = options.pick(&[TOLLGATE, USER_SPACE][..], &[TOLLGATE][..]);
    for place in columns.iter().filter_map(|column| site.place(column)) {
        if report.wants(&memory) || report.wants(&peak) {
            let (held, kept) = memory_mib(place)?;
            if interrupt::requested() {
                return Ok(());
            }
            report.add(&peak, place.column, vec![held]);
            report.add(&memory, place.column, vec![kept]);
        }
    }
    if site.place(TOLLGATE).is_some() && (report.wants(&failures) || report.wants(&each)) {
        let (failed, us) = site.with_limited_view(DESCRIPTORS, read_all)?;
        if interrupt::requested() {
            return Ok(());
        }
        report.add(&failures, TOLLGATE, vec![failed as f64]);
        report.add(&each, TOLLGATE, vec![us]);
    }
    Ok(())
}

/// Growth of the server's memory in MiB while 100,000 names are known, and after they were
/// forgotten.
fn memory_mib(place: &Place) -> Result<(f64, f64)> {
    forget_names()?;
    let before = settled_bytes(place)?;
    for_directories(LOOKED_UP, |directory| {
        files(&place.root.join("large"), directory)
            .try_for_each(|file| Ok(statat(CWD, file, AtFlags::empty()).map(drop)?))
    })?;
    let held = settled_bytes(place)?;
    forget_names()?;
    let after = settled_bytes(place)?;
    Ok(((held - before) / MIB, (after - before) / MIB))
}

fn settled_bytes(place: &Place) -> Result<f64> {
    let read = || place.resident_bytes().context("the bare directory has no server")?;
    let start = Instant::now();
    let (mut last, mut since) = (read()?, Instant::now());
    while since.elapsed() < SETTLED && start.elapsed() < PATIENCE {
        sleep(SETTLED / 10);
        let now = read()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last as f64)
}

/// How many files could not be read whole, and microseconds per file.
fn read_all(place: &Place) -> Result<(usize, f64)> {
    let root = place.root.join("large");
    let read = AtomicUsize::new(0);
    let start = Instant::now();
    for_directories(READ, |directory| {
        // A directory that cannot be listed leaves all its files unread.
        if let Ok(entries) = std::fs::read_dir(root.join(directory_name(directory))) {
            let whole = entries.filter(|e| e.as_ref().is_ok_and(|e| read_one(&e.path()).is_ok()));
            read.fetch_add(whole.count(), Ordering::Relaxed);
        }
        Ok(())
    })?;
    let us = start.elapsed().as_secs_f64() * 1e6 / READ as f64;
    Ok((READ.saturating_sub(read.into_inner()), us))
}

fn read_one(path: &Path) -> Result<()> {
    let mut content = [0; 64];
    let length = File::open(path)?.read(&mut content)?;
    let name = path.file_name().context("a file has a name")?;
    ensure!(&content[..length] == name.as_encoded_bytes(), "{} has other content", path.display());
    Ok(())
}

/// Makes [`LOOKED_UP`] files that hold their own name.
fn make_tree(root: &Path) -> Result<()> {
    for_directories(LOOKED_UP, |directory| {
        std::fs::create_dir_all(root.join(directory_name(directory)))?;
        for path in files(root, directory) {
            let name = path.file_name().context("a file has a name")?;
            std::fs::write(&path, name.as_encoded_bytes())?;
        }
        Ok(())
    })
}

/// Calls `work` with the number of each directory that the first `files` files lie in, on as many
/// threads as there are CPUs.
fn for_directories(files: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let take = || -> Result<()> {
        loop {
            let directory = next.fetch_add(1, Ordering::Relaxed);
            if directory >= files / FILES_PER_DIRECTORY || interrupt::requested() {
                return Ok(());
            }
            work(directory)?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread of the rows about limits panicked"),
        })
    })
}

fn files(root: &Path, directory: usize) -> impl Iterator<Item = PathBuf> {
    let directory = root.join(directory_name(directory));
    (0..FILES_PER_DIRECTORY).map(move |file| directory.join(format!("f{file}")))
}

fn directory_name(number: usize) -> String {
    format!("d{number}")
}
