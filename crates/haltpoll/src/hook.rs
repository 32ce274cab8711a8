//! The hot path: what each request costs the thread that serves it.
//!
//! In a burst that is one store to a cache line of its own and one load of a line that nobody
//! writes meanwhile. Only outside of bursts the clock is read.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use crate::burst_state::BurstState;
use crate::pollers::PollingTime;
use crate::sync::{AtomicU32, AtomicU64};
use crate::sys;

/// Requests that follow one another by no more than this belong together: as long as the monitor
/// waits for the next one before it ends a burst.
const TOGETHER_NS: u64 = 400_000;
/// Most hooks of one [`KeepAwake`](crate::KeepAwake); further ones do nothing.
pub(crate) const MAX_HOOKS: usize = 1_024;
/// How often a hook looks which CPU it runs on.
const LOOK_EVERY: u32 = 16;

/// No CPU.
const UNKNOWN: u32 = u32::MAX;

/// What hooks and monitor share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: BurstState,
    slots: Mutex<Vec<Line>>,
    /// Requests in a row that begin a burst.
    pub(crate) needed: AtomicU32,
    /// No burst begins before this time.
    pub(crate) not_before_ns: AtomicU64,
    /// The process that has the threads. A fork has the memory without them, and a lock that one of
    /// them held at that moment is never given back there.
    pid: u32,
    /// Of the pollers that this has, or will have.
    pub(crate) polling: PollingTime,
}

/// A slot on a cache line of its own.
type Line = Arc<CachePadded<Slot>>;

/// One hook's requests.
#[derive(Debug)]
pub(crate) struct Slot {
    /// `count << 32 | id of the thread that made the last request`; 0: unknown.
    requests: AtomicU64,
    /// The CPU that the hook's thread ran on when it last looked.
    server: AtomicU32,
}

impl Shared {
    pub(crate) fn new(needed: u32) -> Self {
        Self {
            state: BurstState::new(),
            slots: Mutex::new(Vec::new()),
            needed: AtomicU32::new(needed),
            not_before_ns: AtomicU64::new(0),
            pid: std::process::id(),
            polling: PollingTime::default(),
        }
    }

    /// Whether this is a copy of the process, which must wait for no lock of its parent's.
    pub(crate) fn is_copy(&self) -> bool {
        self.pid != std::process::id()
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Line>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the requests of one thread. Made by [`KeepAwake::hook`](crate::KeepAwake::hook).
pub struct Hook {
    watched: Option<Watched>,
}

struct Watched {
    shared: Arc<Shared>,
    slot: Line,
    count: u32,
    /// Outside of bursts: when the last request was, and how many came together up to it.
    last_ns: u64,
    together: u32,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("watched", &self.watched.is_some()).finish()
    }
}

impl Hook {
    /// A hook that does nothing.
    #[must_use]
    pub fn inert() -> Self {
        Self { watched: None }
    }

    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let mut slots = shared.slots();
        if slots.len() >= MAX_HOOKS {
            return Self::inert();
        }
        let (requests, server) = (AtomicU64::new(0), AtomicU32::new(UNKNOWN));
        let slot = Arc::new(CachePadded::new(Slot { requests, server }));
        slots.push(Arc::clone(&slot));
        let shared = Arc::clone(shared);
        let watched = Watched { shared, slot, count: 0, last_ns: 0, together: 0 };
        Self { watched: Some(watched) }
    }

    /// The calling thread took a request. Some nanoseconds in a burst, about 40 outside.
    #[inline]
    pub fn touch(&mut self) {
        self.touch_for(0);
    }

    /// The same for a request of thread `caller`, which waits for the reply: an id in the calling
    /// process's PID namespace, or 0. With [`Means::Pollers`](crate::Means) on more than two CPUs,
    /// the monitor looks where that thread runs.
    #[inline]
    pub fn touch_for(&mut self, caller: u32) {
        let Some(watched) = &mut self.watched else { return };
        watched.count = watched.count.wrapping_add(1);
        if watched.count.is_multiple_of(LOOK_EVERY) {
            watched.look();
        }
        watched.slot.requests.store(pack(watched.count, caller), Relaxed);
        if watched.shared.state.is_parked() {
            watched.consider();
        }
    }
}

impl Watched {
    #[cold]
    fn look(&mut self) {
        let cpu = u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(UNKNOWN);
        self.slot.server.store(cpu, Relaxed);
    }

    /// Outside of a burst: is this one?
    #[cold]
    fn consider(&mut self) {
        let now = sys::now_ns();
        let together = now.saturating_sub(self.last_ns) <= TOGETHER_NS;
        self.together = if together { self.together.saturating_add(1) } else { 1 };
        self.last_ns = now;
        let enough = self.together >= self.shared.needed.load(Relaxed);
        if enough && now >= self.shared.not_before_ns.load(Relaxed) {
            self.together = 0;
            self.look();
            self.shared.state.begin();
        }
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        if let Some(watched) = &self.watched
            && !watched.shared.is_copy()
        {
            watched.shared.slots().retain(|slot| !Arc::ptr_eq(slot, &watched.slot));
        }
    }
}

fn pack(count: u32, caller: u32) -> u64 {
    u64::from(count) << 32 | u64::from(caller)
}

fn unpack(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([e, f, g, h]), u32::from_le_bytes([a, b, c, d]))
}

/// What the monitor saw of the requests at its last look.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// By slot, which is known by its address and kept alive here.
    last: Vec<(Line, u32)>,
    /// Threads that made the latest requests, and CPUs of those that took them; without order.
    pub(crate) callers: Vec<u32>,
    pub(crate) servers: Vec<u16>,
}

impl Seen {
    /// Requests since the last call. Slots that are new count from zero.
    pub(crate) fn look(&mut self, shared: &Shared) -> u64 {
        let slots = shared.slots();
        let same = slots.len() == self.last.len()
            && slots.iter().zip(&self.last).all(|(slot, (last, _))| Arc::ptr_eq(slot, last));
        if !same {
            let known = std::mem::take(&mut self.last);
            let count = |slot: &Line| {
                known.iter().find(|(last, _)| Arc::ptr_eq(slot, last)).map_or(0, |(_, n)| *n)
            };
            self.last = slots.iter().map(|slot| (Arc::clone(slot), count(slot))).collect();
        }
        drop(slots);
        self.count()
    }

    fn count(&mut self) -> u64 {
        let mut requests = 0;
        for (slot, last) in &mut self.last {
            let (count, caller) = unpack(slot.requests.load(Relaxed));
            if count == *last {
                continue;
            }
            if requests == 0 {
                self.callers.clear();
                self.servers.clear();
            }
            requests += u64::from(count.wrapping_sub(*last));
            *last = count;
            self.callers.extend((caller != 0).then_some(caller));
            self.servers.extend(u16::try_from(slot.server.load(Relaxed)));
        }
        requests
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn open() -> Arc<Shared> {
        let shared = Arc::new(Shared::new(2));
        shared.state.open(std::thread::current());
        shared
    }

    #[test]
    fn a_word_holds_what_was_packed() {
        for (count, caller) in [(0, 0), (1, 2), (u32::MAX, 7), (9, u32::MAX)] {
            assert_eq!(unpack(pack(count, caller)), (count, caller));
        }
    }

    #[test]
    fn the_second_request_within_a_short_time_begins_a_burst() {
        let shared = open();
        let mut hook = Hook::new(&shared);
        hook.touch();
        assert!(!shared.state.in_burst());
        std::thread::sleep(std::time::Duration::from_millis(2));
        hook.touch();
        assert!(!shared.state.in_burst());
        // A busy machine may take a while between two of them, but not between all.
        (0..1_000).for_each(|_| hook.touch());
        assert!(shared.state.in_burst());
    }

    #[test]
    fn no_burst_begins_before_its_time_or_while_the_gate_is_shut() {
        let shared = open();
        shared.not_before_ns.store(u64::MAX, Relaxed);
        let mut hook = Hook::new(&shared);
        (0..1_000).for_each(|_| hook.touch());
        assert!(!shared.state.in_burst());
        shared.not_before_ns.store(0, Relaxed);
        shared.state.shut();
        (0..1_000).for_each(|_| hook.touch());
        assert!(!shared.state.in_burst());
    }

    #[test]
    fn the_keeper_sees_each_request_once_and_where_it_was() {
        let shared = open();
        let mut seen = Seen::default();
        assert_eq!(seen.look(&shared), 0);
        let (mut one, mut two) = (Hook::new(&shared), Hook::new(&shared));
        (0..20).for_each(|_| one.touch_for(5));
        assert_eq!(seen.look(&shared), 20);
        assert_eq!((&seen.callers[..], seen.servers.len()), (&[5][..], 1));
        assert_eq!(seen.look(&shared), 0);
        two.touch();
        one.touch();
        assert_eq!(seen.look(&shared), 2);
        drop(one);
        two.touch();
        assert_eq!(seen.look(&shared), 1);
        drop(two);
        assert_eq!(seen.look(&shared), 0);
        assert!(seen.last.is_empty());
    }

    #[test]
    fn hooks_beyond_the_maximum_do_nothing() {
        let shared = open();
        let mut hooks: Vec<_> = (0..=MAX_HOOKS).map(|_| Hook::new(&shared)).collect();
        assert!(hooks.iter().take(MAX_HOOKS).all(|hook| hook.watched.is_some()));
        let last = hooks.last_mut().unwrap();
        assert!(last.watched.is_none());
        last.touch();
    }
}
