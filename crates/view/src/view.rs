//! The view's state, and the door through which requests come in.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::{
    Attributes, Caller, Connection, Entry, InitFlags, NodeId, Request, SessionConfig,
};
use tollgate_policy::{Mode, Operation, RuleId};

use crate::audit::{Audit, AuditLevel, Event, Outcome};
use crate::config::{Config, OpenError};
use crate::creds::{self, Powers};
use crate::fds::{Descriptors, Held};
use crate::gate::{Gate, Refusal, Subject};
use crate::io::{Handles, Idle, Passthrough, UserFile};
use crate::lower::{self, DirStream, Stat};
use crate::stats::{Count, Counters, Snapshot, Unavailable};
use crate::table::{Node, Table};

/// A directory handle.
pub(crate) struct OpenDir {
    pub(crate) stream: Mutex<DirStream>,
    pub(crate) _held: Held,
}

/// A lower directory seen through a policy. Served by handing it to a
/// [`tollgate_fuse::Session`], configured by [`View::session_config`].
pub struct View {
    pub(crate) table: Table,
    pub(crate) fds: Arc<Descriptors>,
    pub(crate) gate: Gate,
    pub(crate) powers: Powers,
    pub(crate) attr_timeout: Duration,
    pub(crate) entry_timeout: Duration,
    pub(crate) root_dev: u64,
    pub(crate) passthrough: Passthrough,
    pub(crate) idle: Arc<Idle>,
    pub(crate) files: Handles<UserFile>,
    pub(crate) dirs: Handles<OpenDir>,
    pub(crate) connection: OnceLock<Connection>,
    pub(crate) counters: Counters,
    /// Renames and links compare decisions under old and new paths. Moving a directory changes the
    /// paths of everything below it, so it excludes them: write for directories, read for the rest.
    pub(crate) names: RwLock<()>,
    audit: Option<Arc<dyn Audit>>,
    sweeper: Option<std::thread::JoinHandle<()>>,
    stack_depth: u32,
    /// Copying in the kernel, through the pipe of splice(2), is as good as asking this process.
    pub(crate) kernel_copies: bool,
}

impl View {
    /// A view of the directory that `source` names. An `O_PATH` descriptor will do; it must have been
    /// opened before anything is mounted over the directory.
    ///
    /// # Errors
    /// [`OpenError`] when `source` is no directory, cannot be looked at, or `/proc` is missing.
    pub fn open(source: OwnedFd, config: Config) -> Result<Self, OpenError> {
        let root = lower::stat_fd(source.as_fd()).map_err(OpenError::Unreadable)?;
        if root.file_type() != FileType::Directory {
            return Err(OpenError::NotADirectory);
        }
        lower::stat_at(source.as_fd(), lower::ProcPath::of(source.as_fd()).as_c_str())
            .map_err(OpenError::NoProc)?;
        let stack_depth = stack_depth(source.as_fd());
        let kernel_copies = !may_share_blocks(source.as_fd());
        let max = config.max_descriptors.unwrap_or_else(default_max_descriptors);
        let idle = Arc::new(Idle::new(workers()));
        let sweeper = std::thread::Builder::new()
            .name("tollgate-sweep".to_owned())
            .spawn({
                let idle = Arc::clone(&idle);
                move || idle.sweep_until_stopped()
            })
            .map_err(OpenError::Thread)?;
        Ok(Self {
            table: Table::new(&root),
            fds: Arc::new(Descriptors::new(source, max)),
            gate: Gate::new(config.policy),
            powers: Powers::of_this_process(),
            attr_timeout: config.attr_timeout,
            entry_timeout: config.entry_timeout,
            root_dev: root.dev(),
            passthrough: Passthrough::default(),
            idle,
            files: Handles::new(),
            dirs: Handles::new(),
            connection: OnceLock::new(),
            counters: Counters::new(),
            names: RwLock::new(()),
            audit: config.audit,
            sweeper: Some(sweeper),
            stack_depth,
            kernel_copies,
        })
    }

    /// The session that this view wants: what to negotiate, and how many threads (`None`: one per CPU
    /// that this process may run on, at least 2, at most 16).
    #[must_use]
    pub fn session_config(&self, threads: Option<usize>) -> SessionConfig {
        SessionConfig {
            threads: threads.unwrap_or_else(workers),
            want: wanted_features(),
            max_stack_depth: self.stack_depth,
            spin: SPIN,
            on_thread_start: Some(Arc::new(|_| {
                if let Err(error) = creds::private_umask() {
                    tracing::error!(%error, "a worker shares its umask; new files may get wrong modes");
                }
            })),
            ..SessionConfig::default()
        }
    }

    /// State at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            counts: self.counters.counts(),
            nodes: self.table.len(),
            descriptors_used: self.fds.used(),
            descriptors_max: self.fds.max(),
            userspace_handles: self.files.len(),
            directory_handles: self.dirs.len(),
            passthrough: self.passthrough.is_available(),
            fallbacks: self.passthrough.fallbacks(),
            unavailable: self.unavailable(),
        }
    }

    fn unavailable(&self) -> Vec<Unavailable> {
        let mut missing = Vec::new();
        if let Some(reason) = self.passthrough.reason() {
            missing.push(Unavailable { feature: "passthrough".into(), reason: reason.into() });
        }
        if !self.powers.may_switch() {
            missing.push(Unavailable {
                feature: "callers other than the server's user".into(),
                reason: "the server does not run as root, so what they make could not be theirs"
                    .into(),
            });
        }
        missing
    }

    pub(crate) fn count(&self, req: &Request<'_>, count: Count) {
        self.counters.add(req.worker(), count, 1);
    }

    /// Attributes of `node`, by descriptor if it has one, else by name with its identity checked.
    pub(crate) fn stat(&self, node: &Arc<Node>) -> Result<Stat, Errno> {
        if node.is_root() {
            return lower::stat_fd(self.fds.root().as_fd());
        }
        let kept = node.fd.lock().clone();
        if let Some(fd) = kept {
            return lower::stat_fd(fd.as_fd());
        }
        for place in node.places() {
            let Ok(parent) = self.fds.path(&place.parent) else { continue };
            match lower::stat_at(parent.as_fd(), &place.name) {
                Ok(stat) if stat.key() == node.key => return Ok(stat),
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::STALE)
    }

    pub(crate) fn entry(&self, node: &Node, stat: &Stat) -> Entry {
        Entry {
            node: node.id,
            generation: 0,
            entry_valid: self.entry_timeout,
            attr: stat.attr(self.root_dev),
            attr_valid: self.attr_timeout,
        }
    }

    pub(crate) fn attributes(&self, stat: &Stat) -> Attributes {
        Attributes { attr: stat.attr(self.root_dev), valid: self.attr_timeout }
    }

    /// What the policy looks at, for an inode that exists.
    pub(crate) fn facts_of(&self, node: &Arc<Node>) -> Result<OwnedSubject, Errno> {
        let stat = self.stat(node)?;
        let paths = self.gate.paths(node)?;
        let head = if self.gate.needs_head(&paths, &stat) { Some(self.head(node)?) } else { None };
        Ok(OwnedSubject { paths, kind: stat.file_type(), size: stat.size(), head })
    }

    /// The first bytes of a regular file.
    pub(crate) fn head(&self, node: &Arc<Node>) -> Result<Vec<u8>, Errno> {
        let path = self.fds.path_once(node)?;
        let fd = lower::reopen(path.as_fd(), rustix::fs::OFlags::RDONLY)?;
        let mut head = vec![0; tollgate_policy::HEAD_LEN];
        let len = lower::read_full(fd.as_fd(), &mut head, 0)?;
        head.truncate(len);
        Ok(head)
    }

    /// Checks `operation` on an inode that exists; nothing to do if the policy cannot refuse.
    pub(crate) fn permit(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        operation: Operation,
        what: &'static str,
    ) -> Result<(), Errno> {
        if self.gate.is_trivial() {
            return Ok(());
        }
        let subject = self.facts_of(node)?;
        self.permit_subject(req, &subject, operation, what)
    }

    pub(crate) fn permit_subject(
        &self,
        req: &Request<'_>,
        subject: &OwnedSubject,
        operation: Operation,
        what: &'static str,
    ) -> Result<(), Errno> {
        match self.gate.check(&subject.borrow(), operation, req.caller()) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.refused(req, refusal, what, subject.path())),
        }
    }

    /// Counts and records a refusal; answers its error.
    pub(crate) fn refused(
        &self,
        req: &Request<'_>,
        refusal: Refusal,
        what: &'static str,
        path: &[u8],
    ) -> Errno {
        let count = match refusal.errno {
            Errno::ROFS => Count::refused_read_only,
            Errno::XDEV | Errno::PERM => Count::refused_weakening,
            _ => Count::refused_deny,
        };
        self.count(req, count);
        self.record(
            AuditLevel::Refused,
            req.caller(),
            what,
            Outcome::Refused(refusal.errno),
            Subjects { path, inode: 0, rule: refusal.rule, span: None },
        );
        refusal.errno
    }

    pub(crate) fn audits(&self, level: AuditLevel) -> bool {
        self.audit.as_ref().is_some_and(|audit| audit.level() >= level)
    }

    /// Tells the audit log, if it wants to hear things of this level.
    pub(crate) fn record(
        &self,
        level: AuditLevel,
        caller: Caller,
        operation: &'static str,
        outcome: Outcome,
        about: Subjects<'_>,
    ) {
        let Some(audit) = self.audit.as_ref().filter(|audit| audit.level() >= level) else {
            return;
        };
        let exe = self.gate.caller_executable(caller);
        audit.record(&Event {
            operation,
            outcome,
            uid: caller.uid,
            gid: caller.gid,
            pid: caller.pid,
            exe: exe.as_deref(),
            inode: about.inode,
            path: about.path,
            rule: self.gate.rule_name(about.rule),
            offset: about.span.map(|(offset, _)| offset),
            bytes: about.span.map(|(_, bytes)| bytes),
        });
    }

    /// One path of `node` for the audit log; empty if it has none any more.
    pub(crate) fn audit_path(&self, node: &Arc<Node>) -> Vec<u8> {
        self.gate.paths(node).ok().and_then(|mut paths| paths.pop()).unwrap_or_default()
    }

    /// The I/O mode that the policy asks for.
    pub(crate) fn wanted_mode(&self, subject: Option<&OwnedSubject>) -> Mode {
        match subject {
            Some(subject) => self.gate.mode(&subject.borrow()),
            None => Mode::Passthrough,
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        self.table.get(id)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.idle.stop();
        if let Some(sweeper) = self.sweeper.take()
            && sweeper.join().is_err()
        {
            tracing::error!("the sweeper thread panicked");
        }
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}

/// What an audit record is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subjects<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) inode: u64,
    pub(crate) rule: Option<RuleId>,
    /// Offset and bytes.
    pub(crate) span: Option<(u64, u64)>,
}

/// A [`Subject`] that owns what it is about.
#[derive(Debug)]
pub(crate) struct OwnedSubject {
    pub(crate) paths: Vec<Vec<u8>>,
    pub(crate) kind: FileType,
    pub(crate) size: u64,
    pub(crate) head: Option<Vec<u8>>,
}

impl OwnedSubject {
    /// A name that does not exist yet.
    pub(crate) fn new_name(path: Vec<u8>, kind: FileType) -> Self {
        Self { paths: vec![path], kind, size: 0, head: Some(Vec::new()) }
    }

    pub(crate) fn borrow(&self) -> Subject<'_> {
        Subject { paths: &self.paths, kind: self.kind, size: self.size, head: self.head.as_deref() }
    }

    pub(crate) fn path(&self) -> &[u8] {
        self.paths.first().map_or(&[], Vec::as_slice)
    }
}

/// What this view can honour.
fn wanted_features() -> InitFlags {
    InitFlags::ASYNC_READ
        | InitFlags::ATOMIC_O_TRUNC
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::AUTO_INVAL_DATA
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::POSIX_ACL
        | InitFlags::MAX_PAGES
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::SETXATTR_EXT
        | InitFlags::CREATE_SUPP_GROUP
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::PASSTHROUGH
}

/// Worker threads when nobody says: what a request waits for is a wake-up, not a computation, so more
/// threads than CPUs bring nothing, and one alone would let a slow request hold up the rest.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16)
}

/// How long the waiting worker asks again before it sleeps: longer than a program takes from one
/// request to the next, shorter than anything a user would see. See `docs/fuse-transport.md`.
const SPIN: Duration = Duration::from_micros(20);

/// The process's limit less what the server itself needs (devices, sockets, logs).
fn default_max_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(1 << 20).saturating_sub(64)
}

/// How deep file systems may be stacked: 1 on a plain file system; 2, the kernel's maximum, on one that
/// is stacked itself. Asking for 2 needlessly would keep others from stacking on the view.
fn stack_depth(source: std::os::fd::BorrowedFd<'_>) -> u32 {
    const OVERLAYFS: u32 = 0x794c_7630;
    const ECRYPTFS: u32 = 0xf15f;
    const FUSE: u32 = 0x6573_5546;
    match file_system(source) {
        Some(OVERLAYFS | ECRYPTFS | FUSE) => 2,
        _ => 1,
    }
}

/// Whether the lower file system may copy a range by sharing its blocks. Only those known not to are
/// told so: elsewhere the lower copy_file_range is worth a request.
fn may_share_blocks(source: std::os::fd::BorrowedFd<'_>) -> bool {
    const EXT4: u32 = 0xef53;
    const TMPFS: u32 = 0x0102_1994;
    const F2FS: u32 = 0xf2f5_2010;
    !matches!(file_system(source), Some(EXT4 | TMPFS | F2FS))
}

/// The `*_MAGIC` of the file system that `source` lies on.
fn file_system(source: std::os::fd::BorrowedFd<'_>) -> Option<u32> {
    let magic = rustix::fs::fstatfs(source).ok()?.f_type.cast_unsigned() & 0xffff_ffff;
    u32::try_from(magic).ok()
}
