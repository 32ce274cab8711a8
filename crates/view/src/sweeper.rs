//! The thread that does what no request should wait for: it drops registrations that nobody used
//! for a while, compares small files that are open with their lower files, and gives memory back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tollgate_fuse::Connection;

use crate::idle::{Idle, LINGER};
use crate::memory::Trim;
use crate::revalidate::OpenSmall;
use crate::table::Node;

/// Owns the thread; dropping it stops the thread.
pub(crate) struct Sweeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    idle: Idle,
    small: OpenSmall,
    /// The thread will look at `small` without being woken.
    looks: AtomicBool,
    connection: OnceLock<Connection>,
    trim: Trim,
    /// There is something to sweep.
    waiting: Mutex<bool>,
    wake: Condvar,
    stop: AtomicBool,
}

impl Sweeper {
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(workers: usize, max_descriptors: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            idle: Idle::new(workers, max_descriptors),
            small: OpenSmall::default(),
            looks: AtomicBool::new(false),
            connection: OnceLock::new(),
            trim: Trim::default(),
            waiting: Mutex::new(false),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("tollgate-sweep".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// `node` was closed for the last time by `worker`, and is on no list.
    pub(crate) fn linger(&self, worker: usize, node: &Arc<Node>) {
        if self.shared.idle.push(worker, node) {
            self.shared.wake_up();
        }
    }

    /// From now on pages can be invalidated.
    pub(crate) fn connected(&self, connection: &Connection) {
        let _ = self.shared.connection.set(connection.clone());
    }

    /// Registrations are dear from now on.
    pub(crate) fn keep_longer(&self) {
        self.shared.idle.keep_longer();
    }

    /// `node` is open as a small file. Under the lock of its `io`.
    pub(crate) fn opened_small(&self, node: &Arc<Node>) {
        self.shared.small.insert(node);
        if !self.shared.looks.swap(true, Ordering::AcqRel) {
            self.shared.wake_up();
        }
    }

    /// `node` is not open as a small file any more. Under the lock of its `io`.
    pub(crate) fn closed_small(&self, node: &Node) {
        self.shared.small.remove(node);
    }

    /// A node was forgotten; after many their memory is given back.
    pub(crate) fn forgotten(&self) {
        if self.shared.trim.count() {
            self.shared.wake_up();
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        {
            let _waiting = self.shared.waiting.lock();
            self.shared.wake.notify_all();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the sweeper thread panicked");
        }
    }
}

impl Shared {
    fn wake_up(&self) {
        *self.waiting.lock() = true;
        self.wake.notify_one();
    }

    /// Returns whether a small file is open.
    fn revalidate(&self) -> bool {
        // Before the look: a file that is opened after it wakes this thread.
        self.looks.store(false, Ordering::Release);
        let Some(connection) = self.connection.get() else { return false };
        let open = self.small.revalidate(connection);
        if open {
            self.looks.store(true, Ordering::Release);
        }
        open
    }

    /// Sleeps without a timeout while there is nothing to sweep.
    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let mut waiting = self.waiting.lock();
            while !*waiting && !self.stop.load(Ordering::Acquire) {
                self.wake.wait(&mut waiting);
            }
            *waiting = false;
            // Sleeps on the condition, so that a stop need not wait for the time to pass.
            let pause = Instant::now() + LINGER;
            while !self.stop.load(Ordering::Acquire) {
                if self.wake.wait_until(&mut waiting, pause).timed_out() {
                    break;
                }
            }
            drop(waiting);
            self.trim.run_if_due();
            if self.idle.sweep() | self.revalidate() {
                *self.waiting.lock() = true;
            }
        }
    }
}
