//! A walk of the whole lower tree for files that have several names, by several threads.
//!
//! It opens directories and nothing else, follows no symbolic link, enters no mount, and ends at
//! stated limits. Directories that wait to be read are kept as paths, the last one found first, so
//! that a wide tree takes memory and no descriptors.
//!
//! A name that others move meanwhile, from a directory that is read later to one that was read before, would be
//! met in neither. So each directory is looked at once more after all were read, and those that changed are read
//! again. Where none has changed, all of them were at one moment as they were read.

use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::beneath;
use crate::lower::{self, DirStream, Key, MOUNT_ROOT, Stat};

/// Most directories that wait to be read.
const MAX_PENDING: usize = 1 << 20;
/// How often the caller is told how far the walk is.
const REPORT: Duration = Duration::from_millis(500);

/// How often the directories that changed are read again.
const ROUNDS: usize = 3;
/// A directory that changed so short a time before it was read may have changed again at the same time of its
/// clock, which goes in steps of up to 10 ms (a tick of the kernel).
pub(super) const TICK: Duration = Duration::from_millis(20);

/// What to walk, and how.
pub(super) struct Walk<'a> {
    /// The directory to begin with.
    pub(super) top: BorrowedFd<'a>,
    /// Its path, the start of every path that is found.
    pub(super) path: &'a [u8],
    pub(super) threads: usize,
    /// When to give up.
    pub(super) deadline: Option<Instant>,
    /// Is told of each name of a file that has several; returns whether to go on.
    pub(super) found: &'a (dyn Fn(Vec<u8>, &Stat) -> bool + Sync),
    /// Is told from time to time how many names were looked at.
    pub(super) progress: Option<&'a (dyn Fn(u64) + Sync)>,
}

/// How a walk ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Names looked at.
    pub(super) names: u64,
    /// It ended before everything was looked at: too many directories or names, or too late.
    pub(super) gave_up: bool,
    /// Directories that could not be read, and the path of one of them.
    pub(super) unreadable: u64,
    pub(super) unreadable_example: Option<Vec<u8>>,
    /// A directory that takes two spellings of a name for one; the walk ended there.
    pub(super) caseless: Option<Vec<u8>>,
    /// At one moment all directories were as they were read: no name was moved past the walk.
    pub(super) is_of_one_moment: bool,
    /// Whenever a directory was read again, other directories were in it than before.
    pub(super) directories_moved: bool,
}

impl Outcome {
    /// Whether every name was looked at.
    pub(super) fn is_complete(&self) -> bool {
        !self.gave_up && self.unreadable == 0
    }
}

struct Shared {
    state: Mutex<State>,
    /// There is a directory to read, or the walk is over.
    changed: Condvar,
    names: AtomicU64,
}

#[derive(Default)]
struct State {
    pending: Vec<Vec<u8>>,
    /// Threads that read a directory at the moment.
    reading: usize,
    /// What was read, about 120 bytes for each directory.
    read: Vec<Directory>,
    /// The paths of these, while some are read again.
    known: FxHashSet<Vec<u8>>,
    /// Those that are read again, and the directories in each before.
    again: FxHashMap<Vec<u8>, u64>,
    outcome: Outcome,
}

/// A directory, before it was read.
struct Directory {
    path: Vec<u8>,
    was: Was,
    /// Stands for the directories in it: their names and inodes, in any order.
    below: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Was {
    key: Key,
    changed: (i64, u32),
    /// Changes of that moment need not show.
    just_now: bool,
}

impl Was {
    fn new(stat: &Stat) -> Self {
        let (key, changed) = (stat.key(), stat.changed());
        Self { key, changed, just_now: !is_before(changed, SystemTime::now()) }
    }
}

/// Whether a change at this time of the file system's clock was certainly before `now`.
pub(super) fn is_before((seconds, nanoseconds): (i64, u32), now: SystemTime) -> bool {
    let at = u64::try_from(seconds).ok();
    let at = at.and_then(|at| UNIX_EPOCH.checked_add(Duration::new(at, nanoseconds)));
    let since = at.and_then(|at| now.duration_since(at).ok());
    since.is_some_and(|since| since >= TICK)
}

impl State {
    fn is_over(&self) -> bool {
        self.outcome.gave_up || (self.pending.is_empty() && self.reading == 0)
    }
}

impl Walk<'_> {
    pub(super) fn run(&self) -> Outcome {
        let shared = Shared {
            state: Mutex::new(State { pending: vec![Vec::new()], ..State::default() }),
            changed: Condvar::new(),
            names: AtomicU64::new(0),
        };
        self.read_pending(&shared);
        let names = shared.names.load(Ordering::Relaxed);
        for _ in 0..ROUNDS {
            let mut state = shared.state.lock();
            if !state.outcome.is_complete() {
                break;
            }
            let (same, changed) = self.look_again(std::mem::take(&mut state.read));
            if changed.is_empty() {
                state.outcome.is_of_one_moment = true;
                break;
            }
            state.known = same.iter().map(|directory| directory.path.clone()).collect();
            state.read = same;
            if changed.iter().any(|directory| directory.was.just_now) {
                std::thread::sleep(TICK);
            }
            state.pending = changed.iter().map(|directory| directory.path.clone()).collect();
            let again = changed.into_iter().map(|directory| (directory.path, directory.below));
            state.again = again.collect();
            drop(state);
            self.read_pending(&shared);
        }
        let mut outcome = shared.state.into_inner().outcome;
        outcome.names = names;
        outcome
    }

    /// Reads the directories that are pending, and those below them.
    fn read_pending(&self, shared: &Shared) {
        std::thread::scope(|scope| {
            let spawn = |_| {
                let name = std::thread::Builder::new().name("tollgate-links".to_owned());
                name.spawn_scoped(scope, || self.work(shared)).is_ok()
            };
            // Without any thread this one does it.
            if (0..self.threads.max(1)).filter(|n| spawn(*n)).count() == 0 {
                self.work(shared);
            }
            self.report_until_over(shared);
        });
    }

    /// Tells directories that are as they were before they were read from those that may not be. What has gone
    /// has changed the one above.
    fn look_again(&self, read: Vec<Directory>) -> (Vec<Directory>, Vec<Directory>) {
        let part = read.len().div_ceil(self.threads.max(1)).max(1);
        let mut read = read;
        let mut parts = Vec::new();
        while !read.is_empty() {
            parts.push(read.split_off(read.len().saturating_sub(part)));
        }
        let look = |part: Vec<Directory>| -> (Vec<_>, Vec<_>) {
            part.into_iter().partition(|directory| self.is_as_it_was(directory))
        };
        let (further, parts) = (parts.len().saturating_sub(1), Mutex::new(parts));
        let done = Mutex::new((Vec::new(), Vec::new()));
        let work = || {
            loop {
                let Some(part) = parts.lock().pop() else { return };
                let (same, changed) = look(part);
                let mut done = done.lock();
                done.0.extend(same);
                done.1.extend(changed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..further {
                // Without a thread this one does it.
                let name = std::thread::Builder::new().name("tollgate-links".to_owned());
                let _ = name.spawn_scoped(scope, work);
            }
            work();
        });
        done.into_inner()
    }

    fn is_as_it_was(&self, directory: &Directory) -> bool {
        let now = if directory.path.is_empty() {
            lower::stat_fd(self.top)
        } else {
            beneath::stat(self.top, &directory.path)
        };
        let was = directory.was;
        !was.just_now && now.is_ok_and(|now| (now.key(), now.changed()) == (was.key, was.changed))
    }

    fn report_until_over(&self, shared: &Shared) {
        let mut state = shared.state.lock();
        while !state.is_over() {
            if shared.changed.wait_for(&mut state, REPORT).timed_out()
                && let Some(progress) = self.progress
            {
                progress(shared.names.load(Ordering::Relaxed));
            }
        }
    }

    fn work(&self, shared: &Shared) {
        let mut below = Vec::new();
        let mut state = shared.state.lock();
        loop {
            while state.pending.is_empty() && !state.is_over() {
                shared.changed.wait(&mut state);
            }
            let Some(path) = state.pending.pop().filter(|_| !state.outcome.gave_up) else {
                shared.changed.notify_all();
                return;
            };
            state.reading += 1;
            drop(state);
            let read = self.read(&path, &mut below, shared);
            state = shared.state.lock();
            state.reading -= 1;
            state.take(&path, read, &mut below);
            let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            state.outcome.gave_up |= late && !state.is_over();
            shared.changed.notify_all();
        }
    }

    /// Reads the directory `path` beneath the top; puts the paths of the directories in it into
    /// `below`. Returns whether to go on.
    fn read(&self, path: &[u8], below: &mut Vec<Vec<u8>>, shared: &Shared) -> Result<bool, Errno> {
        let fd = match beneath::open_dir(self.top, path) {
            // Gone meanwhile, exchanged for something else, or a mount.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(true),
            fd => fd?,
        };
        if lower::is_caseless(fd.as_fd()) {
            shared.state.lock().outcome.caseless = Some(join(self.path, path));
            return Ok(false);
        }
        let was = Was::new(&lower::stat_fd(fd.as_fd())?);
        let mut directories = 0;
        let mut stream = DirStream::new(fd.try_clone().map_err(|_| Errno::MFILE)?);
        let mut names = 0;
        while let Some(entry) = stream.peek()? {
            if entry.child_name().is_some() {
                names += 1;
                let kind = FileType::from_raw_mode(u32::from(entry.kind) << 12);
                if kind == FileType::Directory {
                    directories ^= FxBuildHasher.hash_one((entry.name, entry.ino));
                    below.push(join(path, entry.name.to_bytes()));
                } else if !self.look_at(fd.as_fd(), path, entry.name, below) {
                    return Ok(false);
                }
            }
            stream.advance();
        }
        shared.names.fetch_add(names, Ordering::Relaxed);
        shared.state.lock().note(Directory { path: path.to_vec(), was, below: directories });
        Ok(true)
    }

    /// Looks at a name that does not seem to be that of a directory; returns whether to go on.
    fn look_at(
        &self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        name: &std::ffi::CStr,
        below: &mut Vec<Vec<u8>>,
    ) -> bool {
        // A name that vanishes meanwhile is no name any more.
        let Ok(stat) = lower::stat_at(dir, name) else { return true };
        if stat.file_type() == FileType::Directory {
            below.push(join(path, name.to_bytes()));
            return true;
        }
        if stat.nlink() < 2 || stat.has_attribute(MOUNT_ROOT) {
            return true;
        }
        (self.found)(join(self.path, &join(path, name.to_bytes())), &stat)
    }
}

impl State {
    fn note(&mut self, read: Directory) {
        if !self.again.is_empty() {
            // One that came to be among those that are read again, too.
            let stayed = self.again.get(&read.path) == Some(&read.below);
            self.outcome.directories_moved |= !stayed;
        }
        self.read.push(read);
    }

    fn take(&mut self, path: &[u8], read: Result<bool, Errno>, below: &mut Vec<Vec<u8>>) {
        match read {
            Ok(true) => {}
            Ok(false) => self.outcome.gave_up = true,
            Err(_) => {
                self.outcome.unreadable += 1;
                self.outcome.unreadable_example.get_or_insert_with(|| path.to_vec());
            }
        }
        let known = &self.known;
        self.pending.extend(below.drain(..).filter(|path| !known.contains(path)));
        self.outcome.gave_up |= self.pending.len() > MAX_PENDING;
    }
}

fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn found(top: &std::fs::File, most: usize) -> (BTreeSet<String>, Outcome) {
        let names = Mutex::new(BTreeSet::new());
        let take = |path: Vec<u8>, _: &Stat| {
            let mut names = names.lock();
            names.insert(String::from_utf8(path).unwrap());
            names.len() < most
        };
        let walk = Walk {
            top: top.as_fd(),
            path: b"",
            threads: 3,
            deadline: None,
            found: &take,
            progress: None,
        };
        let outcome = walk.run();
        (names.into_inner(), outcome)
    }

    #[test]
    fn every_name_of_a_file_with_several_is_found_and_nothing_else_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        std::fs::create_dir_all(at("a/b/c")).unwrap();
        std::fs::create_dir_all(at("wide")).unwrap();
        for n in 0..300 {
            std::fs::create_dir(at(&format!("wide/{n}"))).unwrap();
            std::fs::write(at(&format!("wide/{n}/own")), "").unwrap();
        }
        std::fs::write(at("one"), "").unwrap();
        std::fs::hard_link(at("one"), at("a/b/c/two")).unwrap();
        std::fs::hard_link(at("one"), at("wide/7/three")).unwrap();
        // A loop, a way out, and a FIFO that nobody writes to.
        std::os::unix::fs::symlink(".", at("a/loop")).unwrap();
        std::os::unix::fs::symlink("/", at("a/out")).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, at("a/fifo"), FileType::Fifo, mode, 0).unwrap();
        let top = std::fs::File::open(dir.path()).unwrap();
        let (names, outcome) = found(&top, usize::MAX);
        let expected = ["a/b/c/two", "one", "wide/7/three"].map(str::to_owned);
        assert_eq!(names, BTreeSet::from(expected));
        assert!(outcome.is_complete());
        assert_eq!(outcome.names, 3 + 4 + 1 + 1 + 300 + 301);
        let (_, outcome) = found(&top, 1);
        assert!(outcome.gave_up);
    }

    /// From a directory that is read last to the one that was read first.
    #[test]
    fn a_name_that_is_moved_past_the_walk_is_met() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for name in ["a", "b", "c"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(&format!("{name}/marker")), "").unwrap();
            std::fs::hard_link(at(&format!("{name}/marker")), at(&format!("{name}/other")))
                .unwrap();
        }
        let top = std::fs::File::open(dir.path()).unwrap();
        let walk = |found: &(dyn Fn(Vec<u8>, &Stat) -> bool + Sync)| {
            let (path, threads) = (&b""[..], 1);
            Walk { top: top.as_fd(), path, threads, deadline: None, found, progress: None }.run()
        };
        let order = Mutex::new(Vec::new());
        let note = |path: Vec<u8>, _: &Stat| {
            let name = String::from_utf8(path[..1].to_vec()).unwrap();
            let mut order = order.lock();
            if !order.contains(&name) {
                order.push(name);
            }
            true
        };
        std::thread::sleep(2 * TICK);
        assert!(walk(&note).is_of_one_moment);
        let [first, second, last] = &order.into_inner()[..] else { panic!("three are read") };
        std::fs::write(at("plain"), "").unwrap();
        std::fs::hard_link(at("plain"), at(&format!("{last}/secret"))).unwrap();
        std::thread::sleep(2 * TICK);
        let (moved, met) = (Mutex::new(false), Mutex::new(BTreeSet::new()));
        let found = |path: Vec<u8>, _: &Stat| {
            let path = String::from_utf8(path).unwrap();
            if path.starts_with(second) && !std::mem::replace(&mut *moved.lock(), true) {
                let (from, to) = (format!("{last}/secret"), format!("{first}/secret"));
                std::fs::rename(at(&from), at(&to)).unwrap();
            }
            met.lock().insert(path);
            true
        };
        let outcome = walk(&found);
        assert!(outcome.is_complete() && outcome.is_of_one_moment);
        assert!(met.into_inner().contains(&format!("{first}/secret")));
    }

    /// As another program does that makes files all the time.
    #[test]
    fn a_directory_that_goes_on_changing_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        std::fs::write(at("one"), "").unwrap();
        std::fs::hard_link(at("one"), at("two")).unwrap();
        let top = std::fs::File::open(dir.path()).unwrap();
        let count = AtomicU64::new(0);
        let found = |_: Vec<u8>, _: &Stat| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            std::fs::write(at(&format!("new{number}")), "").unwrap();
            true
        };
        let (path, threads, found) = (&b""[..], 1, &found);
        let walk = Walk { top: top.as_fd(), path, threads, deadline: None, found, progress: None };
        let outcome = walk.run();
        assert!(outcome.is_complete() && !outcome.is_of_one_moment);
    }

    /// Of a file in a directory that others move nothing tells that.
    #[test]
    fn a_directory_that_is_moved_all_the_time_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for name in ["a", "b", "a/moved"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("one"), "").unwrap();
        std::fs::hard_link(at("one"), at("two")).unwrap();
        std::fs::hard_link(at("one"), at("a/three")).unwrap();
        let top = std::fs::File::open(dir.path()).unwrap();
        let place = Mutex::new(["a/moved", "b/moved"]);
        for moves in [false, true] {
            std::thread::sleep(2 * TICK);
            let count = AtomicU64::new(0);
            let found = |_: Vec<u8>, _: &Stat| {
                let number = count.fetch_add(1, Ordering::Relaxed);
                if moves {
                    let mut place = place.lock();
                    std::fs::rename(at(place[0]), at(place[1])).unwrap();
                    place.reverse();
                }
                std::fs::write(at(&format!("a/new{moves}{number}")), "").unwrap();
                true
            };
            let (path, threads, found) = (&b""[..], 1, &found);
            let outcome =
                Walk { top: top.as_fd(), path, threads, deadline: None, found, progress: None }
                    .run();
            assert!(!outcome.is_of_one_moment);
            assert_eq!(outcome.directories_moved, moves);
        }
    }

    #[test]
    fn it_ends_at_its_deadline() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..50 {
            std::fs::create_dir(dir.path().join(n.to_string())).unwrap();
        }
        let top = std::fs::File::open(dir.path()).unwrap();
        let walk = Walk {
            top: top.as_fd(),
            path: b"",
            threads: 1,
            deadline: Some(Instant::now()),
            found: &|_, _| true,
            progress: None,
        };
        assert!(walk.run().gave_up);
    }
}
