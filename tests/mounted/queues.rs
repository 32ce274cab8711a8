//! The work queues of a view: seen and changed from outside, and near the caller.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use serde_json::Value;

use crate::harness::{View, can_mount};
use crate::redacted::{POLICY, masked, text, view_of};

/// `tollgate wq` about the server of `view`.
fn ask(view: &View, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("wq").args(args).args(["--pid", &view.pid().to_string()]).output().unwrap()
}

#[track_caller]
fn wq(view: &View, args: &[&str]) -> String {
    let output = ask(view, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `tollgate wq` on a live view, while it is read.
#[test]
fn the_work_queues_are_seen_and_changed_under_load() {
    if !can_mount() {
        return;
    }
    let (view, expected) = view_of(&text(1 << 20));
    are_seen_and_changed(&view, &expected);
}

/// The server may make no socket by then (its sandbox is `strict`: a call that it does not expect
/// would end it).
#[test]
fn the_work_queues_that_a_reload_brings_are_seen_and_changed_too() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let text = text(1 << 20);
    fs::create_dir(lower.path().join("r")).unwrap();
    fs::write(lower.path().join("r/f"), &text).unwrap();
    let view = View::of(lower.path(), "default = 'userspace'\n", &[]);
    assert!(fs::read(view.at("r/f")).unwrap() == text);
    let none = ask(&view, &["dump"]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(!none.status.success() && said.contains("has no work queues"), "{said}");
    reload(&view, POLICY);
    are_seen_and_changed(&view, &masked(&text));
    // Once more, with the queues there.
    reload(&view, POLICY);
    assert!(wq(&view, &["dump"]).contains("redact"));
    assert_eq!(view.server_report()["sandbox"]["refused_calls"], 0);
}

fn reload(view: &View, policy: &str) {
    fs::write(view.policy_file(), policy).unwrap();
    let mut reload = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let reloaded = reload.arg("reload").arg(view.root()).output().unwrap();
    assert!(reloaded.status.success(), "{reloaded:?}");
}

fn are_seen_and_changed(view: &View, expected: &[u8]) {
    let dump = wq(view, &["dump"]);
    assert!(["redact", "seal", "io"].iter().all(|queue| dump.contains(queue)), "{dump}");
    let stop = AtomicBool::new(false);
    let path = view.at("r/f");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(fs::read(&path).unwrap() == expected);
            }
        });
        for setting in ["affinity_scope=system", "max_active=1", "affinity_scope=cpu"] {
            let shown = wq(view, &["set", "redact", setting]);
            assert!(shown.contains("redact"), "{shown}");
        }
        // What is read meanwhile is counted.
        let begun = Instant::now();
        let mut started = false;
        while !started && begun.elapsed() < Duration::from_secs(60) {
            let monitor = ["monitor", "--json", "--interval", "0.2", "--count", "2", "redact"];
            let counted = wq(view, &monitor);
            let rates =
                counted.lines().map(|line| -> Value { serde_json::from_str(line).unwrap() });
            let rates = rates.map(|line| line["queues"][0]["started_per_s"].as_f64().unwrap());
            started = rates.sum::<f64>() > 0.0;
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(started, "nothing was started in a minute of reading");
    });
}

/// With a pod for each CPU, whose workers stay there: most of what one caller asks for is computed on
/// its CPU, and moves with it.
#[test]
fn what_a_caller_asks_for_is_computed_in_the_pod_of_its_cpu() {
    if !can_mount() {
        return;
    }
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).take(2).collect();
    let [first, second] = cpus[..] else {
        println!("not tested: this machine has one CPU");
        return;
    };
    let (view, expected) = view_of(&text(8 << 20));
    wq(&view, &["set", "redact", "affinity_scope=cpu", "affinity_strict=true"]);
    let file = File::open(view.at("r/f")).unwrap();
    for (own, other) in [(first, second), (second, first), (first, second)] {
        let run = || {
            pin(own);
            // Until the transport has followed its caller.
            read_here_and_there(&file, &expected, Duration::from_millis(500));
            let before = [own, other].map(|cpu| run_time(&view, cpu));
            read_here_and_there(&file, &expected, Duration::from_secs(1));
            let after = [own, other].map(|cpu| run_time(&view, cpu));
            [0, 1].map(|index| after[index] - before[index])
        };
        // Other programs may keep the transport from its caller's CPU for a while: also the tests beside
        // this one.
        let mut times = Vec::new();
        let is_here = (0..60).any(|_| {
            let [here, there] = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
            times.push((here, there));
            // A request that the transport takes from another CPU is computed there: up to a third.
            here > 50_000_000 && 4 * here > 5 * there
        });
        assert!(is_here, "ns on CPU {own}, and on CPU {other}: {times:?}");
    }
}

fn pin(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    rustix::thread::sched_setaffinity(None, &one).unwrap();
}

/// In steps that nobody reads ahead.
fn read_here_and_there(file: &File, expected: &[u8], time: Duration) {
    let mut bytes = vec![0; 128 << 10];
    let begun = Instant::now();
    for step in 0_u64.. {
        if begun.elapsed() > time {
            return;
        }
        let at = step * (777 << 10) % (7 << 20);
        file.read_exact_at(&mut bytes, at).unwrap();
        let at = usize::try_from(at).unwrap();
        assert!(bytes == expected[at..at + bytes.len()]);
    }
}

/// How long threads that may run on `cpu` alone have run as workers of the queues, in nanoseconds.
fn run_time(view: &View, cpu: usize) -> u64 {
    let mut time = 0;
    for task in fs::read_dir(format!("/proc/{}/task", view.pid())).unwrap() {
        let task = task.unwrap().path();
        let read = |name: &str| fs::read_to_string(task.join(name));
        let (Ok(name), Ok(status), Ok(run)) = (read("comm"), read("status"), read("schedstat"))
        else {
            continue;
        };
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        if name.starts_with("tollgate-wq") && allowed.unwrap().trim() == cpu.to_string() {
            time += run.split(' ').next().unwrap().parse::<u64>().unwrap();
        }
    }
    time
}
