//! Waiting: for tasks to be counted as done, and for a future from outside of any runtime.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// A sample that takes longer is an error: a task was lost.
const DEADLINE: Duration = Duration::from_secs(60);

/// How often a thread that waits for a count looks at it. Short beside any sample, and long enough
/// to leave the CPU to the workers.
const POLL: Duration = Duration::from_micros(50);

/// Parts of the count; a worker has one of its own while there are fewer workers than parts.
const SLOT_COUNT: usize = 64;

#[repr(align(128))]
struct Slot(AtomicU64);

static SLOTS: [Slot; SLOT_COUNT] = [const { Slot(AtomicU64::new(0)) }; SLOT_COUNT];
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SLOT_COUNT);
}

/// Counts one more task of the running sample as done.
pub(super) fn mark_done() {
    SLOTS[MINE.get()].0.fetch_add(1, Ordering::Release);
}

/// Waits until jobs hold no more references to their pool than the caller's `held`: a pool must not
/// be dropped by one of its own jobs.
pub(super) fn until_released<P>(pool: &Arc<P>, held: usize) {
    while Arc::strong_count(pool) > held {
        thread::sleep(POLL);
    }
}

/// How many tasks have been counted since some point in time.
pub(super) struct Count(u64);

impl Count {
    /// Counts from now.
    pub(super) fn start() -> Self {
        Self(total())
    }

    /// Waits until `tasks` tasks have been counted, without keeping a CPU busy.
    ///
    /// # Errors
    /// When they have not been within a minute: the pool lost some.
    pub(super) fn wait(&self, tasks: u64) -> Result<()> {
        let start = Instant::now();
        while total() - self.0 < tasks {
            if start.elapsed() > DEADLINE {
                bail!("{} of {tasks} tasks were done within {DEADLINE:?}", total() - self.0);
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

fn total() -> u64 {
    SLOTS.iter().map(|slot| slot.0.load(Ordering::Acquire)).sum()
}

struct Signal {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

thread_local! {
    static SIGNAL: Arc<Signal> =
        Arc::new(Signal { woken: AtomicBool::new(false), thread: thread::current() });
}

/// Drives `future` on this thread, which spins for `spin` before it parks: a pool whose tasks are
/// futures is not charged for a wake-up that its user could avoid.
pub(super) fn block_on<T>(spin: Duration, future: impl Future<Output = T>) -> T {
    let signal = SIGNAL.with(Arc::clone);
    let waker = Waker::from(Arc::clone(&signal));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let start = Instant::now();
        while !signal.woken.swap(false, Ordering::Acquire) {
            if start.elapsed() < spin {
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_on_spins_and_parks() {
        for delay_us in [0, 1, 5_000] {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let other = thread::spawn(move || {
                thread::sleep(Duration::from_micros(delay_us));
                sender.send(7)
            });
            assert_eq!(block_on(Duration::from_micros(50), receiver), Ok(7));
            other.join().expect("no panic").expect("received");
        }
    }
}
