//! Reads and writes of one file: 4 KiB and 1 MiB, in the page cache and beyond it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::{Advice, Mode, OFlags, fadvise, fdatasync, open};
use rustix::io::{pread, pwrite};

use super::site::{NATIVE, Place, Site, TOLLGATE};
use crate::harness::{Better, Must, Options, Report, Row};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const BLOCK: usize = 4 * 1024;
const LARGE: usize = 1024 * 1024;
/// Calls between two looks at the clock.
const BATCH: u64 = 64;

/// Sizes of one run.
struct Sizes {
    /// The file.
    file: u64,
    /// What the cache may hold of the file in the rows beyond the cache.
    cache: u64,
    /// Bytes of a sample of random blocks beyond the cache.
    random: u64,
    /// Least time of a sample in the cache.
    sample: Duration,
}

/// One row: what is called, and how the offsets go.
struct Work {
    name: &'static str,
    write: bool,
    random: bool,
    block: usize,
}

const WORKS: [Work; 6] = [
    Work { name: "read 4 KiB", write: false, random: false, block: BLOCK },
    Work { name: "randread 4 KiB", write: false, random: true, block: BLOCK },
    Work { name: "write 4 KiB", write: true, random: false, block: BLOCK },
    Work { name: "randwrite 4 KiB", write: true, random: true, block: BLOCK },
    Work { name: "read 1 MiB", write: false, random: false, block: LARGE },
    Work { name: "write 1 MiB", write: true, random: false, block: LARGE },
];

fn sizes(options: &Options) -> Sizes {
    Sizes {
        file: options.pick(256 * MIB, 64 * MIB),
        cache: options.pick(64 * MIB, 16 * MIB),
        random: options.pick(16 * MIB, 2 * MIB),
        sample: Duration::from_millis(options.pick(200, 50)),
    }
}

/// Writes the file that all rows use.
pub(super) fn prepare(site: &Site, options: &Options) -> Result<()> {
    let block: Vec<u8> = (0..=250).cycle().take(LARGE).collect();
    let file = File::create(site.lower().join("data"))?;
    for offset in (0..sizes(options).file).step_by(LARGE) {
        pwrite(&file, &block, offset)?;
    }
    Ok(())
}

/// Measures all rows.
pub(super) fn run(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    let sizes = sizes(options);
    in_cache(site, report, &sizes)?;
    beyond_cache(site, report, &sizes)
}

fn in_cache(site: &Site, report: &mut Report, sizes: &Sizes) -> Result<()> {
    let mib = sizes.file / MIB;
    report.section(&format!("one file of {mib} MiB in the page cache (no fsync)"));
    for work in &WORKS {
        let row = Row::new(work.name, "MiB/s", Better::Higher).warm_up();
        if report.wants(&row) {
            site.settle()?;
        }
        report.measure(&row, &site.columns(), |round, column| {
            let fd = open_data(&site.places()[column].root, work)?;
            let mut offsets = Offsets::new(work, sizes.file, round);
            let mut buffer = vec![0x5a; work.block];
            rate(sizes.sample, work, &fd, &mut offsets, &mut buffer)
        })?;
        let (limit, aim) = if work.block == BLOCK { (0.90, 0.97) } else { (0.95, 0.99) };
        report.must(Must::at_least((work.name, TOLLGATE), limit).against(NATIVE).aim(aim));
    }
    Ok(())
}

/// MiB per second over at least `least`.
fn rate(
    least: Duration,
    work: &Work,
    fd: &OwnedFd,
    offsets: &mut Offsets,
    buffer: &mut [u8],
) -> Result<f64> {
    let mut bytes = 0;
    let start = Instant::now();
    loop {
        for _ in 0..BATCH {
            bytes += once(work, fd, offsets.next(), buffer)?;
        }
        let elapsed = start.elapsed();
        if elapsed >= least {
            return Ok(bytes as f64 / MIB as f64 / elapsed.as_secs_f64());
        }
    }
}

fn beyond_cache(site: &Site, report: &mut Report, sizes: &Sizes) -> Result<()> {
    let (file, cache) = (sizes.file / MIB, sizes.cache / MIB);
    report.section(&format!(
        "one file of {file} MiB with a cache budget of {cache} MiB (writes with their fdatasync)"
    ));
    for work in WORKS.iter().filter(|work| work.block == BLOCK) {
        let row = Row::new(&format!("{}, beyond cache", work.name), "MiB/s", Better::Higher);
        if report.wants(&row) {
            site.settle()?;
        }
        report.measure(&row, &site.columns(), |round, column| {
            cold_rate(site, &site.places()[column], work, sizes, round)
        })?;
    }
    Ok(())
}

/// MiB per second of one pass (random: of a stated number of bytes), the page cache emptied before,
/// and again whenever as much as the budget has gone through it.
fn cold_rate(site: &Site, place: &Place, work: &Work, sizes: &Sizes, round: usize) -> Result<f64> {
    let lower = open_data(&site.lower(), work)?;
    let fd = open_data(&place.root, work)?;
    let mut offsets = Offsets::new(work, sizes.file, round);
    let mut buffer = vec![0x5a; work.block];
    let total = if work.random { sizes.random } else { sizes.file };
    empty_cache(&lower, &fd)?;
    let (mut bytes, mut cached) = (0, 0);
    let start = Instant::now();
    while bytes < total {
        let moved = once(work, &fd, offsets.next(), &mut buffer)?;
        bytes += moved;
        cached += moved;
        if cached >= sizes.cache || bytes >= total {
            if work.write {
                fdatasync(&fd)?;
            }
            empty_cache(&lower, &fd)?;
            cached = 0;
        }
    }
    Ok(bytes as f64 / MIB as f64 / start.elapsed().as_secs_f64())
}

fn empty_cache(lower: &OwnedFd, view: &OwnedFd) -> Result<()> {
    // The view may have pages of its own (user space).
    fadvise(view, 0, None, Advice::DontNeed)?;
    Ok(fadvise(lower, 0, None, Advice::DontNeed)?)
}

fn open_data(root: &Path, work: &Work) -> Result<OwnedFd> {
    let access = if work.write { OFlags::RDWR } else { OFlags::RDONLY };
    Ok(open(root.join("data"), access | OFlags::CLOEXEC, Mode::empty())?)
}

#[inline]
fn once(work: &Work, fd: &OwnedFd, offset: u64, buffer: &mut [u8]) -> Result<u64> {
    let done =
        if work.write { pwrite(fd, buffer, offset)? } else { pread(fd, &mut *buffer, offset)? };
    anyhow::ensure!(done == buffer.len(), "short transfer at {offset}: {done} bytes");
    Ok(done as u64)
}

/// Offsets of whole blocks in a file: ascending from the start, or pseudo-random (xorshift, seeded
/// by the round, so that all columns of a round see the same ones).
struct Offsets {
    block: u64,
    blocks: u64,
    next: u64,
    random: bool,
}

impl Offsets {
    fn new(work: &Work, file: u64, round: usize) -> Offsets {
        let block = work.block as u64;
        let seed = 0x9e37_79b9_7f4a_7c15 ^ ((round as u64 + 1) << 32);
        let next = if work.random { seed } else { 0 };
        Offsets { block, blocks: file / block, next, random: work.random }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        if !self.random {
            let offset = self.next * self.block;
            self.next = if self.next + 1 == self.blocks { 0 } else { self.next + 1 };
            return offset;
        }
        self.next ^= self.next << 13;
        self.next ^= self.next >> 7;
        self.next ^= self.next << 17;
        (self.next % self.blocks) * self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_in_the_file_and_wrap() {
        let work = |random| Work { name: "", write: false, random, block: BLOCK };
        let mut ascending = Offsets::new(&work(false), 3 * BLOCK as u64, 0);
        let seen: Vec<_> = (0..4).map(|_| ascending.next() / BLOCK as u64).collect();
        assert_eq!(seen, [0, 1, 2, 0]);
        let mut random = Offsets::new(&work(true), MIB, 3);
        let seen: std::collections::HashSet<_> = (0..10_000).map(|_| random.next()).collect();
        assert!(seen.iter().all(|offset| offset % 4096 == 0 && *offset < MIB));
        assert_eq!(seen.len(), 256, "every block comes up");
    }
}
