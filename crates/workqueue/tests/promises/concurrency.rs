//! How many items compute at once, when those that did not count come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_workqueue::{Queue, Runtime, blocking};

use crate::process::kept;
use crate::{Hold, hold, kinds};

/// Items that did not count while they waited.
const HELD: usize = 8;
/// Items queued behind each of them.
const BEHIND: usize = 25;

/// Items that compute, and how many did at once.
#[derive(Clone, Default)]
struct Computing {
    now: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    ended: Arc<AtomicU32>,
}

impl Computing {
    fn post(&self, queue: &Queue, time: Duration) {
        let Self { now, most, ended } = self.clone();
        let body = move || {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            compute(time);
            now.fetch_sub(1, Ordering::SeqCst);
            ended.fetch_add(1, Ordering::SeqCst);
        };
        queue.post(body).unwrap();
    }
}

fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Workers that come back from declared waits to one that has taken their place do not go on beside
/// it, whatever kind of queue they serve, and what waits there is run by those who go on.
#[test]
fn waits_that_end_under_load_leave_no_more_computing_than_the_setting() {
    kept("concurrency::waits_that_end_under_load_leave_no_more_computing_than_the_setting", || {
        // A rescuer runs items beside a worker that does not come to the CPU for so long, as on a
        // busy machine.
        let never = Duration::from_secs(3600);
        let runtime = Runtime::builder().concurrency(1).mayday_after(never).build().unwrap();
        let make = |kind, number: usize| {
            let queue = runtime.queue(&format!("{kind}-{number}"));
            let queue = match kind {
                "limited" => queue.max_active(1),
                "ordered" => queue.ordered(),
                "rescued" => queue.max_active(2).rescuer(),
                _ => queue,
            };
            queue.build().unwrap()
        };
        for kind in ["plain", "limited", "ordered", "rescued"] {
            let queues: Vec<_> = (0..HELD).map(|number| make(kind, number)).collect();
            let held: Vec<_> = queues.iter().map(|queue| hold(queue, Hold::Declared)).collect();
            let computing = Computing::default();
            for _ in 0..BEHIND {
                queues.iter().for_each(|queue| computing.post(queue, Duration::from_micros(200)));
            }
            drop(held);
            queues.iter().for_each(|queue| queue.flush().unwrap());
            let ended = computing.ended.load(Ordering::SeqCst) as usize;
            let most = computing.most.load(Ordering::SeqCst);
            assert_eq!((ended, most), (HELD * BEHIND, 1), "{kind}");
        }
    });
}

/// The same for items that held the CPU for so long that others were let run beside them.
#[test]
fn long_computations_that_end_leave_no_more_computing_than_the_setting() {
    kept(
        "concurrency::long_computations_that_end_leave_no_more_computing_than_the_setting",
        || {
            let runtime = Runtime::builder().concurrency(1);
            let runtime = runtime.cpu_intensive_after(Duration::from_millis(2)).build().unwrap();
            let queue = runtime.queue("q").build().unwrap();
            let hogs = Arc::new(AtomicU32::new(8));
            for _ in 0..8 {
                let left = Arc::clone(&hogs);
                let body = move || {
                    compute(Duration::from_millis(30));
                    left.fetch_sub(1, Ordering::SeqCst);
                };
                queue.post(body).unwrap();
            }
            // Queued while the others run; what counts is what they leave behind.
            let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            for _ in 0..3000 {
                let (now, most, left) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&hogs));
                let body = move || {
                    let at_once = now.fetch_add(1, Ordering::SeqCst) + 1;
                    if left.load(Ordering::SeqCst) == 0 {
                        most.fetch_max(at_once, Ordering::SeqCst);
                    }
                    compute(Duration::from_micros(200));
                    now.fetch_sub(1, Ordering::SeqCst);
                };
                queue.post(body).unwrap();
            }
            queue.flush().unwrap();
            assert!(runtime.monitor().queues[0].cpu_intensive > 0);
            assert_eq!(most.load(Ordering::SeqCst), 1);
        },
    );
}

/// Each item waits, so each wakes another worker and comes back to it: nobody stays asleep beside
/// what is queued.
#[test]
fn items_that_all_wait_are_all_run() {
    kept("concurrency::items_that_all_wait_are_all_run", || {
        for concurrency in [1, 2] {
            let runtime = Runtime::builder().concurrency(concurrency).build().unwrap();
            let queues = kinds(&runtime);
            let ended = Arc::new(AtomicU32::new(0));
            for turn in 0..500_u64 {
                for queue in &queues {
                    let ended = Arc::clone(&ended);
                    let body = move || {
                        blocking(|| thread::sleep(Duration::from_micros(turn % 7 * 10)));
                        ended.fetch_add(1, Ordering::SeqCst);
                    };
                    queue.post(body).unwrap();
                }
            }
            queues.iter().for_each(|queue| queue.flush().unwrap());
            assert_eq!(ended.load(Ordering::SeqCst) as usize, 500 * queues.len());
        }
    });
}
