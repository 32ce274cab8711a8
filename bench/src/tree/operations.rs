//! Single operations with their percentiles.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};

use super::contestants::{PEER, TOLLGATE};
use super::site::{Place, Site};
use super::walk::SETTLED_AFTER;
use crate::harness::{Better, Must, Options, Report, Row};

/// Files of each directory that is used.
const FILES: usize = 1_000;
/// The directory of files that are opened to be read, and the one of those opened to be written.
const OPENED: &str = "opened-in-turn";
const WRITTEN: &str = "written-in-turn";
/// Longer than a server keeps the registration of a file that nobody has open.
const UNREGISTERED_AFTER: Duration = Duration::from_millis(2_200);

/// Measures all rows.
pub(super) fn run(site: &mut Site, options: &Options, report: &mut Report) -> Result<()> {
    let names: Vec<_> = (0..FILES).map(|i| format!("file-{i:04}")).collect();
    for small in [OPENED, WRITTEN].into_iter().flat_map(|name| site.owned(name)) {
        std::fs::create_dir_all(&small)?;
        for name in &names {
            std::fs::write(small.join(name), "x")?;
        }
    }
    for place in site.places() {
        std::fs::create_dir_all(place.lower_work().join("made"))?;
    }
    site.hand_over()?;
    site.settle()?;
    report.section("single operations, one client");
    let us = |name: &str| Row::new(name, "us", Better::Lower).warm_up();
    let opens = ["open+close", "open+close, p99", "open+close, p99.9"].map(us);
    report.must(Must::at_most(("open+close", TOLLGATE), 0.25).against(PEER).aim(0.12));
    let median = ("open+close", TOLLGATE);
    judge_users(site, &opens[0], report);
    report.must(Must::at_most((opens[1].name(), TOLLGATE), 10.0).against_cell(median).aim(4.0));
    let (columns, count) = (site.columns(), options.pick(20_000, 5_000));
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    report.measure_many(&opens, &columns, |_, column| {
        let place = &site.places()[column];
        let mut times = place.within(|| {
            let directory = directory(&place.root.join(place.own(OPENED)))?;
            each_us(count, |i| open(&directory, &names[i % FILES]).map(drop))
        })?;
        Ok([0.5, 0.99, 0.999].map(|share| percentile(&mut times, share)).to_vec())
    })?;
    let creates = ["create+close", "create+close, p99"].map(us);
    judge_users(site, &creates[0], report);
    report.measure_many(&creates, &columns, |_, column| {
        let place = &site.places()[column];
        let mut times = place.within(|| {
            let directory = directory(&place.work().join("made"))?;
            let times = each_us(FILES, |i| create(&directory, &names[i]).map(drop))?;
            for name in &names {
                unlinkat(&directory, name, AtFlags::empty())?;
            }
            Ok(times)
        })?;
        Ok([0.5, 0.99].map(|share| percentile(&mut times, share)).to_vec())
    })?;
    // Where a registration is made, and not only kept: it costs a user a round trip.
    let writes = [
        "open+close to write, at first",
        "open+close to write, again",
        "open+read+write+close, 2.2 s later",
    ];
    let writes = writes.map(us);
    writes.iter().for_each(|row| judge_users(site, row, report));
    report.measure_many(&writes, &columns, |_, column| {
        let place = &mut site.places_mut()[column];
        place.remount(&[])?;
        sleep(SETTLED_AFTER);
        let place = &*place;
        place.within(|| opens_to_write(place, &names))
    })
}

fn judge_users(site: &Site, row: &Row, report: &mut Report) {
    site.musts_of_users(row.name()).into_iter().for_each(|must| report.must(must));
}

/// Microseconds for each file: at first, again, and once no registration is left.
fn opens_to_write(place: &Place, names: &[String]) -> Result<Vec<f64>> {
    let directory = directory(&place.root.join(place.own(WRITTEN)))?;
    for name in names {
        rustix::fs::statat(&directory, name, AtFlags::empty())?;
    }
    let open = |i: usize| open_to_write(&directory, &names[i]);
    let mean = |times: Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
    let first = mean(each_us(FILES, |i| open(i).map(drop))?);
    let again = mean(each_us(FILES, |i| open(i).map(drop))?);
    sleep(UNREGISTERED_AFTER);
    let io = |i| {
        let file = open(i)?;
        rustix::io::pread(&file, &mut [0; 16], 0)?;
        rustix::io::pwrite(&file, b"x", 0)?;
        Ok(())
    };
    Ok(vec![first, again, mean(each_us(FILES, io)?)])
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

fn open_to_write(directory: &OwnedFd, name: &str) -> Result<OwnedFd> {
    Ok(openat(directory, name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
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
