//! The view's state.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::{Attributes, Connection, Entry, InitFlags, NodeId, Request, SessionConfig};

use crate::admission::Admission;
use crate::audit::Audit;
use crate::budget::Budget;
use crate::config::{Config, OpenError};
use crate::creds::{self, Powers};
use crate::fds::Descriptors;
use crate::handles::{Handles, OpenDir, UserFile};
use crate::lower::{self, Stat};
use crate::passthrough::Passthrough;
use crate::paths::Paths;
use crate::probe;
use crate::stats::{Count, Counters, Snapshot, Unavailable};
use crate::sweeper::Sweeper;
use crate::table::{Node, Table};

/// A lower directory seen through a policy. Served by handing it to a
/// [`tollgate_fuse::Session`], configured by [`View::session_config`].
pub struct View {
    pub(crate) table: Table,
    pub(crate) fds: Descriptors,
    pub(crate) admission: Admission,
    pub(crate) paths: Paths,
    pub(crate) powers: Powers,
    pub(crate) attr_timeout: Duration,
    pub(crate) entry_timeout: Duration,
    pub(crate) root_dev: u64,
    pub(crate) passthrough: Passthrough,
    pub(crate) sweeper: Sweeper,
    pub(crate) files: Handles<UserFile>,
    pub(crate) dirs: Handles<OpenDir>,
    pub(crate) connection: OnceLock<Connection>,
    pub(crate) counters: Counters,
    /// Renames and links compare decisions under old and new paths. Moving a directory changes the
    /// paths of everything below it, so it excludes them: write for directories, read for the rest.
    pub(crate) names: RwLock<()>,
    pub(crate) mount_points: Vec<PathBuf>,
    pub(crate) audit: Option<Arc<dyn Audit>>,
    stack_depth: u32,
    /// A copy in the kernel, through the pipe of splice(2), is as good as asking this process.
    pub(crate) kernel_copies: bool,
}

impl View {
    /// A view of the directory that `source` names. An `O_PATH` descriptor will do; it must have
    /// been opened before anything is mounted over the directory.
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
        let stack_depth = probe::stack_depth(source.as_fd());
        let kernel_copies = !probe::may_share_blocks(source.as_fd());
        let max = config.max_descriptors.unwrap_or_else(probe::max_descriptors);
        Ok(Self {
            table: Table::new(&root),
            fds: Descriptors::new(source, Arc::new(Budget::new(max))),
            admission: Admission::new(config.policy),
            paths: Paths::default(),
            powers: Powers::of_this_process(),
            attr_timeout: config.attr_timeout,
            entry_timeout: config.entry_timeout,
            root_dev: root.dev(),
            passthrough: Passthrough::default(),
            sweeper: Sweeper::start(probe::workers()).map_err(OpenError::Thread)?,
            files: Handles::new(),
            dirs: Handles::new(),
            connection: OnceLock::new(),
            counters: Counters::new(),
            names: RwLock::new(()),
            mount_points: config.mount_points,
            audit: config.audit,
            stack_depth,
            kernel_copies,
        })
    }

    /// The session that this view wants: what to negotiate, and how many threads (`None`: one per
    /// CPU that this process may run on, at least 2, at most 16).
    #[must_use]
    pub fn session_config(&self, threads: Option<usize>) -> SessionConfig {
        SessionConfig {
            threads: threads.unwrap_or_else(probe::workers),
            want: wanted_features(),
            max_stack_depth: self.stack_depth,
            spin: SPIN,
            on_thread_start: Some(Arc::new(|_| {
                if let Err(error) = creds::private_umask() {
                    tracing::error!(
                        %error,
                        "a worker shares its umask; new files may get wrong modes"
                    );
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
        if let Some(class) = count.class() {
            req.set_class(class);
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        self.table.get(id)
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
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("snapshot", &self.snapshot()).finish_non_exhaustive()
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

/// How long the waiting worker asks again before it sleeps: longer than a program takes from one
/// request to the next, shorter than anything a user would see. See `docs/fuse-transport.md`.
const SPIN: Duration = Duration::from_micros(20);
