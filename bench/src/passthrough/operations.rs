//! Costs of single operations.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, fstat, openat, statat, unlinkat};
use rustix::io::{read, write};

use super::site::{PEER, Place, Site, TOLLGATE};
use crate::harness::{Better, Must, Options, Report, Row};
use crate::mounts::forget_names;

/// Entries of the directory that is listed.
const LISTED: usize = 10_000;
/// Small files that are read in turn.
const SMALL: usize = 1_000;
const SMALL_BYTES: usize = 4096;
/// Files that one sample makes, or looks up after they were forgotten.
const PER_SAMPLE: usize = 500;
/// Calls between two looks at the clock.
const BATCH: usize = 16;
/// As large as the C library's.
const LISTING_BUFFER_BYTES: usize = 32 * 1024;

/// Makes the files that the rows use.
pub(super) fn prepare(site: &Site) -> Result<()> {
    let (small, listed) = (site.lower().join("small"), site.lower().join("listed"));
    std::fs::create_dir(&small)?;
    for name in names(SMALL) {
        std::fs::write(small.join(name), [b'x'; SMALL_BYTES])?;
    }
    std::fs::create_dir(&listed)?;
    for name in names(LISTED) {
        std::fs::File::create(listed.join(name))?;
    }
    for work in site.lower_works() {
        std::fs::create_dir(work.join("made"))?;
    }
    Ok(())
}

/// Measures all rows.
pub(super) fn run(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    report.section("single operations");
    // Short samples and many: a view is slower by half in those where its server is woken on
    // another CPU.
    let least = Duration::from_millis(options.pick(50, 20));
    let names = names(LISTED);
    let us = |name: &str| Row::new(name, "us", Better::Lower).rounds_times(3);

    row(site, report, &us("open+close").warm_up(), |place, _| {
        let directory = open_directory(&place.root.join("small"))?;
        mean_us(least, |_| drop_checked(open_file(&directory, &names[0])))
    })?;
    report.must(Must::at_most(("open+close", TOLLGATE), 0.6).against(PEER).aim(0.4));

    row(site, report, &us("open+read+fstat+close, 4 KiB files").warm_up(), |place, _| {
        let directory = open_directory(&place.root.join("small"))?;
        let mut buffer = [0; 2 * SMALL_BYTES];
        mean_us(least, |i| read_small(&directory, &names[i % SMALL], &mut buffer))
    })?;

    row(site, report, &us("stat, known name").warm_up(), |place, _| {
        let directory = open_directory(&place.root.join("small"))?;
        mean_us(least, |_| Ok(statat(&directory, &names[0], AtFlags::empty()).map(drop)?))
    })?;

    row(site, report, &us("stat, forgotten name"), |place, round| {
        stat_forgotten(place, &names, round)
    })?;

    row(site, report, &us("create+unlink").warm_up(), |place, _| {
        let directory = open_directory(&place.work().join("made"))?;
        mean_us(least, |i| {
            drop_checked(create(&directory, &names[i % LISTED]))?;
            Ok(unlinkat(&directory, &names[i % LISTED], AtFlags::empty())?)
        })
    })?;

    let written = us("create+write+close, 4 KiB files").warm_up().rounds_times(1);
    row(site, report, &written, |place, _| create_and_write(place, &names[..PER_SAMPLE]))?;

    let listing = format!("readdir of {LISTED} entries");
    row(site, report, &Row::new(&listing, "ms", Better::Lower).warm_up(), |place, _| {
        let path = place.root.join("listed");
        mean_us(least, |_| list(&path)).map(|us| us / 1000.0)
    })
}

fn row(
    site: &Site,
    report: &mut Report,
    row: &Row,
    sample: impl Fn(&Place, usize) -> Result<f64>,
) -> Result<()> {
    report.measure(row, &site.columns(), |round, column| sample(&site.places()[column], round))
}

/// Mean microseconds per call over at least `least`.
fn mean_us(least: Duration, mut call: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let (mut calls, start) = (0, Instant::now());
    loop {
        for _ in 0..BATCH {
            call(calls)?;
            calls += 1;
        }
        let elapsed = start.elapsed();
        if elapsed >= least {
            return Ok(micros(elapsed) / calls as f64);
        }
    }
}

fn stat_forgotten(place: &Place, names: &[String], round: usize) -> Result<f64> {
    let directory = open_directory(&place.root.join("listed"))?;
    let first = (round * PER_SAMPLE) % LISTED;
    forget_names()?;
    // The bare directory's own index is read again here, outside the measurement, for all alike.
    let _ = statat(&directory, "missing", AtFlags::empty());
    let start = Instant::now();
    for name in &names[first..first + PER_SAMPLE] {
        statat(&directory, name, AtFlags::empty())?;
    }
    Ok(micros(start.elapsed()) / PER_SAMPLE as f64)
}

fn create_and_write(place: &Place, names: &[String]) -> Result<f64> {
    let directory = open_directory(&place.work().join("made"))?;
    let content = [b'x'; SMALL_BYTES];
    let start = Instant::now();
    for name in names {
        let file = create(&directory, name)?;
        ensure!(write(&file, &content)? == SMALL_BYTES, "short write");
    }
    let elapsed = start.elapsed();
    for name in names {
        unlinkat(&directory, name, AtFlags::empty())?;
    }
    Ok(micros(elapsed) / names.len() as f64)
}

fn read_small(directory: &OwnedFd, name: &str, buffer: &mut [u8]) -> Result<()> {
    let file = open_file(directory, name)?;
    ensure!(read(&file, &mut *buffer)? == SMALL_BYTES, "short read");
    fstat(&file)?;
    Ok(())
}

fn list(path: &Path) -> Result<()> {
    let directory = open_directory(path)?;
    let mut buffer = vec![MaybeUninit::uninit(); LISTING_BUFFER_BYTES];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        entry?;
        count += 1;
    }
    ensure!(count == LISTED + 2, "{} lists {count} entries", path.display());
    Ok(())
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn open_file(directory: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn create(directory: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::from_raw_mode(0o644))
}

fn drop_checked(fd: rustix::io::Result<OwnedFd>) -> Result<()> {
    Ok(fd.map(drop)?)
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("file-{i:05}")).collect()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
