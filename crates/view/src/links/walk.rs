//! A walk of the whole lower tree for files that have several names, by several threads.
//!
//! It opens directories and nothing else, follows no symbolic link, enters no mount, and ends at
//! stated limits. Directories that wait to be read are kept as paths, the last one found first, so
//! that a wide tree takes memory and no descriptors.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::beneath;
use crate::lower::{self, DirStream, MOUNT_ROOT, Stat};

/// Most directories that wait to be read.
const MAX_PENDING: usize = 1 << 20;
/// How often the caller is told how far the walk is.
const REPORT: Duration = Duration::from_millis(500);

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
    outcome: Outcome,
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
        std::thread::scope(|scope| {
            let spawn = |_| {
                let name = std::thread::Builder::new().name("tollgate-links".to_owned());
                name.spawn_scoped(scope, || self.work(&shared)).is_ok()
            };
            // Without any thread this one does it.
            if (0..self.threads.max(1)).filter(|n| spawn(*n)).count() == 0 {
                self.work(&shared);
            }
            self.report_until_over(&shared);
        });
        let mut outcome = shared.state.into_inner().outcome;
        outcome.names = shared.names.into_inner();
        outcome
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
        let mut stream = DirStream::new(fd.try_clone().map_err(|_| Errno::MFILE)?);
        let mut names = 0;
        while let Some(entry) = stream.peek()? {
            if entry.child_name().is_some() {
                names += 1;
                let kind = FileType::from_raw_mode(u32::from(entry.kind) << 12);
                if kind == FileType::Directory {
                    below.push(join(path, entry.name.to_bytes()));
                } else if !self.look_at(fd.as_fd(), path, entry.name, below) {
                    return Ok(false);
                }
            }
            stream.advance();
        }
        shared.names.fetch_add(names, Ordering::Relaxed);
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
    fn take(&mut self, path: &[u8], read: Result<bool, Errno>, below: &mut Vec<Vec<u8>>) {
        match read {
            Ok(true) => {}
            Ok(false) => self.outcome.gave_up = true,
            Err(_) => {
                self.outcome.unreadable += 1;
                self.outcome.unreadable_example.get_or_insert_with(|| path.to_vec());
            }
        }
        self.pending.append(below);
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
