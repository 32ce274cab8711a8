//! The hot path: what each request costs the thread that serves it.
//!
//! In a burst that is one store to a cache line of its own and one load of a line that nobody writes
//! meanwhile. Only outside of bursts the clock is read.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use crate::gate::Gate;
use crate::sync::{AtomicU32, AtomicU64};
use crate::sys;

/// Requests that follow one another by no more than this belong together.
pub(crate) const TOGETHER_NS: u64 = 250_000;
/// Most hooks of one [`KeepAwake`](crate::KeepAwake); further ones do nothing.
pub(crate) const MAX_HOOKS: usize = 1_024;
/// How often a hook looks which CPU it runs on.
const LOOK_EVERY: u32 = 16;

/// No CPU.
const UNKNOWN: u16 = u16::MAX;

/// What hooks and keeper share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) gate: Gate,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Requests in a row that begin a burst.
    pub(crate) needed: AtomicU32,
    /// No burst begins before this time.
    pub(crate) not_before_ns: AtomicU64,
}

/// One hook's requests: `count << 32 | caller's CPU << 16 | server's CPU`.
type Slot = CachePadded<AtomicU64>;

impl Shared {
    pub(crate) fn new(needed: u32) -> Self {
        Self {
            gate: Gate::new(),
            slots: Mutex::new(Vec::new()),
            needed: AtomicU32::new(needed),
            not_before_ns: AtomicU64::new(0),
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the requests of one thread. Made by [`KeepAwake::hook`](crate::KeepAwake::hook).
pub struct Hook {
    watched: Option<Watched>,
}

struct Watched {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    count: u32,
    server: u16,
    caller: u16,
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
        let slot = Arc::new(Slot::new(AtomicU64::new(pack(0, UNKNOWN, UNKNOWN))));
        slots.push(Arc::clone(&slot));
        let shared = Arc::clone(shared);
        let (server, caller) = (UNKNOWN, UNKNOWN);
        let watched = Watched { shared, slot, count: 0, server, caller, last_ns: 0, together: 0 };
        Self { watched: Some(watched) }
    }

    /// The calling thread took a request. Some nanoseconds in a burst, about 40 outside.
    #[inline]
    pub fn touch(&mut self) {
        let Some(watched) = &mut self.watched else { return };
        watched.count = watched.count.wrapping_add(1);
        if watched.count.is_multiple_of(LOOK_EVERY) {
            watched.look();
        }
        watched.slot.store(pack(watched.count, watched.caller, watched.server), Relaxed);
        if watched.shared.gate.is_parked() {
            watched.consider();
        }
    }

    /// Requests come from a thread on `cpu`, until said otherwise. Only [`Means::Pollers`](crate::Means) on
    /// more than two CPUs needs to know.
    #[inline]
    pub fn caller_on(&mut self, cpu: usize) {
        if let Some(watched) = &mut self.watched {
            watched.caller = u16::try_from(cpu).unwrap_or(UNKNOWN);
        }
    }
}

impl Watched {
    #[cold]
    fn look(&mut self) {
        self.server = u16::try_from(rustix::thread::sched_getcpu()).unwrap_or(UNKNOWN);
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
            self.slot.store(pack(self.count, self.caller, self.server), Relaxed);
            self.shared.gate.begin();
        }
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        if let Some(watched) = &self.watched {
            watched.shared.slots().retain(|slot| !Arc::ptr_eq(slot, &watched.slot));
        }
    }
}

fn pack(count: u32, caller: u16, server: u16) -> u64 {
    u64::from(count) << 32 | u64::from(caller) << 16 | u64::from(server)
}

/// What the keeper saw of the requests at its last look.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// By slot, which is known by its address and kept alive here.
    last: Vec<(Arc<Slot>, u32)>,
    /// CPUs of the latest requests: callers first.
    pub(crate) cpus: Vec<u16>,
}

impl Seen {
    /// Requests since the last call. Slots that are new count from zero.
    pub(crate) fn look(&mut self, shared: &Shared) -> u64 {
        let slots = shared.slots();
        let same = slots.len() == self.last.len()
            && slots.iter().zip(&self.last).all(|(slot, (last, _))| Arc::ptr_eq(slot, last));
        if !same {
            let known = std::mem::take(&mut self.last);
            let count = |slot: &Arc<Slot>| {
                known.iter().find(|(last, _)| Arc::ptr_eq(slot, last)).map_or(0, |(_, n)| *n)
            };
            self.last = slots.iter().map(|slot| (Arc::clone(slot), count(slot))).collect();
        }
        drop(slots);
        self.count()
    }

    fn count(&mut self) -> u64 {
        let (mut requests, mut callers, mut servers) = (0, Vec::new(), Vec::new());
        for (slot, last) in &mut self.last {
            let word = slot.load(Relaxed);
            let (count, caller, server) = unpack(word);
            if count != *last {
                requests += u64::from(count.wrapping_sub(*last));
                *last = count;
                callers.push(caller);
                servers.push(server);
            }
        }
        if requests > 0 {
            self.cpus.clear();
            let known = callers.into_iter().chain(servers).filter(|&cpu| cpu != UNKNOWN);
            for cpu in known {
                if !self.cpus.contains(&cpu) {
                    self.cpus.push(cpu);
                }
            }
        }
        requests
    }
}

fn unpack(word: u64) -> (u32, u16, u16) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([e, f, g, h]), u16::from_le_bytes([c, d]), u16::from_le_bytes([a, b]))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn open() -> Arc<Shared> {
        let shared = Arc::new(Shared::new(2));
        shared.gate.open(std::thread::current());
        shared
    }

    #[test]
    fn a_word_holds_what_was_packed() {
        for parts in [(0, 0, 0), (1, 2, 3), (u32::MAX, UNKNOWN, 7), (9, 7, UNKNOWN)] {
            assert_eq!(unpack(pack(parts.0, parts.1, parts.2)), parts);
        }
    }

    #[test]
    fn the_second_request_within_a_short_time_begins_a_burst() {
        let shared = open();
        let mut hook = Hook::new(&shared);
        hook.touch();
        assert!(!shared.gate.in_burst());
        std::thread::sleep(std::time::Duration::from_millis(2));
        hook.touch();
        assert!(!shared.gate.in_burst());
        // A busy machine may take a while between two of them, but not between all.
        (0..1_000).for_each(|_| hook.touch());
        assert!(shared.gate.in_burst());
    }

    #[test]
    fn no_burst_begins_before_its_time_or_while_the_gate_is_shut() {
        let shared = open();
        shared.not_before_ns.store(u64::MAX, Relaxed);
        let mut hook = Hook::new(&shared);
        (0..1_000).for_each(|_| hook.touch());
        assert!(!shared.gate.in_burst());
        shared.not_before_ns.store(0, Relaxed);
        shared.gate.shut();
        (0..1_000).for_each(|_| hook.touch());
        assert!(!shared.gate.in_burst());
    }

    #[test]
    fn the_keeper_sees_each_request_once_and_where_it_was() {
        let shared = open();
        let mut seen = Seen::default();
        assert_eq!(seen.look(&shared), 0);
        let (mut one, mut two) = (Hook::new(&shared), Hook::new(&shared));
        one.caller_on(5);
        (0..20).for_each(|_| one.touch());
        assert_eq!(seen.look(&shared), 20);
        assert_eq!(seen.cpus.first(), Some(&5));
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
        last.caller_on(0);
    }
}
