//! The table of operations: each request to the method that serves it.

use std::ffi::CStr;

use rustix::io::Errno;
use tollgate_fuse::{
    Attributes, Connection, Created, DirReply, Entry, FileHandle, Filesystem, InitFlags, Name,
    NodeId, Opened, Reply, Request, SetAttr, StatFs, Statx,
};

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
        self.connection.set(connection.clone()).map_err(|_| Errno::BUSY)
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

    fn statx(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
        _mask: u32,
        reply: Reply<'_, Statx>,
    ) {
        reply.send(self.do_statx(req, node, handle));
    }

    fn setattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        set: &SetAttr,
        reply: Reply<'_, Attributes>,
    ) {
        reply.send(self.do_setattr(req, node, set));
    }

    fn readlink(&self, req: &Request<'_>, node: NodeId, reply: Reply<'_, [u8]>) {
        self.do_readlink(req, node, reply);
    }

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
        send_entry(self, reply, self.do_mknod(req, (parent, name), mode, umask, rdev));
    }

    fn mkdir(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        umask: u32,
        reply: Reply<'_, Entry>,
    ) {
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
        name: Name<'_>,
        target: &CStr,
        reply: Reply<'_, Entry>,
    ) {
        send_entry(self, reply, self.do_symlink(req, (parent, name), target));
    }

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
        reply.send(self.do_rename(req, (parent, name), (new_parent, new_name), flags));
    }

    fn link(
        &self,
        req: &Request<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: Name<'_>,
        reply: Reply<'_, Entry>,
    ) {
        send_entry(self, reply, self.do_link(req, node, new_parent, new_name));
    }

    fn open(
        &self,
        req: &Request<'_>,
        node: NodeId,
        flags: u32,
        kill_suidgid: bool,
        reply: Reply<'_, Opened>,
    ) {
        let result = self.do_open(req, node, flags, kill_suidgid);
        let handle = result.as_ref().ok().map(|opened| opened.handle);
        if !reply.send(result)
            && let Some(handle) = handle
        {
            self.do_release(req, node, handle);
        }
    }

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
        let result = self.do_create(req, parent, name, mode, umask, flags);
        send_created(self, req, reply, result);
    }

    fn tmpfile(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        mode: u32,
        umask: u32,
        flags: u32,
        reply: Reply<'_, Created>,
    ) {
        let result = self.do_tmpfile(req, parent, mode, umask, flags);
        send_created(self, req, reply, result);
    }

    fn read(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        size: u32,
        reply: Reply<'_, [u8]>,
    ) {
        self.do_read(req, node, handle, offset, size, reply);
    }

    fn write(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _from_cache: bool,
        kill_suidgid: bool,
        reply: Reply<'_, u32>,
    ) {
        reply.send(self.do_write(req, node, handle, offset, data, kill_suidgid));
    }

    fn flush(&self, req: &Request<'_>, _node: NodeId, handle: FileHandle, reply: Reply<'_, ()>) {
        self.count(req, Count::other);
        reply.send(self.do_flush(handle));
    }

    fn release(&self, req: &Request<'_>, node: NodeId, handle: FileHandle, reply: Reply<'_, ()>) {
        self.do_release(req, node, handle);
        reply.ok(&());
    }

    fn fsync(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        data_only: bool,
        reply: Reply<'_, ()>,
    ) {
        reply.send(self.do_fsync(req, node, handle, data_only));
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

    fn readdir(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        reply: DirReply<'_>,
    ) {
        self.do_readdir(req, node, handle, offset, false, reply);
    }

    fn readdirplus(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        reply: DirReply<'_>,
    ) {
        self.do_readdir(req, node, handle, offset, true, reply);
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

    fn fsyncdir(
        &self,
        req: &Request<'_>,
        _node: NodeId,
        handle: FileHandle,
        data_only: bool,
        reply: Reply<'_, ()>,
    ) {
        self.count(req, Count::other);
        reply.send(self.do_fsyncdir(handle, data_only));
    }

    fn statfs(&self, req: &Request<'_>, node: NodeId, reply: Reply<'_, StatFs>) {
        reply.send(self.do_statfs(req, node));
    }

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
        reply.send(self.do_setxattr(req, node, name, value, flags, acl_kill_sgid));
    }

    fn getxattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        name: &CStr,
        size: u32,
        reply: Reply<'_, [u8]>,
    ) {
        self.do_getxattr(req, node, name, size, reply);
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
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: u32,
        reply: Reply<'_, ()>,
    ) {
        reply.send(self.do_fallocate(req, node, handle, offset, length, mode));
    }

    fn lseek(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        whence: u32,
        reply: Reply<'_, u64>,
    ) {
        reply.send(self.do_lseek(req, node, handle, offset, whence));
    }

    fn copy_file_range(
        &self,
        req: &Request<'_>,
        from: (NodeId, FileHandle, u64),
        to: (NodeId, FileHandle, u64),
        length: u64,
        _flags: u64,
        reply: Reply<'_, u64>,
    ) {
        reply.send(self.do_copy_file_range(req, from, to, length));
    }
}
