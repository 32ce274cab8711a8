//! The system calls that memory needs, each with its error number.
#![expect(unsafe_code, reason = "system calls on raw addresses")]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use tollgate_topology::{CpuId, NodeId};

use crate::errno::Errno;

/// Size of a base page in bytes, as the kernel of this process has it.
#[must_use]
pub fn base_page_bytes() -> usize {
    if cfg!(miri) {
        return 4096;
    }
    // SAFETY: sysconf reads a constant and takes no pointer.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("every Linux states its page size")
}

/// Maps `len` bytes of private anonymous memory, with `flags` added.
pub(crate) fn map_anonymous(len: usize, flags: i32) -> Result<NonNull<u8>, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing that exists.
    let address = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NonNull::new(address.cast()).ok_or(Errno(libc::ENOMEM))
}

/// Unmaps `[address, address + len)`.
///
/// # Safety
/// The range belongs to the caller, consists of whole pages, and nothing refers to it any more.
pub(crate) unsafe fn unmap(address: NonNull<u8>, len: usize) {
    // SAFETY: the caller owns the range and gave up every use of it.
    let result = unsafe { libc::munmap(address.as_ptr().cast(), len) };
    debug_assert_eq!(result, 0, "munmap of an owned range: {}", Errno::last());
}

/// `madvise` with advice that keeps the contents, or that populates.
///
/// # Safety
/// The range is mapped and belongs to the caller. `advice` leaves the bytes of the range as they
/// are.
pub(crate) unsafe fn advise(address: NonNull<u8>, len: usize, advice: i32) -> Result<(), Errno> {
    // The interpreter has no advice to give, and faults everything in by itself.
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: a mapped range of the caller's, and advice that changes no byte of it.
    check(unsafe { libc::madvise(address.as_ptr().cast(), len, advice) }.into())
}

/// Asks that pages of the range come from `node`: strictly, or as a preference.
pub(crate) fn bind(
    address: NonNull<u8>,
    len: usize,
    node: NodeId,
    strict: bool,
) -> Result<(), Errno> {
    if cfg!(miri) {
        return Ok(());
    }
    const WORDS: usize = 16; // 1024 nodes, the largest NODES_SHIFT of any architecture
    let bits = u64::BITS;
    let mut mask = [0u64; WORDS];
    let word = mask.get_mut((node.0 / bits) as usize).ok_or(Errno(libc::EINVAL))?;
    *word |= 1 << (node.0 % bits);
    let mode = if strict { libc::MPOL_BIND } else { libc::MPOL_PREFERRED };
    let max_node = WORDS * bits as usize;
    // SAFETY: the mask outlives the call and has `max_node` bits; the policy of a range changes no
    // byte.
    check(unsafe {
        libc::syscall(libc::SYS_mbind, address.as_ptr(), len, mode, mask.as_ptr(), max_node, 0)
    })
}

/// Locks the pages of the range that are present, and the others as they are faulted in.
pub(crate) fn lock_on_fault(address: NonNull<u8>, len: usize) -> Result<(), Errno> {
    const MLOCK_ONFAULT: libc::c_int = 1;
    // SAFETY: locking changes no byte; a range that is not mapped is refused with ENOMEM.
    check(unsafe { libc::syscall(libc::SYS_mlock2, address.as_ptr(), len, MLOCK_ONFAULT) })
}

/// The soft limit of a resource, `u64::MAX` for none.
pub(crate) fn soft_limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit structure, which lives until it returns.
    let result = unsafe { libc::getrlimit(resource, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { u64::MAX }
}

/// The CPU that this thread runs on at this moment.
pub(crate) fn current_cpu() -> CpuId {
    if cfg!(miri) {
        return CpuId(0);
    }
    // SAFETY: takes no pointer.
    let cpu = unsafe { libc::sched_getcpu() };
    CpuId::try_from(cpu).expect("every Linux reports the CPU of a thread")
}

/// The user whose rights this process has.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { libc::geteuid() }
}

/// How many logical CPUs the last-level cache of this CPU is made for, as the processor says, or
/// the hypervisor. A virtual machine may have few of them; the others are its neighbours.
pub(crate) fn llc_sharers() -> Option<usize> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return llc_sharers_by_cpuid();
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None
}

/// The caches that CPUID describes: leaf 4, or on AMD the leaf 0x8000001D of the same layout.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn llc_sharers_by_cpuid() -> Option<usize> {
    use std::arch::x86_64::{__cpuid_count, CpuidResult};
    /// More caches than any processor describes.
    const MOST_CACHES: u32 = 16;
    #[allow(unused_unsafe, reason = "the intrinsic became a safe function after Rust 1.90")]
    // SAFETY: every x86-64 processor has the instruction.
    let leaf = |number, index| -> CpuidResult { unsafe { __cpuid_count(number, index) } };
    let number = match (leaf(0, 0).eax >= 4, leaf(0x8000_0000, 0).eax >= 0x8000_001D) {
        // Intel leaves the AMD leaf out, AMD leaves leaf 4 empty.
        (true, _) if leaf(4, 0).eax & 0x1F != 0 => 4,
        (_, true) => 0x8000_001D,
        _ => return None,
    };
    let caches = (0..MOST_CACHES).map(|index| leaf(number, index).eax);
    let caches = caches.take_while(|eax| eax & 0x1F != 0);
    let last = caches.max_by_key(|eax| eax >> 5 & 0x7)?;
    usize::try_from((last >> 14 & 0xFFF) + 1).ok()
}

/// Time since some moment in the past, in nanoseconds, exact to a tick of the kernel (1 to 10 ms).
pub(crate) fn coarse_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which lives until the call returns.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    debug_assert_eq!(result, 0, "every Linux has this clock");
    let part = |number: i64| u64::try_from(number).expect("this clock starts at 0");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// Reads from `fd` at `offset` into memory that need not hold anything. Returns how many bytes.
pub(crate) fn read_at(
    fd: RawFd,
    buffer: &mut [MaybeUninit<u8>],
    offset: u64,
) -> Result<usize, Errno> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: the kernel writes at most `len` bytes to the exclusively borrowed buffer.
    let read = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), offset) };
    usize::try_from(read).map_err(|_| Errno::last())
}

/// Gives the pages of a private anonymous range back to the kernel; it reads as zeroes afterwards.
///
/// # Safety
/// The range is mapped, whole pages (of hugetlb memory: whole huge pages), and its owner gives up its
/// bytes.
pub(crate) unsafe fn discard(address: NonNull<u8>, len: usize) -> Result<(), Errno> {
    /// As `MADV_DONTNEED`, for locked pages too (Linux 5.18).
    const MADV_DONTNEED_LOCKED: i32 = 24;
    if cfg!(miri) {
        // SAFETY: as the caller says; the interpreter keeps the pages, so they are cleared.
        unsafe { address.as_ptr().write_bytes(0, len) }
        return Ok(());
    }
    // SAFETY: as the caller says.
    check(unsafe { libc::madvise(address.as_ptr().cast(), len, MADV_DONTNEED_LOCKED) }.into())
}

/// Bytes of `[address, address + len)` that huge pages map at this moment, by `PAGEMAP_SCAN`
/// (Linux 6.7).
pub(crate) fn huge_mapped_bytes(address: NonNull<u8>, len: usize) -> Result<usize, Errno> {
    const PAGE_IS_HUGE: u64 = 1 << 6;
    mapped_bytes(address, len, PAGE_IS_HUGE)
}

/// Bytes of `[address, address + len)` that have memory at this moment.
#[cfg(test)]
pub(crate) fn resident_bytes(address: NonNull<u8>, len: usize) -> Result<usize, Errno> {
    const PAGE_IS_PRESENT: u64 = 1 << 3;
    mapped_bytes(address, len, PAGE_IS_PRESENT)
}

/// Bytes of the range whose pages are of `category`.
fn mapped_bytes(address: NonNull<u8>, len: usize, category: u64) -> Result<usize, Errno> {
    use std::os::fd::AsRawFd;
    const REGIONS: usize = 64;
    if cfg!(miri) {
        return Err(Errno(libc::ENOSYS));
    }
    let pagemap = std::fs::File::open("/proc/self/pagemap").map_err(|error| Errno::of(&error))?;
    let mut found = [PageRegion::default(); REGIONS];
    let (mut start, end) = (address.as_ptr() as u64, address.as_ptr() as u64 + len as u64);
    let mut total = 0;
    while start < end {
        let mut scan = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            start,
            end,
            vec: found.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_mask: category,
            return_mask: category,
            ..ScanArguments::default()
        };
        // SAFETY: `scan` matches the kernel's `struct pm_scan_arg`, and `vec` has room for
        // `vec_len`.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let count = usize::try_from(count).map_err(|_| Errno::last())?;
        total += found.iter().take(count).map(|region| region.end - region.start).sum::<u64>();
        if scan.walk_end <= start {
            break;
        }
        start = scan.walk_end;
    }
    usize::try_from(total).map_err(|_| Errno(libc::EOVERFLOW))
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

fn check(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Whether `PR_SET_THP_DISABLE` switched transparent huge pages off for this process.
pub(crate) fn thp_disabled_for_process() -> bool {
    if cfg!(miri) {
        return false;
    }
    // SAFETY: reads a flag of this process; the unused arguments must be 0 and are.
    unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1 }
}
