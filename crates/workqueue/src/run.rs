//! Running one job: its frame, its panic, its count, and its place under a limit or in an order.

use std::collections::VecDeque;
use std::sync::Arc;

use tollgate_topology::CpuId;
use tollgate_wakequeue::ItemCell;
use tollgate_wakequeue::sync::{Ordering, spin_loop};

use crate::contained;
use crate::context::{self, Outcome};
use crate::core::{QueueCore, Waiter};
use crate::error::Panic;
use crate::job::{Job, Tag};
use crate::pool::Pool;
use crate::queue_ref::QueueRef;
use crate::sys;

/// Jobs of a sequence that run in a row before other queues have a turn.
const JOBS_PER_TURN: u32 = 32;

/// Looks for the next job of a sequence before its turn ends, each after twice as long as the one
/// before: about a microsecond together. A new turn costs as much, and a look makes the producer
/// wait for the line that it is about to write.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 7 };

/// Runs the job in the cell. What it counts against, it holds already.
#[inline]
pub(crate) fn run_one(
    core: &QueueCore,
    cell: &mut ItemCell<Job>,
    tag: Tag,
    notify: &mut DeferredNotify,
) {
    let phase = tag.phase();
    notify.send_unless(core, phase);
    let ((), outcome) = context::in_frame(QueueRef::of(core), tag, || {
        if let Err(panic) = contained::call(|| Job::run(cell)) {
            core.count_panic();
            // Whom it is reported to is inside the item, which is not over yet.
            core.report_panic(&Panic::new(panic));
        }
    });
    match outcome {
        Outcome::Ran => {}
        Outcome::Kept => return,
        Outcome::Nothing => core.count_unstarted(),
    }
    core.in_flight.finish(context::counter_slot(core.runtime), phase);
    notify.defer(core, phase);
}

/// Drops what an item owned that will not run any more, as if inside it: a panic of the destructor
/// counts as the item's, and it cannot wait for its own end.
pub(crate) fn drop_inside(core: &QueueCore, owned: impl Send) {
    context::in_frame(QueueRef::of(core), Tag::none(), || {
        if let Err(panic) = contained::call(|| drop(owned)) {
            core.count_panic();
            core.report_panic(&Panic::new(panic));
        }
    });
}

/// What a turn asks of whoever has it.
pub(crate) trait TurnHolder {
    /// Whether a job that was issued on this CPU may run here: a strict worker leaves jobs of other
    /// pods to their own.
    fn may_run(&self, cpu: CpuId) -> bool;

    /// Whether a turn may go on after [`JOBS_PER_TURN`] jobs, because nobody else waits for the
    /// caller.
    fn may_go_on(&self) -> bool;

    /// Whether the turn ends with the job that ran last: enough others are awake, and the caller
    /// came back from a wait to one too many.
    fn must_stop(&self) -> bool;

    /// A job is about to run.
    fn before(&mut self, tag: Tag);

    /// It has run.
    fn after(&mut self);
}

/// Has the turn of an ordered queue: runs the next jobs, and puts the turn back into the pool while
/// any are left.
pub(crate) fn run_turn(
    core: &QueueCore,
    turn: Tag,
    holder: &mut impl TurnHolder,
    notify: &mut DeferredNotify,
) {
    let mut cpu = turn.cpu();
    let mut hand = core.sequence.begin_turn();
    let mut cell = ItemCell::empty();
    let mut left = JOBS_PER_TURN;
    while left > 0 {
        left -= 1;
        if !next_in_order(core, &mut hand, &mut cell, notify) {
            if core.sequence.end_turn() {
                continue;
            }
            return;
        }
        let Some(tag) = cell.get().map(|job| job.tag) else { continue };
        cpu = tag.cpu();
        if !holder.may_run(cpu) {
            cell.take().into_iter().for_each(|job| hand.push_front(job));
            break;
        }
        holder.before(tag);
        run_one(core, &mut cell, tag, notify);
        holder.after();
        if holder.must_stop() {
            break;
        }
        if left == 0 && holder.may_go_on() {
            left = JOBS_PER_TURN;
        }
    }
    core.sequence.put_back(hand);
    if !core.sequence.is_empty() || core.sequence.end_turn() {
        core.put_turn(cpu);
    }
}

/// The next job, into `cell`. Waits for it a moment, because a new turn costs more than that; those
/// who flush are told before.
#[inline]
fn next_in_order(
    core: &QueueCore,
    hand: &mut VecDeque<Job>,
    cell: &mut ItemCell<Job>,
    notify: &mut DeferredNotify,
) -> bool {
    if core.sequence.next_into(hand, cell) {
        return true;
    }
    notify.send();
    (0..LOOKS).any(|look| {
        (0..1 << look).for_each(|_| spin_loop());
        core.sequence.next_into(hand, cell)
    })
}

/// Runs one job of the queue, or one turn, that waits for a worker which does not come: in its pool,
/// or in one that it had before. False when there is none. `pools` are all that there are.
pub(crate) fn rescue(core: &QueueCore, pools: &[Arc<Pool>]) -> bool {
    let me = QueueRef::of(core);
    pools.iter().filter(|pool| core.may_be_in(pool)).any(|pool| {
        let found = pool.queue.take_if(|job| job.queue() == me, |claim| pool.grow(claim));
        found.is_some_and(|job| run_taken(pool, job, true))
    })
}

/// As [`rescue`], for whatever queue of the pool, on a thread that stays where it is.
pub(crate) fn run_stranded(pool: &Pool, mut is_stranded: impl FnMut(&Job) -> bool) -> bool {
    let found = pool.queue.take_if(|job| is_stranded(job), |claim| pool.grow(claim));
    found.is_some_and(|job| run_taken(pool, job, false))
}

fn run_taken(pool: &Pool, job: Job, is_rescuer: bool) -> bool {
    let queue = job.queue();
    let core = queue.core();
    let mut notify = DeferredNotify::default();
    let mut rescuer = Rescuing { core, pool, is_rescuer };
    if job.tag.is_turn() {
        run_turn(core, job.tag, &mut rescuer, &mut notify);
    } else {
        run_rescued(core, pool, job, &mut notify, |tag| rescuer.before(tag));
    }
    notify.send();
    true
}

/// A rescuer at work, or who ends a runtime in the place of workers.
struct Rescuing<'r> {
    core: &'r QueueCore,
    pool: &'r Pool,
    is_rescuer: bool,
}

impl TurnHolder for Rescuing<'_> {
    /// It goes to any pod.
    fn may_run(&self, _: CpuId) -> bool {
        true
    }

    /// It is asked to stop between turns.
    fn may_go_on(&self) -> bool {
        false
    }

    /// It is no worker.
    fn must_stop(&self) -> bool {
        false
    }

    /// Before the item runs, so that whoever waits for it finds it counted. The rescuer goes to the
    /// pod of a strict item; where the system refuses that, it runs the item all the same.
    fn before(&mut self, tag: Tag) {
        if !self.is_rescuer {
            return;
        }
        self.core.stats.rescued.fetch_add(1, Ordering::Relaxed);
        if self.pool.key.sharding.strict {
            let shard = self.pool.plan.shard_of(tag.cpu());
            let _ = sys::set_affinity(&self.pool.plan.shards[shard.index()].allowed);
        }
    }

    fn after(&mut self) {}
}

fn run_rescued(
    core: &QueueCore,
    pool: &Pool,
    job: Job,
    notify: &mut DeferredNotify,
    before: impl FnOnce(Tag),
) {
    let (tag, node) = (job.tag, usize::from(job.tag.node()));
    // Also without a limit: no worker shows the item, and one that is set meanwhile counts it.
    let waiter = Waiter::new(job, pool);
    let limit = &core.limits[node];
    let started =
        if tag.is_counted() { limit.confirm(waiter) } else { limit.start_or_wait(waiter) };
    if let Some(waiter) = started {
        before(tag);
        run_one(core, &mut ItemCell::of(waiter.into_job()), tag, notify);
        core.end_counted(node);
    }
}

/// A finished item that a flush has not been told of yet.
///
/// While the next item has the same queue and phase, that phase is not empty and there is nothing
/// to tell, so a busy worker pays once per run of equal items.
#[derive(Default)]
pub(crate) struct DeferredNotify(Option<(QueueRef, u8)>);

impl DeferredNotify {
    #[inline]
    fn defer(&mut self, queue: &QueueCore, phase: u8) {
        self.0 = Some((QueueRef::of(queue), phase));
    }

    #[inline]
    fn send_unless(&mut self, queue: &QueueCore, phase: u8) {
        if self.0.is_some_and(|(notify, c)| notify != QueueRef::of(queue) || c != phase) {
            self.send();
        }
    }

    #[inline]
    pub(crate) fn send(&mut self) {
        if let Some((queue, phase)) = self.0.take() {
            queue.core().in_flight.announce(phase);
        }
    }
}
