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
        Operation::Statx(args) => fs.statx(req, node, args, ticket.typed()),
        Operation::Setattr(set) => fs.setattr(req, node, &set, ticket.typed()),
        Operation::Readlink => fs.readlink(req, node, ticket.typed()),
        Operation::Open(args) => fs.open(req, node, args, ticket.typed()),
        Operation::Read(args) => fs.read(req, node, args, ticket.typed()),
        Operation::Write(args) => fs.write(req, node, args, ticket.typed()),
        Operation::Flush { handle } => fs.flush(req, node, handle, ticket.typed()),
        Operation::Release { handle } => fs.release(req, node, handle, ticket.typed()),
        Operation::Fsync(args) => fs.fsync(req, node, args, ticket.typed()),
        Operation::Statfs => fs.statfs(req, node, ticket.typed()),
        Operation::Access { mask } => fs.access(req, node, mask, ticket.typed()),
        op => dispatch_names(fs, req, op, ticket),
    }
}

fn dispatch_names<F: Filesystem>(fs: &F, req: &Request<'_>, op: Operation<'_>, ticket: Ticket<'_>) {
    let node = req.node();
    match op {
        Operation::Create(args) => fs.create(req, node, args, ticket.typed()),
        Operation::Tmpfile(args) => fs.tmpfile(req, node, args, ticket.typed()),
        Operation::Mknod(args) => fs.mknod(req, node, args, ticket.typed()),
        Operation::Mkdir(args) => fs.mkdir(req, node, args, ticket.typed()),
        Operation::Unlink { name } => fs.unlink(req, node, name, ticket.typed()),
        Operation::Rmdir { name } => fs.rmdir(req, node, name, ticket.typed()),
        Operation::Symlink(args) => fs.symlink(req, node, args, ticket.typed()),
        Operation::Rename(args) => fs.rename(req, node, args, ticket.typed()),
        Operation::Link(args) => fs.link(req, node, args, ticket.typed()),
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
        Operation::Readdir(args) => fs.readdir(req, node, args, ticket.directory(args.size)),
        Operation::Readdirplus(args) => {
            fs.readdirplus(req, node, args, ticket.directory(args.size));
        }
        Operation::Releasedir { handle } => fs.releasedir(req, node, handle, ticket.typed()),
        Operation::Fsyncdir(args) => fs.fsyncdir(req, node, args, ticket.typed()),
        Operation::Setxattr(args) => fs.setxattr(req, node, args, ticket.typed()),
        Operation::Getxattr(args) => fs.getxattr(req, node, args, ticket.typed()),
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
        Operation::Fallocate(args) => fs.fallocate(req, node, args, ticket.typed()),
        Operation::Lseek(args) => fs.lseek(req, node, args, ticket.typed()),
        Operation::CopyFileRange(args) => fs.copy_file_range(req, node, args, ticket.typed()),
        Operation::Getlk(args) => fs.getlk(req, node, args, ticket.typed()),
        Operation::Setlk(args) => fs.setlk(req, node, args, ticket.typed()),
        Operation::Ioctl(args) => fs.ioctl(req, node, args, ticket.ioctl()),
        _ => {
            ticket.error(Errno::NOSYS);
        }
    }
}
