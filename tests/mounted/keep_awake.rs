//! CPUs are kept from halting in bursts of requests, and an idle mount costs nothing.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

/// Requests that the kernel cannot serve from what it remembers.
fn burst(view: &View, length: Duration) {
    let end = Instant::now() + length;
    while Instant::now() < end {
        for number in 0..20 {
            assert!(fs::metadata(view.at(&format!("missing {number}"))).is_err());
        }
    }
}

fn view(options: &[&str]) -> (tempfile::TempDir, View) {
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), "", &[options, &["--attr-timeout", "0"]].concat());
    (lower, view)
}

#[test]
fn bursts_are_counted_and_an_idle_mount_costs_nothing() {
    if !can_mount() {
        return;
    }
    let (_lower, view) = view(&["--keep-awake", "on"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let report = loop {
        burst(&view, Duration::from_millis(50));
        let report = view.server_report()["keep_awake"].clone();
        if report["bursts"].as_u64().unwrap() > 0 || report["by"] == "nothing" {
            break report;
        }
        assert!(Instant::now() < deadline, "{report}");
    };
    if report["by"] == "nothing" {
        // A machine with one CPU has none to keep awake.
        assert!(std::thread::available_parallelism().unwrap().get() == 1, "{report}");
        return;
    }
    assert!(report["awake_seconds"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["text"].as_str().unwrap().starts_with("on by "), "{report}");
    // A thread that went on spinning would use all of this.
    std::thread::sleep(Duration::from_millis(50));
    let (before, idle) = (view.cpu_ticks(), Duration::from_secs(2));
    std::thread::sleep(idle);
    let used = view.cpu_ticks() - before;
    assert!(used <= 10, "{used}0 ms of CPU time in {idle:?} of an idle mount");
}

#[test]
fn off_means_no_thread() {
    if !can_mount() {
        return;
    }
    let (_lower, view) = view(&["--keep-awake", "off"]);
    burst(&view, Duration::from_millis(20));
    let report = view.server_report()["keep_awake"].clone();
    assert_eq!((&report["by"], &report["reason"]), (&"nothing".into(), &"as asked for".into()));
    let threads = view.threads();
    assert!(!threads.iter().any(|name| name.starts_with("haltpoll")), "{threads:?}");
}
