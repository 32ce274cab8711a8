//! What a round trip costs after the queue was idle for a while, with CPUs that halt and with CPUs
//! that are kept awake.
//!
//! ```text
//! cargo run --release -p tollgate-workqueue --example idle_trips
//! ```

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_haltpoll::{KeepAwake, Mode, Roots, State};
use tollgate_workqueue::{Queue, Runtime};

const TRIPS: usize = 400;
const ROUNDS: usize = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let pollers = Roots { dev: "/nonexistent".into(), ..Roots::default() };
    let plans = [(Mode::Off, Roots::default()), (Mode::On, pollers), (Mode::On, Roots::default())];
    println!("{:<20} {:>8} {:>30}", "kept awake by", "idle us", "us p50 (p90, p99) by round");
    for round in 0..ROUNDS {
        for (mode, roots) in &plans {
            let awake = Arc::new(KeepAwake::start_with(*mode, roots.clone()));
            while awake.status().state == State::Measuring {
                thread::sleep(Duration::from_millis(1));
            }
            let name = match awake.status().state {
                State::Ready(means) => means.to_string(),
                _ => "nothing".to_owned(),
            };
            let runtime = Runtime::builder().keep_awake(Arc::clone(&awake)).build()?;
            let queue = runtime.queue("trips").build()?;
            for idle in [200, 1_000].map(Duration::from_micros) {
                let mut times = trips(&queue, idle)?;
                times.sort_unstable();
                let [p50, p90, p99] = [50, 90, 99].map(|p| times[times.len() * p / 100]);
                let us = idle.as_micros();
                println!("{name:<20} {us:>8} {round:>10}: {p50:>6.1?} ({p90:.1?}, {p99:.1?})");
            }
        }
    }
    Ok(())
}

/// The caller sleeps in between, as a program without work does.
fn trips(queue: &Queue, idle: Duration) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        thread::sleep(idle);
        let start = Instant::now();
        queue.spawn(|| ())?.wait()?;
        times.push(start.elapsed());
    }
    Ok(times)
}
