//! The process that ends the connections of views when their server was killed, for a server whose
//! views show in another mount namespace.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use super::channel::{Answer, Helper};
use super::left::Namespace;
use crate::killed;

/// How long the kernel may take to open a file of fusectl.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked, once the server is gone, whether CMD's processes are, and after what time each.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(200);
const WATCH: u8 = b'w';
const KNOW: u8 = b'k';
const END: u8 = b'e';
const END_OF: u8 = b'o';
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
        // The file that ends a connection belongs to who mounted: to CMD's user, if CMD did.
        let helper = Helper::start_with_end(CapabilitySet::DAC_OVERRIDE, &kept, move || {
            let duty =
                Rc::new(RefCell::new(Duty { connections, files: Vec::new(), command: None }));
            let asked = Rc::clone(&duty);
            let answer = move |request: &[u8]| {
                asked.borrow_mut().answer(request);
                Answer::default()
            };
            (answer, move || duty.borrow_mut().server_ended())
        })?;
        Ok(Self(helper))
    }

    /// From now on, the connection of this number ends with the server, while it is known to be that
    /// of a view.
    pub(crate) fn watch(&self, connection: u32) {
        // Without an answer the kernel ends the connection, unless a thread of the server is stuck.
        self.ask(WATCH, connection);
    }

    /// CMD's processes are those of the pid namespace of `init`.
    pub(crate) fn know(&self, init: Pid) {
        self.ask(KNOW, init.as_raw_nonzero().get().unsigned_abs());
    }

    /// Ends the connections that keep CMD's processes, which were killed: see [`super::left`].
    pub(crate) fn end_what_is_left(&self) {
        self.ask(END, 0);
    }

    /// The same, if nothing but that is left of the process.
    pub(crate) fn end_what_is_left_of(&self, process: Pid) {
        self.ask(END_OF, process.as_raw_nonzero().get().unsigned_abs());
    }

    fn ask(&self, what: u8, number: u32) {
        let _ = self.0.ask(&[&[what][..], &number.to_ne_bytes()].concat(), PATIENCE);
    }
}

/// What the process knows.
struct Duty {
    connections: Option<OwnedFd>,
    /// Those of the views.
    files: Vec<File>,
    command: Option<Namespace>,
}

impl Duty {
    fn answer(&mut self, request: &[u8]) {
        let Some((what, number)) = request.split_first() else { return };
        let Ok(number) = number.try_into().map(u32::from_ne_bytes) else { return };
        match *what {
            WATCH => self.files.extend(self.abort_file(number)),
            KNOW => self.command = Namespace::of(number),
            END => self.end_left(),
            END_OF if killed::is_killed(Path::new(&format!("/proc/{number}"))) => self.end_left(),
            _ => {}
        }
    }

    fn abort_file(&self, number: u32) -> Option<File> {
        abort_file(self.connections.as_ref()?, number).ok()
    }

    fn end_left(&self) {
        let held = self.command.iter().flat_map(Namespace::connections);
        held.filter_map(|number| self.abort_file(number)).for_each(end);
    }

    /// CMD's processes are killed then.
    fn server_ended(&mut self) {
        self.files.drain(..).for_each(end);
        for _ in 0..TRIES {
            std::thread::sleep(BETWEEN);
            if !self.command.as_ref().is_some_and(Namespace::has_processes) {
                break;
            }
            self.end_left();
        }
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
