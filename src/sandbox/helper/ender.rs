//! The process that ends the connections of views when their server was killed, for a server whose
//! views show in another mount namespace.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::CapabilitySet;

use super::channel::{Answer, Helper};

/// How long the kernel may take to open a file of fusectl.
const PATIENCE: Duration = Duration::from_secs(10);
/// `FUSE_CTL_SUPER_MAGIC`
const FUSECTL: u64 = 0x6573_5543;

/// Asks that process. It ends when this is dropped, and the connections stay then.
#[derive(Debug)]
pub(crate) struct Ender(Helper);

impl Ender {
    /// Starts the process. Before the first thread.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub(crate) fn start() -> anyhow::Result<Self> {
        // The process may not mount it any more.
        let connections = connections().ok();
        let kept: Vec<_> = connections.iter().map(AsRawFd::as_raw_fd).collect();
        let helper = Helper::start_with_end(CapabilitySet::empty(), &kept, move || {
            let files = Rc::new(RefCell::new(Vec::new()));
            let opened = Rc::clone(&files);
            let answer = move |request: &[u8]| {
                let number = request.try_into().map(u32::from_ne_bytes).ok();
                let file = connections.as_ref().zip(number);
                let file = file.and_then(|(all, number)| abort_file(all, number).ok());
                opened.borrow_mut().extend(file);
                Answer::default()
            };
            (answer, move || files.take().into_iter().for_each(end))
        })?;
        Ok(Self(helper))
    }

    /// From now on, the connection of this number ends with the server, while it is known to be that
    /// of a view.
    pub(crate) fn watch(&self, connection: u32) {
        // Without an answer the kernel ends the connection, unless a thread of the server is stuck.
        let _ = self.0.ask(&connection.to_ne_bytes(), PATIENCE);
    }
}

fn end(mut file: File) {
    // One that is at its end already stays as it is.
    let _ = file.write_all(b"1");
}

/// The directory of fusectl: where it is mounted, else one that nobody sees, which takes the privilege
/// to mount.
pub(super) fn connections() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mounted = rustix::fs::open("/sys/fs/fuse/connections", flags, Mode::empty());
    if let Ok(mounted) = mounted
        && rustix::fs::fstatfs(&mounted)?.f_type.cast_unsigned() == FUSECTL
    {
        return Ok(mounted);
    }
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// The file that ends a connection. It has no effect on a later one of the same number.
pub(super) fn abort_file(connections: &OwnedFd, connection: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(connections, format!("{connection}/abort"), flags, Mode::empty())?.into())
}
