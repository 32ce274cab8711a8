//! A closure on its way to a worker, in one cache line with its slot's sequence number.
//!
//! Closures of up to four words travel inside the job; larger ones are boxed.

#![expect(unsafe_code, reason = "closures are stored without their types")]

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use crate::core::QueueCore;

const WORDS: usize = 4;
type Payload = [MaybeUninit<usize>; WORDS];

/// What to do with a payload. Either way it is used up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Run,
    Drop,
}

/// Something to run once for a queue.
pub(crate) struct Job {
    payload: Payload,
    consume: unsafe fn(*mut Payload, Use),
    /// The queue that this job counts for.
    queue: NonNull<QueueCore>,
    pub(crate) tag: Tag,
}

/// What the queue noted on the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The colour under which the job was counted; see `tally`.
    pub(crate) colour: u8,
    pub(crate) kind: Kind,
    /// Index of the node it was issued on.
    pub(crate) node: u16,
    /// The CPU it was issued on.
    pub(crate) cpu: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs as it is.
    #[default]
    Direct,
    /// The right to run the next job of its queue's gate. Its payload is empty.
    Token,
}

// SAFETY: `Job::new` takes only `Send` closures, and the queue pointer is to a `Sync` value that
// outlives every job (`QueueCore::as_ref`).
unsafe impl Send for Job {}

impl Job {
    #[inline]
    pub(crate) fn new<F: FnOnce() + Send + 'static>(queue: &QueueCore, closure: F) -> Self {
        let mut payload: Payload = [const { MaybeUninit::uninit() }; WORDS];
        let consume = if fits::<F>() {
            // SAFETY: `fits` checked size and alignment of the place; it is written once, and
            // `consume_inline::<F>` is what reads it.
            unsafe { (&raw mut payload).cast::<F>().write(closure) };
            consume_inline::<F> as unsafe fn(*mut Payload, Use)
        } else {
            let boxed = Box::into_raw(Box::new(closure));
            // SAFETY: a thin pointer fits and is aligned; `consume_boxed::<F>` is what reads it.
            unsafe { (&raw mut payload).cast::<*mut F>().write(boxed) };
            consume_boxed::<F>
        };
        Self { payload, consume, queue: NonNull::from(queue), tag: Tag::default() }
    }

    /// A job that stands for the next one of a gate.
    pub(crate) fn token(queue: &QueueCore, node: u16, cpu: u32) -> Self {
        let tag = Tag { colour: 0, kind: Kind::Token, node, cpu };
        Self {
            payload: [const { MaybeUninit::uninit() }; WORDS],
            consume: consume_nothing,
            queue: NonNull::from(queue),
            tag,
        }
    }

    /// Runs the closure where it lies. A panic in it unwinds through here.
    #[inline]
    pub(crate) fn run(job: &mut RunOnce) {
        assert!(!std::mem::replace(&mut job.used, true), "a job runs once");
        let inner = &mut *job.job;
        // SAFETY: `consume` belongs to this payload (set together in `new`). It is used once:
        // `used` was false (asserted) and now keeps this function and the drop away from it.
        unsafe { (inner.consume)(&raw mut inner.payload, Use::Run) }
    }

    pub(crate) fn queue(&self) -> NonNull<QueueCore> {
        self.queue
    }
}

/// A job about to be run, without moving it once more.
pub(crate) struct RunOnce {
    job: ManuallyDrop<Job>,
    used: bool,
}

impl RunOnce {
    #[inline]
    pub(crate) fn new(job: Job) -> Self {
        Self { job: ManuallyDrop::new(job), used: false }
    }
}

impl Drop for RunOnce {
    fn drop(&mut self) {
        if !self.used {
            // SAFETY: the payload was not used, and nothing touches the job after this.
            unsafe { ManuallyDrop::drop(&mut self.job) }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // SAFETY: as in `run`; a job that was run is never dropped.
        unsafe { (self.consume)(&raw mut self.payload, Use::Drop) }
    }
}

const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Payload>() && align_of::<F>() <= align_of::<Payload>()
}

/// # Safety
/// `payload` holds an `F` that nobody else will use.
unsafe fn consume_inline<F: FnOnce()>(payload: *mut Payload, purpose: Use) {
    // SAFETY: by contract.
    let closure = unsafe { payload.cast::<F>().read() };
    if purpose == Use::Run {
        closure();
    }
}

/// # Safety
/// `payload` holds a pointer from `Box::<F>::into_raw` that nobody else will use.
unsafe fn consume_boxed<F: FnOnce()>(payload: *mut Payload, purpose: Use) {
    // SAFETY: by contract.
    let closure = unsafe { Box::from_raw(payload.cast::<*mut F>().read()) };
    if purpose == Use::Run {
        closure();
    }
}

/// # Safety
/// None needed: it has the type of its siblings.
unsafe fn consume_nothing(_: *mut Payload, _: Use) {}

const _: () = assert!(size_of::<Job>() <= 56, "a job and its slot's turn share a cache line");
