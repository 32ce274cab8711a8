//! How the owner of a ring gives requests to helpers.
//!
//! Only the thread that owns a ring receives its requests, so a handler that waits (for a disk, a
//! lock, another file system) would stop all CPUs of the ring. The owner gives such requests to
//! *helpers*, threads of the session that wait here. They serve all rings.
//!
//! A request stays in its ring entry and is in this queue at most once: the queue is bounded by the
//! number of entries of all rings, and is never full. If all helpers are busy, requests wait here.
//!
//! One helper is left for requests that move data, which end by themselves: reading and writing go
//! on while all the others wait for a disk or a lock.
//!
//! No request is lost: it is put in under the lock under which a helper looks before it sleeps.

use std::collections::VecDeque;

use crate::sync::{Condvar, Mutex};
use crate::uring::slowness::Slowness;

/// Requests on their way from owners to helpers.
#[derive(Debug)]
pub(crate) struct Handover<J> {
    waiting: Mutex<Waiting<J>>,
    changed: Condvar,
    slowness: Slowness,
}

#[derive(Debug)]
struct Waiting<J> {
    /// Those that may wait.
    jobs: VecDeque<J>,
    /// Those that move data.
    moves: VecDeque<J>,
    /// Most helpers that serve one of `jobs` at the same time.
    most: usize,
    /// How many do.
    serving: usize,
    /// Helpers that wait for a job.
    idle: usize,
    /// Counts kicks, so that each waiting helper notices each once.
    kicks: u64,
}

/// Why a helper goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<J> {
    Job(J, Length),
    /// Check whether to stop.
    Kicked,
}

/// What a job may do to its helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// It may wait, for any length of time.
    Waits,
    /// It moves a lot of data.
    Moves,
}

impl<J> Waiting<J> {
    /// Whether a helper may begin one more of `jobs`, beside those that are given already.
    fn has_room(&self, given: usize) -> bool {
        self.serving + given < self.most
    }

    fn next(&mut self) -> Option<(J, Length)> {
        if self.has_room(0)
            && let Some(job) = self.jobs.pop_front()
        {
            self.serving += 1;
            return Some((job, Length::Waits));
        }
        Some((self.moves.pop_front()?, Length::Moves))
    }
}

impl<J> Handover<J> {
    pub(crate) fn new() -> Self {
        let (jobs, moves) = (VecDeque::new(), VecDeque::new());
        let waiting = Waiting { jobs, moves, most: 1, serving: 0, idle: 0, kicks: 0 };
        Self {
            waiting: Mutex::new(waiting),
            changed: Condvar::new(),
            slowness: Slowness::default(),
        }
    }

    pub(crate) fn slowness(&self) -> &Slowness {
        &self.slowness
    }

    /// Makes room for `jobs`, so that no later call allocates; there will be so many `helpers`.
    pub(crate) fn reserve(&self, jobs: usize, helpers: usize) {
        let mut waiting = self.waiting.lock();
        waiting.jobs.reserve(jobs);
        waiting.moves.reserve(jobs);
        waiting.most = helpers.saturating_sub(1).max(1);
    }

    /// Gives a job to the helpers.
    pub(crate) fn give(&self, job: J, length: Length) {
        let mut waiting = self.waiting.lock();
        match length {
            Length::Waits => waiting.jobs.push_back(job),
            Length::Moves => waiting.moves.push_back(job),
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Gives a job that may wait to the helpers if one of them is free for it.
    pub(crate) fn give_to_idle(&self, job: J) -> Result<(), J> {
        let mut waiting = self.waiting.lock();
        let given = waiting.jobs.len();
        if waiting.idle <= given + waiting.moves.len() || !waiting.has_room(given) {
            return Err(job);
        }
        waiting.jobs.push_back(job);
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for a job. For helpers: [`Handover::served`] has to follow a job.
    pub(crate) fn take(&self) -> Taken<J> {
        let mut waiting = self.waiting.lock();
        let kicks = waiting.kicks;
        waiting.idle += 1;
        loop {
            let taken = match waiting.next() {
                Some((job, length)) => Taken::Job(job, length),
                None if waiting.kicks != kicks => Taken::Kicked,
                None => {
                    waiting = self.changed.wait(waiting);
                    continue;
                }
            };
            waiting.idle -= 1;
            return taken;
        }
    }

    /// A helper has served a job of this `length`. It comes back for the next one by itself, so that
    /// nobody has to be woken for what waited for room.
    pub(crate) fn served(&self, length: Length) {
        if length == Length::Waits {
            self.waiting.lock().serving -= 1;
        }
    }

    /// Takes jobs back that no helper has taken; returns how many.
    pub(crate) fn withdraw(&self, is_mine: impl Fn(&J) -> bool) -> usize {
        let mut waiting = self.waiting.lock();
        let before = waiting.jobs.len() + waiting.moves.len();
        waiting.jobs.retain(|job| !is_mine(job));
        waiting.moves.retain(|job| !is_mine(job));
        before - waiting.jobs.len() - waiting.moves.len()
    }

    /// Makes waiting helpers check whether to stop.
    pub(crate) fn kick(&self) {
        self.waiting.lock().kicks += 1;
        self.changed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_taken_in_order_and_may_be_withdrawn() {
        let handover = Handover::new();
        handover.reserve(8, 3);
        assert_eq!(handover.give_to_idle(1), Err(1), "no helper waits");
        (2..6).for_each(|job| handover.give(job, Length::Waits));
        (6..9).for_each(|job| handover.give(job, Length::Moves));
        assert_eq!(handover.withdraw(|job| job % 2 == 0), 4);
        assert_eq!(handover.take(), Taken::Job(3, Length::Waits));
        assert_eq!(handover.take(), Taken::Job(5, Length::Waits));
        assert_eq!(handover.take(), Taken::Job(7, Length::Moves));
    }

    #[test]
    fn one_helper_is_left_for_what_moves_data() {
        let handover = Handover::new();
        handover.reserve(8, 3);
        (0..4).for_each(|job| handover.give(job, Length::Waits));
        assert_eq!(handover.take(), Taken::Job(0, Length::Waits));
        assert_eq!(handover.take(), Taken::Job(1, Length::Waits));
        handover.give(9, Length::Moves);
        assert_eq!(handover.take(), Taken::Job(9, Length::Moves), "two of three wait already");
        handover.served(Length::Moves);
        handover.served(Length::Waits);
        assert_eq!(handover.take(), Taken::Job(2, Length::Waits));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Arc, check, run, yield_now};

    /// Two jobs, one helper, in any order: both are taken.
    #[test]
    fn loom_no_job_is_lost() {
        check(|| {
            let handover = Arc::new(Handover::new());
            let helper = run(&handover, |handover| {
                let first = handover.take();
                handover.served(Length::Waits);
                [first, handover.take()]
            });
            handover.give(1, Length::Waits);
            handover.give(2, Length::Waits);
            let taken = [1, 2].map(|job| Taken::Job(job, Length::Waits));
            assert_eq!(helper.join().unwrap(), taken);
        });
    }

    /// Two helpers, of which one may wait: it does so, and the other one takes what moves data,
    /// whichever is given first.
    #[test]
    fn loom_what_moves_data_is_taken_while_the_other_helper_waits() {
        check(|| {
            let handover = Arc::new(Handover::new());
            handover.reserve(3, 2);
            handover.give(0, Length::Waits);
            let Taken::Job(0, Length::Waits) = handover.take() else { panic!("one was given") };
            let other = run(&handover, Handover::take);
            handover.give(1, Length::Waits);
            handover.give(2, Length::Moves);
            assert_eq!(other.join().unwrap(), Taken::Job(2, Length::Moves));
            handover.served(Length::Waits);
            assert_eq!(handover.take(), Taken::Job(1, Length::Waits));
        });
    }

    /// What is given to an idle helper is taken by it.
    #[test]
    fn loom_an_idle_helper_takes_what_it_was_given() {
        check(|| {
            let handover = Arc::new(Handover::new());
            let helper = run(&handover, Handover::take);
            while handover.give_to_idle(()).is_err() {
                yield_now();
            }
            assert_eq!(handover.give_to_idle(()), Err(()), "the one helper has a job");
            assert_eq!(helper.join().unwrap(), Taken::Job((), Length::Waits));
        });
    }

    /// A helper that waits comes back from a kick. (One that comes to wait later does not; who kicks
    /// repeats it.)
    #[test]
    fn loom_a_waiting_helper_comes_back_from_a_kick() {
        check(|| {
            let handover = Arc::new(Handover::<()>::new());
            let helper = run(&handover, Handover::take);
            while handover.waiting.lock().idle == 0 {
                yield_now();
            }
            handover.kick();
            assert_eq!(helper.join().unwrap(), Taken::Kicked);
        });
    }
}
