//! What does not grow: memory after everything was forgotten, descriptors in a large tree.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, statat};

use super::site::{Place, Site, TOLLGATE, USER_SPACE, forget_names};
use crate::harness::{Better, Must, Options, Report, Row};

const MIB: f64 = 1024.0 * 1024.0;
/// Files that are looked up for the row about memory.
const LOOKED_UP: usize = 100_000;
/// Files that are walked and read for the row about descriptors.
const READ: usize = 60_000;
/// Descriptors that the server may have meanwhile.
const DESCRIPTORS: u64 = 1_024;
const FILES_PER_DIRECTORY: usize = 500;
/// Memory counts as settled when it has not changed for this long, or after [`PATIENCE`].
const SETTLED: Duration = Duration::from_millis(500);
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
            report.add(&peak, place.column, vec![held]);
            report.add(&memory, place.column, vec![kept]);
        }
    }
    if site.place(TOLLGATE).is_some() && (report.wants(&failures) || report.wants(&each)) {
        let (failed, us) = site.with_limited_view(DESCRIPTORS, read_all)?;
        report.add(&failures, TOLLGATE, vec![failed as f64]);
        report.add(&each, TOLLGATE, vec![us]);
    }
    Ok(())
}

/// Growth of the server's memory in MiB while 100,000 names are known, and after they were forgotten.
fn memory_mib(place: &Place) -> Result<(f64, f64)> {
    forget_names()?;
    let before = settled_bytes(place)?;
    for file in 0..LOOKED_UP {
        statat(CWD, path(&place.root.join("large"), file), AtFlags::empty())?;
    }
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
    let mut failed = 0;
    let start = Instant::now();
    for directory in 0..READ / FILES_PER_DIRECTORY {
        let listed = root.join(format!("d{directory}"));
        let Ok(entries) = std::fs::read_dir(&listed) else {
            failed += FILES_PER_DIRECTORY;
            continue;
        };
        let read = entries.filter(|e| e.as_ref().is_ok_and(|e| read_one(&e.path()).is_ok()));
        failed += FILES_PER_DIRECTORY - read.count();
    }
    Ok((failed, start.elapsed().as_secs_f64() * 1e6 / READ as f64))
}

fn read_one(path: &Path) -> Result<()> {
    let mut content = [0; 64];
    let length = File::open(path)?.read(&mut content)?;
    let name = path.file_name().context("a file has a name")?;
    ensure!(&content[..length] == name.as_encoded_bytes(), "{} has other content", path.display());
    Ok(())
}

fn make_tree(root: &Path) -> Result<()> {
    for directory in 0..LOOKED_UP / FILES_PER_DIRECTORY {
        std::fs::create_dir_all(root.join(format!("d{directory}")))?;
    }
    for file in 0..LOOKED_UP {
        let path = path(root, file);
        let name = path.file_name().context("a file has a name")?;
        std::fs::write(&path, name.as_encoded_bytes())?;
    }
    Ok(())
}

fn path(root: &Path, file: usize) -> std::path::PathBuf {
    root.join(format!("d{}/f{file}", file / FILES_PER_DIRECTORY))
}
