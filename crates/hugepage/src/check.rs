//! Checks of sizes that callers ask for.

use crate::error::Error;
use crate::machine::Machine;
use crate::memory::MemoryLimit;

/// Refuses more bytes than the machine has, and than a pointer can span.
pub(crate) fn check_physical(
    what: &'static str,
    bytes: usize,
    machine: &Machine,
) -> Result<(), Error> {
    check_against(what, bytes, machine.physical_memory())
}

/// Refuses more bytes than the machine and the memory cgroups of this process allow. Not for
/// hugetlb pages, which are not charged to these.
pub(crate) fn check_limit(
    what: &'static str,
    bytes: usize,
    machine: &Machine,
) -> Result<(), Error> {
    check_against(what, bytes, machine.memory_limit())
}

fn check_against(
    what: &'static str,
    bytes: usize,
    limit: Option<MemoryLimit>,
) -> Result<(), Error> {
    let (limit_bytes, limit) = match limit {
        Some(limit) => (limit.bytes.min(isize::MAX.unsigned_abs()), limit.source),
        None => (isize::MAX.unsigned_abs(), "half of the address space".into()),
    };
    if bytes <= limit_bytes {
        return Ok(());
    }
    // Only that of a control group can be raised.
    let or_raise = if limit.starts_with('/') { ", or raise the limit" } else { "" };
    let way_out = format!("ask for at most {limit_bytes} bytes{or_raise}");
    Err(Error::TooLarge { what, bytes, limit_bytes, limit, way_out })
}

/// Refuses a size that is not a multiple of `multiple`. Where there is no larger one that is, the
/// size is too large for any memory.
pub(crate) fn check_multiple(
    what: &'static str,
    value: usize,
    multiple: usize,
) -> Result<(), Error> {
    if value.is_multiple_of(multiple) {
        return Ok(());
    }
    match value.checked_next_multiple_of(multiple) {
        Some(next) => Err(Error::Unaligned { what, value, multiple, next }),
        None => check_against(what, value, None),
    }
}
