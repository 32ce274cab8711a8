//! Many files at once: which ones, by how many threads, how far.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use crate::cli::SealKeyArgs;
use crate::messages;
use crate::seal::ring::{IN_DIR, LOCK_IN_DIR};
use crate::seal::secret::{self, shown};
use crate::seal::spot::{self, Spot, path_of};
use crate::seal::temporary_name;
use crate::seal::unfinished::{self, Tidied};

/// Most threads: beyond, a disk is slower rather than faster.
const THREADS_MAX: usize = 16;
/// Deeper directories are refused: links could not be told from a tree without end.
const DEPTH_MAX: usize = 256;

/// A file to be worked on.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    /// The same without links on the way.
    pub(super) real: PathBuf,
    /// What the command line named, and where in it the file lies.
    pub(super) below: PathBuf,
    /// The directory that lists it.
    pub(super) directory: Key,
}

/// Device and inode of a directory.
pub(super) type Key = (u64, u64);

/// The directory of the keyring: what names it, and what it is.
pub(super) struct Top<'a> {
    pub(super) key: &'a SealKeyArgs,
    pub(super) dir: &'a File,
}

/// What there is.
pub(super) struct All {
    pub(super) found: Vec<Found>,
    /// Directories that were not there any more when they were to be listed.
    pub(super) vanished: Vec<(PathBuf, Key)>,
    /// The keyring's directory, and what was named: the directories, and those of files.
    tops: Vec<File>,
    /// When the search began.
    begun: SystemTime,
    /// What commands that were killed left of others' files, and why it is still there.
    pub(super) kept: Vec<(PathBuf, String)>,
    /// What else a user may want to know.
    pub(super) notes: Vec<String>,
    pub(super) others: Others,
}

/// What was met that is no regular file, and so not worked on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    links: usize,
    empty_directories: usize,
    /// FIFOs, sockets and devices.
    special: usize,
}

impl Others {
    fn add(&mut self, kind: fs::FileType) {
        if kind.is_symlink() {
            self.links += 1;
        } else {
            self.special += 1;
        }
    }

    /// `None` if there is nothing.
    pub(super) fn in_words(self) -> Option<String> {
        let all = [
            (self.links, "symbolic link", "symbolic links"),
            (self.empty_directories, "empty directory", "empty directories"),
            (self.special, "FIFO, socket or device", "FIFOs, sockets and devices"),
        ];
        let some = all.iter().filter(|(count, ..)| *count > 0);
        let words = some
            .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }));
        let words: Vec<_> = words.collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

impl All {
    /// Which of these directories are somewhere in what was named, or beside the keyring: others have
    /// moved them.
    pub(super) fn moved(&self, wanted: &HashSet<Key>) -> HashSet<Key> {
        let mut moved = HashSet::new();
        let mut left: Vec<_> = self.tops.iter().map(|top| (path_of(top), 0)).collect();
        while let Some((dir, depth)) = left.pop() {
            if moved.len() == wanted.len() {
                break;
            }
            if let Ok(found) = fs::metadata(&dir) {
                let key = (found.dev(), found.ino());
                // A new directory may have got the number of one that was removed.
                let is_new = found.created().is_ok_and(|created| created >= self.begun);
                moved.extend(Some(key).filter(|key| !is_new && wanted.contains(key)));
            }
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    left.push((entry.path(), depth + 1));
                }
            }
        }
        moved
    }
}

/// Which files a command may work on, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// Anywhere, to be looked at: nothing is changed.
    Anywhere,
    /// In the keyring's directory: what is sealed elsewhere, its owner would not find the key of.
    InDir { to_change: bool },
}

impl Where {
    /// Whether what commands that were killed left behind is removed.
    fn tidies(self) -> bool {
        self == Where::InDir { to_change: true }
    }
}

/// The regular files that `paths` name, all of the directory if there are none, in order, without links to them; never the keyring,
/// nor what opens it, nor what commands that were killed left behind: that is removed by a command that
/// changes files.
///
/// # Errors
/// With the path that cannot be read, or may not be named.
pub(super) fn find(paths: &[PathBuf], top: &Top<'_>, which: Where) -> Result<All> {
    let (key, here) = (top.key, path_of(top.dir));
    let mut left = Left::default();
    if which.tidies() {
        left.tidy_in(&here, &key.dir);
    }
    // One path has each file once.
    let seen = (paths.len() > 1).then(HashSet::new);
    let tidies = which.tidies().then(|| here.clone());
    let keys = Keys::of(key, &here);
    let (found, vanished) = (Vec::new(), Vec::new());
    let others = Others::default();
    let mut search = Search { found, vanished, left, seen, keys, tidies, others };
    let begun = now();
    let mut tops = vec![top.dir.try_clone().with_context(|| shown(&key.dir))?];
    let all = [key.dir.clone()];
    for path in if paths.is_empty() { &all[..] } else { paths } {
        let metadata = fs::symlink_metadata(path)
            .map_err(|error| anyhow::anyhow!("{}{}", error, crate::nearest::path(path)))
            .with_context(|| path.display().to_string())?;
        let real = real(path, metadata.is_dir()).with_context(|| shown(path))?;
        if which != Where::Anywhere {
            let dir = fs::canonicalize(&here).with_context(|| shown(&key.dir))?;
            if !real.starts_with(&dir) {
                bail!(
                    "{} is not in {}, the directory of the keyring; name another with `--dir`",
                    shown(path),
                    shown(&dir)
                );
            }
        }
        if metadata.is_dir() {
            tops.push(spot::directory(&real).with_context(|| shown(path))?);
            search.walk(path, &real, Path::new(""), (0, (0, 0)))?;
            continue;
        }
        if let Some(what) = search.keys.what_is(path) {
            bail!("{} is {what}, which is never sealed; name the other files", shown(path));
        }
        let below = path.file_name().map(PathBuf::from).unwrap_or_default();
        let top = spot::directory(real.parent().unwrap_or(&real)).with_context(|| shown(path))?;
        let directory = spot::key_of(&top).with_context(|| shown(path))?;
        tops.push(top);
        search.add(Found { path: path.clone(), real, below, directory });
    }
    let Search { found, vanished, left: Left { kept, notes }, others, .. } = search;
    Ok(All { found, vanished, tops, begun, kept, notes, others })
}

/// As a file gets it that is made now.
fn now() -> SystemTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanos = now.tv_nsec.try_into().unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::new(now.tv_sec.try_into().unwrap_or(0), nanos)
}

/// The path without links on the way.
fn real(path: &Path, is_dir: bool) -> std::io::Result<PathBuf> {
    if is_dir {
        return fs::canonicalize(path);
    }
    let dir = fs::canonicalize(directory_of(path))?;
    Ok(path.file_name().map_or(dir.clone(), |name| dir.join(name)))
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The files without which nothing that is sealed can be read: sealed themselves, they were lost.
struct Keys {
    ring: Option<(u64, u64)>,
    openers: Vec<(u64, u64)>,
}

impl Keys {
    fn of(key: &SealKeyArgs, dir: &Path) -> Keys {
        let inode = |path: PathBuf| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let openers = secret::files(&key.secret).into_iter().filter_map(inode).collect();
        Keys { ring: inode(dir.join(IN_DIR)), openers }
    }

    fn what_is(&self, path: &Path) -> Option<&'static str> {
        if path.file_name().is_some_and(|name| name == IN_DIR) {
            return Some("a keyring");
        }
        if path.file_name().is_some_and(|name| name == LOCK_IN_DIR) {
            return Some("the lock of the server that writes");
        }
        let found = fs::symlink_metadata(path).ok()?;
        let inode = (found.dev(), found.ino());
        if self.ring == Some(inode) {
            return Some("the keyring");
        }
        self.openers.contains(&inode).then_some("what opens the keyring")
    }
}

struct Search {
    found: Vec<Found>,
    vanished: Vec<(PathBuf, Key)>,
    left: Left,
    /// Where the files lie, without links: of two names for a place the first one counts.
    seen: Option<HashSet<PathBuf>>,
    keys: Keys,
    /// Where files are sealed, if what commands that were killed left behind is removed.
    tidies: Option<PathBuf>,
    others: Others,
}

impl Search {
    fn add(&mut self, file: Found) {
        if self.seen.as_mut().is_none_or(|seen| seen.insert(file.real.clone())) {
            self.found.push(file);
        }
    }

    /// Adds what is in `dir`, whose path without links is `real`, so many directories deep, with the key
    /// of what was there when the directory above it was listed.
    fn walk(
        &mut self,
        dir: &Path,
        real: &Path,
        below: &Path,
        (depth, key): (usize, Key),
    ) -> Result<()> {
        if depth >= DEPTH_MAX {
            let why = format!("is {DEPTH_MAX} directories deep, and what is in it is left out");
            self.left.kept.push((dir.to_owned(), why));
            return Ok(());
        }
        let Listed { directory, entries } = match list(real) {
            Ok(listed) => listed,
            Err(error) if depth == 0 => return Err(error).context(dir.display().to_string()),
            // It was there when its directory was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.vanished.push((dir.to_owned(), key));
                return Ok(());
            }
            Err(error) => {
                self.left.kept.push((dir.to_owned(), format!("cannot be listed: {error}")));
                return Ok(());
            }
        };
        if entries.is_empty() {
            self.others.empty_directories += 1;
        }
        for Entry { name, kind, inode } in entries {
            let path = dir.join(&name);
            if kind.is_dir() && name == unfinished::IN_DIR {
                continue;
            }
            if kind.is_dir() {
                self.walk(
                    &path,
                    &real.join(&name),
                    &below.join(&name),
                    (depth + 1, (directory.0, inode)),
                )?;
            } else if kind.is_file() && self.leaves_out(&path, &real.join(&name)) {
                continue;
            } else if kind.is_file() && name != IN_DIR && name != LOCK_IN_DIR {
                if let Some(what) = self.keys.what_is(&path) {
                    self.left.notes.push(format!("{} is {what}; left out", shown(&path)));
                    continue;
                }
                let (real, below) = (real.join(&name), below.join(&name));
                self.add(Found { path, real, below, directory });
            } else if !kind.is_file() {
                self.others.add(kind);
            }
        }
        Ok(())
    }

    /// Whether the file is one that these commands made for the moment. Left by one that was killed, it is
    /// removed by a command that changes files.
    fn leaves_out(&mut self, path: &Path, real: &Path) -> bool {
        if !path.file_name().is_some_and(temporary_name::is_temporary_name) {
            return false;
        }
        let Ok(spot) = Spot::of(real) else { return false };
        let Some(dir) = &self.tidies else { return unfinished::is_temporary(&spot.path()) };
        self.left.tidy((&spot.path(), path), dir, false)
    }
}

/// A directory, by device and inode, and what is in it, by name.
struct Listed {
    directory: Key,
    entries: Vec<Entry>,
}

struct Entry {
    name: OsString,
    kind: fs::FileType,
    inode: u64,
}

/// Lists what is at `real`, a path without links; without what vanishes meanwhile.
fn list(real: &Path) -> std::io::Result<Listed> {
    let mut entries = Vec::new();
    // Through no link that has come there since.
    let dir = spot::directory(real)?;
    // None is kept: each would keep the directory open.
    for entry in fs::read_dir(path_of(&dir))? {
        let entry = entry?;
        match entry.file_type() {
            Ok(kind) => {
                entries.push(Entry { name: entry.file_name(), kind, inode: entry.ino() });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Listed { directory: spot::key_of(&dir)?, entries })
}

/// What is not worked on although it was found.
#[derive(Default)]
struct Left {
    kept: Vec<(PathBuf, String)>,
    notes: Vec<String>,
}

impl Left {
    /// Removes what commands that were killed left in the directory for that, in the keyring's `dir`, which
    /// is called `named`.
    fn tidy_in(&mut self, dir: &Path, named: &Path) {
        let Ok(apart) = unfinished::open_apart(dir) else { return };
        for entry in fs::read_dir(path_of(&apart)).into_iter().flatten().flatten() {
            let shown = named.join(unfinished::IN_DIR).join(entry.file_name());
            self.tidy((&entry.path(), &shown), dir, true);
        }
    }

    /// Removes what a command that was killed left behind at `path`, which is called `named`; whether it is
    /// such a thing.
    fn tidy(&mut self, (path, named): (&Path, &Path), dir: &Path, is_apart: bool) -> bool {
        match unfinished::remove_unfinished(path, dir, is_apart) {
            Ok(Tidied::Done) => {}
            Ok(Tidied::Kept(why)) => self.kept.push((named.to_owned(), why)),
            Ok(Tidied::Theirs) => return false,
            Err(error) => {
                let why = messages::in_words(&error);
                self.notes.push(format!("{} is left as it is: {why}", shown(named)));
            }
        }
        true
    }
}

/// Has several threads do `each`; the results in the order of the files.
pub(super) fn for_each<T: Send>(found: &[Found], each: impl Fn(&Found) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(found.len()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(file) = found.get(index) else { return };
            let result = each(file);
            results.lock().expect("no thread panicked").push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(THREADS_MAX).min(found.len()) {
            // Without a thread this one does it.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = results.into_inner().expect("no thread panicked");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Bytes of all files.
pub(super) fn bytes(found: &[Found]) -> u64 {
    let size = |file: &Found| fs::symlink_metadata(&file.path).map_or(0, |found| found.len());
    found.iter().map(size).sum()
}
