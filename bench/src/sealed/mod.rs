//! `bench sealed`: files that are encrypted below, against files through user space in the same
//! view (the ceiling) and against gocryptfs.

mod site;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use rustix::fs::{Advice, fadvise};

use crate::harness::{Better, Column, Must, Options, Report, Row, interrupt};
use site::{GOCRYPTFS, SEALED, Site, USER_SPACE};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const STREAMS: usize = 64;

/// Runs the benchmark.
///
/// # Errors
/// If the view cannot be mounted, or an operation fails in it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let columns =
        [Column::new(USER_SPACE), Column::against(SEALED, USER_SPACE), Column::new(GOCRYPTFS)];
    let mut report = Report::new("sealed", options, &columns);
    let site = Site::new(&mut report)?;
    let measured = measure(&site, options, &mut report);
    drop(site);
    if interrupt::requested() {
        report.note("Interrupted: the rest was not measured.");
    }
    report.finish()?;
    measured
}

fn measure(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    let size = options.pick(256, 32) * MIB;
    for column in 0..site.columns().len() {
        fill(&site.file(column, "data"), size)?;
        for stream in 0..STREAMS {
            fill(&site.file(column, &format!("stream-{stream}")), size / STREAMS)?;
        }
    }
    sequential(site, report, size)?;
    random(site, report, size, options.pick(8192, 1024))?;
    streams(site, report, size)
}

fn sequential(site: &Site, report: &mut Report, size: usize) -> Result<()> {
    report.section("one stream of 1 MiB each; the lower file in the page cache, the view cold");
    let read = Row::new("sequential read", "MiB/s", Better::Higher).warm_up();
    site.settle()?;
    report.measure(&read, &site.columns(), |_, column| {
        rate(size, || read_all(&site.file(column, "data"), size))
    })?;
    report.must(Must::at_least((read.name(), SEALED), 1.3).against(GOCRYPTFS).aim(2.0));
    report.must(Must::at_least((read.name(), SEALED), 0.7).against(USER_SPACE).aim(0.9));
    let write = Row::new("sequential write, fsync at the end", "MiB/s", Better::Higher).warm_up();
    site.settle()?;
    report.measure(&write, &site.columns(), |_, column| {
        rate(size, || fill(&site.file(column, "written"), size))
    })?;
    report.must(Must::at_least((write.name(), SEALED), 1.5).against(GOCRYPTFS).aim(3.0));
    Ok(())
}

fn random(site: &Site, report: &mut Report, size: usize, count: usize) -> Result<()> {
    report.section("4 KiB at random places of the same file");
    for writes in [false, true] {
        let name =
            if writes { "random write 4 KiB, fsync at the end" } else { "random read 4 KiB" };
        let row = Row::new(name, "MiB/s", Better::Higher).warm_up();
        site.settle()?;
        report.measure(&row, &site.columns(), |round, column| {
            let path = site.file(column, "data");
            rate(count * BLOCK, || at_random(&path, size, count, writes, round))
        })?;
        report.must(Must::at_least((name, SEALED), 1.5).against(GOCRYPTFS).aim(4.0));
    }
    Ok(())
}

fn streams(site: &Site, report: &mut Report, size: usize) -> Result<()> {
    report.section("several files read at once, MiB/s of all together");
    let part = size / STREAMS;
    for count in [1, 2, STREAMS] {
        let row = Row::new(&format!("{count} streams"), "MiB/s", Better::Higher).warm_up();
        report.measure(&row, &site.columns(), |_, column| {
            // As many bytes in each row, in files of one size.
            rate(size, || {
                std::thread::scope(|scope| {
                    let mine = |first: usize| {
                        move || -> Result<()> {
                            for stream in (first..STREAMS).step_by(count) {
                                let name = format!("stream-{stream}");
                                read_all(&site.file(column, &name), part)?;
                            }
                            Ok(())
                        }
                    };
                    let all: Vec<_> = (0..count).map(|first| scope.spawn(mine(first))).collect();
                    all.into_iter().try_for_each(|one| one.join().expect("a reader panicked"))
                })
            })
        })?;
    }
    let cell = ("2 streams", SEALED);
    report.must(Must::at_least(cell, 1.3).against_cell(("1 streams", SEALED)).aim(1.7));
    let cell = ("64 streams", SEALED);
    report.must(Must::at_least(cell, 1.0).against_cell(("1 streams", SEALED)).aim(1.2));
    let resident = site.resident_bytes()? / MIB as u64;
    report.note(format!("{SEALED}: the server holds {resident} MiB after 64 streams."));
    Ok(())
}

/// MiB per second.
fn rate(bytes: usize, act: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    act()?;
    Ok(bytes as f64 / MIB as f64 / begun.elapsed().as_secs_f64())
}

fn fill(path: &Path, size: usize) -> Result<()> {
    let block: Vec<u8> = (0..=250).cycle().take(MIB.min(size)).collect();
    let file = File::create(path)?;
    for offset in (0..size).step_by(block.len()) {
        file.write_all_at(&block, offset as u64)?;
    }
    Ok(file.sync_all()?)
}

fn read_all(path: &Path, size: usize) -> Result<()> {
    let file = File::open(path)?;
    // The view's own pages; those of the lower file stay.
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut buffer = vec![0; MIB.min(size)];
    for offset in (0..size).step_by(buffer.len()) {
        file.read_exact_at(&mut buffer, offset as u64)?;
    }
    Ok(())
}

fn at_random(path: &Path, size: usize, count: usize, writes: bool, round: usize) -> Result<()> {
    let file = File::options().read(true).write(writes).open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut buffer = vec![0x5a; BLOCK];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ ((round as u64 + 1) << 32);
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let offset = state % (size / BLOCK) as u64 * BLOCK as u64;
        if writes {
            file.write_all_at(&buffer, offset)?;
        } else {
            file.read_exact_at(&mut buffer, offset)?;
        }
    }
    if writes {
        file.sync_all()?;
    }
    Ok(())
}
