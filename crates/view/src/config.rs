//! What a view is made from.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tollgate_policy::Policy;

use crate::audit::Audit;
use crate::caller::Callers;
use crate::neighbours::Neighbours;
use crate::seal_keys::SealKeys;

/// Settings of a view.
#[derive(Clone)]
pub struct Config {
    /// What is allowed.
    pub policy: Arc<Policy>,
    /// How long the kernel may believe attributes. What changes in the lower tree behind the view's
    /// back becomes visible within this time.
    pub attr_timeout: Duration,
    /// How long the kernel may believe that a name leads to an inode, or to none.
    pub entry_timeout: Duration,
    /// Whether what changes behind the view is watched, so that the kernel may cache names and
    /// attributes for longer than the timeouts.
    pub watch: WatchMode,
    /// How long nothing is watched at first. The kernel holds up whoever ends a watch for 10 to 20
    /// ms, which is much for a server that serves one short command. Zero by default.
    pub watch_after: Duration,
    /// Whether small files that are only read come from the view's own page cache.
    pub small_files: SmallFiles,
    /// Most descriptors that the view keeps open; `None` for the process's limit less 64.
    pub max_descriptors: Option<usize>,
    /// Directories, relative to the root, that another view is about to be mounted on, and is until
    /// [`crate::View::mounts_are_made`]. Neither they nor the directories above them can be renamed or
    /// removed (`EBUSY`): a rename would take the mount along. Where others move them to in the lower
    /// file system they are not shown (`EACCES`): other rules hold there.
    pub mount_points: Vec<PathBuf>,
    /// The lower directory where it was found, if the view is of it on a copy of that mount: the kernel
    /// has no path of such a copy.
    pub found: Option<Arc<OwnedFd>>,
    /// Directories, relative to the root, that are about to be mounted natively, and may be until
    /// [`crate::View::mounts_are_made`]. The same holds for them as long as the kernel has them
    /// mounted: others can move them in the lower file system, which ends the mount. They are never
    /// shown with it at another path.
    pub native: Vec<PathBuf>,
    /// The views that the same server shows beside this one: a file that has names in several of
    /// their directories is judged by all of these.
    pub neighbours: Option<Arc<Neighbours>>,
    /// In a user namespace that maps one user and one group, these: the user's files that belong to
    /// another group, as a user has several, are shown with this one. The kernel lets nobody write
    /// to a file whose group has no name in the namespace.
    pub only_ids: Option<(u32, u32)>,
    /// Is told, about twice a second, how many names the search for hard links at the start has
    /// looked at; only of one that takes longer.
    pub on_search: Option<fn(u64)>,
    /// The view is mounted such that nobody writes through it: then it leaves the writing of sealed files to
    /// another server, and lacks nothing without.
    pub is_read_only: bool,
    /// The keys of files that `seal` rules name; without them, such files cannot be opened.
    pub seal_keys: Option<Arc<SealKeys>>,
    /// Who looks at callers; `None`: this process, in /proc.
    pub callers: Option<Arc<dyn Callers>>,
    /// Who hears what happens.
    pub audit: Option<Arc<dyn Audit>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Arc::new(Policy::allow_all()),
            attr_timeout: Duration::from_secs(1),
            entry_timeout: Duration::from_secs(1),
            watch: WatchMode::Auto,
            watch_after: Duration::ZERO,
            small_files: SmallFiles::Auto,
            max_descriptors: None,
            mount_points: Vec::new(),
            found: None,
            native: Vec::new(),
            neighbours: None,
            only_ids: None,
            on_search: None,
            is_read_only: false,
            seal_keys: None,
            callers: None,
            audit: None,
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("attr_timeout", &self.attr_timeout)
            .field("entry_timeout", &self.entry_timeout)
            .field("watch", &self.watch)
            .field("small_files", &self.small_files)
            .field("max_descriptors", &self.max_descriptors)
            .field("mount_points", &self.mount_points)
            .field("native", &self.native)
            .field("audit", &self.audit.as_ref().map(|audit| audit.level()))
            .finish_non_exhaustive()
    }
}

/// Whether changes behind the view are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchMode {
    /// Where the kernel permits it, and unless [`Config::attr_timeout`] is zero.
    #[default]
    Auto,
    /// Always; a view that cannot is not opened.
    On,
    /// Never.
    Off,
}

/// Where programs get the bytes of small files that they only read from, if the policy allows
/// passthrough. The view's own page cache spares a request for each read of a file; a change behind
/// the view is seen by the next open, and by who has the file open within a second or two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmallFiles {
    /// From the view's page cache, where changes behind the view are watched.
    #[default]
    Auto,
    /// From the view's page cache also without the watch. Not where [`Config::attr_timeout`] is
    /// below a second, or on a file system whose times do not tell each change.
    Cached,
    /// From the lower file, by passthrough.
    Passthrough,
}

/// Why a directory cannot be viewed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The source is a file.
    #[error("the source is not a directory")]
    NotADirectory,
    /// The source cannot be looked at.
    #[error("the source directory cannot be read: {0}")]
    Unreadable(#[source] Errno),
    /// The source lies in a file system whose files steer the kernel.
    #[error("it is of a file system whose files steer the kernel (proc, sysfs and the like)")]
    KernelFileSystem,
    /// `/proc` is needed to open what a descriptor names.
    #[error("/proc/self/fd is not there ({0}); mount proc at /proc")]
    NoProc(#[source] Errno),
    /// Watching was asked for and is not available.
    #[error("changes behind the view cannot be watched: {0}")]
    Watch(#[source] Errno),
    /// No descriptor is left for what the view needs itself.
    #[error("no descriptor could be had ({0}); raise the limit, `ulimit -n`")]
    Descriptor(#[source] Errno),
    /// The lower file system takes two spellings of a name for one, and the policy does not.
    #[error(
        "{0}: a name that the policy protects could be used in another spelling; make the policy \
         one that is about all of DIR, or take a directory that tells `A` from `a`"
    )]
    Caseless(String),
    /// The policy redacts or seals files, and what computes for them could not be started.
    #[error("no work queues or buffers for redacted and sealed files: {0}")]
    WorkQueues(#[source] Errno),
    /// A helper thread could not be started.
    #[error("no thread could be started: {0}")]
    Thread(#[source] std::io::Error),
}
