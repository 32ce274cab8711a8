//! The view's state.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
use crate::config::{Config, OpenError, WatchMode};
use crate::creds::{self, Powers};
use crate::fds::Descriptors;
use crate::handles::{Handles, OpenDir, UserFile};
use crate::listings::Listings;
use crate::lower::{self, Stat};
use crate::passthrough::Passthrough;
use crate::paths::Paths;
use crate::probe;
use crate::stats::{Count, Counters, Snapshot, Unavailable};
use crate::sweeper::Sweeper;
use crate::table::{Node, Table};
use crate::watch::{LONG, NEGATIVE, Watch};
use crate::watched::Level;

/// A lower directory seen through a policy. Served by handing it to a
/// [`tollgate_fuse::Session`], configured by [`View::session_config`].
pub struct View {
    pub(crate) table: Arc<Table>,
    pub(crate) fds: Arc<Descriptors>,
    /// Tells of changes behind the view, where that is available.
    pub(crate) watch: Option<Watch>,
    /// Why it is not.
    watch_reason: Option<String>,
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
    /// Listings of directories that were not opened.
    pub(crate) listings: Listings,
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
        let (watch, watch_reason) = watch(&config)?;
        let max = config.max_descriptors.unwrap_or_else(probe::max_descriptors);
        Ok(Self {
            table: Arc::new(Table::new(&root)),
            fds: Arc::new(Descriptors::new(source, Arc::new(Budget::new(max)))),
            watch,
            watch_reason,
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
            listings: Listings::default(),
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
            directory_handles: self.dirs.len() + self.listings.len(),
            watch: self.watch.as_ref().map(Watch::status).unwrap_or_default(),
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
        if let Some(reason) = &self.watch_reason {
            let feature = "watching for changes behind the view".into();
            missing.push(Unavailable { feature, reason: reason.clone() });
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

    /// The entry of `node`, found in `dir`.
    pub(crate) fn entry(&self, dir: &Node, node: &Node, stat: &Stat) -> Entry {
        let watched = dir.watched.level() >= Level::Names;
        Entry {
            node: node.id,
            generation: 0,
            entry_valid: if watched { LONG.max(self.entry_timeout) } else { self.entry_timeout },
            attr: stat.attr(self.root_dev),
            attr_valid: self.attr_valid(node),
        }
    }

    /// "No such name" in `dir`.
    pub(crate) fn no_entry(&self, dir: &Node) -> Entry {
        let watched = dir.watched.level() >= Level::Names;
        Entry::negative(if watched { NEGATIVE.max(self.entry_timeout) } else { self.entry_timeout })
    }

    pub(crate) fn attributes(&self, node: &Node, stat: &Stat) -> Attributes {
        Attributes { attr: stat.attr(self.root_dev), valid: self.attr_valid(node) }
    }

    /// How long the kernel may cache the attributes of `node`: for a directory that is watched,
    /// until a change is reported. A file always has the timeout of the configuration, because it
    /// can get a further name in a directory that nobody watches, and a change made through that
    /// name is reported to nobody.
    pub(crate) fn attr_valid(&self, node: &Node) -> Duration {
        let watched = node.is_dir() && node.watched.level() >= Level::Names;
        if watched { LONG.max(self.attr_timeout) } else { self.attr_timeout }
    }

    /// The connection stands: from now on what is stale can be dropped.
    pub(crate) fn start_watch(&self, connection: &Connection) {
        let Some(watch) = &self.watch else { return };
        let (table, fds) = (Arc::clone(&self.table), Arc::clone(&self.fds));
        if let Err(error) = watch.start(connection.clone(), table, fds) {
            tracing::warn!(%error, "no thread for watching; names and attributes expire as configured");
        }
    }

    /// The kernel comes back to `dir`, or lists it: from now on it is watched.
    pub(crate) fn watch_dir(&self, dir: &Arc<Node>) {
        if let Some(watch) = &self.watch
            && watch.would_raise(dir)
            && dir.key.dev() == self.root_dev
            && let Ok(fd) = self.fds.path(dir)
        {
            watch.raise(dir, fd.as_fd(), c".", || true);
        }
    }

    /// `node` is listed as `name` in the directory that `dir` names: it is watched if it is a
    /// directory, and its attributes are those of `stat` or, if it was not watched before, read
    /// again.
    pub(crate) fn watch_child(
        &self,
        node: &Node,
        dir: BorrowedFd<'_>,
        name: &CStr,
        stat: Stat,
    ) -> Stat {
        let Some(watch) = self.watch.as_ref().filter(|_| node.is_dir()) else { return stat };
        let mut now = stat;
        if watch.would_raise(node) && stat.dev() == self.root_dev {
            watch.raise(node, dir, name, || match lower::stat_at(dir, name) {
                Ok(again) if again.key() == node.key => {
                    now = again;
                    true
                }
                _ => false,
            });
        }
        now
    }

    /// A file in `dir` is written through the view.
    pub(crate) fn written_in(&self, dir: &Arc<Node>) {
        if let Some(watch) = &self.watch {
            watch.written(dir);
        }
    }
}

/// Watches as `config` wants it; else the reason why not.
fn watch(config: &Config) -> Result<(Option<Watch>, Option<String>), OpenError> {
    let wanted = match config.watch {
        WatchMode::Off => return Ok((None, Some("switched off".into()))),
        WatchMode::Auto if config.attr_timeout.is_zero() => {
            return Ok((None, Some("attributes are not cached at all".into())));
        }
        mode => mode,
    };
    match Watch::new() {
        Ok(watch) => Ok((Some(watch), None)),
        Err(errno) if wanted == WatchMode::On => Err(OpenError::Watch(errno)),
        Err(errno) => Ok((None, Some(format!("fanotify needs CAP_SYS_ADMIN: {errno}")))),
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
