//! What the kernel asks for, answered from the lower files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{
    BackingId, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
};
use rustix::fs::{self, AtFlags, CWD, FallocateFlags, Gid, OFlags, SeekFrom, Timespec, Uid};
use rustix::fs::{Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags};
use rustix::io::{Errno, Result};

use super::files::OpenFile;
use super::inodes::{attributes, kind, mode};
use super::{Peer, TTL};

/// Largest request payload: Tollgate's.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// What one copy request does at most; the kernel asks again for the rest.
const MAX_COPY_BYTES: u64 = 1 << 30;
const GENERATION: Generation = Generation(0);

impl Peer {
    fn entry(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr> {
        let parent = self.inodes.get(parent)?;
        self.inodes.lookup(&parent, name).map(|(_, attr)| attr)
    }

    fn attr(&self, ino: INodeNo) -> Result<FileAttr> {
        Ok(attributes(ino.0, &self.inodes.get(ino)?.stat()?))
    }

    fn resize(&self, ino: INodeNo, size: u64, fh: Option<FileHandle>) -> Result<()> {
        match fh {
            Some(fh) => fs::ftruncate(&self.files.get(fh)?.fd, size),
            None => fs::ftruncate(&self.inodes.get(ino)?.open(libc::O_WRONLY)?, size),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what one SETATTR can carry")]
    fn change(
        &self,
        ino: INodeNo,
        permissions: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        times: (Option<TimeOrNow>, Option<TimeOrNow>),
        fh: Option<FileHandle>,
    ) -> Result<FileAttr> {
        let inode = self.inodes.get(ino)?;
        if let Some(bits) = permissions {
            fs::chmodat(CWD, inode.path(), mode(bits), AtFlags::empty())?;
        }
        if uid.is_some() || gid.is_some() {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            fs::chownat(&inode.fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = size {
            self.resize(ino, size, fh)?;
        }
        if times.0.is_some() || times.1.is_some() {
            let (last_access, last_modification) = (timespec(times.0), timespec(times.1));
            let times = Timestamps { last_access, last_modification };
            fs::utimensat(CWD, inode.path(), &times, AtFlags::empty())?;
        }
        self.attr(ino)
    }

    fn opened(
        &self,
        ino: INodeNo,
        flags: i32,
        reply: &ReplyOpen,
    ) -> std::io::Result<(FileHandle, Arc<BackingId>)> {
        let inode = self.inodes.get(ino)?;
        let fd = inode.open(flags)?;
        self.files.open(&inode, fd, |fd| reply.open_backing(fd))
    }

    fn created(
        &self,
        (parent, name): (INodeNo, &OsStr),
        bits: u32,
        flags: i32,
        reply: &ReplyCreate,
    ) -> std::io::Result<(FileAttr, FileHandle, Arc<BackingId>)> {
        let parent = self.inodes.get(parent)?;
        let flags = OFlags::from_bits_retain(flags.cast_unsigned()) - OFlags::APPEND;
        let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&parent.fd, name, flags, mode(bits))?;
        let (inode, attr) = self.inodes.lookup(&parent, name)?;
        let opened = self.files.open(&inode, fd, |fd| reply.open_backing(fd));
        if opened.is_err() {
            self.inodes.forget(attr.ino, 1);
        }
        opened.map(|(handle, backing)| (attr, handle, backing))
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            let tv_sec = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            Timespec { tv_sec, tv_nsec: i64::from(since.subsec_nanos()) }
        }
    }
}

fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

fn answer(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(code(errno)),
    }
}

fn answer_entry(result: Result<FileAttr>, reply: ReplyEntry) {
    match result {
        Ok(attr) => reply.entry(&TTL, &attr, GENERATION),
        Err(errno) => reply.error(code(errno)),
    }
}

fn answer_attr(result: Result<FileAttr>, reply: ReplyAttr) {
    match result {
        Ok(attr) => reply.attr(&TTL, &attr),
        Err(errno) => reply.error(code(errno)),
    }
}

/// Answers a query of an extended attribute: its length when `size` is 0, else its bytes.
fn answer_xattr(
    size: u32,
    query: impl FnOnce() -> Result<usize>,
    read: impl FnOnce(&mut [u8]) -> Result<usize>,
    reply: ReplyXattr,
) {
    let mut buffer = vec![0; size as usize];
    let result = if size == 0 { query() } else { read(&mut buffer) };
    match result {
        Ok(length) if size == 0 => reply.size(u32::try_from(length).unwrap_or(u32::MAX)),
        Ok(length) => reply.data(&buffer[..length]),
        Err(errno) => reply.error(code(errno)),
    }
}

impl Filesystem for Peer {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_PASSTHROUGH
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO;
        let refused = |what: &str| std::io::Error::other(format!("the kernel has no {what}"));
        config.add_capabilities(wanted).map_err(|missing| refused(&format!("{missing:?}")))?;
        config.set_max_stack_depth(2).map_err(|_| refused("stack depth 2"))?;
        config.set_max_write(MAX_WRITE_BYTES).map_err(|_| refused("1 MiB requests"))?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(self.entry(parent, name), reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        self.inodes.forget(ino, lookups);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(self.attr(ino), reply);
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        answer_attr(self.change(ino, mode, uid, gid, size, (atime, mtime), fh), reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.inodes.get(ino).and_then(|i| fs::readlinkat(&i.fd, c"", Vec::new()));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn mknod(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        bits: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = self.inodes.get(parent).and_then(|inode| {
            let kind = fs::FileType::from_raw_mode(bits);
            fs::mknodat(&inode.fd, name, kind, mode(bits), u64::from(rdev))
        });
        answer_entry(made.and_then(|()| self.entry(parent, name)), reply);
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        bits: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let inode = self.inodes.get(parent);
        let made = inode.and_then(|inode| fs::mkdirat(&inode.fd, name, mode(bits)));
        answer_entry(made.and_then(|()| self.entry(parent, name)), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let inode = self.inodes.get(parent);
        answer(inode.and_then(|inode| fs::unlinkat(&inode.fd, name, AtFlags::empty())), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let inode = self.inodes.get(parent);
        answer(inode.and_then(|inode| fs::unlinkat(&inode.fd, name, AtFlags::REMOVEDIR)), reply);
    }

    fn symlink(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let inode = self.inodes.get(parent);
        let made = inode.and_then(|inode| fs::symlinkat(target, &inode.fd, name));
        answer_entry(made.and_then(|()| self.entry(parent, name)), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.inodes.get(parent).and_then(|from| {
            let to = self.inodes.get(newparent)?;
            let flags = fs::RenameFlags::from_bits_retain(flags.bits());
            fs::renameat_with(&from.fd, name, &to.fd, newname, flags)
        });
        answer(renamed, reply);
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = self.inodes.get(ino).and_then(|from| {
            let to = self.inodes.get(newparent)?;
            fs::linkat(CWD, from.path(), &to.fd, newname, AtFlags::SYMLINK_FOLLOW)
        });
        answer_entry(linked.and_then(|()| self.entry(newparent, newname)), reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.opened(ino, flags.0, &reply) {
            Ok((fh, backing)) => reply.opened_passthrough(fh, FopenFlags::empty(), &backing),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        bits: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.created((parent, name), bits, flags, &reply) {
            Ok((attr, fh, backing)) => {
                let flags = FopenFlags::empty();
                reply.created_passthrough(&TTL, &attr, GENERATION, fh, flags, &backing);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.close(fh);
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let sync = |file: Arc<OpenFile>| {
            if datasync { fs::fdatasync(&file.fd) } else { fs::fsync(&file.fd) }
        };
        answer(self.files.get(fh).and_then(sync), reply);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let inode = self.inodes.get(ino);
        let fd = inode.and_then(|inode| inode.open(libc::O_RDONLY | libc::O_DIRECTORY));
        match fd.and_then(|fd| self.files.open_directory(fd)) {
            Ok(fh) => reply.opened(fh, FopenFlags::empty()),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let read = self.files.directory(fh).and_then(|directory| {
            directory.lock().read(offset, |entry| {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                let (number, next) = (INodeNo(entry.ino()), entry.offset().cast_unsigned());
                reply.add(number, next, kind(entry.file_type()), name)
            })
        });
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let read = self.inodes.get(ino).and_then(|parent| {
            let directory = self.files.directory(fh)?;
            let mut failed = Ok(());
            directory.lock().read(offset, |entry| {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                let next = entry.offset().cast_unsigned();
                if name == "." || name == ".." {
                    // The kernel counts no lookup for these two.
                    return parent.stat().is_ok_and(|stat| {
                        let attr = attributes(entry.ino(), &stat);
                        reply.add(attr.ino, next, name, &TTL, &attr, GENERATION)
                    });
                }
                match self.inodes.lookup(&parent, name) {
                    Ok((_, attr)) => {
                        let full = reply.add(attr.ino, next, name, &TTL, &attr, GENERATION);
                        if full {
                            self.inodes.forget(attr.ino, 1);
                        }
                        full
                    }
                    // Gone since it was listed.
                    Err(Errno::NOENT) => false,
                    Err(errno) => {
                        failed = Err(errno);
                        true
                    }
                }
            })?;
            failed
        });
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.files.close_directory(fh);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let inode = self.inodes.get(ino);
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        match inode.and_then(|inode| fs::fstatvfs(&inode.fd)) {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                small(s.f_bsize),
                small(s.f_namemax),
                small(s.f_frsize),
            ),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        let inode = self.inodes.get(ino);
        answer(inode.and_then(|i| fs::setxattr(i.path(), name, value, flags)), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.inodes.get(ino) {
            Ok(inode) => answer_xattr(
                size,
                || fs::getxattr_query(inode.path(), name),
                |buffer| fs::getxattr(inode.path(), name, buffer),
                reply,
            ),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.inodes.get(ino) {
            Ok(inode) => answer_xattr(
                size,
                || fs::listxattr_query(inode.path()),
                |buffer| fs::listxattr(inode.path(), buffer),
                reply,
            ),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let inode = self.inodes.get(ino);
        answer(inode.and_then(|inode| fs::removexattr(inode.path(), name)), reply);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        bits: i32,
        reply: ReplyEmpty,
    ) {
        let bits = FallocateFlags::from_bits_retain(bits.cast_unsigned());
        let file = self.files.get(fh);
        answer(file.and_then(|file| fs::fallocate(&file.fd, bits, offset, length)), reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = u64::try_from(offset).map_err(|_| Errno::NXIO).and_then(|offset| {
            let to = match whence {
                libc::SEEK_DATA => SeekFrom::Data(offset),
                libc::SEEK_HOLE => SeekFrom::Hole(offset),
                _ => return Err(Errno::INVAL),
            };
            fs::seek(&self.files.get(fh)?.fd, to)
        });
        match found {
            Ok(offset) => reply.offset(offset.cast_signed()),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        mut offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        mut offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.files.get(fh_in).and_then(|from| {
            let to = self.files.get(fh_out)?;
            let length = usize::try_from(len.min(MAX_COPY_BYTES)).unwrap_or(0);
            let (from, to) = (&from.fd, &to.fd);
            fs::copy_file_range(from, Some(&mut offset_in), to, Some(&mut offset_out), length)
        });
        match copied {
            Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(code(errno)),
        }
    }
}
