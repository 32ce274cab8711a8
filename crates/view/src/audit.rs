//! What the view tells an audit log.

use rustix::io::Errno;

/// How much an audit log wants to hear. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditLevel {
    /// What was refused.
    Refused,
    /// And every open, creation, removal and rename.
    Opens,
    /// And every read and write that travels through the server.
    All,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Granted; reads and writes of the handle stay in the kernel.
    Passthrough,
    /// Granted; served by this process.
    Userspace,
    /// Granted; nothing is opened by it.
    Done,
    /// Refused by the policy, with the error that the caller got.
    Refused(Errno),
    /// Granted by the policy, refused by the lower file system.
    Failed(Errno),
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// `open`, `create`, `unlink`, `rename`, `read`, ...
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
    /// First byte, for reads and writes.
    pub offset: Option<u64>,
    /// Bytes moved, for reads and writes.
    pub bytes: Option<u64>,
}

/// Takes events. Called on the data path: must not block and must not allocate without bound.
pub trait Audit: Send + Sync + 'static {
    /// What this log wants to hear.
    fn level(&self) -> AuditLevel;
    /// Takes one event; what cannot be kept must be counted as dropped.
    fn record(&self, event: &Event<'_>);
}
