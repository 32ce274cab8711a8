//! Copies of directories for CMD to write to: an overlay shows the real one and keeps what is
//! written in memory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};

use super::kept::by_descriptor;
use super::places;

/// Where layers are made. The kernel takes them by path, and only from mounts of this namespace: a
/// file system of memory stands at /tmp until the overlays hold it.
#[derive(Debug)]
pub(super) struct Layers {
    place: PathBuf,
    made: usize,
}

impl Layers {
    /// Mounts the place.
    pub(super) fn prepare() -> anyhow::Result<Self> {
        let place = PathBuf::from("/tmp");
        anyhow::ensure!(places::private(&place, 0o700)?, "/tmp is no directory");
        Ok(Self { place, made: 0 })
    }

    /// An overlay, mounted nowhere, that shows the directory `lower`.
    pub(super) fn over(&mut self, lower: &OwnedFd) -> anyhow::Result<OwnedFd> {
        let own = self.place.join(self.made.to_string());
        self.made += 1;
        let (upper, work) = (own.join("upper"), own.join("work"));
        for directory in [&own, &upper, &work] {
            std::fs::create_dir(directory).context("cannot make a layer")?;
        }
        like(lower, &upper)?;
        let overlay = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
            .context("this kernel has no overlay file system")?;
        let set = |key: &str, value: &str| rustix::mount::fsconfig_set_string(&overlay, key, value);
        set("source", "home")?;
        set("lowerdir", &by_descriptor(lower))?;
        set("upperdir", upper.to_str().context("no text")?)?;
        set("workdir", work.to_str().context("no text")?)?;
        // Marks that anybody may set: in a user namespace no others can be had.
        rustix::mount::fsconfig_set_flag(&overlay, "userxattr")?;
        // Nothing of it has to survive.
        rustix::mount::fsconfig_set_flag(&overlay, "volatile")?;
        rustix::mount::fsconfig_create(&overlay).context("its file system cannot be a layer")?;
        mounted(&overlay).context("the overlay cannot be mounted")
    }

    /// Takes the place away.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        rustix::mount::unmount(&self.place, UnmountFlags::DETACH)
            .context("cannot unmount what copies were prepared at")
    }
}

/// A file system in memory, mounted nowhere, whose top is like the directory `original`.
pub(super) fn memory(original: &OwnedFd) -> anyhow::Result<OwnedFd> {
    let memory = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&memory, "source", "home")?;
    rustix::mount::fsconfig_create(&memory)?;
    let top = mounted(&memory).context("memory cannot be mounted")?;
    take_after(original, &top, Path::new(""))?;
    Ok(top)
}

fn mounted(context: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Gives `copy` owner and mode of `original`.
fn like(original: &OwnedFd, copy: &Path) -> anyhow::Result<()> {
    take_after(original, CWD, copy)
}

/// Gives `copy`, from `directory` on (or that itself), owner and mode of `original`.
pub(super) fn take_after(
    original: impl AsFd,
    directory: impl AsFd,
    copy: &Path,
) -> anyhow::Result<()> {
    let stat = rustix::fs::fstat(original).context("fstat")?;
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let copy = if copy.as_os_str().is_empty() { Path::new(".") } else { copy };
    // Without privilege it is the user's own home, and so is the copy.
    if rustix::process::geteuid().is_root() {
        match rustix::fs::chownat(&directory, copy, Some(uid), Some(gid), AtFlags::empty()) {
            // Root of a user namespace that has no number for the owner: the copy is root's then.
            Err(Errno::INVAL) => {}
            other => other.context("chown")?,
        }
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    rustix::fs::chmodat(&directory, copy, mode, AtFlags::empty()).context("chmod")
}
