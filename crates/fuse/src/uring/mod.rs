//! FUSE over io_uring (Linux 6.14 and later).
//!
//! The kernel has a queue for each possible CPU and puts a request into the queue of the CPU that
//! its caller runs on. For each CPU a thread owns a ring with entries for that CPU's queue, and stays on
//! that CPU unless its caller is alone (`roaming.rs`); where CPUs are many, neighbours share a ring, and
//! its owner follows its caller between them. A reply and the
//! fetching of the next request are one system call. Requests whose handlers may wait go to helpers
//! (`handover.rs`). FORGET, INTERRUPT and notifications still use /dev/fuse, so its first queue is
//! served as well.
//!
//! Everything that can fail is tried before the handshake ([`Rings::new`]), apart from the
//! registration of the entries, which the kernel only accepts afterwards. If that fails, the kernel
//! sends all requests to /dev/fuse, and so the threads of the rings serve it instead.

mod commit;
mod deferral;
mod entries;
mod entry;
mod handover;
mod helper;
mod layout;
mod nudge;
mod occupancy;
mod passage;
mod place;
mod queue;
mod registration;
mod report;
mod ring;
mod roaming;
mod shared;
mod sharing;
mod slowness;
mod standing;
mod switches;
mod unavailable;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::BufferSize;
use crate::device::SharedFd;
use crate::transport::QueueConfig;
use layout::Layout;
use nudge::Askers;
use ring::Ring;

pub(crate) use handover::Handover;
pub(crate) use helper::{HelperQueue, Job};
pub(crate) use layout::parse_possible;
pub(crate) use queue::RingQueue;
pub(crate) use registration::Registration;
pub use report::RingReport;
pub use unavailable::UringUnavailable;

/// Most threads for rings. Beyond it, neighbouring CPUs share one.
const MAX_THREADS: usize = 64;

/// Threads that serve requests whose handlers may wait: as many as the session has threads, within
/// these bounds, and a [reserve](Rings::reserve) beside them.
const MIN_HELPERS: usize = 2;
const MAX_HELPERS: usize = 16;

/// One more, which requests that move data find free.
const FOR_DATA: usize = 1;

/// The rings of a session.
#[derive(Debug)]
pub(crate) struct Rings {
    queues: Vec<RingQueue>,
    registration: Arc<Registration>,
    report: RingReport,
}

impl Rings {
    /// Makes the rings, which are not connected yet.
    pub(crate) fn new(config: &QueueConfig) -> Result<Self, UringUnavailable> {
        UringUnavailable::check()?;
        // The kernel tears a ring down only when every thread that used it runs or has ended. The
        // thread that made it must not count: it may be waiting for a reply from this very mount.
        let config = *config;
        let maker = std::thread::Builder::new().name("tollgate-rings".into());
        let made = maker.spawn(move || Self::make(&config));
        let made = made.map_err(|error| UringUnavailable::system("clone", &error))?;
        made.join().unwrap_or(Err(UringUnavailable::Thread))
    }

    /// Helpers in reserve: the session's, if handlers may wait for ever.
    pub(crate) fn reserve(config: &QueueConfig) -> usize {
        if config.may_hang { config.reserve } else { 0 }
    }

    fn make(config: &QueueConfig) -> Result<Self, UringUnavailable> {
        let layout = layout(config.threads)?;
        let depth = config.ring_depth;
        let entries = layout.queues_total() * depth;
        let size = BufferSize::within(config.max_payload_bytes, config.buffer_bytes, entries);
        let needed = layout.queues.iter().map(|queues| Ring::locked_bytes(queues.len() * depth));
        let needed = needed.sum();
        let queues = layout.queues.iter().zip(&layout.cpus);
        let mut queues = queues
            .map(|(queues, cpus)| RingQueue::new(queues, cpus.clone(), depth, size, needed))
            .collect::<Result<Vec<_>, _>>()?;
        let helpers = config.threads.clamp(MIN_HELPERS, MAX_HELPERS) + FOR_DATA;
        let helpers = helpers + Self::reserve(config);
        if config.may_hang {
            queues.iter_mut().for_each(|queue| queue.hand_all_over(helpers));
        }
        let report = RingReport {
            threads: layout.threads(),
            helpers,
            queues: layout.queues_total(),
            entries_per_queue: depth,
            buffer_bytes: entries * size.keep_bytes,
        };
        Ok(Self { registration: Registration::new(queues.len()), queues, report })
    }

    /// The queues, connected to a mounted device.
    ///
    /// # Errors
    /// Errors of the system while descriptors are made.
    pub(crate) fn connect(
        mut self,
        device: &SharedFd,
        clone_fd: impl Fn() -> Arc<SharedFd>,
        handover: &Arc<Handover<Job>>,
        spin: Duration,
    ) -> io::Result<Connected> {
        let askers = Arc::new(Askers::new(device.0.as_fd()));
        for queue in &mut self.queues {
            let arrival = self.registration.arrival();
            queue.connect(device, clone_fd(), arrival, (Arc::clone(handover), spin))?;
        }
        let Self { mut queues, registration, report } = self;
        handover.reserve(report.queues * report.entries_per_queue, report.helpers);
        let rings: Arc<[_]> = queues.iter().map(|queue| Arc::clone(queue.shared())).collect();
        queues.iter_mut().for_each(|queue| queue.nudging(Arc::clone(&rings), &askers));
        let helper = || HelperQueue::new(Arc::clone(handover), Arc::clone(&rings));
        let helpers = (0..report.helpers).map(|_| helper()).collect();
        Ok(Connected { queues, helpers, registration, report })
    }
}

/// Rings that were connected to a device.
pub(crate) struct Connected {
    pub(crate) queues: Vec<RingQueue>,
    pub(crate) helpers: Vec<HelperQueue>,
    pub(crate) registration: Arc<Registration>,
    pub(crate) report: RingReport,
}

fn layout(max_threads: usize) -> Result<Layout, UringUnavailable> {
    let path = "/sys/devices/system/cpu/possible";
    let list = std::fs::read_to_string(path);
    let possible = list.ok().and_then(|list| parse_possible(&list));
    let possible = possible.ok_or_else(|| UringUnavailable::System {
        call: "reading /sys/devices/system/cpu/possible",
        error: "no list of CPUs".into(),
    })?;
    let allowed = rustix::thread::sched_getaffinity(None)
        .map_err(|errno| UringUnavailable::system("sched_getaffinity", &errno.into()))?;
    let allowed: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    Ok(Layout::new(possible, &allowed, max_threads.min(MAX_THREADS)))
}
