//! What can go wrong, with the value that was refused, the limit it met and the way out.

use tollgate_topology::NodeId;

use crate::errno::Errno;
use crate::thp::Thp;

/// The error of every fallible call of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size of zero.
    #[error("{what} of 0 bytes: the smallest is {least_bytes} bytes")]
    Zero {
        /// What had the size.
        what: &'static str,
        /// The least size in bytes.
        least_bytes: usize,
    },
    /// A class that has no buffer.
    #[error("a class of a pool with 0 buffers of {buffer_bytes} bytes: the least is 1 buffer")]
    NoBuffers {
        /// The size of each in bytes.
        buffer_bytes: usize,
    },
    /// A size or address that must be a multiple of something is not.
    #[error("{what} of {value} bytes is not a multiple of {multiple}: the next one is {next}")]
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
        "{what} of {bytes} bytes exceeds the limit of {limit_bytes} bytes ({limit}): {way_out}"
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
    #[error("huge pages of {page_bytes} bytes are not available here: this kernel has {available}")]
    NoSuchPageSize {
        /// The size asked for, in bytes.
        page_bytes: usize,
        /// The sizes there are.
        available: String,
    },
    /// Not enough huge pages are reserved.
    #[error(
        "{wanted} huge pages of {page_bytes} bytes are needed and {free} are free: \
         `{way_out}` reserves them"
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
        "of {bytes} bytes the kernel backed {huge_bytes} with transparent huge pages: memory is \
         fragmented (`echo 1 > /proc/sys/vm/compact_memory`) or the cgroup is at its limit"
    )]
    ThpShort {
        /// Length of the region in bytes.
        bytes: usize,
        /// How much of it lies on huge pages.
        huge_bytes: usize,
    },
    /// Too short for the page that was asked for.
    #[error("{bytes} bytes are less than one page of {page_bytes} bytes")]
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
    #[error("no memory for {bytes} bytes ({limit}): {way_out}")]
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
        "locking {bytes} bytes exceeds RLIMIT_MEMLOCK ({limit_bytes} bytes): \
         ask for less, raise it with `ulimit -l` or grant CAP_IPC_LOCK"
    )]
    LockLimit {
        /// Bytes to lock.
        bytes: usize,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A position that is outside the buffer.
    #[error("target {target} is outside the buffer of {len} bytes")]
    TargetOutside {
        /// The offset in bytes.
        target: usize,
        /// The length of the buffer in bytes.
        len: usize,
    },
    /// More bytes than a buffer has room for.
    #[error("{bytes} bytes do not fit in a buffer of {capacity} bytes: take a larger one")]
    TooLong {
        /// The bytes that were to be in it.
        bytes: usize,
        /// Its size in bytes.
        capacity: usize,
    },
    /// Two buffers that must be equally long are not.
    #[error(
        "the source has {source_bytes} bytes and the destination {destination_bytes}: \
         they must be equal"
    )]
    LengthMismatch {
        /// Length of the source.
        source_bytes: usize,
        /// Length of the destination.
        destination_bytes: usize,
    },
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
        "all {limit} buffers of {buffer_bytes} bytes are taken{}: \
         raise the class's count or wait longer",
        waited(.waited_ms)
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
    #[error("no class holds {bytes} bytes: the largest has buffers of {largest} bytes")]
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

fn waited(waited_ms: &Option<u64>) -> String {
    waited_ms.map_or_else(String::new, |ms| format!(" after waiting {ms} ms"))
}
