//! A bounded FIFO with many producers and one consumer at a time: the short part of an ordered
//! queue's backlog.
//!
//! Each line travels once per job. In a FIFO with several consumers a slot is read and written by
//! both sides, which moves its line four times; here the consumer writes no slot. It says now and
//! then, in a word of its own, how far it has come, and producers ask for a slot's line before they
//! need it.

#![expect(unsafe_code, reason = "slots are handed over by positions")]

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;
use tollgate_wakequeue::ItemCell;
use tollgate_wakequeue::sync::{AtomicUsize, Observe, Ordering, UnsafeCell};

/// Jobs after which the consumer says that their slots are free. It does so too when it finds no
/// more.
const FREED_AT_ONCE: usize = if cfg!(loom) { 1 } else { 32 };

/// How many slots ahead of a push their lines are asked for.
const AHEAD: usize = 4;

/// A FIFO of at most `capacity` jobs.
///
/// Lock legend: (p) changed by producers, atomically; (c) changed by the one consumer, read by
/// others; (s) handed over by `turn`, see [`Slot`].
pub(crate) struct Lane<J> {
    /// Next position to push. (p)
    tail: CachePadded<AtomicUsize>,
    /// Slots below this position may be used again. (c)
    freed: CachePadded<AtomicUsize>,
    /// Next position to pop. (c)
    head: CachePadded<AtomicUsize>,
    /// (s)
    slots: Box<[Slot<J>]>,
}

#[repr(align(64))]
struct Slot<J> {
    /// One more than the position whose job lies here, once it is complete. Written by producers.
    turn: AtomicUsize,
    job: UnsafeCell<MaybeUninit<J>>,
}

// SAFETY: a job is moved in by one thread and out by one other. `turn` hands the slot to the
// consumer and `freed` hands it back, with release and acquire, so `J: Send` is all that is needed.
unsafe impl<J: Send> Send for Lane<J> {}
// SAFETY: as above; no `&J` is ever given out.
unsafe impl<J: Send> Sync for Lane<J> {}

impl<J> Lane<J> {
    /// An empty one. `capacity` is a power of two.
    pub(crate) fn new(capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two(), "capacity {capacity}");
        // Position 0 is complete at turn 1; the lap before is no turn of any slot.
        let slot =
            |_| Slot { turn: AtomicUsize::new(0), job: UnsafeCell::new(MaybeUninit::uninit()) };
        Self {
            tail: CachePadded::new(AtomicUsize::new(0)),
            freed: CachePadded::new(AtomicUsize::new(0)),
            head: CachePadded::new(AtomicUsize::new(0)),
            slots: (0..capacity).map(slot).collect(),
        }
    }

    fn slot(&self, position: usize) -> &Slot<J> {
        &self.slots[position & (self.slots.len() - 1)]
    }

    /// Appends what `make` makes, in its place. Gives `make` back when there is no room, as far as
    /// this thread knows. It must not panic: its slot would never be published.
    ///
    /// The job is published by a `SeqCst` store, so a caller that then looks for the consumer is
    /// ordered against a consumer that says it leaves and then looks here.
    #[inline]
    pub(crate) fn push_with<F: FnOnce() -> J>(&self, make: F) -> Result<(), F> {
        let mut position = self.tail.observe(Ordering::Relaxed);
        loop {
            let freed = self.freed.load(Ordering::Acquire);
            // `freed` may be ahead of an old `tail`; the exchange fails then.
            let used = position.wrapping_sub(freed);
            if used >= self.slots.len() && used <= isize::MAX as usize {
                return Err(make);
            }
            match self.tail.compare_exchange_weak(
                position,
                position.wrapping_add(1),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => position = now,
            }
        }
        let slot = self.slot(position);
        // SAFETY: the exchange on `tail` gave this position to this thread alone. `freed` was seen
        // with acquire to be so far that the consumer has moved out what lay here.
        slot.job.with_mut(|place| unsafe { (*place).write(make()) });
        slot.turn.publish(position.wrapping_add(1), Ordering::SeqCst);
        prefetch_to_write(self.slot(position.wrapping_add(AHEAD)));
        Ok(())
    }

    /// Takes the oldest job whose push is complete. False when there is none. One caller at a time,
    /// each after the one before.
    #[inline]
    pub(crate) fn pop_into(&self, cell: &mut ItemCell<J>) -> bool {
        let position = self.head.observe(Ordering::Relaxed);
        let slot = self.slot(position);
        if slot.turn.observe(Ordering::Acquire) != position.wrapping_add(1) {
            self.free_up_to(position);
            return false;
        }
        // SAFETY: the push at `position` has written the job, as `turn` says, and nobody else takes
        // it: callers come one after the other, and `head` goes on below.
        slot.job.with_mut(|place| unsafe { cell.fill((*place).as_ptr()) });
        let next = position.wrapping_add(1);
        // An exchange, so that a producer that says it waits for room sees it, or is seen
        // afterwards.
        self.head.swap(next, Ordering::SeqCst);
        if next.is_multiple_of(FREED_AT_ONCE) {
            self.free_up_to(next);
        }
        true
    }

    /// The slots below `position` are empty.
    #[inline]
    fn free_up_to(&self, position: usize) {
        if self.freed.observe(Ordering::Relaxed) != position {
            self.freed.publish(position, Ordering::Release);
        }
    }

    /// Whether [`pop_into`](Self::pop_into) would find nothing. Between two consumers, or for one.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::SeqCst);
        self.slot(head).turn.load(Ordering::SeqCst) != head.wrapping_add(1)
    }

    /// How many jobs are queued or being queued: exact when nobody else is at work.
    pub(crate) fn len(&self) -> usize {
        // `head` first: it can only be too old, never ahead of `tail`.
        let head = self.head.load(Ordering::SeqCst);
        self.tail.load(Ordering::SeqCst).wrapping_sub(head)
    }
}

impl<J> Drop for Lane<J> {
    fn drop(&mut self) {
        while self.pop_into(&mut ItemCell::empty()) {}
    }
}

/// Asks for the line of a slot, to write it soon.
#[inline]
fn prefetch_to_write<J>(slot: &Slot<J>) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: a hint that changes no value and no flag, at an address that is valid anyway. CPUs
    // without the instruction take it for no operation.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) std::ptr::from_ref(slot),
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = slot;
}
