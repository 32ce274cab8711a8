//! A spawned closure with the place for its result, in one allocation.
//!
//! The job in the queue and the handle share it. Whoever marks it as taken first has the closure:
//! the worker that gets the job and runs it, the waiter that runs it because nobody has begun it,
//! or whoever aborts it. The job of a task that was taken already does nothing, except that a flush
//! must still wait for a waiter that is running the closure: see [`Ticket::arrive`].

#![expect(unsafe_code, reason = "closure and result are handed over by a state word")]

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::compiler_fence;
use std::task::Waker;
use std::time::Instant;

use tollgate_topology::CpuId;
use tollgate_wakequeue::ShardId;
use tollgate_wakequeue::sync::{Futex, Mutex, Ordering, UnsafeCell};

use crate::context::WorkerContext;
use crate::core::QueueCore;
use crate::error::{JoinError, Panic};
use crate::held::HeldCount;
use crate::job::Tag;
use crate::pool::Pool;
use crate::queue_ref::QueueRef;
use crate::runtime_id::RuntimeId;
use crate::{contained, context, stack};

const DONE: u32 = 1;
/// A thread sleeps on the state.
const SLEEPER: u32 = 2;
/// A future left its waker.
const WAKER: u32 = 4;
/// Somebody has the closure.
const TAKEN: u32 = 8;
/// With TAKEN: to drop it, not to run it.
const ABORTED: u32 = 16;

/// What a handle and a task know of each other.
pub(crate) struct Packet<T> {
    state: Futex,
    result: UnsafeCell<Option<Result<T, JoinError>>>,
    waker: Mutex<Option<Waker>>,
}

// SAFETY: `result` is written once, by whoever took the task, before DONE is set, and read by the
// one handle after it saw DONE; the value crosses threads, hence `T: Send`.
unsafe impl<T: Send> Sync for Packet<T> {}

impl<T> Packet<T> {
    fn new() -> Self {
        Self { state: Futex::new(0), result: UnsafeCell::new(None), waker: Mutex::new(None) }
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.word().load(Ordering::Acquire) & DONE != 0
    }

    /// Whether the caller has the closure now.
    fn take(&self) -> bool {
        self.state.word().fetch_or(TAKEN, Ordering::AcqRel) & TAKEN == 0
    }

    /// Whether somebody took the closure to run it, and is not done.
    fn is_running(&self) -> bool {
        self.state.word().load(Ordering::Acquire) & (DONE | TAKEN | ABORTED) == TAKEN
    }

    /// Whether somebody took the closure to drop it.
    fn is_aborted(&self) -> bool {
        self.state.word().load(Ordering::Acquire) & ABORTED != 0
    }

    /// Sleeps until the result is there. False when that was not before the deadline.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.state.word().fetch_or(SLEEPER, Ordering::AcqRel) | SLEEPER;
        while state & DONE == 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            self.state.wait(state, left);
            state = self.state.word().load(Ordering::Acquire);
        }
        true
    }

    /// Leaves a waker. False when the result is there already.
    pub(crate) fn leave_waker(&self, new: &Waker) -> bool {
        let mut waker = self.waker.lock();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(new)) {
            *waker = Some(new.clone());
        }
        drop(waker);
        self.state.word().fetch_or(WAKER, Ordering::AcqRel) & DONE == 0
    }

    /// The result, after [`is_done`](Self::is_done). Only for the one handle.
    pub(crate) fn result(&self) -> Result<T, JoinError> {
        debug_assert!(self.is_done());
        // SAFETY: DONE was seen with acquire, so the writer is through; only the one handle reads,
        // and it is borrowed exclusively or consumed by its callers.
        let result = self.result.with_mut(|result| unsafe { (*result).take() });
        result.expect("a handle must not be polled after it was ready")
    }

    fn complete(&self, result: Result<T, JoinError>) {
        // SAFETY: only whoever took the task completes it, once; nobody reads before DONE.
        self.result.with_mut(|place| unsafe { *place = Some(result) });
        let before = self.state.word().fetch_or(DONE, Ordering::AcqRel);
        if before & SLEEPER != 0 {
            self.state.wake(i32::MAX);
        }
        if before & WAKER != 0 {
            let waker = self.waker.lock().take();
            if let Some(waker) = waker {
                // Whoever runs the item is in the middle of something, and has not ended it.
                contained::call_quietly(|| waker.wake());
            }
        }
    }
}

/// A task as its handle sees it, whatever its closure is.
pub(crate) trait Spawned<T>: Send + Sync {
    fn packet(&self) -> &Packet<T>;

    /// Panics when the worker that would run the closure is in another process.
    fn check_process(&self);

    /// Whether it is.
    fn is_copy(&self) -> bool;

    /// Runs the closure on this thread, if nobody has it and it may run here.
    fn run_here(&self);

    /// Drops the closure, if nobody has it. False when somebody has.
    fn abort(&self) -> bool;
}

struct Task<F, T> {
    packet: Packet<T>,
    /// There until TAKEN is set.
    closure: UnsafeCell<ManuallyDrop<F>>,
    /// Valid on workers of `runtime`.
    queue: QueueRef,
    runtime: RuntimeId,
    /// Where the item was issued, if its queue was strict then, or that was chosen.
    issued_on: Option<CpuId>,
    /// What a waiter that runs the closure has to count out.
    held: HeldCount,
}

// SAFETY: the closure is `Send` and taken once, by the thread that sets TAKEN; the packet is
// `Sync`; the queue is a `Sync` value, dereferenced where it is alive only (`run_here`).
unsafe impl<F: Send, T: Send> Sync for Task<F, T> {}
// SAFETY: as above.
unsafe impl<F: Send, T: Send> Send for Task<F, T> {}

/// Makes a task, issued on this CPU or on behalf of `near`: the handle's part, and what the queue
/// is to run.
pub(crate) fn new<F, T>(
    queue: &QueueCore,
    near: Option<CpuId>,
    closure: F,
) -> (Arc<dyn Spawned<T>>, Ticket<F, T>)
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let task = Arc::new(Task {
        packet: Packet::new(),
        closure: UnsafeCell::new(ManuallyDrop::new(closure)),
        queue: QueueRef::of(queue),
        runtime: queue.runtime,
        issued_on: near.or_else(|| strictly_here(queue.pool())),
        held: HeldCount::none(),
    });
    (Arc::clone(&task) as Arc<dyn Spawned<T>>, Ticket(task))
}

/// Where an item counts as issued that this thread queues, if that decides who may run it.
#[inline]
fn strictly_here(pool: &Pool) -> Option<CpuId> {
    pool.key.sharding.strict.then(|| match context::home_in(pool) {
        Some(home) => pool.cpu_of(home),
        None => pool.current_cpu(),
    })
}

/// The job of a task. Dropped without being run, it cancels the task.
pub(crate) struct Ticket<F: FnOnce() -> T + Send, T: Send>(Arc<Task<F, T>>);

impl<F: FnOnce() -> T + Send, T: Send> Ticket<F, T> {
    /// A worker got the job.
    ///
    /// When a waiter is running the closure, its count goes on under the phase of this job, which
    /// is about to be counted out: a flush waits for either.
    pub(crate) fn arrive(self) {
        let task = &*self.0;
        if task.packet.take() {
            task.run();
        } else if task.packet.is_running() {
            let phase = context::current_tag().map_or(0, Tag::phase);
            if task.held.leave(phase) {
                context::keep_count();
            }
        } else if task.packet.is_aborted() {
            context::nothing_ran();
        }
    }
}

impl<F: FnOnce() -> T + Send, T: Send> Drop for Ticket<F, T> {
    fn drop(&mut self) {
        if !self.0.is_taken() {
            self.0.abort();
        }
    }
}

impl<F: FnOnce() -> T + Send, T: Send> Task<F, T> {
    #[inline]
    fn is_taken(&self) -> bool {
        self.packet.state.word().load(Ordering::Relaxed) & TAKEN != 0
    }

    fn closure(&self) -> F {
        // SAFETY: called once, by whoever took the task.
        self.closure.with_mut(|closure| unsafe { ManuallyDrop::take(&mut *closure) })
    }

    fn run(&self) {
        let result = catch_unwind(AssertUnwindSafe(self.closure()));
        let result = result.map_err(|panic| {
            context::current_queue(QueueCore::count_panic);
            JoinError::Panicked(Panic::new(panic))
        });
        self.packet.complete(result);
    }

    /// Whether the closure may run on this worker's thread beside what that is running already.
    fn may_run_on(&self, worker: &WorkerContext) -> bool {
        if worker.counter_slots.runtime != self.runtime {
            return false;
        }
        // This is a worker of the queue's runtime, so the reference may be used.
        let queue = self.queue.core();
        let pool = queue.pool();
        std::ptr::eq(pool, &raw const *worker.pool)
            && self.may_run_at(pool, worker.home)
            && !queue.is_gated()
            && stack::has_room()
    }

    /// Runs the closure inside the item of this worker, if nobody has it.
    fn run_nested(&self, worker: &WorkerContext) {
        let queue = self.queue.core();
        let nested = &worker.pool.worker_slot(worker.id).nested;
        nested.begin(self.queue, worker.pool.node_of(worker.home));
        // As where a worker runs a job of a queue without a limit (`run_uncounted`): this sees one
        // that is set, or what was begun is counted.
        compiler_fence(Ordering::SeqCst);
        let runs = !queue.is_gated() && self.packet.take();
        if runs {
            context::in_frame(self.queue, Tag::none(), || self.run());
        }
        nested.end();
        compiler_fence(Ordering::SeqCst);
        if queue.is_gated() {
            queue.end_uncounted();
        }
        if runs {
            if let Some(phase) = self.held.end() {
                queue.count_out(context::counter_slot(self.runtime), phase);
            }
            context::progress();
        }
    }

    /// Whether a worker at home there would be in the item's pod, or need not be.
    fn may_run_at(&self, pool: &Pool, home: ShardId) -> bool {
        !pool.key.sharding.strict
            || pool.plan.pods.len() == 1
            || self.issued_on.is_some_and(|cpu| pool.is_near(home, pool.plan.shard_of(cpu)))
    }
}

impl<F: FnOnce() -> T + Send, T: Send> Spawned<T> for Task<F, T> {
    fn packet(&self) -> &Packet<T> {
        &self.packet
    }

    fn check_process(&self) {
        crate::forked::check(self.runtime.generation());
    }

    fn is_copy(&self) -> bool {
        crate::forked::is_copy(self.runtime.generation())
    }

    fn run_here(&self) {
        context::with_worker(|worker| {
            if let Some(worker) = worker.filter(|worker| self.may_run_on(worker))
                && !self.is_taken()
            {
                self.run_nested(worker);
            }
        });
    }

    fn abort(&self) -> bool {
        let state = self.packet.state.word();
        // In one step: a job that arrives meanwhile would pass its count on to whoever runs the
        // closure.
        let abort = |state| (state & TAKEN == 0).then_some(state | TAKEN | ABORTED);
        let taken = state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, abort).is_ok();
        if taken {
            // A captured value may panic when dropped; whoever waits must learn all the same.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(self.closure())));
            let result = dropped.map_or_else(
                |panic| JoinError::Panicked(Panic::new(panic)),
                |()| JoinError::Cancelled,
            );
            self.packet.complete(Err(result));
        }
        taken
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::in_flight::{CounterSlot, InFlightCounter};
    use loom::thread;
    use tollgate_wakequeue::sync::{Arc as Shared, AtomicBool};

    struct World {
        in_flight: InFlightCounter,
        packet: Packet<()>,
        held: HeldCount,
        ran: AtomicBool,
    }

    impl World {
        fn run(&self) {
            self.ran.store(true, Ordering::Relaxed);
            self.packet.complete(Ok(()));
        }

        fn count_out(&self, counter_slot: CounterSlot, phase: u8) {
            self.in_flight.finish(counter_slot, phase);
            self.in_flight.announce(phase);
        }

        /// As `Spawned::run_here`.
        fn wait_inside_an_item(&self) {
            if self.packet.take() {
                self.run();
                if let Some(phase) = self.held.end() {
                    self.count_out(CounterSlot::Shared(0), phase);
                }
            }
        }

        /// As `Ticket::arrive`, and the end of its job.
        fn arrive(&self, phase: u8) {
            if self.packet.take() {
                self.run();
            } else if self.packet.is_running() && self.held.leave(phase) {
                return;
            }
            self.count_out(CounterSlot::Own(0), phase);
        }
    }

    /// An item is run by its waiter while its job arrives and somebody flushes: the flush ends
    /// after the closure has run, and the item is counted out once.
    #[test]
    fn a_flush_waits_for_what_a_waiter_runs() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(|| {
            let world = Shared::new(World {
                in_flight: InFlightCounter::new(1),
                packet: Packet::new(),
                held: HeldCount::none(),
                ran: AtomicBool::new(false),
            });
            let phase = world.in_flight.enter(CounterSlot::Shared(0));
            let waiter = {
                let world = Shared::clone(&world);
                thread::spawn(move || world.wait_inside_an_item())
            };
            let worker = {
                let world = Shared::clone(&world);
                thread::spawn(move || world.arrive(phase))
            };
            world.in_flight.flush();
            assert!(world.ran.load(Ordering::Relaxed), "flushed before it ran");
            waiter.join().unwrap();
            worker.join().unwrap();
            assert_eq!(world.in_flight.totals(), (0, 1));
        });
    }
}
