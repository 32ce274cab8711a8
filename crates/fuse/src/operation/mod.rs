//! The operations of FUSE, as values.

mod decode;

use std::ffi::CStr;

use zerocopy::FromBytes;

use crate::abi;
use crate::args;
use crate::types::{FileHandle, Name, NodeId, SetAttr};

/// What was negotiated and changes how requests are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Dialect {
    /// SETXATTR has flags of its own ([`crate::InitFlags::SETXATTR_EXT`]).
    pub setxattr_ext: bool,
}

/// A request's operation, borrowing names and data from the request's buffer. The inode it is about
/// is in the header.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the methods of `Filesystem` describe the operations and fields")]
pub enum Operation<'a> {
    Init {
        args: &'a [u8],
    },
    Destroy,
    Forget {
        lookups: u64,
    },
    BatchForget {
        forgets: Forgets<'a>,
    },
    Interrupt {
        unique: u64,
    },
    Lookup {
        name: Name<'a>,
    },
    Getattr {
        handle: Option<FileHandle>,
    },
    Statx(args::Statx),
    Setattr(SetAttr),
    Readlink,
    Mknod(args::Mknod<'a>),
    Mkdir(args::Mkdir<'a>),
    Unlink {
        name: Name<'a>,
    },
    Rmdir {
        name: Name<'a>,
    },
    Symlink(args::Symlink<'a>),
    Rename(args::Rename<'a>),
    Link(args::Link<'a>),
    Open(args::Open),
    Create(args::Create<'a>),
    Tmpfile(args::Tmpfile),
    Read(args::Read),
    Write(args::Write<'a>),
    Flush(args::Flush),
    Release(args::Release),
    Fsync(args::Fsync),
    Opendir {
        flags: u32,
    },
    Readdir(args::Readdir),
    Readdirplus(args::Readdir),
    Releasedir {
        handle: FileHandle,
    },
    Fsyncdir(args::Fsync),
    Statfs,
    Setxattr(args::Setxattr<'a>),
    Getxattr(args::Getxattr<'a>),
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a CStr,
    },
    Access {
        mask: u32,
    },
    Fallocate(args::Fallocate),
    Lseek(args::Lseek),
    CopyFileRange(args::CopyFileRange),
    Getlk(args::Getlk),
    Setlk(args::Setlk),
    Ioctl(args::Ioctl<'a>),
    /// Known to the kernel and not served here, or not known at all: fails with ENOSYS.
    Unsupported,
}

/// Moving this many bytes takes longer than waking another worker.
const LARGE_BYTES: u64 = 128 << 10;

impl Operation<'_> {
    /// Whether the thread that asks waits in a system call of its own, so that /proc may be asked
    /// about it. A FLUSH may come out of execve(2), which closes files under the kernel's
    /// `exec_update_lock`: whoever reads `/proc/<tid>/stat` then waits until execve ends, and that
    /// waits for the reply. For a RELEASE nobody waits, and its thread may be there by now.
    pub(crate) fn caller_may_be_looked_at(&self) -> bool {
        !matches!(self, Self::Flush(_) | Self::Release(_) | Self::Releasedir { .. })
    }

    /// Whether other requests should not wait behind this one on the same thread: it may wait for
    /// the disk or for a lock, or moves at least 128 KiB.
    #[must_use]
    pub fn takes_long(&self) -> bool {
        match self {
            Self::Fsync(_) | Self::Fsyncdir(_) => true,
            Self::Setlk(args) => args.wait,
            Self::Write(args) => args.data.len() as u64 >= LARGE_BYTES,
            Self::Read(args) => u64::from(args.size) >= LARGE_BYTES,
            Self::CopyFileRange(args) => args.length >= LARGE_BYTES,
            _ => false,
        }
    }
}

/// The forgets of one BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (NodeId, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (one, left) = abi::ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = left;
        Some((NodeId(one.nodeid), one.nlookup))
    }
}
