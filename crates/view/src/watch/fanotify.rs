//! fanotify(7): marks on directories, file handles, and the events that come back.
#![expect(unsafe_code, reason = "neither std nor rustix wraps fanotify or file handles")]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::lower::{self, last_errno};

/// What is reported about the names in a directory, and about the directory itself.
pub(super) const NAMES: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_ATTRIB
    | libc::FAN_ONDIR;
/// What is reported about the files in a directory besides. Each write to one of them then looks
/// for the directory's marks, which costs about 0.1 us.
pub(super) const FILES: u64 = libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE | libc::FAN_EVENT_ON_CHILD;

/// Events that are about a name, not about the inode behind it.
pub(super) const NAME_CHANGES: u64 =
    libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;

/// What is reported of files anywhere in the file system: a further name, a name that goes, a move,
/// and every change of attributes. Not writes: those are many, and each would pay.
const ANYWHERE: u64 = libc::FAN_ATTRIB | libc::FAN_MOVE_SELF;

/// Longest file handle in bytes (the kernel's `MAX_HANDLE_SZ`).
const MAX_HANDLE_LEN: usize = 128;
/// `AT_HANDLE_FID` (Linux 6.5): a handle to compare with those in events.
const AT_HANDLE_FID: i32 = 0x200;
const FILE_HANDLE_HEAD: usize = size_of::<FileHandleHead>();

/// Head of `struct file_handle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FileHandleHead {
    bytes: u32,
    kind: i32,
}

/// `struct file_handle` with room for the longest one.
#[repr(C)]
struct Space(FileHandleHead, [u8; MAX_HANDLE_LEN]);

/// Names an inode of one file system, in the kernel's own terms.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Handle(Box<[u8]>);

impl Handle {
    /// The handle of directory `name` in `dir`; `.` for `dir` itself.
    pub(super) fn of(dir: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        match Self::with_flags(dir, name, AT_HANDLE_FID) {
            Err(Errno::INVAL) => Self::with_flags(dir, name, 0),
            result => result,
        }
    }

    fn with_flags(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<Self, Errno> {
        let bytes = u32::try_from(MAX_HANDLE_LEN).expect("128 fits");
        let mut space = Space(FileHandleHead { bytes, kind: 0 }, [0; MAX_HANDLE_LEN]);
        let mut mount_id = 0;
        // SAFETY: the name ends with a NUL; `space` is a `struct file_handle` with room for as
        // many bytes as its head says; `mount_id` is an int; all live through the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw mut space,
                &raw mut mount_id,
                flags,
            )
        };
        if result != 0 {
            return Err(last_errno());
        }
        let len = (space.0.bytes as usize).min(MAX_HANDLE_LEN);
        Ok(Self::new(space.0.kind, &space.1[..len]))
    }

    fn new(kind: i32, bytes: &[u8]) -> Self {
        Self([&kind.to_ne_bytes(), bytes].concat().into())
    }

    /// The inode's number, which the handles of the usual file systems begin with: in 4 bytes
    /// (`FILEID_INO32_GEN`) or in 8. Those of tmpfs have the first kind, the generation in 4 bytes,
    /// and then the number in 8.
    pub(super) fn inode_number(&self) -> Option<u64> {
        const INO32_GEN: i32 = 1;
        const TMPFS_LEN: usize = 12;
        let (kind, bytes) = self.0.split_at(size_of::<i32>());
        let word = |at| u32_at(bytes, at).map(u64::from);
        match i32::from_ne_bytes(kind.try_into().ok()?) {
            INO32_GEN if bytes.len() == TMPFS_LEN => Some(word(4)? | word(8)? << 32),
            INO32_GEN => word(0),
            _ => Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)),
        }
    }
}

/// A fanotify group.
#[derive(Debug)]
pub(super) struct Group(OwnedFd);

impl Group {
    /// Without privilege it may mark directories that the user may read, as many as
    /// `fs.fanotify.max_user_marks` allows. Who caused an event is told only of this process itself
    /// then; of others it is 0.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the initial user namespace, before Linux 5.13; `EMFILE`
    /// when the user has as many groups as are allowed (`fs.fanotify.max_user_groups`).
    pub(super) fn new() -> Result<Self, Errno> {
        match Self::with(libc::FAN_UNLIMITED_MARKS | libc::FAN_REPORT_DFID_NAME) {
            Err(Errno::PERM) => Self::with(libc::FAN_REPORT_DFID_NAME),
            result => result,
        }
    }

    /// A group whose events name the inode that they are about. Without privilege it may mark single
    /// inodes that the user may read, not the file system.
    ///
    /// # Errors
    /// As [`Group::new`].
    pub(super) fn of_inodes() -> Result<Self, Errno> {
        match Self::with(libc::FAN_UNLIMITED_MARKS | libc::FAN_REPORT_FID) {
            Err(Errno::PERM) => Self::with(libc::FAN_REPORT_FID),
            result => result,
        }
    }

    fn with(flags: u32) -> Result<Self, Errno> {
        let flags = flags | libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::fanotify_init(flags, libc::O_RDONLY.cast_unsigned()) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Reports `mask` of directory `name` in `dir` from now on; `.` for `dir` itself.
    pub(super) fn mark(&self, dir: BorrowedFd<'_>, name: &CStr, mask: u64) -> Result<(), Errno> {
        self.change(libc::FAN_MARK_ADD, dir, name, mask)
    }

    /// Reports `mask` of `dir` no longer.
    pub(super) fn unmark(&self, dir: BorrowedFd<'_>, mask: u64) -> Result<(), Errno> {
        self.change(libc::FAN_MARK_REMOVE, dir, c".", mask)
    }

    /// Reports changes of attributes, and of names, of every inode in the file system of `dir` from
    /// now on.
    ///
    /// # Errors
    /// `ENODEV`, `EXDEV` and `EOPNOTSUPP` on file systems whose inodes the kernel cannot name; `EPERM`
    /// without `CAP_SYS_ADMIN`.
    pub(super) fn mark_file_system(&self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        self.change(libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM, dir, c".", ANYWHERE)
    }

    /// No longer.
    pub(super) fn unmark_file_system(&self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        self.change(libc::FAN_MARK_REMOVE | libc::FAN_MARK_FILESYSTEM, dir, c".", ANYWHERE)
    }

    /// Reports the same of the one inode that is `name` in `dir`.
    ///
    /// # Errors
    /// `EACCES` if this process may not read the file; `ENOSPC` when the user has as many marks as
    /// are allowed (`fs.fanotify.max_user_marks`); those of [`Group::mark_file_system`].
    pub(super) fn mark_inode(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        self.call(libc::FAN_MARK_ADD | libc::FAN_MARK_DONT_FOLLOW, dir, name, ANYWHERE)
    }

    /// No longer, of the inode that `path` names.
    pub(super) fn unmark_inode(&self, path: BorrowedFd<'_>) -> Result<(), Errno> {
        let place = lower::ProcPath::of(path);
        self.call(libc::FAN_MARK_REMOVE, path, place.as_c_str(), ANYWHERE)
    }

    /// No longer, of any inode.
    pub(super) fn unmark_all(&self) -> Result<(), Errno> {
        self.call(libc::FAN_MARK_FLUSH, self.0.as_fd(), c".", 0)
    }

    fn change(&self, how: u32, dir: BorrowedFd<'_>, name: &CStr, mask: u64) -> Result<(), Errno> {
        self.call(how | libc::FAN_MARK_ONLYDIR | libc::FAN_MARK_DONT_FOLLOW, dir, name, mask)
    }

    fn call(&self, flags: u32, dir: BorrowedFd<'_>, name: &CStr, mask: u64) -> Result<(), Errno> {
        // SAFETY: both descriptors are open while borrowed; the name ends with a NUL.
        let result = unsafe {
            libc::fanotify_mark(self.0.as_raw_fd(), flags, mask, dir.as_raw_fd(), name.as_ptr())
        };
        if result == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// The events that wait, as many as fit `buffer`.
    pub(super) fn read<'b>(&self, buffer: &'b mut [u8]) -> Result<Events<'b>, Errno> {
        match rustix::io::read(&self.0, &mut *buffer) {
            Ok(len) => Ok(Events(&buffer[..len])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Events(&[])),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One event.
pub(super) struct Event<'b> {
    pub(super) mask: u64,
    /// The process that caused it, in the server's pid namespace; 0 for others than this one in a
    /// group without privilege.
    pub(super) pid: i32,
    /// The directory and the name in it; `.` for the directory itself. `None` where the kernel says
    /// neither, as with a lost event, and in a group of inodes.
    pub(super) place: Option<(Handle, &'b CStr)>,
    /// The inode, in a group of inodes.
    pub(super) inode: Option<Handle>,
}

/// Events in a buffer that the kernel filled.
pub(super) struct Events<'b>(&'b [u8]);

impl Events<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'b> Iterator for Events<'b> {
    type Item = Event<'b>;

    fn next(&mut self) -> Option<Event<'b>> {
        const HEAD: usize = size_of::<libc::fanotify_event_metadata>();
        let len = u32_at(self.0, 0)? as usize;
        let event = self.0.get(..len).filter(|event| event.len() >= HEAD)?;
        self.0 = &self.0[len..];
        let info_at = usize::from(u16::from_ne_bytes(event[6..8].try_into().ok()?));
        Some(Event {
            mask: u64::from_ne_bytes(event[8..16].try_into().ok()?),
            pid: u32_at(event, 20)?.cast_signed(),
            place: event.get(info_at..).and_then(place),
            inode: event.get(info_at..).and_then(inode),
        })
    }
}

/// Where the handle lies in `struct fanotify_event_info_fid`: behind type, padding, length and file
/// system id.
const HANDLE_AT: usize = 12;

/// Parses `struct fanotify_event_info_fid` with a name behind its handle.
fn place(info: &[u8]) -> Option<(Handle, &CStr)> {
    let (handle, rest) = handle_in(info, libc::FAN_EVENT_INFO_TYPE_DFID_NAME)?;
    Some((handle, CStr::from_bytes_until_nul(rest).ok()?))
}

/// Parses the same without a name.
fn inode(info: &[u8]) -> Option<Handle> {
    handle_in(info, libc::FAN_EVENT_INFO_TYPE_FID).map(|(handle, _)| handle)
}

/// The handle in a structure of this type, and what is behind it.
fn handle_in(info: &[u8], wanted: u8) -> Option<(Handle, &[u8])> {
    if *info.first()? != wanted {
        return None;
    }
    let len = u32_at(info, HANDLE_AT)? as usize;
    let kind = u32_at(info, HANDLE_AT + 4)?.cast_signed();
    let bytes_at = HANDLE_AT + FILE_HANDLE_HEAD;
    let bytes = info.get(bytes_at..bytes_at.checked_add(len)?)?;
    Some((Handle::new(kind, bytes), info.get(bytes_at + len..)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn group() -> Option<Group> {
        Group::new()
            .inspect_err(|error| println!("not shown: fanotify is not available ({error})"))
            .ok()
    }

    #[test]
    fn a_change_is_reported_with_directory_and_name() {
        let Some(group) = group() else { return };
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        group.mark(fd.as_fd(), c".", NAMES | FILES).unwrap();
        std::fs::write(dir.path().join("new"), "text").unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let mut buffer = vec![0; 4096];
        let events: Vec<_> = group.read(&mut buffer).unwrap().collect();
        let own = std::process::id().cast_signed();
        assert!(events.iter().all(|event| event.pid == own));
        let here = Handle::of(fd.as_fd(), c".").unwrap();
        let has = |bit: u64, wanted: &CStr| {
            events.iter().any(|event| {
                let (dir, name) = event.place.as_ref().unwrap();
                event.mask & bit != 0 && *dir == here && *name == wanted
            })
        };
        assert!(has(libc::FAN_CREATE, c"new") && has(libc::FAN_CREATE, c"sub"));
        assert!(has(libc::FAN_MODIFY, c"new") && has(libc::FAN_CLOSE_WRITE, c"new"));
        group.unmark(fd.as_fd(), FILES).unwrap();
        std::fs::write(dir.path().join("new"), "more").unwrap();
        assert!(group.read(&mut buffer).unwrap().is_empty());
    }

    #[test]
    fn handles_tell_the_number_of_the_inode() {
        let places = [std::env::temp_dir(), "/dev/shm".into()];
        for place in places.iter().filter_map(|place| tempfile::tempdir_in(place).ok()) {
            let fd = std::fs::File::open(place.path()).unwrap();
            let kind = rustix::fs::fstatfs(&fd).unwrap().f_type;
            if ![0xef53, 0x0102_1994].contains(&kind) {
                println!("not shown: neither ext4 nor tmpfs at {}", place.path().display());
                continue;
            }
            std::fs::write(place.path().join("f"), "").unwrap();
            let inode = std::fs::metadata(place.path().join("f")).unwrap().ino();
            let handle = Handle::of(fd.as_fd(), c"f").unwrap();
            assert_eq!(handle.inode_number(), Some(inode), "{}", place.path().display());
        }
    }

    #[test]
    fn a_further_name_and_a_move_are_reported_of_the_inode() {
        let Ok(group) = Group::of_inodes() else { return };
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        if let Err(error) = group.mark_file_system(fd.as_fd()) {
            println!("not shown: no mark on this file system ({error})");
            return;
        }
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "text").unwrap();
        let inode = std::fs::metadata(path("a")).map(|meta| meta.ino()).unwrap();
        std::fs::hard_link(path("a"), path("b")).unwrap();
        std::fs::rename(path("a"), path("c")).unwrap();
        let mut buffer = vec![0; 65536];
        let own = std::process::id().cast_signed();
        let mut seen = 0;
        for event in group.read(&mut buffer).unwrap().filter(|event| event.pid == own) {
            if event.inode.and_then(|handle| handle.inode_number()) == Some(inode) {
                seen |= event.mask;
            }
        }
        assert_eq!(seen & ANYWHERE, ANYWHERE);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_parse_or_end(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = Events(&bytes).count();
            let _ = (place(&bytes), inode(&bytes));
        }
    }
}
