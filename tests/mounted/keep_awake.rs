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
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = loop {
        burst(&view, Duration::from_millis(50));
        let report = view.server_report()["keep_awake"].clone();
        let is_awake = report["bursts"].as_u64() > Some(0)
            && report["awake_seconds"].as_f64() > Some(0.0)
            && report["by"] != "measuring";
        if is_awake || report["by"] == "nothing" {
            break report;
        }
        assert!(Instant::now() < deadline, "{report}");
    };
    if report["by"] == "nothing" {
        // A machine with one CPU has none to keep awake.
        assert!(std::thread::available_parallelism().unwrap().get() == 1, "{report}");
        return;
    }
    assert!(report["text"].as_str().unwrap().starts_with("on by "), "{report}");
    // A thread that went on spinning would use all of each of these times.
    let idle = Duration::from_secs(2);
    let used = || {
        let before = view.cpu_ticks();
        std::thread::sleep(idle);
        view.cpu_ticks() - before
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while used() > 10 {
        assert!(Instant::now() < deadline, "more than 100 ms of CPU time in {idle:?}, each time");
    }
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
