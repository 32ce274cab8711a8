//! Files that everybody may read, by their place alone.
//!
//! Most files of a tree are covered by no rule that looks at more than a path. If such a file is allowed to be
//! read, and the kernel to read it by itself, then it is for every caller, and whatever it holds: as long as the
//! policy, the file's place and the paths of directories stay the same, OPEN need not ask again. What is
//! still looked at each time is whether the file is where it is known to be.

use crate::admission::{Admission, Subject};
use crate::paths::Paths;

/// Bits that count renames of directories: more than there can be.
const RENAMES: u32 = 48;

/// Tells apart the policies and the paths by which something is judged; never 0.
pub(crate) fn epoch(admission: &Admission, paths: &Paths) -> u64 {
    let policies = admission.epoch() as u64 + 1;
    (policies << RENAMES) | (paths.renames() & ((1 << RENAMES) - 1))
}

impl Subject<'_> {
    /// Whether everybody may read it under its only name, and no rule is only recorded.
    pub(crate) fn is_free_to_read(&self) -> bool {
        self.only_name_in_force().is_some_and(tollgate_policy::Matched::lets_everybody_read)
    }
}
