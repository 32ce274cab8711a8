//! What a thread knows of itself: whose worker it is and what it is running.

#![expect(unsafe_code, reason = "frames are borrowed from stacks of threads that wait")]

use std::cell::Cell;
use std::ptr::NonNull;

use tollgate_wakequeue::sync::Ordering;
use tollgate_wakequeue::{ShardId, WorkerId};

use crate::core::{NOBODY, QueueCore};
use crate::cpu_accounts::CpuAccounts;
use crate::in_flight::CounterSlot;
use crate::item::ItemState;
use crate::job::Tag;
use crate::own_thread;
use crate::pool::Pool;
use crate::queue_ref::QueueRef;
use crate::runtime_id::RuntimeId;

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(NOBODY) };
    static WORKER: Cell<Option<NonNull<WorkerContext>>> = const { Cell::new(None) };
    static HERE: Cell<Here> = const { Cell::new(Here { frame: None, lender: None }) };
    static BEFORE_WAITS: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Where this thread counts in the in-flight counters of a runtime.
#[inline]
pub(crate) fn counter_slot(runtime: RuntimeId) -> CounterSlot {
    with_worker(|worker| match worker {
        Some(worker) if worker.counter_slots.runtime == runtime => {
            worker.counter_slots.counter_slot
        }
        _ => CounterSlot::Shared(thread_slot()),
    })
}

/// A small number of this thread, to spread counters with and to tell it from others.
#[inline]
pub(crate) fn thread_slot() -> usize {
    let slot = SLOT.get();
    if slot == NOBODY { assign_slot() } else { slot }
}

#[cold]
fn assign_slot() -> usize {
    // Not part of any protocol, hence outside the shim.
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let slot = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) & (usize::MAX >> 1);
    SLOT.set(slot);
    slot
}

/// Where a worker counts, for queues of its own runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterSlotHere {
    pub(crate) runtime: RuntimeId,
    pub(crate) counter_slot: CounterSlot,
}

/// The worker that this thread is.
pub(crate) struct WorkerContext {
    pub(crate) pool: std::sync::Arc<Pool>,
    pub(crate) id: WorkerId,
    pub(crate) home: ShardId,
    pub(crate) counter_slots: CounterSlotHere,
    pub(crate) cpu_accounts: CpuAccounts,
    /// Nested blocking sections.
    pub(crate) blocking_depth: Cell<u32>,
}

impl WorkerContext {
    /// Whether this is the memory of a worker whose thread is in the parent process.
    pub(crate) fn is_copy(&self) -> bool {
        crate::forked::is_copy(self.counter_slots.runtime.generation())
    }
}

/// Makes this thread a worker while `body` runs.
pub(crate) fn as_worker<R>(context: &WorkerContext, body: impl FnOnce() -> R) -> R {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            WORKER.set(None);
        }
    }
    WORKER.set(Some(NonNull::from(context)));
    let _reset = Reset;
    body()
}

/// Calls `body` with the worker that this thread is, if it is one.
#[inline]
pub(crate) fn with_worker<R>(body: impl FnOnce(Option<&WorkerContext>) -> R) -> R {
    // SAFETY: set by `as_worker` of this thread, which borrows the context for as long as it is
    // set.
    body(WORKER.get().map(|context| unsafe { context.as_ref() }))
}

/// The home of this thread in `pool`, if it is one of its workers.
#[inline]
pub(crate) fn home_in(pool: &Pool) -> Option<ShardId> {
    with_worker(|worker| {
        worker.filter(|worker| std::ptr::eq(&*worker.pool, pool)).map(|worker| worker.home)
    })
}

/// Has `call` called before each declared wait of this thread.
pub(crate) fn call_before_waits(call: fn()) {
    BEFORE_WAITS.set(Some(call));
}

/// This thread is about to wait.
#[inline]
pub(crate) fn before_wait() {
    if let Some(call) = BEFORE_WAITS.get() {
        call();
    }
}

/// The item that this worker runs is not one long computation but many forked ones.
#[inline]
pub(crate) fn progress() {
    with_worker(|worker| {
        if let Some(worker) = worker {
            let forked = &worker.pool.worker_slot(worker.id).forked;
            forked.store(forked.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    });
}

/// What a thread is inside of. Valid while it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Here {
    /// The innermost job.
    frame: Option<NonNull<Frame>>,
    /// The innermost forked closure of another thread.
    lender: Option<NonNull<Lender>>,
}

/// A job that this thread is running. Frames nest when a job runs inside another.
pub(crate) struct Frame {
    queue: QueueRef,
    tag: Tag,
    /// Not changed while closures are out that were forked inside the job: others read it then.
    item: Cell<Option<NonNull<ItemState>>>,
    outcome: Cell<Outcome>,
    outer: Option<NonNull<Frame>>,
}

/// What came of a job, for those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran.
    Ran,
    /// Its count was passed on to a later run; see [`keep_count`].
    Kept,
    /// Its item had been aborted or cancelled; see [`nothing_ran`].
    Nothing,
}

/// A forked closure of another thread that this one is running: it belongs to whatever that is
/// inside of, and that waits for it.
struct Lender {
    forker: Here,
    /// The innermost job that this thread was inside of when it took the closure, to which that does not
    /// belong.
    base: Option<NonNull<Frame>>,
    outer: Option<NonNull<Lender>>,
}

/// What this thread is inside of. Stays valid for as long as the caller's frame.
#[inline]
pub(crate) fn here() -> Here {
    HERE.get()
}

/// Puts back what this thread was inside of, also when it unwinds: what is on its stack is gone then.
struct Leave(Here);

impl Drop for Leave {
    #[inline]
    fn drop(&mut self) {
        HERE.set(self.0);
    }
}

/// Runs a closure that was forked there.
#[inline]
pub(crate) fn on_behalf_of<R>(forker: Here, body: impl FnOnce() -> R) -> R {
    let before = HERE.get();
    if before == forker {
        return body();
    }
    let lender = Lender { forker, base: before.frame, outer: before.lender };
    let _leave = Leave(before);
    HERE.set(Here { lender: Some(NonNull::from(&lender)), ..before });
    body()
}

/// Marks this thread as running a job of `queue` while `body` runs.
#[inline]
pub(crate) fn in_frame<R>(queue: QueueRef, tag: Tag, body: impl FnOnce() -> R) -> (R, Outcome) {
    let before = HERE.get();
    let (item, outcome) = (Cell::new(None), Cell::new(Outcome::Ran));
    let frame = Frame { queue, tag, item, outcome, outer: before.frame };
    let leave = Leave(before);
    HERE.set(Here { frame: Some(NonNull::from(&frame)), ..before });
    let result = body();
    drop(leave);
    (result, frame.outcome.get())
}

/// Notes which item the innermost job is.
pub(crate) fn set_item(item: Option<&ItemState>) {
    if let Some(frame) = HERE.get().frame {
        // SAFETY: the frame is on this thread's stack below us: `in_frame` is still running.
        unsafe { frame.as_ref() }.item.set(item.map(NonNull::from));
    }
}

/// The tag of the innermost job.
pub(crate) fn current_tag() -> Option<Tag> {
    // SAFETY: the frame is on this thread's stack below us.
    HERE.get().frame.map(|frame| unsafe { frame.as_ref() }.tag)
}

/// The innermost job does not count as finished when it returns: it will be run later, under the
/// same count, by whoever took it over.
pub(crate) fn keep_count() {
    set_outcome(Outcome::Kept);
}

/// The innermost job does not count as started: its item was aborted or cancelled before.
#[cold]
pub(crate) fn nothing_ran() {
    set_outcome(Outcome::Nothing);
}

fn set_outcome(outcome: Outcome) {
    if let Some(frame) = HERE.get().frame {
        // SAFETY: the frame is on this thread's stack below us.
        unsafe { frame.as_ref() }.outcome.set(outcome);
    }
}

/// Whether the innermost job is known to have run nothing.
pub(crate) fn has_run_nothing() -> bool {
    // SAFETY: the frame is on this thread's stack below us.
    HERE.get()
        .frame
        .is_some_and(|frame| unsafe { frame.as_ref() }.outcome.get() == Outcome::Nothing)
}

/// Whether the innermost job that this thread is running is one of `queue`.
#[inline]
pub(crate) fn is_running_for(queue: &QueueCore) -> bool {
    // SAFETY: the frame is on this thread's stack below us.
    HERE.get().frame.is_some_and(|frame| unsafe { frame.as_ref() }.queue == QueueRef::of(queue))
}

/// Whether this thread is inside a job of `queue`, or runs what that has forked.
pub(crate) fn is_inside_queue(queue: &QueueCore) -> bool {
    is_inside(|frame| frame.queue == QueueRef::of(queue))
}

/// Whether what this thread runs belongs to a job of `queue`: is one, or was forked inside of one. What a
/// helper runs for another thread belongs to what that is inside of, not to the job that the helper is.
pub(crate) fn belongs_to_queue(queue: &QueueCore) -> bool {
    let mut here = HERE.get();
    loop {
        // SAFETY: on this thread's stack below us, or on that of a thread which waits for what this one
        // is running.
        let lender = here.lender.map(|lender| unsafe { lender.as_ref() });
        let base = lender.and_then(|lender| lender.base);
        let mut next = here.frame;
        while let Some(frame) = next.filter(|frame| Some(*frame) != base) {
            // SAFETY: as above.
            let frame = unsafe { frame.as_ref() };
            if frame.queue == QueueRef::of(queue) {
                return true;
            }
            next = frame.outer;
        }
        // A place is older than the lenders that lead to it, so this ends.
        let Some(lender) = lender else { return false };
        here = lender.forker;
    }
}

/// Whether this thread is one of this runtime, or inside a job of any of its queues: on a rescuer,
/// or on a thread that runs an item for want of room.
pub(crate) fn is_inside_runtime(runtime: RuntimeId) -> bool {
    own_thread::is_of(runtime) || is_inside(|frame| frame.queue.core().runtime == runtime)
}

/// Whether this thread is inside this item, or runs what that has forked.
pub(crate) fn is_inside_item(item: &ItemState) -> bool {
    is_inside(|frame| frame.item.get().is_some_and(|inner| std::ptr::eq(inner.as_ptr(), item)))
}

/// Whether this thread is inside a job.
#[inline]
pub(crate) fn is_inside_any() -> bool {
    HERE.get().frame.is_some()
}

/// The queue of the innermost job.
pub(crate) fn current_queue<R>(body: impl FnOnce(&QueueCore) -> R) -> Option<R> {
    // SAFETY: the frame is on this thread's stack below us.
    HERE.get().frame.map(|frame| body(unsafe { frame.as_ref() }.queue.core()))
}

/// How many jobs this thread is inside of.
pub(crate) fn depth() -> usize {
    let mut depth = 0;
    any_frame(HERE.get().frame, |_| {
        depth += 1;
        false
    });
    depth
}

/// Whether any job matches that this thread is inside of, or whose forked closures it runs, or that
/// waits for such a job in turn.
fn is_inside(matches: impl Fn(&Frame) -> bool) -> bool {
    let (mut places, mut seen) = (vec![HERE.get()], Vec::new());
    while let Some(Here { frame, lender }) = places.pop() {
        if any_frame(frame, &matches) {
            return true;
        }
        // Threads that help each other lend each other what they have lent.
        let mut next = lender.filter(|lender| !seen.contains(lender));
        while let Some(lender) = next {
            seen.push(lender);
            // SAFETY: on this thread's stack below us, or on that of a thread which waits for what
            // this one is running.
            let Lender { forker, outer, .. } = unsafe { lender.as_ref() };
            places.push(*forker);
            next = outer.filter(|outer| !seen.contains(outer));
        }
    }
    false
}

fn any_frame(first: Option<NonNull<Frame>>, mut matches: impl FnMut(&Frame) -> bool) -> bool {
    let mut next = first;
    while let Some(frame) = next {
        // SAFETY: as in `is_inside`.
        let frame = unsafe { frame.as_ref() };
        if matches(frame) {
            return true;
        }
        next = frame.outer;
    }
    false
}
