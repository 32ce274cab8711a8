//! What a view is made from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tollgate_policy::Policy;

use crate::audit::Audit;

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
    /// Most descriptors that the view keeps open; `None` for the process's limit less 64.
    pub max_descriptors: Option<usize>,
    /// Directories, relative to the root, that something else is mounted on. Neither they nor the
    /// directories above them can be renamed or removed (`EBUSY`): a rename would take the mount
    /// along.
    pub mount_points: Vec<PathBuf>,
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
            max_descriptors: None,
            mount_points: Vec::new(),
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
            .field("max_descriptors", &self.max_descriptors)
            .field("mount_points", &self.mount_points)
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

/// Why a directory cannot be viewed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The source is a file.
    #[error("the source is not a directory")]
    NotADirectory,
    /// The source cannot be looked at.
    #[error("the source directory cannot be read: {0}")]
    Unreadable(#[source] Errno),
    /// `/proc` is needed to open what a descriptor names.
    #[error("/proc/self/fd is not there ({0}); mount proc at /proc")]
    NoProc(#[source] Errno),
    /// Watching was asked for and is not available.
    #[error("changes behind the view cannot be watched, which needs CAP_SYS_ADMIN: {0}")]
    Watch(#[source] Errno),
    /// A helper thread could not be started.
    #[error("no thread could be started: {0}")]
    Thread(#[source] std::io::Error),
}
