//! What this process and the lower file system can do, found out once at the start.

use std::os::fd::BorrowedFd;

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
const TMPFS: u32 = 0x0102_1994;
const F2FS: u32 = 0xf2f5_2010;
const OVERLAYFS: u32 = 0x794c_7630;
const ECRYPTFS: u32 = 0xf15f;
const FUSE: u32 = 0x6573_5546;

/// How deep file systems may be stacked: 1 on a plain file system; 2, the kernel's maximum, on one
/// that is stacked itself. Asking for 2 needlessly would keep others from stacking on the view.
pub(crate) fn stack_depth(source: BorrowedFd<'_>) -> u32 {
    match file_system(source) {
        Some(OVERLAYFS | ECRYPTFS | FUSE) => 2,
        _ => 1,
    }
}

/// Whether the lower file system may copy a range by sharing its blocks. Only those known not to
/// are excluded: elsewhere the lower `copy_file_range` is worth a request.
pub(crate) fn may_share_blocks(source: BorrowedFd<'_>) -> bool {
    !matches!(file_system(source), Some(EXT4 | TMPFS | F2FS))
}

/// The `*_MAGIC` of the file system that `source` lies on: the low 32 bits, which is all of it.
#[expect(clippy::cast_possible_truncation, reason = "magic numbers have 32 bits")]
fn file_system(source: BorrowedFd<'_>) -> Option<u32> {
    Some(rustix::fs::fstatfs(source).ok()?.f_type.cast_unsigned() as u32)
}
