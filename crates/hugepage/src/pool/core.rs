//! The shared part of a pool: regions, lists, who waits. It hands out and takes back [`Slot`]s, and
//! knows nothing of the types that owners see.

use std::sync::Arc;
use std::time::Duration;

use super::contained;
use super::counters::{Count, Counters};
use super::heat::{CacheTraffic, Stamp};
use super::leak;
use super::lists::{Index, List, Lists};
use super::refs::Refs;
use super::slot::{Origin, Slot};
use super::wait_list::WaitList;
use crate::engine::Store;
use crate::error::Error;
use crate::plan::{Cell, ClearPlan, Heat};
use crate::region::{Backing, Prefault, Region, RegionOptions};
use crate::sync::{AtomicBool, AtomicU8, AtomicUsize, Mutex, Ordering};
use crate::sys;

/// What a take does when every buffer of its class is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtMaximum {
    /// Waits up to this long for one to be given back.
    Wait(Duration),
    /// Returns [`Error::Exhausted`] at once. A buffer that the cleaner or [`super::Pool::trim`]
    /// works on at that moment is not waited for.
    Refuse,
    /// Maps fresh base pages, which are unmapped when given back; refuses when `most` such buffers
    /// are in use.
    BasePages {
        /// Most buffers beyond the pool.
        most: usize,
    },
}

/// What a taker needs of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Zeroes: one that is cleared, else one that can be cleared.
    Zeroes,
    /// Anything: the taker overwrites it. A cleared one would be wasted on him.
    Anything,
}

/// Legend: (c) constant after building, (a) atomic, (m) behind a mutex.
#[derive(Debug)]
pub(super) struct Core {
    /// (c) Smallest buffers first.
    pub(super) classes: Vec<Class>,
    /// (c) For each CPU number where it sits.
    pub(super) cpus: Box<[CpuPlace]>,
    /// (a) For each last-level cache the traffic through it.
    pub(super) caches: Box<[CacheTraffic]>,
    /// (a) For each CPU what it did.
    pub(super) counters: Box<[Counters]>,
    /// (a) Buffers in use, and whether the pool has a handle.
    pub(super) refs: Refs,
    /// (c)
    pub(super) plan: ClearPlan,
    /// (c)
    pub(super) at_maximum: AtMaximum,
    /// (c) Base-page buffers beyond the pool are mapped with these.
    pub(super) extra_options: RegionOptions,
    /// (c) How a buffer without memory gets some.
    pub(super) prefault: Prefault,
    /// (c) Buffers are wiped before their memory goes back to the kernel.
    pub(super) secret: bool,
    /// (c)
    pub(super) leak_check: bool,
    /// (a) Somebody was given the addresses of the memory, which must stay where it is.
    pub(super) pinned: AtomicBool,
    /// (m) Starts the background cleaner, once it has one.
    pub(super) starter: Starter,
}

/// Where a CPU sits.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuPlace {
    /// The shelf on the memory node nearest to it.
    pub(super) shelf: usize,
    /// The number of its last-level cache.
    pub(super) cache: usize,
}

#[derive(Debug)]
pub(super) struct Class {
    /// (c)
    pub(super) buffer_bytes: usize,
    /// (c) Buffers on all shelves.
    pub(super) count: usize,
    /// (c) One per node.
    pub(super) shelves: Vec<Shelf>,
    /// (a) Waiters for this class.
    pub(super) waiters: WaitList,
    /// (a) Buffers of base pages in use beyond `count`.
    pub(super) extra: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Shelf {
    /// (c) The mapping; its bytes belong to the holders of buffers.
    pub(super) region: Region,
    /// (a)
    pub(super) lists: Lists,
    /// (a) For each buffer what is known of it.
    pub(super) records: Box<[Record]>,
}

/// What is known of a buffer while it is on a list. Written and read by its holder; what the lists
/// order is ordered here.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Record {
    stamp: Stamp,
    /// Bytes at the start that may be other than zero.
    dirty: AtomicUsize,
    /// Where the buffer is, to check that nobody takes or gives back what is not his.
    life: AtomicU8,
}

/// In a holder's hands.
const HELD: u8 = 0;
/// On a list.
const LISTED: u8 = 1;
/// Out of use for good.
const WITHDRAWN: u8 = 2;

impl Record {
    pub(super) fn new() -> Self {
        Self { stamp: Stamp::new(), dirty: AtomicUsize::new(0), life: AtomicU8::new(LISTED) }
    }

    /// The buffer goes from `from` to `to`, which its holder does alone.
    fn move_on(&self, from: u8, to: u8) {
        let before = self.life.load(Ordering::Relaxed);
        assert_eq!(before, from, "a buffer of the pool has two holders, or none");
        self.life.store(to, Ordering::Relaxed);
    }
}

/// Starts the cleaner when a buffer is given back while it sleeps. The one installed last counts.
pub(super) struct Starter(Mutex<Started>);

type Start = Arc<dyn Fn() + Send + Sync>;

struct Started {
    generation: u64,
    start: Option<Start>,
}

impl Starter {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Started { generation: 0, start: None }))
    }

    /// Number of the starter that [`Starter::install`] is given next.
    pub(super) fn next_generation(&self) -> u64 {
        let mut started = self.0.lock();
        started.generation += 1;
        started.generation
    }

    /// Installs the starter of `generation`, unless a later one is there.
    pub(super) fn install(&self, generation: u64, start: Start) {
        let replaced = {
            let mut started = self.0.lock();
            if started.generation != generation {
                return;
            }
            started.start.replace(start)
        };
        // Outside the lock: with it goes an executor of the caller, which may wait for those who give
        // buffers back.
        contained::call(|| drop(replaced));
    }

    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.0.lock().generation == generation
    }

    /// Called by a giver that found the cleaner asleep on its class: once per sleep and class, so not
    /// on the hot path.
    #[cold]
    pub(super) fn start(&self) {
        let start = self.0.lock().start.clone();
        if let Some(start) = start {
            start();
        }
    }
}

impl std::fmt::Debug for Starter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Starter(generation {})", self.0.lock().generation)
    }
}

impl Core {
    /// Where the calling thread runs at this moment, and the number of that CPU.
    pub(super) fn here(&self) -> (usize, CpuPlace) {
        let cpu = sys::current_cpu().index();
        // A CPU that came online after the pool was built is in no table: any entry will do.
        (cpu, self.cpus[cpu % self.cpus.len()])
    }

    /// A buffer of the class off a list; its memory is there. `None` when none is free.
    ///
    /// # Errors
    /// When memory for it cannot be had; the buffer is then where it was.
    pub(super) fn find(&self, class: usize, want: Want) -> Result<Option<Slot>, Error> {
        self.pop(class, want).map(|slot| self.with_memory(slot)).transpose()
    }

    /// A buffer of the class that was cleared before, on the node of this CPU or another.
    pub(super) fn find_cleared(&self, class: usize) -> Option<Slot> {
        self.pop_list(class, List::Zeroed)
    }

    /// As [`Core::find`], at the maximum.
    #[cold]
    pub(super) fn find_at_maximum(&self, class: usize, want: Want) -> Result<Slot, Error> {
        let found = match self.at_maximum {
            AtMaximum::Refuse => None,
            AtMaximum::Wait(timeout) => {
                self.count(Count::Waits);
                // Only taken off a list there; clearing and backing come after the lock.
                self.classes[class].waiters.wait(timeout, || self.pop(class, want))
            }
            AtMaximum::BasePages { most } => self.extra(class, most)?,
        };
        match found {
            Some(slot) => self.with_memory(slot),
            None => {
                self.count(Count::Refusals);
                Err(self.exhausted(class))
            }
        }
    }

    /// A buffer off any list, those without memory last.
    pub(super) fn pop(&self, class: usize, want: Want) -> Option<Found> {
        let lists = match want {
            Want::Zeroes => [List::Zeroed, List::Dirty],
            Want::Anything => [List::Dirty, List::Zeroed],
        };
        let (_, here) = self.here();
        let shelves = self.classes[class].shelves.len();
        let with_memory = (0..shelves).find_map(|step| {
            let shelf = (here.shelf + step) % shelves;
            lists.into_iter().find_map(|list| self.pop_from(class, shelf, list))
        });
        let slot = with_memory.map(Found::Ready);
        slot.or_else(|| self.pop_list(class, List::Released).map(Found::Released))
    }

    fn pop_list(&self, class: usize, list: List) -> Option<Slot> {
        let (_, here) = self.here();
        let shelves = self.classes[class].shelves.len();
        let at = |step| (here.shelf + step) % shelves;
        (0..shelves).find_map(|step| self.pop_from(class, at(step), list))
    }

    /// A buffer of one list of one shelf.
    pub(super) fn pop_from(&self, class: usize, shelf: usize, list: List) -> Option<Slot> {
        let index = self.classes[class].shelves[shelf].lists.pop(list)?;
        Some(self.held(class, shelf, index))
    }

    /// The shelf of this CPU's node. A class with fewer buffers than nodes has fewer shelves.
    pub(super) fn home_shelf(&self, class: usize) -> usize {
        self.here().1.shelf % self.classes[class].shelves.len()
    }

    pub(super) fn with_memory(&self, found: Found) -> Result<Slot, Error> {
        let slot = match found {
            Found::Ready(slot) => return Ok(slot),
            Found::Released(slot) => slot,
        };
        let Origin::Shelf { shelf, index } = slot.origin else {
            unreachable!("a buffer beyond the pool is on no list")
        };
        let region = &self.classes[slot.class].shelves[shelf].region;
        let offset = index.index() * slot.capacity;
        match region.fault_in(offset, slot.capacity, self.prefault) {
            Ok(()) => {
                self.count(Count::Backed);
                Ok(slot)
            }
            Err(error) => {
                self.put_on(slot, List::Released);
                Err(error)
            }
        }
    }

    /// The buffer `index`, which the caller has just taken off a list.
    pub(super) fn held(&self, class: usize, shelf: usize, index: Index) -> Slot {
        let Class { buffer_bytes, ref shelves, .. } = self.classes[class];
        let record = &shelves[shelf].records[index.index()];
        record.move_on(LISTED, HELD);
        let dirty = record.dirty.load(Ordering::Relaxed);
        let heat = if dirty == 0 { Heat::Cold } else { self.heat(record) };
        Slot {
            class,
            origin: Origin::Shelf { shelf, index },
            start: shelves[shelf].region.at(index.index() * buffer_bytes),
            capacity: buffer_bytes,
            dirty,
            heat,
        }
    }

    fn heat(&self, record: &Record) -> Heat {
        let (_, here) = self.here();
        record.stamp.heat(here.cache, &self.caches[here.cache], self.plan.llc_bytes())
    }

    /// The region that a buffer is part of, and the offset of its first byte there.
    pub(super) fn region_of<'a>(&'a self, slot: &'a Slot) -> (&'a Region, usize) {
        match &slot.origin {
            Origin::Shelf { shelf, index } => {
                let region = &self.classes[slot.class].shelves[*shelf].region;
                (region, index.index() * slot.capacity)
            }
            Origin::Extra(region) => (region, 0),
        }
    }

    /// The shelf that a buffer lies on, and the offset in bytes of its first byte there. `None`
    /// beyond the pool.
    pub(super) fn place_of(&self, slot: &Slot) -> Option<(usize, usize)> {
        match slot.origin {
            Origin::Shelf { shelf, index } => Some((shelf, index.index() * slot.capacity)),
            Origin::Extra(_) => None,
        }
    }

    /// Takes a buffer back from an owner, who used `used` bytes of it.
    pub(super) fn put_back(&self, slot: Slot, used: usize) {
        if let Origin::Shelf { shelf, index } = slot.origin {
            let record = &self.classes[slot.class].shelves[shelf].records[index.index()];
            let (_, here) = self.here();
            record.stamp.note(here.cache, &self.caches[here.cache], used, slot.heat);
            if self.leak_check && !slot.is_zero() {
                leak::plant(slot.start, slot.dirty);
            }
        }
        self.put_down(slot);
    }

    /// Puts a buffer on the list that its bytes say, without counting as given back by an owner.
    pub(super) fn put_down(&self, slot: Slot) {
        let list = if slot.is_zero() { List::Zeroed } else { List::Dirty };
        self.put_on(slot, list);
    }

    /// Puts a buffer on `list`.
    pub(super) fn put_on(&self, slot: Slot, list: List) {
        let class = &self.classes[slot.class];
        match slot.origin {
            Origin::Shelf { shelf, index } => {
                let Shelf { records, lists, .. } = &class.shelves[shelf];
                self.lay_down(&records[index.index()], slot.dirty);
                lists.push(list, index);
                self.arrived(class);
            }
            Origin::Extra(mut region) => {
                if self.secret && slot.dirty > 0 {
                    let bytes = &mut region.as_mut_slice()[..slot.dirty];
                    crate::wipe::wipe_with(self.plan.at(Cell::Hot), bytes);
                }
                drop(region);
                class.extra.fetch_sub(1, Ordering::Relaxed);
                // A waiter for memory beyond the pool does not exist: that way never waits.
            }
        }
    }

    /// As [`Core::put_down`], below everything that was given back since the lists were last
    /// turned.
    pub(super) fn put_down_aged(&self, slot: &Slot) {
        let list = if slot.is_zero() { List::Zeroed } else { List::Dirty };
        let class = &self.classes[slot.class];
        let Origin::Shelf { shelf, index } = slot.origin else {
            unreachable!("a buffer beyond the pool is on no list")
        };
        let Shelf { records, lists, .. } = &class.shelves[shelf];
        self.lay_down(&records[index.index()], slot.dirty);
        lists.push_aged(list, index);
        self.arrived(class);
    }

    /// The last step before a buffer goes on a list.
    fn lay_down(&self, record: &Record, dirty: usize) {
        record.dirty.store(dirty, Ordering::Relaxed);
        record.move_on(HELD, LISTED);
    }

    fn arrived(&self, class: &Class) {
        if class.waiters.arrived() {
            self.starter.start();
        }
    }

    /// Takes the buffer out of use for good, because its bytes are not what they must be.
    pub(super) fn withdraw(&self, slot: &Slot) {
        if let Origin::Shelf { shelf, index } = slot.origin {
            let records = &self.classes[slot.class].shelves[shelf].records;
            records[index.index()].move_on(HELD, WITHDRAWN);
        }
    }

    fn exhausted(&self, class: usize) -> Error {
        let (extra, waited) = match self.at_maximum {
            AtMaximum::Refuse => (0, None),
            AtMaximum::Wait(timeout) => (0, Some(timeout)),
            AtMaximum::BasePages { most } => (most, None),
        };
        let Class { buffer_bytes, count, .. } = self.classes[class];
        // A time beyond 584 million years is printed as that.
        let waited_ms = waited.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        Error::Exhausted { buffer_bytes, limit: count.saturating_add(extra), waited_ms }
    }

    /// Maps a buffer of base pages, unless `most` are in use.
    fn extra(&self, class: usize, most: usize) -> Result<Option<Found>, Error> {
        let Class { buffer_bytes, extra, .. } = &self.classes[class];
        let room = |used: usize| (used < most).then_some(used + 1);
        if extra.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return Ok(None);
        }
        let options = RegionOptions { len: *buffer_bytes, ..self.extra_options.clone() };
        let room = options.machine.check_room(*buffer_bytes);
        let region = room.and_then(|()| options.exactly(Backing::Base).map());
        let region = region.inspect_err(|_| {
            extra.fetch_sub(1, Ordering::Relaxed);
        })?;
        self.count(Count::Extra);
        let (start, capacity) = (region.start(), region.len());
        let origin = Origin::Extra(region);
        Ok(Some(Found::Ready(Slot { class, origin, start, capacity, dirty: 0, heat: Heat::Cold })))
    }

    pub(super) fn note_clear(&self, store: Store, bytes: usize, count: Count) {
        let (cpu, _) = self.here();
        let counters = &self.counters[cpu % self.counters.len()];
        counters.add(count);
        counters.cleared(store, bytes);
    }

    pub(super) fn count(&self, count: Count) {
        let (cpu, _) = self.here();
        self.counters[cpu % self.counters.len()].add(count);
    }

    /// Bytes given back by owners so far.
    pub(super) fn turnover_bytes(&self) -> u64 {
        self.caches.iter().map(CacheTraffic::bytes).sum()
    }
}

/// A buffer off a list, with memory or without.
pub(super) enum Found {
    Ready(Slot),
    Released(Slot),
}

impl Class {
    pub(super) fn new(buffer_bytes: usize, count: usize, shelves: Vec<Shelf>) -> Self {
        let waiters = WaitList::new();
        Self { buffer_bytes, count, shelves, waiters, extra: AtomicUsize::new(0) }
    }
}

impl Shelf {
    /// How long the buffer of a held `slot` has been free, in nanoseconds.
    pub(super) fn idle_ns(&self, index: Index) -> u64 {
        self.records[index.index()].stamp.idle_ns()
    }

    /// Wipes every buffer that is not known to be zero: those on the dirty list, and those that
    /// were withdrawn. Nobody else has the shelf.
    fn wipe(&mut self, plan: &ClearPlan, buffer_bytes: usize) {
        let bytes = self.region.as_mut_slice();
        for (record, buffer) in self.records.iter().zip(bytes.chunks_exact_mut(buffer_bytes)) {
            let life = record.life.load(Ordering::Relaxed);
            debug_assert_ne!(life, HELD, "a held buffer keeps its pool alive");
            let dirty = match life {
                WITHDRAWN => buffer_bytes,
                _ => record.dirty.load(Ordering::Relaxed),
            };
            crate::wipe::wipe_with(plan.at(Cell::Cold), &mut buffer[..dirty]);
        }
    }
}

impl Core {
    /// Wipes all of a pool of secrets that is not known to be zero.
    fn wipe(&mut self) {
        if self.secret {
            // Every buffer is back, or was withdrawn: each in use held this pool alive.
            for class in &mut self.classes {
                for shelf in &mut class.shelves {
                    shelf.wipe(&self.plan, class.buffer_bytes);
                }
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::Pool;

    /// What its drop does before the memory goes.
    #[test]
    #[cfg_attr(miri, ignore = "locks memory")]
    fn what_is_dirty_or_withdrawn_is_wiped_at_the_end() {
        let mut core = Pool::builder().class(16 << 10, 3).secret().core().unwrap();
        for number in 0..3 {
            let mut slot = core.find(0, Want::Zeroes).unwrap().unwrap();
            slot.bytes_mut(0..9000).fill(7);
            slot.written(9000);
            match number {
                0 => core.withdraw(&slot),
                _ => core.put_down_aged(&slot),
            }
            if number == 2 {
                // One is on the zeroed list in the end.
                let mut slot = core.find(0, Want::Zeroes).unwrap().unwrap();
                slot.bytes_mut(0..9000).fill(0);
                slot.dirty = 0;
                core.put_down(slot);
            }
        }
        let other_than_zero = |core: &Core| {
            let bytes = core.classes[0].shelves[0].region.as_slice();
            bytes.iter().filter(|byte| **byte != 0).count()
        };
        assert_eq!(other_than_zero(&core), 2 * 9000);
        core.wipe();
        assert_eq!(other_than_zero(&core), 0);
    }
}
