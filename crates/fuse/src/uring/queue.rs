//! One thread's ring.
#![expect(unsafe_code, reason = "ring entries are shared with the kernel and between threads")]

mod deferring;
mod ended;
mod leaving;
mod passing;
mod spare;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use tollgate_haltpoll::PollingTime;

use crate::abi::opcode;
use crate::asking::Asking;
use crate::buffer::{BufferSize, Buffers, PAGE_BYTES, ReplyArea};
use crate::device::{CallerAffinity, SharedFd};
use crate::sync::this_thread;
use crate::transport::{Observer, Queue, RawRequest, ReceiveError, Received, ReplySink};
use crate::uring::commit::Missing;
use crate::uring::deferral::Deferral;
use crate::uring::entries::Entries;
use crate::uring::entry::{Entry, Kind};
use crate::uring::handover::{Handover, Length};
use crate::uring::helper::Job;
use crate::uring::nudge::Askers;
use crate::uring::occupancy::Occupancy;
use crate::uring::place::Place;
use crate::uring::registration::Arrival;
use crate::uring::ring::{Completion, Ring};
use crate::uring::shared::RingShared;
use crate::uring::slowness::Handler;
use crate::uring::standing::{Refused, Standing};
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

/// Most spare entries of a ring, see `occupancy.rs`: more than the view lets wait. If all are held,
/// further requests wait in the kernel.
const MOST_SPARES: usize = 1280;

/// Has the owner of a ring for several CPUs follow its caller between them, as a worker of /dev/fuse
/// does.
#[derive(Debug)]
struct Follower {
    affinity: CallerAffinity,
    /// Whether there is more than one CPU to choose from.
    may_move: bool,
    /// The latest caller, and how many requests came from another one than the request before.
    caller: u32,
    changes: u32,
}

impl Follower {
    fn new() -> Self {
        Self { affinity: CallerAffinity::new(), may_move: false, caller: 0, changes: 0 }
    }
}

impl Observer for Follower {
    fn decoded(&mut self, caller: u32, _takes_long: bool) {
        // Nobody in particular closes a file.
        if caller == 0 {
            return;
        }
        if self.may_move {
            self.affinity.request_from(caller);
        }
        if caller != self.caller {
            self.caller = caller;
            self.changes += 1;
        }
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
    standing: Standing,
    occupancy: Occupancy,
    /// Which RELEASEs wait in the kernel; `None` if the kernel sends each at once.
    deferral: Option<Deferral>,
    /// An entry whose reply was withheld, to be submitted behind that to the OPEN which is served.
    beside_open: Option<usize>,
    /// Closes do not wait: somebody asks whether they were served.
    passes: bool,
    /// A tick is to come.
    tick_armed: bool,
    /// It has come.
    ticked: bool,
    /// A reply to a RELEASE was queued, which may bring the next one.
    brings_release: bool,
    /// This thread slept before it got what it received last.
    slept: bool,
    /// Entries from the start; those behind them are spare ones.
    planned: usize,
    size: BufferSize,
    /// Something is queued that was not submitted yet.
    queued: bool,
    wake_armed: bool,
    /// This thread was woken since it last looked for replies and questions.
    woken: bool,
    /// The entry being served, and where its reply area starts in the payload.
    current: Option<(usize, usize)>,
    area: ReplyArea,
    observer: Follower,
    /// How long to ask for the next request before sleeping, on the CPU of a caller.
    spin: Duration,
    asking: Asking,
    /// Whether the owner stays on the CPU of its ring.
    place: Option<Place>,
    /// To the helpers, and which entries they have, with what kind of request.
    handover: Option<Arc<Handover<Job>>>,
    handed: Vec<Option<Kind>>,
    handler: Handler,
    /// Nudges so far, which gives each request that they make an id of its own.
    nudges: u32,
    /// Where nudges find a file, and who makes them otherwise.
    rings: Arc<[Arc<RingShared>]>,
    askers: Option<Arc<Askers>>,
    /// All requests go to helpers: any handler may wait for ever.
    hands_all_over: bool,
    /// Then, how many requests of this ring that move data may hold an entry: as many as there are
    /// helpers to hang in one.
    most_moves: usize,
    /// For requests from /dev/fuse, which is read without waiting.
    device_buffers: Buffers,
    looks_at_device: bool,
    until_device: u32,
    /// The connection ended.
    end: Option<ReceiveError>,
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
        let numbers = || queues.iter().flat_map(|&queue| std::iter::repeat_n(queue, depth));
        let first: Option<Vec<_>> =
            numbers().map(|queue| Entry::new(queue, size.payload_bytes())).collect();
        let no_memory = || UringUnavailable::system("mmap", &Errno::NOMEM.into());
        let entries = Entries::new(first.ok_or_else(no_memory)?, MOST_SPARES);
        let ring = Ring::new(entries.len(), eventfd.as_fd())
            .map_err(|error| UringUnavailable::from_setup(&error, rings_bytes))?;
        let (planned, most) = (entries.len(), entries.most());
        // Never moves: the kernel may still have to read a piece that was queued.
        let mut vectors = Vec::with_capacity(most);
        vectors.extend(entries.iter().map(Entry::io_vectors));
        let shared = RingShared::new(entries, eventfd);
        Ok(Self {
            ring,
            shared: Arc::new(shared),
            device: -1,
            cpus,
            vectors,
            arrival: None,
            received: VecDeque::with_capacity(planned),
            stale: vec![0; planned],
            to_clear: Vec::with_capacity(planned),
            standing: Standing::new(numbers()),
            occupancy: Occupancy::new(numbers()),
            deferral: None,
            beside_open: None,
            passes: false,
            tick_armed: false,
            ticked: false,
            brings_release: false,
            slept: false,
            planned,
            size,
            queued: false,
            wake_armed: false,
            woken: false,
            current: None,
            area: ReplyArea::new(0),
            observer: Follower::new(),
            spin: Duration::ZERO,
            asking: Asking::default(),
            place: None,
            handover: None,
            handed: vec![None; planned],
            handler: Handler::default(),
            nudges: 0,
            rings: Arc::new([]),
            askers: None,
            hands_all_over: false,
            most_moves: 0,
            device_buffers: Buffers::new(size),
            looks_at_device: false,
            until_device: LOOK_AT_DEVICE_EVERY,
            end: None,
        })
    }

    /// All requests go to helpers, of which there are so many.
    pub(crate) fn hand_all_over(&mut self, helpers: usize) {
        (self.hands_all_over, self.most_moves) = (true, helpers);
    }

    /// RELEASEs wait in the kernel, which has agreed to a `max_background` of 1, until a file is opened.
    pub(crate) fn defer_releases(&mut self) {
        let mut queues: Vec<_> = self.shared.entries.iter().map(|entry| entry.queue).collect();
        queues.dedup();
        self.deferral = Some(Deferral::new(&queues));
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
        (handover, spin): (Arc<Handover<Job>>, Duration),
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
        self.handover = Some(handover);
        self.spin = spin;
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

    /// Which `rings` there are, and who asks when none of them knows a file.
    pub(crate) fn nudging(&mut self, rings: Arc<[Arc<RingShared>]>, askers: &Arc<Askers>) {
        self.rings = rings;
        self.askers = Some(Arc::clone(askers));
    }

    pub(crate) fn shared(&self) -> &Arc<RingShared> {
        &self.shared
    }

    /// Registers all entries with the kernel, and waits until every other ring has done so. Runs in
    /// the thread that will serve. `polling` is CPU time of the process that is no load.
    ///
    /// # Errors
    /// Why this ring, or another one, cannot be used. The kernel then sends requests to /dev/fuse.
    pub(crate) fn register(&mut self, polling: PollingTime) -> Result<(), UringUnavailable> {
        self.shared.owner.store(this_thread(), Ordering::Relaxed);
        self.observer.may_move = self.cpus.len() > 1;
        self.place = Place::bind(&self.cpus, polling);
        let registered = self.register_together();
        if registered.is_err()
            && let Some(place) = self.place.take()
        {
            place.give_up();
        }
        registered
    }

    fn register_together(&mut self) -> Result<(), UringUnavailable> {
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

    fn register_entries(&mut self) -> Result<(), UringUnavailable> {
        self.ring.enable(self.device)?;
        for index in 0..self.shared.entries.len() {
            self.push_register(index);
        }
        self.ring.submit().map_err(|error| UringUnavailable::system("io_uring_enter", &error))?;
        let mut refused = vec![None; self.shared.entries.len()];
        while let Some(completion) = self.ring.completion() {
            match completion {
                Completion::Entry(index, Err(errno)) => {
                    refused[index] = Some(errno);
                    self.standing.refused_at_first(index);
                    self.occupancy.lost(index);
                }
                Completion::Entry(index, Ok(())) => {
                    self.occupancy.received(index);
                    self.received.push_back(index);
                }
                Completion::Wake | Completion::Tick => {}
            }
        }
        // A queue serves with fewer entries than planned, but not with none.
        let entries = &self.shared.entries;
        let unserved = refused.iter().zip(entries.iter()).find(|(errno, entry)| {
            let mut others = refused.iter().zip(entries.iter());
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
        let (entry, vectors) = (self.shared.entry(index), &self.vectors[index]);
        // SAFETY: the vectors are the entry's and live in `self`; the entries live in `shared`,
        // which `self` holds while the ring is used.
        unsafe { self.ring.push_register(index, entry, vectors) };
        self.queued = true;
    }

    /// Has the kernel refuse a registration.
    fn provoke_refusal(&mut self) {
        self.ring.push_refusal(self.device, self.shared.entry(0).queue);
        if let Err(error) = self.ring.submit() {
            tracing::debug!(%error, "the kernel was not told that a ring cannot be used");
        }
    }

    /// Puts finished replies into the submission queue: all of them, or as many as there is room
    /// for.
    fn queue_commits(&mut self) {
        let shared = Arc::clone(&self.shared);
        let room = self.ring.room();
        shared.commits.drain(shared.entries.len(), room, |index| {
            self.handed[index] = None;
            self.occupancy.release(index);
            if !self.withholds(index) {
                self.push_commit(index);
            }
        });
        if let Some(index) = self.beside_open.take() {
            // A pass of the commit queue looks for room.
            match self.ring.room() {
                0 => shared.commits.push(index),
                _ => self.push_commit(index),
            }
        }
    }

    /// Puts the finished reply of an entry, which came from the commit queue, into the submission queue.
    /// There is room.
    fn push_commit(&mut self, index: usize) {
        let entry = self.shared.entry(index);
        // SAFETY: this is the ring's owner, and the entry comes from the commit queue. The reply has not
        // been put in the place of the request yet.
        self.brings_release |=
            self.deferral.is_some() && unsafe { entry.operation() } == opcode::RELEASE;
        // SAFETY: as above. It was registered with this ring, and lives as long as `shared`.
        let (commit_id, used) = unsafe { entry.place() };
        self.stale[index] = self.stale[index].max(used);
        // SAFETY: as above.
        unsafe { self.ring.push_commit(index, entry, commit_id) };
        if self.stale[index] > CLEAR_AT_ONCE_BYTES {
            self.to_clear.push(index);
        }
        self.queued = true;
    }

    fn submit(&mut self) -> Result<(), ReceiveError> {
        match self.ring.submit() {
            Ok(()) => {
                (self.queued, self.brings_release) = (false, false);
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(ReceiveError::Io(error)),
        }
    }

    /// Takes what has completed and found room in the completion queue.
    fn collect(&mut self) {
        while let Some(completion) = self.ring.completion() {
            match completion {
                Completion::Wake => {
                    self.wake_armed = false;
                    self.woken = true;
                    // Resets the counter; it cannot block after the poll.
                    let _ = rustix::io::read(&self.shared.eventfd, &mut [0u8; 8]);
                }
                Completion::Tick => (self.tick_armed, self.ticked) = (false, true),
                Completion::Entry(index, Ok(())) => {
                    self.standing.received(index);
                    self.occupancy.received(index);
                    self.received.push_back(index);
                }
                Completion::Entry(index, Err(errno)) => self.failed(index, errno),
            }
        }
    }

    /// Takes all that has completed. With spare entries that can be more than the completion queue
    /// holds: the kernel keeps the rest until it is asked again, and the entries of those hold
    /// requests already.
    fn collect_all(&mut self) -> Result<(), ReceiveError> {
        self.collect();
        while self.ring.has_overflowed() {
            match self.ring.submit_and_look() {
                Ok(()) => (self.queued, self.brings_release) = (false, false),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(ReceiveError::Io(error)),
            }
            self.collect();
        }
        Ok(())
    }

    fn failed(&mut self, index: usize, errno: i32) {
        match errno {
            libc::ENOTCONN | libc::ECANCELED => self.end = Some(self.why_ended()),
            libc::ECONNABORTED => self.end = Some(ReceiveError::Aborted),
            _ => self.refused(index, &io::Error::from_raw_os_error(errno)),
        }
    }

    /// The kernel refused a reply, or the entry itself.
    fn refused(&mut self, index: usize, error: &io::Error) {
        match self.standing.refused(index) {
            // The request is over. The entry left the kernel's hands, so it is registered anew.
            Refused::Again => {
                self.shared.undelivered.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, index, "a reply was refused; its ring entry is registered anew");
                self.register_anew(index);
            }
            Refused::Lost { queue, left } => {
                self.occupancy.lost(index);
                tracing::warn!(%error, queue, left, "the kernel took a ring entry out of service");
            }
            Refused::QueueLost { queue } => {
                let text = format!(
                    "the kernel took all ring entries of queue {queue} out of service: {error}"
                );
                self.end = Some(ReceiveError::Io(io::Error::other(text)));
            }
        }
    }

    /// Clears what long requests and replies left in entries that were submitted. Until this thread
    /// enters the kernel again, the kernel writes to no entry that has not completed yet; and all that
    /// completed was collected.
    fn clear_used(&mut self) {
        debug_assert!(!self.queued, "cleared before it was submitted");
        while let Some(index) = self.to_clear.pop() {
            let entry = self.shared.entry(index);
            let keep_bytes = if index < self.planned { self.size.keep_bytes } else { PAGE_BYTES };
            // An entry that was given its next request at once keeps that.
            let refilled = self.received.contains(&index);
            // SAFETY: the entry was received and not returned yet.
            let kept = if refilled { unsafe { entry.received_len() } } else { 0 };
            // SAFETY: the entry is the owner's: the reply was submitted, the next request, if there
            // is one, is left alone, and the next one after that needs a system call of this
            // thread.
            unsafe { entry.clear(kept, self.stale[index], keep_bytes) };
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
        self.watch_handler();
        let entry = self.shared.entry(index);
        // SAFETY: this is the owner, and the entry has just been received. It is submitted by
        // `queue_commits` at the earliest, which needs `self` exclusively: the results are gone by
        // then.
        let (raw, area, reply_at) = unsafe {
            let len = entry.received_len();
            self.stale[index] = self.stale[index].max(len);
            entry.begin(len, self.stale[index], Missing::REPLY)
        };
        self.shared.current.store(index, Ordering::Relaxed);
        self.current = Some((index, reply_at));
        self.area = area;
        Received { raw, area: &mut self.area, observer: &mut self.observer }
    }

    /// A handler is about to run on this thread.
    fn watch_handler(&mut self) {
        if let Some(handover) = &self.handover {
            self.handler.begins(handover.slowness());
        }
    }

    /// Gives a request to the helpers if its handler may wait, or answers it if it is a nudge.
    fn hand_over(&mut self, index: usize) -> bool {
        let entry = self.shared.entry(index);
        // SAFETY: this is the owner, and the entry has just been received.
        let (kind, len) = unsafe { (entry.kind(), entry.received_len()) };
        let kind = match kind {
            Kind::Nudge => {
                self.answer_nudge(index, 0);
                return true;
            }
            Kind::Statfs(thread) if self.askers.as_ref().is_some_and(|by| by.asks(thread)) => {
                self.answer_nudge(index, -libc::EAGAIN);
                return true;
            }
            Kind::Statfs(_) => Kind::Quick,
            Kind::Open(file) => {
                self.shared.opened.store(file, Ordering::Relaxed);
                Kind::Quick
            }
            kind => kind,
        };
        let Some(handover) = &self.handover else { return false };
        let quick = kind == Kind::Quick;
        if quick && !handover.slowness().is_high() && !self.hands_all_over {
            return false;
        }
        entry.give_to_helper();
        self.stale[index] = self.stale[index].max(len);
        let ring = Arc::clone(&self.shared);
        let job = Job { ring, entry: index, stale: self.stale[index], quick };
        if !quick || self.hands_all_over {
            let length = if kind == Kind::Moves { Length::Moves } else { Length::Waits };
            handover.give(job, length);
        } else if handover.give_to_idle(job).is_err() {
            return false;
        }
        self.handed[index] = Some(kind);
        if self.is_to_hold(kind) {
            self.hold(index);
        }
        true
    }

    /// Whether a request that a helper was given may hold its entry for long. What moves data ends by
    /// itself unless handlers may hang, and a spare entry for each costs its size in memory: there are
    /// no more than helpers could hang in.
    fn is_to_hold(&self, kind: Kind) -> bool {
        let moves = || self.handed.iter().filter(|handed| **handed == Some(Kind::Moves)).count();
        kind != Kind::Moves || (self.hands_all_over && moves() <= self.most_moves)
    }

    /// Asks for the next request for a while, on the CPU of the caller: it was just answered, is let
    /// in by `sched_yield`, and its next request then finds this thread awake.
    fn poll(&mut self) -> io::Result<()> {
        self.ring.submit_and_look()?;
        self.queued = false;
        self.collect();
        let start = Instant::now();
        while self.received.is_empty()
            && self.end.is_none()
            && self.wake_armed
            && start.elapsed() < self.spin
        {
            rustix::thread::sched_yield();
            self.ring.submit_and_look()?;
            self.collect();
        }
        Ok(())
    }

    /// Whether to ask for a while. An owner of several CPUs does beside its caller, which may come back at
    /// once. One of a single CPU does while nobody else needs the CPU where it is.
    fn is_to_ask(&mut self) -> bool {
        if self.observer.may_move {
            return self.observer.affinity.is_bound();
        }
        self.place.as_ref().is_none_or(Place::asks) && self.asking.pays()
    }

    /// Something has completed that is to be looked at before this thread sleeps.
    fn has_news(&self) -> bool {
        !self.received.is_empty() || self.end.is_some() || !self.wake_armed || self.ticked
    }

    /// Sleeps until something completes.
    fn wait(&mut self) -> io::Result<()> {
        if !self.wake_armed {
            self.ring.push_wake();
            self.wake_armed = true;
        }
        self.arm_tick();
        self.slept = false;
        if !self.spin.is_zero() && self.is_to_ask() {
            let begun = Instant::now();
            self.poll()?;
            if self.wake_armed {
                self.asking.asked(begun.elapsed(), !self.received.is_empty());
            }
            // A wake-up that came while polling says that a reply was finished elsewhere, which the
            // caller of this function looks for: to sleep now would lose it.
            if self.has_news() {
                return Ok(());
            }
        }
        if std::mem::take(&mut self.brings_release) {
            // Else it would look like one that wakes.
            self.ring.submit_and_look()?;
            self.queued = false;
            self.collect();
            if self.has_news() {
                return Ok(());
            }
        }
        let waited = self.ring.submit_and_wait();
        if waited.is_ok() {
            self.queued = false;
        }
        self.slept = true;
        self.collect();
        waited
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

impl Queue for RingQueue {
    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        loop {
            // Whoever wakes this thread after this has it look once more.
            self.woken = false;
            self.answer_passage();
            self.tick();
            self.queue_commits();
            let is_full = self.ring.room() == 0;
            // A reply does not wait for the handler of the next request.
            if !self.to_clear.is_empty() || (self.queued && !self.received.is_empty()) || is_full {
                self.submit()?;
                self.collect_all()?;
                if !self.queued {
                    self.clear_used();
                }
                if is_full {
                    // There may be more replies, of which no wake-up tells again.
                    continue;
                }
            }
            if let Some(len) = self.look_at_device() {
                self.device_buffers.received = len;
                self.watch_handler();
                let Buffers { request, reply, .. } = &mut self.device_buffers;
                let raw = RawRequest::Contiguous(&request[..len]);
                return Ok(Received { raw, area: reply, observer: &mut self.observer });
            }
            if let Some(index) = self.received.pop_front() {
                if !self.to_clear.is_empty() {
                    // The kernel had taken this one before it refused the rest of a submission: a
                    // later one must not clear what it holds now.
                    self.to_clear.retain(|&other| other != index);
                }
                self.until_device = self.until_device.saturating_sub(1);
                self.defer(index);
                if let Some(place) = &mut self.place {
                    place.request(&self.shared, &self.rings, &mut self.observer.changes);
                }
                if self.hand_over(index) {
                    continue;
                }
                return Ok(self.present(index));
            }
            if let Some(end) = self.end.take() {
                // Helpers may finish in their own time: nobody waits for their replies.
                self.handover = None;
                return Err(end);
            }
            // The wake-up was taken above: a question, or a reply that came after the look, is told of by
            // no other.
            if self.woken {
                continue;
            }
            match self.wait() {
                Err(error) if !is_transient(&error) => return Err(ReceiveError::Io(error)),
                Err(_) if self.received.is_empty() => return Err(ReceiveError::Retry),
                _ => {}
            }
        }
    }

    fn finish(&mut self, handler_ns: u64) {
        if let Some(handover) = &self.handover {
            self.handler.ends(handover.slowness(), handler_ns);
        }
        let Some((index, reply_at)) = self.current.take() else {
            self.device_buffers.clear();
            return;
        };
        self.stale[index] = self.stale[index].max(reply_at + self.area.used());
        if self.shared.entry(index).awaits_reply() {
            self.hold(index);
        }
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        Arc::clone(&self.shared) as Arc<dyn ReplySink>
    }
}

/// Sends the replies that are finished: a worker that stops has served its last request.
impl Drop for RingQueue {
    fn drop(&mut self) {
        self.let_all_out();
        self.deferral = None;
        self.take_leave();
        if self.queued {
            let _ = self.ring.submit();
        }
    }
}
