//! One worker's end of `/dev/fuse`.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use tollgate_haltpoll::PollingTime;

use crate::asking::Asking;
use crate::buffer::{BufferSize, Buffers};
use crate::device::affinity::CallerAffinity;
use crate::device::crowd::Crowd;
use crate::device::fd::SharedFd;
use crate::device::leader::{LeaderFollowers, Parked};
use crate::device::turn::Turn;
use crate::transport::{
    NoObserver, Observer, Queue, RawRequest, ReceiveError, Received, ReplySink,
};

/// One queue of `/dev/fuse`.
#[derive(Debug)]
pub struct DeviceQueue {
    sink: Arc<DeviceSink>,
    spin: Duration,
    member: Option<Member>,
    buffers: Buffers,
    no_observer: NoObserver,
}

impl DeviceQueue {
    pub(crate) fn new(
        fd: Arc<SharedFd>,
        spin: Duration,
        member: Option<Member>,
        size: BufferSize,
    ) -> Self {
        let buffers = Buffers::new(size);
        let sink = Arc::new(DeviceSink { fd, turn: Turn::default() });
        Self { sink, spin, member, buffers, no_observer: NoObserver }
    }
}

/// Where the replies of one queue go.
#[derive(Debug)]
struct DeviceSink {
    fd: Arc<SharedFd>,
    turn: Turn,
}

impl ReplySink for DeviceSink {
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.fd.commit(parts)
    }

    fn close(&self) {
        self.fd.close();
    }

    fn ask_to_pass(&self) -> u64 {
        self.turn.ask()
    }

    fn has_passed(&self, asked: u64) -> bool {
        self.turn.has_passed(asked)
    }
}

impl Queue for DeviceQueue {
    fn attach(&mut self, _polling: PollingTime) -> io::Result<()> {
        self.sink.turn.belongs_here();
        Ok(())
    }

    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        let request = &mut self.buffers.request;
        let DeviceSink { fd, turn } = &*self.sink;
        let len = match &mut self.member {
            // It may block with nothing received for as long as it likes, and tells nobody.
            None => rustix::io::read(&fd.0, &mut request[..]).map_err(receive_error)?,
            Some(member) => member.receive(&fd.0, turn, self.spin, request)?,
        };
        self.buffers.received = len;
        let observer = match &mut self.member {
            None => &mut self.no_observer as &mut dyn Observer,
            Some(member) => member,
        };
        Ok(Received {
            raw: RawRequest::Contiguous(&self.buffers.request[..len]),
            area: &mut self.buffers.reply,
            observer,
        })
    }

    fn finish(&mut self, _handler_ns: u64) {
        self.buffers.clear();
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        Arc::clone(&self.sink) as Arc<dyn ReplySink>
    }
}

/// A worker's part among leader and followers.
#[derive(Debug)]
pub(crate) struct Member {
    workers: Arc<LeaderFollowers>,
    active: bool,
    /// Serves only while others are blocked.
    reserve: bool,
    /// In a handler, as far as the other workers know.
    serving: bool,
    /// Another active worker is left to receive the next request.
    another_left: bool,
    /// The last request was there before this worker asked for it.
    was_there: bool,
    /// Grows by two for each request that was there before this worker asked, from another thread
    /// than the one before; shrinks by one each time that none was there. One thread alone never
    /// has two requests that it waits for, so a high value means several callers.
    backlog: u32,
    last_caller: u32,
    /// Most workers that a backlog makes active: one for each CPU.
    max_active: u32,
    affinity: CallerAffinity,
    crowd: Crowd,
    /// The class of its thread.
    preempts: bool,
    asking: Asking,
}

/// The backlog from which on another worker becomes active.
const BACKLOG_LIMIT: u32 = 8;

impl Member {
    /// The first member (`index` 0) is the leader; those from `threads` on are the reserve. A
    /// backlog makes at most `cpus` members active.
    pub(crate) fn new(
        workers: &Arc<LeaderFollowers>,
        index: usize,
        threads: usize,
        cpus: usize,
    ) -> Self {
        Self {
            workers: Arc::clone(workers),
            active: index == 0,
            reserve: index >= threads,
            serving: false,
            another_left: false,
            was_there: false,
            backlog: 0,
            last_caller: 0,
            max_active: u32::try_from(cpus).unwrap_or(u32::MAX),
            affinity: CallerAffinity::new(),
            crowd: Crowd::new(cpus),
            preempts: true,
            asking: Asking::default(),
        }
    }

    fn receive(
        &mut self,
        fd: &OwnedFd,
        turn: &Turn,
        spin: Duration,
        buffer: &mut [u8],
    ) -> Result<usize, ReceiveError> {
        if std::mem::take(&mut self.serving) {
            self.workers.back();
        }
        loop {
            if !self.active {
                turn.ends();
                self.active = self.workers.park(self.reserve) == Parked::Promoted;
                if !self.active {
                    return Err(ReceiveError::Retry);
                }
            }
            // Before each read, also of those in `poll_for`: what it takes is seen to be under way.
            turn.begins();
            match rustix::io::read(fd, &mut *buffer) {
                Err(Errno::AGAIN) => self.backlog = self.backlog.saturating_sub(1),
                other => return self.received(other, true),
            }
            // In a crowd others have work for this CPU: it sleeps at once.
            let is_in_crowd = self.is_in_crowd();
            if !is_in_crowd && self.workers.step_back() {
                self.active = false;
                self.affinity.unbind();
                self.follow_binding();
                continue;
            }
            if self.affinity.is_bound()
                && self.asking.pays()
                && let Some(read) = self.poll_for(fd, spin, buffer)
            {
                return self.received(read, false);
            }
            turn.ends();
            let mut readable = [PollFd::new(fd, PollFlags::IN)];
            rustix::event::poll(&mut readable, None).map_err(receive_error)?;
        }
    }

    /// Whether several threads call, and this worker serves them together with another one. It has
    /// a CPU for its own then.
    fn is_in_crowd(&mut self) -> bool {
        let callers = &self.workers.callers;
        if !self.crowd.is_there(callers) || self.workers.active() < 2 {
            self.crowd.leave(callers);
            self.follow_binding();
            return false;
        }
        if self.crowd.has_own_cpu() {
            return true;
        }
        if !self.crowd.may_take_cpu(callers) {
            return false;
        }
        self.affinity.unbind();
        let taken = self.crowd.take_cpu(callers);
        self.follow_binding();
        taken
    }

    /// On a CPU that it is bound to, this worker lets the program that runs there go on until it
    /// sleeps: a caller does so at once, to wait for its reply, and nobody waits for the RELEASE of a file
    /// that a program has closed. Bound to no CPU, it takes the one where it is woken.
    fn follow_binding(&mut self) {
        let preempts = !self.affinity.is_bound() && !self.crowd.has_own_cpu();
        if preempts != self.preempts {
            self.preempts = preempts;
            tollgate_haltpoll::preempt_when_woken(preempts);
        }
    }

    /// Asks for `spin`; `None` if nothing came.
    fn poll_for(
        &mut self,
        fd: &OwnedFd,
        spin: Duration,
        buffer: &mut [u8],
    ) -> Option<Result<usize, Errno>> {
        let start = Instant::now();
        let mut read = None;
        while read.is_none() && start.elapsed() < spin {
            // Lets others use this CPU first, above all the caller that was just answered.
            rustix::thread::sched_yield();
            match rustix::io::read(fd, &mut *buffer) {
                Err(Errno::AGAIN) => {}
                other => read = Some(other),
            }
        }
        self.asking.asked(start.elapsed(), read.is_some());
        read
    }

    fn received(
        &mut self,
        read: Result<usize, Errno>,
        was_there: bool,
    ) -> Result<usize, ReceiveError> {
        let len = read.map_err(receive_error)?;
        self.serving = true;
        self.was_there = was_there;
        self.another_left = self.workers.received();
        Ok(len)
    }
}

impl Observer for Member {
    /// Makes another worker active if requests queue up, or would have to wait behind this one.
    fn decoded(&mut self, caller: u32, takes_long: bool) {
        if caller != 0 {
            self.backlog += 2 * u32::from(self.was_there && caller != self.last_caller);
            self.last_caller = caller;
            self.crowd.request_from(&self.workers.callers, caller);
            if !self.crowd.has_own_cpu() {
                self.affinity.request_from(caller);
                self.follow_binding();
            }
        }
        let queued = self.backlog >= BACKLOG_LIMIT && self.workers.active() < self.max_active;
        if queued || (!self.another_left && takes_long) {
            self.backlog = 0;
            self.workers.promote();
        }
    }
}

fn receive_error(errno: Errno) -> ReceiveError {
    match errno {
        // ENOENT: the request was interrupted while it was being read.
        Errno::INTR | Errno::AGAIN | Errno::NOENT => ReceiveError::Retry,
        Errno::NODEV => ReceiveError::Unmounted,
        Errno::CONNABORTED => ReceiveError::Aborted,
        other => ReceiveError::Io(other.into()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;

    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const SPIN: Duration = Duration::from_secs(5);

    /// The first member, with a second one active, and a device that nobody wrote to yet.
    fn two_active() -> (Member, [OwnedFd; 2]) {
        let workers = Arc::new(LeaderFollowers::new());
        let second = {
            let workers = Arc::clone(&workers);
            std::thread::spawn(move || workers.park(false))
        };
        while workers.active() < 2 {
            workers.promote();
            std::thread::yield_now();
        }
        assert_eq!(second.join().unwrap(), Parked::Promoted);
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
        let (device, kernel) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        (Member::new(&workers, 0, 2, 2), [device, kernel])
    }

    /// Wakes whoever is parked, again and again until `is_over`.
    fn kicker(member: &Member, is_over: &Arc<AtomicBool>) -> JoinHandle<()> {
        let (workers, is_over) = (Arc::clone(&member.workers), Arc::clone(is_over));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                workers.kick();
            }
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "sockets, binds to a CPU")]
    fn a_worker_of_a_crowd_stays_for_the_next_request() {
        let (mut member, [device, kernel]) = two_active();
        (0..8).for_each(|request| member.decoded(1 + request % 2, false));
        let is_over = Arc::new(AtomicBool::new(false));
        let kicker = kicker(&member, &is_over);
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            rustix::io::write(&kernel, b"request").unwrap();
        });
        // Parked, it would be kicked and receive nothing.
        let received = member.receive(&device, &Turn::default(), SPIN, &mut [0; 16]);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(received.unwrap(), 7);
        assert_eq!(member.workers.active(), 2);
        assert!(member.crowd.has_own_cpu());
        assert_eq!(class(), libc::SCHED_BATCH, "it lets who runs there go on");
        (0..1000).for_each(|_| member.decoded(1, false));
        assert!(!member.is_in_crowd(), "one caller is left");
        assert!(!member.crowd.has_own_cpu());
        assert_eq!(class(), libc::SCHED_OTHER);
        sender.join().and_then(|()| kicker.join()).unwrap();
    }

    fn class() -> libc::c_int {
        #[expect(unsafe_code, reason = "sched_getscheduler has no wrapper")]
        // SAFETY: without memory arguments.
        unsafe {
            libc::sched_getscheduler(0)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "sockets, binds to a CPU")]
    fn a_worker_whose_caller_is_alone_leaves_the_rest_to_the_other() {
        let (mut member, [device, _kernel]) = two_active();
        (0..1000).for_each(|_| member.decoded(1, false));
        let is_over = Arc::new(AtomicBool::new(false));
        let kicker = kicker(&member, &is_over);
        let received = member.receive(&device, &Turn::default(), SPIN, &mut [0; 16]);
        is_over.store(true, Ordering::Relaxed);
        assert!(matches!(received, Err(ReceiveError::Retry)), "{received:?}");
        assert!(!member.active && !member.crowd.has_own_cpu());
        assert_eq!(member.workers.active(), 1);
        kicker.join().unwrap();
    }
}
