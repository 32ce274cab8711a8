//! Leader/followers: which workers wait in the kernel for requests.
//!
//! Wake-ups dominate the latency of a small request: one for the server and one for the caller.
//! With several workers in `read` the kernel wakes a different one each time, on another CPU, with
//! a cold cache; a caller that makes one request after the other pays for parallelism that it
//! cannot use. Here one worker, the leader, is *active*, and its followers are *parked*. The active
//! worker receives a request, serves it, and polls for the next for a few microseconds before it
//! sleeps. A follower is promoted (becomes active too) when
//!
//! * requests queue up: many in a row were there before a worker asked for them,
//! * a request is known to take long (fsync, a large copy), so that others would wait behind it,
//! * no request was received for a tick while every active worker was in a handler: the *watchdog*,
//!   one of the followers, promotes itself. So each worker that a handler blocks (in a lower file
//!   system that does not answer) is replaced, as long as there are followers:
//!   [`crate::SessionConfig::reserve`] are there for that alone. They are called when no other
//!   follower is left, so that the same few threads, with warm caches, do the daily work.
//!
//! An active worker that finds no request while another one waits for requests becomes a follower
//! again, unless several threads call: see [`crowd`](super::crowd).
//!
//! # State
//!
//! One word holds two counts: `active` workers, and how many of them are `idle` (in the kernel, or
//! on their way; the others are in a handler). Invariants, checked under loom:
//!
//! 1. `active >= 1` and `idle <= active`: the last idle worker is never parked
//!    ([`LeaderFollowers::step_back`] needs another idle one).
//! 2. A promotion is never lost: the word is changed first and the promotion recorded under the
//!    lock; a worker that parks looks for promotions under the same lock.
//! 3. The watchdog never sleeps over a request that then blocks: it announces that it sleeps, then
//!    checks the number of requests once more; a worker counts its request, then checks whether the
//!    watchdog sleeps. A fence stands between the two steps of each, so at least one of them sees
//!    the other's.
//! 4. There is a watchdog whenever there are followers: who leaves without one being there wakes a
//!    follower, which becomes it.
//!
//! The watchdog sleeps apart from the other followers, so that it alone is woken when requests come
//! again, and not all of the reserve.

use std::time::Duration;

use crate::device::crowd::Callers;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Observe, Ordering, fence};

/// How often the watchdog checks. A request that blocks delays others by two ticks at most.
const TICK: Duration = Duration::from_millis(2);
/// The same for one of the reserve, which watches while the others work: seldom, as it costs CPU
/// time that they could use.
const RESERVE_TICK: Duration = Duration::from_millis(10);
/// Ticks without a request after which the watchdog sleeps until there is one: nothing runs then.
const QUIET_TICKS: u32 = 5;

/// Why a parked worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// It is active now.
    Promoted,
    /// Check whether to stop, and park again.
    Kicked,
}

/// The workers of one connection. See the module's text.
#[derive(Debug)]
pub(crate) struct LeaderFollowers {
    /// `active << 32 | idle`.
    counts: AtomicU64,
    /// Requests received so far.
    received: AtomicU64,
    /// The watchdog sleeps without a timeout.
    watchdog_sleeps: AtomicBool,
    pub(crate) callers: Callers,
    parked: Mutex<ParkedState>,
    wake: Condvar,
    wake_reserve: Condvar,
    /// For the watchdog.
    wake_watchdog: Condvar,
}

#[derive(Debug, Default)]
struct ParkedState {
    /// Promotions that no worker has seen yet.
    promotions: usize,
    /// Followers that are no reserve.
    waiting: usize,
    in_reserve: usize,
    /// WorkerCounts kicks, so that each parked worker notices each once.
    kicks: u64,
    has_watchdog: bool,
}

impl ParkedState {
    /// Whether so many followers are more than there are outside of the reserve.
    fn is_for_reserve(&self, wanted: usize) -> bool {
        wanted > self.waiting
    }

    fn count(&mut self, reserve: bool) -> &mut usize {
        if reserve { &mut self.in_reserve } else { &mut self.waiting }
    }
}

/// The two counts, apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkerCounts {
    active: u32,
    idle: u32,
}

impl WorkerCounts {
    #[expect(clippy::cast_possible_truncation, reason = "the word's two halves")]
    fn from_word(word: u64) -> Self {
        let counts = Self { active: (word >> 32) as u32, idle: word as u32 };
        debug_assert!(counts.active >= 1 && counts.idle <= counts.active, "{counts:?}");
        counts
    }

    fn word(self) -> u64 {
        (u64::from(self.active) << 32) | u64::from(self.idle)
    }
}

impl LeaderFollowers {
    /// A workers whose first worker is active and idle.
    pub(crate) fn new() -> Self {
        Self {
            counts: AtomicU64::new(WorkerCounts { active: 1, idle: 1 }.word()),
            received: AtomicU64::new(0),
            watchdog_sleeps: AtomicBool::new(false),
            callers: Callers::new(),
            parked: Mutex::new(ParkedState::default()),
            wake: Condvar::new(),
            wake_reserve: Condvar::new(),
            wake_watchdog: Condvar::new(),
        }
    }

    fn counts(&self) -> WorkerCounts {
        WorkerCounts::from_word(self.counts.load(Ordering::SeqCst))
    }

    /// Active workers.
    pub(crate) fn active(&self) -> u32 {
        self.counts().active
    }

    /// The calling worker received a request and enters its handler. Returns whether another active
    /// worker is left to receive the next one.
    pub(crate) fn received(&self) -> bool {
        let before = WorkerCounts::from_word(self.counts.fetch_sub(1, Ordering::SeqCst));
        debug_assert!(before.idle > 0, "a parked worker received a request: {before:?}");
        self.received.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // A plain load: an exchange would hide a missing fence from the model.
        if self.watchdog_sleeps.load(Ordering::SeqCst)
            && self.watchdog_sleeps.swap(false, Ordering::SeqCst)
        {
            let _parked = self.lock();
            self.wake_watchdog.notify_one();
        }
        before.idle > 1
    }

    /// The calling worker has served its request.
    pub(crate) fn back(&self) {
        let before = WorkerCounts::from_word(self.counts.fetch_add(1, Ordering::SeqCst));
        debug_assert!(before.idle < before.active, "nobody was in a handler: {before:?}");
    }

    /// Makes a parked worker active, if one is parked.
    pub(crate) fn promote(&self) {
        let mut parked = self.lock();
        if parked.waiting + parked.in_reserve > parked.promotions {
            self.add_active();
            parked.promotions += 1;
            self.call_one(&parked);
            // The watchdog may be the only one. If both are woken, one finds nothing to do.
            self.wake_watchdog.notify_one();
        }
    }

    /// Wakes a follower, one of the reserve only if there are not enough others.
    fn call_one(&self, parked: &ParkedState) {
        if parked.is_for_reserve(parked.promotions) {
            self.wake_reserve.notify_one();
        } else {
            self.wake.notify_one();
        }
    }

    fn add_active(&self) {
        let one = WorkerCounts { active: 1, idle: 1 };
        self.counts.fetch_add(one.word(), Ordering::SeqCst);
    }

    /// The calling worker, active and idle, becomes a follower if another idle one stays active.
    pub(crate) fn step_back(&self) -> bool {
        let mut word = self.counts.observe(Ordering::SeqCst);
        loop {
            let WorkerCounts { active, idle } = WorkerCounts::from_word(word);
            if idle < 2 {
                return false;
            }
            let fewer = WorkerCounts { active: active - 1, idle: idle - 1 }.word();
            let order = Ordering::SeqCst;
            match self.counts.compare_exchange_weak(word, fewer, order, order) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Waits, not active, until promoted or kicked.
    pub(crate) fn park(&self, reserve: bool) -> Parked {
        let mut parked = self.lock();
        *parked.count(reserve) += 1;
        let kicks = parked.kicks;
        let mut watch = None;
        let outcome = loop {
            if parked.kicks != kicks {
                break Parked::Kicked;
            }
            if parked.promotions > 0 && (!reserve || parked.is_for_reserve(parked.promotions)) {
                parked.promotions -= 1;
                break Parked::Promoted;
            }
            let is_called = !reserve || parked.is_for_reserve(1);
            if watch.is_none() && !parked.has_watchdog && is_called {
                parked.has_watchdog = true;
                let received = self.received.load(Ordering::SeqCst);
                watch = Some(WatchdogState { received, quiet: 0, reserve });
            }
            parked = match &mut watch {
                None if reserve => self.wake_reserve.wait(parked),
                None => self.wake.wait(parked),
                Some(watch) => {
                    if self.is_stuck(watch) {
                        self.add_active();
                        break Parked::Promoted;
                    }
                    self.sleep_as_watchdog(parked, watch)
                }
            };
        };
        *parked.count(reserve) -= 1;
        if watch.is_some() {
            parked.has_watchdog = false;
        }
        if !parked.has_watchdog || parked.promotions > 0 {
            // Another follower becomes the watchdog. Not only after a watchdog: the follower that was
            // woken to become it, or to be promoted, may have done the other.
            let wanted = parked.promotions + usize::from(!parked.has_watchdog);
            match parked.is_for_reserve(wanted) {
                true => self.wake_reserve.notify_one(),
                false => self.wake.notify_one(),
            }
        }
        outcome
    }

    /// Whether no request was received since the last check while every active worker was in a
    /// handler.
    fn is_stuck(&self, watch: &mut WatchdogState) -> bool {
        let received = self.received.load(Ordering::SeqCst);
        let moved = received != watch.received;
        watch.received = received;
        watch.quiet = if moved { 0 } else { watch.quiet + 1 };
        !moved && watch.quiet > 1 && self.counts().idle == 0
    }

    fn sleep_as_watchdog<'p>(
        &self,
        parked: MutexGuard<'p, ParkedState>,
        watch: &mut WatchdogState,
    ) -> MutexGuard<'p, ParkedState> {
        if watch.quiet < QUIET_TICKS {
            let tick = if watch.reserve { RESERVE_TICK } else { TICK };
            return self.wake_watchdog.wait_timeout(parked, tick);
        }
        self.watchdog_sleeps.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.received.load(Ordering::SeqCst) != watch.received {
            self.watchdog_sleeps.store(false, Ordering::SeqCst);
            return parked;
        }
        let parked = self.wake_watchdog.wait(parked);
        self.watchdog_sleeps.store(false, Ordering::SeqCst);
        watch.quiet = 0;
        parked
    }

    /// Makes all parked workers check whether to stop.
    pub(crate) fn kick(&self) {
        self.lock().kicks += 1;
        self.wake.notify_all();
        self.wake_reserve.notify_all();
        self.wake_watchdog.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ParkedState> {
        self.parked.lock()
    }
}

/// What the watchdog saw last.
#[derive(Debug)]
struct WatchdogState {
    received: u64,
    quiet: u32,
    /// One of the reserve.
    reserve: bool,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    fn parked(workers: &Arc<LeaderFollowers>) -> thread::JoinHandle<Parked> {
        let workers = Arc::clone(workers);
        thread::spawn(move || workers.park(false))
    }

    fn in_reserve(workers: &Arc<LeaderFollowers>) -> thread::JoinHandle<Parked> {
        let workers = Arc::clone(workers);
        thread::spawn(move || workers.park(true))
    }

    fn until(what: impl Fn() -> bool) {
        let start = Instant::now();
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(10), "waited in vain");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_last_active_worker_stays() {
        let workers = LeaderFollowers::new();
        assert!(!workers.step_back());
        assert!(!workers.received(), "nobody is left");
        workers.back();
        assert_eq!(workers.active(), 1);
    }

    #[test]
    fn a_promoted_worker_retires_when_another_waits() {
        let workers = Arc::new(LeaderFollowers::new());
        let worker = parked(&workers);
        until(|| workers.lock().waiting == 1);
        workers.promote();
        workers.promote();
        assert_eq!(workers.active(), 2, "one was parked, so one became active");
        assert_eq!(worker.join().unwrap(), Parked::Promoted);
        assert!(workers.received(), "the other one is left");
        assert!(!workers.step_back(), "the other one is in a handler");
        workers.back();
        assert!(workers.step_back());
        assert_eq!(workers.active(), 1);
    }

    #[test]
    fn the_lookout_steps_in_when_a_handler_blocks() {
        let workers = Arc::new(LeaderFollowers::new());
        let worker = parked(&workers);
        until(|| workers.lock().waiting == 1);
        workers.received();
        assert_eq!(worker.join().unwrap(), Parked::Promoted);
        assert_eq!(workers.active(), 2);
    }

    #[test]
    fn a_watchdog_sleeps_lookout_is_woken_by_a_request() {
        let workers = Arc::new(LeaderFollowers::new());
        let worker = parked(&workers);
        until(|| workers.watchdog_sleeps.load(Ordering::SeqCst));
        workers.received();
        assert_eq!(worker.join().unwrap(), Parked::Promoted);
    }

    /// Each worker that blocks is replaced, until no follower is left.
    #[test]
    fn one_blocked_handler_after_the_other_is_replaced() {
        let workers = Arc::new(LeaderFollowers::new());
        let followers: Vec<_> = (0..2).map(|_| parked(&workers)).collect();
        let reserve: Vec<_> = (0..3).map(|_| in_reserve(&workers)).collect();
        until(|| workers.lock().waiting == 2 && workers.lock().in_reserve == 3);
        for blocked in 1..=5 {
            workers.received();
            until(|| workers.active() == blocked + 1);
        }
        for follower in followers.into_iter().chain(reserve) {
            assert_eq!(follower.join().unwrap(), Parked::Promoted);
        }
    }

    #[test]
    fn the_reserve_is_called_when_no_other_follower_is_left() {
        let workers = Arc::new(LeaderFollowers::new());
        let reserve = in_reserve(&workers);
        until(|| workers.lock().in_reserve == 1);
        let follower = parked(&workers);
        until(|| workers.lock().waiting == 1);
        workers.promote();
        assert_eq!(follower.join().unwrap(), Parked::Promoted);
        assert!(!reserve.is_finished());
        workers.promote();
        assert_eq!(reserve.join().unwrap(), Parked::Promoted);
    }

    #[test]
    fn a_kick_reaches_everyone_who_is_parked() {
        let workers = Arc::new(LeaderFollowers::new());
        let threads = [parked(&workers), parked(&workers), in_reserve(&workers)];
        until(|| workers.lock().waiting == 2 && workers.lock().in_reserve == 1);
        workers.kick();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Parked::Kicked);
        }
        assert_eq!(workers.active(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Arc, check, run, yield_now};

    /// Two workers and a promotion: the promotion takes effect whenever it comes.
    #[test]
    fn loom_no_promotion_is_lost() {
        check(|| {
            let workers = Arc::new(LeaderFollowers::new());
            workers.lock().has_watchdog = true; // no timeouts in the model
            let second = run(&workers, |workers| workers.park(false));
            // The second worker may not be parked yet; once it is, one promotion has to do.
            loop {
                workers.promote();
                if workers.active() == 2 {
                    break;
                }
                yield_now();
            }
            assert_eq!(second.join().unwrap(), Parked::Promoted);
            assert_eq!(workers.counts(), WorkerCounts { active: 2, idle: 2 });
        });
    }

    /// Two idle workers step back at once: one of them stays active.
    #[test]
    fn loom_the_last_one_never_steps_back() {
        check(|| {
            let workers = Arc::new(LeaderFollowers::new());
            workers.add_active();
            let other = run(&workers, LeaderFollowers::step_back);
            let stepped_back = [workers.step_back(), other.join().unwrap()];
            assert_eq!(stepped_back.iter().filter(|back| **back).count(), 1);
            assert_eq!(workers.counts(), WorkerCounts { active: 1, idle: 1 });
        });
    }

    /// A worker receives a request while another steps back: an active one is left for the next
    /// request, or the first one knows that there is none.
    #[test]
    fn loom_stepping_back_leaves_one_idle_or_is_refused() {
        check(|| {
            let workers = Arc::new(LeaderFollowers::new());
            workers.add_active();
            let receiver = run(&workers, LeaderFollowers::received);
            let stepped_back = workers.step_back();
            let another_left = receiver.join().unwrap();
            // If both relied on the other, no worker would be in the kernel.
            assert!(workers.counts().active >= 1);
            assert!(!(stepped_back && another_left && workers.counts().idle == 1));
        });
    }

    /// Two followers, of which the watchdog is promoted: the other one takes its place, also when a
    /// second promotion comes meanwhile. Nobody sleeps for ever, which loom would report.
    #[test]
    fn loom_a_follower_takes_the_place_of_the_watchdog() {
        check(|| {
            let workers = Arc::new(LeaderFollowers::new());
            workers.lock().has_watchdog = true;
            workers.lock().waiting = 1;
            let follower = run(&workers, |workers| workers.park(true));
            // The watchdog leaves, promoted; then there is one more promotion.
            let mut parked = workers.lock();
            parked.has_watchdog = false;
            parked.waiting -= 1;
            workers.wake_reserve.notify_one();
            drop(parked);
            workers.promote();
            // It may have come to park after that: then a further promotion has to do.
            while workers.active() < 2 {
                workers.promote();
                yield_now();
            }
            assert_eq!(follower.join().unwrap(), Parked::Promoted);
        });
    }

    /// The watchdog falls asleep while a request is received: it is woken, or sees the request.
    #[test]
    fn loom_the_watchdog_does_not_sleep_over_a_request() {
        check(|| {
            let workers = Arc::new(LeaderFollowers::new());
            let receiver = run(&workers, LeaderFollowers::received);
            // A lost wake-up would leave this thread asleep for ever, which loom reports.
            let mut watch = WatchdogState { received: 0, quiet: QUIET_TICKS, reserve: false };
            let guard = workers.lock();
            drop(workers.sleep_as_watchdog(guard, &mut watch));
            receiver.join().unwrap();
        });
    }
}
