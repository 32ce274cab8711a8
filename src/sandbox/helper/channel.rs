//! Requests to a process beside the server, and its replies, over a sequenced-packet socket pair.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::sys::{self, Forked, SignalFd};

/// Longest request or reply in bytes: a path, and what stands before it.
const MAX_LEN: usize = 4096 + 64;
/// A number that tells which request a reply answers.
const NUMBER_LEN: usize = 4;
/// Signals that the kernel has.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=31;
/// Tells a process that has something to do then that the server has ended. Nobody sends it to all
/// processes of a service or a terminal.
const SERVER_ENDED: Signal = Signal::USR1;

/// What a helper answers: bytes, and a descriptor or none.
pub(super) type Answer = (Vec<u8>, Option<OwnedFd>);

/// A process beside the server.
#[derive(Debug)]
pub(super) struct Helper {
    /// Until it was ended.
    process: Mutex<Option<Pid>>,
    /// One request at a time, and the number of the last one.
    socket: Mutex<(OwnedFd, u32)>,
}

impl Helper {
    /// Starts a process that keeps `capabilities` and the descriptors `keep`, and answers each
    /// request by the function that `prepare` makes in it. Before the first thread.
    ///
    /// # Errors
    /// When there is no socket pair, or the process cannot be made.
    pub(super) fn start<F: FnMut(&[u8]) -> Answer>(
        keeps: CapabilitySet,
        keep: &[RawFd],
        prepare: impl FnOnce() -> F,
    ) -> anyhow::Result<Self> {
        Self::run(keeps, keep, Signal::KILL, |socket| serve(socket, prepare()))
    }

    /// The same for a process that calls the second function that `prepare` makes when the server
    /// has ended, however that was.
    ///
    /// # Errors
    /// As [`Helper::start`].
    pub(super) fn start_with_end<F: FnMut(&[u8]) -> Answer, E: FnOnce()>(
        keeps: CapabilitySet,
        keep: &[RawFd],
        prepare: impl FnOnce() -> (F, E),
    ) -> anyhow::Result<Self> {
        let server = rustix::process::getpid();
        Self::run(keeps, keep, SERVER_ENDED, move |socket| {
            let (mut answer, at_end) = prepare();
            if let Ok(signals) = SignalFd::new(&[SERVER_ENDED.as_raw()]) {
                while !has_ended(server, socket, &signals) && serve_one(socket, &mut answer) {}
            }
            at_end();
        })
    }

    /// `when_ended` is sent to the process when the thread that calls this ends.
    fn run(
        keeps: CapabilitySet,
        keep: &[RawFd],
        when_ended: Signal,
        work: impl FnOnce(&OwnedFd),
    ) -> anyhow::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (own, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .context("no socket pair for a process beside the server")?;
        match sys::fork().context("no process beside the server")? {
            Forked::Parent(process) => {
                let process = Mutex::new(Some(process));
                Ok(Self { process, socket: Mutex::new((own, 0)) })
            }
            Forked::Child => {
                let ready = sys::close_all_but_these(&[keep, &[other.as_raw_fd()]].concat());
                if ready.is_ok() && become_helper(keeps, when_ended).is_ok() {
                    work(&other);
                }
                sys::exit_now(0)
            }
        }
    }

    /// Ends the process, and waits for it.
    pub(super) fn end(&self) {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(process) = process {
            // Our child, which was not waited for: its id cannot belong to another process.
            let _ = rustix::process::kill_process(process, Signal::KILL);
            let _ = rustix::process::waitpid(Some(process), WaitOptions::empty());
        }
    }

    /// The answer to a request; `None` if it does not come within `patience`, or the helper is gone.
    pub(super) fn ask(&self, request: &[u8], patience: Duration) -> Option<Answer> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let number = socket.1.wrapping_add(1);
        socket.1 = number;
        send(&socket.0, &[&number.to_ne_bytes(), request], None).ok()?;
        let end = Instant::now() + patience;
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok()?;
            let mut ready = [PollFd::new(&socket.0, PollFlags::IN)];
            match rustix::event::poll(&mut ready, Some(&left)) {
                Err(Errno::INTR) => continue,
                Ok(1..) => {}
                _ => return None,
            }
            let (bytes, fd) = receive(&socket.0).ok()??;
            let (head, rest) = bytes.split_at_checked(NUMBER_LEN)?;
            // An answer that came too late for whoever asked is for nobody.
            if head == number.to_ne_bytes() {
                return Some((rest.to_vec(), fd));
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

/// It ends with the server, is not ended by a terminal, and cannot be traced.
fn become_helper(keeps: CapabilitySet, when_ended: Signal) -> anyhow::Result<()> {
    let signals: Vec<_> = SIGNALS.collect();
    sys::block_signals(&signals)?;
    rustix::process::set_parent_process_death_signal(Some(when_ended))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::chdir("/")?;
    let mut own = capabilities(None)?;
    own.effective &= keeps;
    own.permitted &= keeps;
    own.inheritable = CapabilitySet::empty();
    set_capabilities(None, own)?;
    Ok(())
}

/// Answers until the server is gone.
fn serve(socket: &OwnedFd, mut answer: impl FnMut(&[u8]) -> Answer) {
    while serve_one(socket, &mut answer) {}
}

/// Answers one request; false when the server is gone.
fn serve_one(socket: &OwnedFd, answer: &mut impl FnMut(&[u8]) -> Answer) -> bool {
    let Ok(Some((bytes, _))) = receive(socket) else { return false };
    let Some((number, request)) = bytes.split_at_checked(NUMBER_LEN) else { return false };
    let (reply, fd) = answer(request);
    let reply = &reply[..reply.len().min(MAX_LEN - NUMBER_LEN)];
    send(socket, &[number, reply], fd.as_ref().map(AsFd::as_fd)).is_ok()
}

/// Waits for a request, or for the end of the server. The end of the socket does not tell it if a
/// thread of the server is stuck in the kernel, as that keeps all that the process had open.
fn has_ended(server: Pid, socket: &OwnedFd, signals: &SignalFd) -> bool {
    loop {
        let mut ready = [PollFd::new(signals, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            Err(_) => return true,
            Ok(_) => {}
        }
        if ready[0].revents().is_empty() {
            return false;
        }
        // Anybody may send it; the kernel sends it in the name of whoever has ended.
        if signals.read().is_ok_and(|arrived| arrived.sender == server.as_raw_pid()) {
            return true;
        }
    }
}

fn send(socket: &OwnedFd, parts: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let fds = fd.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        // There is room for one.
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// `None`: the other side is gone.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<Answer>> {
    let mut bytes = [0; MAX_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut fd = None;
    for extra in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = extra {
            fd = fds.next();
        }
    }
    Ok(Some((bytes[..received.bytes].to_vec(), fd)))
}
