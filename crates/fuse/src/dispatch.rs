//! From an operation to the method of [`Filesystem`] that serves it.

use rustix::io::Errno;

use crate::filesystem::Filesystem;
use crate::operation::Operation;
use crate::reply::Ticket;
use crate::request::Request;

/// Calls the method for `op`.
pub(crate) fn dispatch<F: Filesystem>(
    fs: &F,
    req: &Request<'_>,
    op: Operation<'_>,
    ticket: Ticket<'_>,
) {
    let node = req.node();
    match op {
        Operation::Lookup { name } => fs.lookup(req, node, name, ticket.typed()),
        Operation::Getattr { handle } => fs.getattr(req, node, handle, ticket.typed()),
        Operation::Statx { handle, mask } => fs.statx(req, node, handle, mask, ticket.typed()),
        Operation::Setattr { set } => fs.setattr(req, node, &set, ticket.typed()),
        Operation::Readlink => fs.readlink(req, node, ticket.typed()),
        Operation::Open { flags, kill_suidgid } => {
            fs.open(req, node, flags, kill_suidgid, ticket.typed());
        }
        Operation::Read { handle, offset, size } => {
            fs.read(req, node, handle, offset, size, ticket.typed());
        }
        Operation::Write { handle, offset, data, from_cache, kill_suidgid } => {
            let reply = ticket.typed();
            fs.write(req, node, handle, offset, data, from_cache, kill_suidgid, reply);
        }
        Operation::Flush { handle } => fs.flush(req, node, handle, ticket.typed()),
        Operation::Release { handle } => fs.release(req, node, handle, ticket.typed()),
        Operation::Fsync { handle, data_only } => {
            fs.fsync(req, node, handle, data_only, ticket.typed());
        }
        Operation::Statfs => fs.statfs(req, node, ticket.typed()),
        Operation::Access { mask } => fs.access(req, node, mask, ticket.typed()),
        op => dispatch_names(fs, req, op, ticket),
    }
}

fn dispatch_names<F: Filesystem>(fs: &F, req: &Request<'_>, op: Operation<'_>, ticket: Ticket<'_>) {
    let node = req.node();
    match op {
        Operation::Create { name, mode, umask, flags } => {
            fs.create(req, node, name, mode, umask, flags, ticket.typed());
        }
        Operation::Tmpfile { mode, umask, flags } => {
            fs.tmpfile(req, node, mode, umask, flags, ticket.typed());
        }
        Operation::Mknod { name, mode, umask, rdev } => {
            fs.mknod(req, node, name, mode, umask, rdev, ticket.typed());
        }
        Operation::Mkdir { name, mode, umask } => {
            fs.mkdir(req, node, name, mode, umask, ticket.typed());
        }
        Operation::Unlink { name } => fs.unlink(req, node, name, ticket.typed()),
        Operation::Rmdir { name } => fs.rmdir(req, node, name, ticket.typed()),
        Operation::Symlink { name, target } => {
            fs.symlink(req, node, name, target, ticket.typed());
        }
        Operation::Rename { name, new_parent, new_name, flags } => {
            fs.rename(req, node, name, new_parent, new_name, flags, ticket.typed());
        }
        Operation::Link { node: old, new_name } => {
            fs.link(req, old, node, new_name, ticket.typed());
        }
        op => dispatch_directories(fs, req, op, ticket),
    }
}

fn dispatch_directories<F: Filesystem>(
    fs: &F,
    req: &Request<'_>,
    op: Operation<'_>,
    ticket: Ticket<'_>,
) {
    let node = req.node();
    match op {
        Operation::Opendir { flags } => fs.opendir(req, node, flags, ticket.typed()),
        Operation::Readdir { handle, offset, size } => {
            fs.readdir(req, node, handle, offset, ticket.directory(size));
        }
        Operation::Readdirplus { handle, offset, size } => {
            fs.readdirplus(req, node, handle, offset, ticket.directory(size));
        }
        Operation::Releasedir { handle } => fs.releasedir(req, node, handle, ticket.typed()),
        Operation::Fsyncdir { handle, data_only } => {
            fs.fsyncdir(req, node, handle, data_only, ticket.typed());
        }
        Operation::Setxattr { name, value, flags, acl_kill_sgid } => {
            fs.setxattr(req, node, name, value, flags, acl_kill_sgid, ticket.typed());
        }
        Operation::Getxattr { name, size } => fs.getxattr(req, node, name, size, ticket.typed()),
        Operation::Listxattr { size } => fs.listxattr(req, node, size, ticket.typed()),
        Operation::Removexattr { name } => fs.removexattr(req, node, name, ticket.typed()),
        op => dispatch_ranges(fs, req, op, ticket),
    }
}

fn dispatch_ranges<F: Filesystem>(
    fs: &F,
    req: &Request<'_>,
    op: Operation<'_>,
    mut ticket: Ticket<'_>,
) {
    let node = req.node();
    match op {
        Operation::Fallocate { handle, offset, length, mode } => {
            fs.fallocate(req, node, handle, offset, length, mode, ticket.typed());
        }
        Operation::Lseek { handle, offset, whence } => {
            fs.lseek(req, node, handle, offset, whence, ticket.typed());
        }
        Operation::CopyFileRange { from: (handle, from), to, length, flags, wide } => {
            // The 32-bit answer of the older form must hold the count.
            let length = if wide { length } else { length.min(u64::from(u32::MAX)) };
            fs.copy_file_range(req, (node, handle, from), to, length, flags, ticket.typed());
        }
        Operation::Getlk { handle, owner, lock } => {
            fs.getlk(req, node, handle, owner, lock, ticket.typed());
        }
        Operation::Setlk { handle, owner, lock, flock, wait } => {
            fs.setlk(req, node, handle, owner, lock, flock, wait, ticket.typed());
        }
        Operation::Ioctl { handle, command, input, output_size } => {
            fs.ioctl(req, node, handle, command, input, output_size, ticket.ioctl());
        }
        _ => {
            ticket.error(Errno::NOSYS);
        }
    }
}
