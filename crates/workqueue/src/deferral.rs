//! A ticket that arrives while its item runs is left to whoever runs the item, who queues it again
//! at the end.
//!
//! It lies in one place of the item, under a lock, with what is needed to queue it. More than one
//! run may be about to look there: the next one may begin, and end, between the end of a run and
//! its look. So each takes only what is its own, which the state gave it when it ended, or what was
//! cancelled. Anything else is left to the run that ends with it, whose look is still to come.

use tollgate_wakequeue::sync::{AtomicBool, Mutex, Ordering};

use crate::item::{Arrival, ItemState, Ticket};

/// Where a ticket is left, with a `T`.
pub(crate) struct Deferral<T> {
    /// Whether `left` holds anything. Changed under its lock.
    has_any: AtomicBool,
    left: Mutex<Option<(Ticket, T)>>,
}

/// What whoever ended a run found.
#[derive(Debug)]
pub(crate) enum Found<T> {
    /// It arrived during the run, and is to be queued again.
    Due(Ticket, T),
    /// It was cancelled.
    Cancelled(T),
}

impl<T> Deferral<T> {
    pub(crate) fn new() -> Self {
        Self { has_any: AtomicBool::new(false), left: Mutex::new(None) }
    }

    /// Leaves the ticket to whoever runs the item, with what `give` gives. It may find that nobody
    /// does. What was left before comes back: it was cancelled.
    #[cold]
    pub(crate) fn leave(
        &self,
        item: &ItemState,
        ticket: Ticket,
        give: impl FnOnce() -> Option<T>,
    ) -> (Arrival, Option<T>) {
        let mut left = self.left.lock();
        // Before the state says so: whoever ends the run looks at the state first.
        self.has_any.store(true, Ordering::SeqCst);
        let arrival = item.begin(ticket, true);
        let mut cancelled = None;
        if arrival == Arrival::Deferred
            && let Some(given) = give()
        {
            cancelled = left.replace((ticket, given));
        }
        self.has_any.store(left.is_some(), Ordering::SeqCst);
        (arrival, cancelled.map(|(_, given)| given))
    }

    /// Ends a run.
    #[inline]
    pub(crate) fn end(&self, item: &ItemState) -> Option<Found<T>> {
        let ended = item.end();
        if self.has_any.load(Ordering::SeqCst) { self.take(item, ended) } else { None }
    }

    /// The state gave `ended` when the run ended. Another ticket that still stands was left to a run
    /// that ends, or ended, with it.
    #[cold]
    fn take(&self, item: &ItemState, ended: Option<Ticket>) -> Option<Found<T>> {
        let mut left = self.left.lock();
        let is_over = |left: &Ticket| ended == Some(*left) || !item.is_current(*left);
        let taken = left.take_if(|(left, _)| is_over(left));
        self.has_any.store(left.is_some(), Ordering::SeqCst);
        drop(left);
        let (ticket, given) = taken?;
        let is_due = ended == Some(ticket);
        Some(if is_due { Found::Due(ticket, given) } else { Found::Cancelled(given) })
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::{Arc, AtomicU32};

    /// An item with its jobs, which are counted in and out.
    struct World {
        item: ItemState,
        deferral: Deferral<()>,
        running: AtomicU32,
        runs: AtomicU32,
        queued: AtomicU32,
        counted_out: AtomicU32,
    }

    fn model(body: impl Fn(&Arc<World>) + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(move || {
            let counter = || AtomicU32::new(0);
            body(&Arc::new(World {
                item: ItemState::new(),
                deferral: Deferral::new(),
                running: counter(),
                runs: counter(),
                queued: counter(),
                counted_out: counter(),
            }));
        });
    }

    impl World {
        /// Queues the item, and is the worker that its job reaches.
        fn queue_and_arrive(&self) {
            if let Ok(ticket) = self.item.queue(false) {
                self.queued.fetch_add(1, Ordering::SeqCst);
                self.arrive(ticket);
            }
        }

        fn arrive(&self, ticket: Ticket) {
            let mut next = Some(ticket);
            while let Some(ticket) = next.take() {
                let arrival = match self.item.begin(ticket, false) {
                    Arrival::Busy => {
                        let (arrival, cancelled) =
                            self.deferral.leave(&self.item, ticket, || Some(()));
                        cancelled.into_iter().for_each(|()| self.count_out());
                        arrival
                    }
                    other => other,
                };
                match arrival {
                    Arrival::Run => {}
                    Arrival::Stale => return self.count_out(),
                    Arrival::Deferred | Arrival::Busy => return,
                }
                assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0, "twice at once");
                self.runs.fetch_add(1, Ordering::SeqCst);
                self.running.fetch_sub(1, Ordering::SeqCst);
                match self.deferral.end(&self.item) {
                    Some(Found::Due(ticket, ())) => next = Some(ticket),
                    Some(Found::Cancelled(())) => self.count_out(),
                    None => {}
                }
                self.count_out();
            }
        }

        fn count_out(&self) {
            self.counted_out.fetch_add(1, Ordering::SeqCst);
        }

        fn queued(&self) -> u32 {
            self.queued.load(Ordering::SeqCst)
        }

        /// Nothing is left behind.
        fn check(&self) {
            assert!(!self.item.is_pending(), "pending, and no job is under way");
            assert_eq!(self.counted_out.load(Ordering::SeqCst), self.queued());
        }
    }

    fn start(world: &Arc<World>, body: impl Fn(&World) + Send + 'static) -> thread::JoinHandle<()> {
        let world = Arc::clone(world);
        thread::spawn(move || body(&world))
    }

    /// Three workers, whose runs end and look in any order: each queueing is one run.
    #[test]
    fn what_is_left_to_a_later_run_stays_with_it() {
        model(|world| {
            let first = world.item.queue(false).unwrap();
            world.queued.fetch_add(1, Ordering::SeqCst);
            let workers = [
                start(world, move |world| world.arrive(first)),
                start(world, World::queue_and_arrive),
            ];
            world.queue_and_arrive();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            world.check();
            assert_eq!(world.runs.load(Ordering::SeqCst), world.queued());
        });
    }

    /// One queues and cancels meanwhile: every job is counted out, once.
    #[test]
    fn what_is_cancelled_is_counted_out_once() {
        model(|world| {
            let first = world.item.queue(false).unwrap();
            world.queued.fetch_add(1, Ordering::SeqCst);
            let worker = start(world, move |world| world.arrive(first));
            let other = start(world, World::queue_and_arrive);
            world.item.cancel();
            world.queue_and_arrive();
            worker.join().unwrap();
            other.join().unwrap();
            world.check();
        });
    }
}
