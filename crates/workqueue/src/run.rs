//! Running one job: its frame, its panic, its count, and its place under a limit or in an order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tollgate_wakequeue::sync::{Ordering, spin_loop};
use tollgate_wakequeue::{ItemCell, ShardId};

use crate::context;
use crate::core::{QueueCore, Waiter};
use crate::error::Panic;
use crate::job::{Job, Tag};
use crate::pool::Pool;
use crate::queue_ref::QueueRef;
use crate::sys;

/// Jobs of a sequence that run in a row before other queues have a turn.
const JOBS_PER_TURN: u32 = 32;

/// Looks for the next job of a sequence before its turn ends: about 100 ns.
const LOOKS: u32 = 8;

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
    let (outcome, kept) = context::in_frame(QueueRef::of(core), tag, || {
        catch_unwind(AssertUnwindSafe(|| Job::run(cell)))
    });
    if let Err(panic) = outcome {
        core.count_panic();
        core.report_panic(Panic::new(panic));
    }
    if !kept {
        core.in_flight.finish(context::counter_slot(core.runtime), phase);
        notify.defer(core, phase);
    }
}

/// Has the turn of an ordered queue: runs the next jobs, and puts the turn back into the pool while
/// any are left. `at` is where the caller is at home, if it is a worker; a strict worker leaves
/// jobs of other pods to their own.
pub(crate) fn run_turn(
    core: &QueueCore,
    turn: Tag,
    at: Option<(&Pool, ShardId)>,
    notify: &mut DeferredNotify,
    mut before: impl FnMut(Tag),
    mut after: impl FnMut(),
) {
    let may_run = |cpu| at.is_none_or(|(pool, home)| pool.may_run(home, pool.plan.shard_of(cpu)));
    let mut cpu = turn.cpu();
    let mut hand = core.sequence.begin_turn();
    for _ in 0..JOBS_PER_TURN {
        let Some(job) = next_in_order(core, &mut hand) else {
            if core.sequence.end_turn() {
                continue;
            }
            return;
        };
        let tag = job.tag;
        cpu = tag.cpu();
        if !may_run(cpu) {
            hand.push_front(job);
            break;
        }
        before(tag);
        run_one(core, &mut ItemCell::of(job), tag, notify);
        after();
    }
    core.sequence.put_back(hand);
    if !core.sequence.is_empty() || core.sequence.end_turn() {
        core.put_turn(cpu);
    }
}

/// The next job. Waits for it a moment, because a new turn costs more than that.
#[inline]
fn next_in_order(core: &QueueCore, hand: &mut VecDeque<Job>) -> Option<Job> {
    for _ in 0..LOOKS {
        if let Some(job) = core.sequence.next(hand) {
            return Some(job);
        }
        spin_loop();
    }
    core.sequence.next(hand)
}

/// Runs one job of the queue, or one turn, that waits for a worker which does not come. False when
/// there is none.
pub(crate) fn rescue(core: &QueueCore) -> bool {
    let me = QueueRef::of(core);
    let pool = core.pool();
    let found = pool.queue.take_if(|job| job.queue() == me, |claim| pool.grow(claim));
    let Some(job) = found else { return false };
    let mut notify = DeferredNotify::default();
    let before = |tag| before_rescue(core, pool, tag);
    if job.tag.is_turn() {
        run_turn(core, job.tag, None, &mut notify, before, || ());
    } else {
        run_rescued(core, pool, job, &mut notify, before);
    }
    notify.send();
    true
}

/// Before the item runs, so that whoever waits for it finds it counted. The rescuer goes to the pod
/// of a strict item; where the system refuses that, it runs the item all the same.
fn before_rescue(core: &QueueCore, pool: &Pool, tag: Tag) {
    core.stats.rescued.fetch_add(1, Ordering::Relaxed);
    if pool.key.sharding.strict {
        let shard = pool.plan.shard_of(tag.cpu());
        let _ = sys::set_affinity(&pool.plan.shards[shard.index()].allowed);
    }
}

fn run_rescued(
    core: &QueueCore,
    pool: &Pool,
    job: Job,
    notify: &mut DeferredNotify,
    before: impl FnOnce(Tag),
) {
    let (tag, node) = (job.tag, usize::from(job.tag.node()));
    if !core.is_gated() && !tag.is_counted() {
        before(tag);
        run_one(core, &mut ItemCell::of(job), tag, notify);
        return;
    }
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
