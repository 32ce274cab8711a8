//! Decoding of requests into operations. Pure: no I/O, no allocation, no panic for any input.

use super::{Dialect, Forgets, Operation};
use crate::abi::{self, fattr, opcode};
use crate::args;
use crate::message::{Arguments, DecodeError, Message};
use crate::types::{FileHandle, FileLock, NodeId, SetAttr, SetTime};

impl<'a> Operation<'a> {
    /// Decodes a request's arguments.
    ///
    /// # Errors
    /// Arguments that are short, not terminated, or not what the operation allows. Bytes after the
    /// arguments are ignored: a later kernel may append fields.
    pub fn decode(message: &Message<'a>, dialect: Dialect) -> Result<Self, DecodeError> {
        let args = message.arguments();
        match message.header().opcode {
            opcode::INIT => Ok(Self::Init { args: args.rest() }),
            opcode::DESTROY => Ok(Self::Destroy),
            opcode::FORGET..=opcode::SETATTR | opcode::STATX => attributes(message, args),
            opcode::BATCH_FORGET | opcode::INTERRUPT => attributes(message, args),
            opcode::SETXATTR..=opcode::REMOVEXATTR => xattrs(message, args, dialect),
            opcode::GETLK..=opcode::SETLKW => locks(message, args),
            opcode::LOOKUP
            | opcode::READLINK..=opcode::LINK
            | opcode::RENAME2
            | opcode::CREATE
            | opcode::TMPFILE => names(message, args),
            _ => files(message, args),
        }
    }
}

fn handle(fh: u64) -> FileHandle {
    FileHandle(fh)
}

fn attributes<'a>(
    message: &Message<'a>,
    mut args: Arguments<'a>,
) -> Result<Operation<'a>, DecodeError> {
    let optional = |flags: u32, fh| (flags & abi::GETATTR_FH != 0).then_some(handle(fh));
    Ok(match message.header().opcode {
        opcode::FORGET => Operation::Forget { lookups: args.fixed::<abi::ForgetIn>()?.nlookup },
        opcode::BATCH_FORGET => {
            let count = args.fixed::<abi::BatchForgetIn>()?.count;
            let len = u64::from(count) * size_of::<abi::ForgetOne>() as u64;
            // What does not fit u32 cannot be there either: `data` refuses it.
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            Operation::BatchForget { forgets: Forgets(args.data(len)?) }
        }
        opcode::INTERRUPT => {
            Operation::Interrupt { unique: args.fixed::<abi::InterruptIn>()?.unique }
        }
        opcode::GETATTR => {
            let a: abi::GetattrIn = args.fixed()?;
            Operation::Getattr { handle: optional(a.getattr_flags, a.fh) }
        }
        opcode::STATX => {
            let a: abi::StatxIn = args.fixed()?;
            let handle = optional(a.getattr_flags, a.fh);
            Operation::Statx(args::Statx { handle, mask: a.sx_mask })
        }
        opcode::SETATTR => Operation::Setattr(set_attr(&args.fixed()?)),
        _ => Operation::Unsupported,
    })
}

#[expect(clippy::cast_possible_wrap, reason = "the kernel sends signed seconds in unsigned fields")]
fn set_attr(a: &abi::SetattrIn) -> SetAttr {
    let has = |bit| a.valid & bit != 0;
    let time = |bit, now, seconds: u64, nanoseconds| match (has(bit), has(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::To(seconds as i64, nanoseconds)),
    };
    SetAttr {
        mode: has(fattr::MODE).then_some(a.mode),
        uid: has(fattr::UID).then_some(a.uid),
        gid: has(fattr::GID).then_some(a.gid),
        size: has(fattr::SIZE).then_some(a.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, a.atime, a.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, a.mtime, a.mtimensec),
        ctime: has(fattr::CTIME).then_some((a.ctime as i64, a.ctimensec)),
        handle: has(fattr::FH).then_some(handle(a.fh)),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    }
}

fn names<'a>(message: &Message<'a>, mut args: Arguments<'a>) -> Result<Operation<'a>, DecodeError> {
    Ok(match message.header().opcode {
        opcode::LOOKUP => Operation::Lookup { name: args.name()? },
        opcode::READLINK => Operation::Readlink,
        opcode::SYMLINK => {
            let (name, target) = (args.name()?, args.string()?);
            Operation::Symlink(args::Symlink { name, target })
        }
        opcode::MKNOD => {
            let a: abi::MknodIn = args.fixed()?;
            let name = args.name()?;
            Operation::Mknod(args::Mknod { name, mode: a.mode, umask: a.umask, rdev: a.rdev })
        }
        opcode::MKDIR => {
            let a: abi::MkdirIn = args.fixed()?;
            let name = args.name()?;
            Operation::Mkdir(args::Mkdir { name, mode: a.mode, umask: a.umask })
        }
        opcode::UNLINK => Operation::Unlink { name: args.name()? },
        opcode::RMDIR => Operation::Rmdir { name: args.name()? },
        opcode::RENAME => {
            let a: abi::RenameIn = args.fixed()?;
            rename(&mut args, a.newdir, 0)?
        }
        opcode::RENAME2 => {
            let a: abi::Rename2In = args.fixed()?;
            rename(&mut args, a.newdir, a.flags)?
        }
        opcode::LINK => {
            let a: abi::LinkIn = args.fixed()?;
            let node = NodeId(a.oldnodeid);
            Operation::Link(args::Link { node, new_name: args.name()? })
        }
        opcode::CREATE => {
            let a: abi::CreateIn = args.fixed()?;
            let name = args.name()?;
            Operation::Create(args::Create { name, mode: a.mode, umask: a.umask, flags: a.flags })
        }
        opcode::TMPFILE => {
            // A name follows ("/" in today's kernels), which has no meaning.
            let a: abi::CreateIn = args.fixed()?;
            Operation::Tmpfile(args::Tmpfile { mode: a.mode, umask: a.umask, flags: a.flags })
        }
        _ => Operation::Unsupported,
    })
}

fn rename<'a>(
    args: &mut Arguments<'a>,
    new_parent: u64,
    flags: u32,
) -> Result<Operation<'a>, DecodeError> {
    let name = args.name()?;
    let new_name = args.name()?;
    let new_parent = NodeId(new_parent);
    Ok(Operation::Rename(args::Rename { name, new_parent, new_name, flags }))
}

fn xattrs<'a>(
    message: &Message<'a>,
    mut args: Arguments<'a>,
    dialect: Dialect,
) -> Result<Operation<'a>, DecodeError> {
    Ok(match message.header().opcode {
        opcode::SETXATTR => {
            let (size, flags, own) = if dialect.setxattr_ext {
                let a: abi::SetxattrIn = args.fixed()?;
                (a.size, a.flags, a.setxattr_flags)
            } else {
                let a: abi::SetxattrCompatIn = args.fixed()?;
                (a.size, a.flags, 0)
            };
            let name = args.string()?;
            let value = args.data(size)?;
            let acl_kill_sgid = own & abi::SETXATTR_ACL_KILL_SGID != 0;
            Operation::Setxattr(args::Setxattr { name, value, flags, acl_kill_sgid })
        }
        opcode::GETXATTR => {
            let a: abi::GetxattrIn = args.fixed()?;
            Operation::Getxattr(args::Getxattr { name: args.string()?, size: a.size })
        }
        opcode::LISTXATTR => Operation::Listxattr { size: args.fixed::<abi::GetxattrIn>()?.size },
        _ => Operation::Removexattr { name: args.string()? },
    })
}

fn locks<'a>(message: &Message<'a>, mut args: Arguments<'a>) -> Result<Operation<'a>, DecodeError> {
    let a: abi::LkIn = args.fixed()?;
    let lock = FileLock { start: a.lk.start, end: a.lk.end, kind: a.lk.kind, pid: a.lk.pid };
    let (handle, owner) = (handle(a.fh), a.owner);
    let code = message.header().opcode;
    if code == opcode::GETLK {
        return Ok(Operation::Getlk(args::Getlk { handle, owner, lock }));
    }
    let flock = a.lk_flags & abi::LK_FLOCK != 0;
    let wait = code == opcode::SETLKW;
    Ok(Operation::Setlk(args::Setlk { handle, owner, lock, flock, wait }))
}

fn files<'a>(message: &Message<'a>, mut args: Arguments<'a>) -> Result<Operation<'a>, DecodeError> {
    let code = message.header().opcode;
    Ok(match code {
        opcode::OPEN => {
            let a: abi::OpenIn = args.fixed()?;
            let kill_suidgid = a.open_flags & abi::OPEN_KILL_SUIDGID != 0;
            Operation::Open(args::Open { flags: a.flags, kill_suidgid })
        }
        opcode::OPENDIR => Operation::Opendir { flags: args.fixed::<abi::OpenIn>()?.flags },
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => {
            let a: abi::ReadIn = args.fixed()?;
            let (handle, offset, size) = (handle(a.fh), a.offset, a.size);
            match code {
                opcode::READ => {
                    // Requests of a program, past the page cache, carry the owner of its locks
                    // (`fuse_direct_io` in fs/fuse/file.c).
                    let for_cache = a.read_flags & abi::READ_LOCKOWNER == 0;
                    Operation::Read(args::Read { handle, offset, size, for_cache })
                }
                opcode::READDIR => Operation::Readdir(args::Readdir { handle, offset, size }),
                _ => Operation::Readdirplus(args::Readdir { handle, offset, size }),
            }
        }
        opcode::WRITE => {
            let a: abi::WriteIn = args.fixed()?;
            Operation::Write(args::Write {
                handle: handle(a.fh),
                offset: a.offset,
                data: args.data(a.size)?,
                from_cache: a.write_flags & abi::WRITE_CACHE != 0,
                appends: a.write_flags & abi::WRITE_CACHE == 0
                    && a.flags & libc::O_APPEND.cast_unsigned() != 0,
                durable: args::Durable::of_flags(a.flags),
                kill_suidgid: a.write_flags & abi::WRITE_KILL_SUIDGID != 0,
            })
        }
        opcode::FLUSH => {
            let a: abi::FlushIn = args.fixed()?;
            Operation::Flush(args::Flush { handle: handle(a.fh), lock_owner: a.lock_owner })
        }
        opcode::RELEASE => {
            let a: abi::ReleaseIn = args.fixed()?;
            let flocked = a.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            let flock_owner = flocked.then_some(a.lock_owner);
            Operation::Release(args::Release { handle: handle(a.fh), flock_owner })
        }
        opcode::RELEASEDIR => {
            Operation::Releasedir { handle: handle(args.fixed::<abi::ReleaseIn>()?.fh) }
        }
        opcode::FSYNC | opcode::FSYNCDIR => {
            let a: abi::FsyncIn = args.fixed()?;
            let data_only = a.fsync_flags & abi::FSYNC_FDATASYNC != 0;
            let fsync = args::Fsync { handle: handle(a.fh), data_only };
            match code {
                opcode::FSYNC => Operation::Fsync(fsync),
                _ => Operation::Fsyncdir(fsync),
            }
        }
        opcode::STATFS => Operation::Statfs,
        opcode::ACCESS => Operation::Access { mask: args.fixed::<abi::AccessIn>()?.mask },
        _ => return ranges(message, args),
    })
}

fn ranges<'a>(
    message: &Message<'a>,
    mut args: Arguments<'a>,
) -> Result<Operation<'a>, DecodeError> {
    let code = message.header().opcode;
    Ok(match code {
        opcode::FALLOCATE => {
            let a: abi::FallocateIn = args.fixed()?;
            let (handle, offset, length) = (handle(a.fh), a.offset, a.length);
            Operation::Fallocate(args::Fallocate { handle, offset, length, mode: a.mode })
        }
        opcode::LSEEK => {
            let a: abi::LseekIn = args.fixed()?;
            let (handle, offset) = (handle(a.fh), a.offset);
            Operation::Lseek(args::Lseek { handle, offset, whence: a.whence })
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let a: abi::CopyFileRangeIn = args.fixed()?;
            // The reply to the older operation counts bytes in 32 bits.
            let wide = code == opcode::COPY_FILE_RANGE_64;
            Operation::CopyFileRange(args::CopyFileRange {
                handle: handle(a.fh_in),
                offset: a.off_in,
                to_node: NodeId(a.nodeid_out),
                to_handle: handle(a.fh_out),
                to_offset: a.off_out,
                length: if wide { a.len } else { a.len.min(u64::from(u32::MAX)) },
                flags: a.flags,
            })
        }
        opcode::IOCTL => {
            let a: abi::IoctlIn = args.fixed()?;
            let (handle, input) = (handle(a.fh), args.data(a.in_size)?);
            let (command, output_size) = (a.cmd, a.out_size);
            Operation::Ioctl(args::Ioctl { handle, command, input, output_size })
        }
        _ => Operation::Unsupported,
    })
}
