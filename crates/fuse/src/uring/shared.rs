//! What the owner of a ring shares with those who send replies.
#![expect(unsafe_code, reason = "ring entries are shared with the kernel and between threads")]

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::abi::OutHeader;
use crate::device::SharedFd;
use crate::sync::this_thread;
use crate::transport::{ReplySink, SinkBox};
use crate::uring::commit::CommitQueue;
use crate::uring::entries::Entries;
use crate::uring::entry::Entry;
use crate::uring::passage::Passage;

/// What the owner of a ring and the senders of replies share.
#[derive(Debug)]
pub(crate) struct RingShared {
    pub(super) entries: Entries,
    pub(super) commits: CommitQueue,
    /// Wakes the owner.
    pub(super) eventfd: OwnedFd,
    /// The owner's [`this_thread`]; 0 before it has registered the ring.
    pub(super) owner: AtomicUsize,
    /// The entry received last: most replies are for it.
    pub(super) current: AtomicUsize,
    /// The regular file opened last; 0 if there was none.
    pub(super) opened: AtomicU64,
    /// Requests so far, as the owner counts them.
    pub(super) requests: AtomicU64,
    /// Replies that the kernel refused after `commit` had returned.
    pub(super) undelivered: AtomicU64,
    pub(super) passage: Passage,
    closed: AtomicBool,
    /// Where replies go to requests that came from /dev/fuse: all of them if the ring could not be
    /// registered.
    pub(super) device: OnceLock<Arc<SharedFd>>,
    /// The sink of the queue of /dev/fuse that the owner serves instead, if the ring could not be
    /// registered.
    instead: OnceLock<SinkBox>,
}

/// A mark of what [`RingShared::ask_to_pass`] returns after the fall-back, when another one is asked.
const ASKED_INSTEAD: u64 = 1 << 63;

impl RingShared {
    /// `entries`, which `eventfd` wakes the owner for.
    pub(crate) fn new(entries: Entries, eventfd: OwnedFd) -> Self {
        Self {
            commits: CommitQueue::new(entries.most()),
            entries,
            eventfd,
            owner: AtomicUsize::new(0),
            current: AtomicUsize::new(0),
            opened: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            undelivered: AtomicU64::new(0),
            passage: Passage::default(),
            closed: AtomicBool::new(false),
            device: OnceLock::new(),
            instead: OnceLock::new(),
        }
    }

    pub(crate) fn entry(&self, index: usize) -> &Entry {
        self.entries.get(index)
    }

    /// Admits the caller to the reply of a request of this ring.
    pub(crate) fn claim(&self, unique: u64) -> Option<usize> {
        let current = self.current.load(Ordering::Relaxed);
        if self.entry(current).claim(unique) {
            return Some(current);
        }
        self.entries.iter().position(|entry| entry.claim(unique))
    }

    fn wake(&self) {
        // Fails only if the counter is at its maximum: then the owner is woken anyway.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Records the reply that the caller claimed, and passes the entry on if nothing else is missing.
    pub(crate) fn reply(&self, index: usize, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let entry = self.entry(index);
        // SAFETY: the reply was claimed, and the step is made next.
        let finished = unsafe { entry.finish(parts) };
        if entry.replied() {
            self.pass_on(index);
        }
        finished
    }

    /// Passes a finished entry to the owner.
    pub(crate) fn pass_on(&self, index: usize) {
        self.commits.push(index);
        if self.owner.load(Ordering::Relaxed) != this_thread() {
            self.wake();
        }
    }

    /// A helper has served a request whose reply follows later, or has just been passed on by another
    /// thread. It may be what the owner has left to serve before it answers `passage`.
    pub(crate) fn served_but_for_the_reply(&self) {
        if self.passage.is_open() {
            self.wake();
        }
    }

    /// All replies go to /dev/fuse from now on. The owner is about to serve the queue of this sink,
    /// and has served nothing yet.
    pub(crate) fn fall_back(&self, sink: Arc<dyn ReplySink>) {
        debug_assert!(self.device.get().is_some(), "the ring was not connected");
        let first = self.instead.set(SinkBox(sink)).is_ok();
        debug_assert!(first, "a ring is given up once");
    }

    fn commit_to_device(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.device.get().ok_or(Errno::NOENT)?.commit(parts)
    }
}

impl ReplySink for RingShared {
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.instead.get().is_some() {
            return self.commit_to_device(parts);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(Errno::NOTCONN.into());
        }
        let header = parts.first().and_then(|part| OutHeader::read_from_prefix(part).ok());
        let (header, _) = header.ok_or(Errno::INVAL)?;
        let Some(index) = self.claim(header.unique) else { return self.commit_to_device(parts) };
        self.reply(index, parts)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(device) = self.device.get() {
            device.close();
        }
    }

    fn ask_to_pass(&self) -> u64 {
        if let Some(SinkBox(sink)) = self.instead.get() {
            return sink.ask_to_pass() | ASKED_INSTEAD;
        }
        let asked = self.passage.ask();
        self.wake();
        asked
    }

    fn has_passed(&self, asked: u64) -> bool {
        if self.closed.load(Ordering::Relaxed) {
            return true;
        }
        match self.instead.get() {
            Some(SinkBox(sink)) if asked & ASKED_INSTEAD != 0 => {
                sink.has_passed(asked & !ASKED_INSTEAD)
            }
            // Asked before the fall-back, when the owner held no request.
            Some(_) => true,
            None => self.passage.has_passed(asked),
        }
    }

    fn undelivered(&self) -> u64 {
        self.undelivered.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;
    use crate::Device;
    use crate::device::DeviceTransport;

    /// A queue of /dev/fuse, and whether it has passed.
    struct Other(AtomicBool);

    impl ReplySink for Other {
        fn commit(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
            Ok(())
        }

        fn ask_to_pass(&self) -> u64 {
            3
        }

        fn has_passed(&self, asked: u64) -> bool {
            assert_eq!(asked, 3, "what it was asked");
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens a device and an eventfd")]
    fn a_ring_that_fell_back_has_passed_when_the_queue_in_its_place_has() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let ring = RingShared::new(Entries::new(vec![Entry::new(0, 4096).unwrap()], 0), eventfd);
        let device = Device::from_fd(File::open("/dev/null").unwrap().into());
        ring.device.set(DeviceTransport::new(device, Duration::ZERO).main()).unwrap();
        let before = ring.ask_to_pass();
        assert!(!ring.has_passed(before), "nobody has answered");
        let other = Arc::new(Other(AtomicBool::new(false)));
        ring.fall_back(Arc::clone(&other) as Arc<dyn ReplySink>);
        assert!(ring.has_passed(before), "the owner held nothing then");
        let asked = ring.ask_to_pass();
        assert!(!ring.has_passed(asked), "the queue in its place holds a request");
        other.0.store(true, Ordering::Relaxed);
        assert!(ring.has_passed(asked));
    }
}
