//! The INIT handshake: what the kernel offers, what the server wants, what both agreed on.

use std::fmt;

use thiserror::Error;
use zerocopy::FromBytes;

use crate::abi::{self, InitIn, InitInExt, InitOut};

bitflags::bitflags! {
    /// Capabilities of the INIT exchange, `flags` in the low and `flags2` in the high 32 bits. The
    /// names are the kernel's, without `FUSE_`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct InitFlags: u64 {
        /// Several reads in flight on one file.
        const ASYNC_READ = 1 << 0;
        /// POSIX locks go to the server.
        const POSIX_LOCKS = 1 << 1;
        /// Unused by the kernel.
        const FILE_OPS = 1 << 2;
        /// OPEN carries `O_TRUNC`, without a SETATTR before.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// The server handles lookups of `.` and `..`.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than 4 KiB.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask.
        const DONT_MASK = 1 << 6;
        /// The device can be spliced to.
        const SPLICE_WRITE = 1 << 7;
        /// Splicing may move pages.
        const SPLICE_MOVE = 1 << 8;
        /// The device can be spliced from.
        const SPLICE_READ = 1 << 9;
        /// BSD locks go to the server.
        const FLOCK_LOCKS = 1 << 10;
        /// ioctl on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Cached data goes when the modification time changes.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS exists.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Asynchronous direct I/O.
        const ASYNC_DIO = 1 << 15;
        /// Writes are acknowledged by the page cache. Excludes [`InitFlags::PASSTHROUGH`].
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS to OPEN means "no opens at all".
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and listings of one directory run in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        /// The server clears set-id bits (first version).
        const HANDLE_KILLPRIV = 1 << 19;
        /// POSIX ACLs.
        const POSIX_ACL = 1 << 20;
        /// A read from the device after an abort says ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS to OPENDIR means "no opens of directories at all".
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data goes on request of the server only.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// `map_alignment` is valid (DAX).
        const MAP_ALIGNMENT = 1 << 26;
        /// Submounts.
        const SUBMOUNTS = 1 << 27;
        /// The server clears set-id bits and capabilities when told to; spares a GETXATTR per
        /// write.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR carries flags of its own.
        const SETXATTR_EXT = 1 << 29;
        /// The INIT request and its reply have `flags2`.
        const INIT_EXT = 1 << 30;
        /// Security contexts come with what makes inodes.
        const SECURITY_CTX = 1 << 32;
        /// DAX per inode.
        const HAS_INODE_DAX = 1 << 33;
        /// A supplementary group comes with what makes inodes, if it is the parent's group.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// A name can be expired without being dropped.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files opened with `FOPEN_DIRECT_IO`.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Reads, writes and mappings can go to a backing file.
        const PASSTHROUGH = 1 << 37;
        /// The server does not want to be exported.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Pending requests can be asked for again.
        const HAS_RESEND = 1 << 39;
        /// Mounts with mapped ids.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests over io_uring.
        const OVER_IO_URING = 1 << 41;
        /// The kernel aborts when a request takes too long.
        const REQUEST_TIMEOUT = 1 << 42;
    }
}

impl InitFlags {
    /// What a passthrough server wants that does all its file system's duties.
    pub const SUGGESTED: Self = Self::ASYNC_READ
        .union(Self::ATOMIC_O_TRUNC)
        .union(Self::AUTO_INVAL_DATA)
        .union(Self::DO_READDIRPLUS)
        .union(Self::READDIRPLUS_AUTO)
        .union(Self::ASYNC_DIO)
        .union(Self::PARALLEL_DIROPS)
        .union(Self::CACHE_SYMLINKS)
        .union(Self::HANDLE_KILLPRIV_V2)
        .union(Self::SETXATTR_EXT)
        .union(Self::CREATE_SUPP_GROUP)
        .union(Self::HAS_EXPIRE_ONLY)
        .union(Self::PASSTHROUGH)
        .union(Self::NO_EXPORT_SUPPORT)
        .union(Self::HAS_RESEND);

    /// What the transport itself needs; taken whenever it is offered.
    const TRANSPORT: Self =
        Self::BIG_WRITES.union(Self::MAX_PAGES).union(Self::ABORT_ERROR).union(Self::INIT_EXT);

    /// What this crate cannot do, and so never takes.
    const UNABLE: Self = Self::FILE_OPS
        .union(Self::MAP_ALIGNMENT)
        .union(Self::SUBMOUNTS)
        .union(Self::HAS_INODE_DAX)
        .union(Self::REQUEST_TIMEOUT);
}

/// What kernel and server agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Major version, always 7.
    pub major: u32,
    /// Minor version that both speak.
    pub minor: u32,
    /// Minor version of the kernel.
    pub kernel_minor: u32,
    /// What the kernel offered.
    pub offered: InitFlags,
    /// What the server asked for.
    pub wanted: InitFlags,
    /// What is in force.
    pub flags: InitFlags,
    /// Largest payload of a WRITE in bytes.
    pub max_write: u32,
    /// Pages of 4 KiB in a request.
    pub max_pages: u16,
    /// Readahead in bytes.
    pub max_readahead: u32,
    /// Requests in flight that no process waits for.
    pub max_background: u16,
    /// From how many of those on the kernel throttles.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds.
    pub time_gran_ns: u32,
    /// How deep backing files may be stacked; 0 without passthrough.
    pub max_stack_depth: u32,
}

impl Negotiated {
    /// Capabilities that were wanted and are not in force, because the kernel lacks them or because
    /// another one excludes them.
    #[must_use]
    pub fn missing(&self) -> InitFlags {
        self.wanted - self.flags
    }
}

impl fmt::Display for Negotiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "protocol {}.{} (kernel 7.{})", self.major, self.minor, self.kernel_minor)?;
        writeln!(f, "requests up to {} KiB, {} pages", self.max_write / 1024, self.max_pages)?;
        writeln!(f, "backing files stacked up to {} deep", self.max_stack_depth)?;
        for (name, flag) in self.offered.union(self.wanted).iter_names() {
            let state = match (self.flags.contains(flag), self.wanted.contains(flag)) {
                (true, _) => "on",
                (false, true) => "wanted, not available",
                (false, false) => "off",
            };
            writeln!(f, "{name}: {state}")?;
        }
        Ok(())
    }
}

/// Why the handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitError {
    /// Not an INIT request, or cut short.
    #[error("the first request is no valid INIT: {len} bytes, operation {opcode}")]
    Malformed {
        /// Bytes received.
        len: usize,
        /// Operation code received, 0 if there was not even a header.
        opcode: u32,
    },
    /// The kernel speaks a version that this crate does not.
    #[error(
        "the kernel speaks FUSE {major}.{minor}; this server needs 7.{} or later (Linux 5.4), and \
         7.40 (Linux 6.9) for passthrough",
        abi::OLDEST_MINOR_VERSION
    )]
    Version {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
}

/// The server's side of the handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proposal {
    pub(crate) want: InitFlags,
    pub(crate) max_stack_depth: u32,
    pub(crate) max_readahead: u32,
    pub(crate) max_write: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) time_gran_ns: u32,
    pub(crate) defer_releases: bool,
}

/// Whether RELEASEs wait in the kernel on a connection with these `flags`, where that is `wanted`. Not
/// where files are read through the server: of what nobody waits for too little would be in flight.
pub(crate) fn defers_releases(flags: InitFlags, wanted: bool) -> bool {
    wanted && flags.contains(InitFlags::OVER_IO_URING | InitFlags::PASSTHROUGH)
}

/// The reply to an INIT request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handshake {
    /// Both agree.
    Agreed(Negotiated, InitOut),
    /// The kernel is of a later major version: it asks again with ours.
    AskAgain(InitOut),
}

const PAGE_BYTES: u32 = 4096;
/// The kernel raises a smaller `max_write` to this.
const MIN_WRITE_BYTES: u32 = 4096;

/// Replies to the arguments of an INIT request.
pub(crate) fn negotiate(args: &[u8], proposal: &Proposal) -> Result<Handshake, InitError> {
    let malformed = InitError::Malformed { len: args.len(), opcode: abi::opcode::INIT };
    let (init, rest) = InitIn::read_from_prefix(args).map_err(|_| malformed)?;
    if init.major > abi::KERNEL_VERSION {
        return Ok(Handshake::AskAgain(InitOut {
            major: abi::KERNEL_VERSION,
            minor: abi::KERNEL_MINOR_VERSION,
            ..InitOut::default()
        }));
    }
    if init.major < abi::KERNEL_VERSION || init.minor < abi::OLDEST_MINOR_VERSION {
        return Err(InitError::Version { major: init.major, minor: init.minor });
    }
    let offered = offered(&init, rest)?;
    let agreed = agree(&init, offered, proposal);
    Ok(Handshake::Agreed(agreed, answer(&agreed)))
}

fn offered(init: &InitIn, rest: &[u8]) -> Result<InitFlags, InitError> {
    let low = InitFlags::from_bits_retain(u64::from(init.flags));
    if !low.contains(InitFlags::INIT_EXT) {
        return Ok(low);
    }
    let len = size_of::<InitIn>() + rest.len();
    let (ext, _) = InitInExt::read_from_prefix(rest)
        .map_err(|_| InitError::Malformed { len, opcode: abi::opcode::INIT })?;
    Ok(low | InitFlags::from_bits_retain(u64::from(ext.flags2) << 32))
}

fn agree(init: &InitIn, offered: InitFlags, proposal: &Proposal) -> Negotiated {
    let mut wanted = proposal.want | (InitFlags::TRANSPORT & offered);
    let mut flags = wanted & (offered - InitFlags::UNABLE);
    if proposal.max_stack_depth == 0 || !offered.contains(InitFlags::INIT_EXT) {
        flags -= InitFlags::PASSTHROUGH;
    }
    // The kernel would silently drop passthrough; the writeback cache is the one to give way,
    // because it loses acknowledged writes when the server dies.
    if flags.contains(InitFlags::PASSTHROUGH) {
        flags -= InitFlags::WRITEBACK_CACHE;
    }
    // Reads and direct I/O that programs wait for would otherwise count as requests that nobody waits
    // for, and wait for those that are deferred.
    let mut max_background = proposal.max_background;
    if defers_releases(flags, proposal.defer_releases) {
        let in_background = InitFlags::ASYNC_READ | InitFlags::ASYNC_DIO;
        (wanted, flags) = (wanted - in_background, flags - in_background);
        max_background = 1;
    }
    let max_write = proposal.max_write.max(MIN_WRITE_BYTES);
    let max_pages = u16::try_from(max_write.div_ceil(PAGE_BYTES)).unwrap_or(u16::MAX);
    Negotiated {
        major: abi::KERNEL_VERSION,
        minor: init.minor.min(abi::KERNEL_MINOR_VERSION),
        kernel_minor: init.minor,
        offered,
        wanted,
        flags,
        max_write,
        max_pages,
        max_readahead: init.max_readahead.min(proposal.max_readahead),
        max_background,
        // More than that are never in flight, so that nothing would count as congestion.
        congestion_threshold: proposal.congestion_threshold.min(proposal.max_background),
        time_gran_ns: proposal.time_gran_ns,
        max_stack_depth: match flags.contains(InitFlags::PASSTHROUGH) {
            true => proposal.max_stack_depth,
            false => 0,
        },
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of the flags")]
fn answer(agreed: &Negotiated) -> InitOut {
    let bits = agreed.flags.bits();
    InitOut {
        major: agreed.major,
        minor: agreed.minor,
        max_readahead: agreed.max_readahead,
        flags: bits as u32,
        max_background: agreed.max_background,
        congestion_threshold: agreed.congestion_threshold,
        max_write: agreed.max_write,
        time_gran: agreed.time_gran_ns,
        max_pages: agreed.max_pages,
        flags2: (bits >> 32) as u32,
        max_stack_depth: agreed.max_stack_depth,
        ..InitOut::default()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn agreed(kernel: InitFlags, proposal: &Proposal) -> Negotiated {
        let bits = (kernel | InitFlags::INIT_EXT).bits();
        let (major, minor) = (abi::KERNEL_VERSION, abi::KERNEL_MINOR_VERSION);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the flags")]
        let (flags, flags2) = (bits as u32, (bits >> 32) as u32);
        let init = InitIn { major, minor, max_readahead: 1 << 20, flags };
        let ext = InitInExt { flags2, unused: [0; 11] };
        match negotiate(&[init.as_bytes(), ext.as_bytes()].concat(), proposal).unwrap() {
            Handshake::Agreed(agreed, _) => agreed,
            Handshake::AskAgain(_) => panic!("of a later version"),
        }
    }

    #[test]
    fn releases_are_deferred_with_io_uring_and_passthrough_alone() {
        let in_background = InitFlags::ASYNC_READ | InitFlags::ASYNC_DIO;
        let both = InitFlags::OVER_IO_URING | InitFlags::PASSTHROUGH;
        let proposal = |defer_releases| Proposal {
            want: in_background | both,
            max_stack_depth: 2,
            max_readahead: 1 << 20,
            max_write: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_gran_ns: 1,
            defer_releases,
        };
        let deferring = agreed(in_background | both, &proposal(true));
        assert_eq!(deferring.max_background, 1);
        assert!(!deferring.flags.intersects(in_background), "{:?}", deferring.flags);
        assert!(!deferring.missing().intersects(in_background), "they are not missed");
        for (kernel, wanted) in
            [(both, false), (InitFlags::OVER_IO_URING, true), (InitFlags::PASSTHROUGH, true)]
        {
            let all = agreed(in_background | kernel, &proposal(wanted));
            assert_eq!(all.max_background, 64, "{kernel:?}");
            assert!(all.flags.contains(in_background), "{kernel:?}");
        }
    }
}
