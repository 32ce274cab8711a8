//! The arguments of each FUSE operation that has more than one.
//!
//! Each method of [`crate::Filesystem`] receives the request, the inode that the request is about
//! (the directory, for operations on a name), and the operation's arguments. Names and data are
//! borrowed from the request's buffer and live as long as the handler runs.

use std::ffi::CStr;

use crate::types::{FileHandle, FileLock, Name, NodeId};

/// Arguments of [`crate::Filesystem::statx`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statx {
    /// The handle, if the caller has the file open.
    pub handle: Option<FileHandle>,
    /// The `STATX_*` bits that the caller asked for.
    pub mask: u32,
}

/// Arguments of [`crate::Filesystem::mknod`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mknod<'a> {
    /// Name of the new file.
    pub name: Name<'a>,
    /// Type and permissions.
    pub mode: u32,
    /// The caller's umask. The kernel has applied it to `mode` unless
    /// [`crate::InitFlags::DONT_MASK`] or POSIX ACLs were negotiated.
    pub umask: u32,
    /// Device number of a device file.
    pub rdev: u32,
}

/// Arguments of [`crate::Filesystem::mkdir`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mkdir<'a> {
    /// Name of the new directory.
    pub name: Name<'a>,
    /// Permissions.
    pub mode: u32,
    /// See [`Mknod::umask`].
    pub umask: u32,
}

/// Arguments of [`crate::Filesystem::symlink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symlink<'a> {
    /// Name of the new link.
    pub name: Name<'a>,
    /// The text of the link.
    pub target: &'a CStr,
}

/// Arguments of [`crate::Filesystem::rename`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The present name, in the request's directory.
    pub name: Name<'a>,
    /// The directory of the new name.
    pub new_parent: NodeId,
    /// The new name.
    pub new_name: Name<'a>,
    /// The `RENAME_*` bits of renameat2(2).
    pub flags: u32,
}

/// Arguments of [`crate::Filesystem::link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// The inode that gets a further name.
    pub node: NodeId,
    /// The new name, in the request's directory.
    pub new_name: Name<'a>,
}

/// Arguments of [`crate::Filesystem::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The flags of open(2).
    pub flags: u32,
    /// Clear set-id bits; comes with `O_TRUNC` (`FUSE_OPEN_KILL_SUIDGID`).
    pub kill_suidgid: bool,
}

/// Arguments of [`crate::Filesystem::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// Name of the new file.
    pub name: Name<'a>,
    /// Type and permissions.
    pub mode: u32,
    /// See [`Mknod::umask`].
    pub umask: u32,
    /// The flags of open(2).
    pub flags: u32,
}

/// Arguments of [`crate::Filesystem::tmpfile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmpfile {
    /// Type and permissions.
    pub mode: u32,
    /// See [`Mknod::umask`].
    pub umask: u32,
    /// The flags of open(2).
    pub flags: u32,
}

/// Arguments of [`crate::Filesystem::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The open file.
    pub handle: FileHandle,
    /// Where to start, in bytes.
    pub offset: u64,
    /// Most bytes to return.
    pub size: u32,
    /// The bytes go into pages that the kernel keeps, as for a mapping. Otherwise they go to a program
    /// that reads past the page cache.
    pub for_cache: bool,
}

/// Arguments of [`crate::Filesystem::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The open file.
    pub handle: FileHandle,
    /// Where to start, in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub data: &'a [u8],
    /// Written back from the page cache: the request's caller is not the writer.
    pub from_cache: bool,
    /// The writer appends (`O_APPEND`), and `offset` is where the kernel believes the file to end.
    pub appends: bool,
    /// What is to be durable before the answer.
    pub durable: Durable,
    /// See [`crate::SetAttr::kill_suidgid`].
    pub kill_suidgid: bool,
}

/// What is durable when a write has returned. The kernel tells it of each write, also where only that
/// one is meant (`RWF_DSYNC`, `RWF_SYNC`), and syncs nothing itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durable {
    /// Nothing yet.
    #[default]
    Later,
    /// The data, and what is needed to find it (`O_DSYNC`, as fdatasync).
    Data,
    /// Attributes as well (`O_SYNC`, as fsync).
    All,
}

impl Durable {
    /// As the flags of open(2) say it.
    #[must_use]
    pub fn of_flags(flags: u32) -> Self {
        let has = |flag: i32| flags & flag.cast_unsigned() == flag.cast_unsigned();
        match (has(libc::O_SYNC), has(libc::O_DSYNC)) {
            (true, _) => Self::All,
            (false, true) => Self::Data,
            (false, false) => Self::Later,
        }
    }
}

/// Arguments of [`crate::Filesystem::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The open file, of which a descriptor is closed.
    pub handle: FileHandle,
    /// Whose POSIX locks on the inode end with that.
    pub lock_owner: u64,
}

/// Arguments of [`crate::Filesystem::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The file that nobody has open any more.
    pub handle: FileHandle,
    /// The owner of a BSD lock (flock(2)) that was asked for through the handle, and ends now.
    pub flock_owner: Option<u64>,
}

/// Arguments of [`crate::Filesystem::fsync`] and [`crate::Filesystem::fsyncdir`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fsync {
    /// The open file or directory.
    pub handle: FileHandle,
    /// Attributes need not become durable.
    pub data_only: bool,
}

/// Arguments of [`crate::Filesystem::readdir`] and [`crate::Filesystem::readdirplus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readdir {
    /// The open directory.
    pub handle: FileHandle,
    /// The cookie of the entry to continue after; 0 is the start.
    pub offset: u64,
    /// Most bytes of entries. [`crate::DirReply`] enforces it.
    pub size: u32,
}

/// Arguments of [`crate::Filesystem::setxattr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setxattr<'a> {
    /// Name of the attribute.
    pub name: &'a CStr,
    /// Its new value.
    pub value: &'a [u8],
    /// The flags of setxattr(2).
    pub flags: u32,
    /// Clear the set-group-id bit (`FUSE_SETXATTR_ACL_KILL_SGID`).
    pub acl_kill_sgid: bool,
}

/// Arguments of [`crate::Filesystem::getxattr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Getxattr<'a> {
    /// Name of the attribute.
    pub name: &'a CStr,
    /// Most bytes of the value; 0 asks for the length alone.
    pub size: u32,
}

/// Arguments of [`crate::Filesystem::fallocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// The open file.
    pub handle: FileHandle,
    /// Where the range starts, in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u64,
    /// The mode bits of fallocate(2).
    pub mode: u32,
}

/// Arguments of [`crate::Filesystem::lseek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lseek {
    /// The open file.
    pub handle: FileHandle,
    /// Where to start, in bytes.
    pub offset: u64,
    /// `SEEK_DATA` or `SEEK_HOLE`.
    pub whence: u32,
}

/// Arguments of [`crate::Filesystem::copy_file_range`]. The source is the request's inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The open source file.
    pub handle: FileHandle,
    /// Where to read from, in bytes.
    pub offset: u64,
    /// The inode to write to.
    pub to_node: NodeId,
    /// The open file to write to.
    pub to_handle: FileHandle,
    /// Where to write, in bytes.
    pub to_offset: u64,
    /// Most bytes to copy. Never more than the reply can express.
    pub length: u64,
    /// The flags of copy_file_range(2).
    pub flags: u64,
}

/// Arguments of [`crate::Filesystem::getlk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Getlk {
    /// The open file.
    pub handle: FileHandle,
    /// Identifies the lock's owner.
    pub owner: u64,
    /// The lock to test.
    pub lock: FileLock,
}

/// Arguments of [`crate::Filesystem::setlk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setlk {
    /// The open file.
    pub handle: FileHandle,
    /// Identifies the lock's owner.
    pub owner: u64,
    /// The lock to take or release.
    pub lock: FileLock,
    /// A BSD lock (flock(2)), not a POSIX lock.
    pub flock: bool,
    /// Wait for the lock (SETLKW).
    pub wait: bool,
}

/// Arguments of [`crate::Filesystem::ioctl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The open file.
    pub handle: FileHandle,
    /// The command.
    pub command: u32,
    /// Bytes that the command passes in.
    pub input: &'a [u8],
    /// Most bytes that the command takes back.
    pub output_size: u32,
}
