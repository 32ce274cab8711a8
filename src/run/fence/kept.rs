//! Mounts that are put aside while the fence is built, and then attached again.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::{sys, tree};

/// A mount, with everything mounted in it, that is attached nowhere.
#[derive(Debug)]
pub(super) struct Kept {
    /// Where it belongs: absolute, without symbolic links.
    pub(super) path: PathBuf,
    /// Whether the fence can do without.
    pub(super) optional: bool,
    /// It is there for what it covers, and is left out where that does not show.
    pub(super) hides: bool,
    /// What a view shows there is attached in place of what lies beneath it.
    pub(super) is_of_view: bool,
    tree: OwnedFd,
}

impl Kept {
    /// A mount made by somebody else.
    pub(super) fn of(path: &Path, tree: OwnedFd) -> Self {
        Self { path: path.to_owned(), optional: false, hides: false, is_of_view: false, tree }
    }

    /// What shows at `path` now.
    pub(super) fn copy(path: &Path) -> anyhow::Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let tree = rustix::mount::open_tree(CWD, path, flags)
            .with_context(|| format!("cannot copy the mount of `{}`", path.display()))?;
        Ok(Self::of(path, tree))
    }

    /// The same; device nodes in it do not open. What the user names may be a device, at its own
    /// path; where everybody makes files there are none of those.
    pub(super) fn allowed(path: &Path, writable: bool) -> anyhow::Result<Self> {
        let kept = Self::copy(path)?;
        let read_only = if writable { 0 } else { libc::MOUNT_ATTR_RDONLY };
        let is_device = path.starts_with("/dev") && !path.starts_with("/dev/shm");
        kept.restrict(read_only | if is_device { 0 } else { libc::MOUNT_ATTR_NODEV })?;
        Ok(kept)
    }

    /// The same, for sockets: what else is put there is no program and no device.
    pub(super) fn of_sockets(path: &Path) -> anyhow::Result<Self> {
        let kept = Self::copy(path)?;
        let no_programs = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
        kept.restrict(no_programs | libc::MOUNT_ATTR_NODEV)?;
        Ok(kept)
    }

    /// The same, read-only.
    pub(super) fn read_only_copy(path: &Path) -> anyhow::Result<Self> {
        Self::read_only(path, Self::copy(path)?.tree)
    }

    /// A mount made by somebody else, from now on read-only.
    pub(super) fn read_only(path: &Path, tree: OwnedFd) -> anyhow::Result<Self> {
        let kept = Self::of(path, tree);
        // Nodes in it would open for a user, whose other terminals they may be.
        kept.restrict(libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV)?;
        Ok(kept)
    }

    fn restrict(&self, attributes: u64) -> anyhow::Result<()> {
        sys::restrict_mount(self.tree.as_fd(), attributes)
            .with_context(|| format!("cannot restrict the mount of `{}`", self.path.display()))
    }

    /// What `place` names, read-only, to be shown at `path`.
    pub(super) fn read_only_of(path: &Path, place: &OwnedFd) -> anyhow::Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = rustix::mount::open_tree(place, "", flags)
            .with_context(|| format!("cannot copy the mount of `{}`", path.display()))?;
        Self::read_only(path, tree)
    }

    /// The device node at `path`, whose owner and permissions cannot be changed.
    pub(super) fn node(path: &Path) -> anyhow::Result<Self> {
        let kept = Self::copy(path)?;
        sys::protect_nodes(kept.tree.as_fd())
            .with_context(|| format!("cannot protect the device `{}`", path.display()))?;
        Ok(kept)
    }

    /// The view that is mounted at `path`; what it covers shows there until it is attached again.
    pub(super) fn taken_away(path: &Path) -> anyhow::Result<Self> {
        let mut kept = Self::copy(path)?;
        kept.optional = true;
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        rustix::mount::unmount(path, flags)
            .with_context(|| format!("cannot put the view at `{}` aside", path.display()))?;
        Ok(kept)
    }

    /// The same, of what shows at its path by now; `None` where nothing does.
    pub(super) fn as_shown(&self) -> Option<Self> {
        let place = open_path(&self.path).ok()?;
        Self::read_only_of(&self.path, &place).ok()
    }

    /// Attaches it where it belongs, and makes that place where it is missing.
    pub(super) fn attach(&self) -> anyhow::Result<()> {
        let place = self.place()?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&self.tree, "", &place, "", flags).context("cannot mount")
    }

    fn place(&self) -> anyhow::Result<OwnedFd> {
        if let Ok(place) = open_path(&self.path) {
            return Ok(place);
        }
        let make_directory = |path: &Path| {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o755).create(path).context("cannot make a directory")
        };
        if tree::is_directory(&self.tree) {
            make_directory(&self.path)?;
        } else {
            self.path.parent().map_or(Ok(()), make_directory)?;
            std::fs::File::create_new(&self.path).context("cannot make a file")?;
        }
        open_path(&self.path)
    }
}

/// Opens `path` without opening the file, and without following a symbolic link.
pub(super) fn open_path(path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .with_context(|| format!("cannot open `{}`", path.display()))
}

/// A path that names what `fd` refers to, for system calls that take nothing else.
pub(super) fn by_descriptor(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
