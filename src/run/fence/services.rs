//! Sockets of services in other places than those that are private anyway (`/run`, `/tmp`, home):
//! whoever may connect to one acts outside of the fence.

use std::path::{Path, PathBuf};

use super::allow::Allowed;
use super::kept::Kept;

/// Of engines for containers and virtual machines, and of databases.
const SOCKETS: &[&str] = &[
    "/var/lib/incus/unix.socket",
    "/var/lib/lxd/unix.socket",
    "/var/lib/mysql/mysql.sock",
    "/var/lib/mysqld/mysqld.sock",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/var/snap/docker/common/run/docker.sock",
];

/// Those that exist and are not allowed.
pub(super) fn hidden(allowed: &[Allowed]) -> impl Iterator<Item = PathBuf> {
    let is_allowed = |path: &Path| allowed.iter().any(|allowed| path.starts_with(&allowed.path));
    let all = SOCKETS.iter().map(PathBuf::from);
    all.filter(move |path| path.exists() && !is_allowed(path))
}

/// `/dev/null` at the place of each one.
pub(super) fn kept(allowed: &[Allowed]) -> anyhow::Result<Vec<Kept>> {
    let cover = |path: PathBuf| {
        let mut kept = Kept::node(Path::new("/dev/null"))?;
        kept.path = path;
        kept.optional = true;
        Ok(kept)
    };
    hidden(allowed).map(cover).collect()
}
