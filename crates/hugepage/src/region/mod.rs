//! Regions: memory on the largest pages that can be had, with a report of what was got and why.
#![expect(unsafe_code, reason = "a region owns a mapping and lends it as a slice")]

mod map;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::ptr::NonNull;

use crate::error::Error;
use crate::machine::{HUGE_1G, HUGE_2M, Machine, NodeId, base_page_bytes};
use crate::sys;

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
    /// Why it was not to be had; its text names the way out.
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

/// What a region is to be. Made by [`Region::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RegionOptions {
    pub(crate) len: usize,
    pub(crate) ladder: Vec<Backing>,
    pub(crate) node: Option<(NodeId, bool)>,
    pub(crate) prefault: Prefault,
    pub(crate) lock: bool,
    pub(crate) dont_dump: bool,
    pub(crate) wipe_on_fork: bool,
    pub(crate) machine: Machine,
}

impl RegionOptions {
    /// The rungs to try, in this order. The standard ladder is hugetlb of 1 GiB (for whole multiples
    /// of it), hugetlb of 2 MiB, transparent huge pages, base pages.
    pub fn ladder(mut self, ladder: &[Backing]) -> Self {
        self.ladder = ladder.to_vec();
        self
    }

    /// Only this backing: anything else is an error.
    pub fn exactly(self, backing: Backing) -> Self {
        self.ladder(&[backing])
    }

    /// Takes pages from `node` where it has any left.
    pub fn prefer_node(mut self, node: NodeId) -> Self {
        self.node = Some((node, false));
        self
    }

    /// Takes pages from `node` only.
    pub fn bind_node(mut self, node: NodeId) -> Self {
        self.node = Some((node, true));
        self
    }

    /// When the pages are faulted in; at once through their last byte unless set.
    pub fn prefault(mut self, prefault: Prefault) -> Self {
        self.prefault = prefault;
        self
    }

    /// Keeps the pages out of swap (`mlock2` with `MLOCK_ONFAULT`).
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Keeps the bytes out of core dumps (`MADV_DONTDUMP`).
    pub fn dont_dump(mut self, dont_dump: bool) -> Self {
        self.dont_dump = dont_dump;
        self
    }

    /// A child of `fork` finds zeroes (`MADV_WIPEONFORK`). Hugetlb cannot do it, so the ladder
    /// passes over it and says so.
    pub fn wipe_on_fork(mut self, wipe_on_fork: bool) -> Self {
        self.wipe_on_fork = wipe_on_fork;
        self
    }

    /// [`lock`](Self::lock), [`dont_dump`](Self::dont_dump) and [`wipe_on_fork`](Self::wipe_on_fork):
    /// for buffers that hold secrets.
    pub fn secret(self) -> Self {
        self.lock(true).dont_dump(true).wipe_on_fork(true)
    }

    /// Reads the machine's state from elsewhere, for tests.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = machine;
        self
    }

    /// Maps the region.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Unaligned`], [`Error::TooLarge`] and [`Error::NoSuchNode`] for what
    /// can never be; otherwise the reason of the last rung of the ladder when none could be had, or
    /// [`Error::LockLimit`].
    pub fn map(&self) -> Result<Region, Error> {
        self.check()?;
        let mut fallbacks = Vec::new();
        let mut last = None;
        for &backing in &self.ladder {
            match map::rung(self, backing) {
                Ok(mapping) => return self.finish(mapping, backing, fallbacks),
                Err(reason @ Error::LockLimit { .. }) => return Err(reason),
                Err(reason) => {
                    last = Some(reason.clone());
                    fallbacks.push(Fallback { tried: backing, reason });
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::BadWord {
            word: String::new(),
            what: "a ladder",
            allowed: "at least one backing".into(),
        }))
    }

    fn check(&self) -> Result<(), Error> {
        let page = base_page_bytes();
        if self.len == 0 {
            return Err(Error::Zero { what: "a region", least_bytes: page });
        }
        check_limit("a region", self.len, &self.machine)?;
        check_multiple("a region", self.len, page)?;
        self.node.map_or(Ok(()), |(node, _)| self.machine.check_node(node))
    }

    fn finish(
        &self,
        mapping: map::Mapping,
        backing: Backing,
        mut fallbacks: Vec<Fallback>,
    ) -> Result<Region, Error> {
        let lazy = self.prefault == Prefault::Lazy;
        let huge_bytes = match backing {
            Backing::Hugetlb { .. } => Some(self.len),
            _ if lazy => None,
            _ => sys::huge_mapped_bytes(mapping.start(), self.len).ok(),
        };
        let whole = self.len / HUGE_2M * HUGE_2M;
        if let (Backing::Thp, Some(huge_bytes)) = (backing, huge_bytes)
            && huge_bytes < whole
        {
            let reason = Error::ThpShort { bytes: self.len, huge_bytes };
            fallbacks.push(Fallback { tried: backing, reason });
        }
        Ok(Region { mapping, report: Report { backing, huge_bytes, fallbacks } })
    }
}

/// Refuses more bytes than the machine and the cgroup hold.
pub(crate) fn check_limit(
    what: &'static str,
    bytes: usize,
    machine: &Machine,
) -> Result<(), Error> {
    let (limit_bytes, limit) = match machine.memory_limit() {
        Some(limit) => (limit.bytes.min(isize::MAX.unsigned_abs()), limit.source),
        None => (isize::MAX.unsigned_abs(), "half of the address space".into()),
    };
    if bytes <= limit_bytes {
        return Ok(());
    }
    let way_out = format!("ask for at most {limit_bytes} bytes, or raise the limit");
    Err(Error::TooLarge { what, bytes, limit_bytes, limit, way_out })
}

/// Refuses a size that is not a multiple of `multiple`.
pub(crate) fn check_multiple(
    what: &'static str,
    value: usize,
    multiple: usize,
) -> Result<(), Error> {
    if value.is_multiple_of(multiple) {
        return Ok(());
    }
    let next = value.checked_next_multiple_of(multiple).unwrap_or(usize::MAX);
    Err(Error::Unaligned { what, value, multiple, next })
}

/// A range of memory that this value owns. Its bytes are zero when it is made; it is unmapped when it
/// is dropped.
#[derive(Debug)]
pub struct Region {
    mapping: map::Mapping,
    report: Report,
}

impl Region {
    /// A region of `len` bytes, to be set up further and mapped.
    pub fn options(len: usize) -> RegionOptions {
        let mut ladder =
            vec![Backing::Hugetlb { page_bytes: HUGE_2M }, Backing::Thp, Backing::Base];
        if len.is_multiple_of(HUGE_1G) {
            ladder.insert(0, Backing::Hugetlb { page_bytes: HUGE_1G });
        }
        RegionOptions {
            len,
            ladder,
            node: None,
            prefault: Prefault::Touch(TouchAt::Last),
            lock: false,
            dont_dump: false,
            wipe_on_fork: false,
            machine: Machine::current(),
        }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// What was got, and why not more.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The first address. It stays where it is until the region is dropped.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is `len` readable bytes, initialised by the kernel, owned by `self`
        // and borrowed for the life of the slice; writers need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }

    /// Bytes that huge pages map at this moment.
    ///
    /// # Errors
    /// [`Error::System`] where the kernel lacks `PAGEMAP_SCAN` or `/proc` is not mounted.
    pub fn huge_bytes(&self) -> Result<usize, Error> {
        sys::huge_mapped_bytes(self.start(), self.len())
            .map_err(|errno| Error::System { call: "PAGEMAP_SCAN", errno })
    }
}

#[cfg(feature = "userfaultfd")]
impl Region {
    /// Takes over a mapping of `len` bytes that nothing else unmaps, and whose bytes are initialised.
    pub(crate) fn adopt(start: NonNull<u8>, len: usize, backing: Backing) -> Self {
        let report = Report { backing, huge_bytes: None, fallbacks: Vec::new() };
        Self { mapping: map::Mapping::adopt(start, len), report }
    }

    /// The first address of page `number` of `page_bytes`.
    ///
    /// # Panics
    /// When the region has no such page.
    pub(crate) fn page(&self, number: usize, page_bytes: usize) -> NonNull<u8> {
        assert!(number < self.len() / page_bytes, "page {number} of {} bytes", self.len());
        // SAFETY: the page lies in the mapping, by the line above.
        unsafe { self.start().add(number * page_bytes) }
    }

    /// Faults in page `number` of `page_bytes`.
    pub(crate) fn populate_page(&self, number: usize, page_bytes: usize) -> Result<(), Error> {
        map::populate(&self.mapping, number * page_bytes, page_bytes)
    }
}

// SAFETY: a region owns its mapping alone, and a mapping belongs to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: through `&Region` the bytes are only read.
unsafe impl Sync for Region {}
