//! What the view tells an audit log.

use rustix::io::Errno;

use crate::masked::Masked;

/// How much an audit log wants to hear. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditLevel {
    /// What was refused, look-ups of hidden names among it.
    Refused,
    /// And every open, and every change of names, sizes, permissions, owners, times and extended
    /// attributes.
    Opens,
    /// And every read and write that travels through the server.
    All,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Granted; reads and writes of the handle stay in the kernel, or it is a small file that is
    /// only read, from the view's page cache.
    Passthrough,
    /// Granted; served by this process.
    Userspace,
    /// Granted; nothing is opened by it.
    Done,
    /// Refused by the policy, with the error that the caller got.
    Refused(Errno),
    /// Granted, because the rule that refuses it is only to be recorded; with the error that the
    /// caller would have got.
    WouldRefuse(Errno),
    /// Granted by the policy, refused by the lower file system.
    Failed(Errno),
}

/// What there is to say of an operation beside its name and its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail<'a> {
    /// Nothing.
    #[default]
    None,
    /// What an open or a creation asked for.
    Access(Access),
    /// The new name of a rename or a link, relative to the root of the view.
    To(&'a [u8]),
    /// The size in bytes that a file was cut or extended to.
    Size(u64),
    /// The permission bits that were set.
    Mode(u32),
    /// The owner and the group that were set.
    Owner(Option<u32>, Option<u32>),
    /// The name of an extended attribute.
    Attribute(&'a [u8]),
    /// Bytes that were read or written.
    Span {
        /// The first.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Secrets that were masked in what was read through a handle.
    Masked(Masked),
}

/// What a handle can be used for, and what its opening does to the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The flags of open(2).
    flags: i32,
    content: FileContent,
}

/// What the rules have a program read of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileContent {
    /// The bytes of the lower file.
    #[default]
    Lower,
    /// The same, through the server alone.
    Watched,
    /// Those with secrets masked.
    Redacted,
    /// What was sealed; the lower file has it encrypted.
    Sealed,
}

impl Access {
    /// From the flags of open(2).
    #[must_use]
    pub fn from_flags(flags: i32) -> Self {
        Self { flags, content: FileContent::Lower }
    }

    /// The same, of a file with this content.
    #[must_use]
    pub fn of(self, content: FileContent) -> Self {
        Self { content, ..self }
    }

    /// What is read of the file.
    #[must_use]
    pub fn content(self) -> FileContent {
        self.content
    }

    /// Whether the handle reads.
    #[must_use]
    pub fn reads(self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    /// Whether the handle writes.
    #[must_use]
    pub fn writes(self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether all that was in the file went away.
    #[must_use]
    pub fn truncates(self) -> bool {
        self.flags & libc::O_TRUNC != 0
    }

    /// Whether the handle writes at the end alone.
    #[must_use]
    pub fn appends(self) -> bool {
        self.flags & libc::O_APPEND != 0
    }
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// `open`, `create`, `unlink`, `rename`, `truncate`, `chmod`, `read`, ...
    pub operation: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// The caller's file system user id.
    pub uid: u32,
    /// The caller's file system group id.
    pub gid: u32,
    /// The caller's thread id, 0 if nobody waits for the operation.
    pub pid: u32,
    /// The caller's executable, where it could be found out safely.
    pub exe: Option<&'a [u8]>,
    /// Inode number as the view shows it, 0 if there is none.
    pub inode: u64,
    /// Path relative to the root of the view.
    pub path: &'a [u8],
    /// The rule that decided, `None` for the default.
    pub rule: Option<&'a str>,
    /// What else there is to say.
    pub detail: Detail<'a>,
}

/// Takes events. Called on the data path: must not block and must not allocate without bound.
pub trait Audit: Send + Sync + 'static {
    /// What this log wants to hear.
    fn level(&self) -> AuditLevel;
    /// Takes one event; what cannot be kept must be counted as dropped.
    fn record(&self, event: &Event<'_>);
}
