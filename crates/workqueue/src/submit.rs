//! Queueing: where an item goes, and what happens when there is no room.

#![expect(unsafe_code, reason = "a closure is moved into its slot only when there is one")]

use std::mem::ManuallyDrop;

use tollgate_topology::CpuId;
use tollgate_wakequeue::sync::{Ordering, seq_cst_gap};
use tollgate_wakequeue::{Closed, ItemCell, PushError, ShardId};

use crate::blocking::blocking;
use crate::context;
use crate::core::{DRAINED, LIMITED, ORDERED, QueueCore, RESCUED, SHUT, WhenFull};
use crate::error::SubmitError;
use crate::forked;
use crate::in_flight::CounterSlot;
use crate::job::{Job, Tag};
use crate::pool::{MAX_OVERFLOW, Pool};
use crate::queue_ref::QueueRef;
use crate::run::{DeferredNotify, run_one};
use crate::sequence::Entry;

/// A queue that has no more in flight than a shard holds, divided by this, finds room beside a full
/// one: a queue cannot fill its neighbours' shards.
const SHARE_OF_SHARD: usize = 8;

/// How deep items run inside items that found no room; beyond, they are refused.
const MAX_INLINE_DEPTH: usize = 32;

/// A job that was not queued, and why. Whoever counts it out drops it after that.
struct Refused {
    error: SubmitError,
    job: Job,
}

impl QueueCore {
    /// Queues a closure, issued on this CPU or on behalf of `near`. One that is refused is dropped.
    #[inline]
    pub(crate) fn submit<F>(&self, closure: F, near: Option<CpuId>) -> Result<(), SubmitError>
    where
        F: FnOnce() + Send + 'static,
    {
        forked::check(self.runtime.generation());
        let mode = self.mode();
        if self.is_closed_here(mode) {
            return Err(self.closed(mode));
        }
        let counter_slot = context::counter_slot(self.runtime);
        let phase = if context::is_running_for(self) {
            self.in_flight.enter_within(counter_slot)
        } else {
            self.in_flight.enter(counter_slot)
        };
        // Counted first and looked again, so that a drain that misses the count is seen here. The look
        // before keeps those who are refused again and again out of the counters: among them a drain
        // would hardly ever find that nothing is left.
        seq_cst_gap();
        let mode = self.mode();
        let pool = self.pool();
        let tag = self.place(pool, phase, near, mode & ORDERED == 0);
        let open = mode == 0 || mode == LIMITED && !self.limits[usize::from(tag.node())].is_full();
        let queued = if open {
            self.put_closure(pool, tag, closure)
        } else if mode == ORDERED {
            self.put_closure_in_order(tag, closure)
        } else {
            self.submit_in_mode(mode, pool, Job::new(QueueRef::of(self), tag, closure))
        };
        queued.map_err(|refused| self.refuse(refused, counter_slot, phase))
    }

    /// Whether a queue of this mode takes nothing from this thread.
    #[inline]
    fn is_closed_here(&self, mode: u32) -> bool {
        mode & SHUT != 0 || mode & DRAINED != 0 && !context::belongs_to_queue(self)
    }

    /// What a thread is told for which the queue, of this mode, is closed.
    #[cold]
    fn closed(&self, mode: u32) -> SubmitError {
        let name = self.name();
        if mode & SHUT != 0 { SubmitError::ShutDown(name) } else { SubmitError::Drained(name) }
    }

    /// Counts out first and drops then: the destructor of what the closure owns may panic, or wait
    /// for this queue.
    #[cold]
    fn refuse(&self, refused: Refused, counter_slot: CounterSlot, phase: u8) -> SubmitError {
        self.turn_away(counter_slot, phase);
        let Refused { error, job } = refused;
        drop(job);
        error
    }

    /// Decides where a job goes.
    #[inline]
    fn place(&self, pool: &Pool, phase: u8, near: Option<CpuId>, may_skip_cpu: bool) -> Tag {
        let home = if near.is_none() { context::home_in(pool) } else { None };
        // Asking for the CPU is left out where nothing depends on it.
        let may_skip_cpu = may_skip_cpu && !pool.key.localize;
        let cpu = near.unwrap_or_else(|| match home {
            Some(home) if may_skip_cpu => pool.cpu_of(home),
            None if may_skip_cpu && !pool.needs_cpu => CpuId(0),
            _ => pool.current_cpu(),
        });
        // What a worker issues stays with it, wherever the system has put it.
        let shard = home.unwrap_or_else(|| pool.plan.shard_of(cpu));
        let node = if self.limits.len() == 1 { 0 } else { pool.node_of(shard) };
        Tag::new(phase, shard, cpu, node)
    }

    /// As [`submit`](Self::submit), but never waits and runs nothing here: without room, in an ordered
    /// queue, in one that is closed, and in a copy of the process, the closure is dropped. Does not
    /// panic.
    pub(crate) fn try_submit<F>(&self, closure: F)
    where
        F: FnOnce() + Send + 'static,
    {
        // Uncounted, as in `submit`: closures are forked again and again on a queue that is closed.
        if self.is_closed_here(self.mode()) {
            return;
        }
        let counter_slot = context::counter_slot(self.runtime);
        let phase = self.in_flight.enter(counter_slot);
        seq_cst_gap();
        let mode = self.mode();
        let pool = self.pool();
        let tag = self.place(pool, phase, None, true);
        let mine = !forked::is_copy(self.runtime.generation());
        let limited = mode & LIMITED != 0 && self.limits[usize::from(tag.node())].is_full();
        let open = mine && mode & ORDERED == 0 && !limited && !self.is_closed_here(mode);
        let job = Job::new(QueueRef::of(self), tag, closure);
        if !open || push(mode, pool, job).is_err() {
            self.turn_away(counter_slot, phase);
        }
    }

    /// Queues what cannot be refused any more, of which there is a bounded number: items whose time
    /// has come. Never waits. `make` is told whether the queue is drained, once the item counts: a
    /// drain that did not see it is seen here. When the runtime is shut down, gives `item` back.
    pub(crate) fn submit_always<T, F>(
        &self,
        item: T,
        make: impl FnOnce(T, bool) -> F,
        near: CpuId,
    ) -> Result<(), T>
    where
        F: FnOnce() + Send + 'static,
    {
        let counter_slot = context::counter_slot(self.runtime);
        let phase = self.in_flight.enter(counter_slot);
        seq_cst_gap();
        let mode = self.mode();
        if mode & SHUT != 0 {
            self.turn_away(counter_slot, phase);
            return Err(item);
        }
        let tag = self.place(self.pool(), phase, Some(near), false);
        self.put_always(Job::new(QueueRef::of(self), tag, make(item, mode & DRAINED != 0)));
        Ok(())
    }

    /// Queues a closure under a count, and at a place, that a job before it left to it.
    pub(crate) fn submit_again<F>(&self, closure: F, tag: Tag)
    where
        F: FnOnce() + Send + 'static,
    {
        // Near where it was issued, in whatever pool serves the queue now.
        let tag = self.place(self.pool(), tag.phase(), Some(tag.cpu()), false);
        self.put_always(Job::new(QueueRef::of(self), tag, closure));
    }

    /// For a job that is counted in. A pool is closed only after its queues are empty.
    fn put_always(&self, job: Job) {
        let tag = job.tag;
        if self.mode() & ORDERED != 0 {
            if matches!(self.sequence.push(job, true), Entry::NeedsTurn) {
                self.put_turn(tag.cpu());
            }
        } else if self.pool().push_unbounded(tag.shard(), job).is_err() {
            debug_assert!(false, "a pool is closed after its queues are empty");
        }
    }

    /// Makes the job where it will lie.
    #[inline]
    fn put_closure<F>(&self, pool: &Pool, tag: Tag, closure: F) -> Result<(), Refused>
    where
        F: FnOnce() + Send + 'static,
    {
        let closure = ManuallyDrop::new(closure);
        let me = QueueRef::of(self);
        // SAFETY: called at most once, and the closure is not used again when it was called.
        let make = || Job::new(me, tag, unsafe { std::ptr::read(&raw const *closure) });
        match pool.push_with(tag.shard(), make) {
            Ok(()) => Ok(()),
            Err(PushError::Closed(())) => {
                Err(self.shut(Job::new(me, tag, ManuallyDrop::into_inner(closure))))
            }
            Err(PushError::Full(())) => {
                let job = Job::new(me, tag, ManuallyDrop::into_inner(closure));
                self.put_when_full(pool, job, tag.shard())
            }
        }
    }

    /// As `put_closure`, in an ordered queue.
    #[inline]
    fn put_closure_in_order<F>(&self, tag: Tag, closure: F) -> Result<(), Refused>
    where
        F: FnOnce() + Send + 'static,
    {
        let closure = ManuallyDrop::new(closure);
        let me = QueueRef::of(self);
        // SAFETY: called at most once, and the closure is not used again when it was called.
        let make = || Job::new(me, tag, unsafe { std::ptr::read(&raw const *closure) });
        match self.sequence.push_with(make, false) {
            Entry::NeedsTurn => self.put_turn(tag.cpu()),
            Entry::Waits => {}
            Entry::Full(()) => {
                return self.put_in_order(Job::new(me, tag, ManuallyDrop::into_inner(closure)));
            }
        }
        Ok(())
    }

    fn submit_in_mode(&self, mode: u32, pool: &Pool, job: Job) -> Result<(), Refused> {
        if self.is_closed_here(mode) {
            return Err(Refused { error: self.closed(mode), job });
        }
        if mode & ORDERED != 0 {
            return self.put_in_order(job);
        }
        if mode & LIMITED != 0 {
            let limit = &self.limits[usize::from(job.tag.node())];
            while limit.is_full() {
                if let Err(error) = self.wait_or_refuse(|| limit.wait_for_room()) {
                    return Err(Refused { error, job });
                }
            }
        }
        let shard = job.tag.shard();
        match push(mode, pool, job) {
            Ok(()) => Ok(()),
            Err(PushError::Closed(job)) => Err(self.shut(job)),
            Err(PushError::Full(job)) => self.put_when_full(pool, job, shard),
        }
    }

    #[cold]
    fn put_in_order(&self, job: Job) -> Result<(), Refused> {
        let cpu = job.tag.cpu();
        let mut job = job;
        loop {
            match self.sequence.push(job, false) {
                Entry::NeedsTurn => {
                    self.put_turn(cpu);
                    return Ok(());
                }
                Entry::Waits => return Ok(()),
                Entry::Full(back) => job = back,
            }
            if let Err(error) = self.wait_or_refuse(|| self.sequence.wait_for_room()) {
                return Err(Refused { error, job });
            }
        }
    }

    /// The backlog is full. Inside an item nobody waits: that could hold up the worker that makes
    /// room.
    fn wait_or_refuse(&self, wait: impl FnOnce()) -> Result<(), SubmitError> {
        let (when_full, capacity) = self.full_policy();
        if when_full == WhenFull::Refuse || context::is_inside_runtime(self.runtime) {
            return Err(SubmitError::Full { queue: self.name(), capacity });
        }
        blocking(wait);
        Ok(())
    }

    #[cold]
    fn put_when_full(&self, pool: &Pool, job: Job, shard: ShardId) -> Result<(), Refused> {
        let full = |job| {
            let capacity = pool.queue.capacity();
            Err(Refused { error: SubmitError::Full { queue: self.name(), capacity }, job })
        };
        let room_beside = pool.queue.len(shard) < pool.queue.capacity() + MAX_OVERFLOW;
        if room_beside && self.has_little_in_flight(pool.queue.capacity()) {
            return pool.push_unbounded(shard, job).map_err(|Closed(job)| self.shut(job));
        }
        let (when_full, _) = self.full_policy();
        if when_full == WhenFull::Refuse {
            return full(job);
        }
        let anywhere = !self.is_gated() && !pool.key.sharding.strict;
        if when_full == WhenFull::RunInline && anywhere {
            if context::depth() >= MAX_INLINE_DEPTH {
                return full(job);
            }
            // Also without a limit: no worker shows the item, and one that is set meanwhile counts it.
            let node = usize::from(job.tag.node());
            if self.limits[node].try_start() {
                self.run_inline(job);
                self.end_counted(node);
                return Ok(());
            }
        }
        let pushed = if !context::is_inside_runtime(self.runtime) {
            let is_rescued = self.mode() & RESCUED != 0;
            blocking(|| {
                if is_rescued {
                    pool.push_findable_blocking(shard, job)
                } else {
                    pool.push_blocking(shard, job)
                }
            })
        } else if room_beside {
            pool.push_unbounded(shard, job)
        } else {
            return full(job);
        };
        pushed.map_err(|Closed(job)| self.shut(job))
    }

    #[cold]
    fn shut(&self, job: Job) -> Refused {
        Refused { error: SubmitError::ShutDown(self.name()), job }
    }

    /// Whether others have filled the shard, and not this queue.
    fn has_little_in_flight(&self, capacity: usize) -> bool {
        // With the item that is being queued.
        self.in_flight.totals().0 <= (capacity / SHARE_OF_SHARD) as u64
    }

    /// Runs a job here and now, because there is no room for it elsewhere.
    fn run_inline(&self, job: Job) {
        self.stats.inlined.fetch_add(1, Ordering::Relaxed);
        let mut notify = DeferredNotify::default();
        let tag = job.tag;
        run_one(self, &mut ItemCell::of(job), tag, &mut notify);
        notify.send();
    }
}

/// Into the shard of the job, where a rescuer finds it if its queue, of this mode, has one.
fn push(mode: u32, pool: &Pool, job: Job) -> Result<(), PushError<Job>> {
    let shard = job.tag.shard();
    if mode & RESCUED != 0 { pool.push_findable(shard, job) } else { pool.push(shard, job) }
}
