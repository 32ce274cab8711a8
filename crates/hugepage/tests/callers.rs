//! Code of the program's that a pool calls: executors and wakers. It may panic, and use the pool.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate_hugepage::pool::{Background, CleanerOptions, Job};
use tollgate_hugepage::{Backing, Pool};

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
