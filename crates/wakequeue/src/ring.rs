//! A bounded multi-producer multi-consumer FIFO.
//!
//! Dmitry Vyukov's bounded MPMC queue: each slot carries a sequence number that says whose turn it
//! is. A push and a pop each cost one compare-and-swap and never wait for a lock. One slot is the
//! sequence number and the item, so an item of up to 56 bytes travels in one cache line.

#![expect(unsafe_code, reason = "slots are handed over by their sequence numbers")]

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::config::{MIN_CAPACITY, PushError};
use crate::item_cell::ItemCell;
use crate::sync::{
    AtomicU32, AtomicUsize, Futex, Observe, Ordering, UnsafeCell, seq_cst_gap, yield_now,
};

/// The bit of `tail` that refuses further pushes. It makes every position look wrong to a producer,
/// so that the successful path need not test it. Positions themselves never get that far.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A FIFO of at most `capacity` items.
pub struct Ring<T> {
    /// Next position to pop. Written by consumers.
    head: CachePadded<AtomicUsize>,
    /// Next position to push, and [`CLOSED`]. Written by producers.
    tail: CachePadded<AtomicUsize>,
    /// Producers asleep because the ring is full.
    waiters: CachePadded<AtomicU32>,
    /// Bumped when room was made for them.
    room: Futex,
    slots: Box<[Slot<T>]>,
}

#[repr(align(64))]
struct Slot<T> {
    /// `position` when free for the push at `position`, `position + 1` when it holds that item.
    turn: AtomicUsize,
    item: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: an item is moved in by one thread and out by one other; `turn` hands the slot over with
// release/acquire, so `T: Send` is all that is needed.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above; no `&T` is ever given out.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// An empty ring. `capacity` is a power of two, at least [`MIN_CAPACITY`].
    ///
    /// # Panics
    /// If it is not.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && capacity >= MIN_CAPACITY, "capacity {capacity}");
        let slot = |position| Slot {
            turn: AtomicUsize::new(position),
            item: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Self {
            head: CachePadded::new(AtomicUsize::new(0)),
            tail: CachePadded::new(AtomicUsize::new(0)),
            waiters: CachePadded::new(AtomicU32::new(0)),
            room: Futex::new(0),
            slots: (0..capacity).map(slot).collect(),
        }
    }

    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }

    /// Appends what `make` makes, in its place in the ring. When the ring is full or closed, `make`
    /// was not called. It must not panic: its slot would never be published.
    ///
    /// The item is published by a `SeqCst` store, so a caller that then reads the sleepers' state
    /// with `SeqCst` is ordered against a worker that writes that state and then looks here.
    ///
    /// # Errors
    /// Full, or closed.
    #[inline]
    pub fn push_with(&self, make: impl FnOnce() -> T) -> Result<(), PushError<()>> {
        let mut position = self.tail.observe(Ordering::Relaxed);
        loop {
            let slot = self.slot(position);
            let lag = slot.turn.observe(Ordering::SeqCst).wrapping_sub(position);
            if lag == 0 {
                match self.tail.compare_exchange_weak(
                    position,
                    position.wrapping_add(1),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        // SAFETY: turn == position and the exchange on `tail` succeeded, so this
                        // thread alone owns the slot until it stores the next turn.
                        slot.item.with_mut(|cell| unsafe { (*cell).write(make()) });
                        slot.turn.publish(position.wrapping_add(1), Ordering::SeqCst);
                        return Ok(());
                    }
                    Err(now) => position = now,
                }
            } else if position & CLOSED != 0 {
                return Err(PushError::Closed(()));
            } else if !is_behind(lag) {
                position = self.tail.observe(Ordering::Relaxed);
            } else if self.len() >= self.slots.len() {
                return Err(PushError::Full(()));
            } else {
                // The slot's consumer has the item but was interrupted before it said so.
                yield_now();
                position = self.tail.observe(Ordering::Relaxed);
            }
        }
    }

    /// Refuses pushes from now on. One that took its position before is completed;
    /// [`len`](Self::len) counts it already.
    pub fn close(&self) {
        self.tail.fetch_or(CLOSED, Ordering::SeqCst);
        self.room.word().fetch_add(1, Ordering::SeqCst);
        self.room.wake(i32::MAX);
    }

    /// Whether pushes are refused for good.
    pub fn is_closed(&self) -> bool {
        self.tail.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Takes the oldest item whose push has completed. False when there is none.
    #[inline]
    pub fn pop_into(&self, cell: &mut ItemCell<T>) -> bool {
        let mut position = self.head.observe(Ordering::Relaxed);
        loop {
            let slot = self.slot(position);
            let lag = slot.turn.observe(Ordering::Acquire).wrapping_sub(position.wrapping_add(1));
            if lag == 0 {
                match self.head.compare_exchange_weak(
                    position,
                    position.wrapping_add(1),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        self.take(slot, position, cell);
                        return true;
                    }
                    Err(now) => position = now,
                }
            } else if is_behind(lag) {
                return false;
            } else {
                position = self.head.observe(Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn take(&self, slot: &Slot<T>, position: usize, into: &mut ItemCell<T>) {
        // SAFETY: turn == position + 1, so the push at `position` has written the item, and the
        // exchange on `head` succeeded, so this thread alone reads it, once.
        slot.item.with_mut(|cell| unsafe { into.fill((*cell).as_ptr()) });
        // Nobody decides to sleep by this store: `wait_for_room` goes by `head`.
        slot.turn.publish(position.wrapping_add(self.slots.len()), Ordering::Release);
        // Four times per lap is often enough for sleeping producers; see `wait_for_room`.
        let quarter = (self.slots.len() / 4).max(1);
        if position.wrapping_add(1).is_multiple_of(quarter) {
            self.announce_room(quarter);
        }
    }

    /// Whoever waited for room, and may have pushed elsewhere, calls this: no pop of the ring follows
    /// there, which would wake the next producer.
    #[cold]
    pub fn pass_on_room(&self) {
        if self.len() < self.slots.len() {
            self.announce_room(1);
        }
    }

    /// Wakes a producer for each of `places` free slots. Those that sleep on are woken by the pops
    /// of what the others push, or by [`pass_on_room`](Self::pass_on_room).
    #[cold]
    fn announce_room(&self, places: usize) {
        seq_cst_gap();
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.room.word().fetch_add(1, Ordering::SeqCst);
            self.room.wake(i32::try_from(places).unwrap_or(i32::MAX));
        }
    }

    /// Sleeps while the ring is full and open, until a quarter of it was popped. May return early.
    ///
    /// No wake-up is lost: a producer sleeps only when, after it registered, `tail - head` is the
    /// whole capacity. Then every pop of this lap has its exchange on `head`, and so its look at
    /// `waiters`, still ahead of it, and one in four of them looks. Whoever it wakes pushes here, and
    /// that is popped again; or calls [`pass_on_room`](Self::pass_on_room), which finds the ring full,
    /// and so a lap ahead again, or wakes the next one.
    pub fn wait_for_room(&self) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        seq_cst_gap();
        let epoch = self.room.word().load(Ordering::SeqCst);
        if self.len() >= self.slots.len() && !self.is_closed() {
            self.room.wait(epoch, None);
        } else {
            yield_now();
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether [`pop_into`](Self::pop_into) would find nothing. Writes nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let mut head = self.head.load(Ordering::SeqCst);
        loop {
            if self.slot(head).turn.load(Ordering::SeqCst) == head.wrapping_add(1) {
                return false;
            }
            // Empty only if the slot looked at still is the head: otherwise a consumer moved on,
            // and the item behind it must not be overlooked.
            let now = self.head.load(Ordering::SeqCst);
            if now == head {
                return true;
            }
            head = now;
        }
    }

    /// How many items are queued or being queued: exact when nobody else is at work.
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::SeqCst);
        let tail = self.tail.load(Ordering::SeqCst) & !CLOSED;
        // `head` was read first, so it can only be too old, never ahead of `tail`.
        tail.wrapping_sub(head)
    }

    /// Items popped so far.
    pub fn popped(&self) -> usize {
        self.head.load(Ordering::Relaxed)
    }

    /// The most items.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

/// A wrapped difference that stands for a negative number.
#[inline]
fn is_behind(lag: usize) -> bool {
    lag > usize::MAX / 2
}

impl<T> std::fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while self.pop_into(&mut ItemCell::empty()) {}
    }
}
