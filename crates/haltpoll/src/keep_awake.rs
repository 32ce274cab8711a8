//! The crate's face.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::conditions::Roots;
use crate::hook::{Hook, Seen, Shared};
use crate::mode::Mode;
use crate::monitor::{Book, Monitor, NEEDED_MIN};
use crate::status::{State, Status};

/// Keeps CPUs awake during bursts of requests; see the crate's text. Dropping it ends its threads
/// and waits for them; hooks that are left do nothing then.
///
/// Threads: one, named `haltpoll`, and with [`Means::Pollers`](crate::Means::Pollers) up to four
/// more from the first burst on. In [`Mode::Off`], and in [`Mode::Auto`] once it is clear that
/// nothing is to be done, none.
///
/// A process needs one: what it does holds for CPUs, not for its users.
pub struct KeepAwake {
    mode: Mode,
    shared: Arc<Shared>,
    book: Arc<Book>,
    monitor: Option<JoinHandle<()>>,
    /// A fork has the memory but not the threads.
    pid: u32,
}

impl fmt::Debug for KeepAwake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAwake").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl KeepAwake {
    /// Measures what waking a CPU costs, in a thread of its own (2 to 8 ms), and is ready after
    /// that. A thread that cannot be started leaves it off.
    #[must_use]
    pub fn start(mode: Mode) -> Self {
        Self::start_with(mode, Roots::default())
    }

    /// The same with the kernel's files elsewhere.
    #[must_use]
    pub fn start_with(mode: Mode, roots: Roots) -> Self {
        let shared = Arc::new(Shared::new(NEEDED_MIN));
        let pid = std::process::id();
        if mode == Mode::Off {
            let book = Arc::new(Book::new(State::Off, "as asked for"));
            return Self { mode, shared, book, monitor: None, pid };
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
        Self { mode, shared, book, monitor, pid }
    }

    /// A hook for a thread that takes requests. At most 1,024 at a time count; others do nothing.
    #[must_use]
    pub fn hook(&self) -> Hook {
        if self.monitor.is_none() { Hook::inert() } else { Hook::new(&self.shared) }
    }

    /// What it does, and what it has cost.
    #[must_use]
    pub fn status(&self) -> Status {
        let decision = self.book.decision().clone();
        Status {
            mode: self.mode,
            state: decision.state,
            reason: decision.reason,
            wake: decision.wake_ns.map(Duration::from_nanos),
            wake_held: decision.held_ns.map(Duration::from_nanos),
            bursts: self.book.bursts.load(Relaxed),
            awake: Duration::from_nanos(self.book.awake_ns.load(Relaxed)),
            cpu: Duration::from_nanos(self.book.cpu_ns.load(Relaxed)),
            suspended: decision.suspended,
            suspended_for: decision.suspended_for,
        }
    }
}

impl Drop for KeepAwake {
    fn drop(&mut self) {
        let Some(monitor) = self.monitor.take() else { return };
        if self.pid != std::process::id() {
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
