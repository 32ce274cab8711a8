//! Messages between `run`'s server and the processes it starts, over a sequenced-packet socket
//! pair.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::Pid;

/// Longest message in bytes; an error text is cut to fit.
const MESSAGE_MAX_BYTES: usize = 16 << 10;
/// Most descriptors of a message.
const DESCRIPTORS_MAX: usize = 8;

/// A message between the server and the processes it started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the server: the view is mounted, with this number of its connection, 0 if it is not
    /// known; the `/dev/fuse` descriptor comes along.
    Mounted(i32),
    /// To the server, and from it to the proxy: the socket that the proxy listens on comes along.
    Listener,
    /// To the server, from the proxy: CMD asked for this host and port, and did not get it.
    Refused(String),
    /// To the server: the namespaces of CMD come along, for others to join.
    Namespaces,
    /// To the server: CMD's standard stream of this number comes along.
    Stream(i32),
    /// To who joins a session: a file with its terms, and the namespaces, come along.
    Session,
    /// To the server: everything is in place, CMD can start on [`Message::Go`].
    Ready,
    /// From the server: start CMD.
    Go,
    /// To the server, sent by the process that is about to become CMD.
    Starting,
    /// To the server: exec failed with this error number.
    NotExecuted(i32),
    /// To the server: CMD was stopped by this signal.
    Stopped(i32),
    /// To the server: CMD, which was stopped, goes on.
    Continued,
    /// To the server: CMD ended with this wait(2) status.
    Ended(i32),
    /// To the server: the sender failed, with the reason as text.
    Failed(String),
    /// To the server: something a user should know.
    Warning(String),
    /// To the server: something a user may want to know.
    Note(String),
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Mounted(number) => tagged(b'M', &number.to_ne_bytes()),
            Self::Listener => vec![b'L'],
            Self::Refused(text) => tagged(b'H', text.as_bytes()),
            Self::Namespaces => vec![b'A'],
            Self::Stream(number) => tagged(b'I', &number.to_ne_bytes()),
            Self::Session => vec![b'J'],
            Self::Ready => vec![b'R'],
            Self::Go => vec![b'G'],
            Self::Starting => vec![b'S'],
            Self::NotExecuted(errno) => tagged(b'X', &errno.to_ne_bytes()),
            Self::Stopped(signal) => tagged(b'T', &signal.to_ne_bytes()),
            Self::Continued => vec![b'C'],
            Self::Ended(status) => tagged(b'E', &status.to_ne_bytes()),
            Self::Failed(text) => tagged(b'F', text.as_bytes()),
            Self::Warning(text) => tagged(b'W', text.as_bytes()),
            Self::Note(text) => tagged(b'N', text.as_bytes()),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let number = || Some(i32::from_ne_bytes(rest.try_into().ok()?));
        let text = || String::from_utf8_lossy(rest).into_owned();
        Some(match tag {
            b'M' => Self::Mounted(number()?),
            b'L' => Self::Listener,
            b'H' => Self::Refused(text()),
            b'A' => Self::Namespaces,
            b'I' => Self::Stream(number()?),
            b'J' => Self::Session,
            b'R' => Self::Ready,
            b'G' => Self::Go,
            b'S' => Self::Starting,
            b'X' => Self::NotExecuted(number()?),
            b'T' => Self::Stopped(number()?),
            b'C' => Self::Continued,
            b'E' => Self::Ended(number()?),
            b'F' => Self::Failed(text()),
            b'W' => Self::Warning(text()),
            b'N' => Self::Note(text()),
            _ => return None,
        })
    }
}

fn tagged(tag: u8, rest: &[u8]) -> Vec<u8> {
    let kept = &rest[..rest.len().min(MESSAGE_MAX_BYTES - 1)];
    [&[tag], kept].concat()
}

/// A message with what the kernel added to it.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) message: Message,
    /// The sender, in the receiver's pid namespace, as the kernel knows it.
    pub(super) sender: Option<Pid>,
    /// The descriptor that came along, the last one of several.
    pub(super) fd: Option<OwnedFd>,
    /// Those before it.
    pub(super) more: Vec<OwnedFd>,
}

impl Received {
    /// All descriptors, in their order.
    pub(super) fn fds(self) -> Vec<OwnedFd> {
        self.more.into_iter().chain(self.fd).collect()
    }
}

/// One end of the pair.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl Channel {
    /// Both ends; the first one, the server's, learns who sends.
    pub(super) fn pair() -> anyhow::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (server, child) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .context("cannot make a socket pair")?;
        rustix::net::sockopt::set_socket_passcred(&server, true)
            .context("cannot ask for credentials on a socket pair")?;
        Ok((Self(server), Self(child)))
    }

    /// Another descriptor of an end.
    pub(super) fn of(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends, with a descriptor or without.
    pub(super) fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> anyhow::Result<()> {
        self.send_all(message, fd.as_slice())
    }

    /// Sends, with descriptors.
    pub(super) fn send_all(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            bail!("no room for so many descriptors in a message");
        }
        let parts = [IoSlice::new(&bytes)];
        rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)
            .context("the other side of `run` is gone")?;
        Ok(())
    }

    /// Whether a message, or the end of the stream, arrives within 100 ms.
    pub(super) fn is_readable(&self) -> bool {
        let moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&moment)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for a message; `None` when the other side is gone.
    pub(super) fn receive(&self) -> anyhow::Result<Option<Received>> {
        let mut bytes = [0; MESSAGE_MAX_BYTES];
        let mut space = [MaybeUninit::uninit();
            rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.0, &mut parts, &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                other => break other.context("cannot receive from the other side of `run`")?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let (sender, mut more) = extras(&mut control);
        let fd = more.pop();
        let message = Message::decode(&bytes[..received.bytes])
            .filter(|_| !received.flags.contains(ReturnFlags::TRUNC))
            .context("the other side of `run` sent what is no message")?;
        Ok(Some(Received { message, sender, fd, more }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn extras(control: &mut RecvAncillaryBuffer<'_>) -> (Option<Pid>, Vec<OwnedFd>) {
    let (mut sender, mut all) = (None, Vec::new());
    for extra in control.drain() {
        match extra {
            RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid),
            RecvAncillaryMessage::ScmRights(fds) => all.extend(fds),
            _ => {}
        }
    }
    (sender, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let (server, child) = Channel::pair().unwrap();
        let text = || "text \u{fc}".to_owned();
        let all = [
            Message::Mounted(3),
            Message::Listener,
            Message::Refused(text()),
            Message::Namespaces,
            Message::Stream(2),
            Message::Session,
            Message::Ready,
            Message::Go,
            Message::Starting,
            Message::NotExecuted(2),
            Message::Stopped(20),
            Message::Continued,
            Message::Ended(-1),
            Message::Failed(text()),
            Message::Warning(text()),
            Message::Note(text()),
        ];
        for message in all {
            child.send(&message, None).unwrap();
            let received = server.receive().unwrap().unwrap();
            assert_eq!(received.message, message);
            assert_eq!(received.sender, Some(rustix::process::getpid()));
        }
    }

    #[test]
    fn a_descriptor_comes_along() {
        let (server, child) = Channel::pair().unwrap();
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        child.send(&Message::Mounted(3), Some(file.as_fd())).unwrap();
        let fd = server.receive().unwrap().unwrap().fd.unwrap();
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(&fd), inode(&file));
    }

    #[test]
    fn a_long_text_is_cut_and_an_end_is_seen() {
        let (server, child) = Channel::pair().unwrap();
        child.send(&Message::Failed("x".repeat(MESSAGE_MAX_BYTES * 2)), None).unwrap();
        let received = server.receive().unwrap().unwrap();
        assert_eq!(received.message, Message::Failed("x".repeat(MESSAGE_MAX_BYTES - 1)));
        drop(child);
        assert!(server.receive().unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&b""[..], b"?", b"X12", b"E12345"] {
            assert_eq!(Message::decode(bytes), None, "{bytes:?}");
        }
    }
}
