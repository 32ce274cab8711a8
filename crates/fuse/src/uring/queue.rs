//! One thread's ring.
#![expect(unsafe_code, reason = "ring entries are shared with the kernel and between threads")]

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::abi::OutHeader;
use crate::buffer::{BufferSize, Buffers, ReplyArea};
use crate::device::SharedFd;
use crate::transport::{NoObserver, Queue, RawRequest, ReceiveError, Received, ReplySink};
use crate::uring::commit::CommitQueue;
use crate::uring::entry::Entry;
use crate::uring::registration::Arrival;
use crate::uring::ring::{Completion, Ring};
use crate::uring::unavailable::UringUnavailable;

/// Replies that used more of the payload than this are cleared as soon as they are submitted, which
/// costs a system call of its own. What shorter ones leave is invisible too, and overwritten by the
/// next request.
const CLEAR_AT_ONCE_BYTES: usize = 512;

/// How many requests of a ring are served between two looks at /dev/fuse. FORGETs come there, and
/// have a thread of their own; but if that thread gets no CPU while names are removed, the inodes
/// that nobody forgets fill the server's tables. A look that finds nothing costs a fraction of a
/// microsecond.
const LOOK_AT_DEVICE_EVERY: u32 = 32;

/// What the owner of a ring and the senders of replies share.
#[derive(Debug)]
pub(crate) struct RingShared {
    entries: Box<[Entry]>,
    commits: CommitQueue,
    /// Wakes the owner.
    eventfd: OwnedFd,
    /// The owner's [`this_thread`]; 0 before it has registered the ring.
    owner: AtomicUsize,
    /// The entry received last: most replies are for it.
    current: AtomicUsize,
    /// Replies that the kernel refused after `commit` had returned.
    undelivered: AtomicU64,
    closed: AtomicBool,
    /// Where replies go to requests that came from /dev/fuse: all of them if the ring could not be
    /// registered.
    device: OnceLock<Arc<SharedFd>>,
    fell_back: AtomicBool,
}

impl RingShared {
    fn claim(&self, unique: u64) -> Option<usize> {
        let current = self.current.load(Ordering::Relaxed);
        if self.entries.get(current).is_some_and(|entry| entry.claim(unique)) {
            return Some(current);
        }
        self.entries.iter().position(|entry| entry.claim(unique))
    }

    fn wake(&self) {
        // Fails only if the counter is at its maximum: then the owner is woken anyway.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// All replies go to /dev/fuse from now on.
    pub(crate) fn fall_back(&self) {
        debug_assert!(self.device.get().is_some(), "the ring was not connected");
        self.fell_back.store(true, Ordering::Release);
    }

    fn commit_to_device(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.device.get().ok_or(Errno::NOENT)?.commit(parts)
    }
}

impl ReplySink for RingShared {
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.fell_back.load(Ordering::Acquire) {
            return self.commit_to_device(parts);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(Errno::NOTCONN.into());
        }
        let header = parts.first().and_then(|part| OutHeader::read_from_prefix(part).ok());
        let (header, _) = header.ok_or(Errno::INVAL)?;
        let Some(index) = self.claim(header.unique) else { return self.commit_to_device(parts) };
        // SAFETY: the reply was claimed, and the entry goes to the commit queue next.
        let finished = unsafe { self.entries[index].finish(parts) };
        self.commits.push(index);
        if self.owner.load(Ordering::Relaxed) != this_thread() {
            self.wake();
        }
        finished
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(device) = self.device.get() {
            device.close();
        }
    }

    fn undelivered(&self) -> u64 {
        self.undelivered.load(Ordering::Relaxed)
    }
}

/// A ring with the queues of one or more CPUs.
#[derive(Debug)]
pub(crate) struct RingQueue {
    ring: Ring,
    shared: Arc<RingShared>,
    device: RawFd,
    cpus: Vec<usize>,
    /// The pieces of memory of each entry, as they are registered.
    vectors: Vec<[libc::iovec; 2]>,
    arrival: Option<Arrival>,
    /// Entries that hold a request which was not returned yet.
    received: VecDeque<usize>,
    /// For each entry, the bytes of its payload that may hold something of earlier requests.
    stale: Vec<usize>,
    /// Submitted or about to be, with a payload to clear.
    to_clear: Vec<usize>,
    /// Something is queued that was not submitted yet.
    queued: bool,
    wake_armed: bool,
    /// The entry being served, and where its reply area starts in the payload.
    current: Option<(usize, usize)>,
    area: ReplyArea,
    observer: NoObserver,
    /// For requests from /dev/fuse, which is read without waiting.
    device_buffers: Buffers,
    looks_at_device: bool,
    until_device: u32,
    /// The connection ended.
    end: Option<ReceiveError>,
    keep_bytes: usize,
}

// SAFETY: the pointers in `vectors` are to the memory of `shared.entries`, which moves with the
// queue.
unsafe impl Send for RingQueue {}

impl RingQueue {
    /// A ring with `depth` entries for each of `queues`. `rings_bytes` is what all rings of the
    /// session need together, for the message if there is not that much.
    pub(crate) fn new(
        queues: &[u16],
        cpus: Vec<usize>,
        depth: usize,
        size: BufferSize,
        rings_bytes: u64,
    ) -> Result<Self, UringUnavailable> {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(|errno| UringUnavailable::system("eventfd", &errno.into()))?;
        let entries: Box<[Entry]> = queues
            .iter()
            .flat_map(|&queue| std::iter::repeat_n(queue, depth))
            .map(|queue| Entry::new(queue, size.payload_bytes()))
            .collect();
        let ring = Ring::new(entries.len(), eventfd.as_fd())
            .map_err(|error| UringUnavailable::from_setup(&error, rings_bytes))?;
        let count = entries.len();
        let vectors = entries.iter().map(Entry::io_vectors).collect();
        let shared = RingShared {
            entries,
            commits: CommitQueue::new(count),
            eventfd,
            owner: AtomicUsize::new(0),
            current: AtomicUsize::new(0),
            undelivered: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            device: OnceLock::new(),
            fell_back: AtomicBool::new(false),
        };
        Ok(Self {
            ring,
            shared: Arc::new(shared),
            device: -1,
            cpus,
            vectors,
            arrival: None,
            received: VecDeque::with_capacity(count),
            stale: vec![0; count],
            to_clear: Vec::with_capacity(count),
            queued: false,
            wake_armed: false,
            current: None,
            area: ReplyArea::new(0),
            observer: NoObserver,
            device_buffers: Buffers::new(size),
            looks_at_device: false,
            until_device: LOOK_AT_DEVICE_EVERY,
            end: None,
            keep_bytes: size.keep_bytes,
        })
    }

    /// Connects the ring to a mounted device, which must stay open as long as the queue lives;
    /// `own` is a descriptor of the same connection for this queue alone.
    ///
    /// # Errors
    /// Errors of fcntl(2).
    pub(crate) fn connect(
        &mut self,
        device: &SharedFd,
        own: Arc<SharedFd>,
        arrival: Arrival,
    ) -> io::Result<()> {
        // Where no second descriptor could be made, the thread of the first one is alone with it.
        self.looks_at_device = own.0.as_raw_fd() != device.0.as_raw_fd();
        if self.looks_at_device {
            let flags = rustix::fs::fcntl_getfl(&own.0)? | rustix::fs::OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(&own.0, flags)?;
        }
        let first = self.shared.device.set(own).is_ok();
        debug_assert!(first, "one ring is connected twice");
        self.device = device.0.as_raw_fd();
        self.arrival = Some(arrival);
        Ok(())
    }

    /// The queue's own descriptor of /dev/fuse.
    ///
    /// # Panics
    /// If the ring was not connected.
    pub(crate) fn device_fd(&self) -> Arc<SharedFd> {
        let Some(device) = self.shared.device.get() else { panic!("the ring was not connected") };
        Arc::clone(device)
    }

    pub(crate) fn shared(&self) -> &Arc<RingShared> {
        &self.shared
    }

    /// Registers all entries with the kernel, and waits until every other ring has done so. Runs in
    /// the thread that will serve.
    ///
    /// # Errors
    /// Why this ring, or another one, cannot be used. The kernel then sends requests to /dev/fuse.
    pub(crate) fn register(&mut self) -> Result<(), UringUnavailable> {
        self.shared.owner.store(this_thread(), Ordering::Relaxed);
        self.bind_to_cpus();
        let registered = self.register_entries();
        let Some(arrival) = self.arrival.take() else { return registered };
        let all = arrival.wait_for_others(registered);
        if all.is_err() {
            // One refused registration makes the kernel give up rings for this connection. If it
            // was another call that failed, or another ring, the kernel does not know yet.
            self.provoke_refusal();
        }
        all
    }

    fn bind_to_cpus(&self) {
        let mut set = rustix::thread::CpuSet::new();
        for &cpu in self.cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
            set.set(cpu);
        }
        // The kernel still delivers the queue's requests wherever the thread runs.
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::warn!(cpus = ?self.cpus, %error, "the thread of a ring runs on other CPUs");
        }
    }

    fn register_entries(&mut self) -> Result<(), UringUnavailable> {
        self.ring.enable(self.device)?;
        for index in 0..self.shared.entries.len() {
            self.push_register(index);
        }
        self.ring.submit().map_err(|error| UringUnavailable::system("io_uring_enter", &error))?;
        let mut refused = vec![None; self.shared.entries.len()];
        while let Some(completion) = self.ring.completion() {
            match completion {
                Completion::Entry(index, Err(errno)) => refused[index] = Some(errno),
                Completion::Entry(index, Ok(())) => self.received.push_back(index),
                Completion::Wake => {}
            }
        }
        // A queue serves with fewer entries than planned, but not with none.
        let entries = &self.shared.entries;
        let unserved = refused.iter().zip(entries).find(|(errno, entry)| {
            let mut others = refused.iter().zip(entries);
            errno.is_some() && !others.any(|(e, other)| other.queue == entry.queue && e.is_none())
        });
        match unserved {
            Some((errno, entry)) => Err(UringUnavailable::Registration {
                queue: entry.queue,
                error: io::Error::from_raw_os_error(errno.unwrap_or(0)).to_string(),
            }),
            None => Ok(()),
        }
    }

    fn push_register(&mut self, index: usize) {
        let (entry, vectors) = (&self.shared.entries[index], &self.vectors[index]);
        // SAFETY: the vectors are the entry's and live in `self`; the entries live in `shared`,
        // which `self` holds while the ring is used.
        unsafe { self.ring.push_register(index, entry, vectors) };
        self.queued = true;
    }

    /// Registers an entry without memory, which the kernel refuses.
    fn provoke_refusal(&mut self) {
        let entry = &self.shared.entries[0];
        // SAFETY: no vectors, so nothing has to live.
        unsafe { self.ring.push_register(0, entry, &[]) };
        if let Err(error) = self.ring.submit() {
            tracing::debug!(%error, "the kernel was not told that a ring cannot be used");
        }
    }

    /// Puts all finished replies into the submission queue.
    fn queue_commits(&mut self) {
        let Self { ring, shared, stale, to_clear, queued, .. } = self;
        shared.commits.drain(|index| {
            let entry = &shared.entries[index];
            // SAFETY: this is the ring's owner, and the entry comes from the commit queue. It was
            // registered with this ring, and lives as long as `shared`.
            let (commit_id, used) = unsafe { entry.place() };
            stale[index] = stale[index].max(used);
            // SAFETY: as above.
            unsafe { ring.push_commit(index, entry, commit_id) };
            if stale[index] > CLEAR_AT_ONCE_BYTES {
                to_clear.push(index);
            }
            *queued = true;
        });
    }

    fn submit(&mut self) -> Result<(), ReceiveError> {
        match self.ring.submit() {
            Ok(()) => {
                self.queued = false;
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(ReceiveError::Io(error)),
        }
    }

    /// Takes what has completed.
    fn collect(&mut self) {
        while let Some(completion) = self.ring.completion() {
            match completion {
                Completion::Wake => {
                    self.wake_armed = false;
                    // Resets the counter; it cannot block after the poll.
                    let _ = rustix::io::read(&self.shared.eventfd, &mut [0u8; 8]);
                }
                Completion::Entry(index, Ok(())) => self.received.push_back(index),
                Completion::Entry(index, Err(errno)) => self.failed(index, errno),
            }
        }
    }

    fn failed(&mut self, index: usize, errno: i32) {
        match errno {
            libc::ENOTCONN | libc::ECANCELED => self.end = Some(ReceiveError::Unmounted),
            libc::ECONNABORTED => self.end = Some(ReceiveError::Aborted),
            // The request is over. The entry left the kernel's hands, so it is registered anew.
            _ => {
                self.shared.undelivered.fetch_add(1, Ordering::Relaxed);
                let error = io::Error::from_raw_os_error(errno);
                tracing::debug!(%error, index, "a reply was refused; its ring entry is registered anew");
                self.push_register(index);
            }
        }
    }

    /// Clears what long requests and replies left in entries that were submitted. Until this thread
    /// enters the kernel again, the kernel writes to no entry that has not completed yet.
    fn clear_used(&mut self) {
        debug_assert!(!self.queued, "cleared before it was submitted");
        while let Some(index) = self.to_clear.pop() {
            let entry = &self.shared.entries[index];
            // An entry that was given its next request at once keeps that.
            let refilled = self.received.contains(&index);
            // SAFETY: the entry was received and not returned yet.
            let kept = if refilled { unsafe { entry.received_len() } } else { 0 };
            // SAFETY: the entry is the owner's: the reply was submitted, the next request, if there
            // is one, is left alone, and the next one after that needs a system call of this
            // thread.
            unsafe { entry.clear(kept, self.stale[index], self.keep_bytes) };
            self.stale[index] = kept;
        }
    }

    /// Every so many requests, looks for one that waits in /dev/fuse. Returns its length.
    fn look_at_device(&mut self) -> Option<usize> {
        if self.until_device > 0 || !self.looks_at_device {
            return None;
        }
        let device = self.shared.device.get()?;
        let read = rustix::io::read(&device.0, &mut self.device_buffers.request[..]);
        if read.is_err() {
            self.until_device = LOOK_AT_DEVICE_EVERY;
        }
        // The end of the connection is noticed on the ring as well.
        read.ok()
    }

    fn present(&mut self, index: usize) -> Received<'_> {
        let entry = &self.shared.entries[index];
        // SAFETY: this is the owner, and the entry has just been received. It is submitted by
        // `queue_commits` at the earliest, which needs `self` exclusively: the results are gone by
        // then.
        let (raw, area, reply_at) = unsafe {
            let len = entry.received_len();
            self.stale[index] = self.stale[index].max(len);
            entry.begin(len, self.stale[index])
        };
        self.until_device = self.until_device.saturating_sub(1);
        self.shared.current.store(index, Ordering::Relaxed);
        self.current = Some((index, reply_at));
        self.area = area;
        Received { raw, area: &mut self.area, observer: &mut self.observer }
    }

    /// Sleeps until something completes.
    fn wait(&mut self) -> io::Result<()> {
        if !self.wake_armed {
            self.ring.push_wake();
            self.wake_armed = true;
        }
        let waited = self.ring.submit_and_wait();
        if waited.is_ok() {
            self.queued = false;
        }
        self.collect();
        waited
    }
}

/// Tells threads that live at the same time apart, without a system call. Never 0.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

impl Queue for RingQueue {
    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        loop {
            self.queue_commits();
            // A reply does not wait for the handler of the next request.
            if !self.to_clear.is_empty() || (self.queued && !self.received.is_empty()) {
                self.submit()?;
                self.collect();
                if !self.queued {
                    self.clear_used();
                }
            }
            if let Some(len) = self.look_at_device() {
                self.device_buffers.received = len;
                let Buffers { request, reply, .. } = &mut self.device_buffers;
                let raw = RawRequest::Contiguous(&request[..len]);
                return Ok(Received { raw, area: reply, observer: &mut self.observer });
            }
            if let Some(index) = self.received.pop_front() {
                return Ok(self.present(index));
            }
            if let Some(end) = self.end.take() {
                return Err(end);
            }
            match self.wait() {
                Err(error) if !is_transient(&error) => return Err(ReceiveError::Io(error)),
                Err(_) if self.received.is_empty() => return Err(ReceiveError::Retry),
                _ => {}
            }
        }
    }

    fn finish(&mut self) {
        let Some((index, reply_at)) = self.current.take() else {
            self.device_buffers.clear();
            return;
        };
        self.stale[index] = self.stale[index].max(reply_at + self.area.used());
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        Arc::clone(&self.shared) as Arc<dyn ReplySink>
    }
}

/// Sends the replies that are finished: a worker that stops has served its last request.
impl Drop for RingQueue {
    fn drop(&mut self) {
        self.queue_commits();
        if self.queued {
            let _ = self.ring.submit();
        }
    }
}
