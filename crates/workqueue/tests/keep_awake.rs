//! A runtime that keeps CPUs awake while its workers are woken again and again.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_haltpoll::{KeepAwake, Mode, State};
use tollgate_workqueue::Runtime;

#[test]
fn wake_ups_that_follow_one_another_are_a_burst_that_ends() {
    let awake = Arc::new(KeepAwake::start(Mode::On));
    while awake.status().state == State::Measuring {
        thread::sleep(Duration::from_millis(1));
    }
    if awake.status().state == State::Off {
        println!("skipped: {}", awake.status());
        return;
    }
    // Without spinning, a worker sleeps after each item.
    let builder = Runtime::builder().spin(Duration::ZERO).keep_awake(Arc::clone(&awake));
    let runtime = builder.build().unwrap();
    let queue = runtime.queue("burst").build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while awake.status().bursts == 0 {
        assert!(Instant::now() < deadline, "no burst: {}", awake.status());
        for _ in 0..200 {
            queue.post(|| ()).unwrap();
            thread::sleep(Duration::from_micros(50));
        }
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(20));
    let after = awake.status();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(awake.status().awake, after.awake, "a burst went on without a wake-up");
    // In this order too: the runtime's workers hold hooks, and maybe the last reference.
    drop(awake);
    drop(runtime);
}
