//! The home directory: CMD sees what is listed of it, and writes to a copy, which is gone when CMD
//! ends.
//!
//! Programs write to their caches and settings, and many fail where they cannot. Were they to write
//! to the real ones, they could leave there what runs outside later: a shell profile, a program in
//! `~/.local/bin`, a build cache. And keys, histories, mails and other projects are none of their
//! business. So the home directory is an empty one in memory. Listed directories are overlays in it,
//! listed files are copies.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use rustix::fs::{Mode, OFlags};

use super::kept::{Kept, open_path};
use super::layers::{Layers, memory, take_after};
use super::settings::without_secrets;
use crate::mountinfo::{self, MountInfo};

/// Longest file that is copied; a longer one is read-only.
const COPIED_MAX_BYTES: u64 = 16 << 20;
/// Most directories and files of a home that are shown.
const SHOWN_MAX: usize = 512;

/// A home directory that is about to be covered, with what of it stays.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    real: OwnedFd,
    /// `None`: all of it.
    shown: Option<Vec<Shown>>,
}

/// The private copy, before CMD starts.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) top: OwnedFd,
    /// Those that were copied into it.
    pub(super) files: Vec<PathBuf>,
}

/// Something in it that CMD sees.
#[derive(Debug)]
struct Shown {
    /// From the home directory on.
    name: PathBuf,
    real: OwnedFd,
    directory: bool,
    /// What is mounted in it, which an overlay would not show.
    mounts: Vec<Kept>,
}

impl Home {
    /// Opens what is listed in `paths`, before anything is covered.
    pub(super) fn open(path: &Path, paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mounts = mountinfo::read()?;
        let mut names: Vec<&Path> = paths
            .iter()
            .filter_map(|listed| listed.strip_prefix(path).ok())
            .filter(|name| is_plain(name))
            .collect();
        names.sort_unstable();
        // What lies in another one comes with that.
        names.dedup_by(|later, earlier| later.starts_with(earlier));
        let shown = names.iter().filter_map(|name| Shown::open(path, name, &mounts));
        let shown = shown.take(SHOWN_MAX).collect();
        Ok(Self { path: path.to_owned(), real: open_path(path)?, shown: Some(shown) })
    }

    /// A home directory that CMD may read, all of it.
    pub(super) fn readable(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { path: path.to_owned(), real: open_path(path)?, shown: None })
    }

    /// The copy, and what belongs in it. `warnings` hears what could not be copied.
    pub(super) fn copy(
        self,
        layers: &mut Layers,
        warnings: &mut Vec<String>,
    ) -> anyhow::Result<(Vec<Kept>, Copy)> {
        let Some(shown) = self.shown else {
            let overlay = layers.over(&self.real)?;
            let top = readable(&overlay)?;
            return Ok((vec![Kept::of(&self.path, overlay)], Copy { top, files: Vec::new() }));
        };
        let top = memory(&self.real).context("no memory for a private home directory")?;
        let mut kept = Vec::new();
        let mut files = Vec::new();
        let mut read_only = Vec::new();
        for mut shown in shown {
            make_parents(&self.real, &top, &shown.name)?;
            let at = self.path.join(&shown.name);
            if !shown.directory && copy_file(&shown, &top).is_ok() {
                files.push(shown.name);
                continue;
            }
            match layers.over(&shown.real).ok().filter(|_| shown.directory) {
                Some(overlay) => {
                    kept.push(Kept::of(&at, overlay));
                    kept.append(&mut shown.mounts);
                }
                None => {
                    kept.push(Kept::read_only_of(&at, &shown.real)?);
                    read_only.push(at.display().to_string());
                }
            }
        }
        if !read_only.is_empty() {
            warnings.push(format!(
                "read-only for CMD, as no private copy can be had: {}",
                read_only.join(", ")
            ));
        }
        let copy = Copy { top: readable(&top)?, files };
        kept.push(Kept::of(&self.path, top));
        Ok((kept, copy))
    }
}

/// The directory `top`, to be listed.
fn readable(top: &OwnedFd) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(top, ".", flags, Mode::empty()).context("cannot open the private home")
}

impl Shown {
    fn open(home: &Path, name: &Path, mounts: &[MountInfo]) -> Option<Self> {
        // Settings are often links to where they are kept.
        let real = std::fs::canonicalize(home.join(name)).ok()?;
        let meta = std::fs::metadata(&real).ok().filter(|meta| meta.is_dir() || meta.is_file())?;
        let at = home.join(name);
        // A directory that is the home, or holds it, would show all of it.
        if home.starts_with(&real) {
            return None;
        }
        let below = |mount: &&MountInfo| mount.point != real && mount.point.starts_with(&real);
        let mut points: Vec<&Path> =
            mounts.iter().filter(below).map(|mount| mount.point.as_path()).collect();
        points.sort_unstable();
        // A mount comes with those in it.
        points.dedup_by(|later, earlier| later.starts_with(earlier));
        let mounts = points.iter().filter_map(|point| {
            let mut kept = Kept::read_only_copy(point).ok()?;
            kept.path = at.join(point.strip_prefix(&real).ok()?);
            kept.optional = true;
            Some(kept)
        });
        let mounts = mounts.collect();
        let directory = meta.is_dir();
        Some(Self { name: name.to_owned(), real: open_path(&real).ok()?, directory, mounts })
    }
}

fn is_plain(name: &Path) -> bool {
    name.components().next().is_some()
        && name.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Makes the directories above `name` like those of the real home.
fn make_parents(real: &OwnedFd, top: &OwnedFd, name: &Path) -> anyhow::Result<()> {
    let mut above: Vec<&Path> = name.ancestors().skip(1).collect();
    above.retain(|path| !path.as_os_str().is_empty());
    for directory in above.into_iter().rev() {
        match rustix::fs::mkdirat(top, directory, Mode::from_raw_mode(0o700)) {
            Err(rustix::io::Errno::EXIST) => continue,
            other => other.with_context(|| format!("cannot make `{}`", directory.display()))?,
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let original = rustix::fs::openat(real, directory, flags, Mode::empty())?;
        take_after(&original, top, directory)?;
    }
    Ok(())
}

/// Copies a file of settings, without lines that look like secrets.
fn copy_file(shown: &Shown, top: &OwnedFd) -> anyhow::Result<()> {
    let path = super::kept::by_descriptor(&shown.real);
    let length = std::fs::metadata(&path)?.size();
    anyhow::ensure!(length <= COPIED_MAX_BYTES, "too long");
    let bytes = std::fs::read(&path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let copy = rustix::fs::openat(top, &shown.name, flags, Mode::from_raw_mode(0o600))?;
    let mut copy = std::fs::File::from(copy);
    std::io::Write::write_all(&mut copy, &without_secrets(&shown.name, &bytes))?;
    take_after(shown.real.as_fd(), top, &shown.name)
}
