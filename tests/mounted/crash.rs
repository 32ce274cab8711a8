//! A server that is killed: what was made durable is there, and the way to a new view is free.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

const WRITERS: usize = 4;
const RECORD: usize = 512;

/// The records that a writer appends: each tells its writer and number, all through.
fn record(writer: usize, number: u64) -> Vec<u8> {
    let mut bytes = format!("writer {writer} record {number} ").into_bytes();
    bytes.resize(RECORD, b'.');
    bytes
}

/// Appends records, each made durable, until the server is gone; `durable` counts those that are.
fn append_until_gone(path: &Path, writer: usize, durable: &AtomicU64) {
    let Ok(mut file) = fs::File::options().create(true).append(true).open(path) else { return };
    for number in 0.. {
        if file.write_all(&record(writer, number)).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        durable.store(number + 1, Ordering::SeqCst);
    }
}

fn kill_under_load(policy: &str, after: Duration) {
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), policy, &[]);
    let paths: Vec<_> = (0..WRITERS).map(|writer| view.at(&format!("log {writer}"))).collect();
    let durable: Vec<_> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (writer, (path, count)) in paths.iter().zip(&durable).enumerate() {
            scope.spawn(move || append_until_gone(path, writer, count));
        }
        // Other requests under way, too.
        scope.spawn(|| {
            while fs::write(view.at("churn"), "x").is_ok()
                && fs::remove_file(view.at("churn")).is_ok()
            {}
        });
        // The load, not a synchronisation: the moment of the kill is part of the test.
        std::thread::sleep(after);
        view.kill_server();
    });
    let mnt = view.root().to_owned();
    // The kernel may answer from what it remembers, but not this.
    let error = fs::File::create(mnt.join("new")).unwrap_err();
    // Over io_uring the connection may end a moment after the process: a request of that moment is aborted.
    let gone = [libc::ENOTCONN, libc::ECONNABORTED];
    assert!(error.raw_os_error().is_some_and(|errno| gone.contains(&errno)), "{error}");
    for (writer, count) in durable.iter().enumerate() {
        let count = count.load(Ordering::SeqCst);
        // A writer may not have begun.
        let bytes = fs::read(lower.path().join(format!("log {writer}"))).unwrap_or_default();
        println!("writer {writer}: {count} durable records, {} bytes", bytes.len());
        assert!(bytes.len() as u64 >= count * RECORD as u64);
        for (number, found) in (0..count).zip(bytes.chunks(RECORD)) {
            assert_eq!(found, record(writer, number), "writer {writer}, record {number}");
        }
    }
    assert_no_call_hangs(&mnt);
    // The next server cleans up what the dead one left, and serves on.
    let umount =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("umount").arg(&mnt).output().unwrap();
    assert!(umount.status.success(), "{}", String::from_utf8_lossy(&umount.stderr));
    assert!(fs::read_dir(&mnt).unwrap().next().is_none());
    let view = View::of(lower.path(), policy, &[]);
    if durable[0].load(Ordering::SeqCst) > 0 {
        assert!(fs::read(view.at("log 0")).unwrap().starts_with(&record(0, 0)));
    }
    assert!(fs::write(view.at("new"), "x").is_ok());
}

/// Whatever is asked of a dead view is answered.
fn assert_no_call_hangs(mnt: &Path) {
    let script = "cd \"$MNT\"; for call in stat ls 'sync -f' 'stat -f' 'touch'; do
                      $call \"$MNT\" \"$MNT/log 1\"; done; cat \"$MNT/log 0\"; echo x >\"$MNT/log 2\"";
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "20", "sh", "-c", script]).current_dir("/");
    let output = command.env("MNT", mnt).output().unwrap();
    assert_ne!(output.status.code(), Some(137), "a call on the dead view hangs");
}

/// Numbers that are the same in every run with the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// As often as `TOLLGATE_KILLS` says (300 is what is promised), at moments that `TOLLGATE_SEED`
/// decides.
#[test]
fn killed_at_any_moment() {
    if !can_mount() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("TOLLGATE_SEED").unwrap_or(1);
    println!("TOLLGATE_SEED={seed}");
    let mut random = Random(seed);
    for round in 0..number("TOLLGATE_KILLS").unwrap_or(6) {
        let after = Duration::from_millis(random.below(200));
        println!("round {round}: killed after {after:?}");
        kill_under_load(if round % 2 == 0 { "" } else { "default = 'userspace'" }, after);
    }
}

#[test]
fn killed_under_load_with_passthrough() {
    if can_mount() {
        kill_under_load("", Duration::from_millis(700));
    }
}

#[test]
fn killed_under_load_through_user_space() {
    if can_mount() {
        kill_under_load("default = 'userspace'", Duration::from_millis(700));
    }
}

/// Longest time for a killed server to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends the connection of a view from outside. Opened beforehand, it has no effect on a later
/// connection of the same number.
fn connection_to_abort(view: &View) -> Option<fs::File> {
    let number = rustix::fs::minor(fs::metadata(view.root()).unwrap().dev());
    let path = format!("/sys/fs/fuse/connections/{number}/abort");
    fs::File::options().write(true).open(path).ok()
}

/// Whether no thread of process `pid` but the first, of which the exit status is left, is there.
fn is_gone_within(pid: &str, patience: Duration) -> bool {
    let start = Instant::now();
    while fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() > 1) {
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A server tells the kernel of a change beneath, which waits for a client that works in the same
/// directory, which waits for the server. `then` is called after all that has run for a while.
fn while_it_changes_beneath<T>(
    view: &View,
    after: Duration,
    then: impl FnOnce() -> T,
) -> Option<T> {
    let Some(mut abort) = connection_to_abort(view) else {
        eprintln!("SKIPPED: a view that hangs could not be ended without fusectl");
        return None;
    };
    let over = AtomicBool::new(false);
    Some(std::thread::scope(|scope| {
        for client in 0..3 {
            let over = &over;
            scope.spawn(move || {
                for number in (0..50).cycle() {
                    let path = view.at(&format!("sub/client {client} {number}"));
                    let is_served = fs::write(&path, "").and_then(|()| fs::remove_file(&path));
                    if over.load(Ordering::SeqCst) || is_served.is_err() {
                        return;
                    }
                }
            });
        }
        scope.spawn(|| {
            for number in (0..50).cycle().take_while(|_| !over.load(Ordering::SeqCst)) {
                let path = view.below(&format!("sub/beneath {number}"));
                let _ = fs::write(&path, "").and_then(|()| fs::remove_file(&path));
            }
        });
        // The load, not a synchronisation: the moment of what follows is part of the test.
        std::thread::sleep(after);
        let came_of_it = then();
        // Whatever that was, nothing hangs from here on.
        let _ = abort.write_all(b"1");
        over.store(true, Ordering::SeqCst);
        came_of_it
    }))
}

/// A view with a directory `sub`, and the id of its server.
fn watching(lower: &Path) -> (View, String) {
    fs::create_dir(lower.join("sub")).unwrap();
    let view = View::of(lower, "", &["--transport", "devfuse", "--watch", "on"]);
    let pid = view.server_report()["pid"].to_string();
    (view, pid)
}

#[test]
fn killed_while_the_directory_changes_beneath() {
    if !can_mount() {
        return;
    }
    for round in 0..6 {
        let lower = tempfile::tempdir().unwrap();
        let (view, pid) = watching(lower.path());
        let Some(is_gone) =
            while_it_changes_beneath(&view, Duration::from_millis(200 + 60 * round), || {
                view.kill_server();
                is_gone_within(&pid, PATIENCE)
            })
        else {
            return;
        };
        assert!(is_gone, "the server is killed, and its view hangs");
        let error = fs::File::create(view.at("new")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "it stays, and is dead");
    }
}

/// Waits until the first thread of process `pid` has ended. Its exit status is left.
fn wait_for_the_first_thread(pid: &str) {
    let start = Instant::now();
    while fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
        && start.elapsed() < PATIENCE
    {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The processes that process `pid` has started.
fn children(pid: &str) -> Vec<rustix::process::Pid> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let ids = text.split_whitespace().filter_map(|id| id.parse().ok());
    ids.filter_map(rustix::process::Pid::from_raw).collect()
}

/// As a service manager ends a service: nothing is left that could end the connection.
#[test]
fn killed_with_its_helpers_it_is_cleaned_up() {
    if !can_mount() {
        return;
    }
    for round in 0..6 {
        let lower = tempfile::tempdir().unwrap();
        let (view, pid) = watching(lower.path());
        let Some(code) =
            while_it_changes_beneath(&view, Duration::from_millis(200 + 60 * round), || {
                for helper in children(&pid) {
                    let _ = rustix::process::kill_process(helper, rustix::process::Signal::KILL);
                }
                view.kill_server();
                wait_for_the_first_thread(&pid);
                let mut umount = Command::new("timeout");
                umount.args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_tollgate"), "umount"]);
                umount.arg(view.root()).status().ok().and_then(|status| status.code())
            })
        else {
            return;
        };
        assert_eq!(code, Some(0), "`tollgate umount` hangs, or fails");
        assert_eq!(fs::read_dir(view.root()).unwrap().count(), 0);
    }
}

/// Kills the server of the view at `mnt`, and has it mounted by `mount` again.
fn killed_and_mounted_again(tollgate: impl Fn(&[&str]) -> Output, mnt: &str, mount: &[&str]) {
    std::thread::sleep(Duration::from_millis(20));
    let status = tollgate(&["status", "--json", mnt]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let server = i32::try_from(status[0]["pid"].as_i64().unwrap()).unwrap();
    let server = rustix::process::Pid::from_raw(server).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    // It may not have ended yet, and then shows the view still.
    let again = || tollgate(mount);
    let mut outputs = std::iter::repeat_with(again).take(100).skip_while(|output| {
        let is_there = String::from_utf8_lossy(&output.stderr).contains("already a mount point");
        is_there.then(|| std::thread::sleep(Duration::from_millis(5))).is_some()
    });
    let output = outputs.next().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("left by a dead server"), "{said}");
}

/// As a service manager does it, while programs go on.
#[test]
fn a_view_that_is_mounted_again_after_a_kill_loses_nothing() {
    if !can_mount() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let [dir, mnt] = ["dir", "mnt"].map(|name| place.path().join(name));
    [&dir, &mnt].iter().for_each(|path| fs::create_dir(path).unwrap());
    let tollgate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).output().unwrap()
    };
    let (from, to) = (dir.to_str().unwrap(), mnt.to_str().unwrap());
    let mount = ["mount", "--policy", "none", "--daemon", from, to];
    let first = tollgate(&mount);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let is_over = AtomicBool::new(false);
    let made: Vec<u64> = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let numbers = (0..).take_while(|_| !is_over.load(Ordering::SeqCst));
            numbers.filter(|number| fs::create_dir(mnt.join(number.to_string())).is_ok()).collect()
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..10).for_each(|_| killed_and_mounted_again(tollgate, to, &mount));
        }));
        std::thread::sleep(Duration::from_millis(20));
        is_over.store(true, Ordering::SeqCst);
        done.unwrap();
        writer.join().unwrap()
    });
    let missing = made.iter().filter(|number| !dir.join(number.to_string()).is_dir());
    assert_eq!(missing.count(), 0, "of {}", made.len());
    assert!(tollgate(&["umount", to]).status.success());
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "the directory below has shown");
}
