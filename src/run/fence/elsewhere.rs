//! Further paths, by other mounts, to what the fence hides: a bind mount of a home directory, of
//! one above it or of a part of it would show what is hidden at its own path.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::kept::{Kept, by_descriptor, open_path};
use super::layers;
use super::shape::Fence;
use crate::mountinfo::{self, MountInfo};
use crate::run::{aliases, homes};
use crate::{other_mounts, sys, tree};

/// The further paths to `hidden`, but where a view or `--allow` decides, and what `listed` names.
/// Of the machine's own directories none is taken away, nor a file that somebody put in one.
pub(super) fn find(
    fence: &Fence,
    dir: &Path,
    hidden: &[PathBuf],
    listed: &[PathBuf],
) -> anyhow::Result<Vec<PathBuf>> {
    let mounts = mountinfo::read()?;
    let decides = |path: &PathBuf| {
        let is_allowed = fence.allowed.iter().any(|allowed| path.starts_with(&allowed.path));
        is_allowed || path.starts_with(dir) || fence.is_in_a_view(path)
    };
    let is_needed = |path: &PathBuf| {
        let is_file = || std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir());
        homes::holds_of_machine(path) || homes::is_of_machine(path) && is_file()
    };
    let mut paths: Vec<_> = hidden.iter().flat_map(|place| paths_to(&mounts, place)).collect();
    paths.retain(|path| !decides(path) && !is_needed(path));
    // A hidden place that is another one's, too, is covered itself.
    paths.retain(|path| !hidden.contains(path) && !listed.contains(path));
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// The paths at which other mounts show `place` or something of it.
pub(super) fn paths_to(mounts: &[MountInfo], place: &Path) -> Vec<PathBuf> {
    let Some(on) = other_mounts::id_at(place) else { return Vec::new() };
    let found = aliases::of_hidden(mounts, on, place).into_iter();
    // Something else may be mounted over it.
    let is_seen = |alias: &aliases::Alias| other_mounts::id_at(&alias.at) == Some(alias.mount);
    found.filter(is_seen).map(|alias| alias.at).collect()
}

/// What covers them.
#[derive(Debug, Default)]
pub(super) struct Covers {
    /// Empty directories, until all is in place.
    open: Vec<OwnedFd>,
}

impl Covers {
    /// Something empty for each of `paths`, to be attached.
    pub(super) fn of(paths: &[PathBuf]) -> anyhow::Result<(Self, Vec<Kept>)> {
        let (mut covers, mut kept) = (Self::default(), Vec::new());
        for path in paths {
            // CMD cannot go there either.
            let Ok(place) = open_path(path) else { continue };
            let mut cover = if tree::is_directory(&place) {
                let memory = layers::memory(&place)?;
                let copy = rustix::io::fcntl_dupfd_cloexec(memory.as_fd(), 3);
                covers.open.push(copy.context("cannot copy a descriptor")?);
                Kept::of(path, memory)
            } else {
                let mut null = Kept::node(Path::new("/dev/null"))?;
                null.path = path.clone();
                null
            };
            cover.hides = true;
            kept.push(cover);
        }
        Ok((covers, kept))
    }

    /// When all is in place: nothing is added.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        for memory in &self.open {
            let path = std::ffi::CString::new(by_descriptor(memory))?;
            sys::make_read_only(&path)
                .context("cannot make what covers a hidden place read-only")?;
        }
        Ok(())
    }
}
