//! The home directory: CMD writes to a copy, which is gone when CMD ends.
//!
//! Programs write to their caches and settings, and many fail where they cannot. Were they to write
//! to the real ones, they could leave there what runs outside later: a shell profile, a program in
//! `~/.local/bin`, a build cache. So an overlay shows the real home, and keeps what is written in
//! memory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::allow::Allowed;
use super::kept::{Kept, by_descriptor};
use crate::escape::escaped;
use crate::mountinfo;

/// Names in a home directory that programs write by the way, and whose loss is none.
const CACHES: &[&str] = &[
    ".bash_history",
    ".bun",
    ".cache",
    ".cargo",
    ".config",
    ".conda",
    ".deno",
    ".gradle",
    ".java",
    ".lesshst",
    ".local",
    ".m2",
    ".node-gyp",
    ".node_repl_history",
    ".npm",
    ".nuget",
    ".nv",
    ".pnpm-store",
    ".pyenv",
    ".python_history",
    ".rustup",
    ".viminfo",
    ".wget-hsts",
    ".yarn",
    ".zsh_history",
    "go",
];
/// Most names that are told.
const TOLD_MAX: usize = 6;

/// What CMD writes to its copy.
#[derive(Debug)]
pub(crate) struct Written {
    upper: OwnedFd,
}

/// Whether CMD gets a copy of `home`: not where the home is, or lies in, what it may write anyway.
pub(super) fn wants_copy(home: &Path, dir: &Path, allowed: &[Allowed]) -> bool {
    let in_allowed =
        allowed.iter().any(|allowed| allowed.writable && home.starts_with(&allowed.path));
    home.parent().is_some() && home.is_dir() && !home.starts_with(dir) && !in_allowed
}

/// What is mounted in `home`, which an overlay would not show, read-only.
pub(super) fn mounts_below(home: &Path) -> anyhow::Result<Vec<Kept>> {
    let mounts = mountinfo::read()?;
    let below = |path: &&Path| *path != home && path.starts_with(home);
    let mut points: Vec<&Path> =
        mounts.iter().map(|mount| mount.point.as_path()).filter(below).collect();
    points.sort();
    // A mount comes with those in it.
    points.dedup_by(|later, earlier| later.starts_with(earlier));
    let kept = |point: &&Path| {
        let mut kept = Kept::read_only_copy(point).ok()?;
        kept.optional = true;
        Some(kept)
    };
    Ok(points.iter().filter_map(kept).collect())
}

/// An overlay that shows `home`, which `lower` names.
pub(super) fn copy(home: &Path, lower: &OwnedFd) -> anyhow::Result<(Kept, Written)> {
    // The kernel takes layers by path, and only from mounts of this namespace: one of memory stands
    // at /tmp until the overlay holds it.
    let place = Path::new("/tmp");
    anyhow::ensure!(super::places::private(place, 0o700)?, "/tmp is no directory");
    let result = overlay_at(place, lower);
    rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH)
        .context("cannot unmount what the copy was prepared at")?;
    let (overlay, upper) = result?;
    Ok((Kept::of(home, overlay), Written { upper }))
}

fn overlay_at(place: &Path, lower: &OwnedFd) -> anyhow::Result<(OwnedFd, OwnedFd)> {
    let (upper, work) = (place.join("upper"), place.join("work"));
    for directory in [&upper, &work] {
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
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    let mount = rustix::mount::fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .context("the overlay cannot be mounted")?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let upper =
        rustix::fs::openat(CWD, &upper, flags, Mode::empty()).context("cannot open a layer")?;
    Ok((mount, upper))
}

/// Gives `copy` owner and mode of `original`.
fn like(original: &OwnedFd, copy: &Path) -> anyhow::Result<()> {
    let stat = rustix::fs::fstat(original).context("fstat")?;
    let (uid, gid) =
        (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
    // Without privilege it is the user's own home, and so is the copy.
    if rustix::process::geteuid().is_root() {
        let follow = rustix::fs::AtFlags::empty();
        rustix::fs::chownat(CWD, copy, Some(uid), Some(gid), follow).context("chown")?;
    }
    rustix::fs::chmodat(CWD, copy, Mode::from_raw_mode(stat.st_mode), rustix::fs::AtFlags::empty())
        .context("chmod")
}

/// What was written, in words; `None` if it was nothing that somebody could miss.
pub(crate) fn told(written: Written, home: &Path) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in Dir::new(written.upper).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." || CACHES.contains(&name.as_str()) {
            continue;
        }
        let slash = if entry.file_type() == FileType::Directory { "/" } else { "" };
        names.push(format!("{}{slash}", escaped(&home.join(&name).to_string_lossy())));
    }
    names.sort();
    let more = names.len().saturating_sub(TOLD_MAX);
    names.truncate(TOLD_MAX);
    let list = names.join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| {
        format!(
            "what CMD changed in its private copy of the home directory is gone: {list}{more}; \
             keep such changes with `--allow PATH:rw`"
        )
    })
}

/// The home directory of CMD, without symbolic links.
pub(crate) fn of(path: Option<PathBuf>) -> Option<PathBuf> {
    let path = path.filter(|path| path.is_absolute())?;
    std::fs::canonicalize(path).ok().filter(|path| path.is_dir())
}
