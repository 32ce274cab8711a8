//! A look at the known names of a file: which of them are there, at one moment.
//!
//! They are looked at one after another. Where others move them meanwhile, one link may be met twice, by the name
//! that it had and by the one that it got, and would stand for another that is missing: for the name with
//! the strictest rules, say. So they count as far as they were there together.
//!
//! * A link is a directory and a name in it. If two paths lead to one, the directory was moved in between, and
//!   the path that was met first leads there no more.
//! * Links, renames and removals change a file's change time. If it is the same whenever the file is met, and so old
//!   that a further change gets another one, its links stayed as they were. A rename changes the time before it
//!   moves the name, so all but the last are looked up once more.
//! * Of a file that changed just now, one that is being written say, that tells nothing. The times of the directories do, if
//!   they have not changed just now, too.
//! * If they have, the kernel is asked to report (inotify) what happens to the links while they are looked up once more.
//!   The directories are read before and after that: it waits for changes that have begun there, and for their reports.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::beneath;
use super::record::State;
use super::walk::is_before;
use crate::arrivals::wait_for_changes;
use crate::lower::{self, Key, ProcPath};

/// Most directories that it holds open; more are found by their paths each time.
const MAX_HELD: usize = 64;

/// Whether the names that were met were there at one moment, and in which state the file was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    Unsure,
    /// A change since then may have left the state the same.
    JustNow(State),
    Settled(State),
}

/// Of names that were met at one look, which had begun then.
pub(super) fn together_at(state: State, begun: SystemTime) -> Together {
    if is_settled(state.changed(), begun) {
        Together::Settled(state)
    } else {
        Together::JustNow(state)
    }
}

/// Whether each change from `begun` on gets a later time than this one.
fn is_settled((seconds, nanoseconds): (i64, u32), begun: SystemTime) -> bool {
    // Some file systems keep no parts of a second: ext4 with small inodes.
    let is_whole = nanoseconds == 0;
    is_before((seconds.saturating_add(i64::from(is_whole)), nanoseconds), begun)
}

/// A look under way.
pub(super) struct Look<'a> {
    watch: &'a Watch,
    root: BorrowedFd<'a>,
    key: Key,
    directories: Vec<Directory<'a>>,
    /// Where they are among these, by their paths; `None` for those that are not there.
    by_path: FxHashMap<&'a [u8], Option<usize>>,
}

struct Directory<'a> {
    path: &'a [u8],
    key: Key,
    /// When it had changed, before a name in it was looked at.
    changed: (i64, u32),
    fd: Option<OwnedFd>,
}

/// A name that led to the file.
pub(super) struct Met<'a> {
    pub(super) path: &'a [u8],
    /// The directory that it is in, of [`Look::directories`], and the name there.
    dir: usize,
    name: CString,
    state: State,
}

/// What a look found.
#[derive(Default)]
pub(super) struct There<'a> {
    pub(super) met: Vec<Met<'a>>,
    pub(super) gone: Vec<&'a [u8]>,
    /// How many links those are that were met.
    pub(super) links: u32,
}

impl There<'_> {
    /// Of the file, when it was met last.
    pub(super) fn state(&self) -> Option<State> {
        self.met.last().map(|met| met.state)
    }
}

impl<'a> Look<'a> {
    pub(super) fn new(watch: &'a Watch, root: BorrowedFd<'a>, key: Key) -> Self {
        let (directories, by_path) = (Vec::new(), FxHashMap::default());
        Self { watch, root, key, directories, by_path }
    }

    /// Looks whether `paths` lead to the file, and tells of each when it did.
    pub(super) fn at(&mut self, paths: &[&'a [u8]], tell: impl Fn(&[u8])) -> There<'a> {
        let mut there = There::default();
        let mut links = FxHashMap::<(Key, CString), usize>::default();
        for path in paths {
            let met = self.meet(path);
            tell(path);
            let Some(met) = met else {
                there.gone.push(path);
                continue;
            };
            let link = (self.directories[met.dir].key, met.name.clone());
            let earlier = links.insert(link, there.met.len());
            there.met.push(met);
            if let Some(earlier) = earlier.map(|at| there.met[at].path)
                && !beneath::stat(self.root, earlier).is_ok_and(|stat| stat.key() == self.key)
            {
                there.gone.push(earlier);
            }
        }
        if !there.gone.is_empty() {
            let gone: FxHashSet<_> = there.gone.iter().copied().collect();
            there.met.retain(|met| !gone.contains(met.path));
        }
        there.links = u32::try_from(links.len()).unwrap_or(u32::MAX);
        there
    }

    fn meet(&mut self, path: &'a [u8]) -> Option<Met<'a>> {
        let split = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = split.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
        let (dir, name) = (self.directory(above)?, CString::new(name).ok()?);
        let state = self.stat(dir, &name)?;
        Some(Met { path, dir, name, state })
    }

    fn directory(&mut self, path: &'a [u8]) -> Option<usize> {
        if let Some(known) = self.by_path.get(path) {
            return *known;
        }
        let found = beneath::directory(self.root, path);
        let found = found.and_then(|fd| Ok((lower::stat_fd(fd.as_fd())?, fd))).ok();
        let place = found.map(|(stat, fd)| {
            let fd = (self.directories.len() < MAX_HELD).then_some(fd);
            let (key, changed) = (stat.key(), stat.changed());
            self.directories.push(Directory { path, key, changed, fd });
            self.directories.len() - 1
        });
        self.by_path.insert(path, place);
        place
    }

    /// Calls `f` with a directory, if it is the same still.
    fn within<T>(
        &self,
        dir: usize,
        f: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Option<T> {
        let Directory { path, key, fd, .. } = &self.directories[dir];
        if let Some(fd) = fd {
            return f(fd.as_fd()).ok();
        }
        let fd = beneath::directory(self.root, path).ok()?;
        let is_same = lower::stat_fd(fd.as_fd()).is_ok_and(|stat| stat.key() == *key);
        is_same.then(|| f(fd.as_fd()).ok())?
    }

    /// The state of the file, if this name leads there.
    fn stat(&self, dir: usize, name: &CString) -> Option<State> {
        let stat = self.within(dir, |fd| lower::stat_at(fd, name))?;
        (stat.key() == self.key).then(|| State::of(&stat))
    }

    /// Whether all of `there` were so at one moment of this look, which has `begun` then.
    pub(super) fn together(&self, there: &There<'_>, begun: SystemTime) -> Together {
        let Some((last, others)) = there.met.split_last() else { return Together::Unsure };
        let together = together_at(last.state, begun);
        if others.is_empty() {
            return together;
        }
        let are_there = |is_same: &dyn Fn(State) -> bool| {
            others.iter().all(|met| self.stat(met.dir, &met.name).is_some_and(is_same))
        };
        let is_same = |state: State| state == last.state;
        if matches!(together, Together::Settled(_))
            && others.iter().all(|met| is_same(met.state))
            && are_there(&is_same)
        {
            return together;
        }
        let dirs: FxHashSet<_> = there.met.iter().map(|met| met.dir).collect();
        if dirs.iter().all(|dir| is_settled(self.directories[*dir].changed, begun))
            && are_there(&|_| true)
            && dirs.iter().all(|dir| self.is_unchanged(*dir))
        {
            return Together::JustNow(last.state);
        }
        let again = || {
            self.wait_for_changes(&dirs)?;
            let states = there.met.iter().map(|met| self.stat(met.dir, &met.name));
            let last = states.reduce(Option::and).flatten()?;
            self.wait_for_changes(&dirs)?;
            Some(last)
        };
        let file = self.within(last.dir, |fd| lower::open_path(fd, &last.name));
        let watched = file.and_then(|fd| self.watch.over(fd.as_fd(), again));
        watched.map_or(Together::Unsure, Together::JustNow)
    }

    fn is_unchanged(&self, dir: usize) -> bool {
        let now = self.within(dir, lower::stat_fd);
        now.is_some_and(|now| now.changed() == self.directories[dir].changed)
    }

    /// Reads a little of each directory: not before changes that have begun in it are over.
    fn wait_for_changes(&self, dirs: &FxHashSet<usize>) -> Option<()> {
        dirs.iter().try_for_each(|dir| self.within(*dir, wait_for_changes))
    }
}

/// An inotify instance that has a watch only while a look is under way; none where it cannot be had.
#[derive(Debug, Default)]
pub(super) struct Watch(OnceLock<Mutex<OwnedFd>>);

impl Watch {
    /// To be called before the sandbox begins, which lets nobody make one.
    pub(super) fn begin(&self) {
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(fd) => drop(self.0.set(Mutex::new(fd))),
            Err(error) => tracing::debug!(%error, "no inotify instance to watch names with"),
        }
    }

    /// What `look` returns, if nothing happened to the links of the file `fd` meanwhile.
    fn over<T>(&self, fd: BorrowedFd<'_>, look: impl FnOnce() -> Option<T>) -> Option<T> {
        let watches = self.0.get()?.lock();
        let links = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
        let number = inotify::add_watch(&*watches, ProcPath::of(fd).as_c_str(), links).ok()?;
        let found = look();
        let mut events = [0; 256];
        let is_silent = rustix::io::read(&*watches, &mut events) == Err(Errno::AGAIN);
        let _ = inotify::remove_watch(&*watches, number);
        // The end of the watch is reported.
        while rustix::io::read(&*watches, &mut events).is_ok_and(|bytes| bytes > 0) {}
        found.filter(|_| is_silent)
    }
}
