//! The table of operations: each request to the method that serves it.

use std::ffi::CStr;

use rustix::io::Errno;
use tollgate_fuse::{
    Attributes, Connection, Created, DirReply, Entry, FileHandle, FileLock, Filesystem, InitFlags,
    Name, NodeId, Opened, Reply, Request, SetAttr, StatFs, Statx, args,
};

use crate::mapped::WriteReply;
use crate::stats::Count;
use crate::view::View;

/// Answers with an entry; one that did not reach the kernel is not counted by it.
fn send_entry(view: &View, reply: Reply<'_, Entry>, result: Result<Entry, Errno>) {
    let node = result.as_ref().ok().map(|entry| entry.node);
    if !reply.send(result)
        && let Some(node) = node
    {
        view.do_forget(node, 1);
    }
}

/// The same for an entry that is open already.
fn send_created(
    view: &View,
    req: &Request<'_>,
    reply: Reply<'_, Created>,
    result: Result<Created, Errno>,
) {
    let made = result.as_ref().ok().map(|made| (made.entry.node, made.opened.handle));
    if !reply.send(result)
        && let Some((node, handle)) = made
    {
        view.do_release(req, node, handle);
        view.do_forget(node, 1);
    }
}

impl Filesystem for View {
    fn init(&self, connection: &Connection) -> Result<(), Errno> {
        let granted = connection.negotiated().flags;
        if !granted.contains(InitFlags::PASSTHROUGH) {
            self.passthrough.unavailable("this kernel does not offer it (Linux 6.9 and later do)");
        } else if !granted.contains(InitFlags::HANDLE_KILLPRIV_V2) {
            tracing::warn!("without HANDLE_KILLPRIV_V2 each passthrough write costs a request");
        }
        self.start_watch(connection);
        self.sweeper.connected(connection);
        if connection.has_registrar() {
            self.sweeper.keep_longer();
            self.writers.start(&self.fds);
        }
        self.connection.set(connection.clone()).map_err(|_| Errno::BUSY)?;
        self.start_reading_ahead();
        Ok(())
    }

    fn destroy(&self) {
        self.pauses.end();
        self.ahead.stop();
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.do_forget(node, lookups);
    }

    fn lookup(&self, req: &Request<'_>, parent: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        send_entry(self, reply, self.do_lookup(req, parent, name));
    }

    fn getattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.send(self.do_getattr(req, node, handle));
    }

    fn statx(&self, req: &Request<'_>, node: NodeId, args: args::Statx, reply: Reply<'_, Statx>) {
        reply.send(self.do_statx(req, node, args.handle));
    }

    fn setattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        set: &SetAttr,
        reply: Reply<'_, Attributes>,
    ) {
        self.answer_setattr(req, node, set, reply);
    }

    fn readlink(&self, req: &Request<'_>, node: NodeId, reply: Reply<'_, [u8]>) {
        self.do_readlink(req, node, reply);
    }

    fn mknod(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        args: args::Mknod<'_>,
        reply: Reply<'_, Entry>,
    ) {
        let args::Mknod { name, mode, umask, rdev } = args;
        send_entry(self, reply, self.do_mknod(req, (parent, name), mode, umask, rdev));
    }

    fn mkdir(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        args: args::Mkdir<'_>,
        reply: Reply<'_, Entry>,
    ) {
        let args::Mkdir { name, mode, umask } = args;
        send_entry(self, reply, self.do_mkdir(req, (parent, name), mode, umask));
    }

    fn unlink(&self, req: &Request<'_>, parent: NodeId, name: Name<'_>, reply: Reply<'_, ()>) {
        reply.send(self.do_remove(req, parent, name, false));
    }

    fn rmdir(&self, req: &Request<'_>, parent: NodeId, name: Name<'_>, reply: Reply<'_, ()>) {
        reply.send(self.do_remove(req, parent, name, true));
    }

    fn symlink(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        args: args::Symlink<'_>,
        reply: Reply<'_, Entry>,
    ) {
        send_entry(self, reply, self.do_symlink(req, (parent, args.name), args.target));
    }

    fn rename(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        args: args::Rename<'_>,
        reply: Reply<'_, ()>,
    ) {
        self.answer_rename(req, parent, args, reply);
    }

    fn link(
        &self,
        req: &Request<'_>,
        new_parent: NodeId,
        args: args::Link<'_>,
        reply: Reply<'_, Entry>,
    ) {
        send_entry(self, reply, self.do_link(req, args.node, new_parent, args.new_name));
    }

    fn open(&self, req: &Request<'_>, node: NodeId, args: args::Open, reply: Reply<'_, Opened>) {
        self.answer_open(req, node, args, reply);
    }

    fn create(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        args: args::Create<'_>,
        reply: Reply<'_, Created>,
    ) {
        let args::Create { name, mode, umask, flags } = args;
        let result = self.do_create(req, parent, name, mode, umask, flags);
        send_created(self, req, reply, result);
    }

    fn tmpfile(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        args: args::Tmpfile,
        reply: Reply<'_, Created>,
    ) {
        let result = self.do_tmpfile(req, parent, args.mode, args.umask, args.flags);
        send_created(self, req, reply, result);
    }

    fn read(&self, req: &Request<'_>, node: NodeId, args: args::Read, reply: Reply<'_, [u8]>) {
        self.answer_read(req, node, args, reply);
    }

    fn write(&self, req: &Request<'_>, node: NodeId, args: args::Write<'_>, reply: Reply<'_, u32>) {
        self.answer_write(req, node, args, reply);
    }

    fn flush(&self, req: &Request<'_>, node: NodeId, args: args::Flush, reply: Reply<'_, ()>) {
        self.count(req, Count::other);
        self.locks_flushed(node, args.lock_owner);
        reply.send(self.do_flush(args.handle));
    }

    fn release(&self, req: &Request<'_>, node: NodeId, args: args::Release, reply: Reply<'_, ()>) {
        self.do_release(req, node, args.handle);
        reply.ok(&());
    }

    fn fsync(&self, req: &Request<'_>, node: NodeId, args: args::Fsync, reply: Reply<'_, ()>) {
        self.answer_fsync(req, node, args, reply);
    }

    fn opendir(&self, req: &Request<'_>, node: NodeId, _flags: u32, reply: Reply<'_, Opened>) {
        let result = self.do_opendir(req, node);
        let handle = result.as_ref().ok().map(|opened| opened.handle);
        if !reply.send(result)
            && let Some(handle) = handle
        {
            self.do_releasedir(handle);
        }
    }

    fn readdir(&self, req: &Request<'_>, node: NodeId, args: args::Readdir, reply: DirReply<'_>) {
        self.do_readdir(req, node, args.handle, args.offset, false, reply);
    }

    fn readdirplus(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Readdir,
        reply: DirReply<'_>,
    ) {
        self.do_readdir(req, node, args.handle, args.offset, true, reply);
    }

    fn releasedir(
        &self,
        _req: &Request<'_>,
        _node: NodeId,
        handle: FileHandle,
        reply: Reply<'_, ()>,
    ) {
        self.do_releasedir(handle);
        reply.ok(&());
    }

    fn fsyncdir(&self, req: &Request<'_>, node: NodeId, args: args::Fsync, reply: Reply<'_, ()>) {
        self.count(req, Count::other);
        reply.send(self.do_fsyncdir(req, node, args.handle, args.data_only));
    }

    fn statfs(&self, req: &Request<'_>, node: NodeId, reply: Reply<'_, StatFs>) {
        reply.send(self.do_statfs(req, node));
    }

    fn setxattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Setxattr<'_>,
        reply: Reply<'_, ()>,
    ) {
        let args::Setxattr { name, value, flags, acl_kill_sgid } = args;
        reply.send(self.do_setxattr(req, node, name, value, flags, acl_kill_sgid));
    }

    fn getxattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Getxattr<'_>,
        reply: Reply<'_, [u8]>,
    ) {
        self.do_getxattr(req, node, args.name, args.size, reply);
    }

    fn listxattr(&self, req: &Request<'_>, node: NodeId, size: u32, reply: Reply<'_, [u8]>) {
        self.do_listxattr(req, node, size, reply);
    }

    fn removexattr(&self, req: &Request<'_>, node: NodeId, name: &CStr, reply: Reply<'_, ()>) {
        reply.send(self.do_removexattr(req, node, name));
    }

    fn fallocate(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Fallocate,
        reply: Reply<'_, ()>,
    ) {
        let args::Fallocate { handle, offset, length, mode } = args;
        let reply = WriteReply::new(reply, self.hole_beside_mappings(node, &args));
        let done = self.do_fallocate(req, node, handle, offset, length, mode);
        self.record_fallocate(req, node, (offset, length), done.err());
        reply.send(done);
    }

    fn lseek(&self, req: &Request<'_>, node: NodeId, args: args::Lseek, reply: Reply<'_, u64>) {
        self.answer_lseek(req, node, args, reply);
    }

    fn copy_file_range(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::CopyFileRange,
        reply: Reply<'_, u64>,
    ) {
        let from = (node, args.handle, args.offset);
        let to = (args.to_node, args.to_handle, args.to_offset);
        reply.send(self.do_copy_file_range(req, from, to, args.length));
    }

    fn getlk(
        &self,
        req: &Request<'_>,
        node: NodeId,
        args: args::Getlk,
        reply: Reply<'_, FileLock>,
    ) {
        reply.send(self.do_getlk(req, node, &args));
    }

    fn setlk(&self, req: &Request<'_>, node: NodeId, args: args::Setlk, reply: Reply<'_, ()>) {
        self.do_setlk(req, node, &args, reply);
    }

    fn interrupted(&self, unique: u64) {
        self.locks.interrupted(unique);
        self.road.interrupted(unique);
    }
}
