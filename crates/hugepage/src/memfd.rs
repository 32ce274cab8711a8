//! Files without a name that hold memory (`memfd_create`).
#![expect(unsafe_code, reason = "system calls, and a mapping of a file of its own")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use crate::errno::Errno;

/// A file of `len` bytes: on hugetlb pages of `huge_page_bytes`, or on ordinary memory. Nobody,
/// whoever gets the descriptor, can change its length, which would make every access beyond it a
/// SIGBUS.
pub(crate) fn create(len: usize, huge_page_bytes: Option<usize>) -> Result<OwnedFd, Errno> {
    // The size goes into six bits of the flags as its binary logarithm.
    let size = |bytes: usize| bytes.trailing_zeros() << libc::MFD_HUGE_SHIFT;
    let huge = huge_page_bytes.map_or(0, |bytes| libc::MFD_HUGETLB | size(bytes));
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"tollgate-hugepage".as_ptr(), flags) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor that the kernel just gave out, and that nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = libc::off_t::try_from(len).map_err(|_| Errno(libc::EFBIG))?;
    // SAFETY: takes no pointer.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: takes no pointer.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(fd)
}

/// Maps the whole of `fd`, shared.
pub(crate) fn map(fd: &OwnedFd, len: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing that exists.
    unsafe { map_at(ptr::null_mut(), 0, fd, len) }
}

/// Maps the whole of `fd`, shared, over the start of a mapping of the caller's.
///
/// # Safety
/// `len` bytes from `start` are a mapping of the caller's that nothing refers to.
pub(crate) unsafe fn map_over(start: NonNull<u8>, fd: &OwnedFd, len: usize) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe { map_at(start.as_ptr().cast(), libc::MAP_FIXED, fd, len) }.map(|_| ())
}

/// # Safety
/// With `MAP_FIXED` as [`map_over`].
unsafe fn map_at(
    start: *mut libc::c_void,
    flags: i32,
    fd: &OwnedFd,
    len: usize,
) -> Result<NonNull<u8>, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | flags;
    // SAFETY: as the caller says.
    let address = unsafe { libc::mmap(start, len, protection, flags, fd.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NonNull::new(address.cast()).ok_or(Errno(libc::ENOMEM))
}

/// Gives the memory of a part of the file back to the kernel; it reads as zeroes afterwards.
pub(crate) fn punch(fd: &OwnedFd, offset: usize, len: usize) -> Result<(), Errno> {
    let number = |bytes: usize| libc::off_t::try_from(bytes).map_err(|_| Errno(libc::EFBIG));
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes no pointer; the caller's mapping of the range stays, and faults in zeroes.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, number(offset)?, number(len)?) })
}

fn check(result: i32) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}
