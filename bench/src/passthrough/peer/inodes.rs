//! Inodes that the kernel knows, each with an `O_PATH` descriptor of its lower file.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{BackingId, FileAttr, FileType, INodeNo};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, RawMode, Stat};
use rustix::io::{Errno, Result};

/// One lower file.
#[derive(Debug)]
pub(super) struct Inode {
    /// `O_PATH`.
    pub(super) fd: OwnedFd,
    /// What the kernel has been told of it and not forgotten.
    lookups: AtomicU64,
    /// The backing file while any handle is open.
    pub(super) backing: Mutex<Weak<BackingId>>,
}

/// The table, by lower inode number. Bounded by what the kernel remembers.
#[derive(Debug)]
pub(super) struct Inodes {
    by_number: RwLock<HashMap<u64, Arc<Inode>>>,
    root: Arc<Inode>,
}

impl Inode {
    fn new(fd: OwnedFd) -> Arc<Inode> {
        Arc::new(Inode { fd, lookups: AtomicU64::new(1), backing: Mutex::default() })
    }

    /// A path to this very file, for calls that take no `O_PATH` descriptor.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// The lower attributes.
    pub(super) fn stat(&self) -> Result<Stat> {
        fs::statat(&self.fd, c"", AtFlags::EMPTY_PATH)
    }

    /// Opens the file for I/O with open(2)'s flags as the kernel passed them.
    pub(super) fn open(&self, flags: i32) -> Result<OwnedFd> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let dropped = OFlags::NOFOLLOW | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        fs::open(self.path(), (flags - dropped) | OFlags::CLOEXEC, Mode::empty())
    }
}

impl Inodes {
    /// A table whose root is the directory `source`.
    pub(super) fn open(source: &Path) -> Result<Inodes> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Inode::new(fs::openat(CWD, source, flags, Mode::empty())?);
        Ok(Inodes { by_number: RwLock::default(), root })
    }

    /// The inode that the kernel names.
    pub(super) fn get(&self, number: INodeNo) -> Result<Arc<Inode>> {
        if number == INodeNo::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.by_number.read().get(&number.0).cloned().ok_or(Errno::STALE)
    }

    /// Finds `name` in `parent` and counts one lookup.
    pub(super) fn lookup(&self, parent: &Inode, name: &OsStr) -> Result<(Arc<Inode>, FileAttr)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&parent.fd, name, flags, Mode::empty())?;
        let stat = fs::statat(&fd, c"", AtFlags::EMPTY_PATH)?;
        Ok((self.remember(stat.st_ino, fd), attributes(stat.st_ino, &stat)))
    }

    /// Takes back `lookups` lookups, and with the last one the inode.
    pub(super) fn forget(&self, number: INodeNo, lookups: u64) {
        let mut table = self.by_number.write();
        let Some(inode) = table.get(&number.0) else { return };
        // Lookups are counted under the read lock, so none can come in between.
        if inode.lookups.fetch_sub(lookups, Ordering::Relaxed) <= lookups {
            table.remove(&number.0);
        }
    }

    fn remember(&self, number: u64, fd: OwnedFd) -> Arc<Inode> {
        if let Some(inode) = self.by_number.read().get(&number) {
            inode.lookups.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(inode);
        }
        let mut table = self.by_number.write();
        if let Some(inode) = table.get(&number) {
            inode.lookups.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(inode);
        }
        let inode = Inode::new(fd);
        table.insert(number, Arc::clone(&inode));
        inode
    }
}

/// The attributes in fuser's form, under the number that the kernel knows the inode by.
pub(super) fn attributes(number: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind(fs::FileType::from_raw_mode(stat.st_mode)),
        perm: u16::try_from(stat.st_mode & 0o7777).unwrap_or(0),
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: u32::try_from(stat.st_rdev).unwrap_or(0),
        blksize: u32::try_from(stat.st_blksize).unwrap_or(4096),
        flags: 0,
    }
}

/// The kind in fuser's form.
pub(super) fn kind(kind: fs::FileType) -> FileType {
    match kind {
        fs::FileType::Directory => FileType::Directory,
        fs::FileType::Symlink => FileType::Symlink,
        fs::FileType::Fifo => FileType::NamedPipe,
        fs::FileType::Socket => FileType::Socket,
        fs::FileType::CharacterDevice => FileType::CharDevice,
        fs::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// Permission bits as rustix takes them.
pub(super) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits as RawMode)
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let part = Duration::from_nanos(nanoseconds);
    match u64::try_from(seconds) {
        Ok(after) => UNIX_EPOCH + Duration::from_secs(after) + part,
        Err(_) => UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + part,
    }
}
