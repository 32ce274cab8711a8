//! One rung of the ladder: map, set the policy, fault in, lock.
#![expect(unsafe_code, reason = "gives back the ends of a mapping of its own")]

use std::ops::Range;

use super::backing::{Backing, Prefault, TouchAt};
use super::mapping::Mapping;
use super::options::RegionOptions;
use crate::check::{check_limit, check_multiple};
use crate::errno::Errno;
use crate::error::Error;
use crate::machine::{HUGE_2M, Machine};
use crate::memfd;
use crate::sys::{self, base_page_bytes};
use crate::thp::Thp;

/// Bytes faulted in between two looks at how much memory is left.
const PIECE_BYTES: usize = 64 << 20;

/// Whether the memory is charged to the memory cgroup. Hugetlb pages are not (unless cgroup2 is
/// mounted with `memory_hugetlb_accounting`, and then a refused page is an error and never the OOM
/// killer).
fn is_charged(backing: Backing) -> bool {
    !matches!(backing, Backing::Hugetlb { .. })
}

/// Maps `options.len` bytes on `backing`, completely set up.
pub(super) fn rung(options: &RegionOptions, backing: Backing) -> Result<Mapping, Error> {
    if is_charged(backing) {
        let bytes = options.charged_before.saturating_add(options.len);
        check_limit(options.what, bytes, &options.machine)?;
    }
    let mapping = match backing {
        Backing::Hugetlb { page_bytes } => hugetlb(options, page_bytes)?,
        Backing::Thp => thp(options)?,
        Backing::Base => base(options)?,
    };
    if let Some((node, strict)) = options.node {
        match sys::bind(mapping.start(), mapping.len(), node, strict) {
            // A kernel without NUMA has one node, and the options were checked to name that.
            Ok(()) | Err(Errno(libc::ENOSYS)) => {}
            Err(errno) => return Err(Error::System { call: "mbind", errno }),
        }
    }
    if options.dont_dump {
        mapping.advise(libc::MADV_DONTDUMP, "madvise(MADV_DONTDUMP)")?;
    }
    if options.wipe_on_fork {
        mapping.advise(libc::MADV_WIPEONFORK, "madvise(MADV_WIPEONFORK)")?;
    }
    if options.dont_fork || options.shareable {
        mapping.dont_fork()?;
    }
    fault_in(&mapping, 0..mapping.len(), options.prefault, backing, &options.machine)?;
    if options.lock {
        sys::lock_on_fault(mapping.start(), mapping.len())
            .map_err(|errno| lock_error(&mapping, errno))?;
    }
    Ok(mapping)
}

fn hugetlb(options: &RegionOptions, page_bytes: usize) -> Result<Mapping, Error> {
    if options.wipe_on_fork {
        return Err(Error::Unsupported {
            what: "MADV_WIPEONFORK".into(),
            on: "hugetlb".into(),
            way_out: "leave it out, or use transparent huge pages".into(),
        });
    }
    let pool = options.machine.reserved(page_bytes)?;
    check_multiple("a region on hugetlb pages", options.len, page_bytes)?;
    let wanted = options.len / page_bytes;
    let short = || Error::NotReserved {
        page_bytes,
        wanted,
        free: pool.available(),
        way_out: reservation_command(
            page_bytes,
            pool.total + wanted.saturating_sub(pool.available()),
        ),
    };
    if pool.available() < wanted {
        return Err(short());
    }
    let mapped = if options.shareable {
        of_file(options.len, Some(page_bytes))
    } else {
        // The size goes into six bits of the flags as its binary logarithm.
        let size_flag = page_bytes.trailing_zeros().cast_signed() << libc::MAP_HUGE_SHIFT;
        let start = sys::map_anonymous(options.len, libc::MAP_HUGETLB | size_flag);
        start.map(|start| Mapping::adopt(start, options.len))
    };
    match mapped {
        Ok(mapping) => Ok(mapping),
        // Another process was faster, or a limit of the hugetlb cgroup holds.
        Err(Errno(libc::ENOMEM)) if address_space_left(options.len) => Err(short()),
        Err(errno) => Err(map_error(options.len, errno)),
    }
}

/// The command that makes the pool of `page_bytes` hold `pages`.
fn reservation_command(page_bytes: usize, pages: usize) -> String {
    if page_bytes == HUGE_2M {
        return format!("sysctl vm.nr_hugepages={pages}");
    }
    let kib = page_bytes / 1024;
    format!("echo {pages} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages")
}

fn thp(options: &RegionOptions) -> Result<Mapping, Error> {
    if options.len < HUGE_2M {
        return Err(Error::ShorterThanPage { bytes: options.len, page_bytes: HUGE_2M });
    }
    let (setting, file) = if options.shareable {
        (options.machine.shared_thp(), "shmem_enabled")
    } else {
        (options.machine.thp(), "enabled")
    };
    if matches!(setting, Thp::Never | Thp::Absent) {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{file}");
        return Err(Error::ThpOff { setting, path });
    }
    if sys::thp_disabled_for_process() {
        return Err(Error::Unsupported {
            what: "a transparent huge page".into(),
            on: "a process with PR_SET_THP_DISABLE".into(),
            way_out: "clear the flag with prctl, or start without it".into(),
        });
    }
    let mut mapping = aligned(options.len, HUGE_2M)?;
    if options.shareable {
        mapping = over(mapping)?;
    }
    mapping.advise(libc::MADV_HUGEPAGE, "madvise(MADV_HUGEPAGE)")?;
    Ok(mapping)
}

fn base(options: &RegionOptions) -> Result<Mapping, Error> {
    let mapped = if options.shareable {
        of_file(options.len, None)
    } else {
        sys::map_anonymous(options.len, 0).map(|start| Mapping::adopt(start, options.len))
    };
    let mapping = mapped.map_err(|errno| map_error(options.len, errno))?;
    // A kernel without THP does not know the advice, and then it is not needed.
    if options.machine.thp() != Thp::Absent {
        mapping.advise(libc::MADV_NOHUGEPAGE, "madvise(MADV_NOHUGEPAGE)")?;
    }
    Ok(mapping)
}

/// Maps a new file of `len` bytes.
fn of_file(len: usize, huge_page_bytes: Option<usize>) -> Result<Mapping, Errno> {
    let file = memfd::create(len, huge_page_bytes)?;
    let start = memfd::map(&file, len)?;
    Ok(Mapping::of_file(start, len, file))
}

/// Maps a new file where `mapping` lies.
fn over(mapping: Mapping) -> Result<Mapping, Error> {
    let (start, len) = (mapping.start(), mapping.len());
    let failed = |errno| map_error(len, errno);
    let file = memfd::create(len, None).map_err(failed)?;
    // SAFETY: the range is that of a mapping that nothing refers to yet.
    unsafe { memfd::map_over(start, &file, len) }.map_err(failed)?;
    // The new mapping has its place, and is unmapped instead of it.
    mapping.leave();
    Ok(Mapping::of_file(start, len, file))
}

/// Maps `len` bytes at a multiple of `alignment`, a power of two of whole pages: maps more and
/// gives the ends back.
fn aligned(len: usize, alignment: usize) -> Result<Mapping, Error> {
    let padded = len.checked_add(alignment).ok_or_else(|| map_error(len, Errno(libc::ENOMEM)))?;
    let raw = sys::map_anonymous(padded, 0).map_err(|errno| map_error(len, errno))?;
    let before = raw.as_ptr().align_offset(alignment);
    let after = padded - before - len;
    // SAFETY: `before + len + after` is the length of the fresh mapping, so all three parts lie in
    // it.
    let (start, end) = unsafe { (raw.add(before), raw.add(before + len)) };
    for (part, bytes) in [(raw, before), (end, after)] {
        if bytes > 0 {
            // SAFETY: an end of the fresh mapping, whole pages, that nothing refers to.
            unsafe { sys::unmap(part, bytes) }
        }
    }
    Ok(Mapping::adopt(start, len))
}

/// Faults in a part of the mapping.
pub(super) fn fault_in(
    mapping: &Mapping,
    range: Range<usize>,
    how: Prefault,
    backing: Backing,
    machine: &Machine,
) -> Result<(), Error> {
    if how == Prefault::Lazy {
        return Ok(());
    }
    if is_charged(backing) {
        machine.check_room(range.len())?;
    }
    // Piece by piece, so that what others allocate meanwhile is seen before it is too late.
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min((start + 1).next_multiple_of(PIECE_BYTES));
        if is_charged(backing) {
            machine.check_room(end - start)?;
        }
        fault_in_piece(mapping, start..end, how, backing)?;
        start = end;
    }
    Ok(())
}

fn fault_in_piece(
    mapping: &Mapping,
    range: Range<usize>,
    how: Prefault,
    backing: Backing,
) -> Result<(), Error> {
    let step = match backing {
        Backing::Hugetlb { page_bytes } => page_bytes,
        Backing::Thp => HUGE_2M,
        Backing::Base => base_page_bytes(),
    };
    match how {
        Prefault::Lazy => Ok(()),
        Prefault::Populate => mapping.populate(range.start, range.len()),
        // With base pages there is nothing to choose, and one call does for all.
        Prefault::Touch(_) if step == base_page_bytes() => {
            mapping.populate(range.start, range.len())
        }
        Prefault::Touch(at) => touch(mapping, range, at, step),
    }
}

/// Faults in each page of `step` bytes through one base page of it, then whatever is left: the ends
/// of a range that is no whole number of pages, and pages that the kernel had only in base size.
fn touch(mapping: &Mapping, range: Range<usize>, at: TouchAt, step: usize) -> Result<(), Error> {
    let page = base_page_bytes();
    let within = match at {
        TouchAt::First => 0,
        TouchAt::Last => step - page,
    };
    let first = range.start.next_multiple_of(step);
    for start in (first..(range.end / step * step).max(first)).step_by(step) {
        mapping.populate(start + within, page)?;
    }
    mapping.populate(range.start, range.len())
}

fn lock_error(mapping: &Mapping, errno: Errno) -> Error {
    match errno {
        Errno(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => Error::LockLimit {
            bytes: mapping.len(),
            limit_bytes: sys::soft_limit(libc::RLIMIT_MEMLOCK),
        },
        errno => Error::System { call: "mlock2", errno },
    }
}

fn address_space_left(len: usize) -> bool {
    u64::try_from(len).is_ok_and(|len| len < sys::soft_limit(libc::RLIMIT_AS))
}

fn map_error(len: usize, errno: Errno) -> Error {
    if errno != Errno(libc::ENOMEM) {
        return Error::System { call: "mmap", errno };
    }
    let address_space = sys::soft_limit(libc::RLIMIT_AS);
    let (limit, way_out) = if address_space == u64::MAX {
        ("vm.overcommit_memory or vm.max_map_count", "see sysctl vm.overcommit_memory")
    } else {
        ("RLIMIT_AS", "raise it with `ulimit -v`")
    };
    let limit = match limit {
        "RLIMIT_AS" => format!("RLIMIT_AS is {address_space} bytes"),
        other => other.to_owned(),
    };
    Error::OutOfMemory { bytes: len, limit, way_out: way_out.into() }
}
