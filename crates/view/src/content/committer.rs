//! Makes durable what was written and not synced: soon after a close, or a moment after the first
//! write. By threads of its own, as each commit waits for the disk; several, as a disk makes many
//! files durable in the time of one. They sleep while nothing changed.
//!
//! What cannot be made durable for want of space is kept and tried again: the file is closed, and
//! who opens it next must neither find it as it was before nor be told by fsync that all is well. What
//! cannot be kept is lost, and the next fsync says so.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use rustix::io::Errno;
use tollgate_fuse::NodeId;

use crate::sync::{Condvar, JoinHandle, Mutex, now, spawn};

/// What the death of the server can lose of what was not synced.
const DELAY: Duration = Duration::from_secs(2);
/// Files that wait; whoever closes a further one commits it.
const WAITING_MAX: usize = if cfg!(loom) { 2 } else { 1024 };
/// Files whose commit failed that are kept, of those that wait; each has a descriptor, and what was
/// changed of its map. What a further one had to commit is lost.
const FAILED_MAX: usize = 64;
/// Files that are committed at once. There is one thread at the start, and then one more than had to
/// do at any time.
const THREADS_MAX: usize = if cfg!(loom) { 2 } else { 8 };

/// A file that may have something to commit.
pub(super) trait Pending: Send + Sync {
    fn id(&self) -> NodeId;
    /// As the log names it.
    fn path(&self) -> &[u8];
    fn commit(&self) -> Result<(), Errno>;

    /// After a commit that failed: whether all that was to be committed is still there, and may be
    /// wanted.
    fn can_try_again(&self) -> bool {
        false
    }

    /// A commit failed that nobody waited for, and is not tried again.
    fn is_lost(&self, _error: Errno) {}
}

/// A file that is to be committed.
struct Waiting {
    file: Arc<dyn Pending>,
    due: Instant,
    /// It was tried before.
    has_failed: bool,
}

/// The threads and what they have to do. Dropping it commits everything.
pub(super) struct Committer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something is due earlier than was known.
    sooner: Condvar,
}

#[derive(Default)]
struct State {
    waiting: FxHashMap<NodeId, Waiting>,
    threads: Vec<JoinHandle>,
    /// Threads that commit a file now.
    busy: usize,
    stopping: bool,
}

impl Committer {
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start() -> io::Result<Committer> {
        let shared = Arc::<Shared>::default();
        shared.add_thread(&mut shared.state.lock())?;
        Ok(Committer { shared })
    }

    /// Something of `file` is to be committed, at once if it was closed.
    pub(super) fn changed(&self, file: &Arc<dyn Pending>, closed: bool) {
        let due = if closed { now() } else { now() + DELAY };
        let mut state = self.shared.state.lock();
        if let Some(known) = state.waiting.get_mut(&file.id()) {
            if known.due <= due {
                return;
            }
            known.due = due;
        } else if state.waiting.len() >= WAITING_MAX || state.stopping {
            drop(state);
            self.shared.commit(&Waiting { file: Arc::clone(file), due, has_failed: false });
            return;
        } else {
            let waiting = Waiting { file: Arc::clone(file), due, has_failed: false };
            state.waiting.insert(file.id(), waiting);
        }
        drop(state);
        self.shared.sooner.notify_one();
    }

    /// What waits of file `id` is committed, or given up, at once. Whether something waits.
    pub(super) fn try_now(&self, id: NodeId) -> bool {
        let mut state = self.shared.state.lock();
        let Some(waiting) = state.waiting.get_mut(&id) else { return false };
        waiting.due = now();
        self.shared.sooner.notify_one();
        true
    }

    /// Commits everything; what is changed later is committed by who changes it.
    pub(super) fn finish(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.sooner.notify_all();
        for thread in threads {
            // A panic in it was printed; there is nothing more to do.
            let _ = thread.join();
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn add_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let own = Arc::clone(self);
        state.threads.push(spawn("tollgate-commit", move || own.work())?);
        Ok(())
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            let earliest = state.waiting.iter().min_by_key(|(_, waiting)| waiting.due);
            let Some((id, due)) = earliest.map(|(id, waiting)| (*id, waiting.due)) else {
                if state.stopping {
                    return;
                }
                self.sooner.wait(&mut state);
                continue;
            };
            if due > now() && !state.stopping {
                self.sooner.wait_until(&mut state, due);
                continue;
            }
            let Some(waiting) = state.waiting.remove(&id) else { continue };
            state.busy += 1;
            self.have_a_spare(&mut state);
            drop(state);
            self.commit(&waiting);
            // Dropped without the lock: it may be the last who has the file open.
            drop(waiting);
            state = self.state.lock();
            state.busy -= 1;
        }
    }

    /// Commits a file. If that fails it is kept, where it can be.
    fn commit(&self, waiting: &Waiting) {
        let file = &waiting.file;
        let Err(error) = file.commit() else { return };
        let path = file.path().escape_ascii();
        if file.can_try_again() && self.state.lock().keep(file) {
            if !waiting.has_failed {
                let then = "it is tried again until it is";
                tracing::error!(%path, %error, then, "what was written to a sealed file is not durable");
            }
            return;
        }
        tracing::error!(%path, %error, "what was written to a sealed file is not durable");
        file.is_lost(error);
    }

    /// Sees to it that a thread waits for what becomes due while this one commits. Started here, not
    /// by who closes a file: a thread has the identity of the one that starts it.
    fn have_a_spare(self: &Arc<Self>, state: &mut State) {
        let count = state.threads.len();
        if state.busy == count && count < THREADS_MAX && !state.stopping {
            if let Err(error) = self.add_thread(state) {
                tracing::debug!(%error, "commits take longer");
            }
        } else if !state.waiting.is_empty() {
            // It looks when the next is due.
            self.sooner.notify_one();
        }
    }
}

impl State {
    /// Has a file whose commit failed wait for another one; whether there is room.
    fn keep(&mut self, file: &Arc<dyn Pending>) -> bool {
        if self.stopping {
            return false;
        }
        if self.waiting.contains_key(&file.id()) {
            // It was changed meanwhile.
            return true;
        }
        let failed = self.waiting.values().filter(|waiting| waiting.has_failed).count();
        if failed >= FAILED_MAX || self.waiting.len() >= WAITING_MAX {
            return false;
        }
        let (file, due) = (Arc::clone(file), now() + DELAY);
        self.waiting.insert(file.id(), Waiting { file, due, has_failed: true });
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A file whose commit ends when as many as there can be have begun, or after a minute.
    struct Together {
        id: u64,
        begun: Arc<(Mutex<usize>, Condvar)>,
    }

    impl Pending for Together {
        fn id(&self) -> NodeId {
            NodeId(self.id)
        }

        fn path(&self) -> &[u8] {
            b"file"
        }

        fn commit(&self) -> Result<(), Errno> {
            let (begun, changed) = &*self.begun;
            let mut begun = begun.lock();
            *begun += 1;
            changed.notify_all();
            let until = Instant::now() + Duration::from_secs(60);
            while *begun < THREADS_MAX && !changed.wait_until(&mut begun, until).timed_out() {}
            Ok(())
        }
    }

    #[test]
    fn files_do_not_wait_for_each_other() {
        let committer = Committer::start().unwrap();
        let begun = Arc::new((Mutex::new(0), Condvar::new()));
        for id in 2..2 + THREADS_MAX as u64 {
            let file: Arc<dyn Pending> = Arc::new(Together { id, begun: Arc::clone(&begun) });
            committer.changed(&file, true);
        }
        let until = Instant::now() + Duration::from_secs(60);
        let mut count = begun.0.lock();
        while *count < THREADS_MAX {
            assert!(!begun.1.wait_until(&mut count, until).timed_out(), "{count} at once");
        }
    }

    /// A file without room for its commit, at first.
    struct Full {
        id: u64,
        attempts_without_room: usize,
        found: Mutex<Found>,
        changed: Condvar,
    }

    #[derive(Debug, Default)]
    struct Found {
        attempts: usize,
        lost: Vec<Errno>,
    }

    impl Full {
        fn new(id: u64, attempts_without_room: usize) -> Arc<Full> {
            let (found, changed) = (Mutex::default(), Condvar::new());
            Arc::new(Full { id, attempts_without_room, found, changed })
        }

        fn wait_for_attempts(&self, count: usize) {
            let until = Instant::now() + Duration::from_secs(60);
            let mut found = self.found.lock();
            while found.attempts < count {
                assert!(!self.changed.wait_until(&mut found, until).timed_out(), "{found:?}");
            }
        }
    }

    impl Pending for Full {
        fn id(&self) -> NodeId {
            NodeId(self.id)
        }

        fn path(&self) -> &[u8] {
            b"file"
        }

        fn commit(&self) -> Result<(), Errno> {
            let mut found = self.found.lock();
            found.attempts += 1;
            self.changed.notify_all();
            if found.attempts > self.attempts_without_room { Ok(()) } else { Err(Errno::NOSPC) }
        }

        fn can_try_again(&self) -> bool {
            true
        }

        fn is_lost(&self, error: Errno) {
            self.found.lock().lost.push(error);
        }
    }

    #[test]
    fn what_finds_no_room_is_tried_again_until_it_does() {
        let committer = Committer::start().unwrap();
        let file = Full::new(2, 1);
        committer.changed(&(Arc::clone(&file) as Arc<dyn Pending>), true);
        file.wait_for_attempts(2);
        committer.finish();
        let found = file.found.lock();
        assert_eq!((found.attempts, &found.lost[..]), (2, &[][..]));
    }

    #[test]
    fn what_finds_no_room_until_the_end_and_what_cannot_be_kept_is_lost_and_told_once() {
        let committer = Committer::start().unwrap();
        let most = u64::try_from(FAILED_MAX).unwrap();
        let files: Vec<_> = (2..most + 4).map(|id| Full::new(id, usize::MAX)).collect();
        for file in &files {
            committer.changed(&(Arc::clone(file) as Arc<dyn Pending>), true);
            file.wait_for_attempts(1);
        }
        let lost = |file: &Arc<Full>| file.found.lock().lost.clone();
        let until = Instant::now() + Duration::from_secs(60);
        while files.iter().filter(|file| !lost(file).is_empty()).count() < 2 {
            assert!(Instant::now() < until, "two too many were kept");
            std::thread::yield_now();
        }
        committer.finish();
        assert!(files.iter().all(|file| lost(file) == [Errno::NOSPC]));
    }

    #[test]
    fn at_the_end_all_is_committed_once() {
        let committer = Committer::start().unwrap();
        let begun = Arc::new((Mutex::new(THREADS_MAX), Condvar::new()));
        for id in 2..502 {
            let file: Arc<dyn Pending> = Arc::new(Together { id, begun: Arc::clone(&begun) });
            committer.changed(&file, id % 2 == 0);
        }
        committer.finish();
        assert_eq!(*begun.0.lock(), THREADS_MAX + 500);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p tollgate-view --release --lib models`. Two files may wait, and
/// two threads commit. What is lost is a deadlock, or fails a comparison.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use super::*;

    /// A file that counts its changes, and how many of them a commit has seen.
    struct Counted {
        id: u64,
        written: AtomicU64,
        durable: Mutex<u64>,
        committed: Condvar,
    }

    impl Counted {
        fn new(id: u64) -> Arc<Counted> {
            let (written, durable) = (AtomicU64::new(0), Mutex::new(0));
            Arc::new(Counted { id, written, durable, committed: Condvar::default() })
        }

        fn write(self: &Arc<Self>, committer: &Committer, closed: bool) {
            self.written.fetch_add(1, Ordering::Relaxed);
            committer.changed(&(Arc::clone(self) as Arc<dyn Pending>), closed);
        }

        fn durable(&self) -> u64 {
            *self.durable.lock()
        }

        fn wait_until_durable(&self, writes: u64) {
            let mut durable = self.durable.lock();
            while *durable < writes {
                self.committed.wait(&mut durable);
            }
        }
    }

    impl Pending for Counted {
        fn id(&self) -> NodeId {
            NodeId(self.id)
        }

        fn path(&self) -> &[u8] {
            b"file"
        }

        fn commit(&self) -> Result<(), Errno> {
            let mut durable = self.durable.lock();
            *durable = self.written.load(Ordering::Relaxed);
            drop(durable);
            self.committed.notify_all();
            Ok(())
        }
    }

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    /// Whoever sleeps until something later is due learns of what is due now.
    #[test]
    fn what_is_closed_is_committed_though_something_else_is_due_later() {
        model(|| {
            let committer = Arc::new(Committer::start().unwrap());
            let (later, closed) = (Counted::new(2), Counted::new(3));
            later.write(&committer, false);
            let other = thread::spawn({
                let (committer, closed) = (Arc::clone(&committer), Arc::clone(&closed));
                move || closed.write(&committer, true)
            });
            closed.wait_until_durable(1);
            other.join().unwrap();
            committer.finish();
            assert_eq!((later.durable(), closed.durable()), (1, 1));
        });
    }

    /// While one file is committed, somebody looks after what becomes due; and what is changed during
    /// its own commit is committed once more.
    #[test]
    fn what_is_changed_during_a_commit_is_committed_too() {
        model(|| {
            let committer = Committer::start().unwrap();
            let (first, second) = (Counted::new(2), Counted::new(3));
            first.write(&committer, true);
            second.write(&committer, true);
            first.write(&committer, true);
            first.wait_until_durable(2);
            second.wait_until_durable(1);
            committer.finish();
        });
    }

    #[test]
    fn what_is_changed_while_all_ends_is_committed() {
        model(|| {
            let committer = Arc::new(Committer::start().unwrap());
            let file = Counted::new(2);
            let other = thread::spawn({
                let (committer, file) = (Arc::clone(&committer), Arc::clone(&file));
                move || {
                    file.write(&committer, true);
                    file.write(&committer, false);
                }
            });
            committer.finish();
            other.join().unwrap();
            assert_eq!(file.durable(), 2);
        });
    }

    #[test]
    fn who_finds_no_room_to_wait_commits() {
        model(|| {
            let committer = Committer::start().unwrap();
            let files: Vec<_> = (2..5).map(Counted::new).collect();
            files.iter().for_each(|file| file.write(&committer, false));
            assert_eq!(files[2].durable(), 1);
            committer.finish();
            assert!(files.iter().all(|file| file.durable() == 1));
        });
    }
}
