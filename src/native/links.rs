//! Files in native directories that have further names, with stricter rules, elsewhere in DIR.
//!
//! The view judges a file by the strictest of its names. In a native directory nothing is judged,
//! so such a file would be open there to everyone.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use tollgate_policy::{InodeFacts, Kind, Policy};

use crate::escape::shown;
use crate::{messages, tree};

/// Most files with further names that are kept in mind; a directory with more is not native.
const FILES_MAX: usize = 1 << 18;

/// Why a directory is not native.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) directory: PathBuf,
    what: What,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    /// A file in it, and another name of it that rules protect.
    Link { inside: PathBuf, protected: PathBuf },
    /// [`FILES_MAX`] is reached.
    TooMany,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory.display();
        write!(f, "`{directory}` is not native but served by tollgate: ")?;
        match &self.what {
            What::Link { inside, protected } => {
                let (inside, protected) = (inside.display(), protected.display());
                write!(f, "`{inside}` is a further name of `{protected}`, which has stricter rules")
            }
            What::TooMany => {
                write!(f, "more than {FILES_MAX} files in it have names elsewhere")
            }
        }
    }
}

/// Names the device and the inode of a file.
type Key = (u64, u64);

/// A file in a native directory.
struct Linked {
    /// The name by which it was met first. Rules tell no names in native directories apart.
    name: PathBuf,
    /// Indices of the native directories that it has a name in. No names of it in the others: files
    /// that a package manager linked into many directories would take much memory.
    directories: Vec<usize>,
    /// Names that were not found yet.
    elsewhere: u64,
}

/// Looks for such files; at least one for each directory that has any. Directories that cannot be
/// read are left out, with a warning.
pub(super) fn find(policy: &Policy, source: &OwnedFd, native: &[PathBuf]) -> Vec<Obstacle> {
    if native.is_empty() || policy.is_trivial() {
        return Vec::new();
    }
    let (linked, mut obstacles) = with_names_elsewhere(source, native);
    if linked.is_empty() {
        return obstacles;
    }
    let mut protected = HashMap::new();
    let outside = |path: &Path| !native.iter().any(|directory| path == directory);
    walk(source, Path::new(""), &outside, &mut |path, stat| {
        if let Some(file) = linked.get(&key(stat))
            && is_weaker(policy, path, &file.name, stat)
        {
            protected.entry(key(stat)).or_insert_with(|| path.to_owned());
        }
        true
    });
    obstacles.extend(names_of(source, native, &linked, &protected));
    obstacles
}

/// A directory that another view of the same server shows, by rules of its own.
pub(crate) struct Beside<'a> {
    /// Its path.
    pub(crate) dir: &'a Path,
    pub(crate) policy: &'a Policy,
    pub(crate) source: &'a OwnedFd,
    /// Directories in it whose rules are not these: native ones, and what another view covers.
    pub(crate) left_out: &'a [PathBuf],
}

/// The native directories with files that have further names in a directory beside, with rules there
/// about what may be done with them.
pub(super) fn find_beside(
    source: &OwnedFd,
    native: &[PathBuf],
    others: &[Beside<'_>],
) -> Vec<Obstacle> {
    if native.is_empty() {
        return Vec::new();
    }
    let (linked, mut obstacles) = with_names_elsewhere(source, native);
    let mut protected = HashMap::new();
    for other in others.iter().filter(|other| !other.policy.is_trivial() && !linked.is_empty()) {
        let enter = |path: &Path| !other.left_out.iter().any(|directory| path == directory);
        walk(other.source, Path::new(""), &enter, &mut |path, stat| {
            if !linked.contains_key(&key(stat)) {
                return true;
            }
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let inode = InodeFacts { kind: Kind::from_mode(stat.st_mode), size, head: None };
            if other.policy.at(path.as_os_str().as_bytes()).restricts(&inode) {
                protected.entry(key(stat)).or_insert_with(|| other.dir.join(path));
            }
            true
        });
    }
    obstacles.extend(names_of(source, native, &linked, &protected));
    obstacles
}

/// A name of such a file, which has another name in `protected`, in each native directory that has any:
/// one for each, as a tool that links equal files may have made thousands.
fn names_of(
    source: &OwnedFd,
    native: &[PathBuf],
    linked: &HashMap<Key, Linked>,
    protected: &HashMap<Key, PathBuf>,
) -> Vec<Obstacle> {
    let affected = || protected.keys().filter_map(|key| Some((key, linked.get(key)?)));
    let indexes: BTreeSet<_> = affected().flat_map(|(_, file)| &file.directories).collect();
    let mut obstacles = Vec::new();
    for index in indexes {
        let directory = &native[*index];
        let mut found = None;
        walk(source, directory, &|_| true, &mut |path, stat| {
            found = protected.get(&key(stat)).map(|other| (path.to_owned(), other.clone()));
            found.is_none()
        });
        // Others may have moved it since it was met there.
        let met = || {
            let mut all = affected().filter(|(_, file)| file.directories.contains(index));
            all.next().map(|(key, file)| (file.name.clone(), protected[key].clone()))
        };
        let names = found.or_else(met);
        obstacles.extend(names.map(|(inside, protected)| Obstacle {
            directory: directory.clone(),
            what: What::Link { inside, protected },
        }));
    }
    obstacles
}

/// The files in native directories that have more names than are found in native directories.
fn with_names_elsewhere(
    source: &OwnedFd,
    native: &[PathBuf],
) -> (HashMap<Key, Linked>, Vec<Obstacle>) {
    let (mut linked, mut obstacles) = (HashMap::<Key, Linked>::new(), Vec::new());
    for (directory, top) in native.iter().enumerate() {
        let complete = walk(source, top, &|_| true, &mut |path, stat| {
            let file = linked.entry(key(stat)).or_insert_with(|| {
                let elsewhere = stat.st_nlink;
                Linked { name: path.to_owned(), directories: Vec::new(), elsewhere }
            });
            if file.directories.last() != Some(&directory) {
                file.directories.push(directory);
            }
            file.elsewhere = file.elsewhere.saturating_sub(1);
            if file.elsewhere == 0 {
                linked.remove(&key(stat));
            }
            linked.len() <= FILES_MAX
        });
        if !complete {
            linked.retain(|_, file| {
                // Directories before this one stay native, and so it counts where it is in them.
                file.directories.retain(|one| *one != directory);
                !file.directories.is_empty()
            });
            obstacles.push(Obstacle { directory: top.clone(), what: What::TooMany });
        }
    }
    (linked, obstacles)
}

fn is_weaker(policy: &Policy, protected: &Path, inside: &Path, stat: &Stat) -> bool {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let inode = InodeFacts { kind: Kind::from_mode(stat.st_mode), size, head: None };
    let rules = |path: &Path| policy.at(path.as_os_str().as_bytes());
    rules(protected).weakens(&inode, &rules(inside), &inode)
}

fn key(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// Calls `visit` with each name below `top` of a file that has several, until it returns false;
/// returns whether it never did. Goes into the directories that `enter` lets it.
fn walk(
    source: &OwnedFd,
    top: &Path,
    enter: &dyn Fn(&Path) -> bool,
    visit: &mut dyn FnMut(&Path, &Stat) -> bool,
) -> bool {
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        let (fd, entries) = match open(source, &directory) {
            Ok(opened) => opened,
            Err(error) => {
                messages::warn(&format!(
                    "`{}` cannot be searched for further names of files in native directories: \
                     {error}",
                    shown(&directory)
                ));
                continue;
            }
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // A name that vanishes meanwhile is no name any more.
            let Ok(stat) = rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let path = directory.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                if enter(&path) {
                    pending.push(path);
                }
            } else if stat.st_nlink > 1 && !visit(&path, &stat) {
                return false;
            }
        }
    }
    true
}

fn open(source: &OwnedFd, directory: &Path) -> rustix::io::Result<(OwnedFd, Dir)> {
    let path = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let beneath = tree::open_beneath(source.as_fd(), path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&beneath, ".", flags, Mode::empty())?;
    let entries = Dir::read_from(&fd)?;
    Ok((fd, entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
        [[rule]]
        path = ['target', 'dist']
        action = 'native'
        [[rule]]
        path = '**/.env'
        action = 'deny'
    ";

    fn found(links: &[(&str, &str)]) -> Vec<String> {
        let home = tempfile::tempdir().unwrap();
        for directory in ["target/deep", "dist", "src"] {
            std::fs::create_dir_all(home.path().join(directory)).unwrap();
        }
        for file in [".env", "src/a", "target/own"] {
            std::fs::write(home.path().join(file), "").unwrap();
        }
        for (from, to) in links {
            std::fs::hard_link(home.path().join(from), home.path().join(to)).unwrap();
        }
        let policy = Policy::parse(POLICY, "p.toml").unwrap();
        let native = ["target", "dist"].map(PathBuf::from);
        let source = tree::open(home.path()).unwrap().1;
        find(&policy, &source, &native).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_further_name_of_a_protected_file_is_found() {
        assert_eq!(
            found(&[(".env", "target/deep/x"), ("src/a", "dist/a")]),
            [
                "`target` is not native but served by tollgate: `target/deep/x` is a further name of \
              `.env`, which has stricter rules"
            ]
        );
    }

    #[test]
    fn each_native_directory_that_has_a_name_of_it_is_found() {
        let said = |directory: &str, inside: &str| {
            format!(
                "`{directory}` is not native but served by tollgate: `{inside}` is a further name \
                 of `.env`, which has stricter rules"
            )
        };
        let (one, other) = (said("target", "target/x"), said("dist", "dist/y"));
        assert_eq!(found(&[(".env", "target/x"), (".env", "dist/y")]), [one, other]);
        // And once, however many names it has there.
        assert_eq!(found(&[(".env", "target/x"), (".env", "target/deep/y")]).len(), 1);
    }

    #[test]
    fn names_that_nothing_protects_and_names_within_native_directories_are_no_obstacle() {
        assert!(found(&[("src/a", "target/a"), ("target/own", "dist/own")]).is_empty());
        // A `.env` in a native directory is as native as everything there.
        assert!(found(&[("target/own", "target/.env")]).is_empty());
    }
}
