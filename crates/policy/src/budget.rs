//! What a policy takes from a text that is being read, so that a short one does not stand for much
//! more memory than it has bytes.

use std::cell::Cell;

use regex::bytes::{Regex, RegexBuilder};

use crate::glob::Glob;
use crate::limits::{MAX_GLOBS, MAX_REGEXES_LEN, MAX_SPREAD_IN_ALL};

/// The first limit that an expression is compiled under.
const SMALLEST_REGEX_LEN: usize = 4 << 10;
/// Most that `regex` makes of an expression beside its automaton, where a match has groups.
const ONE_PASS_LEN: usize = 1 << 20;
/// How many times the automaton that is: up to 256 transitions of 8 bytes for a state of 24 or more.
const ONE_PASS_FACTOR: usize = 64;

/// What was taken so far.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    globs: Cell<usize>,
    spread: Cell<usize>,
    regexes: Cell<usize>,
}

/// What is more than a policy may have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    /// Globs, more than [`MAX_GLOBS`].
    Globs,
    /// What they stand for, more than [`MAX_SPREAD_IN_ALL`].
    Spread,
    /// Regular expressions, more than [`MAX_REGEXES_LEN`].
    Regexes,
}

impl Budget {
    /// Counts `globs`, which are the alternatives of one.
    pub(crate) fn take_globs(&self, globs: &[Glob]) -> Result<(), Over> {
        let spread = globs.iter().map(Glob::weight).sum();
        if add(&self.globs, globs.len()) > MAX_GLOBS {
            return Err(Over::Globs);
        }
        if add(&self.spread, spread) > MAX_SPREAD_IN_ALL {
            return Err(Over::Spread);
        }
        Ok(())
    }

    /// Counts a regular expression by what [`build`] said of it.
    pub(crate) fn take_regex(&self, weight: usize) -> Result<(), Over> {
        if add(&self.regexes, weight) > MAX_REGEXES_LEN {
            return Err(Over::Regexes);
        }
        Ok(())
    }
}

fn add(sum: &Cell<usize>, more: usize) -> usize {
    sum.set(sum.get().saturating_add(more));
    sum.get()
}

/// Compiles an expression to at most `most` bytes, with what it may take at most. `regex` does not tell
/// what it took, so the limit grows until the expression fits.
pub(crate) fn build(
    builder: &mut RegexBuilder,
    most: usize,
) -> Result<(Regex, usize), regex::Error> {
    let mut limit = SMALLEST_REGEX_LEN.min(most);
    loop {
        match builder.size_limit(limit).build() {
            Err(regex::Error::CompiledTooBig(_)) if limit < most => limit = most.min(limit * 4),
            Err(error) => return Err(error),
            Ok(regex) => {
                let has_groups = regex.captures_len() > 1;
                let one_pass = ONE_PASS_LEN.min(limit * ONE_PASS_FACTOR);
                return Ok((regex, limit + if has_groups { one_pass } else { 0 }));
            }
        }
    }
}
