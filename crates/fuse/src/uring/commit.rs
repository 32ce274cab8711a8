//! How replies reach the thread that owns a ring.
//!
//! Only the thread that owns a ring may submit to it, but a reply may be finished by any thread.
//! Each ring entry has a bit in [`CommitQueue`]: whoever finished the entry's reply sets it, and
//! the owner clears it and submits the reply. An entry has at most one reply at a time, so the
//! queue is bounded by the number of entries and never full.
//!
//! # Waking the owner
//!
//! The owner sleeps in the kernel until a request arrives, or until the ring's eventfd is written.
//! A committer sets its bit and then writes the eventfd; the owner, woken, resets the eventfd and
//! then looks for bits. A bit set after that look is followed by another write, so that no reply is
//! lost. The owner itself needs no wake-up: it looks for bits before it sleeps.

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// What has to happen before an entry may be passed to the owner.
///
/// A reply may be finished by another thread while the handler that detached it still runs, and may
/// still hold references to the request. If the owner serves the request itself, it looks for
/// finished replies only after its handler has returned. If a helper serves it, the entry waits for
/// both: whoever comes second, and no other, passes it on, and sees what the first one wrote.
#[derive(Debug, Default)]
pub(crate) struct Missing(AtomicUsize);

impl Missing {
    /// The reply.
    pub(crate) const REPLY: usize = 1;
    /// The return of the handler.
    pub(crate) const HANDLER: usize = 2;
    /// Both.
    pub(crate) const REPLY_AND_HANDLER: usize = Self::REPLY | Self::HANDLER;

    /// A request begins. The caller owns the entry.
    pub(crate) fn begin(&self, steps: usize) {
        self.0.store(steps, Ordering::Relaxed);
    }

    /// `step` was made; `true` if it was the last one.
    pub(crate) fn made_last(&self, step: usize) -> bool {
        self.0.fetch_and(!step, Ordering::AcqRel) & !step == 0
    }

    /// Whether the handler of a helper has yet to return. What it did before is visible if not.
    pub(crate) fn has_handler(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::HANDLER != 0
    }

    /// Whether it is the reply, and no more.
    pub(crate) fn is_reply(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::REPLY
    }
}

/// The entries of one ring whose replies are finished and not submitted.
#[derive(Debug)]
pub(crate) struct CommitQueue {
    /// One bit for each entry.
    finished: Box<[AtomicU64]>,
}

impl CommitQueue {
    pub(crate) fn new(entries: usize) -> Self {
        let words = entries.div_ceil(64);
        Self { finished: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Hands a finished reply to the owner, together with every write that preceded the call. A
    /// caller that is not the owner must then write the eventfd.
    pub(crate) fn push(&self, entry: usize) {
        let bit = 1 << (entry % 64);
        let before = self.finished[entry / 64].fetch_or(bit, Ordering::Release);
        debug_assert_eq!(before & bit, 0, "entry {entry} has two replies");
    }

    /// Passes each finished one of the first `entries` entries to `submit`, once, but at most `room`
    /// of them. For the owner.
    pub(crate) fn drain(&self, entries: usize, mut room: usize, mut submit: impl FnMut(usize)) {
        for (word, finished) in self.finished[..entries.div_ceil(64)].iter().enumerate() {
            let mut bits = take(finished);
            while bits != 0 && room > 0 {
                submit(word * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
                room -= 1;
            }
            if bits != 0 {
                // The owner has seen what came with them: nothing is to be published again.
                finished.fetch_or(bits, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Clears a word and returns what it held.
fn take(bits: &AtomicU64) -> u64 {
    // Most often nothing is there, and a load is cheaper than an exchange.
    #[cfg(not(loom))]
    if bits.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    bits.swap(0, Ordering::Acquire)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_finished_entry_is_submitted_once() {
        let queue = CommitQueue::new(130);
        for entry in [0, 63, 64, 129] {
            queue.push(entry);
        }
        let mut submitted = Vec::new();
        queue.drain(130, 1, |entry| submitted.push(entry));
        assert_eq!(submitted, [0], "there is room for one");
        queue.drain(130, 130, |entry| submitted.push(entry));
        assert_eq!(submitted, [0, 63, 64, 129]);
        queue.drain(130, 130, |entry| panic!("entry {entry} came twice"));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Arc, check, run};
    use loom::cell::UnsafeCell;
    use loom::sync::{Condvar, Mutex};

    /// A ring: entries whose memory is written by committers and read by the owner, and an eventfd.
    struct Ring<const N: usize> {
        queue: CommitQueue,
        memory: [UnsafeCell<u32>; N],
        eventfd: Mutex<u32>,
        woken: Condvar,
    }

    // SAFETY: the model checks each access of the cells.
    #[expect(unsafe_code, reason = "shared cells under the model's eyes")]
    unsafe impl<const N: usize> Sync for Ring<N> {}

    impl<const N: usize> Ring<N> {
        fn new() -> Self {
            Self {
                queue: CommitQueue::new(N),
                memory: std::array::from_fn(|_| UnsafeCell::new(0)),
                eventfd: Mutex::new(0),
                woken: Condvar::new(),
            }
        }

        #[expect(unsafe_code, reason = "the write that the protocol orders")]
        fn commit(&self, entry: usize) {
            // SAFETY: loom reports a concurrent access.
            self.memory[entry].with_mut(|memory| unsafe { *memory = 7 });
            self.queue.push(entry);
            *self.eventfd.lock().unwrap() += 1;
            self.woken.notify_one();
        }

        /// Sleeps and drains until every entry's reply was submitted.
        #[expect(unsafe_code, reason = "the read that the protocol orders")]
        fn own(&self) {
            let mut submitted = [false; N];
            loop {
                self.queue.drain(N, N, |entry| {
                    // SAFETY: loom reports a concurrent access.
                    let read = self.memory[entry].with(|memory| unsafe { *memory });
                    assert_eq!(read, 7);
                    assert!(!std::mem::replace(&mut submitted[entry], true), "submitted twice");
                });
                if submitted.iter().all(|&done| done) {
                    return;
                }
                let mut count = self.eventfd.lock().unwrap();
                // A lost wake-up leaves this thread here for ever, which loom reports.
                while *count == 0 {
                    count = self.woken.wait(count).unwrap();
                }
                *count = 0;
            }
        }
    }

    #[test]
    fn loom_no_reply_is_lost_and_none_is_submitted_twice() {
        check(|| {
            let ring = Arc::new(Ring::<2>::new());
            let committers = [run(&ring, |ring| ring.commit(0)), run(&ring, |ring| ring.commit(1))];
            ring.own();
            for committer in committers {
                committer.join().unwrap();
            }
        });
    }

    /// A helper's handler returns while another thread finishes the reply: the owner submits once,
    /// and what each of both wrote is visible to it.
    #[test]
    fn loom_an_entry_is_passed_on_when_reply_and_handler_are_done() {
        struct Served {
            ring: Ring<1>,
            missing: Missing,
            lent: UnsafeCell<u32>,
        }
        // SAFETY: the model checks each access of the cells.
        #[expect(unsafe_code, reason = "shared cells under the model's eyes")]
        unsafe impl Sync for Served {}
        check(|| {
            let missing = Missing::default();
            missing.begin(Missing::REPLY_AND_HANDLER);
            let served = Served { ring: Ring::new(), missing, lent: UnsafeCell::new(0) };
            let served = Arc::new(served);
            let pass_on = |served: &Served, step| {
                if served.missing.made_last(step) {
                    served.ring.queue.push(0);
                    *served.ring.eventfd.lock().unwrap() += 1;
                    served.ring.woken.notify_one();
                }
            };
            #[expect(unsafe_code, reason = "the writes that the protocol orders")]
            let reply = run(&served, move |served: &Served| {
                // SAFETY: loom reports a concurrent access.
                served.ring.memory[0].with_mut(|memory| unsafe { *memory = 7 });
                pass_on(served, Missing::REPLY);
            });
            #[expect(unsafe_code, reason = "the writes that the protocol orders")]
            let handler = run(&served, move |served: &Served| {
                // SAFETY: loom reports a concurrent access.
                served.lent.with_mut(|lent| unsafe { *lent = 9 });
                pass_on(served, Missing::HANDLER);
            });
            served.ring.own();
            // SAFETY: loom reports a concurrent access.
            #[expect(unsafe_code, reason = "the read that the protocol orders")]
            served.lent.with(|lent| assert_eq!(unsafe { *lent }, 9));
            reply.join().unwrap();
            handler.join().unwrap();
        });
    }

    #[test]
    fn loom_a_reply_between_two_sleeps_wakes_the_owner() {
        check(|| {
            let ring = Arc::new(Ring::<1>::new());
            let committer = run(&ring, |ring| ring.commit(0));
            ring.own();
            committer.join().unwrap();
        });
    }
}
