//! What can go wrong, with the value that was refused, the limit it met and the way out.

use tollgate_topology::NodeId;

use crate::errno::Errno;
use crate::thp::Thp;

/// The error of every fallible call of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size of zero.
    #[error("{what} of 0 bytes: the smallest is {}", in_bytes(*.least_bytes))]
    Zero {
        /// What had the size.
        what: &'static str,
        /// The least size in bytes.
        least_bytes: usize,
    },
    /// A class that has no buffer.
    #[error("a class of a pool with 0 buffers of {}: the least is 1 buffer", in_bytes(*.buffer_bytes))]
    NoBuffers {
        /// The size of each in bytes.
        buffer_bytes: usize,
    },
    /// A size or address that must be a multiple of something is not.
    #[error("{what} of {} is not a multiple of {multiple}: the next one is {next}", in_bytes(*.value))]
    Unaligned {
        /// What had the size.
        what: &'static str,
        /// The size in bytes.
        value: usize,
        /// What it must be a multiple of.
        multiple: usize,
        /// The next size that would do.
        next: usize,
    },
    /// More than this machine or this process may have.
    #[error(
        "{what} of {} exceeds the limit of {} ({limit}): {way_out}",
        in_bytes(*.bytes),
        in_bytes(*.limit_bytes)
    )]
    TooLarge {
        /// What was asked for.
        what: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit_bytes: usize,
        /// Where the limit comes from.
        limit: String,
        /// How to get past it.
        way_out: String,
    },
    /// A NUMA node that is not online, has no memory, or is outside the cpuset of this process.
    #[error(
        "NUMA node {node} has no memory for this process: the nodes that have are {with_memory}; \
         leave the node out to let the kernel choose"
    )]
    NoSuchNode {
        /// The node asked for.
        node: NodeId,
        /// The nodes to allocate memory from.
        with_memory: String,
    },
    /// A huge-page size that the processor or the kernel lacks.
    #[error("huge pages of {} are not available here: this kernel has {available}", in_bytes(*.page_bytes))]
    NoSuchPageSize {
        /// The size asked for, in bytes.
        page_bytes: usize,
        /// The sizes there are.
        available: String,
    },
    /// Not enough huge pages are reserved.
    #[error(
        "{} of {} {} needed and {free} {} free: `{way_out}` reserves them",
        counted(*.wanted, "huge page"),
        in_bytes(*.page_bytes),
        is_or_are(*.wanted),
        is_or_are(*.free)
    )]
    NotReserved {
        /// Size of the page in bytes.
        page_bytes: usize,
        /// Pages needed.
        wanted: usize,
        /// Pages free and not promised to another mapping.
        free: usize,
        /// The command that reserves enough.
        way_out: String,
    },
    /// Transparent huge pages are switched off.
    #[error(
        "transparent huge pages are {setting}: \
         `echo madvise > {path}` switches them on where asked for"
    )]
    ThpOff {
        /// The setting found.
        setting: Thp,
        /// The file that holds it.
        path: String,
    },
    /// The kernel gave base pages although transparent huge pages are on.
    #[error(
        "of {} the kernel backed {huge_bytes} with transparent huge pages: memory is \
         fragmented (`echo 1 > /proc/sys/vm/compact_memory`) or the cgroup is at its limit",
        in_bytes(*.bytes)
    )]
    ThpShort {
        /// Length of the region in bytes.
        bytes: usize,
        /// How much of it lies on huge pages.
        huge_bytes: usize,
    },
    /// Too short for the page that was asked for.
    #[error("{} {} less than one page of {}", in_bytes(*.bytes), is_or_are(*.bytes), in_bytes(*.page_bytes))]
    ShorterThanPage {
        /// Length asked for, in bytes.
        bytes: usize,
        /// Size of the page in bytes.
        page_bytes: usize,
    },
    /// Two things that the kernel or the processor cannot do together.
    #[error("{what} is not supported on {on}: {way_out}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// On what.
        on: String,
        /// What to do instead.
        way_out: String,
    },
    /// The address space or the memory is used up.
    #[error("no memory for {} ({limit}): {way_out}", in_bytes(*.bytes))]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The limit that was met.
        limit: String,
        /// How to get past it.
        way_out: String,
    },
    /// `mlock` beyond what the process may lock.
    #[error(
        "locking {} exceeds RLIMIT_MEMLOCK ({limit_bytes} bytes): \
         ask for less, raise it with `ulimit -l` or grant CAP_IPC_LOCK",
        in_bytes(*.bytes)
    )]
    LockLimit {
        /// Bytes to lock.
        bytes: usize,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A position that is outside the buffer.
    #[error("target {target} is outside the buffer of {}", in_bytes(*.len))]
    TargetOutside {
        /// The offset in bytes.
        target: usize,
        /// The length of the buffer in bytes.
        len: usize,
    },
    /// More bytes than a buffer has room for.
    #[error(
        "{} {} not fit in a buffer of {}: take a larger one",
        in_bytes(*.bytes),
        if *.bytes == 1 { "does" } else { "do" },
        in_bytes(*.capacity)
    )]
    TooLong {
        /// The bytes that were to be in it.
        bytes: usize,
        /// Its size in bytes.
        capacity: usize,
    },
    /// Two buffers that must be equally long are not.
    #[error(
        "the source has {} and the destination {destination_bytes}: they must be equal",
        in_bytes(*.source_bytes)
    )]
    LengthMismatch {
        /// Length of the source.
        source_bytes: usize,
        /// Length of the destination.
        destination_bytes: usize,
    },
    /// A ladder without a rung.
    #[error("a ladder without a backing: give it one at least")]
    EmptyLadder,
    /// A word that is not one of those allowed.
    #[error("`{word}` is not {what}: write {allowed}")]
    BadWord {
        /// The word found.
        word: String,
        /// What was expected.
        what: &'static str,
        /// What would be right.
        allowed: String,
    },
    /// The pool has no buffer left and was told not to wait, or not that long.
    #[error(
        "{}{}: {} (larger classes are not used)",
        all_taken(*.limit, *.buffer_bytes),
        waited(*.waited_ms),
        match .waited_ms {
            Some(_) => "raise the class's count, or wait longer",
            None => "raise the class's count, or wait for one with AtMaximum::Wait",
        }
    )]
    Exhausted {
        /// Size of the class in bytes.
        buffer_bytes: usize,
        /// Stated maximum of buffers, fallback buffers included.
        limit: usize,
        /// How long was waited, if at all.
        waited_ms: Option<u64>,
    },
    /// No class of the pool has buffers this large.
    #[error("no class holds {}: the largest has buffers of {}", in_bytes(*.bytes), in_bytes(*.largest))]
    NoSuchClass {
        /// Size asked for in bytes.
        bytes: usize,
        /// The largest class in bytes.
        largest: usize,
    },
    /// The leak check found bytes of an earlier owner. The buffer was withdrawn.
    #[error(
        "a buffer marked as zeroed holds a byte {byte:#04x} at offset {offset} (canary: {canary}); \
         it was withdrawn from use"
    )]
    Leak {
        /// Offset in bytes.
        offset: usize,
        /// The byte found.
        byte: u8,
        /// Whether it belongs to the canary that the check plants.
        canary: bool,
    },
    /// A system call failed in a way that no other variant names.
    #[error("{call} failed: {errno}")]
    System {
        /// Name of the call.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

fn waited(waited_ms: Option<u64>) -> String {
    waited_ms.map_or_else(String::new, |ms| format!(" after waiting {ms} ms"))
}

fn all_taken(limit: usize, buffer_bytes: usize) -> String {
    let size = in_bytes(buffer_bytes);
    match limit {
        1 => format!("the only buffer of {size} is taken"),
        _ => format!("all {limit} buffers of {size} are taken"),
    }
}

fn in_bytes(count: usize) -> String {
    counted(count, "byte")
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn is_or_are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let taken = |limit, waited_ms| {
            Error::Exhausted { buffer_bytes: 4096, limit, waited_ms }.to_string()
        };
        assert_eq!(
            taken(1, None),
            "the only buffer of 4096 bytes is taken: raise the class's count, or wait for one \
             with AtMaximum::Wait (larger classes are not used)"
        );
        assert_eq!(
            taken(3, Some(20)),
            "all 3 buffers of 4096 bytes are taken after waiting 20 ms: raise the class's count, \
             or wait longer (larger classes are not used)"
        );
        let way_out = String::from("sysctl vm.nr_hugepages=1");
        let missing = Error::NotReserved { page_bytes: 2 << 20, wanted: 1, free: 0, way_out };
        assert_eq!(
            missing.to_string(),
            "1 huge page of 2097152 bytes is needed and 0 are free: \
             `sysctl vm.nr_hugepages=1` reserves them"
        );
        let long = Error::TooLong { bytes: 2, capacity: 1 };
        assert_eq!(long.to_string(), "2 bytes do not fit in a buffer of 1 byte: take a larger one");
    }
}
