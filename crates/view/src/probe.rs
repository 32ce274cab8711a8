//! What this process and the lower file system can do, found out once at the start.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

use crate::lower::{self, DirStream};
use crate::mounts;

/// Worker threads when nobody says: a request waits for a wake-up, not for a computation, so more
/// threads than CPUs gain nothing, and one alone would let a slow request hold up the rest.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16)
}

/// The process's limit less what the server itself needs (devices, sockets, logs).
pub(crate) fn max_descriptors() -> usize {
    /// Without a limit the view still stops somewhere.
    const UNLIMITED: u64 = 1 << 20;
    /// Kept for the server itself.
    const RESERVED: usize = 64;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = usize::try_from(limit.unwrap_or(UNLIMITED)).expect("64-bit counts fit");
    limit.saturating_sub(RESERVED)
}

const EXT4: u32 = 0xef53;
const XFS: u32 = 0x5846_5342;
const BTRFS: u32 = 0x9123_683e;
const TMPFS: u32 = 0x0102_1994;
const F2FS: u32 = 0xf2f5_2010;
const OVERLAYFS: u32 = 0x794c_7630;
const ECRYPTFS: u32 = 0xf15f;
const FUSE: u32 = 0x6573_5546;

const NFS: u32 = 0x6969;
const CIFS: u32 = 0xff53_4d42;
const SMB2: u32 = 0xfe53_4d42;
const NINE_P: u32 = 0x0102_1997;
const CEPH: u32 = 0x00c3_6400;
const AFS: u32 = 0x5346_414f;

/// Whether the lower file system waits for another machine or another process.
pub(crate) fn may_hang(source: BorrowedFd<'_>) -> bool {
    matches!(file_system(source), Some(FUSE | NFS | CIFS | SMB2 | NINE_P | CEPH | AFS))
}

/// Whether the lower file system asks somebody who may judge callers by more than its permission bits, as
/// another view does.
pub(crate) fn judges_callers(source: BorrowedFd<'_>) -> bool {
    file_system(source) == Some(FUSE)
}

/// How deep file systems may be stacked: 1 on a plain file system; 2, the kernel's maximum, on one
/// that is stacked itself. Asking for 2 needlessly would keep others from stacking on the view.
pub(crate) fn stack_depth(source: BorrowedFd<'_>) -> u32 {
    match file_system(source) {
        Some(OVERLAYFS | ECRYPTFS | FUSE) => 2,
        _ => 1,
    }
}

/// Whether the lower file system copies a file at its first change, after which it has other numbers
/// ([`crate::twins`]).
pub(crate) fn is_overlay(source: BorrowedFd<'_>) -> bool {
    file_system(source) == Some(OVERLAYFS)
}

/// Whether the lower file system may copy a range by sharing its blocks. Only those known not to
/// are excluded: elsewhere the lower `copy_file_range` is worth a request.
pub(crate) fn may_share_blocks(source: BorrowedFd<'_>) -> bool {
    !matches!(file_system(source), Some(EXT4 | TMPFS | F2FS))
}

/// Whether the lower file system keeps some space for a user, whom it knows by the file system id
/// of who writes. Others may ask for that id for other purposes (network file systems do).
pub(crate) fn reserves_by_user(source: BorrowedFd<'_>) -> bool {
    matches!(file_system(source), Some(EXT4 | F2FS))
}

/// Whether the lower file system is known to change a file's times with each change of its content,
/// stores through a mapping too, and to give the times as they are. tmpfs leaves them alone when a
/// mapping is written; network file systems cache them.
pub(crate) fn times_tell_changes(source: BorrowedFd<'_>) -> bool {
    matches!(file_system(source), Some(EXT4 | XFS | BTRFS | F2FS))
}

/// The `*_MAGIC` of the file system that `source` lies on: the low 32 bits, which is all of it.
#[expect(clippy::cast_possible_truncation, reason = "magic numbers have 32 bits")]
fn file_system(source: BorrowedFd<'_>) -> Option<u32> {
    Some(rustix::fs::fstatfs(source).ok()?.f_type.cast_unsigned() as u32)
}

/// Why names in the directory that `source` names may not be told apart by their case; `None` if
/// they are, as far as can be seen. It was found on `mount`, which a copy of that is not in the table as.
pub(crate) fn caseless(source: BorrowedFd<'_>, mount: u64) -> Option<String> {
    let mounts = mounts::read().unwrap_or_default();
    match mounts::kind_of(&mounts, mount) {
        Some(kind) if mounts::is_caseless(kind) => {
            return Some(format!("its file system ({kind}) is case-insensitive"));
        }
        _ => {}
    }
    let same = two_spellings(source)?;
    Some(format!(
        "its file system is case-insensitive: `{same}` leads to a file in another spelling"
    ))
}

/// The same of a directory below, at `path`.
pub(crate) fn is_caseless(path: &[u8]) -> String {
    format!("`{}` is case-insensitive", path.escape_ascii())
}

/// A name in the directory that leads to the same inode with the case of its letters changed.
fn two_spellings(source: BorrowedFd<'_>) -> Option<String> {
    /// Names that are tried.
    const MAX_TRIED: usize = 16;
    let mut stream = DirStream::new(lower::open_dir(source, c".").ok()?);
    let mut tried = 0;
    while let (Ok(Some(entry)), true) = (stream.peek(), tried < MAX_TRIED) {
        let name = entry.name.to_bytes();
        let swapped: Vec<u8> = name.iter().map(|byte| swap_case(*byte)).collect();
        // No directory: this server may be about to serve what is mounted there.
        let is_file = FileType::from_raw_mode(u32::from(entry.kind) << 12) == FileType::RegularFile;
        if is_file && swapped != name {
            tried += 1;
            let other = CString::new(swapped).ok()?;
            let key = |name: &CStr| lower::stat_at(source, name).ok().map(|stat| stat.key());
            let found = key(&other);
            // Two names of one file, where case counts, are both listed.
            if found.is_some() && found == key(entry.name) && !is_listed(source, &other) {
                return Some(other.to_string_lossy().into_owned());
            }
        }
        stream.advance();
    }
    None
}

fn is_listed(source: BorrowedFd<'_>, name: &CStr) -> bool {
    let Ok(fd) = lower::open_dir(source, c".") else { return false };
    let mut stream = DirStream::new(fd);
    while let Ok(Some(entry)) = stream.peek() {
        if entry.name == name {
            return true;
        }
        stream.advance();
    }
    false
}

fn swap_case(byte: u8) -> u8 {
    if byte.is_ascii_uppercase() { byte.to_ascii_lowercase() } else { byte.to_ascii_uppercase() }
}
