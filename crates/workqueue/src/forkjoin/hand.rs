//! A thread that takes part in fork-join work of a queue: its deque, and the hints by which workers
//! that have nothing to do learn of it.
//!
//! A *hand* is a deque and what belongs to it. A thread has one per queue for which it forks.
//! Forking pushes to the deque, and, unless one is on its way already, posts a *hint* to the queue:
//! an ordinary item that steals from this deque. So forked jobs run elsewhere only by items of
//! their queue: within its scope, its limit and its pool, and never ahead of what was queued
//! before. A fork that nobody comes for costs a push and a pop.
//!
//! A job that is pushed just when a hint ends may be left without one. That costs help, not the
//! job, which its owner runs in the end, unless the owner waits for it; so before it waits, what is
//! left is offered once more.
//!
//! Hands are never freed, so a hint or a sleeper's bell is valid however late somebody looks at it.
//! They are used again: a thread that ends gives its hands back, and at most [`MAX_HANDS`] are
//! made.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tollgate_wakequeue::Patience;
use tollgate_wakequeue::sync::{AtomicPtr, AtomicU32, Futex, Ordering, fence};

use super::deque::{Deque, Epoch, Mark};
use crate::context::{self, Here};
use crate::core::QueueCore;

/// The most hands of a process. A thread that gets none does its forked work by itself.
pub const MAX_HANDS: usize = 16_384;

/// Hands that a thread keeps, each for another queue.
const KEPT: usize = 8;

/// How long a worker that found a deque empty looks on, before it goes for other work.
const LINGER: Duration = Duration::from_micros(10);

/// A job that was forked: first in whatever holds its closure and its result.
#[repr(C)]
pub(crate) struct Forked {
    /// Runs the job. Called once; the job may be gone when it returns.
    run: unsafe fn(NonNull<Forked>),
    /// The hand of whoever runs it, if that is not its owner.
    pub(crate) thief: AtomicPtr<Hand>,
    /// What it belongs to, and what waits for it.
    forker: Here,
}

impl Forked {
    /// A job forked there, run by `run`, which does not unwind.
    #[inline]
    pub(crate) fn new(run: unsafe fn(NonNull<Self>), forker: Here) -> Self {
        Self { run, thief: AtomicPtr::new(std::ptr::null_mut()), forker }
    }
}

/// See the module. The jobs are `Send` where they are made (`join`, `Scope::spawn`).
pub(crate) struct Hand {
    deque: Deque<Forked>,
    /// The epoch of the hint that is on its way, as [`Epoch::number`]; 0 when there is none.
    hinted: AtomicU32,
    /// Bumped when a job that the owner sleeps for is done.
    pub(crate) bell: Futex,
    /// Scopes of this hand that are open on the owner's stack. Written by the owner only.
    open: AtomicU32,
}

static FREE: StdMutex<Free> = StdMutex::new(Free { hands: Vec::new(), made: 0 });

struct Free {
    hands: Vec<&'static Hand>,
    made: usize,
}

thread_local! {
    /// The queue that this thread forked for last, and its hand for that.
    static LATEST: Cell<(*const QueueCore, Option<&'static Hand>)> =
        const { Cell::new((std::ptr::null(), None)) };
    static HANDS: Hands = const { Hands(RefCell::new(Vec::new())) };
}

struct Hands(RefCell<Vec<(*const QueueCore, &'static Hand)>>);

impl Drop for Hands {
    fn drop(&mut self) {
        LATEST.set((std::ptr::null(), None));
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.hands.extend(self.0.get_mut().drain(..).map(|(_, hand)| hand));
    }
}

/// This thread's hand for a queue. `None` when there are too many hands.
#[inline]
pub(crate) fn hand_for(queue: &QueueCore) -> Option<&'static Hand> {
    match LATEST.get() {
        (latest, hand @ Some(_)) if std::ptr::eq(latest, queue) => hand,
        _ => look_for_hand(queue),
    }
}

#[cold]
fn look_for_hand(queue: &QueueCore) -> Option<&'static Hand> {
    let key = std::ptr::from_ref(queue);
    // While a thread ends, its destructors fork without a hand.
    let found = HANDS.try_with(|hands| {
        let mut hands = hands.0.borrow_mut();
        if let Some((_, hand)) = hands.iter().find(|(other, _)| std::ptr::eq(*other, key)) {
            return Some(*hand);
        }
        let idle = hands.iter().position(|(_, hand)| !hand.is_open());
        let hand = match idle.filter(|_| hands.len() >= KEPT) {
            Some(idle) => hands.swap_remove(idle).1,
            None => take_free()?,
        };
        hand.renew();
        hands.push((key, hand));
        context::call_before_waits(offer_again);
        Some(hand)
    });
    let hand = found.ok().flatten()?;
    LATEST.set((key, Some(hand)));
    Some(hand)
}

/// This thread is about to wait, perhaps for what it has forked itself: nobody may miss that.
fn offer_again() {
    // While a thread ends, its hands have been given back, and their scopes are closed.
    let _ = HANDS.try_with(|hands| {
        for &(queue, hand) in hands.0.borrow().iter() {
            if hand.is_open() && hand.has_no_hint_for_its_jobs() {
                // SAFETY: a hand is open in a call that borrows its queue.
                hand.hint(unsafe { &*queue });
            }
        }
    });
}

fn take_free() -> Option<&'static Hand> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hand) = free.hands.pop() {
        return Some(hand);
    }
    if free.made >= MAX_HANDS {
        return None;
    }
    free.made += 1;
    Some(Box::leak(Box::new(Hand::new())))
}

/// A scope of a hand: jobs that are pushed while it is open are taken back before it is closed.
pub(crate) struct Open<'h> {
    pub(crate) hand: &'h Hand,
    pub(crate) mark: Mark,
}

impl Drop for Open<'_> {
    #[inline]
    fn drop(&mut self) {
        let open = &self.hand.open;
        open.store(open.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

impl Hand {
    fn new() -> Self {
        Self {
            deque: Deque::new(),
            hinted: AtomicU32::new(0),
            bell: Futex::new(0),
            open: AtomicU32::new(0),
        }
    }

    /// Makes an unused hand one for another queue: hints of before are worth nothing.
    fn renew(&self) {
        self.deque.renew();
        self.hinted.store(0, Ordering::SeqCst);
    }

    /// Opens a scope. Owner only, as all that follows from it.
    #[inline]
    pub(crate) fn enter(&self) -> Open<'_> {
        self.open.store(self.open.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Open { hand: self, mark: self.deque.mark() }
    }

    /// Whether a scope is open, at whose end pushed jobs are taken back. A hint to all but the
    /// owner.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Offers a job to whoever has nothing to do. False when there is no room. Owner only, with a
    /// scope open.
    #[inline]
    pub(crate) fn push(&self, job: NonNull<Forked>, queue: &QueueCore) -> bool {
        if !self.deque.push(job) {
            return false;
        }
        // Not ordered after the push: a hint that just ended may have missed the job. Then it is
        // offered with the next one, or when its owner waits, or its owner runs it; ordering would
        // cost every fork a fence.
        if self.hinted.load(Ordering::Relaxed) == 0 {
            self.hint(queue);
        }
        true
    }

    /// Whether jobs are there that nobody is sure to see. Owner only.
    fn has_no_hint_for_its_jobs(&self) -> bool {
        if self.deque.is_empty() {
            return false;
        }
        // Whoever is the hint and does not see the jobs has said before that it is not any more.
        fence(Ordering::SeqCst);
        self.hinted.load(Ordering::Relaxed) == 0
    }

    #[cold]
    fn hint(&'_ self, queue: &QueueCore) {
        // SAFETY: hands are made by `take_free` only, which leaks them.
        let hand: &'static Hand = unsafe { &*std::ptr::from_ref(self) };
        let epoch = self.deque.epoch();
        if let Some(hint) = Hint::of(hand, epoch) {
            // Without room, or on a queue that is closed, the owner does it all.
            queue.try_submit(move || hint.follow());
        }
    }

    /// Takes back the youngest job above the mark, if it was not stolen.
    #[inline]
    pub(crate) fn pop(&self, mark: Mark) -> Option<NonNull<Forked>> {
        self.deque.pop(mark)
    }

    /// Runs what is left above the mark.
    #[inline]
    pub(crate) fn drain(&self, mark: Mark) {
        while let Some(job) = self.pop(mark) {
            // SAFETY: it came out of the deque, so it is run by us alone, and its owner waits.
            unsafe { run(job) };
        }
    }

    /// Waits until `done`, helping whoever runs `job` (see the module `join`), then asleep on the
    /// bell, which `watch` must make ring: it returns false when it is done already.
    pub(crate) fn wait_for(
        &self,
        thief: impl Fn() -> Option<&'static Hand>,
        done: impl Fn() -> bool,
        watch: impl Fn() -> bool,
    ) {
        let mut patience = Patience::new(SPIN);
        while !done() {
            if let Some(thief) = thief()
                && let Some(job) = thief.deque.steal(thief.deque.epoch())
            {
                self.run_stolen(job);
                patience = Patience::new(SPIN);
            } else if !patience.wait_a_little() {
                return crate::blocking(|| self.sleep(&done, watch));
            }
        }
    }

    fn sleep(&self, done: impl Fn() -> bool, watch: impl Fn() -> bool) {
        loop {
            let epoch = self.bell.word().load(Ordering::SeqCst);
            if done() || !watch() {
                return;
            }
            self.bell.wait(epoch, None);
        }
    }

    /// Wakes the owner, who sleeps until a job is done.
    pub(crate) fn ring(&self) {
        self.bell.word().fetch_add(1, Ordering::SeqCst);
        self.bell.wake(i32::MAX);
    }

    fn run_stolen(&self, job: NonNull<Forked>) {
        let open = self.enter();
        // SAFETY: the job came out of a deque, so it is alive until it has been run, and nobody
        // else runs it.
        unsafe { job.as_ref() }.thief.store(std::ptr::from_ref(self).cast_mut(), Ordering::Release);
        // SAFETY: as above.
        unsafe { run(job) };
        self.drain(open.mark);
        context::progress();
    }
}

/// How long an owner looks before it sleeps for a job that was stolen.
const SPIN: Duration = if cfg!(loom) { Duration::ZERO } else { Duration::from_micros(50) };

/// # Safety
/// The job came out of a deque, and is run by nobody else.
pub(crate) unsafe fn run(job: NonNull<Forked>) {
    // SAFETY: by contract the job is alive.
    let (run, forker) = unsafe { (job.as_ref().run, job.as_ref().forker) };
    // SAFETY: by contract; its `run` belongs to it.
    context::on_behalf_of(forker, || unsafe { run(job) });
}

/// What tells a worker to come and steal. Clears its hand's word when it is dropped, run or not.
struct Hint {
    hand: &'static Hand,
    epoch: Epoch,
}

impl Hint {
    /// The one hint of a hand, unless it is on its way already.
    fn of(hand: &'static Hand, epoch: Epoch) -> Option<Self> {
        let number = epoch.number();
        let free = hand.hinted.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed);
        free.is_ok().then_some(Self { hand, epoch })
    }

    /// A worker came: steals until there is nothing more.
    fn follow(self) {
        let Self { hand, epoch } = self;
        let own = context::current_queue(hand_for).flatten();
        let Some(own) = own.filter(|own| !std::ptr::eq(*own, hand)) else { return };
        let mut hint = Some(self);
        let mut patience = Patience::new(LINGER);
        loop {
            if context::current_queue(QueueCore::is_drained).unwrap_or_default() {
                drop(hint.take());
                return Self::help_once_more(hand, epoch, own);
            }
            if let Some(job) = hand.deque.steal(epoch) {
                // Others may come as well while this one is busy.
                drop(hint.take());
                Self::call_others(hand, job);
                own.run_stolen(job);
                hint = Self::of(hand, epoch);
                patience = Patience::new(LINGER);
            } else if hint.is_none() || !hand.is_open() || !patience.wait_a_little() {
                // Whoever else is the hint looks on; nobody is when the hand serves another queue.
                drop(hint.take());
                match hand.deque.steal(epoch) {
                    Some(job) => own.run_stolen(job),
                    None => return,
                }
            }
        }
    }

    /// The queue was closed, and somebody waits until this item has ended: takes as many jobs as are
    /// there, and leaves an owner that goes on forking to itself. This one is the hint no more, so an
    /// owner that waits for a later job offers that again.
    fn help_once_more(hand: &'static Hand, epoch: Epoch, own: &Hand) {
        // See `has_no_hint_for_its_jobs`.
        fence(Ordering::SeqCst);
        for _ in 0..hand.deque.len() {
            let Some(job) = hand.deque.steal(epoch) else { return };
            Self::call_others(hand, job);
            own.run_stolen(job);
        }
    }

    /// Offers what is left beside a stolen job, which is about to be run. That is up to whoever forked
    /// it: a drained queue takes hints of its own items only, and this one is an item of it.
    fn call_others(hand: &'static Hand, job: NonNull<Forked>) {
        if !hand.deque.is_empty() {
            // SAFETY: the job came out of the deque and was not run yet, so it is alive.
            let forker = unsafe { job.as_ref() }.forker;
            context::current_queue(|queue| {
                context::on_behalf_of(forker, || hand.hint(queue));
            });
        }
    }
}

impl Drop for Hint {
    fn drop(&mut self) {
        let number = self.epoch.number();
        // A hand that serves another queue now has another hint, or none.
        let _ = self.hand.hinted.compare_exchange(number, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::Arc;

    /// A hint ends while its owner pushes a job and then waits: the job is stolen, or the owner
    /// sees that it must be offered again.
    fn ends_beside_a_waiting_owner(end: fn(&Hand, Epoch) -> bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(move || {
            let hand = Arc::new(Hand::new());
            let epoch = hand.deque.epoch();
            hand.hinted.store(epoch.number(), Ordering::SeqCst);
            let helper = {
                let hand = Arc::clone(&hand);
                thread::spawn(move || {
                    hand.hinted.store(0, Ordering::SeqCst);
                    end(&hand, epoch)
                })
            };
            assert!(hand.deque.push(NonNull::dangling()));
            let offered = hand.has_no_hint_for_its_jobs();
            let stolen = helper.join().unwrap();
            assert!(offered || stolen, "nobody comes for the job");
        });
    }

    /// As the end of `Hint::follow`.
    #[test]
    fn a_waiting_owner_leaves_no_job_without_a_hint() {
        ends_beside_a_waiting_owner(|hand, epoch| hand.deque.steal(epoch).is_some());
    }

    /// As `Hint::help_once_more`.
    #[test]
    fn a_waiting_owner_leaves_no_job_to_a_hint_of_a_closed_queue() {
        ends_beside_a_waiting_owner(|hand, epoch| {
            fence(Ordering::SeqCst);
            (0..hand.deque.len()).any(|_| hand.deque.steal(epoch).is_some())
        });
    }
}
