//! How the owner of a ring tells that it has served what it was sent before it was asked.
//!
//! Whoever asks counts up `asked`, and then wakes the owner by its eventfd. The owner reads `asked`,
//! has the kernel deliver what has completed, and if it has nothing left to serve then, writes to
//! `passed` what it had read. A request that was sent before the question was on its way to the ring
//! by then: it was delivered, or waited in the kernel for an entry, which a reply of the owner made
//! free. So either the owner still has something to serve, or it has served that request.
//!
//! What a helper serves for the ring is served once its handler has returned, whenever the reply
//! follows: the reply may wait for the answer itself, as that to a lock does which only a missing close
//! stands in the way of. A helper that has returned looks for a question, and wakes the owner. Either it
//! sees the question, or the owner, who reads the question before it looks at the helper, sees that
//! it has returned: there is a fence between the two on both sides.

use crate::sync::{AtomicU64, Ordering, fence};

/// One ring's questions and answers.
#[derive(Debug)]
pub(crate) struct Passage {
    asked: AtomicU64,
    passed: AtomicU64,
}

impl Default for Passage {
    fn default() -> Self {
        Self { asked: AtomicU64::new(0), passed: AtomicU64::new(0) }
    }
}

impl Passage {
    /// Asks. The owner has to be woken after this.
    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// What was asked last, if it was not answered yet. For the owner, before it looks for requests.
    pub(crate) fn question(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::Acquire);
        let open = asked != self.passed.load(Ordering::Relaxed);
        if open {
            fence(Ordering::SeqCst);
        }
        open.then_some(asked)
    }

    /// Whether a question is open. For a helper that has returned from its handler.
    pub(crate) fn is_open(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asked.load(Ordering::Relaxed) != self.passed.load(Ordering::Relaxed)
    }

    /// Nothing is left of what was there after [`Passage::question`]. For the owner.
    pub(crate) fn pass(&self, question: u64) {
        self.passed.store(question, Ordering::Release);
    }

    /// Whether the owner has answered `asked`; what it served before is visible then.
    pub(crate) fn has_passed(&self, asked: u64) -> bool {
        self.passed.load(Ordering::Acquire) >= asked
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_open_until_the_owner_answers_it_or_a_later_one() {
        let passage = Passage::default();
        assert_eq!(passage.question(), None);
        let (first, second) = (passage.ask(), passage.ask());
        assert_eq!(passage.question(), Some(second));
        assert!(!passage.has_passed(first));
        passage.pass(second);
        assert!(passage.has_passed(first) && passage.has_passed(second));
        assert_eq!(passage.question(), None);
        assert!(!passage.has_passed(passage.ask()));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Arc, check, run, yield_now};
    use loom::cell::UnsafeCell;
    use loom::sync::{Condvar, Mutex};

    /// A ring as its owner and who asks see it.
    struct Ring {
        passage: Passage,
        /// Requests that the kernel has sent.
        sent: Mutex<u32>,
        served: UnsafeCell<u32>,
        eventfd: Mutex<u32>,
        woken: Condvar,
    }

    // SAFETY: the model checks each access of the cell.
    #[expect(unsafe_code, reason = "a shared cell under the model's eyes")]
    unsafe impl Sync for Ring {}

    impl Ring {
        /// Serves and answers until `questions` were answered.
        #[expect(unsafe_code, reason = "the write that the protocol orders")]
        fn own(&self, questions: u64) {
            while !self.passage.has_passed(questions) {
                if let Some(question) = self.passage.question() {
                    let delivered = std::mem::take(&mut *self.sent.lock().unwrap());
                    // SAFETY: loom reports a concurrent access.
                    self.served.with_mut(|served| unsafe { *served += delivered });
                    if delivered == 0 {
                        self.passage.pass(question);
                    }
                    continue;
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

    /// A request that a helper serves while somebody asks, and whose reply never comes.
    #[test]
    fn loom_a_helper_that_returns_has_the_owner_answer() {
        use crate::uring::commit::Missing;

        struct Helped {
            passage: Passage,
            missing: Missing,
            eventfd: Mutex<u32>,
            woken: Condvar,
        }
        impl Helped {
            fn wake(&self) {
                *self.eventfd.lock().unwrap() += 1;
                self.woken.notify_one();
            }
        }
        check(|| {
            let missing = Missing::default();
            missing.begin(Missing::REPLY_AND_HANDLER);
            let helped = Arc::new(Helped {
                passage: Passage::default(),
                missing,
                eventfd: Mutex::new(0),
                woken: Condvar::new(),
            });
            let helper = run(&helped, |helped| {
                assert!(!helped.missing.made_last(Missing::HANDLER));
                if helped.passage.is_open() {
                    helped.wake();
                }
            });
            let asker = run(&helped, |helped| {
                helped.passage.ask();
                helped.wake();
            });
            while !helped.passage.has_passed(1) {
                let question = helped.passage.question();
                if let Some(question) = question.filter(|_| !helped.missing.has_handler()) {
                    helped.passage.pass(question);
                    continue;
                }
                let mut count = helped.eventfd.lock().unwrap();
                // A lost wake-up leaves this thread here for ever, which loom reports.
                while *count == 0 {
                    count = helped.woken.wait(count).unwrap();
                }
                *count = 0;
            }
            helper.join().unwrap();
            asker.join().unwrap();
        });
    }

    #[test]
    fn loom_what_was_sent_before_the_question_is_served_before_the_answer() {
        check(|| {
            let ring = Arc::new(Ring {
                passage: Passage::default(),
                sent: Mutex::new(0),
                served: UnsafeCell::new(0),
                eventfd: Mutex::new(0),
                woken: Condvar::new(),
            });
            let owner = run(&ring, |ring| ring.own(1));
            *ring.sent.lock().unwrap() += 1;
            let asked = ring.passage.ask();
            *ring.eventfd.lock().unwrap() += 1;
            ring.woken.notify_one();
            // It looks a few times only, so that an owner who was not woken is a deadlock that loom
            // reports.
            for _ in 0..3 {
                if ring.passage.has_passed(asked) {
                    // SAFETY: loom reports a concurrent access.
                    #[expect(unsafe_code, reason = "the read that the protocol orders")]
                    ring.served.with(|served| assert_eq!(unsafe { *served }, 1));
                    break;
                }
                yield_now();
            }
            owner.join().unwrap();
            assert!(ring.passage.has_passed(asked));
        });
    }
}
