//! The crate's face.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::book::{Book, Decision};
use crate::conditions::Roots;
use crate::hook::{Hook, Seen, Shared};
use crate::mode::Mode;
use crate::monitor::{Monitor, NEEDED_MIN};
use crate::pollers::PollingTime;
use crate::status::{State, Status};

/// Keeps CPUs awake during bursts of requests; see the crate's text. Dropping it ends its threads
/// and waits for them; hooks that are left do nothing then.
///
/// Threads: one, named `haltpoll`, and with [`Means::Pollers`](crate::Means::Pollers) up to four
/// more from the first burst on. In [`Mode::Off`], and in [`Mode::Auto`] once it is clear that
/// nothing is to be done, none.
///
/// A process needs one: what it does holds for CPUs, not for its users. In a copy of the process
/// (fork) it does nothing, may be dropped, and says so in [`status`](Self::status).
pub struct KeepAwake {
    mode: Mode,
    shared: Arc<Shared>,
    book: Arc<Book>,
    monitor: Option<JoinHandle<()>>,
}

impl fmt::Debug for KeepAwake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAwake").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl KeepAwake {
    /// Measures what waking a CPU costs, in a thread of its own (2 to 25 ms, which begin 150 ms
    /// after the start, so that a program which lives for a moment pays nothing), and is ready
    /// after that. A thread that cannot be started leaves it off.
    #[must_use]
    pub fn start(mode: Mode) -> Self {
        Self::start_with(mode, Roots::default())
    }

    /// The same with the kernel's files elsewhere.
    #[must_use]
    pub fn start_with(mode: Mode, roots: Roots) -> Self {
        let shared = Arc::new(Shared::new(NEEDED_MIN));
        if mode == Mode::Off {
            let book = Arc::new(Book::new(State::Off, "as asked for"));
            return Self { mode, shared, book, monitor: None };
        }
        let book = Arc::new(Book::new(State::Measuring, ""));
        let (seen, times, checked_ns) = (Seen::default(), None, 0);
        let shares = (Arc::clone(&shared), Arc::clone(&book));
        let monitor =
            Monitor { shared: shares.0, book: shares.1, roots, mode, seen, checked_ns, times };
        let thread = std::thread::Builder::new().name("haltpoll".to_owned());
        let monitor = match thread.spawn(move || monitor.run()) {
            Ok(monitor) => Some(monitor),
            Err(error) => {
                book.set(State::Off, format!("its thread could not be started: {error}"));
                None
            }
        };
        Self { mode, shared, book, monitor }
    }

    /// A hook for a thread that takes requests. At most 1,024 at a time count; others do nothing.
    #[must_use]
    pub fn hook(&self) -> Hook {
        let works = self.monitor.is_some() && !self.shared.is_copy();
        if works { Hook::new(&self.shared) } else { Hook::inert() }
    }

    /// CPU time that its pollers have used, also readable after it has ended (then it is 0).
    #[must_use]
    pub fn polling_time(&self) -> PollingTime {
        self.shared.polling.clone()
    }

    /// What it does, and what it has cost.
    #[must_use]
    pub fn status(&self) -> Status {
        let decision = if self.shared.is_copy() {
            Decision::new(
                State::Off,
                "its threads are in the process that this one was copied from",
            )
        } else {
            self.book.decision().clone()
        };
        Status {
            mode: self.mode,
            state: decision.state,
            reason: decision.reason,
            wake: decision.wake_ns.map(Duration::from_nanos),
            wake_held: decision.held_ns.map(Duration::from_nanos),
            lacks_permission: decision.lacks_permission,
            bursts: self.book.bursts.load(Relaxed),
            awake: Duration::from_nanos(self.book.awake_ns.load(Relaxed)),
            cpu: Duration::from_nanos(self.book.cpu_ns.load(Relaxed)),
            suspended: decision.suspended,
            suspended_for: decision.suspended_for,
        }
    }
}

impl Drop for KeepAwake {
    #[expect(clippy::mem_forget, reason = "dropping a handle is what must not happen in a copy")]
    fn drop(&mut self) {
        let Some(monitor) = self.monitor.take() else { return };
        if self.shared.is_copy() {
            // Dropping a handle detaches its thread, which is not here: the C library gives the
            // memory of the parent's threads to new ones, so that would detach somebody else.
            std::mem::forget(monitor);
            return;
        }
        self.stop(&monitor);
        // A panic in it was printed; nothing depends on it.
        let _ = monitor.join();
    }
}

impl KeepAwake {
    #[cfg(not(loom))]
    fn stop(&self, monitor: &JoinHandle<()>) {
        self.shared.state.stop(monitor.thread());
    }

    /// Models build their own threads.
    #[cfg(loom)]
    fn stop(&self, _: &JoinHandle<()>) {}
}
