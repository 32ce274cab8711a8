//! Places that CMD gets empty and for itself: temporary files, and `/run`, where the sockets of
//! services lie that act for others.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{CWD, Gid, Uid};
use rustix::mount::MountFlags;

use super::kept::Kept;
use super::shape::Fence;

/// What everybody may write to, with the mode of the private one.
const TEMPORARY: &[&str] = &["/tmp", "/var/tmp"];
/// POSIX shared memory. It is in the /dev of CMD's own.
const SHARED_MEMORY: &str = "/dev/shm";
const RUN: &str = "/run";
/// What of /run is no service's socket: how names are resolved, and where NixOS keeps programs.
const KEPT_OF_RUN: &[&str] = &[
    "systemd/resolve",
    "resolvconf",
    "NetworkManager/resolv.conf",
    "NetworkManager/no-stub-resolv.conf",
    "current-system",
    "booted-system",
    "wrappers",
    "opengl-driver",
];

/// What of the private places stays accessible: DIR's surroundings, read-only, and what belongs to
/// CMD.
pub(super) fn kept(fence: &Fence, dir: &Path, cwd: &Path) -> anyhow::Result<Vec<Kept>> {
    let mut paths = surroundings_of(fence, dir, cwd);
    let in_private = |path: &&Path| all_places().any(|place| path.starts_with(place));
    paths
        .extend(fence.programs.iter().map(PathBuf::as_path).filter(in_private).map(Path::to_owned));
    let of_run = KEPT_OF_RUN.iter().filter_map(|name| {
        let path = Path::new(RUN).join(name);
        path.exists().then(|| std::fs::canonicalize(path).ok()).flatten()
    });
    paths.extend(of_run);
    // What is allowed shows with its own rights.
    let is_allowed = |path: &PathBuf| fence.allowed.iter().any(|one| path.starts_with(&one.path));
    paths.retain(|path| !is_allowed(path) && !fence.is_in_a_view(path));
    paths.sort();
    paths.dedup();
    paths.iter().map(|path| Kept::read_only_copy(path)).collect()
}

/// What lies around DIR, the working directory and the home directory in a private place.
pub(super) fn surroundings_of(fence: &Fence, dir: &Path, cwd: &Path) -> Vec<PathBuf> {
    let cwd = std::fs::canonicalize(cwd).unwrap_or_else(|_| cwd.to_owned());
    let all = [Some(dir), Some(cwd.as_path()), fence.home.as_deref()];
    all.into_iter().flatten().filter_map(|path| surroundings(path, dir)).collect()
}

/// The directory below a place for temporary files that `path` lies in; elsewhere in a private
/// place, `path` itself. DIR is shown by the view.
fn surroundings(path: &Path, dir: &Path) -> Option<PathBuf> {
    let place = all_places().find(|place| path.starts_with(place))?;
    let below = path.strip_prefix(place).ok()?;
    let first = below.components().next()?;
    let kept = if TEMPORARY.contains(&place) { Path::new(place).join(first) } else { path.into() };
    (!kept.starts_with(dir)).then_some(kept)
}

fn all_places() -> impl Iterator<Item = &'static str> {
    TEMPORARY.iter().copied().chain([SHARED_MEMORY, RUN])
}

/// Those that `--allow` does not show as they are.
pub(super) fn hidden(fence: &Fence) -> impl Iterator<Item = PathBuf> {
    let is_allowed = |path: &Path| fence.allowed.iter().any(|one| path.starts_with(&one.path));
    all_places().map(PathBuf::from).filter(move |path| !is_allowed(path))
}

/// Whether `path` lies in a private place.
pub(super) fn is_private(path: &Path) -> bool {
    all_places().any(|place| path.starts_with(place))
}

/// Mounts the private places.
pub(super) fn cover(fence: &Fence) -> anyhow::Result<()> {
    for place in TEMPORARY {
        private(Path::new(place), 0o1777)?;
    }
    if private(Path::new(RUN), 0o755)? {
        make(&Path::new(RUN).join("lock"), 0o1777)?;
        let own = Path::new(RUN).join("user").join(fence.uid.to_string());
        make(&own, 0o700)?;
        let (uid, gid) = (Uid::from_raw(fence.uid), None::<Gid>);
        if rustix::process::geteuid().is_root() {
            rustix::fs::chownat(CWD, &own, Some(uid), gid, rustix::fs::AtFlags::empty())
                .with_context(|| format!("cannot give `{}` to its user", own.display()))?;
        }
    }
    Ok(())
}

/// Mounts an empty file system at `place`; `false` where there is no such directory, or a symbolic
/// link to one that is covered by its own name.
pub(super) fn private(place: &Path, mode: u32) -> anyhow::Result<bool> {
    if !std::fs::symlink_metadata(place).is_ok_and(|meta| meta.is_dir()) {
        return Ok(false);
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = std::ffi::CString::new(format!("mode={mode:o}"))?;
    rustix::mount::mount("tmpfs", place, "tmpfs", flags, Some(options.as_c_str()))
        .with_context(|| format!("cannot mount a private `{}`", place.display()))?;
    Ok(true)
}

fn make(path: &Path, mode: u32) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    // The mode in spite of the umask.
    made.and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot make `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_surrounds_dir_in_a_temporary_place_stays() {
        let kept = |path: &str, dir: &str| {
            surroundings(Path::new(path), Path::new(dir))
                .map(|path| path.to_str().unwrap().to_owned())
        };
        assert_eq!(kept("/tmp/a/b/dir", "/tmp/a/b/dir").as_deref(), Some("/tmp/a"));
        assert_eq!(kept("/tmp/dir", "/tmp/dir"), None);
        assert_eq!(kept("/tmp/dir/sub", "/tmp/dir"), None);
        assert_eq!(kept("/tmp", "/tmp/dir"), None);
        assert_eq!(kept("/home/a", "/home/a/dir"), None);
        assert_eq!(kept("/run/user/5/cwd", "/tmp/a/dir").as_deref(), Some("/run/user/5/cwd"));
    }
}
