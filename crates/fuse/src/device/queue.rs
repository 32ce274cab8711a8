//! One worker's end of `/dev/fuse`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::buffer::{BufferSize, Buffers};
use crate::device::affinity::CallerAffinity;
use crate::device::fd::SharedFd;
use crate::device::leader::{LeaderFollowers, Parked};
use crate::transport::{
    NoObserver, Observer, Queue, RawRequest, ReceiveError, Received, ReplySink,
};

/// One queue of `/dev/fuse`.
#[derive(Debug)]
pub struct DeviceQueue {
    fd: Arc<SharedFd>,
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
        Self { fd, spin, member, buffers, no_observer: NoObserver }
    }
}

impl Queue for DeviceQueue {
    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        let request = &mut self.buffers.request;
        let len = match &mut self.member {
            None => rustix::io::read(&self.fd.0, &mut request[..]).map_err(receive_error)?,
            Some(member) => member.receive(&self.fd.0, self.spin, request)?,
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
        Arc::clone(&self.fd) as Arc<dyn ReplySink>
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
        }
    }

    fn receive(
        &mut self,
        fd: &OwnedFd,
        spin: Duration,
        buffer: &mut [u8],
    ) -> Result<usize, ReceiveError> {
        if std::mem::take(&mut self.serving) {
            self.workers.back();
        }
        loop {
            if !self.active {
                self.active = self.workers.park(self.reserve) == Parked::Promoted;
                if !self.active {
                    return Err(ReceiveError::Retry);
                }
            }
            match rustix::io::read(fd, &mut *buffer) {
                Err(Errno::AGAIN) => self.backlog = self.backlog.saturating_sub(1),
                other => return self.received(other, true),
            }
            if self.workers.step_back() {
                self.active = false;
                self.affinity.unbind();
                continue;
            }
            if self.affinity.is_bound()
                && let Some(read) = poll_for(fd, spin, buffer)
            {
                return self.received(read, false);
            }
            let mut readable = [PollFd::new(fd, PollFlags::IN)];
            rustix::event::poll(&mut readable, None).map_err(receive_error)?;
        }
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
            self.affinity.request_from(caller);
        }
        let queued = self.backlog >= BACKLOG_LIMIT && self.workers.active() < self.max_active;
        if queued || (!self.another_left && takes_long) {
            self.backlog = 0;
            self.workers.promote();
        }
    }
}

/// Polls for `spin`; `None` if nothing came.
fn poll_for(fd: &OwnedFd, spin: Duration, buffer: &mut [u8]) -> Option<Result<usize, Errno>> {
    let start = Instant::now();
    while start.elapsed() < spin {
        // Lets others use this CPU first, above all the caller that was just answered.
        rustix::thread::sched_yield();
        match rustix::io::read(fd, &mut *buffer) {
            Err(Errno::AGAIN) => {}
            other => return Some(other),
        }
    }
    None
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
