//! From where what a rename has moved has come, as the kernel reports (inotify).
//!
//! Who finds another file at the new name than the one that was judged cannot tell by that alone whether
//! the rename moved it, or others put it there right afterwards. The kernel reports both halves of each
//! rename in their order. If the last report of the new name is that it got what was at the old one,
//! what is there has come from there.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::fs::RawDir;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::lower::{self, Key, ProcPath};

/// A directory and a name in it.
pub(crate) type Name<'a> = (BorrowedFd<'a>, &'a CStr);

/// Reports that are looked at after one rename: beyond these nothing is known.
const MAX_REPORTS: usize = 100_000;

/// An inotify instance that has watches only while a rename is under way.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(OnceLock<Mutex<OwnedFd>>);

/// What stood at two names after a rename, as far as it has come from the other one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Came {
    is_told: bool,
    at_new: Option<Key>,
    at_old: Option<Key>,
}

impl Came {
    /// Whether the inode of `key` came to the new name from the old one; `None` where the kernel did not tell.
    pub(crate) fn came_to_new(self, key: &Key) -> Option<bool> {
        self.is_told.then_some(self.at_new.as_ref() == Some(key))
    }

    /// Whether it came to the old name from the new one.
    pub(crate) fn came_to_old(self, key: &Key) -> Option<bool> {
        self.is_told.then_some(self.at_old.as_ref() == Some(key))
    }
}

impl Arrivals {
    /// To be called before the sandbox begins, which lets nobody make an instance.
    pub(crate) fn begin() -> Self {
        let arrivals = Self::default();
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(fd) => drop(arrivals.0.set(Mutex::new(fd))),
            Err(error) => tracing::debug!(%error, "no inotify instance to watch renames with"),
        }
        arrivals
    }

    /// Runs `rename`, which moves what is at the `old` name to the `new` one, or exchanges the two. Returns
    /// what that returns, and what is known of what is there then: nothing, where the kernel does not tell.
    /// One at a time, as directories are renamed in turn anyway.
    pub(crate) fn over<T, E>(
        &self,
        old: Name<'_>,
        new: Name<'_>,
        rename: impl FnOnce() -> Result<T, E>,
    ) -> (Result<T, E>, Came) {
        let Some(instance) = self.0.get().map(Mutex::lock) else {
            return (rename(), Came::default());
        };
        let watch = |(dir, _): Name<'_>| {
            let what = WatchFlags::MOVE | WatchFlags::CREATE | WatchFlags::ONLYDIR;
            let path = ProcPath::of(dir);
            inotify::add_watch(&*instance, path.as_c_str(), what).ok()
        };
        // One for both, if it is the same directory.
        let (at_old, at_new) = (watch(old), watch(new));
        let renamed = rename();
        let keys = renamed.is_ok().then(|| {
            let keys = [old, new].map(|name| key_at(name).ok());
            // Whatever moved what was found there is reported by now.
            wait_for_changes(old.0).and_then(|()| wait_for_changes(new.0)).map(|()| keys)
        });
        let watches = at_old.zip(at_new);
        let reports = watches.map(|(at_old, at_new)| Reports {
            old: (at_old, old.1),
            new: (at_new, new.1),
            ..Reports::default()
        });
        let told = reports.and_then(|reports| reports.read(&*instance));
        for watch in [at_old, at_new].into_iter().flatten() {
            // The second time where both are one.
            let _ = inotify::remove_watch(&*instance, watch);
        }
        // The ends of the watches are reported.
        while rustix::io::read(&*instance, &mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {}
        let mut came = Came::default();
        if let (Some(told), Some(Ok([at_old, at_new]))) = (told, keys) {
            came.is_told = true;
            came.at_new = at_new.filter(|_| told.came_to_new);
            came.at_old = at_old.filter(|_| told.came_to_old);
        }
        (renamed, came)
    }
}

fn key_at((dir, name): Name<'_>) -> Result<Key, Errno> {
    lower::stat_at(dir, name).map(|stat| stat.key())
}

/// Reads a little of the directory: not before changes that have begun in it are over.
pub(crate) fn wait_for_changes(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut buffer = Vec::with_capacity(1024);
    let fd = lower::open_dir(dir, c".")?;
    RawDir::new(fd, buffer.spare_capacity_mut()).next().transpose().map(drop)
}

/// What is reported of two names, each by the watch of its directory.
struct Reports<'a> {
    old: (i32, &'a CStr),
    new: (i32, &'a CStr),
    /// Renames of what was at either name that have begun.
    left_old: Option<u32>,
    left_new: Option<u32>,
    came_to_new: bool,
    came_to_old: bool,
}

impl Default for Reports<'_> {
    fn default() -> Self {
        let nowhere = (-1, c"");
        Self {
            old: nowhere,
            new: nowhere,
            left_old: None,
            left_new: None,
            came_to_new: false,
            came_to_old: false,
        }
    }
}

impl Reports<'_> {
    /// All that is reported; `None` if some of it is lost.
    fn read(mut self, instance: impl AsFd) -> Option<Self> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(instance, &mut buffer);
        for _ in 0..MAX_REPORTS {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => return None,
                Ok(event) => {
                    let name = event.file_name().unwrap_or(c"");
                    self.note((event.wd(), name), event.events(), event.cookie());
                }
                Err(Errno::AGAIN) => return Some(self),
                Err(_) => return None,
            }
        }
        None
    }

    fn note(&mut self, at: (i32, &CStr), what: ReadFlags, cookie: u32) {
        if what.contains(ReadFlags::MOVED_FROM) {
            // Of an exchange, it may be reported after what has come in its place.
            let left = Some(cookie);
            self.left_old = if at == self.old { left } else { self.left_old };
            self.left_new = if at == self.new { left } else { self.left_new };
        } else if what.intersects(ReadFlags::MOVED_TO | ReadFlags::CREATE) {
            let from =
                |left: Option<u32>| what.contains(ReadFlags::MOVED_TO) && left == Some(cookie);
            if at == self.old {
                self.came_to_old = from(self.left_new);
            }
            if at == self.new {
                self.came_to_new = from(self.left_old);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    /// Renames `a/x` to `b/y`, after and before what others do. Returns whether what is there has come
    /// from the other name, at the new and at the old one.
    fn told(flags: RenameFlags, before: fn(&Path), after: fn(&Path)) -> (bool, bool) {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        for dir in ["a/x", "a/other", "b/there"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            fs::create_dir(at("b/y")).unwrap();
        }
        let (a, b) = (File::open(at("a")).unwrap(), File::open(at("b")).unwrap());
        let (old, new) = ((a.as_fd(), c"x"), (b.as_fd(), c"y"));
        let (renamed, came) = Arrivals::begin().over(old, new, || {
            before(base.path());
            renameat_with(&a, "x", &b, "y", flags)?;
            after(base.path());
            Ok::<_, Errno>(())
        });
        renamed.unwrap();
        let is = |name, came: &dyn Fn(&Key) -> Option<bool>| {
            key_at(name).is_ok_and(|key| came(&key).expect("it is told"))
        };
        (is(new, &|key| came.came_to_new(key)), is(old, &|key| came.came_to_old(key)))
    }

    fn moved(dir: &Path, from: &str, to: &str) {
        fs::rename(dir.join(from), dir.join(to)).unwrap();
    }

    fn exchanged(dir: &Path, one: &str, other: &str) {
        renameat_with(CWD, dir.join(one), CWD, dir.join(other), RenameFlags::EXCHANGE).unwrap();
    }

    #[test]
    fn what_was_at_the_old_name_has_come_from_there() {
        let exchange = |dir: &Path| exchanged(dir, "a/x", "a/other");
        assert_eq!(told(RenameFlags::empty(), |_| (), |_| ()), (true, false));
        assert_eq!(told(RenameFlags::empty(), exchange, |_| ()), (true, false));
        assert_eq!(told(RenameFlags::EXCHANGE, exchange, |_| ()), (true, true));
    }

    #[test]
    fn what_others_put_there_afterwards_has_not() {
        let exchange = |dir: &Path| exchanged(dir, "b/y", "b/there");
        assert_eq!(told(RenameFlags::empty(), |_| (), exchange), (false, false));
        assert_eq!(told(RenameFlags::EXCHANGE, |_| (), exchange), (false, true));
        let over = |dir: &Path| moved(dir, "b/there", "b/y");
        assert_eq!(told(RenameFlags::empty(), |_| (), over), (false, false));
        let made = |dir: &Path| {
            moved(dir, "b/y", "b/away");
            fs::create_dir(dir.join("b/y")).unwrap();
        };
        assert_eq!(told(RenameFlags::empty(), |_| (), made), (false, false));
        // Back and forth once more: from there again.
        let again = |dir: &Path| {
            moved(dir, "b/y", "a/x");
            exchanged(dir, "a/x", "a/other");
            moved(dir, "a/x", "b/y");
        };
        assert_eq!(told(RenameFlags::empty(), |_| (), again), (true, false));
    }

    #[test]
    fn without_an_instance_nothing_is_known() {
        let dir = File::open(tempfile::tempdir().unwrap().path()).unwrap();
        let name = (dir.as_fd(), c"x");
        let (renamed, came) = Arrivals::default().over(name, name, || Ok::<_, ()>(7));
        assert_eq!((renamed, came), (Ok(7), Came::default()));
    }
}
