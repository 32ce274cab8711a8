//! What the queues promise, tried from outside, two features at a time.
//!
//! Each promise is tried in a process of its own, which is killed when it takes too long: a promise
//! that is broken by a deadlock, an endless loop or an abort fails its test and no other one. Run
//! one by name as any other test.

#![cfg(not(miri))]

mod concurrency;
mod drops;
mod ends;
mod forks;
mod groups;
mod limits;
mod lives;
mod nesting;
mod pairs;
mod places;
mod process;
mod progress;
mod repeats;
mod scopes;
mod settings;
mod shutdown;
mod threes;
mod views;
mod waits;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tollgate_workqueue::{Queue, Runtime, Topology, blocking};

/// Longer than anything here takes on a loaded machine, and shorter than [`process::LIMIT`].
const LONG: Duration = Duration::from_secs(20);

/// Waits until `done`, for a generous but bounded time.
fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Threads of this process whose name begins like that.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(name)).count()
}

/// Whether an item that [`hold`] queued declares that it waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Declared,
    Undeclared,
}

/// Occupies a worker until the returned sender is dropped.
fn hold(queue: &Queue, how: Hold) -> mpsc::Sender<()> {
    let (open, closed) = mpsc::channel::<()>();
    let (started, starts) = mpsc::channel();
    let body = move || {
        started.send(()).unwrap();
        let _ = match how {
            Hold::Declared => blocking(|| closed.recv()),
            Hold::Undeclared => closed.recv(),
        };
    };
    queue.post(body).unwrap();
    starts.recv_timeout(LONG).unwrap();
    open
}

/// The machine with each half of its CPUs taken for a last-level cache. `None` with one CPU, which
/// is said.
fn two_caches() -> Option<Topology> {
    let machine = Topology::current().unwrap();
    if machine.allowed().len() < 2 {
        eprintln!("skipped: one CPU cannot be two caches");
        return None;
    }
    Some(machine.pretend_llcs(2).unwrap())
}

/// One queue of each kind.
fn kinds(runtime: &Runtime) -> Vec<Queue> {
    let queue = |name| runtime.queue(name);
    vec![
        queue("plain").build().unwrap(),
        queue("limited").max_active(1).build().unwrap(),
        queue("ordered").ordered().build().unwrap(),
        queue("rescued").max_active(2).rescuer().build().unwrap(),
    ]
}
