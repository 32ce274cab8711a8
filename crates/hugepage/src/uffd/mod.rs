//! Backing a range on demand with whole huge pages that were cleared in advance (`userfaultfd`).
//!
//! A thread that touches a page of a [`DemandRange`] for the first time waits until the range's
//! [`PageServer`], which runs on a thread of the caller's, has put a page there: about a
//! microsecond for one that lay ready, instead of the time to clear it.
//!
//! | memory | resolved by | what it does |
//! |---|---|---|
//! | transparent huge pages | [`Method::Move`] | moves a ready page from the server's stock (Linux 6.8) |
//! | hugetlb | [`Method::Continue`] | maps a ready page of a memfd |
//! | either | [`Method::Copy`] | copies zeroes; gives base pages on THP |
//! | transparent huge pages | [`Method::ZeroPage`] | maps the shared zero page, copied when written |
//!
//! Any other pair is [`Error::Unsupported`].
//!
//! After a fork the parent goes on as before. The child has its own copy of a range on transparent
//! huge pages, whose missing pages come from the kernel as zeroes; it has no server, and a range on
//! hugetlb is not mapped there at all, since the two would write to the same pages.
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
use crate::memfd;
use crate::region::{Backing, Prefault, Region};
use crate::sys::base_page_bytes;
use ioctl::{Call, Sees, Uffd};

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

/// Tries without progress before a fault is put off to the next call.
const TRIES: u32 = 16;
/// How long a call waits for new faults when some are put off.
const RETRY: Duration = Duration::from_millis(1);

/// A range whose pages come on first touch.
#[derive(Debug)]
pub struct DemandRange {
    region: Arc<Region>,
}

/// Resolves the faults of a [`DemandRange`]. Once it is dropped, pages that are still missing come
/// from the kernel in the ordinary way.
#[derive(Debug)]
pub struct PageServer {
    region: Arc<Region>,
    uffd: Uffd,
    call: Call,
    sees: Sees,
    source: Source,
    /// Faults that could not be resolved yet; their threads wait. At most one for each page.
    put_off: Vec<Fault>,
    stats: ServerStats,
    /// So many supplies fail, as if there were no memory.
    #[cfg(test)]
    failures: u32,
}

/// A missing page, and how far it has come.
#[derive(Debug)]
struct Fault {
    page: usize,
    /// Bytes of it that are there.
    done: usize,
    /// The page of the stock that is being moved.
    stock: Option<usize>,
    /// Whether the page to supply lay ready.
    lay_ready: bool,
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
    let (uffd, sees) =
        Uffd::open(features(method)).map_err(|errno| no_userfaultfd(method, errno))?;
    let minor = method == Method::Continue;
    let registered = uffd.register(region.start(), len, minor, call);
    if !registered.map_err(|errno| Error::System { call: "UFFDIO_REGISTER", errno })? {
        return Err(unsupported(memory, call));
    }
    let region = Arc::new(region);
    let stats = ServerStats::default();
    let mut server = PageServer {
        region: region.clone(),
        uffd,
        call,
        sees,
        source,
        put_off: Vec::new(),
        stats,
        #[cfg(test)]
        failures: 0,
    };
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
    // A page that a child of fork shares cannot be moved any more: the kernel refuses with EBUSY.
    let options = Region::options(stock * HUGE_2M).exactly(Backing::Thp).dont_fork(true);
    let pages = options.prefault(Prefault::Lazy).map()?;
    Ok(Source::Stock { pages, ready: vec![false; stock] })
}

fn file_backed(len: usize) -> Result<(Region, Source), Error> {
    // Reserves the pages, or says how many are missing.
    drop(anonymous(len, Memory::Hugetlb)?);
    let error = |call| move |errno| Error::System { call, errno };
    let file = memfd::create(len, Some(HUGE_2M)).map_err(error("memfd_create"))?;
    let map = || memfd::map(&file, len).map_err(error("mmap"));
    let backing = Backing::Hugetlb { page_bytes: HUGE_2M };
    let region = Region::adopt(map()?, len, backing);
    let pages = Region::adopt(map()?, len, backing);
    // A child of fork would share the pages, and write into what is the parent's alone by its type.
    region.dont_fork()?;
    pages.dont_fork()?;
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
    /// Waits up to `timeout` for faults and resolves those that have come, up to 16 in a call,
    /// after those that earlier calls could not. Returns the number of pages supplied.
    ///
    /// # Errors
    /// [`Error::System`] when the kernel refuses a page, [`Error::OutOfMemory`] when none can be
    /// made: the first of the call. All other faults are resolved all the same, and those that are
    /// not are tried again by the next call; their threads wait until then, or until the server is
    /// dropped.
    pub fn serve(&mut self, timeout: Duration) -> Result<usize, Error> {
        let wait = if self.put_off.is_empty() { timeout } else { timeout.min(RETRY) };
        let addresses = self.uffd.faults(wait);
        let addresses =
            addresses.map_err(|errno| Error::System { call: "read(userfaultfd)", errno })?;
        let mut faults = std::mem::take(&mut self.put_off);
        for address in addresses {
            let page = self.page_of(address);
            // What resolves the page wakes every thread that waits for it.
            if faults.iter().all(|fault| fault.page != page) {
                faults.push(Fault { page, done: 0, stock: None, lay_ready: false });
            }
        }
        let before = self.stats.ready + self.stats.made;
        let mut first_error = None;
        for mut fault in faults {
            if let Err(error) = self.supply(&mut fault) {
                first_error.get_or_insert(error);
                self.put_off.push(fault);
            }
        }
        let supplied = self.stats.ready + self.stats.made - before;
        let supplied = usize::try_from(supplied).expect("no more than the range has pages");
        first_error.map_or(Ok(supplied), Err)
    }

    /// Whether faults of the kernel are served too, as when `read` fills the range. Where they are
    /// not, because the process has neither CAP_SYS_PTRACE nor `vm.unprivileged_userfaultfd=1`,
    /// such a call fails with EFAULT on a page that is missing: touch the page first.
    #[must_use]
    pub fn serves_kernel_faults(&self) -> bool {
        self.sees == Sees::All
    }

    fn page_of(&self, address: u64) -> usize {
        let first = self.region.start().as_ptr() as u64;
        let offset = address.checked_sub(first).and_then(|offset| usize::try_from(offset).ok());
        let page = offset.map(|offset| offset / HUGE_2M);
        page.filter(|page| *page < self.region.len() / HUGE_2M)
            .expect("the kernel reports faults of the range that was registered")
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
        // Half of a page whose move was put off is gone already.
        let moving: Vec<usize> = self.put_off.iter().filter_map(|fault| fault.stock).collect();
        let missing = (0..ready.len()).filter(|at| !ready[*at] && !moving.contains(at));
        let missing: Vec<usize> = missing.take(count).collect();
        for &page in &missing {
            pages.populate(page * HUGE_2M, HUGE_2M)?;
            ready[page] = true;
        }
        Ok(missing.len())
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.stats
    }

    /// Brings the page, from where an earlier try stopped.
    fn supply(&mut self, fault: &mut Fault) -> Result<(), Error> {
        #[cfg(test)]
        if self.failures > 0 {
            self.failures -= 1;
            return Err(Error::System { call: "a test", errno: Errno(libc::ENOMEM) });
        }
        let from = self.source_of(fault)?;
        let to = self.region.page(fault.page, HUGE_2M);
        let mut tries = 0;
        while fault.done < HUGE_2M {
            let (done, rest) = (fault.done, HUGE_2M - fault.done);
            // SAFETY: `to` is a page of the range, `from` one of the server's own, which is marked
            // as used; or, for a file, `from` is the same page and not touched. `done` is less than
            // a page.
            let (moved, result) =
                unsafe { self.uffd.resolve(self.call, to.add(done), from.add(done), rest) };
            fault.done += moved;
            match result {
                Ok(()) => fault.done = HUGE_2M,
                Err(_) if moved > 0 => tries = 0,
                Err(Errno(libc::EEXIST)) if done == 0 => return self.was_there(fault),
                // The rest of a page that had come in part; this base page of it is there too.
                Err(Errno(libc::EEXIST)) => fault.done += base_page_bytes(),
                Err(errno) if tries == TRIES => {
                    return Err(Error::System { call: self.call.name(), errno });
                }
                Err(Errno(libc::ENOENT)) if fault.stock.is_some() => {
                    // The kernel took the page of the stock away (reclaim, memory failure).
                    self.restock(fault)?;
                    tries += 1;
                }
                Err(Errno(libc::EAGAIN | libc::EBUSY)) => {
                    // The page is briefly in other hands, such as khugepaged's.
                    std::thread::yield_now();
                    tries += 1;
                }
                Err(errno) => return Err(Error::System { call: self.call.name(), errno }),
            }
        }
        if fault.lay_ready {
            self.stats.ready += 1;
        } else {
            self.stats.made += 1;
        }
        Ok(())
    }

    /// Another fault has brought the page already: gives the stock back and wakes who waits.
    fn was_there(&mut self, fault: &Fault) -> Result<(), Error> {
        if let (Source::Stock { ready, .. }, Some(at)) = (&mut self.source, fault.stock) {
            ready[at] = true;
        }
        self.stats.raced += 1;
        let woken = self.uffd.wake(self.region.page(fault.page, HUGE_2M), HUGE_2M);
        woken.map_err(|errno| Error::System { call: "UFFDIO_WAKE", errno })
    }

    fn restock(&self, fault: &Fault) -> Result<(), Error> {
        match (&self.source, fault.stock) {
            (Source::Stock { pages, .. }, Some(at)) => {
                pages.populate(at * HUGE_2M + fault.done, HUGE_2M - fault.done)
            }
            _ => Ok(()),
        }
    }

    /// The page to resolve a fault with, which is noted there.
    fn source_of(&mut self, fault: &mut Fault) -> Result<NonNull<u8>, Error> {
        match &mut self.source {
            Source::Zeroes(zeroes) => {
                fault.lay_ready = true;
                Ok(zeroes.start())
            }
            Source::Nothing => {
                fault.lay_ready = true;
                Ok(self.region.start())
            }
            Source::File { pages, ready } => {
                fault.lay_ready = make_ready(pages, ready, fault.page)?;
                Ok(pages.page(fault.page, HUGE_2M))
            }
            Source::Stock { pages, ready } => {
                if let Some(at) = fault.stock {
                    return Ok(pages.page(at, HUGE_2M));
                }
                // None is ready: the first is made now. A page whose move was put off keeps its
                // place.
                let taken: Vec<usize> = self.put_off.iter().filter_map(|f| f.stock).collect();
                let ready_one = ready.iter().position(|ready| *ready);
                let free = (0..ready.len()).find(|at| !taken.contains(at));
                let Some(at) = ready_one.or(free) else {
                    return Err(Error::System { call: "a free page", errno: Errno(libc::EAGAIN) });
                };
                fault.lay_ready = make_ready(pages, ready, at)?;
                ready[at] = false;
                fault.stock = Some(at);
                Ok(pages.page(at, HUGE_2M))
            }
        }
    }
}

/// Faults in page `at` unless it is there. Returns whether it was.
fn make_ready(pages: &Region, ready: &mut [bool], at: usize) -> Result<bool, Error> {
    let lay_ready = ready[at];
    if !lay_ready {
        pages.populate(at * HUGE_2M, HUGE_2M)?;
        ready[at] = true;
    }
    Ok(lay_ready)
}
