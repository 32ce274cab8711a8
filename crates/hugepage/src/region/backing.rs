//! What can back a region, and the report of what was got.

use std::fmt;

use crate::error::Error;

/// What backs a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Pages from the reserved pool of this page size. Never swapped, never split.
    Hugetlb {
        /// Size of a page in bytes.
        page_bytes: usize,
    },
    /// Transparent huge pages of 2 MiB, as far as the kernel finds them.
    Thp,
    /// Base pages.
    Base,
}

impl fmt::Display for Backing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hugetlb { page_bytes } => write!(out, "hugetlb pages of {page_bytes} bytes"),
            Self::Thp => out.write_str("transparent huge pages"),
            Self::Base => out.write_str("base pages"),
        }
    }
}

/// Which address of a page is touched to fault it in. The kernel clears a huge page so that the
/// address touched is cleared last; which one is cheaper is a property of the machine that
/// [`crate::tune`] measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TouchAt {
    /// The first byte.
    First,
    /// The last byte.
    #[default]
    Last,
}

/// When the pages of a region are faulted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefault {
    /// When they are first used. A hugetlb page that a cgroup limit then refuses is a SIGBUS.
    Lazy,
    /// At once, huge page by huge page, each through the address given. A refusal is an error, not
    /// a signal: the touch is done by `MADV_POPULATE_WRITE` of one base page.
    Touch(TouchAt),
    /// At once, by one `MADV_POPULATE_WRITE` of the whole region.
    Populate,
}

/// A rung of the ladder that was not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// What was tried.
    pub tried: Backing,
    /// Why it was unavailable; its text names the way out.
    pub reason: Error,
}

/// What was got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The rung that was taken.
    pub backing: Backing,
    /// Bytes that lay on huge pages once the region was set up; `None` when the region is lazy or
    /// the kernel cannot tell (`PAGEMAP_SCAN`, Linux 6.7).
    pub huge_bytes: Option<usize>,
    /// Rungs above that were not taken.
    pub fallbacks: Vec<Fallback>,
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.backing)?;
        if let Some(bytes) = self.huge_bytes {
            write!(out, " ({bytes} bytes on huge pages)")?;
        }
        for Fallback { tried, reason } in &self.fallbacks {
            write!(out, "; not {tried}: {reason}")?;
        }
        Ok(())
    }
}
