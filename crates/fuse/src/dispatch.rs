//! From an operation to the method of [`Filesystem`] that serves it.

use rustix::io::Errno;

use crate::filesystem::Filesystem;
use crate::operation::Operation;
use crate::reply::{Expected, RawReply};
use crate::request::Request;

/// A link's target. The kernel takes a page less one byte, and a path has no more.
const LINK: Expected = Expected::Data(4095);

/// Calls the method for `op`.
pub(crate) fn dispatch<F: Filesystem>(
    fs: &F,
    req: &Request<'_>,
    op: Operation<'_>,
    raw: RawReply<'_>,
) {
    let node = req.node();
    match op {
        Operation::Lookup { name } => fs.lookup(req, node, name, raw.typed()),
        Operation::Getattr { handle } => fs.getattr(req, node, handle, raw.typed()),
        Operation::Statx(args) => fs.statx(req, node, args, raw.typed()),
        Operation::Setattr(set) => fs.setattr(req, node, &set, raw.typed()),
        Operation::Readlink => fs.readlink(req, node, raw.bytes(LINK)),
        Operation::Open(args) => fs.open(req, node, args, raw.typed()),
        Operation::Read(args) => fs.read(req, node, args, raw.bytes(Expected::Data(args.size))),
        Operation::Write(args) => fs.write(req, node, args, raw.typed()),
        Operation::Flush(args) => fs.flush(req, node, args, raw.typed()),
        Operation::Release(args) => fs.release(req, node, args, raw.typed()),
        Operation::Fsync(args) => fs.fsync(req, node, args, raw.typed()),
        Operation::Statfs => fs.statfs(req, node, raw.typed()),
        Operation::Access { mask } => fs.access(req, node, mask, raw.typed()),
        op => dispatch_names(fs, req, op, raw),
    }
}

fn dispatch_names<F: Filesystem>(fs: &F, req: &Request<'_>, op: Operation<'_>, raw: RawReply<'_>) {
    let node = req.node();
    match op {
        Operation::Create(args) => fs.create(req, node, args, raw.typed()),
        Operation::Tmpfile(args) => fs.tmpfile(req, node, args, raw.typed()),
        Operation::Mknod(args) => fs.mknod(req, node, args, raw.typed()),
        Operation::Mkdir(args) => fs.mkdir(req, node, args, raw.typed()),
        Operation::Unlink { name } => fs.unlink(req, node, name, raw.typed()),
        Operation::Rmdir { name } => fs.rmdir(req, node, name, raw.typed()),
        Operation::Symlink(args) => fs.symlink(req, node, args, raw.typed()),
        Operation::Rename(args) => fs.rename(req, node, args, raw.typed()),
        Operation::Link(args) => fs.link(req, node, args, raw.typed()),
        op => dispatch_directories(fs, req, op, raw),
    }
}

fn dispatch_directories<F: Filesystem>(
    fs: &F,
    req: &Request<'_>,
    op: Operation<'_>,
    raw: RawReply<'_>,
) {
    let node = req.node();
    match op {
        Operation::Opendir { flags } => fs.opendir(req, node, flags, raw.typed()),
        Operation::Readdir(args) => fs.readdir(req, node, args, raw.directory(args.size, false)),
        Operation::Readdirplus(args) => {
            fs.readdirplus(req, node, args, raw.directory(args.size, true));
        }
        Operation::Releasedir { handle } => fs.releasedir(req, node, handle, raw.typed()),
        Operation::Fsyncdir(args) => fs.fsyncdir(req, node, args, raw.typed()),
        Operation::Setxattr(args) => fs.setxattr(req, node, args, raw.typed()),
        Operation::Getxattr(args) => {
            fs.getxattr(req, node, args, raw.bytes(Expected::of_attribute(args.size)));
        }
        Operation::Listxattr { size } => {
            fs.listxattr(req, node, size, raw.bytes(Expected::of_attribute(size)));
        }
        Operation::Removexattr { name } => fs.removexattr(req, node, name, raw.typed()),
        op => dispatch_ranges(fs, req, op, raw),
    }
}

fn dispatch_ranges<F: Filesystem>(
    fs: &F,
    req: &Request<'_>,
    op: Operation<'_>,
    mut raw: RawReply<'_>,
) {
    let node = req.node();
    match op {
        Operation::Fallocate(args) => fs.fallocate(req, node, args, raw.typed()),
        Operation::Lseek(args) => fs.lseek(req, node, args, raw.typed()),
        Operation::CopyFileRange(args) => fs.copy_file_range(req, node, args, raw.typed()),
        Operation::Getlk(args) => fs.getlk(req, node, args, raw.typed()),
        Operation::Setlk(args) => fs.setlk(req, node, args, raw.typed()),
        Operation::Ioctl(args) => fs.ioctl(req, node, args, raw.ioctl(args.output_size)),
        _ => {
            raw.error(Errno::NOSYS);
        }
    }
}
