//! `tollgate doctor`: what this machine can do, what is missing, and the command that mends it.

mod awake;
mod check;
mod kernel;
mod place;
mod probe;
mod rights;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;

pub(crate) use probe::inside;

use check::{Check, State};

use crate::cli::DoctorArgs;
use crate::escape::{escaped, json_text};
use crate::git::Repository;
use crate::tree;

/// Version of the JSON; a field is added without a new number, never changed or removed.
const VERSION: u32 = 1;

/// Tries what `run` and `mount` need; status 1 if `run` cannot work.
///
/// # Errors
/// When DIR cannot be read.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let dir = directory(args.dir.as_deref())?;
    // Children are made by fork first, before anything starts a thread.
    let mut checks = kernel::checks();
    // Without /proc nothing of the rest can be tried.
    if Path::new("/proc/self").exists() {
        checks.extend(rights::checks());
        checks.extend(place::checks(&dir));
        checks.extend(probe::checks(&dir));
        // It starts threads, and keeps CPUs busy for milliseconds: last.
        checks.push(awake::check());
    }
    let works = !checks.iter().any(|check| check.state == State::Broken);
    if args.json {
        let report = json!({"version": VERSION, "dir": dir.to_string_lossy(), "works": works,
                   "checks": checks});
        println!("{}", json_text(&format!("{report:#}")));
    } else {
        print(&dir, works, &checks);
    }
    Ok(ExitCode::from(u8::from(!works)))
}

fn directory(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the working directory cannot be named")?;
    let dir = named.map_or_else(|| Repository::top_of(&here).unwrap_or(here), Path::to_owned);
    Ok(tree::open(&dir)?.0.path)
}

fn print(dir: &Path, works: bool, checks: &[Check]) {
    println!("tollgate {} over {}\n", env!("TOLLGATE_VERSION"), escaped(&dir.to_string_lossy()));
    checks.iter().for_each(|check| print!("{}", check.lines()));
    let without = checks.iter().filter(|check| check.state == State::Without).count();
    println!();
    match (works, without) {
        (false, _) => println!("`tollgate run` does not work here: see what is BROKEN"),
        (true, 0) => println!("`tollgate run` works here, with everything that it can use"),
        (true, _) => println!("`tollgate run` works here; what it does without is named above"),
    }
}
