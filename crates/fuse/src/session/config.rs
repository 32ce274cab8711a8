//! How a session is to run.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::CpuSet;
use tollgate_haltpoll::KeepAwake;

use crate::init::{InitFlags, Proposal};
use crate::mounted::TransportChoice;
use crate::registrar::Registrar;
use crate::session::error::SessionError;
use crate::transport::QueueConfig;
use crate::uring::parse_possible;

/// Runs in each worker thread before its first request, with the worker's index.
pub type ThreadHook = Arc<dyn Fn(usize) + Send + Sync>;

/// How a session is to run.
///
/// The defaults serve any file system, with one thread that sleeps between requests. A file system that
/// waits for anything, or has several callers, wants more [`SessionConfig::threads`]; one that is asked
/// often wants to [`SessionConfig::spin`].
#[derive(Clone)]
pub struct SessionConfig {
    /// Worker threads, each with a queue; at least 1, at most [`SessionConfig::MAX_THREADS`]. Default: 1.
    ///
    /// One worker receives nothing while its handler runs: no other request, and no INTERRUPT, so that a
    /// caller that was killed waits until the handler returns
    /// ([`Reply::interrupted`](crate::Reply::interrupted)). Over io_uring there are further threads for
    /// what waits, however few are asked for.
    pub threads: usize,
    /// Worker threads beside those, which serve only while others are blocked in their handlers.
    /// At most [`SessionConfig::MAX_THREADS`]; without [`SessionConfig::spin`] none. Default: 0.
    ///
    /// With io_uring they are there only if handlers [may hang](SessionConfig::may_hang), and are helpers
    /// then. Without that, a handler that waits for ever, in an operation not known to wait, holds up
    /// the callers of its CPU there, while over `/dev/fuse` one of the reserve takes its place. To hand
    /// every request to a helper costs each a wake-up, which is why it is not done for a reserve alone.
    pub reserve: usize,
    /// Default: no. Handlers may wait for ever, as the lower file system is another machine's or another
    /// process's. With io_uring, all requests go to helpers then, since a ring's owner cannot be
    /// replaced.
    pub may_hang: bool,
    /// CPUs that worker `i` may run on; `None`, or no element, leaves it to the scheduler, and an
    /// element of no worker is not used. Default: none. Each set has a CPU or more, all of which this machine can
    /// have. If none of a set is online, the worker runs elsewhere, with a warning. With io_uring, a
    /// ring's owner runs on the CPUs of its ring, whatever this says.
    pub cpus: Vec<Option<Vec<usize>>>,
    /// Capabilities to ask for; the transport adds those that it needs. Default:
    /// [`InitFlags::SUGGESTED`].
    pub want: InitFlags,
    /// How deep a backing file's file system may be stacked: 1, or 2 over a stacked one. 0: no
    /// passthrough. Default: 2.
    pub max_stack_depth: u32,
    /// Most readahead in bytes; the kernel has its own limit. Default: 1 MiB.
    pub max_readahead: u32,
    /// Largest payload of a WRITE in bytes; at most [`SessionConfig::MAX_WRITE`], and 4,096 is used
    /// for less. The kernel has its own limit (`fs.fuse.max_pages_limit`, 1 MiB as a rule). Default: 1 MiB.
    pub max_write: u32,
    /// Most requests in flight that no process waits for (readahead, RELEASE); more of them wait in
    /// the kernel. At least 1. Default: 64.
    pub max_background: u16,
    /// From how many of those on the kernel counts the device as congested; at least 1. Where it is
    /// more than [`SessionConfig::max_background`], that holds. Default: 48.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds; from 1 to 1,000,000,000. Default: 1.
    pub time_gran_ns: u32,
    /// Which transport to use. Default: [`TransportChoice::Auto`].
    pub transport: TransportChoice,
    /// Bytes of all buffers together that may stay resident between requests. Each buffer keeps at
    /// least 64 KiB of what it used. Default: 4 MiB.
    pub buffer_bytes: usize,
    /// With io_uring: requests of each CPU's queue that can be in the server's hands at a time,
    /// detached ones included; at least 1, at most [`SessionConfig::MAX_RING_DEPTH`]. More of them
    /// wait in the kernel. Default: 4.
    pub ring_depth: usize,
    /// With io_uring and passthrough, unless [`SessionConfig::may_hang`]: closes of files that follow
    /// each other quickly wait in the kernel until the next file is opened, or for some milliseconds,
    /// so that they wake no worker. Then one
    /// request that no process waits for is in flight for each CPU, whatever
    /// [`SessionConfig::max_background`] says, and [`InitFlags::ASYNC_READ`] and
    /// [`InitFlags::ASYNC_DIO`] are not used, which only files without passthrough would. Default: no.
    pub defer_releases: bool,
    /// How long a worker polls for the next request before it sleeps; zero (the default): not at all,
    /// and the workers are no leader and followers.
    pub spin: Duration,
    /// Learns of every request, and keeps CPUs from halting while they come in bursts. Default: none.
    pub keep_awake: Option<Arc<KeepAwake>>,
    /// Registers backing files instead of this process, which need not be privileged then.
    /// Default: none.
    pub registrar: Option<Arc<dyn Registrar>>,
    /// Runs in each worker thread first. [`Session::start`](crate::Session::start) waits until it has
    /// returned in all of them, and fails if it panics in one. Default: none.
    pub on_thread_start: Option<ThreadHook>,
}

impl SessionConfig {
    /// Most worker threads. Each has two buffers of [`SessionConfig::max_write`] and a page.
    pub const MAX_THREADS: usize = 256;

    /// Most bytes of [`SessionConfig::max_write`]: the kernel counts the pages of a request in 16 bits.
    pub const MAX_WRITE: u32 = 65_535 * 4096;

    /// A second, the coarsest granularity that the kernel takes.
    const MAX_TIME_GRAN_NS: u32 = 1_000_000_000;

    /// Most ring entries for each CPU's queue.
    pub const MAX_RING_DEPTH: usize = 64;

    /// How to make queues.
    pub(crate) fn queues(&self) -> QueueConfig {
        QueueConfig {
            threads: self.threads,
            reserve: if self.spin.is_zero() { 0 } else { self.reserve },
            may_hang: self.may_hang,
            max_payload_bytes: self.max_write as usize,
            buffer_bytes: self.buffer_bytes,
            ring_depth: self.ring_depth,
            defer_releases: self.defers_releases(),
        }
    }

    /// Helpers serve everything where handlers may wait for ever, and wake the owner by each reply.
    fn defers_releases(&self) -> bool {
        self.defer_releases && !self.may_hang
    }

    pub(crate) fn check(&self) -> Result<(), SessionError> {
        within("threads", self.threads, 1..=Self::MAX_THREADS)?;
        within("reserve", self.reserve, 0..=Self::MAX_THREADS)?;
        within("ring_depth", self.ring_depth, 1..=Self::MAX_RING_DEPTH)?;
        // The kernel would take 0 for its own defaults, and say nothing.
        within("max_background", self.max_background, 1..=u16::MAX)?;
        within("congestion_threshold", self.congestion_threshold, 1..=u16::MAX)?;
        within("time_gran_ns", self.time_gran_ns, 1..=Self::MAX_TIME_GRAN_NS)?;
        if self.max_write > Self::MAX_WRITE {
            let (value, allowed) = (self.max_write, format!("at most {}", Self::MAX_WRITE));
            return Err(SessionError::config("max_write", &value, allowed));
        }
        if self.max_stack_depth > 2 {
            let allowed = "0, 1 or 2".into();
            return Err(SessionError::config("max_stack_depth", &self.max_stack_depth, allowed));
        }
        let possible = possible_cpus();
        self.cpus.iter().flatten().try_for_each(|cpus| check_cpus(cpus, possible))
    }

    /// What to propose in the handshake, `of_transport` included.
    pub(crate) fn proposal(&self, of_transport: InitFlags) -> Proposal {
        Proposal {
            want: (self.want - InitFlags::OVER_IO_URING) | of_transport,
            max_stack_depth: self.max_stack_depth,
            max_readahead: self.max_readahead,
            max_write: self.max_write,
            max_background: self.max_background,
            congestion_threshold: self.congestion_threshold,
            time_gran_ns: self.time_gran_ns,
            defer_releases: self.defers_releases(),
        }
    }
}

fn within<T: Copy + PartialOrd + Display>(
    field: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), SessionError> {
    if range.contains(&value) {
        return Ok(());
    }
    let allowed = format!("from {} to {}", range.start(), range.end());
    Err(SessionError::config(field, &value, allowed))
}

/// One that is offline may come back; one that the machine cannot have is a mistake.
fn check_cpus(cpus: &[usize], possible: usize) -> Result<(), SessionError> {
    if cpus.is_empty() {
        return Err(SessionError::config("cpus", &"[]", "None, or a CPU or more".into()));
    }
    match cpus.iter().find(|&&cpu| cpu >= possible) {
        Some(cpu) => {
            let allowed = format!("CPUs of this machine, from 0 to {}", possible - 1);
            Err(SessionError::config("cpus", cpu, allowed))
        }
        None => Ok(()),
    }
}

/// How many CPUs this machine can have.
fn possible_cpus() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    let possible = list.ok().and_then(|list| parse_possible(&list)).map(usize::from);
    possible.unwrap_or(CpuSet::MAX_CPU).clamp(1, CpuSet::MAX_CPU)
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            reserve: 0,
            may_hang: false,
            cpus: Vec::new(),
            want: InitFlags::SUGGESTED,
            max_stack_depth: 2,
            max_readahead: 1 << 20,
            max_write: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_gran_ns: 1,
            transport: TransportChoice::default(),
            buffer_bytes: 4 << 20,
            ring_depth: 4,
            defer_releases: false,
            spin: Duration::ZERO,
            keep_awake: None,
            registrar: None,
            on_thread_start: None,
        }
    }
}

impl std::fmt::Debug for SessionConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionConfig")
            .field("threads", &self.threads)
            .field("reserve", &self.reserve)
            .field("cpus", &self.cpus)
            .field("want", &self.want)
            .field("max_write", &self.max_write)
            .field("transport", &self.transport)
            .field("spin", &self.spin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_not_deferred_where_helpers_serve_everything() {
        for may_hang in [false, true] {
            let config =
                SessionConfig { defer_releases: true, may_hang, ..SessionConfig::default() };
            assert_eq!(config.queues().defer_releases, !may_hang);
            assert_eq!(config.proposal(InitFlags::empty()).defer_releases, !may_hang);
        }
    }
}
