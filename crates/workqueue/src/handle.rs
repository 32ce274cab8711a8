//! The result of an item, to be waited for or awaited.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tollgate_wakequeue::{Patience, Sharing};

use crate::task::Spawned;
use crate::{JoinError, blocking};

/// How long a waiting thread looks before it sleeps: as long as a sleeping worker takes to wake up
/// and answer, so that only one of the two has to be woken.
const SPIN: Duration = Duration::from_micros(50);

thread_local! {
    static SHARING: Cell<Sharing> = const { Cell::new(Sharing::NONE) };
}

/// Looks whether `done` for so long at most.
fn spin(longest: Duration, done: impl Fn() -> bool) -> bool {
    let mut patience = Patience::after(SHARING.get(), longest);
    while !done() && patience.wait_a_little() {}
    let done = done();
    SHARING.set(patience.sharing(!done));
    done
}

/// The result of an item that was spawned. Dropping it does not stop the item, unless
/// [`abort_on_drop`](Self::abort_on_drop) was called.
///
/// Wait for it with [`wait`](Self::wait), or `.await` it under any executor.
#[must_use = "without a handle nobody learns of the result; use post() for that"]
pub struct Handle<T> {
    task: Arc<dyn Spawned<T>>,
    abort_on_drop: bool,
}

impl<T: Send> Handle<T> {
    pub(crate) fn new(task: Arc<dyn Spawned<T>>) -> Self {
        Self { task, abort_on_drop: false }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let done = self.task.packet().is_done();
        if !done {
            self.task.check_process();
        }
        done
    }

    /// Waits for the item.
    ///
    /// Inside another item this helps: an item that nobody has begun, of a queue that shares its
    /// workers with the waiting one and has no limit, is run here and now. So items that wait for
    /// items they spawned come to an end however deep they nest. Any other wait inside an item is a
    /// [`blocking`] section. No unrelated item is run, so what the waiting item has locked cannot
    /// be asked for by anything but the item it waits for.
    ///
    /// # Errors
    /// The item panicked, was aborted, or was dropped without being run.
    pub fn wait(self) -> Result<T, JoinError> {
        let packet = self.task.packet();
        if !packet.is_done() {
            self.task.check_process();
            self.task.run_here();
        }
        if !spin(SPIN, || packet.is_done()) {
            blocking(|| packet.sleep(None));
        }
        packet.result()
    }

    /// As [`wait`](Self::wait), for so long at most. Inside another item this is a [`blocking`]
    /// section; it does not run the item here, which could take longer.
    ///
    /// ```
    /// # let runtime = tollgate_workqueue::Runtime::builder().build()?;
    /// # let queue = runtime.queue("example").build()?;
    /// use std::time::Duration;
    /// let slow = queue.spawn(|| std::thread::sleep(Duration::from_millis(50)))?;
    /// let still = slow.wait_timeout(Duration::from_millis(1)).expect_err("it takes longer");
    /// still.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The time is up: the handle comes back, and the item goes on.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T, JoinError>, Self> {
        // Too far away to be a time is for ever.
        let deadline = Instant::now().checked_add(timeout);
        let packet = self.task.packet();
        if !packet.is_done() {
            self.task.check_process();
        }
        if spin(SPIN.min(timeout), || packet.is_done()) || blocking(|| packet.sleep(deadline)) {
            return Ok(packet.result());
        }
        Err(self)
    }

    /// Stops the item if nobody has begun it: its closure is dropped here and now, and whoever
    /// waits gets [`JoinError::Cancelled`], or [`JoinError::Panicked`] if what the closure owns
    /// panicked when it was dropped. False when it had begun, or was through: then it goes
    /// on.
    ///
    /// Its place in the queue stays taken until its turn would have come.
    pub fn abort(&self) -> bool {
        self.task.check_process();
        self.task.abort()
    }

    /// From now on, dropping the handle [aborts](Self::abort) the item.
    pub fn abort_on_drop(mut self) -> Self {
        self.abort_on_drop = true;
        self
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.abort_on_drop && !self.task.is_copy() {
            self.task.abort();
        }
    }
}

impl<T: Send> Future for Handle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let packet = self.task.packet();
        if !packet.is_done() {
            self.task.check_process();
            if packet.leave_waker(context.waker()) {
                return Poll::Pending;
            }
        }
        Poll::Ready(packet.result())
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("finished", &self.task.packet().is_done()).finish()
    }
}
