//! The values that requests and replies are made of.

use std::ffi::CStr;
use std::time::Duration;

use rustix::io::Errno;

/// Names an inode between kernel and server. Stable while the kernel remembers the inode, and never
/// reused by a server that counts upwards (which spares it generations).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mounted tree.
    pub const ROOT: Self = Self(1);
}

/// Chosen by the server in its reply to OPEN, CREATE or OPENDIR; comes with every use of that
/// handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileHandle(pub u64);

/// A file registered with the kernel by `FUSE_DEV_IOC_BACKING_OPEN`. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingId(pub u32);

/// One component of a path: not empty, no `/`, not `.` or `..`, at most 1024 bytes (the kernel's
/// `FUSE_NAME_MAX`). Comes from the kernel with its terminating NUL, so that it goes into a system
/// call without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name<'a>(&'a CStr);

impl<'a> Name<'a> {
    /// Longest name in bytes that the kernel sends.
    pub const MAX: usize = 1024;

    /// Checks that `name` is one component.
    ///
    /// # Errors
    /// `EINVAL` for an empty name, `.`, `..` or a name with a slash; `ENAMETOOLONG` past
    /// [`Name::MAX`].
    pub fn new(name: &'a CStr) -> Result<Self, Errno> {
        let bytes = name.to_bytes();
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
            return Err(Errno::INVAL);
        }
        if bytes.len() > Self::MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(Self(name))
    }

    /// The name as a C string, ready for a system call.
    #[must_use]
    pub fn as_c_str(self) -> &'a CStr {
        self.0
    }

    /// The name without its NUL.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0.to_bytes()
    }
}

/// Who asks. `pid` is the *thread* id of the caller in the server's pid namespace, 0 for a request
/// that no process waits for (RELEASE, FORGET, readahead).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Thread id, or 0.
    pub pid: u32,
}

/// Attributes of an inode, as the kernel's `struct fuse_attr` (64-bit times, 88 bytes on the wire).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Attr {
    /// Inode number shown to user space.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Access time, seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Modification time.
    pub mtime: (i64, u32),
    /// Change time.
    pub ctime: (i64, u32),
    /// File type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device of a special file, in the kernel's 32-bit encoding (`new_encode_dev`).
    pub rdev: u32,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

/// Attributes and how long the kernel may believe them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The attributes.
    pub attr: Attr,
    /// How long they stay valid.
    pub valid: Duration,
}

/// The reply to LOOKUP and to every operation that makes a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode; [`Entry::negative`] has 0 here. Each positive entry that reaches the kernel
    /// counts as one lookup, to be undone by FORGET.
    pub node: NodeId,
    /// Distinguishes two uses of one node id. 0 for servers that never reuse ids.
    pub generation: u64,
    /// How long the name may be believed.
    pub entry_valid: Duration,
    /// The inode's attributes.
    pub attr: Attr,
    /// How long the attributes may be believed.
    pub attr_valid: Duration,
}

impl Entry {
    /// "No such name", which the kernel may remember for `valid`.
    #[must_use]
    pub fn negative(valid: Duration) -> Self {
        Self {
            node: NodeId(0),
            generation: 0,
            entry_valid: valid,
            attr: Attr::default(),
            attr_valid: Duration::ZERO,
        }
    }
}

bitflags::bitflags! {
    /// `FOPEN_*`: how the kernel treats an open file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OpenReply: u32 {
        /// Reads and writes go to the server, past the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep the page cache of an earlier open.
        const KEEP_CACHE = 1 << 1;
        /// The file cannot seek.
        const NONSEEKABLE = 1 << 2;
        /// The kernel may cache this directory's entries.
        const CACHE_DIR = 1 << 3;
        /// The file is a stream without a position.
        const STREAM = 1 << 4;
        /// No FLUSH at close.
        const NOFLUSH = 1 << 5;
        /// Several direct writes at once on one inode.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Reads, writes, splice and mmap go to the backing file.
        const PASSTHROUGH = 1 << 7;
    }
}

/// The reply to OPEN, OPENDIR and (with an [`Entry`]) CREATE and TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Given back with each request on this handle.
    pub handle: FileHandle,
    /// How the kernel treats the handle.
    pub flags: OpenReply,
    /// The backing file, with [`OpenReply::PASSTHROUGH`] only.
    pub backing: Option<BackingId>,
}

/// The reply to CREATE and TMPFILE: a new name (or unnamed inode) that is open already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The new inode.
    pub entry: Entry,
    /// The open handle on it.
    pub opened: Opened,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// Seconds since the epoch, nanoseconds.
    To(i64, u32),
}

/// What SETATTR asks for; fields that are `None` stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits, with set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time, sent with the writeback cache only.
    pub ctime: Option<(i64, u32)>,
    /// The open handle that the change came through.
    pub handle: Option<FileHandle>,
    /// Clear set-user-id, set-group-id and file capabilities (`FATTR_KILL_SUIDGID`).
    pub kill_suidgid: bool,
}

/// Extended file attributes for STATX: what `struct fuse_statx` carries beyond [`Attr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statx {
    /// `STATX_*` bits that are filled in.
    pub mask: u32,
    /// The basic attributes.
    pub attr: Attr,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that the file system knows.
    pub attributes_mask: u64,
    /// Birth time.
    pub btime: (i64, u32),
    /// How long they stay valid.
    pub valid: Duration,
}

/// Numbers of a file system, for STATFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Blocks of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Size in bytes that the block counts are in.
    pub frsize: u32,
}

/// One lock of a byte range, for GETLK and SETLK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, `i64::MAX` for "to the end".
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// Who holds it.
    pub pid: u32,
}
