//! What waking a thread on another CPU costs after that CPU was idle for a while: as it is, while
//! pollers keep it awake, and while the kernel's idle loop polls.
//!
//! ```text
//! cargo run --release -p tollgate-haltpoll --example wakes
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tollgate_haltpoll::{Hook, KeepAwake, Mode, Roots, State};

const WAKES: u64 = 500;

fn main() {
    let nowhere = Roots { dev: "/nonexistent".into(), ..Roots::default() };
    println!(
        "{:<20} {:>9} {:>30} {:>24}",
        "", "idle us", "wake us p50 (p90, p99)", "call us p50 (p90)"
    );
    for (mode, roots) in
        [(Mode::Off, nowhere.clone()), (Mode::On, nowhere), (Mode::On, Roots::default())]
    {
        let awake = KeepAwake::start_with(mode, roots);
        while awake.status().state == State::Measuring {
            thread::sleep(Duration::from_millis(1));
        }
        let name = match awake.status().state {
            State::Ready(means) => means.to_string(),
            _ => "off".to_owned(),
        };
        for idle in [50, 200, 1_000].map(Duration::from_micros) {
            // In a thread of its own, because it binds itself to a CPU.
            let hook = awake.hook();
            let trips = thread::spawn(move || trips(hook, idle)).join();
            let (mut wakes, mut calls) = trips.expect("the thread that wakes");
            let [w50, w90, w99] = [50, 90, 99].map(|p| quantile(&mut wakes, p));
            let [c50, c90] = [50, 90].map(|p| quantile(&mut calls, p));
            let us = idle.as_micros();
            println!("{name:<20} {us:>9} {w50:>14.1} ({w90:.1}, {w99:.1}) {c50:>14.1} ({c90:.1})");
        }
        println!("    {}", awake.status());
    }
}

fn quantile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)].as_nanos() as f64 / 1e3
}

/// How long wake-ups took, and the calls that made them.
fn trips(mut hook: Hook, idle: Duration) -> (Vec<Duration>, Vec<Duration>) {
    let (start, sent_ns, round) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let ready = AtomicBool::new(false);
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    thread::scope(|scope| {
        let asleep = scope.spawn(|| {
            bind(1);
            let wake = |n| {
                ready.store(true, Ordering::SeqCst);
                while round.load(Ordering::SeqCst) < n {
                    thread::park();
                }
                Duration::from_nanos(now_ns() - sent_ns.load(Ordering::SeqCst))
            };
            (1..=WAKES).map(wake).collect::<Vec<_>>()
        });
        bind(0);
        let call = |n| {
            while !ready.swap(false, Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            let from = Instant::now();
            while from.elapsed() < idle {
                std::hint::spin_loop();
            }
            hook.touch();
            send(asleep.thread(), &round, n, &sent_ns, &now_ns)
        };
        let calls = (1..=WAKES).map(call).collect();
        (asleep.join().expect("the thread that is woken"), calls)
    })
}

fn send(
    asleep: &Thread,
    round: &AtomicU64,
    n: u64,
    sent_ns: &AtomicU64,
    now_ns: &impl Fn() -> u64,
) -> Duration {
    let before = now_ns();
    sent_ns.store(before, Ordering::SeqCst);
    round.store(n, Ordering::SeqCst);
    asleep.unpark();
    Duration::from_nanos(now_ns() - before)
}

fn bind(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("two CPUs");
}
