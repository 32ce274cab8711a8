//! Files in native directories that have further names, with stricter rules, elsewhere in DIR.
//!
//! The view judges a file by the strictest of its names. In a native directory nothing is judged,
//! so such a file would be open there to everyone.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tollgate_policy::{InodeFacts, Kind, Policy};

use crate::tree;

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
    /// A file in it, and another name of it.
    Link { inside: PathBuf, other: OtherName },
    /// [`FILES_MAX`] is reached.
    TooMany,
    /// Something in it may be a name of a protected file.
    Unsearched(Unsearched),
}

/// A name of a file in a native directory, outside of these.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OtherName {
    /// Rules protect it.
    Protected(PathBuf),
    /// It was not found, and may be where nobody could search.
    MayBeIn(Rc<Unsearched>),
}

/// A directory that could not be read.
#[derive(Debug, PartialEq, Eq)]
struct Unsearched {
    directory: PathBuf,
    error: Errno,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory.display();
        write!(f, "`{directory}` is not native but served by tollgate: {}", self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link { inside, other: OtherName::Protected(protected) } => {
                let (inside, protected) = (inside.display(), protected.display());
                write!(f, "`{inside}` is a further name of `{protected}`, which has stricter rules")
            }
            Self::Link { inside, other: OtherName::MayBeIn(unsearched) } => {
                let Unsearched { directory, error } = &**unsearched;
                let (inside, directory) = (inside.display(), directory.display());
                write!(
                    f,
                    "`{inside}` has a further name that was not found, and may have stricter rules in \
                     `{directory}`, which cannot be searched ({error}); make that readable, or copy \
                     the file"
                )
            }
            Self::TooMany => {
                write!(f, "more than {FILES_MAX} files in it have names elsewhere")
            }
            Self::Unsearched(Unsearched { directory, error }) => {
                let directory = directory.display();
                write!(
                    f,
                    "`{directory}` cannot be searched for further names of protected files \
                     ({error}); make it readable, or remove it"
                )
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

/// Looks for such files; at least one for each directory that has any, or may have.
pub(super) fn find(policy: &Policy, source: &OwnedFd, native: &[PathBuf]) -> Vec<Obstacle> {
    if native.is_empty() || policy.is_trivial() {
        return Vec::new();
    }
    let (mut linked, mut obstacles) = with_names_elsewhere(source, native);
    if linked.is_empty() {
        return obstacles;
    }
    let (mut others, mut unsearched) = (HashMap::new(), None);
    let outside = |path: &Path| !native.iter().any(|directory| path == directory);
    let mut note = |directory: &Path, error| {
        if !is_out_of_reach(source, directory) {
            note_first(&mut unsearched, directory, error);
        }
    };
    walk(source, Path::new(""), &outside, &mut note, &mut |path, stat| {
        if let Some(file) = linked.get_mut(&key(stat)) {
            file.elsewhere = file.elsewhere.saturating_sub(1);
            if is_weaker(policy, path, &file.name, stat) {
                let protected = || OtherName::Protected(path.to_owned());
                others.entry(key(stat)).or_insert_with(protected);
            }
        }
        true
    });
    add_not_found(&mut others, &linked, unsearched);
    obstacles.extend(names_of(source, native, &linked, &others));
    obstacles
}

fn note_first(unsearched: &mut Option<Unsearched>, directory: &Path, error: Errno) {
    unsearched.get_or_insert_with(|| Unsearched { directory: directory.to_owned(), error });
}

/// Adds the files of which not every name was found, where one may be in `unsearched`.
fn add_not_found(
    others: &mut HashMap<Key, OtherName>,
    linked: &HashMap<Key, Linked>,
    unsearched: Option<Unsearched>,
) {
    let Some(unsearched) = unsearched.map(Rc::new) else { return };
    for (key, _) in linked.iter().filter(|(_, file)| file.elsewhere > 0) {
        others.entry(*key).or_insert_with(|| OtherName::MayBeIn(Rc::clone(&unsearched)));
    }
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
/// about what may be done with them, or may have such names there.
pub(super) fn find_beside(
    source: &OwnedFd,
    native: &[PathBuf],
    beside: &[Beside<'_>],
) -> Vec<Obstacle> {
    if native.is_empty() || beside.iter().all(|other| other.policy.is_trivial()) {
        return Vec::new();
    }
    let (mut linked, mut obstacles) = with_names_elsewhere(source, native);
    if linked.is_empty() {
        return obstacles;
    }
    let (mut others, mut unsearched) = (HashMap::new(), None);
    let (open, with_rules): (Vec<_>, Vec<_>) =
        beside.iter().partition(|other| other.policy.is_trivial());
    for other in with_rules {
        let mut note = |directory: &Path, error| {
            if !is_out_of_reach(other.source, directory) {
                note_first(&mut unsearched, &other.dir.join(directory), error);
            }
        };
        let enter = |path: &Path| !other.left_out.iter().any(|one| path == one);
        walk(other.source, Path::new(""), &enter, &mut note, &mut |path, stat| {
            let Some(file) = linked.get_mut(&key(stat)) else { return true };
            file.elsewhere = file.elsewhere.saturating_sub(1);
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let inode = InodeFacts { kind: Kind::from_mode(stat.st_mode), size, head: None };
            if other.policy.at(path.as_os_str().as_bytes()).restricts(&inode) {
                let protected = || OtherName::Protected(other.dir.join(path));
                others.entry(key(stat)).or_insert_with(protected);
            }
            true
        });
    }
    if unsearched.is_some() {
        // Names in the other places are known, and so not in the one that could not be searched.
        let own = [(source, native)].into_iter();
        for (source, left_out) in own.chain(open.iter().map(|one| (one.source, one.left_out))) {
            let enter = |path: &Path| !left_out.iter().any(|one| path == one);
            walk(source, Path::new(""), &enter, &mut |_, _| {}, &mut |_, stat| {
                if let Some(file) = linked.get_mut(&key(stat)) {
                    file.elsewhere = file.elsewhere.saturating_sub(1);
                }
                true
            });
        }
    }
    add_not_found(&mut others, &linked, unsearched);
    obstacles.extend(names_of(source, native, &linked, &others));
    obstacles
}

/// A name of such a file, which is in `others`, in each native directory that has any: one for each, as
/// a tool that links equal files may have made thousands.
fn names_of(
    source: &OwnedFd,
    native: &[PathBuf],
    linked: &HashMap<Key, Linked>,
    others: &HashMap<Key, OtherName>,
) -> Vec<Obstacle> {
    let affected = || others.keys().filter_map(|key| Some((key, linked.get(key)?)));
    let indexes: BTreeSet<_> = affected().flat_map(|(_, file)| &file.directories).collect();
    let mut obstacles = Vec::new();
    for index in indexes {
        let directory = &native[*index];
        let mut found = None;
        walk(source, directory, &|_| true, &mut |_, _| {}, &mut |path, stat| {
            found = others.get(&key(stat)).map(|other| (path.to_owned(), other.clone()));
            found.is_none()
        });
        // Others may have moved it since it was met there.
        let met = || {
            let mut all = affected().filter(|(_, file)| file.directories.contains(index));
            all.next().map(|(key, file)| (file.name.clone(), others[key].clone()))
        };
        let names = found.or_else(met);
        obstacles.extend(names.map(|(inside, other)| Obstacle {
            directory: directory.clone(),
            what: What::Link { inside, other },
        }));
    }
    obstacles
}

/// The files in native directories that have more names than are found in native directories; and the
/// directories of which that is not known.
fn with_names_elsewhere(
    source: &OwnedFd,
    native: &[PathBuf],
) -> (HashMap<Key, Linked>, Vec<Obstacle>) {
    let (mut linked, mut obstacles) = (HashMap::<Key, Linked>::new(), Vec::new());
    for (directory, top) in native.iter().enumerate() {
        let mut unsearched = None;
        let mut note = |below: &Path, error| {
            if !is_out_of_reach(source, below) {
                note_first(&mut unsearched, below, error);
            }
        };
        let complete = walk(source, top, &|_| true, &mut note, &mut |path, stat| {
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
        let what = match (complete, unsearched) {
            (false, _) => What::TooMany,
            (true, Some(unsearched)) => What::Unsearched(unsearched),
            (true, None) => continue,
        };
        linked.retain(|_, file| {
            // Directories before this one stay native, and so it counts where it is in them.
            file.directories.retain(|one| *one != directory);
            !file.directories.is_empty()
        });
        obstacles.push(Obstacle { directory: top.clone(), what });
    }
    (linked, obstacles)
}

/// Whether callers get into a directory as little as this process, which could not read it: it is another
/// user's, and may not be searched either. Root may serve others, who may do more there, as on NFS.
fn is_out_of_reach(source: &OwnedFd, directory: &Path) -> bool {
    let own = rustix::process::geteuid();
    let Ok(fd) = tree::open_beneath(source.as_fd(), directory) else { return false };
    let is_anothers = rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_uid != own.as_raw());
    let search = rustix::fs::statat(&fd, ".", AtFlags::SYMLINK_NOFOLLOW);
    !own.is_root() && is_anothers && search.is_err_and(|error| error == Errno::ACCESS)
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
/// returns whether it never did. Goes into the directories that `enter` lets it, and calls `note` with
/// those that it could not read.
fn walk(
    source: &OwnedFd,
    top: &Path,
    enter: &dyn Fn(&Path) -> bool,
    note: &mut dyn FnMut(&Path, Errno),
    visit: &mut dyn FnMut(&Path, &Stat) -> bool,
) -> bool {
    // A name that vanishes meanwhile, or is that of something else by now, is no name any more.
    let is_gone = |error| matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP);
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        let mut failed = |error| {
            if !is_gone(error) {
                note(&directory, error);
            }
        };
        let (fd, entries) = match open(source, &directory) {
            Ok(opened) => opened,
            Err(error) => {
                failed(error);
                continue;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    failed(error);
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // Nor is one at which a file system is mounted that does not answer.
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
