//! Items that are queued again and again.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tollgate_topology::CpuId;
use tollgate_wakequeue::sync::{AtomicU64, Ordering};

use crate::item::{Arrival, ItemState, Refusal, Ticket};
use crate::queue::Queue;
use crate::{SubmitError, WaitError, blocking, context};

/// An item of a queue that can be queued again and again.
///
/// It never runs twice at once. Queueing it while it is pending is a no-op that says so; queueing
/// it while it runs runs it once more afterwards. What was stored before a successful queueing is
/// visible to the run. Clones are the same item.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::sync::Arc;
/// use tollgate_workqueue::{Queued, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let queue = runtime.queue("flusher").build()?;
/// let runs = Arc::new(AtomicU32::new(0));
/// let counter = Arc::clone(&runs);
/// let item = queue.item(move || drop(counter.fetch_add(1, Ordering::Relaxed)));
/// assert_eq!(item.queue()?, Queued::Now);
/// item.flush()?;
/// assert_eq!(runs.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Work {
    core: Arc<WorkCore>,
}

/// What queueing an item did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// It is pending now.
    Now,
    /// It was pending already: nothing changed.
    AlreadyPending,
}

pub(crate) struct WorkCore {
    pub(crate) state: ItemState,
    queue: Queue,
    /// Never contended: the state lets one thread run the item.
    body: StdMutex<Box<dyn FnMut() + Send>>,
    panics: AtomicU64,
    last_panic: StdMutex<Option<String>>,
}

impl Work {
    pub(crate) fn new(queue: Queue, body: Box<dyn FnMut() + Send>) -> Self {
        let core = WorkCore {
            state: ItemState::new(),
            queue,
            body: StdMutex::new(body),
            panics: AtomicU64::new(0),
            last_panic: StdMutex::new(None),
        };
        Self { core: Arc::new(core) }
    }

    /// Queues the item.
    ///
    /// # Errors
    /// It is disabled; or its queue is drained, shut down or full.
    pub fn queue(&self) -> Result<Queued, SubmitError> {
        self.queue_near(None)
    }

    /// Queues the item as if it was issued on this CPU.
    ///
    /// # Errors
    /// As [`queue`](Self::queue); or the CPU is not in the queue's mask.
    pub fn queue_on(&self, cpu: CpuId) -> Result<Queued, SubmitError> {
        self.core.queue.check_cpu(cpu)?;
        self.queue_near(Some(cpu))
    }

    fn queue_near(&self, cpu: Option<CpuId>) -> Result<Queued, SubmitError> {
        match self.core.state.queue(false) {
            Ok(ticket) => self.core.deliver(ticket, cpu).map(|()| Queued::Now),
            Err(Refusal::AlreadyPending) => Ok(Queued::AlreadyPending),
            Err(Refusal::Disabled) => Err(SubmitError::Disabled),
        }
    }

    /// Queues the item after `delay`. It is pending from now on.
    ///
    /// # Errors
    /// As [`queue`](Self::queue) (a queue that refuses when the time has come drops the item
    /// silently, as nobody is there to tell); too many items are delayed; the delay is absurd.
    pub fn queue_delayed(&self, delay: Duration) -> Result<Queued, SubmitError> {
        self.core.queue.check_open()?;
        match self.core.state.queue(true) {
            Ok(ticket) => self.core.delay(delay, ticket).map(|()| Queued::Now),
            Err(Refusal::AlreadyPending) => Ok(Queued::AlreadyPending),
            Err(Refusal::Disabled) => Err(SubmitError::Disabled),
        }
    }

    /// Makes the item run after `delay` from now, whether it was pending or not. True when it was.
    ///
    /// # Errors
    /// As [`queue_delayed`](Self::queue_delayed). The item is not pending afterwards.
    pub fn modify_delay(&self, delay: Duration) -> Result<bool, SubmitError> {
        self.core.queue.check_open()?;
        match self.core.state.requeue(true) {
            Ok((ticket, was_pending)) => self.core.delay(delay, ticket).map(|()| was_pending),
            Err(_) => Err(SubmitError::Disabled),
        }
    }

    /// Waits until the latest queueing so far has been run or cancelled. A delayed item is queued
    /// at once. False when the item was neither pending nor running.
    ///
    /// # Errors
    /// From inside the item itself; the queue refuses a delayed item.
    pub fn flush(&self) -> Result<bool, WaitError> {
        self.not_inside("flush")?;
        let promoted = self.core.state.promote();
        if let Some(ticket) = promoted {
            self.core.deliver(ticket, None)?;
        }
        Ok(blocking(|| self.core.state.wait_for_latest()) || promoted.is_some())
    }

    /// Makes the item not pending. True when it was. A run that began goes on.
    #[must_use = "false says that it was not pending"]
    pub fn cancel(&self) -> bool {
        self.core.state.cancel()
    }

    /// Makes the item not pending, and waits for a run that began. Until that has ended the item
    /// cannot be queued. True when it was pending.
    ///
    /// # Errors
    /// From inside the item itself; disabled too often.
    pub fn cancel_sync(&self) -> Result<bool, WaitError> {
        let was_pending = self.disable_sync()?;
        // Undoes the disable of the line before, so it cannot be out of balance.
        self.enable()?;
        Ok(was_pending)
    }

    /// Makes the item not pending, and refuses to have it queued until it is enabled as often.
    /// True when it was pending.
    ///
    /// # Errors
    /// Disabled 255 times already.
    pub fn disable(&self) -> Result<bool, WaitError> {
        self.core.state.disable().map_err(|()| WaitError::DisabledTooOften)
    }

    /// As [`disable`](Self::disable), and waits for a run that began.
    ///
    /// # Errors
    /// From inside the item itself; disabled 255 times already.
    pub fn disable_sync(&self) -> Result<bool, WaitError> {
        self.not_inside("cancel_sync or disable_sync")?;
        let was_pending = self.disable()?;
        if self.core.state.is_running() {
            blocking(|| self.core.state.wait_until_not_running());
        }
        Ok(was_pending)
    }

    /// Undoes one [`disable`](Self::disable).
    ///
    /// # Errors
    /// It is not disabled.
    pub fn enable(&self) -> Result<(), WaitError> {
        self.core.state.enable().map_err(|()| WaitError::NotDisabled)
    }

    /// Whether it waits to be run, in the queue or for its time.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.core.state.is_pending()
    }

    /// Whether it runs now.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.core.state.is_running()
    }

    /// How often it panicked, and the message of the last time when that was text.
    #[must_use]
    pub fn panics(&self) -> (u64, Option<String>) {
        let message = self.core.last_panic.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.core.panics.load(Ordering::Relaxed), message)
    }

    fn not_inside(&self, operation: &'static str) -> Result<(), WaitError> {
        if context::is_inside_item(&self.core.state) {
            return Err(WaitError::InsideItem { operation });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pending, running) = (self.is_pending(), self.is_running());
        f.debug_struct("Work").field("pending", &pending).field("running", &running).finish()
    }
}

impl WorkCore {
    /// Sends a ticket on its way to a worker. When that is refused the item is not pending.
    fn deliver(self: &Arc<Self>, ticket: Ticket, cpu: Option<CpuId>) -> Result<(), SubmitError> {
        let work = Arc::clone(self);
        let sent = self.queue.core().submit(move || work.arrive(ticket), cpu);
        sent.inspect_err(|_| {
            self.state.cancel();
        })
    }

    /// As `deliver`, where nobody can be told of a refusal.
    pub(crate) fn deliver_or_cancel(self: &Arc<Self>, ticket: Ticket) {
        if let Err(error) = self.deliver(ticket, None) {
            tracing::debug!(%error, "a delayed item was not queued");
        }
    }

    fn delay(self: &Arc<Self>, delay: Duration, ticket: Ticket) -> Result<(), SubmitError> {
        let sent = self.queue.keeper().delay(delay, self, ticket);
        sent.inspect_err(|_| {
            self.state.cancel();
        })
    }

    /// A ticket reached a worker.
    fn arrive(self: Arc<Self>, ticket: Ticket) {
        if self.state.begin(ticket) != Arrival::Run {
            return;
        }
        context::set_item(Some(&self.state));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (self.body.lock().unwrap_or_else(PoisonError::into_inner))();
        }));
        context::set_item(None);
        if let Err(panic) = outcome {
            self.note_panic(panic);
        }
        if let Some(deferred) = self.state.end() {
            self.deliver_or_cancel(deferred);
        }
    }

    fn note_panic(&self, panic: Box<dyn std::any::Any + Send>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.queue.core().count_panic();
        let message = crate::Panic::new(panic).message().map(str::to_owned);
        *self.last_panic.lock().unwrap_or_else(PoisonError::into_inner) = message;
    }
}
