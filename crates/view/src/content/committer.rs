//! Makes durable what was written and not synced: soon after a close, or a moment after the first
//! write. A thread of its own, as each commit waits for the disk; it sleeps while nothing changed.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use tollgate_fuse::NodeId;

/// What the death of the server can lose of what was not synced.
const DELAY: Duration = Duration::from_secs(2);
/// Files that wait; whoever closes a further one commits it.
const WAITING_MAX: usize = 1024;

/// A file that may have something to commit.
pub(super) trait Pending: Send + Sync {
    fn id(&self) -> NodeId;
    /// As the log names it.
    fn path(&self) -> &[u8];
    fn commit(&self) -> Result<(), Errno>;
}

/// The thread and what it has to do. Dropping it commits everything.
pub(super) struct Committer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something is due earlier than was known.
    sooner: Condvar,
}

#[derive(Default)]
struct State {
    waiting: FxHashMap<NodeId, (Arc<dyn Pending>, Instant)>,
    stopping: bool,
}

impl Committer {
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start() -> io::Result<Committer> {
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("tollgate-commit".into());
        let thread = Mutex::new(Some(thread.spawn(move || own.work())?));
        Ok(Committer { shared, thread })
    }

    /// Something of `file` is to be committed, at once if it was closed.
    pub(super) fn changed(&self, file: &Arc<dyn Pending>, closed: bool) {
        let now = Instant::now();
        let due = if closed { now } else { now + DELAY };
        let mut state = self.shared.state.lock();
        if let Some((_, known)) = state.waiting.get_mut(&file.id()) {
            if *known <= due {
                return;
            }
            *known = due;
        } else if state.waiting.len() >= WAITING_MAX || state.stopping {
            drop(state);
            commit(&**file);
            return;
        } else {
            state.waiting.insert(file.id(), (Arc::clone(file), due));
        }
        drop(state);
        self.shared.sooner.notify_one();
    }
}

impl Committer {
    /// Commits everything; what is changed later is committed by who changes it.
    pub(super) fn finish(&self) {
        self.shared.state.lock().stopping = true;
        self.shared.sooner.notify_one();
        if let Some(thread) = self.thread.lock().take() {
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
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let earliest = state.waiting.iter().min_by_key(|(_, (_, due))| *due);
            let Some((id, due)) = earliest.map(|(id, (_, due))| (*id, *due)) else {
                if state.stopping {
                    return;
                }
                self.sooner.wait(&mut state);
                continue;
            };
            if due > Instant::now() && !state.stopping {
                self.sooner.wait_until(&mut state, due);
                continue;
            }
            let file = state.waiting.remove(&id);
            drop(state);
            if let Some((file, _)) = file {
                commit(&*file);
            }
            state = self.state.lock();
        }
    }
}

fn commit(file: &dyn Pending) {
    if let Err(error) = file.commit() {
        let path = file.path().escape_ascii();
        tracing::error!(%path, %error, "what was written to a sealed file is not durable");
    }
}
