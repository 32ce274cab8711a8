//! The life of an item that can be queued again and again: one word, no lock.
//!
//! Queueing issues a *ticket* with a fresh number, which travels to a worker (or waits in the
//! timer). A ticket is good only while the item is pending under that number, so cancelling is
//! nothing but changing the word: the ticket is found stale when it arrives.

use tollgate_wakequeue::sync::{AtomicU64, Futex, Observe, Ordering};

/// Queued, and the ticket is on its way.
const PENDING: u64 = 1;
const RUNNING: u64 = 1 << 1;
/// The pending ticket arrived while the item was running: the runner queues it again at the end.
const DEFERRED: u64 = 1 << 2;
/// The pending ticket waits in the timer.
const DELAYED: u64 = 1 << 3;
/// Somebody sleeps on `changed`.
const WATCHED: u64 = 1 << 4;
/// Somebody who queued the item was told that it is pending already.
const RELIED_ON: u64 = 1 << 5;
const DISABLED_ONE: u64 = 1 << 8;
const DISABLED: u64 = 0xff << 8;
const RUN_SHIFT: u32 = 16;
const TICKET_SHIFT: u32 = 40;
const NUMBER: u64 = 0xff_ffff;

/// The number of a queueing, modulo 2^24. Long before it comes round again, the old ticket has
/// travelled through its FIFO, whose capacity is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u32);

/// The state of an item.
#[derive(Debug)]
pub(crate) struct ItemState {
    /// Flags (8 bits), disable count (8), number being run (24), number last issued (24).
    word: AtomicU64,
    /// Bumped for those who watch.
    changed: Futex,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    AlreadyPending,
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Run it, then call [`ItemState::end`].
    Run,
    /// It is running already; whoever runs it has taken the ticket over.
    Deferred,
    /// It is running already, and the caller did not say that it can leave the ticket.
    Busy,
    /// Cancelled, or queued anew since.
    Stale,
}

/// What became of the latest queueing of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Latest {
    /// There was none to wait for.
    Nothing,
    /// It has been run, or cancelled, or the item was queued anew with another delay.
    Over,
    /// It waits for its time.
    Delayed,
}

impl ItemState {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), changed: Futex::new(0) }
    }

    /// Changes the word by `step`, which says `Err` to leave it alone.
    fn change<R, E>(&self, step: impl Fn(u64) -> Result<(u64, R), E>) -> Result<R, E> {
        let mut word = self.word.observe(Ordering::SeqCst);
        loop {
            let (mut new, result) = step(word)?;
            // Whatever changes is worth a look to those who watch.
            new &= !WATCHED;
            match self.word.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    if word & WATCHED != 0 {
                        self.changed.word().fetch_add(1, Ordering::SeqCst);
                        self.changed.wake(i32::MAX);
                    }
                    return Ok(result);
                }
                Err(now) => word = now,
            }
        }
    }

    /// Makes the item pending and issues its ticket.
    pub(crate) fn queue(&self, delayed: bool) -> Result<Ticket, Refusal> {
        self.change(|word| {
            if word & DISABLED != 0 {
                return Err(Refusal::Disabled);
            }
            if word & (PENDING | RELIED_ON) == PENDING | RELIED_ON {
                return Err(Refusal::AlreadyPending);
            }
            if word & PENDING != 0 {
                return Ok((word | RELIED_ON, None));
            }
            let (new, ticket) = issue(word, delayed);
            Ok((new, Some(ticket)))
        })?
        .ok_or(Refusal::AlreadyPending)
    }

    /// Makes the item pending anew, whether it was or not; an older ticket becomes stale. True
    /// with the new ticket when it was pending.
    pub(crate) fn requeue(&self, delayed: bool) -> Result<(Ticket, bool), Refusal> {
        self.change(|word| {
            if word & DISABLED != 0 {
                return Err(Refusal::Disabled);
            }
            let (new, ticket) = issue(word & !(PENDING | DEFERRED | DELAYED), delayed);
            Ok((new, (ticket, word & PENDING != 0)))
        })
    }

    /// A delayed item is to be run now. `None` when it is not waiting in the timer.
    pub(crate) fn promote(&self) -> Option<Ticket> {
        self.change(
            |word| {
                if word & DELAYED == 0 { Err(()) } else { Ok(issue(word & !DELAYED, false)) }
            },
        )
        .ok()
    }

    /// A ticket of [`promote`](Self::promote) could not be delivered: the item waits for its time as
    /// before, under this ticket. False when it was cancelled or queued anew since.
    pub(crate) fn delay_again(&self, ticket: Ticket) -> bool {
        self.change(|word| {
            if word & PENDING == 0 || issued(word) != ticket {
                return Err(());
            }
            Ok((word | DELAYED, ()))
        })
        .is_ok()
    }

    /// The timer is through with this ticket. False when it is stale.
    pub(crate) fn expire(&self, ticket: Ticket) -> bool {
        self.change(|word| {
            if word & DELAYED == 0 || issued(word) != ticket {
                return Err(());
            }
            Ok((word & !DELAYED, ()))
        })
        .is_ok()
    }

    /// Whether the timer still needs this ticket.
    pub(crate) fn awaits_timer(&self, ticket: Ticket) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        word & DELAYED != 0 && issued(word) == ticket
    }

    /// A ticket arrived at a worker, which can leave it to whoever runs the item, or has to ask
    /// again.
    pub(crate) fn begin(&self, ticket: Ticket, can_leave: bool) -> Arrival {
        let begun = self.change(|word| {
            if word & PENDING == 0 || word & (DELAYED | DEFERRED) != 0 || issued(word) != ticket {
                return Err(());
            }
            if word & RUNNING != 0 && !can_leave {
                return Ok((word, Arrival::Busy));
            }
            if word & RUNNING != 0 {
                return Ok((word | DEFERRED, Arrival::Deferred));
            }
            let number = u64::from(ticket.0);
            let cleared = word & !(PENDING | NUMBER << RUN_SHIFT);
            Ok((cleared | RUNNING | number << RUN_SHIFT, Arrival::Run))
        });
        begun.unwrap_or(Arrival::Stale)
    }

    /// The run is over. A ticket that arrived meanwhile is given back, to be queued again.
    pub(crate) fn end(&self) -> Option<Ticket> {
        self.change::<_, std::convert::Infallible>(|word| {
            let deferred = (word & DEFERRED != 0).then(|| issued(word));
            Ok((word & !(RUNNING | DEFERRED), deferred))
        })
        .unwrap_or(None)
    }

    /// This ticket could not be delivered. False, and nothing changes, if somebody counts on it.
    pub(crate) fn withdraw_unless_relied_on(&self, ticket: Ticket) -> bool {
        let withdrawn: Result<bool, ()> = self.change(|word| {
            if word & PENDING == 0 || issued(word) != ticket {
                return Ok((word, true));
            }
            if word & RELIED_ON != 0 {
                return Err(());
            }
            Ok((word & !(PENDING | DEFERRED | DELAYED), true))
        });
        withdrawn.unwrap_or(false)
    }

    /// This ticket could not be delivered. A later one is left alone.
    pub(crate) fn withdraw(&self, ticket: Ticket) {
        // A ticket that is stale already needs nothing.
        let _: Result<(), ()> = self.change(|word| {
            if word & PENDING == 0 || issued(word) != ticket {
                return Err(());
            }
            Ok((word & !(PENDING | DEFERRED | DELAYED), ()))
        });
    }

    /// Makes the item not pending. True when it was.
    pub(crate) fn cancel(&self) -> bool {
        let cancelled = self.change(|word| {
            if word & PENDING == 0 {
                Err(())
            } else {
                Ok((word & !(PENDING | DEFERRED | DELAYED), ()))
            }
        });
        cancelled.is_ok()
    }

    /// Refuses to be queued from now on, and cancels; counted. True when it was pending. `Err` when
    /// the count is at its maximum.
    pub(crate) fn disable(&self) -> Result<bool, ()> {
        self.change(|word| {
            if word & DISABLED == DISABLED {
                return Err(());
            }
            let quiet = word & !(PENDING | DEFERRED | DELAYED);
            Ok((quiet + DISABLED_ONE, word & PENDING != 0))
        })
    }

    /// Undoes one `disable`. `Err` when there was none.
    pub(crate) fn enable(&self) -> Result<(), ()> {
        self.change(
            |word| {
                if word & DISABLED == 0 { Err(()) } else { Ok((word - DISABLED_ONE, ())) }
            },
        )
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.word.load(Ordering::SeqCst) & PENDING != 0
    }

    /// Whether the item is pending under this ticket, wherever that is.
    pub(crate) fn is_current(&self, ticket: Ticket) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        word & PENDING != 0 && issued(word) == ticket
    }

    pub(crate) fn is_running(&self) -> bool {
        self.word.load(Ordering::SeqCst) & RUNNING != 0
    }

    /// Waits until the item does not run.
    pub(crate) fn wait_until_not_running(&self) {
        self.watch(|word| word & RUNNING == 0);
    }

    /// Waits for the latest queueing so far: until it has been run or cancelled, but not for its
    /// time.
    pub(crate) fn wait_for_latest(&self) -> Latest {
        let word = self.word.load(Ordering::SeqCst);
        let awaited = if word & PENDING != 0 {
            issued(word)
        } else if word & RUNNING != 0 {
            being_run(word)
        } else {
            return Latest::Nothing;
        };
        let delayed = |word| word & DELAYED != 0 && issued(word) == awaited;
        self.watch(|word| {
            let pending = word & PENDING != 0 && issued(word) == awaited;
            let running = word & RUNNING != 0 && being_run(word) == awaited;
            delayed(word) || !pending && !running
        });
        if delayed(self.word.load(Ordering::SeqCst)) { Latest::Delayed } else { Latest::Over }
    }

    fn watch(&self, done: impl Fn(u64) -> bool) {
        loop {
            let epoch = self.changed.word().load(Ordering::SeqCst);
            let word = self.word.load(Ordering::SeqCst);
            if done(word) {
                return;
            }
            let watched = word | WATCHED;
            if (self.word)
                .compare_exchange(word, watched, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                self.changed.wait(epoch, None);
            }
        }
    }
}

fn issue(word: u64, delayed: bool) -> (u64, Ticket) {
    let number = ((word >> TICKET_SHIFT) + 1) & NUMBER;
    let rest = word & !(NUMBER << TICKET_SHIFT | RELIED_ON);
    let flags = PENDING | if delayed { DELAYED } else { 0 };
    let new = rest | flags | number << TICKET_SHIFT;
    (new, issued(new))
}

fn issued(word: u64) -> Ticket {
    number_at(word, TICKET_SHIFT)
}

fn being_run(word: u64) -> Ticket {
    number_at(word, RUN_SHIFT)
}

fn number_at(word: u64, shift: u32) -> Ticket {
    Ticket((word >> shift & NUMBER) as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn queueing_twice_is_a_no_op_that_says_so() {
        let item = ItemState::new();
        let ticket = item.queue(false).unwrap();
        assert_eq!(item.queue(false), Err(Refusal::AlreadyPending));
        assert_eq!(item.begin(ticket, true), Arrival::Run);
        assert_eq!(item.begin(ticket, true), Arrival::Stale, "a ticket is good once");
        assert_eq!(item.end(), None);
    }

    #[test]
    fn queued_while_running_runs_afterwards() {
        let item = ItemState::new();
        let first = item.queue(false).unwrap();
        assert_eq!(item.begin(first, true), Arrival::Run);
        let second = item.queue(false).unwrap();
        assert_eq!(item.begin(second, true), Arrival::Deferred);
        assert_eq!(item.end(), Some(second));
        assert_eq!(item.begin(second, true), Arrival::Run);
    }

    #[test]
    fn a_cancelled_ticket_is_stale_even_when_queued_anew() {
        let item = ItemState::new();
        let old = item.queue(false).unwrap();
        assert!(item.cancel());
        assert!(!item.cancel());
        let new = item.queue(false).unwrap();
        assert_eq!(item.begin(old, true), Arrival::Stale);
        assert_eq!(item.begin(new, true), Arrival::Run);
    }

    #[test]
    fn a_ticket_that_is_withdrawn_takes_no_other_with_it() {
        let item = ItemState::new();
        let old = item.queue(false).unwrap();
        assert!(item.cancel());
        let new = item.queue(false).unwrap();
        item.withdraw(old);
        assert!(item.is_pending());
        item.withdraw(new);
        assert!(!item.is_pending());
    }

    #[test]
    fn disabling_is_counted() {
        let item = ItemState::new();
        let ticket = item.queue(false).unwrap();
        assert_eq!(item.disable(), Ok(true));
        assert_eq!(item.disable(), Ok(false));
        assert_eq!(item.begin(ticket, true), Arrival::Stale);
        item.enable().unwrap();
        assert_eq!(item.queue(false), Err(Refusal::Disabled));
        item.enable().unwrap();
        assert!(item.queue(false).is_ok());
        assert_eq!(item.enable(), Err(()));
        for _ in 0..255 {
            item.disable().unwrap();
        }
        assert_eq!(item.disable(), Err(()));
    }

    #[test]
    fn a_delayed_ticket_can_be_moved_promoted_and_cancelled() {
        let item = ItemState::new();
        let first = item.queue(true).unwrap();
        assert!(item.awaits_timer(first));
        assert_eq!(item.begin(first, true), Arrival::Stale, "not before its time");
        let (second, was_pending) = item.requeue(true).unwrap();
        assert!(was_pending && !item.expire(first));
        let third = item.promote().unwrap();
        assert!(!item.expire(second));
        assert_eq!(item.begin(third, true), Arrival::Run);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::{Arc, AtomicU32};

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(body);
    }

    /// Follows a ticket as a worker does.
    fn arrive(item: &ItemState, ticket: Ticket, running: &AtomicU32, runs: &AtomicU32) {
        let mut next = Some(ticket);
        while let Some(ticket) = next.take() {
            if item.begin(ticket, true) == Arrival::Run {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "twice at once");
                runs.fetch_add(1, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
                next = item.end();
            }
        }
    }

    /// cancel_sync against run: afterwards the item neither runs nor will.
    #[test]
    fn cancel_sync_leaves_nothing_running() {
        model(|| {
            let item = Arc::new(ItemState::new());
            let running = Arc::new(AtomicU32::new(0));
            let runs = Arc::new(AtomicU32::new(0));
            let ticket = item.queue(false).unwrap();
            let worker = {
                let (item, running, runs) =
                    (Arc::clone(&item), Arc::clone(&running), Arc::clone(&runs));
                thread::spawn(move || arrive(&item, ticket, &running, &runs))
            };
            let cancelled = item.disable().unwrap();
            item.wait_until_not_running();
            assert_eq!(running.load(Ordering::SeqCst), 0);
            assert_eq!(runs.load(Ordering::SeqCst), u32::from(!cancelled));
            item.enable().unwrap();
            worker.join().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), u32::from(!cancelled), "nor later");
        });
    }

    /// Two workers, one item queued again while it may be running: never twice at once, and every
    /// successful queueing is one run.
    #[test]
    fn never_twice_at_once() {
        model(|| {
            let item = Arc::new(ItemState::new());
            let running = Arc::new(AtomicU32::new(0));
            let runs = Arc::new(AtomicU32::new(0));
            let first = item.queue(false).unwrap();
            let worker = {
                let (item, running, runs) =
                    (Arc::clone(&item), Arc::clone(&running), Arc::clone(&runs));
                thread::spawn(move || arrive(&item, first, &running, &runs))
            };
            let mut queued = 1;
            if let Ok(second) = item.queue(false) {
                queued += 1;
                arrive(&item, second, &running, &runs);
            }
            worker.join().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), queued);
        });
    }

    /// flush of an item: what was pending when it began has been run when it ends.
    #[test]
    fn a_flush_waits_for_the_run() {
        model(|| {
            let item = Arc::new(ItemState::new());
            let running = Arc::new(AtomicU32::new(0));
            let runs = Arc::new(AtomicU32::new(0));
            let ticket = item.queue(false).unwrap();
            let worker = {
                let (item, running, runs) =
                    (Arc::clone(&item), Arc::clone(&running), Arc::clone(&runs));
                thread::spawn(move || arrive(&item, ticket, &running, &runs))
            };
            item.wait_for_latest();
            assert_eq!(runs.load(Ordering::SeqCst), 1);
            worker.join().unwrap();
        });
    }
}
