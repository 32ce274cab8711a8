//! Waiting until requests that were sent in the background have been served.
//!
//! A close returns before its RELEASE is served. A later request may overtake it: over /dev/fuse,
//! while the worker that received the RELEASE has not got a CPU; over io_uring, where each CPU has a
//! queue, in another queue. A lock that the close gave up then still seems to be held.

use std::fmt;
use std::sync::Arc;

use crate::reply::QueueState;

/// Requests that the kernel had sent at one moment: see [`Connection::passing`].
///
/// [`Connection::passing`]: crate::Connection::passing
pub struct Passing {
    /// Queues that have not told yet, and what they were asked.
    left: Vec<(Arc<QueueState>, u64)>,
}

impl Passing {
    pub(crate) fn ask(queues: &[Arc<QueueState>]) -> Self {
        let ask = |queue: &Arc<QueueState>| (Arc::clone(queue), queue.sink.0.ask_to_pass());
        Self { left: queues.iter().map(ask).collect() }
    }

    /// Whether all of them have been served, apart from those that wait for a lock or a disk.
    /// Never waits. While queues are full without a pause, or a handler hangs, this stays `false`:
    /// bound the time for which you ask. Over io_uring a handler that asks again and again in the
    /// thread of a ring is one that hangs: have another thread ask, which replies.
    pub fn is_over(&mut self) -> bool {
        self.left.retain(|(queue, asked)| !queue.sink.0.has_passed(*asked));
        self.left.is_empty()
    }
}

impl fmt::Debug for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing").field("queues", &self.left.len()).finish()
    }
}
