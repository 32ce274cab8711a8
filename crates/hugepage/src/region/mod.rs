//! Regions: memory on the largest pages available, with a report of what was got and why.
#![expect(unsafe_code, reason = "a region owns a mapping and lends it as a slice")]

mod backing;
mod mapping;
mod options;
mod rung;
#[cfg(test)]
pub(crate) mod tests;

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

pub use backing::{Backing, Fallback, Prefault, Report, TouchAt};
pub use options::RegionOptions;

use crate::check::{check_multiple, check_physical};
use crate::error::Error;
use crate::machine::{HUGE_1G, HUGE_2M, Machine};
use crate::sys::{self, base_page_bytes};
use mapping::Mapping;

/// A range of memory that this value owns. Its bytes are zero when it is made; it is unmapped when
/// it is dropped.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    report: Report,
    /// Knows how much memory is left when more of the region is faulted in.
    machine: Machine,
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
            dont_fork: false,
            shareable: false,
            what: "a region",
            charged_before: 0,
            machine: Machine::current(),
        }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// What was got, and why not more.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The file that holds the memory of a [shareable](RegionOptions::shareable) region. Its length
    /// is sealed. `None` for private memory.
    ///
    /// # Safety
    /// Whoever gets the descriptor, or a copy of it, in this process or another, can read the bytes
    /// as long as he keeps it, and does not write them while a Rust reference to them exists here.
    #[must_use]
    pub unsafe fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.file().map(AsFd::as_fd)
    }

    /// The first address. It stays where it is until the region is dropped.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is `len` readable bytes, initialised by the kernel, owned by `self`
        // and borrowed for the life of the slice; writers need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// The bytes, to write.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }

    /// The address of the byte at `offset`.
    ///
    /// # Panics
    /// When the region is not longer than that.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        self.mapping.at(offset)
    }

    /// Faults in `[offset, offset + len)`, as the region would have been.
    pub(crate) fn fault_in(&self, offset: usize, len: usize, how: Prefault) -> Result<(), Error> {
        rung::fault_in(&self.mapping, offset..offset + len, how, self.report.backing, &self.machine)
    }

    /// Whether [`Region::release`] can give `[offset, offset + len)` back. Of reserved pages the
    /// kernel takes whole ones only: a start within a page is an error, and of a page at the end it
    /// leaves the bytes as they are and says nothing.
    pub(crate) fn can_release(&self, offset: usize, len: usize) -> bool {
        match self.report.backing {
            Backing::Hugetlb { page_bytes } => (offset | len).is_multiple_of(page_bytes),
            Backing::Thp | Backing::Base => true,
        }
    }

    /// Gives the memory of `[offset, offset + len)` back to the kernel. The range reads as zeroes
    /// afterwards. The caller is alone with the bytes and gives them up, and has asked
    /// [`Region::can_release`].
    pub(crate) fn release(&self, offset: usize, len: usize) -> Result<(), Error> {
        debug_assert!(self.can_release(offset, len), "{len} bytes at {offset}: a part of a page");
        self.mapping.release(offset, len)
    }

    /// Bytes that have memory at this moment.
    #[cfg(test)]
    pub(crate) fn resident_bytes(&self) -> Result<usize, Error> {
        sys::resident_bytes(self.start(), self.len())
            .map_err(|errno| Error::System { call: "PAGEMAP_SCAN", errno })
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

impl RegionOptions {
    /// Maps the region.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Unaligned`], [`Error::TooLarge`] and [`Error::NoSuchNode`] for
    /// what can never be; otherwise the reason of the last rung of the ladder when none could be
    /// had, or [`Error::LockLimit`].
    pub fn map(&self) -> Result<Region, Error> {
        self.check()?;
        let mut fallbacks = Vec::new();
        let mut last = None;
        for &backing in &self.ladder {
            match rung::rung(self, backing) {
                Ok(mapping) => return self.finish(mapping, backing, fallbacks),
                Err(reason @ Error::LockLimit { .. }) => return Err(reason),
                Err(reason) => {
                    last = Some(reason.clone());
                    fallbacks.push(Fallback { tried: backing, reason });
                }
            }
        }
        Err(last.unwrap_or(Error::EmptyLadder))
    }

    fn check(&self) -> Result<(), Error> {
        let page = base_page_bytes();
        if self.len == 0 {
            return Err(Error::Zero { what: "a region", least_bytes: page });
        }
        check_physical(self.what, self.len, &self.machine)?;
        check_multiple("a region", self.len, page)?;
        if self.shareable && self.wipe_on_fork {
            return Err(Error::Unsupported {
                what: "MADV_WIPEONFORK".into(),
                on: "shareable memory".into(),
                way_out: "leave it out: a child of fork does not get the mapping at all".into(),
            });
        }
        self.node.map_or(Ok(()), |(node, _)| self.machine.check_node(node))
    }

    fn finish(
        &self,
        mapping: Mapping,
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
        let report = Report { backing, huge_bytes, fallbacks };
        Ok(Region { mapping, report, machine: self.machine.clone() })
    }
}

#[cfg(feature = "userfaultfd")]
impl Region {
    /// Takes over a mapping of `len` bytes that nothing else unmaps, and whose bytes are
    /// initialised.
    pub(crate) fn adopt(start: NonNull<u8>, len: usize, backing: Backing) -> Self {
        let report = Report { backing, huge_bytes: None, fallbacks: Vec::new() };
        Self { mapping: Mapping::adopt(start, len), report, machine: Machine::current() }
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

    /// Faults in `[offset, offset + len)`.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), Error> {
        self.mapping.populate(offset, len)
    }

    /// A child of `fork` does not get the mapping.
    pub(crate) fn dont_fork(&self) -> Result<(), Error> {
        self.mapping.dont_fork()
    }
}

// SAFETY: a region owns its mapping alone, and a mapping belongs to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: through `&Region` the bytes are only read.
unsafe impl Sync for Region {}
