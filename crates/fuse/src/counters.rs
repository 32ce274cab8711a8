//! Counters of a connection. Each queue counts on cache lines of its own; a snapshot adds them up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::abi::opcode;
use crate::latency::WorkerLatencies;

const KINDS: usize = opcode::LIMIT as usize + 1;

/// One queue's counters.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct QueueCounters {
    /// Written by the queue's own thread alone.
    requests: [AtomicU64; KINDS],
    pub(crate) malformed: AtomicU64,
    pub(crate) undelivered: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    pub(crate) interrupts_unknown: AtomicU64,
    pub(crate) forgets: AtomicU64,
    pub(crate) resent: AtomicU64,
    /// Written by the queue's own thread alone.
    pub(crate) latencies: WorkerLatencies,
    origin: Instant,
    /// When the present handler began, in nanoseconds since `origin`; 0 without one. Written by the
    /// queue's own thread alone.
    began_ns: AtomicU64,
}

impl Default for QueueCounters {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; KINDS],
            malformed: AtomicU64::new(0),
            undelivered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            interrupts_unknown: AtomicU64::new(0),
            forgets: AtomicU64::new(0),
            resent: AtomicU64::new(0),
            latencies: WorkerLatencies::default(),
            origin: Instant::now(),
            began_ns: AtomicU64::new(0),
        }
    }
}

impl QueueCounters {
    /// A handler begins. For the queue's own thread.
    pub(crate) fn begins(&self, now: Instant) {
        let since = now.duration_since(self.origin).as_nanos();
        self.began_ns.store(u64::try_from(since).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// The handler returned.
    pub(crate) fn ended(&self) {
        self.began_ns.store(0, Ordering::Relaxed);
    }

    /// How long the present handler has been running.
    pub(crate) fn busy(&self) -> Option<Duration> {
        let began = self.began_ns.load(Ordering::Relaxed);
        let running = || self.origin.elapsed().saturating_sub(Duration::from_nanos(began));
        (began != 0).then(running)
    }

    /// RequestCounts a request. For the queue's own thread: no read-modify-write is needed.
    pub(crate) fn count(&self, code: u32) {
        let kind = code.min(opcode::LIMIT) as usize;
        let cell = &self.requests[kind];
        cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Adds to a counter that several threads may write.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// RequestCounts since the connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    requests: [u64; KINDS],
    /// Requests that could not be decoded.
    pub malformed: u64,
    /// Replies that the kernel no longer wanted, or refused; the caller of one that was refused got
    /// `EIO`.
    pub undelivered: u64,
    /// Replies that were dropped unsent and became EIO.
    pub dropped: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// INTERRUPT requests.
    pub interrupts: u64,
    /// INTERRUPT requests for which no request was found.
    pub interrupts_unknown: u64,
    /// Inodes forgotten (a BATCH_FORGET holds many).
    pub forgets: u64,
    /// Requests that the kernel sent a second time.
    pub resent: u64,
}

impl RequestCounts {
    pub(crate) fn sum<'a>(queues: impl Iterator<Item = &'a QueueCounters>) -> Self {
        let mut sum = Self {
            requests: [0; KINDS],
            malformed: 0,
            undelivered: 0,
            dropped: 0,
            panics: 0,
            interrupts: 0,
            interrupts_unknown: 0,
            forgets: 0,
            resent: 0,
        };
        for queue in queues {
            sum.add(queue);
        }
        sum
    }

    fn add(&mut self, queue: &QueueCounters) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (total, one) in self.requests.iter_mut().zip(&queue.requests) {
            *total += get(one);
        }
        self.malformed += get(&queue.malformed);
        self.undelivered += get(&queue.undelivered);
        self.dropped += get(&queue.dropped);
        self.panics += get(&queue.panics);
        self.interrupts += get(&queue.interrupts);
        self.interrupts_unknown += get(&queue.interrupts_unknown);
        self.forgets += get(&queue.forgets);
        self.resent += get(&queue.resent);
    }

    /// Requests of one operation code ([`crate::abi::opcode`]).
    #[must_use]
    pub fn of(&self, code: u32) -> u64 {
        self.requests[code.min(opcode::LIMIT) as usize]
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.requests.iter().sum()
    }

    /// Operations that were asked for at least once: the kernel's name and how often.
    pub fn by_operation(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let named = |(code, &n): (usize, &u64)| (opcode::name(u32::try_from(code).unwrap_or(0)), n);
        self.requests.iter().enumerate().filter(|&(_, &n)| n > 0).map(named)
    }
}
