//! Whether this process lives in a chroot(2). The kernel makes no user namespaces there, which the
//! mounts of `run` are locked by, and without a mount at the root no mount can be made private.

use std::path::Path;

use crate::mountinfo::{self, MountInfo};

/// What is so in a chroot.
pub(crate) const FOUND: &str = "this process runs in a chroot, where the kernel does not make the \
                                namespaces that `run` needs";
/// What works instead.
pub(crate) const REMEDY: &str = "enter the directory with systemd-nspawn, bubblewrap or a \
                                 container, which make it the root of a mount namespace \
                                 (pivot_root), or use `tollgate mount`, which works in a chroot";

/// Why CMD could not be started: the chroot, if this process runs in one, since then nothing else
/// that is mended helps.
pub(crate) fn or(error: anyhow::Error) -> anyhow::Error {
    if is_around() { anyhow::anyhow!("{FOUND}; {REMEDY}") } else { error }
}

/// Also false where it cannot be told: where no process that led to this one is outside of the
/// chroot.
pub(crate) fn is_around() -> bool {
    let Ok(own) = mountinfo::read() else { return false };
    let others = std::iter::successors(parent("self"), |pid| parent(pid));
    is_chroot(&own, others.filter_map(|pid| mountinfo::read_of(&pid).ok()))
}

/// Whether the root of who sees the mounts `own` is another than that of its mount namespace.
fn is_chroot(own: &[MountInfo], mut others: impl Iterator<Item = Vec<MountInfo>>) -> bool {
    let roots: Vec<_> = own.iter().filter(|mount| is_root(mount)).map(|mount| mount.id).collect();
    if roots.is_empty() {
        // Paths that lead nowhere are not shown: without /proc nothing can be said.
        return !own.is_empty();
    }
    // Numbers of mounts differ in each mount namespace: one that is seen elsewhere by another
    // process is the same mount, and what is above it is out of our sight.
    let is_below = |mount: &MountInfo| roots.contains(&mount.id) && !is_root(mount);
    others.any(|seen| seen.iter().any(is_below))
}

fn is_root(mount: &MountInfo) -> bool {
    mount.point == Path::new("/")
}

/// The number of the process that `pid` was started by, or was left to.
fn parent(pid: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
    (parent != "0").then(|| parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, point: &str) -> MountInfo {
        MountInfo::example(id, "0:1", "/", point)
    }

    #[test]
    fn a_root_that_others_see_elsewhere_is_a_chroot() {
        let outside = vec![mount(1, "/"), mount(2, "/c"), mount(3, "/c/proc")];
        let is = |own: &[MountInfo]| is_chroot(own, [Vec::new(), outside.clone()].into_iter());
        assert!(is(&[mount(2, "/"), mount(3, "/proc")]));
        // The root is no mount point.
        assert!(is(&[mount(3, "/proc")]));
        assert!(!is(&outside));
        // Another mount namespace.
        assert!(!is(&[mount(12, "/"), mount(13, "/proc")]));
        assert!(!is(&[]));
    }
}
