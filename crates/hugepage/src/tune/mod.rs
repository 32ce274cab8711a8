//! Measures once per machine which engine is fastest in which situation, and keeps the result.
//!
//! [`tuned`] takes the plan from the cache file when that was made on this processor with this
//! microcode and as many CPUs, and measures otherwise, in well under a second. A plan that may be
//! wrong says so in its notes, which the file keeps. [`explain`] always measures. What either
//! returns prints itself: samples, choices, and where they come from.

mod cache;
mod candidates;
mod measure;
mod rounds;
#[cfg(test)]
mod tests;
mod tuning;

use std::path::Path;
use std::time::Duration;

pub use tuning::{OVERRIDE_VARIABLE, Origin, Sample, TuneOptions, Tuning};

use crate::error::Error;
use cache::Kept;

/// The plan for this machine: from the cache file where that is of use, else measured and kept
/// there.
///
/// A cache file that cannot be read or written is a note, not an error.
///
/// # Errors
/// A bad override ([`Error::BadWord`] and the like), or no memory to measure on.
pub fn tuned(options: &TuneOptions) -> Result<Tuning, Error> {
    let mut notes = Vec::new();
    if let Some(path) = &options.cache_file {
        match cache::load(path, &options.machine) {
            Ok(Some(kept)) => return from_cache(kept, path, options),
            Ok(None) => {}
            Err(note) => notes.push(note),
        }
    }
    let mut tuning = measure::measure(options)?;
    if let Some(path) = &options.cache_file
        && let Err(error) = cache::save(path, &tuning.plan, &tuning.notes, &options.machine)
    {
        notes.push(format!("the plan was not kept in {}: {error}", path.display()));
    }
    tuning.notes.splice(0..0, notes);
    override_plan(&mut tuning, options)?;
    Ok(tuning)
}

/// Measures, whatever the cache file says, and leaves that as it is. Prints itself as the samples
/// and the choice.
///
/// # Errors
/// As [`tuned`].
pub fn explain(options: &TuneOptions) -> Result<Tuning, Error> {
    let mut tuning = measure::measure(options)?;
    override_plan(&mut tuning, options)?;
    Ok(tuning)
}

fn from_cache(kept: Kept, path: &Path, options: &TuneOptions) -> Result<Tuning, Error> {
    let mut tuning = Tuning {
        plan: kept.plan,
        origin: Origin::Cached(path.to_owned()),
        samples: Vec::new(),
        working_set_bytes: 0,
        set_up: Duration::ZERO,
        elapsed: Duration::ZERO,
        notes: kept.notes,
    };
    override_plan(&mut tuning, options)?;
    Ok(tuning)
}

fn override_plan(tuning: &mut Tuning, options: &TuneOptions) -> Result<(), Error> {
    if let Some(rows) = &options.overrides {
        tuning.plan.set(rows)?;
        tuning.notes.push(format!("overridden: {rows}"));
    }
    Ok(())
}
