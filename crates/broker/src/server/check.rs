//! What may be registered: nothing that the caller could not read and write without the broker.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, OFlags, SealFlags, StatxFlags};
use rustix::io::Errno;

use super::options::Broker;
use crate::protocol::Refusal;

/// File systems whose regular files are nothing but data: no file of theirs steers the kernel, and
/// none asks a process of the caller to answer (FUSE). By the magic number of statfs(2).
const FILE_SYSTEMS: &[u64] = &[
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // zfs
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
];

/// `MISC_MAJOR` and `FUSE_MINOR` of the kernel.
const FUSE_DEVICE: (u32, u32) = (10, 229);
const ST_NOEXEC: u64 = libc::ST_NOEXEC;
/// `STATX_ATTR_IMMUTABLE` and `STATX_ATTR_APPEND`.
const PROTECTED: u64 = 0x10 | 0x20;

/// Whether `device` is the server's end of a FUSE connection that `uid` mounted.
///
/// Who holds that end answers every request of the connection, so it could serve what it wants
/// without us. That the mount is the caller's own is checked besides, where the kernel tells it.
pub(super) fn device(device: BorrowedFd<'_>, uid: u32, broker: &Broker) -> Result<(), Refusal> {
    let flags = rustix::fs::fcntl_getfl(device).map_err(kernel)?;
    if flags.contains(OFlags::PATH) || (flags & OFlags::ACCMODE) != OFlags::RDWR {
        return Err(Refusal::NotFuse);
    }
    // A device can be opened only where devices count, so no file system of a user can pretend it.
    let stat = statx(device, StatxFlags::TYPE)?;
    let is_device = file_type(&stat) == FileType::CharacterDevice;
    if !is_device || (stat.stx_rdev_major, stat.stx_rdev_minor) != FUSE_DEVICE {
        return Err(Refusal::NotFuse);
    }
    match connection_of(device, broker).map_err(kernel)? {
        Some(number) if owner(number, broker)? == uid => Ok(()),
        Some(_) => Err(Refusal::NotYours),
        None if broker.connection_is_told => Err(Refusal::NotMounted),
        None => Ok(()),
    }
}

/// The number of the connection that `device` has, from the line `fuse_connection:` of its fdinfo.
fn connection_of(device: BorrowedFd<'_>, broker: &Broker) -> Result<Option<u32>, Errno> {
    let path = format!("self/fdinfo/{}", device.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let info = rustix::fs::openat(&broker.proc, path, flags, rustix::fs::Mode::empty())?;
    let mut bytes = [0; 1024];
    let len = rustix::io::read(&info, &mut bytes)?;
    let text = std::str::from_utf8(&bytes[..len]).map_err(|_| Errno::ILSEQ)?;
    let line = text.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
    Ok(line.and_then(|number| number.trim().parse().ok()))
}

fn owner(connection: u32, broker: &Broker) -> Result<u32, Refusal> {
    let stat = rustix::fs::statat(&broker.connections, connection.to_string(), AtFlags::empty());
    stat.map(|stat| stat.st_uid).map_err(|_| Refusal::NotMounted)
}

/// Whether `file` may be registered. Every check is of the open file itself, which no caller can
/// exchange for another: only `O_APPEND` may change afterwards, and who holds a descriptor may take
/// that away at any time (`F_SETFL`).
pub(super) fn lower(file: BorrowedFd<'_>, broker: &Broker) -> Result<(), Refusal> {
    // First what asks no file system.
    let flags = rustix::fs::fcntl_getfl(file).map_err(kernel)?;
    if flags.contains(OFlags::PATH) || (flags & OFlags::ACCMODE) != OFlags::RDWR {
        return Err(Refusal::NotReadWrite);
    }
    if flags.contains(OFlags::APPEND) {
        return Err(Refusal::Append);
    }
    // One that does not tell is none of them.
    let mounted = rustix::fs::fstatfs(file).map_err(|_| Refusal::FileSystem)?;
    if !FILE_SYSTEMS.contains(&mounted.f_type.cast_unsigned()) {
        return Err(Refusal::FileSystem);
    }
    if mounted.f_flags.cast_unsigned() & ST_NOEXEC != 0 {
        return Err(Refusal::NoExec);
    }
    let stat = statx(file, StatxFlags::TYPE)?;
    if file_type(&stat) != FileType::RegularFile {
        return Err(Refusal::NotRegular);
    }
    if broker.dev == rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor) {
        return Err(Refusal::FileSystem);
    }
    let told = stat.stx_attributes_mask.bits();
    if told & PROTECTED != PROTECTED || stat.stx_attributes.bits() & PROTECTED != 0 {
        return Err(Refusal::Protected);
    }
    seals(file)
}

/// Seals are kept by the descriptors of a memfd, and a mapping through the view would not ask them.
/// Files of a tmpfs have one seal, that there will be no others.
fn seals(file: BorrowedFd<'_>) -> Result<(), Refusal> {
    match rustix::fs::fcntl_get_seals(file) {
        Err(Errno::INVAL) | Ok(SealFlags::SEAL) => Ok(()),
        Ok(_) => Err(Refusal::Sealed),
        Err(errno) => Err(kernel(errno)),
    }
}

fn statx(file: BorrowedFd<'_>, what: StatxFlags) -> Result<rustix::fs::Statx, Refusal> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file.as_fd(), c"", flags, what).map_err(kernel)
}

fn file_type(stat: &rustix::fs::Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

pub(super) fn kernel(errno: Errno) -> Refusal {
    Refusal::Kernel(errno.raw_os_error())
}
