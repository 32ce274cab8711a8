//! Files that nobody has open, whose registration is kept a little longer: programs open the same
//! file again and again, and a new registration costs a lookup of the lower file and two ioctls.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::lower;
use crate::mode::Io;
use crate::table::Node;

/// How long a registration outlives its last handle. A file deleted behind the view's back, where
/// that is not reported, keeps its space at most twice this long and a second.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// The same where registering costs a round trip to the broker.
const LINGER_BY_BROKER: Duration = Duration::from_secs(4);

/// Idle files, one list per worker, so that no lock is shared.
pub(crate) struct Idle {
    lists: Box<[crossbeam_utils::CachePadded<Mutex<IdleList>>]>,
    /// Files kept per worker; beyond it the oldest goes at once.
    max: usize,
    /// Each registration costs a round trip.
    is_dear: AtomicBool,
}

type IdleList = VecDeque<(Instant, Weak<Node>)>;

impl Idle {
    /// Files kept by all workers: more than a compiler opens for one source, or it would find none of
    /// its headers kept for the next. A registrar has a limit of its own.
    const MAX: usize = 4096;

    /// For so many workers, where `max_descriptors` may be had: a quarter of them at most.
    pub(crate) fn new(workers: usize, max_descriptors: usize) -> Self {
        let lists: Box<[_]> = (0..workers.max(1)).map(|_| Default::default()).collect();
        let max = (Self::MAX.min(max_descriptors / 4) / lists.len()).max(1);
        Self { lists, max, is_dear: AtomicBool::new(false) }
    }

    /// From now on each registration costs a round trip: they are kept for longer.
    pub(crate) fn keep_longer(&self) {
        self.is_dear.store(true, Ordering::Relaxed);
    }

    fn linger(&self) -> Duration {
        if self.is_dear.load(Ordering::Relaxed) { LINGER_BY_BROKER } else { LINGER }
    }

    /// `node` was closed for the last time by `worker`, and is on no list. Returns whether its list
    /// was empty, so that somebody has to sweep it from now on.
    #[must_use]
    pub(crate) fn push(&self, worker: usize, node: &Arc<Node>) -> bool {
        let (surplus, first) = {
            let mut list = self.lists[worker % self.lists.len()].lock();
            list.push_back((Instant::now(), Arc::downgrade(node)));
            let surplus = if list.len() > self.max { list.pop_front() } else { None };
            (surplus, list.len() == 1)
        };
        if let Some(node) = surplus.and_then(|(_, weak)| weak.upgrade()) {
            retire_now(&node);
        }
        first
    }

    /// Drops what has lingered long enough. Returns whether anything is left.
    pub(crate) fn sweep(&self) -> bool {
        let (mut left, linger) = (false, self.linger());
        for list in &self.lists {
            while let Some(node) = Self::due(list, linger) {
                let Some(node) = node.upgrade() else { continue };
                if !retire_if_lingered(&node, linger) {
                    list.lock().push_back((Instant::now(), Arc::downgrade(&node)));
                }
            }
            left |= !list.lock().is_empty();
        }
        left
    }

    fn due(list: &Mutex<IdleList>, linger: Duration) -> Option<Weak<Node>> {
        let mut list = list.lock();
        let (since, _) = list.front()?;
        if since.elapsed() < linger {
            return None;
        }
        list.pop_front().map(|(_, node)| node)
    }
}

/// Takes `node` off its list; false if it was used in the meantime.
fn retire_if_lingered(node: &Node, linger: Duration) -> bool {
    let io = node.io.lock();
    // The next last close puts an open file on a list again.
    if !io.is_open() && !io.has_lingered(linger) {
        return false;
    }
    drop(io);
    retire_now(node);
    true
}

/// Drops the registration and the descriptor of `node` if nobody has it open: its time is over, or
/// its lower file is about to go and must not keep its space.
pub(crate) fn retire_now(node: &Node) {
    retire(node, node.io.lock());
}

/// The same if others deleted `node`. Waits for nothing: who has the state of the file is opening or
/// closing it.
pub(crate) fn retire_if_deleted(node: &Node) {
    let named = node.fd.lock().clone();
    let is_deleted = |fd: &OwnedFd| lower::stat_fd(fd.as_fd()).is_ok_and(|stat| stat.nlink() == 0);
    if named.is_some_and(|fd| is_deleted(&fd))
        && let Some(io) = node.io.try_lock()
    {
        retire(node, io);
    }
}

fn retire(node: &Node, mut io: MutexGuard<'_, Io>) {
    let Some(held) = io.retire() else { return };
    let fd = node.take_fd();
    // The system calls run outside the lock.
    drop(io);
    drop((held, fd));
}
