//! io_uring against the kernel: faults, and what falls back when.
//!
//! The tests need FUSE over io_uring. Where it is off or unavailable they say so and pass; with
//! `TOLLGATE_TEST_TRANSPORT=uring` that is a failure. They are in a file of their own, and one at a
//! time, because they change limits of the process and settings of the machine, which they restore.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::clients::{client, ends_soon, more_requests, run_client, until};
use common::{Lower, Served, can_mount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tollgate_fuse::*;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// One test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> SessionConfig {
    SessionConfig { transport: TransportChoice::Uring, threads: 2, ..SessionConfig::default() }
}

/// A session over io_uring; `None` if it cannot be had here.
fn served(config: SessionConfig) -> Option<Served> {
    if !can_mount() {
        return None;
    }
    let on = fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "Y");
    if !on {
        let required = common::transport() == TransportChoice::Uring;
        assert!(!required, "io_uring is required here, but {PARAMETER} is not Y");
        eprintln!("SKIPPED: {PARAMETER} is not Y");
        return None;
    }
    Some(Served::new(config))
}

#[test]
fn client_process() {
    run_client();
}

#[test]
fn a_ring_reports_its_size_and_serves_every_cpu() {
    let _alone = alone();
    let Some(served) = served(config()) else { return };
    let report = served.connection().transport().unwrap().clone();
    let rings = report.rings.unwrap();
    assert_eq!(report.in_use, TransportInUse::Uring);
    assert!(rings.threads >= 1 && rings.queues >= rings.threads, "{rings:?}");
    assert!(rings.helpers >= 2, "{rings:?}");
    let cpus = std::thread::available_parallelism().unwrap().get();
    for cpu in 0..cpus {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        assert_eq!(fs::read(served.path("direct")).unwrap(), b"served");
    }
}

/// Where handlers may hang, the reserve is there, and among the helpers.
#[test]
fn a_reserve_is_reported_where_handlers_may_hang() {
    let _alone = alone();
    for may_hang in [false, true] {
        let spin = Duration::from_micros(20);
        let config = SessionConfig { reserve: 5, spin, may_hang, ..config() };
        let Some(served) = served(config) else { return };
        let connection = served.connection();
        let rings = connection.transport().unwrap().rings.unwrap();
        let reserve = if may_hang { 5 } else { 0 };
        assert_eq!(connection.reserve(), reserve);
        // Of the helpers of two threads and one more; and the first queue, on /dev/fuse.
        assert_eq!(rings.helpers, 3 + reserve);
        assert_eq!(connection.queues(), 1 + rings.threads + 3);
    }
}

#[test]
fn many_detached_replies_from_other_threads_reach_their_callers() {
    let _alone = alone();
    let Some(served) = served(config()) else { return };
    // Different names: lookups of one name wait for each other in the kernel.
    let path = |i| served.path(&format!("slow-detached-{i}"));
    let mut children: Vec<_> = (0..12).map(|i| client("stat", &path(i))).collect();
    // More requests than ring entries are under way: the rest wait in the kernel, and each is
    // answered once its caller is killed.
    std::thread::sleep(Duration::from_millis(300));
    for child in &mut children {
        child.kill().unwrap();
    }
    children.iter_mut().for_each(ends_soon);
    assert_eq!(fs::read(served.path("direct")).unwrap(), b"served");
    assert_eq!(served.connection().counts().undelivered, 0);
}

/// Helpers take over while handlers wait unexpectedly, and the owner of a ring serves again once they do
/// not: each request costs a wake-up more meanwhile.
#[test]
fn requests_return_to_the_owner_of_their_ring_when_handlers_are_quick_again() {
    let _alone = alone();
    let Some(served) = served(config()) else { return };
    for number in 0..4 {
        assert!(fs::metadata(served.path(&format!("nap-{number}"))).is_err());
    }
    // Worker 0 serves /dev/fuse, those of rings come next.
    let rings = served.connection().transport().unwrap().rings.unwrap().threads;
    let owners = (1..=rings).fold(0, |mask, worker| mask | 1 << worker);
    let mut in_a_row = 0;
    until("owners of rings serve 20 requests in a row", || {
        served.fs.workers_seen.store(0, Ordering::SeqCst);
        assert!(fs::metadata(served.path("missing")).is_err());
        let seen = served.fs.workers_seen.load(Ordering::SeqCst);
        in_a_row = if seen & owners == seen { in_a_row + 1 } else { 0 };
        in_a_row == 20
    });
}

/// A close returns before its RELEASE is served, which a request of another CPU may overtake.
#[test]
fn what_was_closed_is_released_once_the_rings_have_passed() {
    let _alone = alone();
    let deferring = SessionConfig { defer_releases: true, ..config() };
    for (config, pairs) in [(config(), 1), (deferring, 20)] {
        let Some(served) = served(config) else { return };
        let connection = served.connection();
        let mut closed = 0;
        on_each_cpu_in_turn(200, || {
            (0..pairs).for_each(|_| drop(File::open(served.path("direct")).unwrap()));
            closed += pairs;
            let mut passing = connection.passing();
            until("the rings have passed", || passing.is_over());
            let released = connection.counts().of(abi::opcode::RELEASE);
            assert_eq!(released, closed, "a close is still under way");
        });
    }
}

/// Runs `turn` so many times, on one CPU after the other.
fn on_each_cpu_in_turn(turns: usize, mut turn: impl FnMut()) {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<_> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    for number in 0..turns {
        let mut there = rustix::thread::CpuSet::new();
        there.set(cpus[number % cpus.len()]);
        rustix::thread::sched_setaffinity(None, &there).unwrap();
        turn();
    }
    rustix::thread::sched_setaffinity(None, &allowed).unwrap();
}

/// Closes that wait in the kernel for the next file that is opened are served although none is.
#[test]
fn closes_that_are_deferred_are_served_when_no_file_is_opened() {
    let _alone = alone();
    let Some(served) = served(SessionConfig { defer_releases: true, ..config() }) else { return };
    let connection = served.connection();
    if !connection.has(InitFlags::PASSTHROUGH) {
        eprintln!("SKIPPED: no passthrough here");
        return;
    }
    assert_eq!(connection.negotiated().max_background, 1);
    let released = || connection.counts().of(abi::opcode::RELEASE);
    let open = || File::open(served.path("direct")).unwrap();
    let mut closed = 0;
    on_each_cpu_in_turn(20, || {
        // One after the other, and many at the same time.
        (0..50).for_each(|_| drop(open()));
        drop((0..50).map(|_| open()).collect::<Vec<_>>());
        closed += 100;
        until("all are released", || released() == closed);
    });
}

/// The end of the connection does not wait for replies that were withheld.
#[test]
fn a_session_ends_while_closes_are_deferred() {
    let _alone = alone();
    for _ in 0..20 {
        let config = SessionConfig { defer_releases: true, ..config() };
        let Some(served) = served(config) else { return };
        (0..50).for_each(|_| drop(File::open(served.path("direct")).unwrap()));
    }
}

/// Whose reply waits until what was sent before has been served does not wait for itself, whoever
/// serves it: the lock that is tried until a close has come, while handlers are slow.
#[test]
fn a_request_that_waits_for_those_before_it_is_not_one_of_them() {
    let _alone = alone();
    let Some(served) = served(config()) else { return };
    for round in 0..20 {
        // Helpers take requests over after this.
        for nap in 0..round % 5 {
            assert!(fs::metadata(served.path(&format!("nap-{round}-{nap}"))).is_err());
        }
        let error = fs::metadata(served.path(&format!("passing-{round}"))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "round {round}: {error}");
    }
}

/// Kills one worker in its start hook.
fn with_a_dying_thread(index: usize) -> SessionConfig {
    let hook = move |worker| assert_ne!(worker, index, "asked for by the test");
    SessionConfig { on_thread_start: Some(Arc::new(hook)), ..config() }
}

#[test]
fn a_ring_whose_thread_dies_at_the_start_ends_the_session_with_its_name() {
    let _alone = alone();
    if served(config()).is_none() {
        return;
    }
    // Worker 0 serves /dev/fuse; worker 1 has a ring.
    let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
    let session = Session::new(device, Lower::new(lower.path()), with_a_dying_thread(1));
    let mut waiting = client("stat", &at.path().join("x"));
    let error = session.start().unwrap_err();
    assert!(matches!(error, SessionError::Panicked { worker: 1 }), "{error}");
    ends_soon(&mut waiting);
    mount.unmount(true).unwrap();
}

/// The parameter, set back at the end.
struct Parameter(String);

impl Parameter {
    fn set(value: &str) -> std::io::Result<Self> {
        let before = fs::read_to_string(PARAMETER)?;
        fs::write(PARAMETER, value)?;
        Ok(Self(before))
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.0.trim());
    }
}

#[test]
fn switching_the_parameter_off_leaves_mounts_alone_and_makes_new_ones_fall_back() {
    let _alone = alone();
    let Some(before) = served(config()) else { return };
    let off = Parameter::set("N").unwrap();
    assert_eq!(fs::read(before.path("direct")).unwrap(), b"served");
    let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(lower.path().join("direct"), b"here").unwrap();
    let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
    let running = Session::new(device, Lower::new(lower.path()), config()).start().unwrap();
    let report = running.connection().transport().unwrap();
    assert_eq!(report.in_use, TransportInUse::DevFuse);
    let reason = report.uring_unavailable.as_ref().unwrap().to_string();
    assert!(reason.contains("echo Y > /sys/module/fuse/parameters/enable_uring"), "{reason}");
    assert_eq!(fs::read(at.path().join("direct")).unwrap(), b"here");
    assert_eq!(fs::read(before.path("direct")).unwrap(), b"served");
    drop(off);
}

/// The kernel offers io_uring when the device is mounted; the parameter is off when the rings would
/// be made, and on again when the kernel's offer is answered: neither is a reason to hang.
#[test]
fn a_mount_made_while_the_parameter_was_off_falls_back() {
    let _alone = alone();
    let Some(probe) = served(config()) else { return };
    drop(probe);
    let off = Parameter::set("N").unwrap();
    let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(lower.path().join("direct"), b"here").unwrap();
    let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
    drop(off);
    let running = Session::new(device, Lower::new(lower.path()), config()).start().unwrap();
    let report = running.connection().transport().unwrap();
    assert_eq!(report.uring_unavailable, Some(UringUnavailable::Parameter));
    assert_eq!(fs::read(at.path().join("direct")).unwrap(), b"here");
}

/// Runs the test `name` again, with `variable` set.
fn in_a_process_of_its_own(name: &str, variable: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(variable, "1").stdout(Stdio::piped());
    let mut child = command.process_group(0).spawn().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

/// Runs a session as a process that may lock no memory, and prints the reason for falling back.
#[test]
fn too_little_locked_memory_names_the_limit_and_the_need() {
    let _alone = alone();
    if std::env::var_os("FUSE_TEST_MEMLOCK").is_none() {
        let Some(probe) = served(config()) else { return };
        drop(probe);
        let name = "too_little_locked_memory_names_the_limit_and_the_need";
        return in_a_process_of_its_own(name, "FUSE_TEST_MEMLOCK");
    }
    let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(lower.path().join("direct"), b"here").unwrap();
    let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
    let old = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(4096), maximum: old.maximum }).unwrap();
    // CAP_IPC_LOCK exempts from the limit. Capabilities belong to threads: only this one loses it.
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.remove(rustix::thread::CapabilitySet::IPC_LOCK);
    rustix::thread::set_capabilities(None, sets).unwrap();
    let running = Session::new(device, Lower::new(lower.path()), config()).start().unwrap();
    let report = running.connection().transport().unwrap();
    let Some(UringUnavailable::LockedMemory { limit_kib, needed_kib }) = report.uring_unavailable
    else {
        panic!("{report:?}")
    };
    assert_eq!(limit_kib, 4);
    assert!(needed_kib >= 8, "{needed_kib} KiB for rings");
    assert_eq!(fs::read(at.path().join("direct")).unwrap(), b"here");
    drop(running);
    drop(mount);
}

/// The handshake is over when a ring is registered. A limit of zero descriptors makes that fail.
#[test]
fn a_registration_that_fails_after_the_handshake_falls_back() {
    let _alone = alone();
    let name = "a_registration_that_fails_after_the_handshake_falls_back";
    if std::env::var_os("FUSE_TEST_NOFILE").is_none() {
        let Some(probe) = served(config()) else { return };
        drop(probe);
        return in_a_process_of_its_own(name, "FUSE_TEST_NOFILE");
    }
    let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(lower.path().join("direct"), b"here").unwrap();
    let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
    let old = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(0), maximum: old.maximum };
    let hook = move |worker| {
        if worker == 1 {
            setrlimit(Resource::Nofile, none).unwrap();
        }
    };
    let config = SessionConfig { on_thread_start: Some(Arc::new(hook)), ..config() };
    let running = Session::new(device, Lower::new(lower.path()), config).start().unwrap();
    setrlimit(Resource::Nofile, old).unwrap();
    let report = running.connection().transport().unwrap();
    assert_eq!(report.in_use, TransportInUse::DevFuse);
    let reason = report.uring_unavailable.as_ref().unwrap().to_string();
    assert!(reason.starts_with("IORING_REGISTER_FILES failed"), "{reason}");
    // What threads that serve rings are bound to does not hold for those that serve /dev/fuse.
    let cpus = rustix::thread::sched_getaffinity(None).unwrap().count();
    let is_free = |thread: std::io::Result<fs::DirEntry>| {
        let thread = thread.unwrap().file_name().to_str().unwrap().parse().unwrap();
        let thread = rustix::process::Pid::from_raw(thread);
        rustix::thread::sched_getaffinity(thread).is_ok_and(|set| set.count() == cpus)
    };
    until("no thread is bound to a CPU", || fs::read_dir("/proc/self/task").unwrap().all(is_free));
    assert_eq!(fs::read(at.path().join("direct")).unwrap(), b"here");
    drop(running);
    drop(mount);
}

/// A CPU switched off, and on again when dropped.
struct Offline(String);

impl Offline {
    fn take(cpu: usize) -> Option<Self> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        fs::write(&path, "0").ok().map(|()| Self(path))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        fs::write(&self.0, "1").unwrap();
    }
}

/// Changes the whole machine for a moment, so it runs only where that was asked for.
#[test]
fn a_cpu_that_goes_offline_and_comes_back_loses_no_request() {
    let _alone = alone();
    if std::env::var_os("TOLLGATE_TEST_CPU_OFFLINE").is_none() {
        return eprintln!("SKIPPED: TOLLGATE_TEST_CPU_OFFLINE is not set");
    }
    let Some(served) = served(config()) else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (path, stop) = (served.path("direct"), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut reads = 0;
                while !stop.load(Ordering::Relaxed) {
                    let mut text = String::new();
                    File::open(&path).unwrap().read_to_string(&mut text).unwrap();
                    assert_eq!(text, "served");
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    let Some(offline) = Offline::take(1) else {
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| assert!(reader.join().unwrap() > 0));
        return eprintln!("SKIPPED: this machine switches no CPU off");
    };
    std::thread::sleep(Duration::from_millis(100));
    drop(offline);
    let before = served.connection().counts().total();
    more_requests(served.connection(), before);
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.join().unwrap() > 0);
    }
}
