//! Spare entries of a ring, for queues whose entries are held by requests that wait.
//!
//! See `occupancy.rs` for when, and why a nudge is needed.

use std::io::{self, IoSlice};

use rustix::thread::CpuSet;
use zerocopy::IntoBytes;

use super::RingQueue;
use crate::abi::{self, NotifyRetrieve, OutHeader};
use crate::transport::ReplySink;
use crate::types::NodeId;
use crate::uring::commit::Missing;
use crate::uring::entry::Entry;
use crate::uring::occupancy::Need;

/// Marks the ids of requests that a nudge makes. The kernel counts its own ids from 2 on; the two
/// highest bits have other meanings.
const NUDGE: u64 = 1 << 61;

impl RingQueue {
    /// The request in entry `index` waits: its queue may need a spare entry.
    pub(super) fn hold(&mut self, index: usize) {
        if let Need::Spare { queue, nudge } = self.occupancy.hold(index) {
            self.add_spare(queue);
            if nudge {
                self.nudge(queue);
            }
        }
    }

    fn add_spare(&mut self, queue: u16) {
        let entries = &self.shared.entries;
        let most = entries.most();
        let entry = Entry::new(queue, self.size.payload_bytes());
        let Some(index) = entry.and_then(|entry| entries.add(entry)) else {
            tracing::warn!(queue, most, "no spare ring entry: further requests of this CPU wait");
            return;
        };
        self.vectors.push(self.shared.entry(index).io_vectors());
        self.stale.push(0);
        self.handed.push(false);
        self.standing.add_spare(queue);
        self.occupancy.add(queue);
        self.push_register(index);
        // A failure is transient, and the next submission makes up for it.
        let submitted = self.ring.submit();
        tracing::debug!(queue, index, ?submitted, "a ring has a spare entry");
    }

    /// Registers an entry whose reply was refused. Requests may have been waiting for it.
    pub(super) fn register_anew(&mut self, index: usize) {
        if self.ring.room() == 0 {
            let submitted = self.ring.submit();
            tracing::debug!(?submitted, "room for a registration");
        }
        self.push_register(index);
        let submitted = self.ring.submit();
        tracing::debug!(index, ?submitted, "registered anew");
        self.nudge(self.shared.entry(index).queue);
    }

    /// Makes the kernel put a request into `queue`: it sends one to the queue of the CPU that asks.
    /// When that is answered, the kernel looks for others that wait in the queue.
    fn nudge(&self, queue: u16) {
        if let Err(error) = on_cpu(queue, || self.ask_for_request(queue)) {
            // A CPU that is offline, whose queue gets no request either.
            tracing::debug!(%error, queue, "a queue was not nudged");
        }
    }

    /// Asks for no page at all of the root directory's cache.
    fn ask_for_request(&self, queue: u16) -> io::Result<()> {
        let unique = NUDGE | (u64::from(queue) << 1);
        let nodeid = NodeId::ROOT.0;
        let body = NotifyRetrieve { unique, nodeid, offset: 0, size: 0, padding: 0 };
        let len = u32::try_from(size_of::<OutHeader>() + size_of::<NotifyRetrieve>()).unwrap_or(0);
        let header = OutHeader { len, error: abi::notify::RETRIEVE, unique: 0 };
        let parts = [header.as_bytes(), body.as_bytes()].map(IoSlice::new);
        self.device_fd().commit(&parts)
    }

    /// Ends the request that a nudge made.
    pub(super) fn answer_nudge(&mut self, index: usize) {
        let entry = self.shared.entry(index);
        // SAFETY: this is the owner, and the entry has just been received. It is submitted by
        // `queue_commits` at the earliest: the results are gone by then.
        unsafe {
            let len = entry.received_len();
            self.stale[index] = self.stale[index].max(len);
            entry.begin(len, self.stale[index], Missing::REPLY);
        }
        let unique = entry.unique();
        let header = OutHeader { len: 16, error: 0, unique };
        if self.shared.claim(unique) == Some(index) {
            let replied = self.shared.reply(index, &[IoSlice::new(header.as_bytes())]);
            debug_assert!(replied.is_ok(), "a header alone is too long for an entry");
        }
    }
}

/// Runs `work` on `cpu`, and lets this thread run where it could before.
fn on_cpu(cpu: u16, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = rustix::thread::sched_getaffinity(None)?;
    let mut there = CpuSet::new();
    if usize::from(cpu) >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::Unsupported.into());
    }
    there.set(usize::from(cpu));
    rustix::thread::sched_setaffinity(None, &there)?;
    let done = work();
    // On failure the thread stays on a CPU that it may use.
    let _ = rustix::thread::sched_setaffinity(None, &before);
    done
}
