//! How a session is to run.

use std::sync::Arc;
use std::time::Duration;

use tollgate_haltpoll::KeepAwake;

use crate::init::{InitFlags, Proposal};
use crate::mounted::TransportChoice;
use crate::registrar::Registrar;
use crate::session::error::SessionError;
use crate::transport::QueueConfig;

/// Runs in each worker thread before its first request, with the worker's index.
pub type ThreadHook = Arc<dyn Fn(usize) + Send + Sync>;

/// How a session is to run.
#[derive(Clone)]
pub struct SessionConfig {
    /// Worker threads, each with a queue; at least 1, at most [`SessionConfig::MAX_THREADS`].
    pub threads: usize,
    /// Worker threads beside those, which serve only while others are blocked in their handlers.
    /// At most [`SessionConfig::MAX_THREADS`]; without [`SessionConfig::spin`] none.
    pub reserve: usize,
    /// Handlers may wait for ever, as the lower file system is another machine's or another
    /// process's. With io_uring, all requests go to helpers then, since a ring's owner cannot be
    /// replaced.
    pub may_hang: bool,
    /// CPUs that worker `i` may run on; `None`, or no element, leaves it to the scheduler.
    pub cpus: Vec<Option<Vec<usize>>>,
    /// Capabilities to ask for; the transport adds those that it needs.
    pub want: InitFlags,
    /// How deep a backing file's file system may be stacked: 1, or 2 over a stacked one. 0: no
    /// passthrough.
    pub max_stack_depth: u32,
    /// Most readahead in bytes; the kernel has its own limit.
    pub max_readahead: u32,
    /// Largest payload of a WRITE in bytes.
    pub max_write: u32,
    /// Most requests in flight that no process waits for (readahead, RELEASE); more of them wait in
    /// the kernel.
    pub max_background: u16,
    /// From how many of those on the kernel counts the device as congested.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds.
    pub time_gran_ns: u32,
    /// Which transport to use.
    pub transport: TransportChoice,
    /// Bytes of all buffers together that may stay resident between requests. Each buffer keeps at
    /// least 64 KiB of what it used.
    pub buffer_bytes: usize,
    /// With io_uring: requests of each CPU's queue that can be in the server's hands at a time,
    /// detached ones included; at least 1, at most [`SessionConfig::MAX_RING_DEPTH`]. More of them
    /// wait in the kernel.
    pub ring_depth: usize,
    /// With io_uring and passthrough, unless [`SessionConfig::may_hang`]: closes of files that follow
    /// each other quickly wait in the kernel until the next file is opened, or for some milliseconds,
    /// so that they wake no worker. Then one
    /// request that no process waits for is in flight for each CPU, whatever
    /// [`SessionConfig::max_background`] says, and [`InitFlags::ASYNC_READ`] and
    /// [`InitFlags::ASYNC_DIO`] are not used, which only files without passthrough would.
    pub defer_releases: bool,
    /// How long a worker polls for the next request before it sleeps; zero: not at all.
    pub spin: Duration,
    /// Learns of every request, and keeps CPUs from halting while they come in bursts.
    pub keep_awake: Option<Arc<KeepAwake>>,
    /// Registers backing files instead of this process, which need not be privileged then.
    pub registrar: Option<Arc<dyn Registrar>>,
    /// Runs in each worker thread first.
    pub on_thread_start: Option<ThreadHook>,
}

impl SessionConfig {
    /// Most worker threads. Each has two buffers of [`SessionConfig::max_write`] and a page.
    pub const MAX_THREADS: usize = 256;

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
        let max = Self::MAX_THREADS;
        if self.threads == 0 || self.threads > max {
            let (field, value) = ("threads", self.threads.to_string());
            return Err(SessionError::Config { field, value, allowed: format!("from 1 to {max}") });
        }
        if self.reserve > max {
            let (field, value) = ("reserve", self.reserve.to_string());
            return Err(SessionError::Config { field, value, allowed: format!("from 0 to {max}") });
        }
        let max = Self::MAX_RING_DEPTH;
        if self.ring_depth == 0 || self.ring_depth > max {
            let (field, value) = ("ring_depth", self.ring_depth.to_string());
            return Err(SessionError::Config { field, value, allowed: format!("from 1 to {max}") });
        }
        if self.max_stack_depth > 2 {
            let (field, value) = ("max_stack_depth", self.max_stack_depth.to_string());
            return Err(SessionError::Config { field, value, allowed: "0, 1 or 2".into() });
        }
        Ok(())
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
