//! Spare entries of a ring, for queues whose entries are held by requests that wait.
//!
//! See `occupancy.rs` for when, and why a nudge is needed.

use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;

use zerocopy::IntoBytes;

use super::RingQueue;
use crate::abi::{self, NotifyRetrieve, OutHeader};
use crate::transport::ReplySink;
use crate::types::NodeId;
use crate::uring::commit::Missing;
use crate::uring::entry::Entry;
use crate::uring::nudge::on_cpu;
use crate::uring::occupancy::Need;

/// Marks the ids of requests that a nudge makes. The kernel counts its own ids from 2 on; the two
/// highest bits have other meanings.
const NUDGE: u64 = 1 << 61;

impl RingQueue {
    /// The request in entry `index` waits: its queue may need a spare entry.
    pub(super) fn hold(&mut self, index: usize) {
        let Need { spare, nudge } = self.occupancy.hold(index);
        let queue = self.shared.entry(index).queue;
        if spare {
            self.add_spare(queue);
        }
        if nudge {
            self.nudge(queue);
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
        self.handed.push(None);
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
        self.occupancy.renewed(index);
        self.push_register(index);
        let submitted = self.ring.submit();
        tracing::debug!(index, ?submitted, "registered anew");
        self.nudge(self.shared.entry(index).queue);
    }

    /// Makes the kernel put a request into `queue`: it sends one to the queue of the CPU that asks.
    /// When that is answered, the kernel looks for others that wait in the queue.
    fn nudge(&mut self, queue: u16) {
        if on_cpu(queue, || self.ask_for_request(queue)).is_ok() {
            return;
        }
        let Some(askers) = &self.askers else { return };
        if let Err(error) = askers.ask(queue) {
            // Also where a CPU is offline, whose queue gets no request either.
            tracing::debug!(%error, queue, "a queue was not nudged");
        }
    }

    /// Asks for no page at all of the cache of a file that the kernel knows.
    fn ask_for_request(&mut self, queue: u16) -> io::Result<()> {
        let entries = self.shared.entries.iter().enumerate();
        let held = entries.filter(|(index, _)| self.occupancy.is_held(*index));
        // SAFETY: this is the owner, and what is held was received and not submitted.
        let held = held.filter_map(|(_, entry)| unsafe { entry.regular_file() });
        let opened = self.rings.iter().map(|ring| ring.opened.load(Ordering::Relaxed));
        let opened = opened.filter(|&file| file != 0);
        let mut asked = Err(io::ErrorKind::NotFound.into());
        for nodeid in held.take(1).chain(opened).chain([NodeId::ROOT.0]) {
            // Several may be under way in one queue, where the kernel finds a request by its id.
            self.nudges = self.nudges.wrapping_add(1);
            let unique = NUDGE | (u64::from(self.nudges) << 17) | (u64::from(queue) << 1);
            let body = NotifyRetrieve { unique, nodeid, offset: 0, size: 0, padding: 0 };
            let len = size_of::<OutHeader>() + size_of::<NotifyRetrieve>();
            let len = u32::try_from(len).unwrap_or(0);
            let header = OutHeader { len, error: abi::notify::RETRIEVE, unique: 0 };
            let parts = [header.as_bytes(), body.as_bytes()].map(IoSlice::new);
            asked = self.device_fd().commit(&parts);
            if asked.is_ok() {
                break;
            }
        }
        asked
    }

    /// Ends the request that a nudge made.
    pub(super) fn answer_nudge(&mut self, index: usize, error: i32) {
        let entry = self.shared.entry(index);
        // SAFETY: this is the owner, and the entry has just been received. It is submitted by
        // `queue_commits` at the earliest: the results are gone by then.
        unsafe {
            let len = entry.received_len();
            self.stale[index] = self.stale[index].max(len);
            entry.begin(len, self.stale[index], Missing::REPLY);
        }
        let unique = entry.unique();
        let header = OutHeader { len: 16, error, unique };
        if self.shared.claim(unique) == Some(index) {
            let replied = self.shared.reply(index, &[IoSlice::new(header.as_bytes())]);
            debug_assert!(replied.is_ok(), "a header alone is too long for an entry");
        }
    }
}
