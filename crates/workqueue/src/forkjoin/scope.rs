//! Closures that borrow, and end before what they borrow does.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use tollgate_wakequeue::sync::{AtomicUsize, Mutex, Ordering};

use super::hand::{self, Forked, Hand, hand_for};
use crate::contained;
use crate::context::{self, Here};
use crate::core::QueueCore;

/// The owner sleeps on its bell.
const SLEEPER: usize = 1;
const ONE: usize = 2;

/// How often a thread looks whether its scope is over that has no bell to sleep on.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Where closures that borrow are spawned. See [`Queue::scope`](crate::Queue::scope).
///
/// `'scope` is the life of the scope, `'env` that of what its closures borrow from outside.
pub struct Scope<'scope, 'env: 'scope> {
    queue: NonNull<QueueCore>,
    owner: Option<&'static Hand>,
    /// What the thread that waits at the end is inside of.
    forker: Here,
    /// Twice the closures that are not done, and whether the owner sleeps.
    open: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Invariant, as in `std::thread::Scope`: neither life can be made longer or shorter.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

// SAFETY: the queue is a `Sync` value that outlives the scope (`scope_on` borrows it), and so do
// the frames behind `forker`, which nobody changes meanwhile; all else is `Sync` by itself.
unsafe impl Sync for Scope<'_, '_> {}

/// Calls `body` with a scope, and waits for what was spawned there.
pub(crate) fn scope_on<'env, R>(
    queue: &QueueCore,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> R {
    let owner = hand_for(queue);
    let scope = Scope {
        queue: NonNull::from(queue),
        owner,
        forker: context::here(),
        open: AtomicUsize::new(0),
        panic: Mutex::new(None),
        scope: PhantomData,
        env: PhantomData,
    };
    let entered = owner.map(Hand::enter);
    // Whatever `body` does, return early, panic or forget the scope, the frame that the closures
    // borrow from does not end before `wait` has returned.
    let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    if let Some(entered) = &entered {
        entered.hand.drain(entered.mark);
    }
    scope.wait();
    drop(entered);
    let panic = scope.panic.lock().take();
    // What is dropped during a panic may not panic itself.
    match (result, panic) {
        (Ok(result), None) => result,
        (Ok(result), Some(panic)) => {
            contained::call_quietly(|| drop(result));
            resume_unwind(panic)
        }
        (Err(panic), late) => {
            if let Some(late) = late {
                contained::discard(late);
            }
            resume_unwind(panic)
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Runs a closure, here or on another worker, before the scope ends. It may borrow whatever
    /// lives longer than the scope, and spawn further ones.
    ///
    /// On a thread that takes no part in the scope (one that was started by other means) and when
    /// 256 closures of this thread wait already, it runs at once, here.
    ///
    /// ```
    /// # let runtime = tollgate_workqueue::Runtime::builder().build()?;
    /// # let queue = runtime.queue("example").build()?;
    /// let mut halves = [0, 0];
    /// let (left, right) = halves.split_at_mut(1);
    /// queue.scope(|scope| {
    ///     scope.spawn(|| left[0] = 1);
    ///     scope.spawn(|| right[0] = 2);
    /// });
    /// assert_eq!(halves, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A panic of the closure comes out of the scope when all others have ended; of several panics,
    /// the first one.
    pub fn spawn<F>(&'scope self, closure: F)
    where
        F: FnOnce() + Send + 'scope,
    {
        // SAFETY: `scope_on` borrows the queue for longer than the scope lives.
        let queue = unsafe { self.queue.as_ref() };
        let Some(hand) = hand_for(queue).filter(|hand| hand.is_open()) else {
            return self.run_here(closure);
        };
        self.open.fetch_add(ONE, Ordering::Relaxed);
        let job = Box::new(HeapJob {
            forked: Forked::new(HeapJob::<F>::run, self.forker),
            scope: NonNull::from(self).cast(),
            closure,
        });
        let job = NonNull::from(Box::leak(job)).cast::<Forked>();
        if !hand.push(job, queue) {
            // SAFETY: it is in no deque, so it is run by us alone; its scope is borrowed.
            unsafe { hand::run(job) };
        }
    }

    fn run_here(&self, closure: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(closure)) {
            self.note(panic);
        }
    }

    fn note(&self, panic: Box<dyn Any + Send>) {
        let mut first = self.panic.lock();
        let late = if first.is_none() { first.replace(panic) } else { Some(panic) };
        drop(first);
        // A payload may panic when dropped; the others must end all the same.
        contained::call_quietly(|| drop(late));
    }

    /// Waits until nothing that was spawned is left.
    fn wait(&self) {
        let done = || self.open.load(Ordering::Acquire) < ONE;
        let watch = || self.open.fetch_or(SLEEPER, Ordering::AcqRel) >= ONE;
        match self.owner {
            Some(owner) if !done() => owner.wait_for(|| None, done, watch),
            Some(_) => {}
            // Without a bell. What others spawned here is as rare as a thread without a hand.
            None => {
                while !done() {
                    crate::blocking(|| thread::sleep(LOOK_EVERY));
                }
            }
        }
        debug_assert!(done());
    }

    /// A closure is done. The scope may be gone when this returns, hence no reference to it.
    ///
    /// # Safety
    /// The closure was counted, and its scope waits for this call.
    unsafe fn finish(scope: NonNull<Self>) {
        // SAFETY: by contract the scope is alive until the count is changed below.
        let (owner, open) = unsafe { ((*scope.as_ptr()).owner, &(*scope.as_ptr()).open) };
        let before = open.fetch_sub(ONE, Ordering::AcqRel);
        // Hands are never freed.
        if before == ONE | SLEEPER
            && let Some(owner) = owner
        {
            owner.ring();
        }
    }
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.open.load(Ordering::Relaxed) / ONE;
        f.debug_struct("Scope").field("open", &open).finish_non_exhaustive()
    }
}

/// A spawned closure on its way.
#[repr(C)]
struct HeapJob<F> {
    forked: Forked,
    /// Alive until `finish` was called for this job.
    scope: NonNull<Scope<'static, 'static>>,
    closure: F,
}

impl<F: FnOnce() + Send> HeapJob<F> {
    /// # Safety
    /// `job` is the first field of a leaked `Box<HeapJob<F>>`, whose scope waits for it; called
    /// once.
    unsafe fn run(job: NonNull<Forked>) {
        // SAFETY: by contract.
        let job = unsafe { Box::from_raw(job.cast::<Self>().as_ptr()) };
        let Self { scope, closure, .. } = *job;
        // SAFETY: the scope waits until this job has called `finish`.
        unsafe { scope.as_ref() }.run_here(closure);
        // SAFETY: `spawn` counted the closure.
        unsafe { Scope::finish(scope) };
    }
}
