//! Code of the program's that a pool calls: executors and wakers. It may panic, and use the pool.
#![expect(unsafe_code, reason = "a waker that does something when it is cloned")]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate_hugepage::pool::{Background, CleanerOptions, Job};
use tollgate_hugepage::{Backing, Buffer, Pool, state::Taken};

const BUFFER: usize = 4096;

fn pool(buffers: usize) -> Pool {
    Pool::builder().class(BUFFER, buffers).ladder(&[Backing::Base]).build().unwrap()
}

/// Panics when it is dropped, and so does what it panics with then.
struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        panic_any(Self);
    }
}

struct Panics;

impl Background for Panics {
    fn run_after(&self, _delay: Duration, _job: Job) {
        panic_any(Endless);
    }
}

#[test]
fn an_executor_that_panics_does_not_come_out_of_a_drop() {
    let pool = pool(1);
    pool.cleaner(CleanerOptions::default()).run_on(Arc::new(Panics));
    assert_eq!(pool.stats().background_panics, 1);
    for _ in 0..3 {
        let before = pool.stats().background_panics;
        pool.take(BUFFER).unwrap()[9] = 7;
        assert!(pool.stats().background_panics > before, "offered again");
        assert!(pool.take(BUFFER).unwrap().iter().all(|byte| *byte == 0));
    }
    // Two panics at once would end the process.
    let owner = pool.clone();
    let owner = thread::spawn(move || {
        let mut buffer = owner.take(BUFFER).unwrap();
        buffer[9] = 7;
        panic!("the owner, on purpose");
    });
    assert!(owner.join().is_err());
    assert!(pool.take(BUFFER).unwrap().iter().all(|byte| *byte == 0));
    let idle = Box::new(|| panic_any(Endless));
    let mut cleaner = pool.cleaner(CleanerOptions { idle, ..CleanerOptions::default() });
    pool.take(BUFFER).unwrap()[9] = 7;
    let step = catch_unwind(AssertUnwindSafe(|| cleaner.step()));
    assert!(matches!(step, Ok(tollgate_hugepage::pool::Step::Busy)));
}

/// What a waker does each time that it is cloned.
type OnClone = Mutex<Box<dyn FnMut() + Send>>;

/// A waker that calls `on_clone`, which is never dropped.
fn waker(on_clone: impl FnMut() + Send + 'static) -> Waker {
    let on_clone: OnClone = Mutex::new(Box::new(on_clone));
    let on_clone = Box::leak(Box::new(on_clone));
    fn raw(on_clone: *const ()) -> RawWaker {
        RawWaker::new(on_clone, &TABLE)
    }
    fn clone(on_clone: *const ()) -> RawWaker {
        // SAFETY: made from a reference to one that is never dropped, below.
        let call = unsafe { &*on_clone.cast::<OnClone>() };
        (call.lock().unwrap())();
        raw(on_clone)
    }
    static TABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), |_| ());
    // SAFETY: the functions are for any thread, need no count, and get the pointer that they expect.
    unsafe { Waker::from_raw(raw(std::ptr::from_ref(on_clone).cast())) }
}

/// Calls `body` on a thread of its own, and fails when it hangs.
fn within_time(body: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        body();
        tell.send(()).unwrap();
    });
    if told.recv_timeout(Duration::from_secs(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("it hangs");
    }
    thread.join().unwrap();
}

#[test]
fn a_waker_may_use_the_pool_when_it_is_cloned() {
    within_time(|| {
        let pool = pool(1);
        let other = pool.clone();
        let polls = waker(move || {
            let mut take = pin!(other.take_async(BUFFER));
            let _ = take.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        let held = pool.take(BUFFER).unwrap();
        let mut take = pin!(pool.take_async(BUFFER));
        for _ in 0..2 {
            assert!(take.as_mut().poll(&mut Context::from_waker(&polls)).is_pending());
        }
        drop(held);
        assert!(take.as_mut().poll(&mut Context::from_waker(&polls)).is_ready());
    });
}

#[test]
fn a_waker_may_give_a_buffer_back_when_it_is_cloned() {
    within_time(|| {
        let pool = pool(1);
        let held: Arc<Mutex<Option<Buffer<Taken>>>> = Arc::default();
        *held.lock().unwrap() = Some(pool.take(BUFFER).unwrap());
        let gives = waker(move || {
            drop(held.lock().unwrap().take());
        });
        let mut take = pin!(pool.take_async(BUFFER));
        // What is given back meanwhile is found at once.
        let taken = take.as_mut().poll(&mut Context::from_waker(&gives));
        assert!(matches!(taken, Poll::Ready(Ok(_))));
    });
}

/// Counts how often it wakes, and panics when it does, or when it is dropped.
struct Panicking {
    woken: AtomicUsize,
    in_wake: bool,
    in_drop: bool,
}

impl Panicking {
    fn new(in_wake: bool, in_drop: bool) -> Arc<Self> {
        Arc::new(Self { woken: AtomicUsize::new(0), in_wake, in_drop })
    }
}

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        if self.in_wake {
            panic_any(Endless);
        }
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        if self.in_drop {
            panic_any(Endless);
        }
    }
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Arc<Panicking>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
}

#[test]
fn a_waker_that_panics_keeps_nobody_waiting() {
    let [counts, panicking] = [false, true].map(|in_wake| move || Panicking::new(in_wake, false));
    let pool = pool(1);
    // Given back by an owner, by one that panics, and by a task that gives up once it was woken.
    for how in 0..3 {
        let held = pool.take(BUFFER).unwrap();
        let wakers = [counts(), panicking(), panicking(), counts(), panicking()];
        let mut tasks = [(); 5].map(|()| Some(Box::pin(pool.take_async(BUFFER))));
        let first = if how == 2 { 0 } else { 1 };
        for (task, waker) in tasks.iter_mut().zip(&wakers).skip(first) {
            assert!(poll(task.as_mut().unwrap().as_mut(), waker).is_pending());
        }
        let owner = move || {
            let _held = held;
            assert!(how != 1, "the owner, on purpose");
        };
        assert_eq!(thread::spawn(owner).join().is_err(), how == 1, "{how}");
        let given_up = tasks[0].take();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(given_up))).is_ok());
        let woken: Vec<_> = wakers.iter().map(|waker| waker.woken.load(Ordering::SeqCst)).collect();
        assert_eq!(woken, [usize::from(how == 2), 1, 1, 1, 0], "{how}");
        let third = poll(tasks[3].as_mut().unwrap().as_mut(), &wakers[3]);
        assert!(matches!(third, Poll::Ready(Ok(_))), "{how}");
    }
    drop(pool.take(BUFFER).expect("no buffer is lost"));
}

#[test]
fn a_waker_that_panics_when_it_is_dropped_takes_no_buffer_along() {
    let pool = pool(1);
    let held = pool.take(BUFFER).unwrap();
    let (mut first, mut second) = (pin!(pool.take_async(BUFFER)), pin!(pool.take_async(BUFFER)));
    let woken = Panicking::new(false, false);
    assert!(poll(first.as_mut(), &woken).is_pending());
    // Nobody else has these: the pool drops one when the task waits anew, the other with its place.
    for _ in 0..2 {
        let waker = Panicking::new(false, true);
        assert!(poll(second.as_mut(), &waker).is_pending());
        assert!(Arc::into_inner(waker).is_none(), "the pool has it");
    }
    drop(held);
    assert_eq!(woken.woken.load(Ordering::SeqCst), 1);
    // It was not woken, so its place is there still.
    assert!(matches!(poll(second.as_mut(), &woken), Poll::Ready(Ok(_))));
    drop(pool.take(BUFFER).expect("no buffer is lost"));
}
