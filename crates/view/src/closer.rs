//! The thread that lets go of inodes whose last name is gone.
//!
//! With the last descriptor of such an inode the lower file system frees its pages and blocks, and
//! may wait for the disk meanwhile (a discard). FORGET has no reply that anybody waits for, but the
//! worker that it reaches is the one that the next request needs: `rm -rf` of 4,000 files took 94 us
//! for each where that worker let go of them, and 34 us in the bare directory (medians of 7; ext4,
//! 2 CPUs of a Zen 4 guest, Linux 6.18).
//!
//! A file alone is let go of at once, so that its space is free soon. Of many that come one after the
//! other, those of some milliseconds are let go of together: woken for each, this thread runs where
//! the worker and its caller take turns, and the kernel moves the caller away from the worker, whose
//! cache has what it needs next.
//!
//! Where the lower file system has little room, the worker lets go of each file itself: who removes a
//! file there may need its space for the next one, which is mostly asked for after the FORGET.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::budget::Held;
use crate::table::Node;

/// Most nodes that wait, and no more than an eighth of the descriptors. Beyond it who comes with one more
/// lets go of it itself, so that names are not removed faster than space is freed.
const MAX_WAITING: usize = 512;

/// How long nodes gather when one comes soon after others: some hundred small files, or fewer than
/// may wait.
const GATHERING: Duration = Duration::from_millis(5);

/// What comes within this time of the last one belongs to the same burst.
const SOON: Duration = Duration::from_millis(2);

/// Room is little where fewer bytes are free for everybody, or than this part of the file system, or
/// fewer inodes.
const LITTLE_BYTES: u64 = 256 << 20;
const LITTLE_PART: u64 = 16;
const LITTLE_INODES: u64 = 4096;

/// How long what was found out about room counts. Asking takes about as long as a `stat`, and whoever
/// fills [`LITTLE_BYTES`] takes longer.
const KNOWN_FOR: Duration = Duration::from_millis(20);

/// Whether the lower file system has little room.
struct Room {
    root: Arc<OwnedFd>,
    start: Instant,
    /// When that was asked last, in nanoseconds since `start`; 0 before.
    asked: AtomicU64,
    is_little: AtomicBool,
}

impl Room {
    fn new(root: Arc<OwnedFd>) -> Self {
        let (asked, is_little) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { root, start: Instant::now(), asked, is_little }
    }

    /// Asks how much there is, if that is not known.
    fn look(&self) {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let asked = self.asked.load(Ordering::Relaxed);
        if asked != 0 && u128::from(now.saturating_sub(asked)) < KNOWN_FOR.as_nanos() {
            return;
        }
        self.asked.store(now, Ordering::Relaxed);
        let is_little = rustix::fs::fstatvfs(&self.root).is_ok_and(|fs| {
            let little = (LITTLE_BYTES / fs.f_frsize.max(1)).min(fs.f_blocks / LITTLE_PART);
            // Where inodes are made when they are needed, their number is 0.
            let few = LITTLE_INODES.min(fs.f_files / LITTLE_PART);
            fs.f_bavail < little || fs.f_ffree < few
        });
        self.is_little.store(is_little, Ordering::Relaxed);
    }
}

/// A node, and its descriptor, which counts until it is closed: fields are dropped in this order.
struct Waiting {
    _node: Arc<Node>,
    _held: Held,
}

/// Owns the thread; dropping it waits until the thread has let go of all that was handed over.
pub(crate) struct Closer {
    room: Room,
    waiting: Option<SyncSender<Waiting>>,
    thread: Option<JoinHandle<()>>,
}

impl Closer {
    /// For a view of `root` that may hold so many `descriptors`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(root: Arc<OwnedFd>, descriptors: usize) -> std::io::Result<Self> {
        let (waiting, nodes) = sync_channel(MAX_WAITING.min(descriptors / 8));
        let builder = std::thread::Builder::new().name("tollgate-close".to_owned());
        let thread = builder.spawn(move || run(&nodes))?;
        Ok(Self { room: Room::new(root), waiting: Some(waiting), thread: Some(thread) })
    }

    /// A last name is about to be removed, and whoever removes it waits for that.
    pub(crate) fn before_removal(&self) {
        self.room.look();
    }

    /// The kernel forgot `node`, whose last name is gone. `held` counts its descriptor; without it there
    /// are too few for any to wait.
    pub(crate) fn let_go(&self, node: Arc<Node>, held: Option<Held>) {
        if let (Some(waiting), Some(held)) = (&self.waiting, held)
            && !self.room.is_little.load(Ordering::Relaxed)
        {
            // What it does not take comes back in the error, and goes here.
            let _ = waiting.try_send(Waiting { _node: node, _held: held });
        }
    }
}

fn run(nodes: &Receiver<Waiting>) {
    let mut idle_since: Option<Instant> = None;
    for first in nodes {
        if idle_since.is_some_and(|since| since.elapsed() < SOON) {
            std::thread::sleep(GATHERING);
        }
        drop(first);
        for next in nodes.try_iter() {
            // Whoever waits for this CPU goes first, above all a caller that was just answered.
            std::thread::yield_now();
            drop(next);
        }
        idle_since = Some(Instant::now());
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.waiting = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that closes descriptors panicked");
        }
    }
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Weak;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::budget::Budget;
    use crate::fds::Descriptors;
    use crate::lower::{open_path, stat_at, stat_fd};
    use crate::table::Table;

    /// More than may wait.
    #[test]
    fn all_that_was_handed_over_is_let_go_of() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        std::fs::write(dir.path().join("a"), b"bytes").unwrap();
        let table = Table::new(&stat_fd(fd.as_fd()).unwrap(), Vec::new());
        let stat = stat_at(fd.as_fd(), c"a").unwrap();
        let removed = || {
            let node = table.remember_unnamed(&stat);
            Descriptors::pin(&node, Arc::new(open_path(fd.as_fd(), c"a").unwrap()));
            assert!(table.forget(node.id, 1).is_some());
            node
        };
        let closer = Closer::start(Arc::new(fd.try_clone().unwrap().into()), 400).unwrap();
        let budget = Budget::new(400);
        let hand_over = |count: usize| {
            let nodes: Vec<_> = (0..count).map(|_| removed()).collect();
            assert!(nodes.iter().all(|node| node.pinned.load(Ordering::Relaxed)));
            let gone: Vec<_> = nodes.iter().map(Arc::downgrade).collect();
            nodes.into_iter().for_each(|node| closer.let_go(node, budget.hold_if_cheap()));
            gone
        };
        let are_gone = |gone: &[Weak<Node>]| gone.iter().all(|node| node.strong_count() == 0);
        // From the second time on they come soon after others, and gather.
        for count in [1, 2, 3 * MAX_WAITING] {
            let gone = hand_over(count);
            let start = Instant::now();
            while !are_gone(&gone) {
                assert!(start.elapsed() < Duration::from_secs(20), "of {count} some are kept");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let gone = hand_over(3 * MAX_WAITING);
        drop(closer);
        assert!(are_gone(&gone) && budget.held() == 0);
    }
}
