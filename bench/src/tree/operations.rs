//! Single operations with their percentiles.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};

use super::contestants::{PEER, TOLLGATE};
use super::site::Site;
use crate::harness::{Better, Must, Options, Report, Row};

/// Files of the directory that is used.
const FILES: usize = 1_000;

/// Measures all rows.
pub(super) fn run(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    let names: Vec<_> = (0..FILES).map(|i| format!("file-{i:04}")).collect();
    let small = site.lower().join("opened-in-turn");
    std::fs::create_dir_all(&small)?;
    for name in &names {
        std::fs::write(small.join(name), "x")?;
    }
    for place in site.places() {
        std::fs::create_dir_all(place.lower_work().join("made"))?;
    }
    site.settle()?;
    report.section("single operations, one client");
    let us = |name: &str| Row::new(name, "us", Better::Lower).warm_up();
    let opens = ["open+close", "open+close, p99", "open+close, p99.9"].map(us);
    report.must(Must::at_most(("open+close", TOLLGATE), 0.25).against(PEER).aim(0.12));
    let median = ("open+close", TOLLGATE);
    report.must(Must::at_most((opens[1].name(), TOLLGATE), 10.0).against_cell(median).aim(4.0));
    let (columns, count) = (site.columns(), options.pick(20_000, 5_000));
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    report.measure_many(&opens, &columns, |_, column| {
        let directory = directory(&site.places()[column].root.join("opened-in-turn"))?;
        let mut times = each_us(count, |i| open(&directory, &names[i % FILES]).map(drop))?;
        Ok([0.5, 0.99, 0.999].map(|share| percentile(&mut times, share)).to_vec())
    })?;
    let creates = ["create+close", "create+close, p99"].map(us);
    report.measure_many(&creates, &columns, |_, column| {
        let directory = directory(&site.places()[column].work().join("made"))?;
        let mut times = each_us(FILES, |i| create(&directory, &names[i]).map(drop))?;
        for name in &names {
            unlinkat(&directory, name, AtFlags::empty())?;
        }
        Ok([0.5, 0.99].map(|share| percentile(&mut times, share)).to_vec())
    })
}

/// Microseconds of each of `count` calls.
fn each_us(count: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count);
    for i in 0..count {
        let start = Instant::now();
        call(i)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// The value that `share` of the values are at most (nearest rank).
fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let below =
        values.iter().enumerate().find(|(i, _)| (i + 1) as f64 >= share * values.len() as f64);
    below.map_or(f64::NAN, |(_, value)| *value)
}

fn directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn open(directory: &OwnedFd, name: &str) -> Result<OwnedFd> {
    Ok(openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn create(directory: &OwnedFd, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::from_raw_mode(0o644))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut values: Vec<_> = (1..=1000).rev().map(f64::from).collect();
        let found = [0.5, 0.99, 0.999, 1.0].map(|share| percentile(&mut values, share));
        assert_eq!(found, [500.0, 990.0, 999.0, 1000.0]);
        assert!((percentile(&mut [7.0], 0.99) - 7.0).abs() < f64::EPSILON);
    }
}
