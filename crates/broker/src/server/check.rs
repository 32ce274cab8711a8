//! What may be registered: nothing that the caller could not read and write without the broker.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SealFlags, StatxFlags, makedev};
use rustix::io::Errno;
use rustix::process::Pid;

use super::sandbox;
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

/// `STATX_ATTR_IMMUTABLE` and `STATX_ATTR_APPEND`.
const PROTECTED: u64 = 0x10 | 0x20;

/// What the process of a connection starts with. Opened while there is a file system.
#[derive(Debug)]
pub(super) struct Broker {
    /// Most files that one connection may have registered at a time.
    pub(super) max_files: usize,
    /// The process that accepts connections.
    pub(super) listening: Pid,
    proc: OwnedFd,
    /// The device of `/dev`: files of a devtmpfs look like those of a tmpfs.
    pub(super) dev: u64,
    /// A fusectl mount of our own: one directory for each FUSE connection, owned by its user.
    connections: OwnedFd,
    /// The kernel tells which connection a descriptor of `/dev/fuse` has.
    connection_is_told: bool,
}

impl Broker {
    pub(super) fn prepare(max_files: usize) -> io::Result<Self> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Ok(Self {
            max_files,
            listening: rustix::process::getpid(),
            proc: rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?,
            dev: rustix::fs::stat("/dev")?.st_dev,
            connections: sandbox::new_mount("fusectl")?,
            connection_is_told: is_since_6_18(&release),
        })
    }
}

fn is_since_6_18(release: &str) -> bool {
    release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok()).ge([6, 18])
}

/// Gives `device` back if it is the server's end of a FUSE connection that `uid` mounted.
///
/// Who holds that end answers every request of the connection, so it could serve what it wants
/// without us. That the mount is the caller's own is checked besides, where the kernel tells it.
pub(super) fn device(device: OwnedFd, uid: u32, broker: &Broker) -> Result<OwnedFd, Refusal> {
    // A device can be opened only where devices count, so no file system of a user can pretend it.
    let stat = rustix::fs::fstat(&device)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    // `MISC_MAJOR` and `FUSE_MINOR` of the kernel.
    let is_fuse = is_device && stat.st_rdev == makedev(10, 229);
    if !is_fuse || !reads_and_writes(rustix::fs::fcntl_getfl(&device)?) {
        return Err(Refusal::NotFuse);
    }
    let is_own = match connection_of(&device, broker) {
        Some(number) => {
            let directory = rustix::fs::statat(&broker.connections, number, AtFlags::empty());
            directory.is_ok_and(|directory| directory.st_uid == uid)
        }
        None => !broker.connection_is_told,
    };
    if is_own { Ok(device) } else { Err(Refusal::NotYours) }
}

/// The number of the connection that `device` has, from the line `fuse_connection:` of its fdinfo.
fn connection_of(device: &OwnedFd, broker: &Broker) -> Option<String> {
    let path = format!("self/fdinfo/{}", device.as_raw_fd());
    let info = rustix::fs::openat(&broker.proc, path, OFlags::CLOEXEC, Mode::empty()).ok()?;
    let text = std::io::read_to_string(File::from(info)).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix("fuse_connection:")?.trim().to_owned()))
}

/// Whether `file` may be registered. Every check is of the open file itself, which no caller can
/// exchange for another: only `O_APPEND` may change afterwards, and who holds a descriptor may take
/// that away at any time (`F_SETFL`).
pub(super) fn lower(file: &OwnedFd, dev: u64) -> Result<(), Refusal> {
    // First what asks no file system.
    if !reads_and_writes(rustix::fs::fcntl_getfl(file)?) {
        return Err(Refusal::NotReadWrite);
    }
    // One that does not tell is none of them.
    let mounted = rustix::fs::fstatfs(file).map_err(|_| Refusal::FileSystem)?;
    if !FILE_SYSTEMS.contains(&mounted.f_type.cast_unsigned()) {
        return Err(Refusal::FileSystem);
    }
    if mounted.f_flags.cast_unsigned() & libc::ST_NOEXEC != 0 {
        return Err(Refusal::NoExec);
    }
    let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", asked, StatxFlags::TYPE)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return Err(Refusal::NotRegular);
    }
    if makedev(stat.stx_dev_major, stat.stx_dev_minor) == dev {
        return Err(Refusal::FileSystem);
    }
    let told = stat.stx_attributes_mask.bits();
    if told & PROTECTED != PROTECTED || stat.stx_attributes.bits() & PROTECTED != 0 {
        return Err(Refusal::Protected);
    }
    // Seals are kept by the descriptors of a memfd, and a mapping through the view would not ask
    // them. Files of a tmpfs have one seal, that there will be no others.
    match rustix::fs::fcntl_get_seals(file) {
        Err(Errno::INVAL) | Ok(SealFlags::SEAL) => Ok(()),
        Ok(_) => Err(Refusal::Sealed),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether it is open for both, anywhere in the file, and does not only name it.
fn reads_and_writes(flags: OFlags) -> bool {
    flags & (OFlags::PATH | OFlags::ACCMODE | OFlags::APPEND) == OFlags::RDWR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_compared_by_its_numbers() {
        for release in ["6.18.44-x", "7.0-rc1", "6.18", "6.18-rc1", "10.0.1"] {
            assert!(is_since_6_18(release), "{release}");
        }
        for release in ["6.9.0", "6.17.99", "5.20.1", "6", "x", ""] {
            assert!(!is_since_6_18(release), "{release}");
        }
    }
}
