//! What a server implements.

use std::ffi::CStr;

use rustix::io::Errno;

use crate::args;
use crate::connection::Connection;
use crate::reply::{DirReply, Reply};
use crate::request::Request;
use crate::types::{
    Attributes, Created, Entry, FileHandle, FileLock, Name, NodeId, Opened, SetAttr, StatFs, Statx,
};

/// A file system served over FUSE. Every method receives a reply object that must be used exactly
/// once, from any thread; one that is dropped unused replies `EIO`, so that no caller hangs.
///
/// `node` is the inode that the request is about; for operations on a name, the directory. The
/// further arguments of an operation are in a struct of [`args`], unless there is only one.
///
/// Methods run on the transport's threads, many at once. The defaults reply `ENOSYS`, which the
/// kernel takes as "never ask again" for most operations; those of [`Filesystem::release`],
/// [`Filesystem::releasedir`] and [`Filesystem::readdirplus`] do better.
#[expect(unused_variables, reason = "the defaults do not use their arguments")]
pub trait Filesystem: Send + Sync + 'static {
    /// The connection is established. It has what was negotiated, registers backing files, and
    /// sends notifications.
    ///
    /// # Errors
    /// An error ends the session before the first request.
    ///
    /// # Panics
    /// A panic comes out of [`Session::start`](crate::Session::start), which closes the connection before.
    fn init(&self, connection: &Connection) -> Result<(), Errno> {
        Ok(())
    }

    /// The session ends; no request follows. Called by [`Running::wait`](crate::Running::wait), or when
    /// [`Running`](crate::Running) is dropped, after the device was closed; also when the session failed
    /// to start after [`Filesystem::init`] had returned. In a thread of the session if a handler had given
    /// that up.
    ///
    /// # Panics
    /// A panic comes out of `wait`, or of the drop, or ends that thread.
    fn destroy(&self) {}

    /// The kernel drops `lookups` references to `node`. It expects no reply.
    fn forget(&self, node: NodeId, lookups: u64) {}

    /// The caller of request `unique` ([`Request::unique`]) got a signal and would rather have
    /// `EINTR` than wait. [`Reply::interrupted`] says so too from now on; this is for a server that
    /// waits and cannot ask. The request may be over already, or not have begun. It is called by a
    /// worker: with one, not before the handler that this one is in has returned.
    fn interrupted(&self, unique: u64) {}

    /// Finds `name` in `node`. A positive entry counts one lookup.
    fn lookup(&self, req: &Request<'_>, node: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
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

    /// Extended attributes of `node`.
    fn statx(&self, req: &Request<'_>, node: NodeId, args: args::Statx, reply: Reply<'_, Statx>) {
        reply.error(Errno::NOSYS);
    }

    /// Changes attributes and returns the new ones.
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

    /// Makes a file in directory `node`, without opening it.
    fn mknod(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Mknod<'_>,
        reply: Reply<'_, Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a directory in `node`.
    fn mkdir(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Mkdir<'_>,
        reply: Reply<'_, Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Removes a name that is not a directory.
    fn unlink(&self, req: &Request<'_>, node: NodeId, name: Name<'_>, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an empty directory.
    fn rmdir(&self, req: &Request<'_>, node: NodeId, name: Name<'_>, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a symbolic link in directory `node`.
    fn symlink(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Symlink<'_>,
        reply: Reply<'_, Entry>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Renames an entry of directory `node`.
    fn rename(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Rename<'_>,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Gives an inode a further name, in directory `node`.
    fn link(&self, req: &Request<'_>, node: NodeId, args: args::Link<'_>, reply: Reply<'_, Entry>) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a file.
    fn open(&self, req: &Request<'_>, node: NodeId, args: args::Open, reply: Reply<'_, Opened>) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file in directory `node` and opens it.
    fn create(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Create<'_>,
        reply: Reply<'_, Created>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file without a name in directory `node` and opens it (`O_TMPFILE`).
    fn tmpfile(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Tmpfile,
        reply: Reply<'_, Created>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Reads. Fewer bytes than asked for mean the end of the file.
    fn read(&self, req: &Request<'_>, node: NodeId, args: args::Read, reply: Reply<'_, [u8]>) {
        reply.error(Errno::NOSYS);
    }

    /// Writes, and returns how many bytes were written.
    fn write(&self, req: &Request<'_>, node: NodeId, args: args::Write<'_>, reply: Reply<'_, u32>) {
        reply.error(Errno::NOSYS);
    }

    /// A descriptor is closed (there may be more of the same handle).
    fn flush(&self, req: &Request<'_>, node: NodeId, args: args::Flush, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// The last use of the handle is over.
    fn release(&self, req: &Request<'_>, node: NodeId, args: args::Release, reply: Reply<'_, ()>) {
        reply.ok(&());
    }

    /// Makes the file's data (and unless `data_only`, its attributes) durable.
    fn fsync(&self, req: &Request<'_>, node: NodeId, args: args::Fsync, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a directory. `flags` are those of open(2).
    fn opendir(&self, req: &Request<'_>, node: NodeId, flags: u32, reply: Reply<'_, Opened>) {
        reply.error(Errno::NOSYS);
    }

    /// Lists a directory.
    fn readdir(&self, req: &Request<'_>, node: NodeId, args: args::Readdir, reply: DirReply<'_>) {
        reply.error(Errno::NOSYS);
    }

    /// As [`Filesystem::readdir`], each entry with a lookup (`.` and `..` without).
    ///
    /// The default is `readdir`, whose names are then listed without attributes: the kernel looks up those
    /// that it needs. Which of the two it asks for is its own choice, so a file system has `readdir`, or
    /// both.
    fn readdirplus(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Readdir,
        reply: DirReply<'_>,
    ) {
        self.readdir(req, node, args, reply);
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
    fn fsyncdir(&self, req: &Request<'_>, node: NodeId, args: args::Fsync, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// Sizes and limits of the file system.
    fn statfs(&self, req: &Request<'_>, node: NodeId, reply: Reply<'_, StatFs>) {
        reply.error(Errno::NOSYS);
    }

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Setxattr<'_>,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Reads an extended attribute. If `size` is 0, reply with [`Reply::size`].
    fn getxattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Getxattr<'_>,
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

    /// fallocate(2).
    fn fallocate(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Fallocate,
        reply: Reply<'_, ()>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Finds data or a hole (`SEEK_DATA`, `SEEK_HOLE`).
    fn lseek(&self, req: &Request<'_>, node: NodeId, args: args::Lseek, reply: Reply<'_, u64>) {
        reply.error(Errno::NOSYS);
    }

    /// copy_file_range(2) from `node`; returns how many bytes were copied.
    fn copy_file_range(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::CopyFileRange,
        reply: Reply<'_, u64>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Tests a POSIX lock; sent only if remote locks were negotiated.
    fn getlk(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Getlk,
        reply: Reply<'_, FileLock>,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Takes or releases a POSIX or BSD lock; sent only if remote locks were negotiated.
    fn setlk(&self, req: &Request<'_>, node: NodeId, args: args::Setlk, reply: Reply<'_, ()>) {
        reply.error(Errno::NOSYS);
    }

    /// ioctl(2) whose arguments have the size that `_IOC` encodes: the kernel refuses others for
    /// unprivileged mounts.
    fn ioctl(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Ioctl<'_>,
        reply: Reply<'_, [u8]>,
    ) {
        reply.error(Errno::NOSYS);
    }
}
