//! The setting of transparent huge pages.

use std::fmt;

/// The setting of transparent huge pages for anonymous memory of the PMD size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thp {
    /// Wherever they fit.
    Always,
    /// Where `madvise(MADV_HUGEPAGE)` asks for them.
    Madvise,
    /// Never.
    Never,
    /// The kernel was built without them.
    Absent,
}

impl fmt::Display for Thp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Always => "always on",
            Self::Madvise => "on where advised",
            Self::Never => "set to never",
            Self::Absent => "not built into this kernel",
        })
    }
}
