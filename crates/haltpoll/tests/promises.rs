//! What a program that uses the crate may rely on, through its public face. Bounds on CPU time are
//! generous: they tell a poller that never ends from one that does.
#![expect(unsafe_code, reason = "fork")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
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

/// The same on a machine on which so many threads run or want to, whatever really does. `proc` is its
/// `/proc`, for as long as the result is used.
fn with_runnable(proc: &Path, threads: u32) -> Roots {
    let loadavg = format!("0.50 0.40 0.30 {threads}/20000 789\n");
    std::fs::write(proc.join("loadavg"), loadavg).unwrap();
    Roots { proc: proc.into(), ..without_latency() }
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
fn who_looks_during_a_burst_sees_what_it_spends() {
    let _alone = alone();
    let proc = tempfile::tempdir().unwrap();
    let awake = KeepAwake::start_with(Mode::On, with_runnable(proc.path(), 1));
    if !ready(&awake) {
        return;
    }
    let mut hook = awake.hook();
    let start = Instant::now();
    // The requests never stop: only what is booked meanwhile can be seen.
    let spent = loop {
        let status = awake.status();
        if status.awake >= Duration::from_millis(300) || start.elapsed() > Duration::from_secs(20) {
            break status;
        }
        let next = Instant::now() + Duration::from_millis(10);
        while Instant::now() < next {
            hook.touch();
        }
    };
    // A poller gets no CPU while others compute on all of them.
    assert!(spent.awake >= Duration::from_millis(10), "{spent}");
    assert!(spent.bursts >= 1 && spent.cpu > Duration::ZERO, "{spent}");
    // Read afterwards, and by another thread: never less than what was booked, but for the monitor's own.
    let polling = awake.polling_time();
    let read = std::thread::scope(|scope| scope.spawn(|| polling.read()).join().unwrap());
    let of_monitor = spent.awake / 4 + start.elapsed() / 100;
    assert!(read > Duration::ZERO && read + of_monitor > spent.cpu, "{read:?}, {spent}");
    drop((hook, awake));
    assert_eq!(polling.read(), Duration::ZERO, "its threads have ended");
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
    // The C library gives the memory of the parent's threads to those that a copy starts: one of as
    // many has that of the monitor.
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    // SAFETY: the child drops a value, which takes no lock of another thread, starts and joins
    // threads (the locks of the C library are handled by fork), and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let joined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let sleepers: Vec<_> =
                (0..threads).map(|_| std::thread::spawn(std::thread::park)).collect();
            drop(awake);
            for sleeper in sleepers {
                sleeper.thread().unpark();
                sleeper.join().unwrap();
            }
        }));
        // SAFETY: ends the child without running the test harness's own exit.
        unsafe { libc::_exit(i32::from(joined.is_err())) };
    }
    assert_eq!(status_of(child), 0);
}

/// The exit status of a child, which must end within some seconds.
fn status_of(child: libc::pid_t) -> i32 {
    let (start, mut status) = (Instant::now(), -1);
    // SAFETY: `status` lives until the call returns.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > Duration::from_secs(20) {
            // SAFETY: without memory arguments; it is our child, and still there.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child waits for what only its parent has");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    status
}

#[test]
fn a_copy_of_the_process_waits_for_no_lock_of_its_parent() {
    let _alone = alone();
    let awake = KeepAwake::start(Mode::On);
    ready(&awake);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Holds the lock of the list of hooks most of the time.
        scope.spawn(|| {
            let _others: Vec<_> = (0..1000).map(|_| awake.hook()).collect();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(awake.hook());
            }
        });
        let mut hook = awake.hook();
        hook.touch();
        let copies = (0..100).map(|_| {
            // SAFETY: the child uses and drops what the crate says may be used there (the
            // allocator's locks are handled by fork), and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                (0..100).for_each(|_| hook.touch());
                let mut own = awake.hook();
                own.touch();
                drop((std::mem::replace(&mut hook, awake.hook()), own));
                let status = awake.status();
                let says_so = status.state == State::Off && status.reason.contains("copied from");
                // SAFETY: ends the child without running the test harness's own exit.
                unsafe { libc::_exit(i32::from(!says_so)) };
            }
            assert!(child > 0);
            child
        });
        // Stops the other thread also when one of them hangs.
        let ends = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            copies.map(status_of).collect::<Vec<_>>()
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(ends.expect("a copy hung"), [0; 100]);
    });
}

#[test]
fn hooks_beyond_the_most_do_nothing_until_others_are_gone() {
    let _alone = alone();
    let awake = KeepAwake::start_with(Mode::On, without_latency());
    if !ready(&awake) {
        return;
    }
    let mut hooks: Vec<_> = (0..1024).map(|_| awake.hook()).collect();
    burst(&awake, Duration::from_millis(20));
    assert_eq!(awake.status().bursts, 0, "the 1,025th hook counts");
    hooks.truncate(1000);
    burst_of_some(&awake);
    drop(hooks);
    burst_of_some(&awake);
}

/// Requests until there was one more burst. On a busy machine, touches may lie too far apart.
fn burst_of_some(awake: &KeepAwake) {
    let (start, before) = (Instant::now(), awake.status().bursts);
    while awake.status().bursts == before {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", awake.status());
        burst(awake, Duration::from_millis(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_at_once_are_apart_and_a_hook_may_go_to_another_thread() {
    let _alone = alone();
    let [one, two] = [(); 2].map(|()| KeepAwake::start_with(Mode::On, without_latency()));
    if !(ready(&one) && ready(&two)) {
        return;
    }
    burst_of_some(&one);
    assert_eq!(two.status().bursts, 0, "what one sees, two does not");
    let mut hook = two.hook();
    std::thread::scope(|scope| {
        // A caller that is no thread, and one that was but has ended.
        let ended = scope.spawn(rustix::thread::gettid).join().unwrap().as_raw_nonzero().get();
        scope.spawn(move || {
            for caller in [0, u32::MAX, ended.unsigned_abs()] {
                (0..1_000).for_each(|_| hook.touch_for(caller));
            }
        });
        // Looked at from everywhere meanwhile.
        scope.spawn(|| (0..100).for_each(|_| drop((one.status(), two.status()))));
    });
    drop(one);
    burst_of_some(&two);
    drop(two);
    assert_no_thread();
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

/// A machine of two CPUs whose idle loop can poll.
fn fixture_that_polls(root: &Path) -> Roots {
    let cpu = "sys/devices/system/cpu";
    write(root, "dev/cpu_dma_latency", "");
    write(root, &format!("{cpu}/online"), "0-1\n");
    write(root, &format!("{cpu}/cpuidle/current_driver"), "haltpoll\n");
    write(root, &format!("{cpu}/cpu0/cpuidle/state0/name"), "POLL\n");
    fixture(root)
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
    // Permission would change neither.
    assert!(!awake.status().lacks_permission);
}

#[test]
fn while_no_cpu_is_idle_none_is_kept_awake() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let roots = fixture_that_polls(dir.path());
    write(dir.path(), "proc/stat", "cpu  0 0 0 0 0 0 0 0\n");
    let awake = KeepAwake::start_with(Mode::On, roots);
    if !ready(&awake) {
        return;
    }
    assert_eq!(awake.status().state, State::Ready(Means::Latency), "{}", awake.status());
    let (start, mut ticks) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        burst(&awake, Duration::from_millis(20));
        ticks += 4;
        // In one step: who reads half of it would take it for another time.
        write(dir.path(), "proc/new", &format!("cpu  {ticks} 0 0 0 0 0 0 0\n"));
        std::fs::rename(dir.path().join("proc/new"), dir.path().join("proc/stat")).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let status = awake.status();
    assert!(status.awake < Duration::from_secs(1), "{status}");
}

#[test]
fn while_others_compute_on_all_cpus_nothing_is_measured() {
    let _alone = alone();
    if !several_cpus() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let roots = fixture(dir.path());
    write(dir.path(), "proc/loadavg", "9.0 9.0 9.0 9999/10000 7\n");
    let awake = KeepAwake::start_with(Mode::Auto, roots);
    let says = || awake.status().to_string().contains("others compute on all CPUs");
    let until = |wanted: bool| {
        let start = Instant::now();
        while says() != wanted {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", awake.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(true);
    std::thread::sleep(Duration::from_millis(300));
    assert!(says() && awake.status().wake.is_none(), "{}", awake.status());
    // In one step, see above.
    write(dir.path(), "proc/new", "0.0 0.0 0.0 1/100 7\n");
    std::fs::rename(dir.path().join("proc/new"), dir.path().join("proc/loadavg")).unwrap();
    until(false);
}

#[test]
fn beside_threads_that_compute_on_all_cpus_the_monitor_rests() {
    let _alone = alone();
    let awake = KeepAwake::start_with(Mode::On, without_latency());
    if !ready(&awake) {
        return;
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (start, mut hook) = (Instant::now(), awake.hook());
        while start.elapsed() < Duration::from_secs(2) {
            hook.touch();
        }
        drop(hook);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        let status = awake.status();
        assert!(status.awake < Duration::from_secs(1), "{status}");
    });
}

#[test]
fn where_others_have_a_thread_for_each_cpu_it_rests_though_pollers_get_turns() {
    let _alone = alone();
    let proc = tempfile::tempdir().unwrap();
    let awake = KeepAwake::start_with(Mode::On, with_runnable(proc.path(), 10_000));
    if !ready(&awake) {
        return;
    }
    burst(&awake, Duration::from_secs(1));
    std::thread::sleep(Duration::from_millis(50));
    let status = awake.status();
    assert!(status.bursts > 0 && status.awake < Duration::from_millis(300), "{status}");
}

#[test]
fn it_is_told_when_permission_is_all_that_is_missing() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let roots = fixture_that_polls(dir.path());
    let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    mode(dir.path(), 0o755).unwrap();
    let device = dir.path().join("dev/cpu_dma_latency");
    for (bits, means) in [(0o444, Means::Pollers), (0o666, Means::Latency)] {
        mode(&device, bits).unwrap();
        let roots = roots.clone();
        // Root may write whatever the mode says; a thread's user is its own, and its threads'.
        let awake = std::thread::spawn(move || {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::thread::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            KeepAwake::start_with(Mode::On, roots)
        });
        let awake = awake.join().unwrap();
        if !ready(&awake) {
            return;
        }
        assert_eq!(awake.status().state, State::Ready(means), "{}", awake.status());
        assert_eq!(awake.status().lacks_permission, means == Means::Pollers);
    }
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
