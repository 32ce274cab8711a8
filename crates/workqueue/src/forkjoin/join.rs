//! Two closures, perhaps at once.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::thread::Result as Caught;

use tollgate_wakequeue::sync::{AtomicU32, Ordering, UnsafeCell};

use super::hand::{self, Forked, Hand, Open, hand_for};
use crate::contained;
use crate::context;
use crate::core::QueueCore;

const DONE: u32 = 1;
/// The owner sleeps on its bell.
const SLEEPER: u32 = 2;

/// Runs both closures and returns both results. See [`Queue::join`](crate::Queue::join).
pub(crate) fn join_on<A, B, RA, RB>(queue: &QueueCore, a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    match hand_for(queue) {
        Some(hand) => forked(queue, &hand.enter(), a, b),
        None => in_turn(a, b),
    }
}

/// Runs one after the other, here.
fn in_turn<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB,
{
    let result_a = a();
    match catch_unwind(AssertUnwindSafe(b)) {
        Ok(result_b) => (result_a, result_b),
        Err(panic) => only(panic, result_a),
    }
}

/// Goes on with a panic, and drops `other`, which may panic itself: not during that one.
fn only(panic: Box<dyn Any + Send>, other: impl Sized) -> ! {
    contained::call_quietly(|| drop(other));
    resume_unwind(panic)
}

#[inline]
fn forked<A, B, RA, RB>(queue: &QueueCore, open: &Open<'_>, a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    let hand = open.hand;
    let job = StackJob::new(hand, b);
    if !hand.push(job.as_forked(), queue) {
        return in_turn(a, job.take_back());
    }
    let in_reach = InReach;
    let result_a = catch_unwind(AssertUnwindSafe(a));
    let taken_back = take_back(open, &job);
    if !taken_back {
        hand.wait_for(|| job.thief(), || job.is_done(), || job.watch());
    }
    in_reach.over();
    let result_a = match result_a {
        Ok(result) => result,
        Err(panic) => {
            // What was not begun is not begun any more; a panic of the other closure is dropped.
            if taken_back {
                contained::call_quietly(|| drop(job.take_back()));
            } else {
                match job.into_result() {
                    Ok(result) => contained::call_quietly(|| drop(result)),
                    Err(late) => contained::discard(late),
                }
            }
            hand.drain(open.mark);
            resume_unwind(panic)
        }
    };
    let result_b = if taken_back {
        catch_unwind(AssertUnwindSafe(job.take_back()))
    } else {
        job.into_result()
    };
    // What the closures themselves left to be done, for a scope around this.
    hand.drain(open.mark);
    match result_b {
        Ok(result_b) => (result_a, result_b),
        Err(panic) => only(panic, result_a),
    }
}

/// While this exists, thieves may take a job of this frame, which therefore must not end. What runs
/// meanwhile catches the panics of the closures; one of our own would be a defect.
struct InReach;

impl InReach {
    #[expect(clippy::mem_forget, reason = "dropping it is what must not happen on any other way")]
    fn over(self) {
        std::mem::forget(self);
    }
}

impl Drop for InReach {
    #[cold]
    fn drop(&mut self) {
        eprintln!("tollgate-workqueue: a panic while a forked job was out");
        std::process::abort();
    }
}

/// Takes the job back, running what was spawned after it. False when it was stolen.
#[inline]
fn take_back<F, R>(open: &Open<'_>, job: &StackJob<F, R>) -> bool {
    while let Some(youngest) = open.hand.pop(open.mark) {
        if youngest == job.as_forked() {
            return true;
        }
        // SAFETY: it came out of the deque.
        unsafe { hand::run(youngest) };
    }
    false
}

/// A job in the frame of `join`, which does not end before the job is back or done.
#[repr(C)]
struct StackJob<F, R> {
    forked: Forked,
    state: AtomicU32,
    owner: &'static Hand,
    closure: UnsafeCell<ManuallyDrop<F>>,
    result: UnsafeCell<Option<Caught<R>>>,
}

impl<F, R> StackJob<F, R> {
    fn as_forked(&self) -> NonNull<Forked> {
        // The pointer is to the whole job, of which `Forked` is the first field.
        NonNull::from(self).cast()
    }

    fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) & DONE != 0
    }

    /// Has the owner's bell rung when the job is done. False when it is.
    fn watch(&self) -> bool {
        self.state.fetch_or(SLEEPER, Ordering::AcqRel) & DONE == 0
    }

    fn thief(&self) -> Option<&'static Hand> {
        // SAFETY: null, or a hand, and hands are never freed.
        unsafe { self.forked.thief.load(Ordering::Acquire).as_ref() }
    }
}

impl<F, R> StackJob<F, R>
where
    F: FnOnce() -> R,
{
    #[inline]
    fn new(owner: &Hand, closure: F) -> Self {
        // SAFETY: hands are never freed.
        let owner: &'static Hand = unsafe { &*std::ptr::from_ref(owner) };
        Self {
            forked: Forked::new(Self::run, context::here()),
            state: AtomicU32::new(0),
            owner,
            closure: UnsafeCell::new(ManuallyDrop::new(closure)),
            result: UnsafeCell::new(None),
        }
    }

    /// The closure of a job that is in no deque and was not run.
    #[inline]
    fn take_back(self) -> F {
        // SAFETY: nobody else has a pointer to the job any more, and it is consumed here.
        self.closure.with_mut(|closure| unsafe { ManuallyDrop::take(&mut *closure) })
    }

    /// The result of a job that is done.
    fn into_result(self) -> Caught<R> {
        debug_assert!(self.is_done());
        // SAFETY: written before DONE, which was acquired; the thief does not touch the job after.
        let result = self.result.with_mut(|result| unsafe { (*result).take() });
        result.expect("a job that is done has a result")
    }

    /// # Safety
    /// `job` is the first field of a `StackJob<F, R>`, which is alive until it is done; called
    /// once.
    unsafe fn run(job: NonNull<Forked>) {
        // SAFETY: by contract.
        let job = unsafe { job.cast::<Self>().as_ref() };
        // SAFETY: the job is run once, and its owner takes back nothing that was stolen.
        let closure = job.closure.with_mut(|closure| unsafe { ManuallyDrop::take(&mut *closure) });
        let result = catch_unwind(AssertUnwindSafe(closure));
        // SAFETY: the owner looks at the result only after DONE.
        job.result.with_mut(|place| unsafe { *place = Some(result) });
        let owner = job.owner;
        // The job may be gone as soon as this is stored; the owner's hand never is.
        if job.state.swap(DONE, Ordering::AcqRel) & SLEEPER != 0 {
            owner.ring();
        }
    }
}
