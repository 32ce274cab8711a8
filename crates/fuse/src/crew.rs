//! Who waits in the kernel for requests: as few workers as keep up.
//!
//! A request costs a wake-up in each direction, and that is its price. With several workers in `read`
//! the kernel wakes a different one each time, on another CPU, with a cold cache; a caller that makes
//! one request after the other pays for parallelism that it cannot use. Here one worker is *active*
//! and the others are *parked*. The active one takes a request, serves it, and looks for the next for a
//! few microseconds before it sleeps. A further worker becomes active when
//!
//! * requests queue up: many in a row were there before anybody asked ([`Crew::promote`] by the queue),
//! * a request is known to take long (fsync, a large copy), so that others would wait behind it,
//! * nothing moved for a tick while every active worker was in a handler: the *lookout*, one of the
//!   parked workers, makes itself active.
//!
//! It is parked again as soon as it finds nothing to do while another one waits.
//!
//! # State
//!
//! One word holds two counts: `active` workers, and how many of them are `idle` (in the kernel, or on
//! their way; the others are in a handler). Invariants, checked under loom:
//!
//! 1. `active >= 1`: the last active worker is never parked ([`Crew::retire`] needs another idle one).
//! 2. A promotion is never lost: the word is changed first and a seat given under the lock; whoever parks
//!    looks for seats under the same lock.
//! 3. The lookout never dozes over a request that then hangs: it announces that it dozes, then looks at
//!    the request count once more; a worker counts its request, then looks whether the lookout dozes. A
//!    fence stands between the two steps of each, so at least one sees the other's.

use std::time::Duration;

use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, fence};

/// How often the lookout looks. A request that blocks holds up others for two ticks at most.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without a request after which the lookout sleeps until there is one: nothing runs then.
const QUIET_TICKS: u32 = 50;

/// Why a parked worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// It is active now.
    Promoted,
    /// Something else happened: look whether to stop, and park again.
    Kicked,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Crew {
    /// `active << 32 | idle`.
    counts: AtomicU64,
    /// Requests taken so far.
    taken: AtomicU64,
    /// The lookout sleeps without a timeout.
    dozing: AtomicBool,
    parked: Mutex<ParkedState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct ParkedState {
    /// Promotions that no worker has taken up yet.
    seats: usize,
    waiting: usize,
    /// Counts kicks, so that each parked worker notices each once.
    kicks: u64,
    lookout: bool,
}

/// The two counts, apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    active: u32,
    idle: u32,
}

impl Counts {
    fn from_word(word: u64) -> Self {
        let low = word & u64::from(u32::MAX);
        Self {
            active: u32::try_from(word >> 32).unwrap_or(u32::MAX),
            idle: u32::try_from(low).unwrap_or(u32::MAX),
        }
    }

    fn word(self) -> u64 {
        (u64::from(self.active) << 32) | u64::from(self.idle)
    }
}

impl Crew {
    /// A crew whose first worker is active and idle.
    pub(crate) fn new() -> Self {
        Self {
            counts: AtomicU64::new(Counts { active: 1, idle: 1 }.word()),
            taken: AtomicU64::new(0),
            dozing: AtomicBool::new(false),
            parked: Mutex::new(ParkedState::default()),
            wake: Condvar::new(),
        }
    }

    fn counts(&self) -> Counts {
        Counts::from_word(self.counts.load(Ordering::SeqCst))
    }

    /// Active workers.
    pub(crate) fn active(&self) -> u32 {
        self.counts().active
    }

    /// The calling worker took a request and goes into its handler. Answers whether another active
    /// worker is left to take the next one.
    pub(crate) fn took(&self) -> bool {
        let before = Counts::from_word(self.counts.fetch_sub(1, Ordering::SeqCst));
        self.taken.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.dozing.load(Ordering::SeqCst) && self.dozing.swap(false, Ordering::SeqCst) {
            let _parked = self.lock();
            self.wake.notify_all();
        }
        before.idle > 1
    }

    /// The calling worker is through with its request.
    pub(crate) fn back(&self) {
        self.counts.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a parked worker active, if one is parked.
    pub(crate) fn promote(&self) {
        let mut parked = self.lock();
        if parked.waiting > parked.seats {
            self.add_active();
            parked.seats += 1;
            self.wake.notify_all();
        }
    }

    fn add_active(&self) {
        let one = Counts { active: 1, idle: 1 };
        self.counts.fetch_add(one.word(), Ordering::SeqCst);
    }

    /// The calling worker, active and idle, steps back if another idle one stays.
    pub(crate) fn retire(&self) -> bool {
        let step = |word| {
            let Counts { active, idle } = Counts::from_word(word);
            (idle > 1).then(|| Counts { active: active - 1, idle: idle - 1 }.word())
        };
        self.counts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).is_ok()
    }

    /// Waits, not active, until promoted or kicked.
    pub(crate) fn park(&self) -> Parked {
        let mut parked = self.lock();
        parked.waiting += 1;
        let kicks = parked.kicks;
        let mut watch = None;
        let outcome = loop {
            if parked.kicks != kicks {
                break Parked::Kicked;
            }
            if parked.seats > 0 {
                parked.seats -= 1;
                break Parked::Promoted;
            }
            if watch.is_none() && !parked.lookout {
                parked.lookout = true;
                watch = Some(Watch { taken: self.taken.load(Ordering::SeqCst), quiet: 0 });
            }
            parked = match &mut watch {
                None => self.sleep(parked),
                Some(watch) => {
                    if self.look(watch) {
                        self.add_active();
                        break Parked::Promoted;
                    }
                    self.sleep_on_watch(parked, watch)
                }
            };
        };
        parked.waiting -= 1;
        if watch.is_some() {
            // Another one takes the watch.
            parked.lookout = false;
            self.wake.notify_all();
        }
        outcome
    }

    /// Whether nothing has moved since the last look while every active worker was in a handler.
    fn look(&self, watch: &mut Watch) -> bool {
        let taken = self.taken.load(Ordering::SeqCst);
        let moved = taken != watch.taken;
        watch.taken = taken;
        watch.quiet = if moved { 0 } else { watch.quiet + 1 };
        !moved && watch.quiet > 1 && self.counts().idle == 0
    }

    fn sleep<'p>(&self, parked: MutexGuard<'p, ParkedState>) -> MutexGuard<'p, ParkedState> {
        self.wake.wait(parked).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn sleep_on_watch<'p>(
        &self,
        parked: MutexGuard<'p, ParkedState>,
        watch: &mut Watch,
    ) -> MutexGuard<'p, ParkedState> {
        if watch.quiet < QUIET_TICKS {
            let slept = self.wake.wait_timeout(parked, TICK);
            return slept.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        self.dozing.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.taken.load(Ordering::SeqCst) != watch.taken {
            self.dozing.store(false, Ordering::SeqCst);
            return parked;
        }
        let parked = self.sleep(parked);
        self.dozing.store(false, Ordering::SeqCst);
        watch.quiet = 0;
        parked
    }

    /// Makes all parked workers look whether to stop.
    pub(crate) fn kick(&self) {
        self.lock().kicks += 1;
        self.wake.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ParkedState> {
        // The state is valid after every statement: a panic elsewhere does not spoil it.
        self.parked.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What the lookout saw last.
#[derive(Debug)]
struct Watch {
    taken: u64,
    quiet: u32,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    fn parked(crew: &Arc<Crew>) -> thread::JoinHandle<Parked> {
        let crew = Arc::clone(crew);
        thread::spawn(move || crew.park())
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
        let crew = Crew::new();
        assert!(!crew.retire());
        assert!(!crew.took(), "nobody is left");
        crew.back();
        assert_eq!(crew.active(), 1);
    }

    #[test]
    fn a_promoted_worker_retires_when_another_waits() {
        let crew = Arc::new(Crew::new());
        let worker = parked(&crew);
        until(|| crew.lock().waiting == 1);
        crew.promote();
        crew.promote();
        assert_eq!(crew.active(), 2, "one was parked, so one became active");
        assert_eq!(worker.join().unwrap(), Parked::Promoted);
        assert!(crew.took(), "the other one is left");
        assert!(!crew.retire(), "the other one is in a handler");
        crew.back();
        assert!(crew.retire());
        assert_eq!(crew.active(), 1);
    }

    #[test]
    fn the_lookout_steps_in_when_a_handler_blocks() {
        let crew = Arc::new(Crew::new());
        let worker = parked(&crew);
        until(|| crew.lock().waiting == 1);
        crew.took();
        assert_eq!(worker.join().unwrap(), Parked::Promoted);
        assert_eq!(crew.active(), 2);
    }

    #[test]
    fn a_dozing_lookout_is_woken_by_a_request() {
        let crew = Arc::new(Crew::new());
        let worker = parked(&crew);
        until(|| crew.dozing.load(Ordering::SeqCst));
        crew.took();
        assert_eq!(worker.join().unwrap(), Parked::Promoted);
    }

    #[test]
    fn a_kick_reaches_everyone_who_is_parked() {
        let crew = Arc::new(Crew::new());
        let workers = [parked(&crew), parked(&crew), parked(&crew)];
        until(|| crew.lock().waiting == 3);
        crew.kick();
        for worker in workers {
            assert_eq!(worker.join().unwrap(), Parked::Kicked);
        }
        assert_eq!(crew.active(), 1);
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p tollgate-fuse --release --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two workers and a promotion: it is taken up, whenever it comes, and somebody stays active.
    #[test]
    fn loom_no_promotion_is_lost() {
        loom::model(|| {
            let crew = Arc::new(Crew::new());
            crew.lock().lookout = true; // no timeouts in the model
            let second = {
                let crew = Arc::clone(&crew);
                thread::spawn(move || crew.park())
            };
            // It may not be parked yet; once it is, one promotion has to do.
            loop {
                crew.promote();
                if crew.active() == 2 {
                    break;
                }
                thread::yield_now();
            }
            assert_eq!(second.join().unwrap(), Parked::Promoted);
            assert_eq!(crew.counts(), Counts { active: 2, idle: 2 });
        });
    }

    /// Two idle workers step back at once: one of them stays.
    #[test]
    fn loom_the_last_one_never_retires() {
        loom::model(|| {
            let crew = Arc::new(Crew::new());
            crew.add_active();
            let other = {
                let crew = Arc::clone(&crew);
                thread::spawn(move || crew.retire())
            };
            let retired = [crew.retire(), other.join().unwrap()];
            assert_eq!(retired.iter().filter(|r| **r).count(), 1);
            assert_eq!(crew.counts(), Counts { active: 1, idle: 1 });
        });
    }

    /// A worker takes a request while another steps back: whoever is left active can take the next.
    #[test]
    fn loom_retiring_leaves_one_idle_or_none_retired() {
        loom::model(|| {
            let crew = Arc::new(Crew::new());
            crew.add_active();
            let taker = {
                let crew = Arc::clone(&crew);
                thread::spawn(move || crew.took())
            };
            let retired = crew.retire();
            let another_left = taker.join().unwrap();
            // Both cannot rely on the other: that would leave nobody in the kernel unnoticed.
            assert!(crew.counts().active >= 1);
            assert!(!(retired && another_left && crew.counts().idle == 1));
        });
    }

    /// The lookout falls asleep while a request is taken: it is woken, or sees the request.
    #[test]
    fn loom_the_lookout_does_not_doze_over_a_request() {
        loom::model(|| {
            let crew = Arc::new(Crew::new());
            let taker = {
                let crew = Arc::clone(&crew);
                thread::spawn(move || crew.took())
            };
            // A lost wake-up would leave this thread asleep for ever, which loom reports.
            let mut watch = Watch { taken: 0, quiet: QUIET_TICKS };
            let guard = crew.lock();
            drop(crew.sleep_on_watch(guard, &mut watch));
            taker.join().unwrap();
        });
    }
}
