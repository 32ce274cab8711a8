//! How to tune, and what comes of it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::machine::Machine;
use crate::plan::ClearPlan;

/// The environment variable whose rows override the plan, see [`ClearPlan::set`].
pub const OVERRIDE_VARIABLE: &str = "TOLLGATE_CLEAR_PLAN";

/// How to tune.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Where the plan is kept between runs; `None` to measure each time.
    pub cache_file: Option<PathBuf>,
    /// Rows that hold whatever is measured, as [`ClearPlan::set`] reads them.
    pub overrides: Option<String>,
    /// Samples of each engine, interleaved.
    pub rounds: usize,
    /// Memory to measure on, in bytes; by default four times the part of the last-level cache that
    /// the CPUs of this process can use, at most 512 MiB.
    pub working_set_bytes: Option<usize>,
    /// Where the machine's state is read.
    pub machine: Machine,
}

impl TuneOptions {
    /// Samples per engine unless told otherwise. Eight chose the same winner 200 times out of 200
    /// on a busy Zen 4 guest.
    pub const ROUNDS: usize = 8;

    /// The cache file of this user, overrides from [`OVERRIDE_VARIABLE`].
    pub fn standard() -> Self {
        Self {
            cache_file: standard_path(),
            overrides: std::env::var(OVERRIDE_VARIABLE).ok(),
            ..Self::uncached()
        }
    }

    /// No cache file and no overrides.
    pub fn uncached() -> Self {
        Self {
            cache_file: None,
            overrides: None,
            rounds: Self::ROUNDS,
            working_set_bytes: None,
            machine: Machine::current(),
        }
    }
}

/// Where a plan comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Measured just now.
    Measured,
    /// Read from this file.
    Cached(PathBuf),
}

/// The samples of one engine in one situation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The row of the plan: `cold`, `copy-hot`, `touch`, ...
    pub row: String,
    /// The engine.
    pub engine: String,
    /// Bytes handled per sample.
    pub bytes: usize,
    /// Median in nanoseconds. With a target it includes writing the window round it afterwards.
    pub median_ns: u64,
    /// Fastest sample in nanoseconds.
    pub min_ns: u64,
    /// Slowest sample in nanoseconds.
    pub max_ns: u64,
    /// Whether the plan has it.
    pub chosen: bool,
}

impl Sample {
    /// Speed in gigabytes (10^9) per second.
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / (self.median_ns.max(1) as f64)
    }
}

/// A plan and how it came about.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The plan.
    pub plan: ClearPlan,
    /// Where it comes from.
    pub origin: Origin,
    /// What was measured; empty for a plan from a file.
    pub samples: Vec<Sample>,
    /// Memory measured on, in bytes.
    pub working_set_bytes: usize,
    /// How long the memory took to be faulted in, which in a guest may be the host's work.
    pub set_up: Duration,
    /// How long tuning took, set-up included.
    pub elapsed: Duration,
    /// What was out of the ordinary: a cache file that could not be used, too little memory.
    pub notes: Vec<String>,
}

/// `$XDG_CACHE_HOME/tollgate/clear-plan`, or the same under `$HOME/.cache`.
fn standard_path() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("tollgate").join("clear-plan"))
}

impl fmt::Display for Tuning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Cached(path) => writeln!(out, "plan from {}", path.display())?,
            Origin::Measured => writeln!(
                out,
                "measured on {} MiB in {:.1} ms, of which {:.1} to fault the memory in",
                self.working_set_bytes >> 20,
                self.elapsed.as_secs_f64() * 1e3,
                self.set_up.as_secs_f64() * 1e3
            )?,
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        if !self.samples.is_empty() {
            writeln!(
                out,
                "\n  {:<12} {:<34} {:>10} {:>10} {:>10} {:>7}",
                "situation", "engine", "median us", "min us", "max us", "GB/s"
            )?;
        }
        for sample in &self.samples {
            sample.fmt(out)?;
        }
        write!(out, "\n{}", self.plan)
    }
}

impl fmt::Display for Sample {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        writeln!(
            out,
            "{} {:<12} {:<34} {:>10.1} {:>10.1} {:>10.1} {:>7.1}",
            if self.chosen { '>' } else { ' ' },
            self.row,
            self.engine,
            us(self.median_ns),
            us(self.min_ns),
            us(self.max_ns),
            self.gb_per_s()
        )
    }
}
