//! The lists and the gate under the model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p tollgate-hugepage --release --lib models`.
//!
//! Two buffers of one byte each stand for memory; the model's cells report every access that the
//! lists do not order.
#![expect(unsafe_code, reason = "the model's cells lend raw pointers")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::time::Duration;

use super::background::OnItsWay;
use super::lists::{Index, List, Lists};
use super::refs::Refs;
use super::wait_list::WaitList;
use crate::sync::Mutex;

const FOREVER: Duration = Duration::from_secs(1 << 40);

struct Shelf {
    lists: Lists,
    waiters: WaitList,
    bytes: [UnsafeCell<u8>; 2],
}

impl Shelf {
    fn new(on_zeroed: u32) -> Arc<Self> {
        let lists = Lists::new(2);
        (0..on_zeroed).for_each(|index| lists.push(List::Zeroed, Index(index)));
        let bytes = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Self { lists, waiters: WaitList::new(), bytes })
    }

    fn write(&self, index: Index, value: u8) {
        // SAFETY: the holder of the index is alone, which is what the model checks.
        self.bytes[index.0 as usize].with_mut(|byte| unsafe { *byte = value });
    }

    fn read(&self, index: Index) -> u8 {
        // SAFETY: as in `write`.
        self.bytes[index.0 as usize].with(|byte| unsafe { *byte })
    }

    /// What the pool does: a zeroed buffer, else a dirty one cleared inline.
    fn take(&self) -> Option<Index> {
        let zeroed = self.lists.pop(List::Zeroed);
        let index = zeroed.or_else(|| {
            let index = self.lists.pop(List::Dirty)?;
            self.write(index, 0);
            Some(index)
        })?;
        assert_eq!(self.read(index), 0, "the mark of an earlier owner");
        Some(index)
    }

    /// A model without waiters explores more orders, see `Lists::look`.
    fn observing(on_zeroed: u32) -> Arc<Self> {
        let mut lists = Lists::new(2);
        lists.observing = true;
        (0..on_zeroed).for_each(|index| lists.push(List::Zeroed, Index(index)));
        let bytes = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Self { lists, waiters: WaitList::new(), bytes })
    }

    /// Uses and gives back, as an owner of `mark`.
    fn own(&self, index: Index, mark: u8) {
        self.write(index, mark);
        assert_eq!(self.read(index), mark, "another owner's mark");
        self.put(List::Dirty, index);
    }

    fn put(&self, list: List, index: Index) -> bool {
        self.lists.push(list, index);
        self.waiters.arrived()
    }
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

#[test]
fn owners_never_share_and_never_see_marks() {
    model(3, || {
        let shelf = Shelf::observing(2);
        let owner = |mark| {
            let shelf = shelf.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(index) = shelf.take() {
                        shelf.own(index, mark);
                    }
                }
            })
        };
        let owners = [owner(1), owner(2)];
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        // Nothing is lost and nothing is there twice.
        assert!(shelf.take().is_some() && shelf.take().is_some() && shelf.take().is_none());
    });
}

#[test]
fn a_top_that_was_taken_and_given_back_deceives_nobody() {
    model(3, || {
        // All on one list: a buffer that comes back must come back to where the other is popping.
        let shelf = Shelf::observing(0);
        (0..2).for_each(|index| shelf.lists.push(List::Dirty, Index(index)));
        let other = {
            let shelf = shelf.clone();
            thread::spawn(move || shelf.take().map(|index| shelf.own(index, 3)))
        };
        // Takes both, gives the top back first: the classic sequence.
        let (first, second) = (shelf.take(), shelf.take());
        first.into_iter().for_each(|index| shelf.own(index, 1));
        second.into_iter().for_each(|index| shelf.own(index, 2));
        other.join().unwrap();
        assert!(shelf.take().is_some() && shelf.take().is_some() && shelf.take().is_none());
    });
}

#[test]
fn a_waiter_gets_the_only_buffer() {
    model(3, || {
        let shelf = Shelf::new(0);
        let waiter = {
            let shelf = shelf.clone();
            thread::spawn(move || {
                let index = shelf.waiters.wait(FOREVER, || shelf.take());
                shelf.own(index.unwrap(), 1);
            })
        };
        shelf.own(Index(0), 9);
        // Should the waiter sleep on, the model ends in a deadlock, which fails.
        waiter.join().unwrap();
        assert!(shelf.take().is_some() && shelf.take().is_none());
    });
}

#[test]
fn two_waiters_get_one_buffer_after_the_other() {
    model(2, || {
        let shelf = Shelf::new(0);
        let waiter = |mark| {
            let shelf = shelf.clone();
            thread::spawn(move || {
                let index = shelf.waiters.wait(FOREVER, || shelf.take());
                shelf.own(index.unwrap(), mark);
            })
        };
        let waiters = [waiter(1), waiter(2)];
        shelf.own(Index(0), 9);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn a_cleaner_and_a_taker_do_not_meet_on_a_buffer() {
    model(3, || {
        let shelf = Shelf::observing(1);
        shelf.lists.push(List::Dirty, Index(1));
        shelf.write(Index(1), 7);
        let cleaner = {
            let shelf = shelf.clone();
            thread::spawn(move || {
                while let Some(index) = shelf.lists.pop(List::Dirty) {
                    shelf.write(index, 0);
                    shelf.put(List::Zeroed, index);
                }
            })
        };
        for mark in 1..3 {
            shelf.take().map(|index| shelf.own(index, mark));
        }
        cleaner.join().unwrap();
        assert!(shelf.take().is_some() && shelf.take().is_some() && shelf.take().is_none());
    });
}

/// The cleaner falls asleep while a buffer is given back: either it finds the buffer, or the giver
/// learns that it must be started; never neither.
#[test]
fn the_cleaner_sleeps_over_no_dirty_buffer() {
    model(3, || {
        let shelf = Shelf::new(0);
        let giver = {
            let shelf = shelf.clone();
            thread::spawn(move || shelf.put(List::Dirty, Index(0)))
        };
        shelf.waiters.cleaner_asleep();
        let found = !shelf.lists.is_empty(List::Dirty) && shelf.waiters.cleaner_awake();
        let told = giver.join().unwrap();
        assert!(found != told, "found {found}, told {told}");
    });
}

/// A cleaner of two classes, and how many jobs of it an executor has.
struct Jobs {
    classes: [Arc<Shelf>; 2],
    on_its_way: OnItsWay,
    waiting: AtomicUsize,
    /// `None` while a job has it.
    state: Mutex<Option<()>>,
}

impl Jobs {
    /// One job is on its way: it was started by a giver of the first class. On the second class the
    /// cleaner still sleeps.
    fn started() -> Arc<Self> {
        let classes = [Shelf::new(0), Shelf::new(0)];
        classes[1].waiters.cleaner_asleep();
        let (on_its_way, waiting) = (OnItsWay::new(), AtomicUsize::new(0));
        let jobs = Self { classes, on_its_way, waiting, state: Mutex::new(Some(())) };
        jobs.start();
        Arc::new(jobs)
    }

    fn start(&self) {
        if self.on_its_way.departs() {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn give(&self, class: usize, index: Index) {
        if self.classes[class].put(List::Dirty, index) {
            self.start();
        }
    }

    /// Whether the executor has one, which is the caller's then.
    fn take(&self) -> bool {
        let taken = |waiting: usize| waiting.checked_sub(1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    fn run(&self) {
        self.on_its_way.arrives();
        if self.state.lock().take().is_none() {
            return;
        }
        for class in &self.classes {
            while let Some(index) = class.lists.pop(List::Dirty) {
                class.write(index, 0);
                if class.put(List::Zeroed, index) {
                    self.start();
                }
            }
        }
        *self.state.lock() = Some(());
        self.fall_asleep();
        if self.is_dirty() && self.classes.iter().any(|class| class.waiters.cleaner_awake()) {
            self.start();
        }
    }

    fn is_dropped(&self) {
        self.on_its_way.arrives();
        self.fall_asleep();
    }

    fn fall_asleep(&self) {
        self.classes.iter().for_each(|class| class.waiters.cleaner_asleep());
    }

    fn is_dirty(&self) -> bool {
        self.classes.iter().any(|class| !class.lists.is_empty(List::Dirty))
    }
}

/// A buffer is given back while a job begins, clears and goes to sleep; a second thread of the
/// executor runs what that starts. The buffer is found, or a job is on its way, and never two.
#[test]
fn a_start_that_finds_a_job_on_its_way_is_not_lost() {
    model(3, || {
        let jobs = Jobs::started();
        let giver = {
            let jobs = jobs.clone();
            thread::spawn(move || {
                jobs.give(1, Index(0));
                if jobs.take() {
                    jobs.run();
                }
            })
        };
        if jobs.take() {
            jobs.run();
        }
        giver.join().unwrap();
        let waiting = jobs.waiting.load(Ordering::Relaxed);
        assert!(waiting <= 1, "{waiting} jobs");
        assert!(waiting == 1 || !jobs.is_dirty(), "a dirty buffer and no job");
    });
}

/// A buffer is given back while an executor drops a job: the next buffer has it offered again.
#[test]
fn a_job_that_is_dropped_is_offered_again() {
    model(3, || {
        let jobs = Jobs::started();
        let giver = {
            let jobs = jobs.clone();
            thread::spawn(move || jobs.give(1, Index(0)))
        };
        assert!(jobs.take());
        jobs.is_dropped();
        giver.join().unwrap();
        jobs.give(1, Index(1));
        assert_eq!(jobs.waiting.load(Ordering::Relaxed), 1);
    });
}

/// The cleaner turns the lists and takes what is aged while an owner takes and gives back.
#[test]
fn a_turn_hides_no_buffer() {
    model(3, || {
        let shelf = Shelf::observing(0);
        shelf.lists.push(List::Dirty, Index(0));
        let cleaner = {
            let shelf = shelf.clone();
            thread::spawn(move || {
                shelf.lists.turn(List::Dirty);
                if let Some(index) = shelf.lists.pop_aged(List::Dirty) {
                    shelf.write(index, 0);
                    shelf.put(List::Zeroed, index);
                }
            })
        };
        shelf.take().map(|index| shelf.own(index, 4));
        cleaner.join().unwrap();
        assert!(shelf.take().is_some() && shelf.take().is_none());
    });
}

/// A task: polled by its thread, woken by the model's notification.
struct Woken(loom::sync::Notify);

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// Waits as a task does.
fn wait_as_task(shelf: &Shelf) -> Index {
    let woken = std::sync::Arc::new(Woken(loom::sync::Notify::new()));
    let waker = std::task::Waker::from(woken.clone());
    let mut ticket = None;
    loop {
        match shelf.waiters.poll(&mut ticket, &waker, || shelf.take()) {
            std::task::Poll::Ready(index) => return index,
            std::task::Poll::Pending => woken.0.wait(),
        }
    }
}

#[test]
fn a_task_and_a_thread_that_wait_get_one_buffer_after_the_other() {
    model(2, || {
        let shelf = Shelf::new(0);
        let (task, waiter) = {
            let (first, second) = (shelf.clone(), shelf.clone());
            let task = thread::spawn(move || first.own(wait_as_task(&first), 1));
            let waiter = thread::spawn(move || {
                let index = second.waiters.wait(FOREVER, || second.take());
                second.own(index.unwrap(), 2);
            });
            (task, waiter)
        };
        shelf.own(Index(0), 9);
        task.join().unwrap();
        waiter.join().unwrap();
    });
}

/// The first of two tasks is woken, and dropped before it looks.
#[test]
fn a_task_that_gives_up_passes_its_wake_up_on() {
    model(3, || {
        let shelf = Shelf::new(0);
        let mut ticket = None;
        let waker = std::task::Waker::noop();
        assert!(shelf.waiters.poll(&mut ticket, waker, || shelf.take()).is_pending());
        let second = {
            let shelf = shelf.clone();
            thread::spawn(move || shelf.own(wait_as_task(&shelf), 1))
        };
        let giver = {
            let shelf = shelf.clone();
            thread::spawn(move || shelf.own(Index(0), 9))
        };
        shelf.waiters.leave(&ticket.unwrap());
        giver.join().unwrap();
        second.join().unwrap();
    });
}

/// A waiter sleeps while the cleaner takes the only buffer aside and puts it back.
#[test]
fn a_waiter_gets_what_the_cleaner_had_aside() {
    model(2, || {
        let shelf = Shelf::new(0);
        shelf.lists.push(List::Dirty, Index(0));
        let waiter = {
            let shelf = shelf.clone();
            thread::spawn(move || shelf.waiters.wait(FOREVER, || shelf.take()).unwrap())
        };
        shelf.lists.turn(List::Dirty);
        if let Some(index) = shelf.lists.pop_aged(List::Dirty) {
            shelf.lists.push_aged(List::Dirty, index);
            let _ = shelf.waiters.arrived();
        }
        waiter.join().unwrap();
    });
}

/// Two buffers are given back, on CPUs of their own, while the last handle goes: one of the three
/// is the last, and sees what all others did before.
#[test]
fn the_last_one_takes_a_pool_apart_alone() {
    model(3, || {
        let refs = Arc::new(Refs::new(2));
        let memory = Arc::new([UnsafeCell::new(1), UnsafeCell::new(1)]);
        refs.up(0);
        refs.up(0);
        let giver = |number: usize| {
            let (refs, memory) = (refs.clone(), memory.clone());
            thread::spawn(move || {
                // SAFETY: the holder of the buffer is alone with it, which the model checks.
                memory[number].with_mut(|byte| unsafe { *byte = 2 });
                refs.down(number) && take_apart(&memory)
            })
        };
        let givers = [giver(0), giver(1)];
        let closer = refs.close() && take_apart(&memory);
        let last = givers.map(|giver| giver.join().unwrap());
        let last = last.into_iter().chain([closer]).filter(|last| *last).count();
        assert_eq!(last, 1);
    });
}

fn take_apart(memory: &[UnsafeCell<u8>; 2]) -> bool {
    // SAFETY: whoever is last is alone, which the model checks.
    memory.iter().for_each(|byte| byte.with_mut(|byte| unsafe { assert_eq!(*byte, 2) }));
    true
}
