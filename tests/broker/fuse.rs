//! A FUSE mount that the tests serve themselves, and raw connections to the broker.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use tempfile::TempDir;
use tollgate_broker::{MESSAGE_BYTES, Refusal, Reply, Request, decode_reply};
use tollgate_fuse::{
    Attr, Attributes, BackingId, Entry, FileHandle, Filesystem, Name, NodeId, OpenReply, Opened,
    Running, Session, SessionConfig, args,
};

use crate::harness::open_directory;

/// A mount of `user`: a directory with one file, `f`, which is open by passthrough on whatever the
/// test says.
pub(crate) struct Mounted {
    pub(crate) device: OwnedFd,
    files: Arc<OneFile>,
    running: Option<Running>,
    directory: TempDir,
}

impl Mounted {
    pub(crate) fn of(user: u32) -> Self {
        let directory = open_directory();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).unwrap();
        let ids = format!("rootmode=40000,user_id={user},group_id={user},allow_other");
        let data = format!("fd={},{ids}\0", device.as_raw_fd());
        let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).unwrap();
        let kind = "fuse.tollgate-test";
        let mount = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("test", directory.path(), kind, mount, data).unwrap();
        let files = Arc::new(OneFile::default());
        let served = device.try_clone().unwrap();
        let session = Session::new(served.into(), Arc::clone(&files), SessionConfig::default());
        let running = Some(session.start().unwrap());
        Self { device, files, running, directory }
    }

    /// The file `f`, which is `id` from now on.
    pub(crate) fn file_of(&self, id: u32) -> PathBuf {
        self.files.id.store(id, Ordering::SeqCst);
        self.directory.path().join("f")
    }

    /// What is mounted goes away, and everything that was registered for it.
    pub(crate) fn unmount(&self) {
        rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH).unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Gone already, if the test unmounted it.
        let _ = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
        self.running.take().unwrap().stop();
    }
}

#[derive(Default)]
struct OneFile {
    id: AtomicU32,
}

const NOT_KEPT: Duration = Duration::ZERO;

fn attr(node: NodeId) -> Attr {
    let mode = if node == NodeId::ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    Attr { ino: node.0, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl Filesystem for OneFile {
    fn lookup(
        &self,
        _: &tollgate_fuse::Request<'_>,
        _: NodeId,
        name: Name<'_>,
        reply: tollgate_fuse::Reply<'_, Entry>,
    ) {
        if name.as_bytes() != b"f" {
            reply.error(Errno::NOENT);
            return;
        }
        let node = NodeId(2);
        reply.ok(&Entry {
            node,
            generation: 0,
            attr: attr(node),
            attr_valid: NOT_KEPT,
            entry_valid: NOT_KEPT,
        });
    }

    fn getattr(
        &self,
        _: &tollgate_fuse::Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: tollgate_fuse::Reply<'_, Attributes>,
    ) {
        reply.ok(&Attributes { attr: attr(node), valid: NOT_KEPT });
    }

    fn open(
        &self,
        _: &tollgate_fuse::Request<'_>,
        _: NodeId,
        _: args::Open,
        reply: tollgate_fuse::Reply<'_, Opened>,
    ) {
        let backing = Some(BackingId(self.id.load(Ordering::SeqCst)));
        let flags = OpenReply::PASSTHROUGH | OpenReply::NOFLUSH;
        reply.ok(&Opened { handle: FileHandle(1), flags, backing });
    }
}

/// A connection to the broker, by whoever and with whatever in it.
pub(crate) struct Caller(OwnedFd);

impl Caller {
    /// By `user`, in the group of the same number and in `groups`.
    pub(crate) fn connect(socket: &Path, user: u32, groups: &[u32]) -> Self {
        let connect = || {
            let gids: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
            rustix::thread::set_thread_groups(&gids).unwrap();
            let (gid, uid) = (Gid::from_raw(user), Uid::from_raw(user));
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            rustix::net::connect(&fd, &SocketAddrUnix::new(socket).unwrap()).unwrap();
            fd
        };
        // Ids are each thread's own, and this one ends with them.
        let fd = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
        let patience = Some(crate::harness::PATIENCE);
        rustix::net::sockopt::set_socket_timeout(&fd, Timeout::Recv, patience).unwrap();
        Self(fd)
    }

    /// One that has said HELLO for `mounted`, and was welcome.
    pub(crate) fn of(socket: &Path, user: u32, mounted: &Mounted) -> Self {
        let caller = Self::connect(socket, user, &[]);
        assert_eq!(caller.ask(Request::Hello, &[mounted.device.as_fd()]), Some(Ok(1)));
        caller
    }

    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        assert!(self.try_send(bytes, fds), "the broker hung up");
    }

    /// Whether there was somebody to send it to.
    pub(crate) fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let parts = [IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL).is_ok()
    }

    /// The next reply; `None` when the broker hung up.
    pub(crate) fn reply(&self) -> Option<Reply> {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        loop {
            match rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()) {
                // As when the machine froze or stopped this process, with a time limit set.
                Err(Errno::INTR) => {}
                Ok((0, _)) | Err(Errno::CONNRESET) => return None,
                Ok((len, _)) => return Some(decode_reply(&bytes[..len]).unwrap()),
                Err(errno) => panic!("no reply: {errno}"),
            }
        }
    }

    pub(crate) fn ask(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Option<Reply> {
        self.send(&request.encode(), fds);
        self.reply()
    }

    pub(crate) fn register(&self, file: impl AsFd) -> Result<u32, Refusal> {
        self.ask(Request::Register(0), &[file.as_fd()]).expect("the broker is there")
    }
}
