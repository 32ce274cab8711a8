//! Files that lost one of several names a moment ago.
//!
//! The kernel counts the names of a file itself: one less as soon as the thread that asked for UNLINK, or for a
//! RENAME over the name, runs again. That can be any time after the reply. A count that is looked up in between
//! lacks the name already, and the kernel would take one off again. At 0 it refuses further links of the file
//! with `ENOENT` and asks nobody, until its attributes expire (`fuse_entry_unlinked` in fs/fuse/dir.c,
//! `vfs_link` in fs/namei.c, Linux 6.18).
//!
//! So for [`GRACE`] after such a change no reply makes the kernel's own count wrong. It does not take the
//! attributes that come with a name (LOOKUP, READDIRPLUS), and asks for them when it needs them:
//! [`tollgate_fuse::Connection::invalidate_inode`] before a reply has it drop what that says. Those whose
//! attributes a program sees (GETATTR, STATX) tell the count as it is, and are not taken either where the kernel
//! could come to 0 by it; otherwise they are, as the kernel asks for the mode and the size of a file for itself,
//! too, and goes by what it keeps. During LINK and SETATTR it has the inode locked, as for UNLINK and RENAME, and
//! has counted all names that went: their replies tell the count as it is, and it is kept.
//!
//! Nor may its count be too large: a file whose last name goes would not be at 0. Who watches it is not told
//! then (`IN_DELETE_SELF`), and the kernel keeps it, with its space, for as long as they watch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tollgate_fuse::NodeId;

/// How long a thread may need, at most, to run after the reply that it waits for. One that needs longer
/// can have the kernel count one name too few.
const GRACE: Duration = Duration::from_millis(GRACE_MS);
const GRACE_MS: u64 = 1000;
/// Most files that are remembered; the older half is forgotten earlier where more lose names.
const MAX_FILES: usize = 4096;

pub(crate) struct RecentUnlinks {
    start: Instant,
    /// When the last one was, in milliseconds since `start`, and 1; 0 is never. Look-ups take no lock but for
    /// a moment after one.
    last: AtomicU64,
    files: Mutex<Files>,
}

impl Default for RecentUnlinks {
    fn default() -> Self {
        let (last, files) = (AtomicU64::new(0), Mutex::default());
        Self { start: Instant::now(), last, files }
    }
}

/// What files lost in the present [`GRACE`], and in the one before.
#[derive(Default)]
struct Files {
    now: FxHashMap<NodeId, Lost>,
    before: FxHashMap<NodeId, Lost>,
    since: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Lost {
    names: u32,
    last: Instant,
    /// The thread that removed them, if it was one, and one that has an id here.
    by: Option<u32>,
}

impl RecentUnlinks {
    /// Thread `by` (0: not known) is about to remove one of the names of `node`.
    pub(crate) fn add(&self, node: NodeId, by: u32) {
        let now = Instant::now();
        let mut files = self.files.lock();
        let is_over = files.since.is_none_or(|since| now.duration_since(since) >= GRACE);
        if is_over || files.now.len() >= MAX_FILES {
            files.before = std::mem::take(&mut files.now);
            files.since = Some(now);
        }
        let one = Lost { names: 1, last: now, by: (by != 0).then_some(by) };
        files.now.entry(node).and_modify(|lost| *lost = lost.and(one)).or_insert(one);
        self.last.store(self.milliseconds(now) + 1, Ordering::SeqCst);
    }

    /// Names by which the kernel may yet count `node` down, at most, as far as a request of thread `asker`
    /// cannot know that it has. Of what it removed itself it can.
    pub(crate) fn outstanding(&self, node: NodeId, asker: u32) -> u32 {
        let last = self.last.load(Ordering::SeqCst);
        if last == 0 {
            return 0;
        }
        let now = Instant::now();
        if self.milliseconds(now) > last + GRACE_MS {
            return 0;
        }
        let lost = self.files.lock().get(node, now);
        lost.filter(|lost| lost.by != Some(asker)).map_or(0, |lost| lost.names)
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.start).as_millis()).unwrap_or(u64::MAX - 1)
    }
}

impl Files {
    fn get(&self, node: NodeId, now: Instant) -> Option<Lost> {
        let lost = [&self.before, &self.now].into_iter().filter_map(|files| files.get(&node));
        let recent = lost.copied().filter(|lost| now.duration_since(lost.last) < GRACE);
        recent.reduce(Lost::and)
    }
}

impl Lost {
    fn and(self, later: Self) -> Self {
        Self {
            names: self.names.saturating_add(later.names),
            last: later.last,
            by: self.by.filter(|_| self.by == later.by),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_removed_is_outstanding_for_a_while() {
        let recent = RecentUnlinks::default();
        let [file, other] = [NodeId(2), NodeId(3)];
        assert_eq!(recent.outstanding(file, 1), 0);
        recent.add(file, 1);
        assert_eq!([recent.outstanding(file, 1), recent.outstanding(file, 2)], [0, 1]);
        assert_eq!(recent.outstanding(other, 2), 0);
        recent.add(file, 2);
        assert_eq!([1, 2, 3].map(|asker| recent.outstanding(file, asker)), [2; 3]);
        std::thread::sleep(GRACE);
        assert_eq!(recent.outstanding(file, 3), 0);
        recent.add(file, 2);
        assert_eq!([recent.outstanding(file, 2), recent.outstanding(file, 3)], [0, 1]);
    }

    /// Threads of other PID namespaces are all 0 here.
    #[test]
    fn a_thread_that_is_not_known_is_another_one() {
        let recent = RecentUnlinks::default();
        recent.add(NodeId(2), 0);
        assert_eq!(recent.outstanding(NodeId(2), 0), 1);
    }

    #[test]
    fn nobody_takes_the_lock_once_all_is_long_ago() {
        let recent = RecentUnlinks::default();
        recent.add(NodeId(2), 1);
        std::thread::sleep(GRACE + Duration::from_millis(10));
        let _locked = recent.files.lock();
        assert_eq!(recent.outstanding(NodeId(2), 2), 0);
    }

    #[test]
    fn no_more_files_are_remembered_than_twice_the_limit() {
        let recent = RecentUnlinks::default();
        for n in 0..3 * MAX_FILES as u64 {
            recent.add(NodeId(n), 1);
        }
        let files = recent.files.lock();
        assert!(files.now.len() + files.before.len() <= 2 * MAX_FILES);
        drop(files);
        assert_eq!(recent.outstanding(NodeId(3 * MAX_FILES as u64 - 1), 2), 1);
    }
}
