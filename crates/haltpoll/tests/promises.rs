//! What a program that uses the crate may rely on, through its public face. Bounds on CPU time are
//! generous: they tell a poller that never ends from one that does.
#![expect(unsafe_code, reason = "fork")]

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tollgate_haltpoll::{KeepAwake, Means, Mode, Roots, State};

/// CPU time and threads belong to the whole process, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap())
}

/// Names of this process's threads that belong to the crate.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        name.starts_with("haltpoll").then(|| name.trim().to_owned())
    };
    tasks.filter_map(name).collect()
}

/// Asserts that no thread of the crate is left. `join` returns when a thread no longer touches
/// memory, which is shortly before the kernel takes it from /proc.
fn assert_no_thread() {
    let start = Instant::now();
    while threads() != [] as [String; 0] {
        assert!(start.elapsed() < Duration::from_secs(10), "left: {:?}", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The machine's files without `/dev/cpu_dma_latency`, so that pollers are what is left.
fn without_latency() -> Roots {
    Roots { dev: "/nonexistent".into(), ..Roots::default() }
}

fn ready(awake: &KeepAwake) -> bool {
    let start = Instant::now();
    while awake.status().state == State::Measuring {
        if start.elapsed() > Duration::from_secs(10) {
            // On a busy machine, auto measures again later; on does not.
            assert_eq!(awake.status().mode, Mode::Auto, "still measuring");
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    matches!(awake.status().state, State::Ready(_))
}

fn burst(awake: &KeepAwake, length: Duration) {
    let mut hook = awake.hook();
    let start = Instant::now();
    while start.elapsed() < length {
        hook.touch();
        std::thread::sleep(Duration::from_micros(20));
    }
}

fn several_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}

#[test]
fn off_starts_no_thread_and_its_hooks_do_nothing() {
    let _alone = alone();
    let awake = KeepAwake::start(Mode::Off);
    burst(&awake, Duration::from_millis(5));
    assert_no_thread();
    assert_eq!(awake.status().state, State::Off);
    assert_eq!(awake.status().to_string(), "off: as asked for");
}

#[test]
fn a_burst_is_served_and_nothing_is_left_of_it() {
    let _alone = alone();
    for roots in [Roots::default(), without_latency()] {
        let awake = KeepAwake::start_with(Mode::On, roots);
        if !ready(&awake) {
            assert!(!several_cpus(), "{}", awake.status());
            return;
        }
        burst(&awake, Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(50));
        let after = awake.status();
        assert!(after.bursts >= 1, "{after}");
        assert!(after.awake > Duration::ZERO && after.cpu > Duration::ZERO, "{after}");

        // Idle: a thread that spun on would use all of it.
        let (before, awake_before) = (cpu_time(), awake.status().awake);
        std::thread::sleep(Duration::from_millis(500));
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(50), "idle, and {used:?} of CPU time used");
        assert_eq!(awake.status().awake, awake_before);

        drop(awake);
        assert_no_thread();
    }
}

#[test]
fn many_starts_and_ends_with_hooks_left_over_leave_no_thread() {
    let _alone = alone();
    for round in 0..20_u64 {
        let awake = KeepAwake::start_with(Mode::On, without_latency());
        let mut hook = awake.hook();
        if round.is_multiple_of(2) {
            ready(&awake);
        }
        (0..200).for_each(|_| hook.touch());
        std::thread::sleep(Duration::from_micros(round * 60));
        drop(awake);
        hook.touch();
        assert_no_thread();
    }
}

#[test]
fn it_ends_while_others_compute_on_every_cpu() {
    let _alone = alone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let compute = || {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (0..cpus).for_each(|_| drop(scope.spawn(compute)));
        let awake = KeepAwake::start_with(Mode::On, without_latency());
        ready(&awake);
        burst(&awake, Duration::from_millis(50));
        let start = Instant::now();
        drop(awake);
        let took = start.elapsed();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(took < Duration::from_secs(20), "ended after {took:?}");
        assert_no_thread();
    });
}

#[test]
fn a_fork_may_drop_what_its_parent_started() {
    let _alone = alone();
    let awake = KeepAwake::start(Mode::On);
    ready(&awake);
    // SAFETY: the child drops a value, which takes no lock of another thread (the allocator's are
    // handled by fork), and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        drop(awake);
        // SAFETY: ends the child without running the test harness's own exit.
        unsafe { libc::_exit(0) };
    }
    let (start, mut status) = (Instant::now(), -1);
    // SAFETY: `status` lives until the call returns.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the child waits for a thread it has not"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0);
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn fixture(root: &Path) -> Roots {
    let under = |name| root.join(name);
    write(root, "proc/self/cgroup", "0::/box\n");
    write(root, "proc/loadavg", "0.0 0.0 0.0 1/100 7\n");
    Roots { sys: under("sys"), proc: under("proc"), dev: under("dev") }
}

#[test]
fn a_quota_turns_auto_off_but_not_on() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let roots = fixture(dir.path());
    write(dir.path(), "sys/fs/cgroup/box/cpu.max", "50000 100000\n");
    let auto = KeepAwake::start_with(Mode::Auto, roots.clone());
    assert!(!ready(&auto));
    if several_cpus() {
        let reason = auto.status().reason;
        assert!(reason.contains("quota of 0.50 CPUs") && reason.contains("cpu.max"), "{reason}");
        let on = KeepAwake::start_with(Mode::On, roots);
        assert!(ready(&on));
    }
    burst(&auto, Duration::from_millis(5));
    assert_eq!(auto.status().bursts, 0);
}

#[test]
fn without_a_cpuidle_driver_pollers_are_what_is_left() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let roots = fixture(dir.path());
    write(dir.path(), "dev/cpu_dma_latency", "");
    write(dir.path(), "sys/devices/system/cpu/online", "0-1\n");
    let awake = KeepAwake::start_with(Mode::On, roots.clone());
    if !ready(&awake) {
        return;
    }
    assert_eq!(awake.status().state, State::Ready(Means::Pollers));
    assert!(awake.status().reason.contains("no cpuidle driver"), "{}", awake.status());

    let cpu = "sys/devices/system/cpu";
    write(dir.path(), &format!("{cpu}/cpuidle/current_driver"), "haltpoll\n");
    write(dir.path(), &format!("{cpu}/cpu0/cpuidle/state0/name"), "POLL\n");
    write(dir.path(), &format!("{cpu}/online"), "0-63\n");
    let awake = KeepAwake::start_with(Mode::On, roots);
    assert!(ready(&awake));
    assert_eq!(awake.status().state, State::Ready(Means::Pollers));
    assert!(awake.status().reason.contains("all 64 CPUs"), "{}", awake.status());
}

#[test]
fn a_battery_or_stolen_time_suspends_it() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let roots = fixture(dir.path());
    let supply = "sys/class/power_supply/BAT0";
    write(dir.path(), &format!("{supply}/type"), "Battery\n");
    write(dir.path(), &format!("{supply}/status"), "Discharging\n");
    let awake = KeepAwake::start_with(Mode::Auto, roots);
    if !ready(&awake) {
        // Waking is cheap on this machine, or it is too busy to say: nothing to suspend.
        return;
    }
    // On a busy machine, touches may lie too far apart for a burst: more of them then.
    let start = Instant::now();
    while awake.status().suspended == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", awake.status());
        burst(&awake, Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = awake.status();
    assert_eq!(before.suspended_for.as_deref(), Some("battery"));
    burst(&awake, Duration::from_millis(100));
    let after = awake.status();
    assert_eq!((after.bursts, after.suspended), (before.bursts, 1), "suspended, and {after}");
}
