//! The result of an item, to be waited for or awaited.

#![expect(unsafe_code, reason = "the result is handed over by a state word")]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate_wakequeue::Patience;
use tollgate_wakequeue::sync::{Arc, Futex, Mutex, Ordering, UnsafeCell};

use crate::{JoinError, blocking};

const DONE: u32 = 1;
/// A thread sleeps on the state.
const SLEEPER: u32 = 2;
/// A task left its waker.
const WAKER: u32 = 4;

/// How long a waiting thread looks before it sleeps: as long as a sleeping worker takes to wake up
/// and answer, so that only one of the two has to be woken.
const SPIN: Duration = Duration::from_micros(50);

/// The result of an item that was spawned. Dropping it does not stop the item.
///
/// Wait for it with [`wait`](Self::wait), or `.await` it under any executor.
#[must_use = "without a handle nobody learns of the result; use post() for that"]
pub struct Handle<T> {
    packet: Arc<Packet<T>>,
}

struct Packet<T> {
    state: Futex,
    result: UnsafeCell<Option<Result<T, JoinError>>>,
    waker: Mutex<Option<Waker>>,
}

// SAFETY: `result` is written once, before DONE is set, and taken by the one handle after it saw
// DONE; the value crosses threads, hence `T: Send`.
unsafe impl<T: Send> Send for Packet<T> {}
// SAFETY: as above; `&Packet` gives no `&T`.
unsafe impl<T: Send> Sync for Packet<T> {}

/// The other end: completes the handle, at the latest when it is dropped.
pub(crate) struct Completer<T: Send>(Option<Arc<Packet<T>>>);

impl<T: Send> Handle<T> {
    pub(crate) fn new() -> (Self, Completer<T>) {
        let packet = Arc::new(Packet {
            state: Futex::new(0),
            result: UnsafeCell::new(None),
            waker: Mutex::new(None),
        });
        (Self { packet: Arc::clone(&packet) }, Completer(Some(packet)))
    }

    /// Whether [`wait`](Self::wait) would return at once.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.packet.is_done()
    }

    /// Waits for the item. Inside another item this is a [`blocking`] section.
    ///
    /// # Errors
    /// The item panicked, or was dropped without being run.
    pub fn wait(self) -> Result<T, JoinError> {
        let mut patience = Patience::new(SPIN);
        while !self.packet.is_done() && patience.wait_a_little() {}
        if !self.packet.is_done() {
            blocking(|| self.packet.sleep());
        }
        self.packet.take()
    }
}

impl<T: Send> Future for Handle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let packet = &self.packet;
        if !packet.is_done() {
            let mut waker = packet.waker.lock();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
            drop(waker);
            if packet.state.word().fetch_or(WAKER, Ordering::AcqRel) & DONE == 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(packet.take())
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let done = self.packet.state.word().load(Ordering::Acquire) & DONE != 0;
        f.debug_struct("Handle").field("finished", &done).finish()
    }
}

impl<T> Packet<T> {
    fn is_done(&self) -> bool {
        self.state.word().load(Ordering::Acquire) & DONE != 0
    }

    fn sleep(&self) {
        let mut state = self.state.word().fetch_or(SLEEPER, Ordering::AcqRel) | SLEEPER;
        while state & DONE == 0 {
            self.state.wait(state, None);
            state = self.state.word().load(Ordering::Acquire);
        }
    }

    fn take(&self) -> Result<T, JoinError> {
        debug_assert!(self.is_done());
        // SAFETY: DONE was seen with acquire, so the writer is through; only the one handle takes,
        // and it is borrowed exclusively or consumed by its callers.
        let result = self.result.with_mut(|result| unsafe { (*result).take() });
        result.expect("a handle must not be polled after it was ready")
    }

    fn complete(&self, result: Result<T, JoinError>) {
        // SAFETY: there is one completer and it completes once; nobody reads before DONE.
        self.result.with_mut(|place| unsafe { *place = Some(result) });
        let before = self.state.word().fetch_or(DONE, Ordering::AcqRel);
        if before & SLEEPER != 0 {
            self.state.wake(i32::MAX);
        }
        if before & WAKER != 0 {
            let waker = self.waker.lock().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T: Send> Completer<T> {
    pub(crate) fn complete(mut self, result: Result<T, JoinError>) {
        if let Some(packet) = self.0.take() {
            packet.complete(result);
        }
    }
}

impl<T: Send> Drop for Completer<T> {
    fn drop(&mut self) {
        if let Some(packet) = self.0.take() {
            packet.complete(Err(JoinError::Cancelled));
        }
    }
}
