//! A helper: serves requests whose handlers may wait, in place of the owner of their ring.
#![expect(unsafe_code, reason = "ring entries are shared with the kernel and between threads")]

use std::io::{self, IoSlice};
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::abi::OutHeader;
use crate::buffer::ReplyArea;
use crate::transport::{NoObserver, Queue, ReceiveError, Received, ReplySink};
use crate::uring::commit::Missing;
use crate::uring::handover::{Handover, Length, Taken};
use crate::uring::shared::RingShared;
use crate::uring::slowness::Handler;

/// A request in the hands of a helper, or on its way there.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ring: Arc<RingShared>,
    pub(crate) entry: usize,
    /// Bytes of the entry's payload that may hold something of earlier requests.
    pub(crate) stale: usize,
    /// It was not known to wait.
    pub(crate) quick: bool,
}

/// One helper's end.
#[derive(Debug)]
pub(crate) struct HelperQueue {
    handover: Arc<Handover<Job>>,
    rings: Arc<[Arc<RingShared>]>,
    /// The request being served, and where its reply area starts in the payload.
    current: Option<(Job, Length, usize)>,
    area: ReplyArea,
    observer: NoObserver,
    handler: Handler,
}

impl HelperQueue {
    /// A helper of all `rings`.
    pub(crate) fn new(handover: Arc<Handover<Job>>, rings: Arc<[Arc<RingShared>]>) -> Self {
        let area = ReplyArea::new(0);
        let handler = Handler::default();
        Self { handover, rings, current: None, area, observer: NoObserver, handler }
    }
}

impl Queue for HelperQueue {
    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        let Taken::Job(job, length) = self.handover.take() else {
            return Err(ReceiveError::Retry);
        };
        let (job, _, reply_at) = self.current.insert((job, length, 0));
        let entry = job.ring.entry(job.entry);
        // SAFETY: the owner received the entry and gave it to this thread alone. It is submitted
        // after `finish`, which needs `self` exclusively: the results are gone by then.
        let (raw, area, at) = unsafe {
            let len = entry.received_len();
            entry.begin(len, job.stale, Missing::REPLY_AND_HANDLER)
        };
        *reply_at = at;
        self.area = area;
        if job.quick {
            self.handler.begins(self.handover.slowness());
        }
        Ok(Received { raw, area: &mut self.area, observer: &mut self.observer })
    }

    fn finish(&mut self, handler_ns: u64) {
        let Some((job, length, reply_at)) = self.current.take() else { return };
        self.handover.served(length);
        if job.quick {
            self.handler.ends(self.handover.slowness(), handler_ns);
        }
        // SAFETY: this helper began the request, and takes it out of `current` here.
        if unsafe { job.ring.entry(job.entry).handler_returned(reply_at + self.area.used()) } {
            job.ring.pass_on(job.entry);
        } else {
            job.ring.served_but_for_the_reply();
        }
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        Arc::new(HelperSink(Arc::clone(&self.rings)))
    }
}

/// Finds the ring that a reply belongs to. Its owner closes the connection and counts.
struct HelperSink(Arc<[Arc<RingShared>]>);

impl ReplySink for HelperSink {
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let header = parts.first().and_then(|part| OutHeader::read_from_prefix(part).ok());
        let (header, _) = header.ok_or(Errno::INVAL)?;
        let claimed = |ring: &Arc<RingShared>| {
            ring.claim(header.unique).map(|entry| ring.reply(entry, parts))
        };
        self.0.iter().find_map(claimed).unwrap_or(Err(Errno::NOENT.into()))
    }
}
