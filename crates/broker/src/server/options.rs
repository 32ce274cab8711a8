//! Who may use the broker, how much, and what its processes look things up in.

use std::os::fd::OwnedFd;

use rustix::process::Pid;

/// Who may use the broker, and how much.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Only members of this group; root besides.
    pub group: Option<u32>,
    /// Most files that one connection may have registered at a time.
    pub max_files: usize,
    /// Most files that one connection may register in a second, and at once.
    pub max_files_per_second: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { group: None, max_files: 16_384, max_files_per_second: 20_000 }
    }
}

/// What every process of the broker inherits. Opened before it has no file system any more.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) options: Options,
    pub(super) listener: OwnedFd,
    /// The process that accepts connections.
    pub(super) listening: Pid,
    pub(super) proc: OwnedFd,
    /// A fusectl mount of our own: one directory for each FUSE connection, owned by its user.
    pub(super) connections: OwnedFd,
    /// The device of `/dev`: files of a devtmpfs look like those of a tmpfs.
    pub(super) dev: u64,
    /// The kernel tells which connection a descriptor of `/dev/fuse` has (Linux 6.18).
    pub(super) connection_is_told: bool,
}
