//! Which home directories are covered, and what of them stays.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::allow::Allowed;
use super::elsewhere;
use super::home::Home;
use super::kept::Kept;
use super::listed;
use super::places::{self, is_private, private};
use super::services;
use super::shape::Fence;
use crate::sys;

/// Where home directories are; CMD's own, and further ones of its user, may be elsewhere.
const OF_OTHERS: &[&str] = &["/home", "/root"];

/// What is covered, and what is put in its place.
#[derive(Debug)]
pub(super) struct Homes {
    /// CMD's own, unless it is what CMD sees or changes anyway.
    pub(super) own: Option<Home>,
    /// Those of others, empty from now on.
    pub(super) others: Vec<PathBuf>,
    /// What stays of them.
    pub(super) kept: Vec<Kept>,
    /// Further paths to them, and to other places that are hidden.
    pub(super) elsewhere: Vec<PathBuf>,
}

impl Homes {
    /// Opens what stays, before anything is covered.
    pub(super) fn open(fence: &Fence, dir: &Path, cwd: &Path) -> anyhow::Result<Self> {
        let own_path = own(fence, dir);
        let named = named(fence, own_path);
        let own = own_path.map(|home| match rights(home, &fence.allowed) {
            Rights::None => Home::open(home, &named),
            _ => Home::readable(home),
        });
        let own = own.transpose()?;
        let (others, elsewhere) = (others(fence, dir), elsewhere(fence, dir)?);
        let homes = others.iter().map(PathBuf::as_path).chain(own_path);
        let covered: Vec<&Path> = homes.chain(elsewhere.iter().map(PathBuf::as_path)).collect();
        let kept = kept(fence, dir, cwd, &covered, &named);
        Ok(Self { own, others, kept, elsewhere })
    }

    /// Covers those of others.
    pub(super) fn cover_others(&self) -> anyhow::Result<()> {
        for path in &self.others {
            let mode = std::fs::metadata(path).map_or(0o700, |meta| meta.mode() & 0o777);
            private(path, mode)?;
        }
        Ok(())
    }
}

/// CMD's own home, unless it is what CMD sees or changes anyway.
fn own<'f>(fence: &'f Fence, dir: &Path) -> Option<&'f Path> {
    let own = fence.home.as_deref().filter(|home| can_be_covered(home, dir, fence));
    own.filter(|home| rights(home, &fence.allowed) != Rights::Write)
}

/// What shows in homes that are hidden.
fn named(fence: &Fence, own: Option<&Path>) -> Vec<PathBuf> {
    let mut named = listed::by_environment();
    if let Some(home) = own.filter(|home| rights(home, &fence.allowed) == Rights::None) {
        named.extend(listed::of_home(home, fence.command.as_deref()));
    }
    named
}

/// Homes that are covered with nothing.
fn others(fence: &Fence, dir: &Path) -> Vec<PathBuf> {
    let is_own = |path: &Path| fence.home.as_deref() == Some(path);
    let mut others: Vec<PathBuf> = Vec::new();
    for path in OF_OTHERS.iter().map(Path::new).chain(further(fence)) {
        let hidden = rights(path, &fence.allowed) == Rights::None;
        // What lies in another one is gone with that.
        let is_covered = others.iter().any(|other| path.starts_with(other));
        if can_be_covered(path, dir, fence) && !is_own(path) && hidden && !is_covered {
            others.push(path.to_owned());
        }
    }
    others
}

/// Further paths, by other mounts, to homes and other places that are hidden.
pub(super) fn elsewhere(fence: &Fence, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    // One that may be read is so by each path.
    let own = own(fence, dir).filter(|home| rights(home, &fence.allowed) == Rights::None);
    let homes = others(fence, dir).into_iter().chain(own.map(Path::to_owned));
    let places = places::hidden(fence).chain(services::hidden(&fence.allowed));
    let hidden: Vec<_> = homes.chain(places).collect();
    let listed: Vec<_> = named(fence, own).into_iter().chain(fence.programs.clone()).collect();
    elsewhere::find(fence, dir, &hidden, &listed)
}

/// Further homes of CMD's user; private places are empty anyway.
fn further(fence: &Fence) -> impl Iterator<Item = &Path> {
    fence.further_homes.iter().map(PathBuf::as_path).filter(|path| !is_private(path))
}

/// When all is in place: nothing is added.
pub(super) fn finish(others: &[PathBuf]) -> anyhow::Result<()> {
    for path in others {
        let path = CString::new(path.as_os_str().as_bytes())?;
        sys::make_read_only(&path).with_context(|| format!("cannot make {path:?} read-only"))?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    None,
    Read,
    Write,
}

/// What `--allow` gives at `path`, all of it.
fn rights(path: &Path, allowed: &[Allowed]) -> Rights {
    let above = || allowed.iter().filter(|allowed| path.starts_with(&allowed.path));
    match above().map(|allowed| allowed.writable).max() {
        None => Rights::None,
        Some(false) => Rights::Read,
        Some(true) => Rights::Write,
    }
}

/// Not where a view shows it.
fn can_be_covered(home: &Path, dir: &Path, fence: &Fence) -> bool {
    let is_directory = std::fs::symlink_metadata(home).is_ok_and(|meta| meta.is_dir());
    let is_viewed = home.starts_with(dir) || fence.is_in_a_view(home);
    home.parent().is_some() && is_directory && !is_viewed
}

/// What stays although it lies in a covered place: where CMD starts, programs, tool chains.
fn kept(fence: &Fence, dir: &Path, cwd: &Path, covered: &[&Path], named: &[PathBuf]) -> Vec<Kept> {
    let own = fence.home.as_deref();
    let in_own = |path: &Path| own.is_some_and(|own| path.starts_with(own));
    // What CMD's own home shows, it shows writable.
    let named = named.iter().filter(|path| !in_own(path));
    let programs = fence.programs.iter();
    let mut paths: Vec<PathBuf> = named
        .chain(programs)
        .map(PathBuf::as_path)
        .chain([cwd])
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .filter(|path| covered.iter().any(|place| path.starts_with(place) && path != place))
        // What is allowed shows with its own rights.
        .filter(|path| !fence.allowed.iter().any(|one| path.starts_with(&one.path)))
        .filter(|path| !fence.is_in_a_view(path))
        // What holds a home directory would show all of it; in DIR the view shows.
        .filter(|path| !own.is_some_and(|own| own.starts_with(path)) && !path.starts_with(dir))
        .collect();
    paths.sort();
    paths.dedup_by(|later, earlier| later.starts_with(earlier));
    paths.iter().filter_map(|path| Kept::read_only_copy(path).ok()).collect()
}
