//! What a server implements.

use std::ffi::CStr;

use rustix::io::Errno;

use crate::Connection;
use crate::reply::{DirReply, Reply};
use crate::request::Request;
use crate::types::{
    Attributes, Created, Entry, FileHandle, FileLock, Name, NodeId, Opened, SetAttr, StatFs, Statx,
};

/// A file system served over FUSE. Every method gets a reply object that must be answered exactly
/// once, from any thread; one that is dropped unanswered answers `EIO`, so that no caller hangs.
///
/// Methods run on the transport's threads, many at once. The defaults answer `ENOSYS`, which the kernel
/// takes as "never ask again" for most operations.
#[expect(unused_variables, reason = "the defaults answer without looking")]
#[expect(clippy::too_many_arguments, reason = "the wire's requests have that many fields")]
pub trait Filesystem: Send + Sync + 'static {
    /// The connection stands: what was negotiated, and the door to backing files and notifications.
    ///
    /// # Errors
    /// An error ends the session before the first request.
    fn init(&self, connection: &Connection) -> Result<(), Errno> {
        Ok(())
    }

    /// The session ends; no request follows.
    fn destroy(&self) {}

    /// The kernel drops `lookups` references to `node`. Nobody waits for it.
    fn forget(&self, node: NodeId, lookups: u64) {}

    /// Finds `name` in `parent`. A positive entry counts one lookup.
    fn lookup(&self, req: &Request<'_>, parent: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// Attributes of `node`.
    fn getattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Extended attributes of `node`; `mask` is the caller's `STATX_*` request.
    fn statx(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
        mask: u32,
        reply: Reply<'_, Statx>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Changes attributes and answers the new ones.
    fn setattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        set: &SetAttr,
        reply: Reply<'_, Attributes>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// The target of a symbolic link.
    fn readlink(&self, req: &Request<'_>, node: NodeId, reply: Reply<'_, [u8]>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file that is not opened. `mode` carries the type; `umask` was *not* applied when
    /// [`crate::InitFlags::DONT_MASK`] or POSIX ACLs were negotiated.
    fn mknod(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: Reply<'_, Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a directory.
    fn mkdir(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        umask: u32,
        reply: Reply<'_, Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Removes a name that is no directory.
    fn unlink(&self, req: &Request<'_>, parent: NodeId, name: Name<'_>, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an empty directory.
    fn rmdir(&self, req: &Request<'_>, parent: NodeId, name: Name<'_>, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a symbolic link with the text `target`.
    fn symlink(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        target: &CStr,
        reply: Reply<'_, Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Renames; `flags` are the `RENAME_*` bits of renameat2.
    fn rename(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        new_parent: NodeId,
        new_name: Name<'_>,
        flags: u32,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Gives `node` a further name.
    fn link(
        &self,
        req: &Request<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: Name<'_>,
        reply: Reply<'_, Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Opens. `flags` are open(2)'s; `kill_suidgid` comes with `O_TRUNC` (`FUSE_OPEN_KILL_SUIDGID`).
    fn open(
        &self,
        req: &Request<'_>,
        node: NodeId,
        flags: u32,
        kill_suidgid: bool,
        reply: Reply<'_, Opened>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Makes and opens a file.
    fn create(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        umask: u32,
        flags: u32,
        reply: Reply<'_, Created>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Makes and opens a file without a name in directory `parent` (`O_TMPFILE`).
    fn tmpfile(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        mode: u32,
        umask: u32,
        flags: u32,
        reply: Reply<'_, Created>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Reads at most `size` bytes at `offset`. Fewer bytes mean the end of the file.
    fn read(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        size: u32,
        reply: Reply<'_, [u8]>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Writes `data` at `offset` and answers how many bytes were taken. `from_cache`: written back from
    /// the page cache, so the caller is not who wrote. `kill_suidgid`: see [`SetAttr::kill_suidgid`].
    fn write(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        from_cache: bool,
        kill_suidgid: bool,
        reply: Reply<'_, u32>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// A descriptor is closed (there may be more of the same handle).
    fn flush(&self, req: &Request<'_>, node: NodeId, handle: FileHandle, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// The last use of the handle is over.
    fn release(&self, req: &Request<'_>, node: NodeId, handle: FileHandle, reply: Reply<'_, ()>) {
        reply.ok(&());
    }

    /// Makes the file's data (and unless `data_only`, its attributes) durable.
    fn fsync(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        data_only: bool,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a directory.
    fn opendir(&self, req: &Request<'_>, node: NodeId, flags: u32, reply: Reply<'_, Opened>) {
        reply.error(Errno::NOSYS);
    }

    /// Lists a directory from the cookie `offset` (0 is the start).
    fn readdir(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        reply: DirReply<'_>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// As [`Filesystem::readdir`], each entry with a lookup (`.` and `..` without).
    fn readdirplus(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        reply: DirReply<'_>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// The last use of the directory handle is over.
    fn releasedir(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        reply: Reply<'_, ()>,
    ) {
        reply.ok(&());
    }

    /// Makes a directory's entries durable.
    fn fsyncdir(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        data_only: bool,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Numbers of the file system.
    fn statfs(&self, req: &Request<'_>, node: NodeId, reply: Reply<'_, StatFs>) {
        reply.error(Errno::NOSYS);
    }

    /// Sets an extended attribute; `flags` are setxattr(2)'s. `acl_kill_sgid`: clear set-group-id.
    fn setxattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        name: &CStr,
        value: &[u8],
        flags: u32,
        acl_kill_sgid: bool,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Reads an extended attribute. `size` 0 asks for the length: answer with [`Reply::size`].
    fn getxattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        name: &CStr,
        size: u32,
        reply: Reply<'_, [u8]>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Lists the names of extended attributes, each with its NUL. `size` as in `getxattr`.
    fn listxattr(&self, req: &Request<'_>, node: NodeId, size: u32, reply: Reply<'_, [u8]>) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, req: &Request<'_>, node: NodeId, name: &CStr, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// Checks access; not sent with `default_permissions`.
    fn access(&self, req: &Request<'_>, node: NodeId, mask: u32, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// fallocate(2) with its `mode` bits.
    fn fallocate(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: u32,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// `SEEK_DATA` and `SEEK_HOLE`.
    fn lseek(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        whence: u32,
        reply: Reply<'_, u64>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// copy_file_range(2); answers how many bytes were copied.
    fn copy_file_range(
        &self,
        req: &Request<'_>,
        from: (NodeId, FileHandle, u64),
        to: (NodeId, FileHandle, u64),
        length: u64,
        flags: u64,
        reply: Reply<'_, u64>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Tests a POSIX lock; sent only if remote locks were negotiated.
    fn getlk(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        owner: u64,
        lock: FileLock,
        reply: Reply<'_, FileLock>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Takes or drops a POSIX or (`flock`) BSD lock; `wait` for SETLKW.
    fn setlk(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        owner: u64,
        lock: FileLock,
        flock: bool,
        wait: bool,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// ioctl(2) with `_IOC` sized arguments: the kernel refuses others for unprivileged mounts.
    fn ioctl(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        command: u32,
        input: &[u8],
        output_size: u32,
        reply: Reply<'_, [u8]>,
    ) {
        reply.error(Errno::NOSYS);
    }
}
