//! Items that are queued again and again.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use tollgate_topology::CpuId;
use tollgate_wakequeue::sync::{AtomicU64, Ordering};

use crate::blocking::blocking;
use crate::context;
use crate::core::QueueCore;
use crate::deferral::{Deferral, Found};
use crate::error::{Panic, SubmitError, WaitError};
use crate::item::{Arrival, ItemState, Latest, Refusal, Ticket};
use crate::job::Tag;
use crate::observation::Observation;
use crate::queue::Queue;
use crate::queue_ref::QueueRef;
use crate::run;
use crate::timer::{Delayed, Entry, Leftover, Seen, TimerKey};
use crate::whereabouts::Whereabouts;

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

struct WorkCore {
    state: ItemState,
    queue: Queue,
    /// Never contended: the state lets one thread run the item.
    body: StdMutex<Box<dyn FnMut() + Send>>,
    /// For a ticket that arrives while the item runs.
    deferral: Deferral<Deferred>,
    /// Where in the timer it waits.
    whereabouts: Whereabouts<TimerKey>,
    panics: AtomicU64,
    last_panic: StdMutex<Option<String>>,
}

/// What the running item's worker will queue a ticket again with: the count and the place of the
/// job that brought it. A flush that waits for that job waits for the later run.
struct Deferred {
    tag: Tag,
    seen: Seen,
}

impl Queue {
    /// Makes an item that can be queued again and again.
    pub fn item(&self, body: impl FnMut() + Send + 'static) -> Work {
        Work::new(self.clone(), Box::new(body))
    }
}

impl Work {
    fn new(queue: Queue, body: Box<dyn FnMut() + Send>) -> Self {
        let core = WorkCore {
            state: ItemState::new(),
            queue,
            body: StdMutex::new(body),
            deferral: Deferral::new(),
            whereabouts: Whereabouts::new(),
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
        // One that is pending would say only that.
        self.core.queue.check_process();
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

    /// Queues the item after `delay`, near the CPU that this is called on. It is pending from now
    /// on.
    ///
    /// # Errors
    /// As [`queue`](Self::queue); too many items are delayed; the delay is absurd. When the queue
    /// is drained by the time that the delay is over, the item is not run: that is counted as
    /// `refused` in [`monitor`](crate::Runtime::monitor) and logged.
    pub fn queue_delayed(&self, delay: Duration) -> Result<Queued, SubmitError> {
        self.delay_near(self.core.queue().pool().current_cpu(), delay)
    }

    /// As [`queue_delayed`](Self::queue_delayed), as if called on `cpu`.
    ///
    /// # Errors
    /// As [`queue_delayed`](Self::queue_delayed); or the CPU is not in the queue's mask.
    pub fn queue_delayed_on(&self, cpu: CpuId, delay: Duration) -> Result<Queued, SubmitError> {
        self.core.queue.check_cpu(cpu)?;
        self.delay_near(cpu, delay)
    }

    fn delay_near(&self, cpu: CpuId, delay: Duration) -> Result<Queued, SubmitError> {
        self.core.queue.check_open()?;
        self.core.delay(when(delay)?, cpu, || match self.core.state.queue(true) {
            Ok(ticket) => Ok((ticket, Queued::Now)),
            Err(Refusal::AlreadyPending) => Err(Ok(Queued::AlreadyPending)),
            Err(Refusal::Disabled) => Err(Err(SubmitError::Disabled)),
        })
    }

    /// Makes the item run after `delay` from now, whether it was pending or not. True when it was.
    ///
    /// # Errors
    /// As [`queue_delayed`](Self::queue_delayed). The item is not pending afterwards.
    pub fn modify_delay(&self, delay: Duration) -> Result<bool, SubmitError> {
        let when = match self.core.queue.check_open().and_then(|()| when(delay)) {
            Ok(when) => when,
            Err(refused) => {
                let _ = self.cancel();
                return Err(refused);
            }
        };
        let here = self.core.queue().pool().current_cpu();
        let requeue = || self.core.state.requeue(true).map_err(|_| Err(SubmitError::Disabled));
        // Of a delay that is refused, the entry before it is still there.
        self.core.delay(when, here, requeue).inspect_err(|_| self.core.leave_timer())
    }

    /// Waits until the latest queueing so far has been run or cancelled. A delayed item is queued at once.
    /// Where another thread calls [`modify_delay`](Self::modify_delay) meanwhile, or flushes the item while
    /// it is delayed, a later queueing takes its place, and the wait is over, too.
    ///
    /// True when there was a queueing to wait for. It says that the item has run since only where no
    /// other thread cancels, delays or flushes it meanwhile, or queues it and is refused: that thread
    /// alone is told. False when the item was neither pending nor running.
    ///
    /// # Errors
    /// From inside the item itself; the queue refuses a delayed item, being full or drained. The
    /// item then goes on waiting for its time.
    pub fn flush(&self) -> Result<bool, WaitError> {
        self.not_inside("flush")?;
        let mut waited = false;
        loop {
            waited |= self.core.hasten()?;
            match blocking(|| self.core.state.wait_for_latest()) {
                Latest::Nothing => return Ok(waited),
                Latest::Over => return Ok(true),
                // Somebody has delayed it since, or another flush was refused.
                Latest::Delayed => {}
            }
        }
    }

    /// Makes the item not pending. True when it was. A run that began goes on.
    #[must_use = "false says that it was not pending"]
    pub fn cancel(&self) -> bool {
        self.core.queue.check_process();
        let was_pending = self.core.state.cancel();
        self.core.leave_timer();
        was_pending
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
        self.core.queue.check_process();
        let disabled = self.core.state.disable().map_err(|()| WaitError::DisabledTooOften);
        self.core.leave_timer();
        disabled
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
        self.core.queue.check_process();
        self.core.state.enable().map_err(|()| WaitError::NotDisabled)
    }

    /// Whether it waits to be run, in the queue or for its time.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.core.queue.check_process();
        self.core.state.is_pending()
    }

    /// Whether it runs now.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.core.queue.check_process();
        self.core.state.is_running()
    }

    /// How often it panicked, and the message of the last time when that was text.
    #[must_use]
    pub fn panics(&self) -> (u64, Option<String>) {
        self.core.queue.check_process();
        let message = self.core.last_panic.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.core.panics.load(Ordering::Relaxed), message)
    }

    fn not_inside(&self, operation: &'static str) -> Result<(), WaitError> {
        self.core.queue.check_process();
        if context::is_inside_item(&self.core.state) {
            return Err(WaitError::InsideItem { operation });
        }
        Ok(())
    }
}

/// When a delay from now is over.
fn when(delay: Duration) -> Result<Instant, SubmitError> {
    Instant::now().checked_add(delay).ok_or(SubmitError::Delay(delay))
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pending, running) = (self.core.state.is_pending(), self.core.state.is_running());
        f.debug_struct("Work").field("pending", &pending).field("running", &running).finish()
    }
}

impl WorkCore {
    fn queue(&self) -> &QueueCore {
        self.queue.core()
    }

    /// Sends a ticket on its way to a worker. When that is refused this queueing did not happen; where
    /// somebody was told that the item is pending by it, only a drained queue refuses it.
    fn deliver(self: &Arc<Self>, ticket: Ticket, cpu: Option<CpuId>) -> Result<(), SubmitError> {
        let Err(refused) = self.send(ticket, cpu) else { return Ok(()) };
        if self.state.withdraw_unless_relied_on(ticket) {
            return Err(refused);
        }
        if !matches!(refused, SubmitError::Full { .. }) {
            self.count_refused(ticket);
            return Err(refused);
        }
        let near = cpu.unwrap_or_else(|| self.queue().pool().current_cpu());
        let seen = Observation::of(&self.queue().observed);
        let may_during_drain = context::belongs_to_queue(self.queue());
        let mut refused = None;
        let make = |work: Arc<Self>, is_drained: bool| {
            let is_refused = is_drained && !may_during_drain;
            if is_refused {
                // Before anybody is told: who queues it after that must not find it pending.
                work.count_refused(ticket);
                refused = Some(SubmitError::Drained(work.queue.name()));
            }
            move || if is_refused { context::nothing_ran() } else { work.arrive(ticket, seen) }
        };
        let sent = self.queue().submit_always(Arc::clone(self), make, near);
        sent.map_err(|_| {
            self.state.withdraw(ticket);
            SubmitError::ShutDown(self.queue.name())
        })?;
        refused.map_or(Ok(()), Err)
    }

    fn send(self: &Arc<Self>, ticket: Ticket, cpu: Option<CpuId>) -> Result<(), SubmitError> {
        let (work, seen) = (Arc::clone(self), Observation::of(&self.queue().observed));
        self.queue().submit(move || work.arrive(ticket, seen), cpu)
    }

    /// Queues the item at once if it waits for its time; false if not. When that is refused, it
    /// waits for its time as before.
    fn hasten(self: &Arc<Self>) -> Result<bool, SubmitError> {
        let Some(ticket) = self.state.promote() else { return Ok(false) };
        let waited = self.take_out_of_timer();
        if let Err(refused) = self.send(ticket, None) {
            self.delay_again(ticket, waited);
            return Err(refused);
        }
        Ok(true)
    }

    fn delay_again(self: &Arc<Self>, ticket: Ticket, waited: Option<(TimerKey, Entry)>) {
        let timer = &self.queue.shared().timer;
        // Its time may have come just now, and what came of that found a stale ticket.
        let (key, entry) = waited.unwrap_or_else(|| {
            let near = self.queue().pool().current_cpu();
            (timer.key_for(Instant::now()), self.entry(ticket, near))
        });
        let put = self.whereabouts.put(|_| {
            if !self.state.delay_again(ticket) {
                return Err(());
            }
            Ok((ticket, key, timer.put_back(key, Entry { ticket, ..entry })))
        });
        if let Ok((stale, is_first)) = put {
            // Who learns of the end of the runtime here has an error already.
            let _ = self.delayed(ticket, stale, is_first);
        }
    }

    /// Has the item wait in the timer, under the ticket that `issue` gives, or does what that says.
    fn delay<R>(
        self: &Arc<Self>,
        when: Instant,
        near: CpuId,
        issue: impl FnOnce() -> Result<(Ticket, R), Result<R, SubmitError>>,
    ) -> Result<R, SubmitError> {
        let timer = &self.queue.shared().timer;
        let mut older = None;
        let put = self.whereabouts.put(|noted| {
            let (ticket, issued) = issue()?;
            let added;
            (added, older) = timer.add(when, self.entry(ticket, near), noted);
            let (key, is_first) = match added {
                Err(refused) if self.state.withdraw_unless_relied_on(ticket) => {
                    return Err(Err(refused));
                }
                // There is one of these for each item.
                Err(_) => {
                    let key = timer.key_for(when);
                    (key, timer.put_back(key, self.entry(ticket, near)))
                }
                Ok(added) => added,
            };
            Ok((ticket, key, (ticket, issued, is_first)))
        });
        drop(older);
        match put {
            Err(outcome) => outcome,
            Ok((stale, (ticket, issued, is_first))) => {
                self.delayed(ticket, stale, is_first).map(|()| issued)
            }
        }
    }

    fn entry(self: &Arc<Self>, ticket: Ticket, near: CpuId) -> Entry {
        let item: Arc<dyn Delayed> = Arc::<Self>::clone(self);
        Entry { item, ticket, near, seen: Observation::of(&self.queue().observed) }
    }

    /// The ticket is in the timer, and an older entry of the item has to go from there.
    fn delayed(
        &self,
        ticket: Ticket,
        stale: Option<TimerKey>,
        is_first: bool,
    ) -> Result<(), SubmitError> {
        let shared = self.queue.shared();
        if is_first {
            shared.alarm.ring();
        }
        drop(stale.and_then(|key| shared.timer.remove(key)));
        if shared.is_shut_down() {
            // Nobody looks at the timer any more.
            self.state.withdraw(ticket);
            self.leave_timer();
            return Err(SubmitError::ShutDown(self.queue.name()));
        }
        Ok(())
    }

    /// Takes the item out of the timer if it does not wait for its time any more, so that what it
    /// owns can be dropped.
    fn leave_timer(&self) {
        drop(self.take_out_of_timer());
    }

    fn take_out_of_timer(&self) -> Option<(TimerKey, Entry)> {
        let key = self.whereabouts.leave(&self.state)?;
        self.queue.shared().timer.remove(key).map(|entry| (key, entry))
    }

    /// A ticket reached a worker.
    fn arrive(self: Arc<Self>, ticket: Ticket, mut seen: Seen) {
        let arrival = match self.state.begin(ticket, false) {
            Arrival::Busy => self.arrive_while_running(ticket, &mut seen),
            other => other,
        };
        match arrival {
            Arrival::Run => {}
            Arrival::Stale => return context::nothing_ran(),
            Arrival::Deferred | Arrival::Busy => return,
        }
        match seen {
            None => self.run(),
            Some(seen) => seen.run(&self.queue().observed, &self.queue().name(), || self.run()),
        }
        match self.deferral.end(&self.state) {
            Some(Found::Due(ticket, deferred)) => self.queue_again(ticket, deferred),
            Some(Found::Cancelled(deferred)) => self.count_out(&deferred),
            None => {}
        }
    }

    fn run(&self) {
        context::set_item(Some(&self.state));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (self.body.lock().unwrap_or_else(PoisonError::into_inner))();
        }));
        if let Err(panic) = outcome {
            // Inside the item still, so that a hook cannot wait for it.
            self.note_panic(panic);
        }
        context::set_item(None);
    }

    /// Leaves the ticket to whoever runs the item, with the count of this job.
    #[cold]
    fn arrive_while_running(&self, ticket: Ticket, seen: &mut Seen) -> Arrival {
        let (arrival, cancelled) = self.deferral.leave(&self.state, ticket, || {
            let tag = context::current_tag()?;
            context::keep_count();
            Some(Deferred { tag, seen: seen.take() })
        });
        if let Some(cancelled) = cancelled {
            self.count_out(&cancelled);
        }
        arrival
    }

    /// Queues the ticket that arrived during the run.
    #[cold]
    fn queue_again(self: &Arc<Self>, ticket: Ticket, deferred: Deferred) {
        let (work, Deferred { tag, seen }) = (Arc::clone(self), deferred);
        self.queue().submit_again(move || work.arrive(ticket, seen), tag);
    }

    /// What was to run later was cancelled.
    #[cold]
    fn count_out(&self, deferred: &Deferred) {
        let core = self.queue();
        core.turn_away(context::counter_slot(core.runtime), deferred.tag.phase());
    }

    /// The delay was over while the queue was drained. Told on a worker, which may drop the item.
    fn refuse(&self, ticket: Ticket) {
        context::nothing_ran();
        if self.state.is_current(ticket) {
            self.count_refused(ticket);
        }
    }

    /// Nobody hears that this ticket is refused but the log and the counters.
    fn count_refused(&self, ticket: Ticket) {
        self.state.withdraw(ticket);
        let core = self.queue();
        core.stats.refused.fetch_add(1, Ordering::Relaxed);
        let queue = core.name();
        tracing::warn!(queue, "an item was not run: its queue is drained");
    }

    fn note_panic(&self, panic: Box<dyn std::any::Any + Send>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.queue.core().count_panic();
        let panic = Panic::new(panic);
        let message = panic.message().map(str::to_owned);
        *self.last_panic.lock().unwrap_or_else(PoisonError::into_inner) = message;
        self.queue.core().report_panic(&panic);
    }
}

impl Delayed for WorkCore {
    fn awaits_timer(&self, ticket: Ticket) -> bool {
        self.state.awaits_timer(ticket)
    }

    fn due(self: Arc<Self>, ticket: Ticket, near: CpuId, mut seen: Seen) -> Option<Leftover> {
        // By pointer, because the item, which holds the queue, is given away.
        let queue = QueueRef::of(self.queue.core());
        if let Some(seen) = &mut seen {
            seen.restart();
        }
        let make = move |(work, seen): (Arc<Self>, Seen), is_drained: bool| {
            if !is_drained {
                // From here on it is queued like any other item, wherever it waits for a worker. One
                // that was cancelled just now is stale when it arrives, and a worker drops it.
                work.state.expire(ticket);
            }
            move || if is_drained { work.refuse(ticket) } else { work.arrive(ticket, seen) }
        };
        let (work, seen) = queue.core().submit_always((self, seen), make, near).err()?;
        work.state.withdraw(ticket);
        Some(Leftover { queue, owned: Box::new((work, seen)) })
    }

    fn give_up(self: Arc<Self>, ticket: Ticket) {
        self.state.withdraw(ticket);
        let queue = QueueRef::of(self.queue.core());
        run::drop_inside(queue.core(), self);
    }
}
