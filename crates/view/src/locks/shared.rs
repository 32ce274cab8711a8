//! The threads that wait for locks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;

use crate::locks::file::{FileLocks, OwnerId};
use crate::locks::grant::{Grant, Granter};
use crate::locks::keeper::Keeper;
use crate::locks::waits::{Wait, Waits};
use crate::patience::Patience;
use crate::shares::Shares;

/// Threads that wait in the kernel for locks at the same time, half of them for one user. Further requests are tried.
const MAX_THREADS: usize = 128;
/// Their stacks, in bytes: little is ever touched.
const STACK: usize = 256 << 10;
/// A signal is repeated after this time: the thread was about to begin its system call.
const REPEAT: Duration = Duration::from_millis(1);
/// How often a lock is tried for which no thread waits in the kernel.
const TRY: Duration = Duration::from_millis(5);

/// What the threads share.
pub(crate) struct Shared {
    pub(crate) waits: Waits,
    pub(crate) granter: Granter,
    pub(crate) keeper: Keeper,
    threads: Arc<Shares>,
}

impl Shared {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            waits: Waits::default(),
            granter: Granter::default(),
            keeper: Keeper::new()?,
            threads: Shares::new("threads that wait for locks", MAX_THREADS),
        })
    }

    /// Threads that wait in the kernel.
    pub(crate) fn threads(&self) -> usize {
        self.threads.taken()
    }

    /// `grant` waits, no longer than `patience` lasts.
    pub(crate) fn wait(self: &Arc<Self>, unique: u64, grant: Grant, patience: Option<Patience>) {
        let tried = patience.is_some();
        let wait = Arc::new(Wait::new(unique, grant, patience));
        if let Err(error) = self.waits.begin(&wait) {
            wait.refuse(error);
            return;
        }
        if tried || !self.spawn(&wait) {
            wait.tried.store(true, Ordering::SeqCst);
            self.nudge();
        }
        // After the wait can be found: a signal before that left a mark, one after it finds the
        // wait.
        if wait.was_interrupted() {
            self.cancel(&wait);
        }
    }

    pub(crate) fn cancel(self: &Arc<Self>, wait: &Wait) {
        wait.cancel();
        self.nudge();
    }

    /// Something changed for who is tried: a lock ended, a wait began or was cancelled.
    pub(crate) fn nudge(self: &Arc<Self>) {
        if self.keeper.starts() {
            let shared = Arc::clone(self);
            let builder = std::thread::Builder::new().name("tollgate-locks".to_owned());
            if let Err(error) = builder.spawn(move || shared.keep()) {
                self.keeper.did_not_start();
                tracing::error!(%error, "no thread for locks that wait");
                self.refuse_tried();
            }
        }
        self.keeper.ring();
    }

    /// Owner `id` has another description of `file` than before: its threads are to wait on that.
    pub(crate) fn leave(self: &Arc<Self>, file: &Arc<FileLocks>, id: OwnerId) {
        for wait in self.waits.all() {
            if wait.ask.id == id && Arc::ptr_eq(&wait.file, file) {
                wait.leave();
            }
        }
        self.nudge();
    }

    /// A lock of `id` on `file` is taken: it ends with its process, whose end the kernel may not
    /// report.
    pub(crate) fn watch(self: &Arc<Self>, file: &Arc<FileLocks>, id: OwnerId) {
        if let Some(process) = file.life(id)
            && self.keeper.watch(file, id, process)
        {
            self.nudge();
        }
    }

    /// A lock is there that somebody else's was in the way of.
    pub(crate) fn give(self: &Arc<Self>, grant: Grant) {
        self.watch(&grant.file, grant.ask.id);
        self.granter.give(grant);
    }

    /// No thread would try them, or hear of a signal: also those that came while it was taken to be on its
    /// way.
    fn refuse_tried(self: &Arc<Self>) {
        for wait in self.waits.all().iter().filter(|wait| wait.is_tried()) {
            let would_wait = wait.patience.is_none();
            self.finish(wait, Err(if would_wait { Errno::NOLCK } else { Errno::AGAIN }));
        }
    }

    /// Tries locks that no thread waits for, repeats signals that came too early, and notices the
    /// end of processes, until the view goes and nothing waits any more.
    fn keep(self: &Arc<Self>) {
        tollgate_fuse::blocking::prepare_thread();
        while !(self.keeper.has_ended() && self.waits.len() == 0) {
            self.keeper.look_at_lives();
            let pause = self.waits.all().iter().filter_map(|wait| self.look_at(wait)).min();
            self.keeper.sleep(pause);
        }
    }

    /// Looks at one wait; returns when to look again, if time alone changes anything.
    fn look_at(self: &Arc<Self>, wait: &Wait) -> Option<Duration> {
        if !wait.is_tried() {
            return wait.has_to_wake().then(|| {
                wait.wake();
                REPEAT
            });
        }
        if wait.is_cancelled() {
            self.finish(wait, Err(Errno::INTR));
            return None;
        }
        // Before it is tried for the last time: what was served by now has its effect.
        let over = wait.patience.as_ref().is_some_and(Patience::is_over);
        let result = wait.file.set_if_open(&wait.ask).unwrap_or(Err(Errno::NOLCK));
        if result == Err(Errno::AGAIN) && !over {
            return Some(if wait.patience.is_some() { REPEAT } else { TRY });
        }
        self.finish(wait, result);
        None
    }

    /// Starts a thread that waits in the kernel; `false` if there are too many, of this user or of
    /// all.
    fn spawn(self: &Arc<Self>, wait: &Arc<Wait>) -> bool {
        let Some(slot) = self.threads.take(wait.ask.uid) else { return false };
        let (shared, wait) = (Arc::clone(self), Arc::clone(wait));
        let builder = std::thread::Builder::new().name("tollgate-lock".to_owned());
        let spawned = builder.stack_size(STACK).spawn(move || {
            tollgate_fuse::blocking::prepare_thread();
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            wait.thread.store(thread, Ordering::SeqCst);
            let result = wait_in_kernel(&wait);
            wait.thread.store(0, Ordering::SeqCst);
            shared.finish(&wait, result);
            drop(slot);
        });
        spawned.is_ok()
    }

    /// Answers a request that waited.
    fn finish(self: &Arc<Self>, wait: &Wait, result: Result<(), Errno>) {
        let Some(grant) = self.waits.end(wait) else { return };
        match result {
            Ok(()) => self.give(grant),
            Err(error) => grant.refuse(error),
        }
    }
}

/// Waits until the lock is there or the wait is cancelled.
fn wait_in_kernel(wait: &Wait) -> Result<(), Errno> {
    while !wait.is_cancelled() {
        let description = wait.left.fetch(|| wait.file.description(wait.ask.id));
        let description = description.ok_or(Errno::NOLCK)?;
        match description.wait(&wait.ask.wanted) {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        // It may be the last user of a description that was replaced meanwhile.
        drop(description);
        // Once more, together with the note of it: what another thread of the owner unlocked in
        // between is not locked any more.
        match wait.file.set_waited(&wait.ask) {
            // A signal that was to end the system call before may end this one.
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::INTR)
}
