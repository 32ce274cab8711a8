//! A program with work queues to look into:
//! `cargo run --release -p tollgate-workqueue --features control --example inspected`.
//!
//! It keeps three queues busy for a minute (or as many seconds as its argument says). Meanwhile, in
//! another terminal:
//!
//!     tollgate wq dump
//!     tollgate wq monitor
//!     tollgate wq set encrypt max_active=1

use std::hint::black_box;
use std::time::{Duration, Instant};

use tollgate_workqueue::{Runtime, Scope, blocking, control};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(60), |text| text.parse())?;
    let runtime = Runtime::builder().build()?;
    let encrypt = runtime.queue("encrypt").build()?;
    let fetch = runtime.queue("fetch").scope(Scope::Numa).max_active(4).build()?;
    let log = runtime.queue("log").ordered().build()?;
    let control = control::serve(&runtime, &control::Directory::of_user("tollgate"))?;
    println!("for {seconds} s: tollgate wq monitor --pid {}", std::process::id());
    println!("requests are taken at {}", control.path().display());

    let end = Instant::now() + Duration::from_secs(seconds);
    let mut turn = 0_u64;
    while Instant::now() < end {
        for _ in 0..20 {
            encrypt.post(move || {
                black_box((0..20_000_u64).fold(turn, |sum, n| black_box(sum.wrapping_add(n))));
            })?;
        }
        fetch.post(|| blocking(|| std::thread::sleep(Duration::from_millis(2))))?;
        log.post(move || drop(black_box(turn.to_string())))?;
        std::thread::sleep(Duration::from_millis(5));
        turn += 1;
    }
    Ok(())
}
