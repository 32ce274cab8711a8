//! Measures a directory: the same few operations, bare and through the view.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::project::MEASURED_BYTES;

/// How long one operation is repeated.
const BUDGET: Duration = Duration::from_millis(60);

/// Nanoseconds per operation.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Sample {
    pub(crate) read_4k_ns: f64,
    pub(crate) write_4k_ns: f64,
    pub(crate) read_1m_ns: f64,
    pub(crate) open_close_ns: f64,
    pub(crate) stat_ns: f64,
    pub(crate) audited_read_4k_ns: f64,
}

/// Measures in the demo's project at `root`.
pub(crate) fn measure(root: &Path) -> anyhow::Result<Sample> {
    let plain = root.join("data/measured.bin");
    let audited = root.join("logs/measured.bin");
    let file = open(&plain)?;
    let audited = open(&audited)?;
    let mut small = [0; 4096];
    let mut large = vec![0; 1 << 20];
    Ok(Sample {
        read_4k_ns: repeat(|n| Ok(file.read_exact_at(&mut small, place(n, 4096))?))?,
        write_4k_ns: repeat(|n| Ok(file.write_all_at(&[b'y'; 4096], place(n, 4096))?))?,
        read_1m_ns: repeat(|n| Ok(file.read_exact_at(&mut large, place(n, 1 << 20))?))?,
        open_close_ns: repeat(|_| File::open(&plain).map(drop).context("open"))?,
        stat_ns: repeat(|_| std::fs::metadata(&plain).map(drop).context("stat"))?,
        audited_read_4k_ns: repeat(|n| Ok(audited.read_exact_at(&mut small, place(n, 4096))?))?,
    })
}

fn open(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.with_context(|| format!("cannot open `{}`", path.display()))
}

/// Goes through the file block by block.
fn place(turn: u64, block: u64) -> u64 {
    turn * block % MEASURED_BYTES as u64
}

/// Mean time of one call, once warm.
fn repeat(mut operation: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    for turn in 0..16 {
        operation(turn)?;
    }
    let start = Instant::now();
    let mut turns = 0;
    while start.elapsed() < BUDGET {
        // The clock is read once in a while only.
        for _ in 0..16 {
            operation(turns)?;
            turns += 1;
        }
    }
    let turns = u32::try_from(turns).unwrap_or(u32::MAX);
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(turns))
}
