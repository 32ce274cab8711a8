//! A bounded, thread-safe pool of buffers that are zero when taken.
//!
//! Each class has one shelf per NUMA node: a region cut into buffers, and lock-free lists of those
//! that are zeroed and those that are dirty. A take looks at the zeroed buffers of its own node,
//! then at the dirty ones, one of which it clears inline, then at other nodes. Only when every
//! buffer is taken does it come to the chosen behaviour [`AtMaximum`].

mod buffer;
mod cleaner;
mod counters;
mod leak;
mod lists;
#[cfg(all(test, loom))]
mod models;
mod options;
#[cfg(all(test, not(loom)))]
mod tests;
mod wait_list;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use buffer::{Buffer, state};
pub use cleaner::{Background, Cleaner, CleanerOptions, Job, Step};
pub use counters::PoolStats;
pub use options::{AtMaximum, PoolBuilder};

use crate::engine::Store;
use crate::error::Error;
use crate::plan::{ClearPlan, Heat};
use crate::region::{Backing, Region, RegionOptions, Report};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use buffer::{Origin, Place};
use counters::{Count, Counters};
use lists::{Index, List, Lists};
use state::{Clearing, Dirty, Taken, Zeroed};
use wait_list::WaitList;

/// A pool. Clones share it.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

/// Legend: (c) constant after building, (a) atomic.
struct Inner {
    /// (c) Smallest buffers first.
    classes: Vec<Class>,
    /// (c) For each CPU number the shelf of its node.
    shelf_of_cpu: Vec<usize>,
    /// (c)
    plan: ClearPlan,
    /// (c)
    at_maximum: AtMaximum,
    /// (c) Base-page buffers beyond the pool are mapped with these.
    extra_options: RegionOptions,
    /// (c) Dirty buffers are wiped before their memory is unmapped.
    secret: bool,
    /// (c)
    leak_check: bool,
    /// (a) Starts the background cleaner, once it has one.
    cleaner: cleaner::Starter,
}

struct Class {
    /// (c)
    buffer_bytes: usize,
    /// (c) Buffers on all shelves.
    count: usize,
    /// (c) One per node.
    shelves: Vec<Shelf>,
    /// (a) Waiters for this class.
    waiters: WaitList,
    /// (a) Buffers of base pages in use beyond `count`.
    extra: AtomicUsize,
}

struct Shelf {
    /// (c) The mapping; its bytes belong to the holders of buffers.
    region: Region,
    /// (a)
    lists: Lists,
    /// (a) Bytes given back so far: how much has gone through the cache since is the difference.
    turnover_bytes: AtomicU64,
    /// (a) For each buffer the turnover when it was given back. Written by its holder.
    given_back_at: Box<[AtomicU64]>,
    /// (a)
    counters: Counters,
}

impl Pool {
    /// A pool to be set up and built.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Takes a buffer of the smallest class that holds `bytes`. Every byte of it is zero.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NoSuchClass`]; at the maximum what [`AtMaximum`] says, which may
    /// be [`Error::Exhausted`]; with the leak check [`Error::Leak`].
    pub fn take(&self, bytes: usize) -> Result<Buffer<Taken>, Error> {
        self.take_with(bytes, None)
    }

    /// As [`take`](Self::take), for an owner who uses the bytes round offset `target` first: should
    /// the buffer have to be cleared, these are left in the cache.
    ///
    /// # Errors
    /// As [`take`](Self::take), and [`Error::TargetOutside`].
    pub fn take_towards(&self, bytes: usize, target: usize) -> Result<Buffer<Taken>, Error> {
        self.take_with(bytes, Some(target))
    }

    /// A dirty buffer of the class that holds `bytes`, for a caller who clears on its own time.
    /// `None` when there is none on this node. Until it is cleared or dropped nobody else gets it.
    ///
    /// # Errors
    /// [`Error::Zero`] and [`Error::NoSuchClass`].
    pub fn dirty(&self, bytes: usize) -> Result<Option<Buffer<Dirty>>, Error> {
        let class = self.class_for(bytes)?;
        let home = self.inner.home_shelf(class);
        let index = self.inner.classes[class].shelves[home].lists.pop(List::Dirty);
        Ok(index.map(|index| Buffer::new(self.inner.place(class, home, index))))
    }

    /// A cleaner that clears dirty buffers in the background. See [`Cleaner`].
    #[must_use]
    pub fn cleaner(&self, options: CleanerOptions) -> Cleaner {
        Cleaner::new(self.clone(), options)
    }

    /// The plan that the pool clears by.
    #[must_use]
    pub fn plan(&self) -> &ClearPlan {
        &self.inner.plan
    }

    /// What the pool has done so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let mut stats = PoolStats::default();
        for shelf in self.inner.classes.iter().flat_map(|class| &class.shelves) {
            shelf.counters.add_to(&mut stats);
        }
        stats
    }

    /// For each class its buffer size in bytes, number of buffers, and what backs each shelf.
    pub fn classes(&self) -> impl Iterator<Item = (usize, usize, Vec<&Report>)> {
        self.inner.classes.iter().map(|class| {
            let reports = class.shelves.iter().map(|shelf| shelf.region.report()).collect();
            (class.buffer_bytes, class.count, reports)
        })
    }

    fn class_for(&self, bytes: usize) -> Result<usize, Error> {
        if bytes == 0 {
            return Err(Error::Zero { what: "a buffer", least_bytes: 1 });
        }
        let classes = &self.inner.classes;
        let found = classes.iter().position(|class| class.buffer_bytes >= bytes);
        found.ok_or_else(|| {
            let largest = classes.last().map_or(0, |class| class.buffer_bytes);
            Error::NoSuchClass { bytes, largest }
        })
    }

    fn take_with(&self, bytes: usize, target: Option<usize>) -> Result<Buffer<Taken>, Error> {
        let class = self.class_for(bytes)?;
        if let Some(target) = target.filter(|target| *target >= bytes) {
            return Err(Error::TargetOutside { target, len: bytes });
        }
        let found = self.inner.find(class, target);
        let mut zeroed = match found {
            Some(zeroed) => zeroed,
            None => self.inner.at_maximum(class, target)?,
        };
        if self.inner.leak_check
            && let Some(leak) = leak::scan(zeroed.peek())
        {
            self.inner.count(class, Count::Leaks);
            zeroed.withdraw();
            return Err(leak);
        }
        Ok(zeroed.take())
    }
}

impl Inner {
    /// The shelf of this CPU's node. A class with fewer buffers than nodes has fewer shelves.
    fn home_shelf(&self, class: usize) -> usize {
        let cpu = crate::sys::current_cpu().index();
        // A CPU that came online after the pool was built is in no table: any shelf will do.
        let shelf = self.shelf_of_cpu.get(cpu).copied().unwrap_or(cpu);
        shelf % self.classes[class].shelves.len()
    }

    /// A zeroed buffer of the class, cleared inline if need be.
    fn find(self: &Arc<Self>, class: usize, target: Option<usize>) -> Option<Buffer<Zeroed>> {
        let shelves = &self.classes[class].shelves;
        let home = self.home_shelf(class);
        (0..shelves.len()).find_map(|step| {
            let shelf = (home + step) % shelves.len();
            let counters = &shelves[shelf].counters;
            if let Some(index) = shelves[shelf].lists.pop(List::Zeroed) {
                counters.add(Count::PreCleared);
                return Some(Buffer::new(self.place(class, shelf, index)));
            }
            let index = shelves[shelf].lists.pop(List::Dirty)?;
            let dirty: Buffer<Clearing> =
                Buffer::<Dirty>::new(self.place(class, shelf, index)).begin();
            let clearer = self.plan.clearer(dirty.situation(target));
            Some(dirty.finish_as(clearer, target, Count::Inline))
        })
    }

    #[cold]
    fn at_maximum(
        self: &Arc<Self>,
        class: usize,
        target: Option<usize>,
    ) -> Result<Buffer<Zeroed>, Error> {
        let found = match self.at_maximum {
            AtMaximum::Refuse => None,
            AtMaximum::Wait(timeout) => {
                self.count(class, Count::Waits);
                self.classes[class].waiters.wait(timeout, || self.find(class, target))
            }
            AtMaximum::BasePages { most } => self.extra(class, most)?,
        };
        found.ok_or_else(|| {
            self.count(class, Count::Refusals);
            self.exhausted(class)
        })
    }

    fn exhausted(&self, class: usize) -> Error {
        let (extra, waited) = match self.at_maximum {
            AtMaximum::Refuse => (0, None),
            AtMaximum::Wait(timeout) => (0, Some(timeout)),
            AtMaximum::BasePages { most } => (most, None),
        };
        let Class { buffer_bytes, count, .. } = self.classes[class];
        let waited_ms =
            waited.map(|time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        Error::Exhausted { buffer_bytes, limit: count + extra, waited_ms }
    }

    /// Maps a buffer of base pages, unless `most` are in use.
    fn extra(self: &Arc<Self>, class: usize, most: usize) -> Result<Option<Buffer<Zeroed>>, Error> {
        let Class { buffer_bytes, extra, .. } = &self.classes[class];
        let room = |used: usize| (used < most).then_some(used + 1);
        if extra.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return Ok(None);
        }
        let options = RegionOptions { len: *buffer_bytes, ..self.extra_options.clone() };
        let region = options.exactly(Backing::Base).map().inspect_err(|_| {
            extra.fetch_sub(1, Ordering::Relaxed);
        })?;
        self.count(class, Count::Extra);
        let (start, len) = (region.start(), region.len());
        let origin = Origin::Extra(region);
        let pool = self.clone();
        Ok(Some(Buffer::new(Place { pool, class, start, len, origin, heat: Heat::Cold })))
    }

    /// The buffer `index`, which the caller has just taken off a list.
    fn place(self: &Arc<Self>, class: usize, shelf: usize, index: Index) -> Place {
        let Class { buffer_bytes, ref shelves, .. } = self.classes[class];
        Place {
            pool: self.clone(),
            class,
            start: shelves[shelf].start_of(index, buffer_bytes),
            len: buffer_bytes,
            origin: Origin::Shelf { shelf, index },
            heat: shelves[shelf].heat(index, self.plan.llc_bytes()),
        }
    }

    fn put_back(&self, place: Place, list: List) {
        let class = &self.classes[place.class];
        match place.origin {
            Origin::Shelf { shelf, index } => {
                let shelf = &class.shelves[shelf];
                if list == List::Dirty {
                    shelf.note_return(index, place.len, place.heat);
                    if self.leak_check {
                        leak::plant(place.start, place.len);
                    }
                }
                shelf.lists.push(list, index);
                if class.waiters.arrived() {
                    self.cleaner.start();
                }
            }
            Origin::Extra(mut region) => {
                if self.secret {
                    self.plan.at(crate::plan::Cell::Hot).clear(region.as_mut_slice());
                }
                drop(region);
                class.extra.fetch_sub(1, Ordering::Relaxed);
                // A waiter for memory beyond the pool does not exist: that way never waits.
            }
        }
    }

    fn note_clear(&self, place: &Place, store: Store, count: Count) {
        if let Origin::Shelf { shelf, .. } = place.origin {
            let counters = &self.classes[place.class].shelves[shelf].counters;
            counters.add(count);
            counters.cleared(store, place.len);
        }
    }

    fn count(&self, class: usize, count: Count) {
        self.classes[class].shelves[self.home_shelf(class)].counters.add(count);
    }
}

impl Shelf {
    fn start_of(&self, Index(index): Index, buffer_bytes: usize) -> std::ptr::NonNull<u8> {
        let offset = index as usize * buffer_bytes;
        debug_assert!(offset + buffer_bytes <= self.region.len());
        offset_of(self.region.start(), offset)
    }

    /// Whether the buffer is likely in the cache still: less than half of the cache was given back
    /// since it was.
    fn heat(&self, Index(index): Index, llc_bytes: usize) -> Heat {
        let then = self.given_back_at[index as usize].load(Ordering::Relaxed);
        let now = self.turnover_bytes.load(Ordering::Relaxed);
        // A buffer that never was given back, or came back cold, is stamped with the maximum.
        let since = now.checked_sub(then);
        if since.is_some_and(|bytes| bytes <= llc_bytes as u64 / 2) {
            Heat::Hot
        } else {
            Heat::Cold
        }
    }

    fn note_return(&self, Index(index): Index, bytes: usize, heat: Heat) {
        let now = self.turnover_bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        let stamp = if heat == Heat::Hot { now } else { u64::MAX };
        self.given_back_at[index as usize].store(stamp, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.secret {
            return;
        }
        // Every buffer is back: each held this pool alive.
        for class in &mut self.classes {
            for shelf in &mut class.shelves {
                while let Some(Index(index)) = shelf.lists.pop(List::Dirty) {
                    let start = index as usize * class.buffer_bytes;
                    let bytes = &mut shelf.region.as_mut_slice()[start..start + class.buffer_bytes];
                    crate::wipe::wipe_with(self.plan.at(crate::plan::Cell::Cold), bytes);
                }
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes: Vec<(usize, usize)> =
            self.classes().map(|(bytes, count, _)| (bytes, count)).collect();
        out.debug_struct("Pool").field("classes", &classes).field("stats", &self.stats()).finish()
    }
}

#[expect(unsafe_code, reason = "the address of a buffer in its region")]
fn offset_of(start: std::ptr::NonNull<u8>, offset: usize) -> std::ptr::NonNull<u8> {
    // SAFETY: the one caller passes an index that a list gave out, and lists are as long as their
    // region has buffers, so the offset lies in the mapping that `start` begins.
    unsafe { start.add(offset) }
}
