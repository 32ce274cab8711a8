//! Backing a range on demand with whole huge pages that were cleared in advance (`userfaultfd`).
//!
//! A thread that touches a page of a [`DemandRange`] for the first time waits until the range's
//! [`PageServer`], which runs on a thread of the caller's, has put a page there: about a
//! microsecond for one that lay ready, instead of the time to clear it.
//!
//! | memory | answered by | what it does |
//! |---|---|---|
//! | transparent huge pages | [`Method::Move`] | moves a ready page from the server's stock (Linux 6.8) |
//! | hugetlb | [`Method::Continue`] | maps a ready page of a memfd |
//! | either | [`Method::Copy`] | copies zeroes; gives base pages on THP |
//! | transparent huge pages | [`Method::ZeroPage`] | maps the shared zero page, copied when written |
//!
//! Any other pair is [`Error::Unsupported`].
#![expect(unsafe_code, reason = "lends a mapping whose pages come by ioctl")]

mod ioctl;
#[cfg(test)]
mod tests;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::check::check_multiple;
use crate::errno::Errno;
use crate::error::Error;
use crate::machine::HUGE_2M;
use crate::region::{Backing, Prefault, Region};
use ioctl::{Call, Uffd};

/// How a missing page is supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By moving a page out of a stock of transparent huge pages that were faulted in before.
    Move,
    /// By mapping a page of a hugetlb memfd that was faulted in before.
    Continue,
    /// By copying 2 MiB of zeroes.
    Copy,
    /// By mapping the kernel's zero page.
    ZeroPage,
}

/// What a range lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Anonymous memory advised to use transparent huge pages.
    Thp,
    /// Reserved pages of 2 MiB.
    Hugetlb,
}

/// Tries of a move that the kernel puts off.
const MOVE_TRIES: u32 = 16;

/// A range whose pages come on first touch.
#[derive(Debug)]
pub struct DemandRange {
    region: Arc<Region>,
}

/// Answers the faults of a [`DemandRange`]. Once it is dropped, pages that are still missing come
/// from the kernel in the ordinary way.
#[derive(Debug)]
pub struct PageServer {
    region: Arc<Region>,
    uffd: Uffd,
    call: Call,
    source: Source,
    stats: ServerStats,
}

/// Where pages come from.
#[derive(Debug)]
enum Source {
    /// Pages to move away; `true` for one that is there. At most this many are ready at a time.
    Stock {
        pages: Region,
        ready: Vec<bool>,
    },
    /// The same memfd, mapped a second time; `true` for a page of the file that is faulted in.
    File {
        pages: Region,
        ready: Vec<bool>,
    },
    /// Zeroes to copy.
    Zeroes(Region),
    Nothing,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Pages supplied that lay ready.
    pub ready: u64,
    /// Pages supplied that had to be made while a thread waited.
    pub made: u64,
    /// Faults on a page that another fault had brought already.
    pub raced: u64,
}

/// Maps `len` bytes, a multiple of 2 MiB, and the server that backs them. `stock` pages, at most as
/// many as the range has, lie ready from the start.
///
/// # Errors
/// [`Error::Zero`] and [`Error::Unaligned`]; [`Error::Unsupported`] for a pair of memory and method
/// that the kernel cannot do, or without userfaultfd; and the errors of
/// [`crate::RegionOptions::map`].
pub fn on_demand(
    len: usize,
    memory: Memory,
    method: Method,
    stock: usize,
) -> Result<(DemandRange, PageServer), Error> {
    if len == 0 {
        return Err(Error::Zero { what: "a range on demand", least_bytes: HUGE_2M });
    }
    check_multiple("a range on demand", len, HUGE_2M)?;
    let call = call_for(memory, method)?;
    let stock = stock.clamp(1, len / HUGE_2M);
    let (region, source) = match method {
        Method::Continue => file_backed(len)?,
        Method::Move => (anonymous(len, memory)?, stock_of(stock)?),
        Method::Copy => {
            let zeroes = Region::options(HUGE_2M).ladder(&[Backing::Thp, Backing::Base]).map()?;
            (anonymous(len, memory)?, Source::Zeroes(zeroes))
        }
        Method::ZeroPage => (anonymous(len, memory)?, Source::Nothing),
    };
    let uffd = Uffd::open(features(method)).map_err(|errno| no_userfaultfd(method, errno))?;
    let minor = method == Method::Continue;
    let registered = uffd.register(region.start(), len, minor, call);
    if !registered.map_err(|errno| Error::System { call: "UFFDIO_REGISTER", errno })? {
        return Err(unsupported(memory, call));
    }
    let region = Arc::new(region);
    let stats = ServerStats::default();
    let mut server = PageServer { region: region.clone(), uffd, call, source, stats };
    server.refill(stock)?;
    Ok((DemandRange { region }, server))
}

fn anonymous(len: usize, memory: Memory) -> Result<Region, Error> {
    let backing = match memory {
        Memory::Thp => Backing::Thp,
        Memory::Hugetlb => Backing::Hugetlb { page_bytes: HUGE_2M },
    };
    Region::options(len).exactly(backing).prefault(Prefault::Lazy).map()
}

fn stock_of(stock: usize) -> Result<Source, Error> {
    let pages = anonymous(stock * HUGE_2M, Memory::Thp)?;
    Ok(Source::Stock { pages, ready: vec![false; stock] })
}

fn file_backed(len: usize) -> Result<(Region, Source), Error> {
    // Reserves the pages, or says how many are missing.
    drop(anonymous(len, Memory::Hugetlb)?);
    let error = |call| move |errno| Error::System { call, errno };
    let file = ioctl::hugetlb_memfd(len).map_err(error("memfd_create"))?;
    let map = || ioctl::map_shared(&file, len).map_err(error("mmap"));
    let backing = Backing::Hugetlb { page_bytes: HUGE_2M };
    let region = Region::adopt(map()?, len, backing);
    let pages = Region::adopt(map()?, len, backing);
    Ok((region, Source::File { pages, ready: vec![false; len / HUGE_2M] }))
}

/// The ioctl, unless the pair is known to be impossible. What the kernel says of a registered range
/// is heeded besides.
fn call_for(memory: Memory, method: Method) -> Result<Call, Error> {
    let call = match method {
        Method::Move => Call::Move,
        Method::Continue => Call::Continue,
        Method::Copy => Call::Copy,
        Method::ZeroPage => Call::ZeroPage,
    };
    match (memory, method) {
        (Memory::Thp, Method::Continue) | (Memory::Hugetlb, Method::Move | Method::ZeroPage) => {
            Err(unsupported(memory, call))
        }
        _ => Ok(call),
    }
}

fn unsupported(memory: Memory, call: Call) -> Error {
    let (on, way_out) = match memory {
        Memory::Thp => ("anonymous memory of this kernel", "use Method::Move or Method::Copy"),
        Memory::Hugetlb => ("hugetlb", "use Method::Continue or Method::Copy"),
    };
    Error::Unsupported { what: call.name().into(), on: on.into(), way_out: way_out.into() }
}

fn features(method: Method) -> u64 {
    const MISSING_HUGETLBFS: u64 = 1 << 4;
    const MINOR_HUGETLBFS: u64 = 1 << 9;
    const MOVE: u64 = 1 << 16;
    match method {
        Method::Move => MOVE,
        Method::Continue => MINOR_HUGETLBFS | MISSING_HUGETLBFS,
        Method::Copy | Method::ZeroPage => MISSING_HUGETLBFS,
    }
}

fn no_userfaultfd(method: Method, errno: Errno) -> Error {
    Error::Unsupported {
        what: format!("userfaultfd for {method:?} ({errno})"),
        on: "this kernel or for this process".into(),
        way_out:
            "CONFIG_USERFAULTFD, `sysctl vm.unprivileged_userfaultfd=1`, and Linux 6.8 for Move"
                .into(),
    }
}

impl DemandRange {
    /// The bytes. Touching a page that is not there waits for the server.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as `self`, and the server never touches its bytes but
        // supplies missing pages, which are zero. `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.region.start().as_ptr(), self.region.len()) }
    }

    /// The bytes, to read.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.region.as_slice()
    }

    /// Bytes that huge pages map at this moment.
    ///
    /// # Errors
    /// As [`Region::huge_bytes`].
    pub fn huge_bytes(&self) -> Result<usize, Error> {
        self.region.huge_bytes()
    }
}

impl PageServer {
    /// Waits up to `timeout` for faults and answers those that have come: up to 16 in a call.
    /// Returns the number of pages supplied.
    ///
    /// # Errors
    /// [`Error::System`] when the kernel refuses a page, [`Error::OutOfMemory`] when none can be
    /// made. The other faults of the call are answered all the same; the thread that waits for the
    /// missing page faults again, which the next call sees, or the kernel once the server is
    /// dropped.
    pub fn serve(&mut self, timeout: Duration) -> Result<usize, Error> {
        let faults = self.uffd.faults(timeout);
        let faults = faults.map_err(|errno| Error::System { call: "read(userfaultfd)", errno })?;
        let before = self.stats;
        let first = self.region.start().as_ptr() as u64;
        for address in faults {
            let page =
                usize::try_from(address.saturating_sub(first)).unwrap_or(usize::MAX) / HUGE_2M;
            if page < self.region.len() / HUGE_2M {
                self.supply(page)?;
            }
        }
        let supplied = self.stats.ready + self.stats.made - before.ready - before.made;
        Ok(usize::try_from(supplied).unwrap_or(usize::MAX))
    }

    /// Makes up to `count` more pages ready. Returns how many; 0 when nothing is left to do.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn refill(&mut self, count: usize) -> Result<usize, Error> {
        let (Source::Stock { pages, ready } | Source::File { pages, ready }) = &mut self.source
        else {
            return Ok(0);
        };
        let missing: Vec<usize> = (0..ready.len()).filter(|at| !ready[*at]).take(count).collect();
        for &page in &missing {
            pages.populate_page(page, HUGE_2M)?;
            ready[page] = true;
        }
        Ok(missing.len())
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.stats
    }

    fn supply(&mut self, page: usize) -> Result<(), Error> {
        let to = self.region.page(page, HUGE_2M);
        let (from, lay_ready) = self.ready_page(page)?;
        // SAFETY: `to` is a page of the range, `from` one of the server's own, which is marked as
        // used; or, for a file, `from` is the same page and not touched.
        let answer = || unsafe { self.uffd.answer(self.call, to, from, HUGE_2M) };
        let mut result = answer();
        for _ in 0..MOVE_TRIES {
            // The page is briefly in other hands, such as khugepaged's.
            if !matches!(result, Err(Errno(libc::EAGAIN | libc::EBUSY))) {
                break;
            }
            std::thread::yield_now();
            result = answer();
        }
        match result {
            Ok(()) if lay_ready => self.stats.ready += 1,
            Ok(()) => self.stats.made += 1,
            Err(Errno(libc::EEXIST)) => {
                self.stats.raced += 1;
                let woken = self.uffd.wake(to, HUGE_2M);
                return woken.map_err(|errno| Error::System { call: "UFFDIO_WAKE", errno });
            }
            Err(errno) => return Err(Error::System { call: self.call.name(), errno }),
        }
        if let Source::Stock { pages, ready } = &mut self.source {
            let moved = (from.as_ptr() as usize - pages.start().as_ptr() as usize) / HUGE_2M;
            ready[moved] = false;
        }
        Ok(())
    }

    /// The page to answer with, and whether it lay ready.
    fn ready_page(&mut self, page: usize) -> Result<(NonNull<u8>, bool), Error> {
        let (pages, ready, at) = match &mut self.source {
            Source::Zeroes(zeroes) => return Ok((zeroes.start(), true)),
            Source::Nothing => return Ok((self.region.start(), true)),
            Source::File { pages, ready } => (pages, ready, page),
            Source::Stock { pages, ready } => {
                let at = ready.iter().position(|ready| *ready).unwrap_or(0);
                (pages, ready, at)
            }
        };
        let lay_ready = ready[at];
        if !lay_ready {
            pages.populate_page(at, HUGE_2M)?;
            ready[at] = true;
        }
        Ok((pages.page(at, HUGE_2M), lay_ready))
    }
}
