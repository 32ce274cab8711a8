//! A process per promise, with a time limit.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// When a promise counts as broken by never coming to an end.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

const CHILD: &str = "TOLLGATE_PROMISE";

/// Runs `body` in a process of its own and fails when that fails, dies or takes longer than
/// [`LIMIT`]. `test` is the path of the calling test, by which the new process finds it again.
pub(crate) fn kept(test: &str, body: impl FnOnce()) {
    kept_with(test, &[], body);
}

/// As [`kept`], with these variables in the environment.
pub(crate) fn kept_with(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if in_child(test) {
        body();
        return;
    }
    let mut output = tempfile::tempfile().unwrap();
    let start = Instant::now();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output.try_clone().unwrap())
        .spawn()
        .unwrap();
    let ended = wait(&mut child);
    let said = read(&mut output);
    match ended {
        None => panic!("{test} did not end within {LIMIT:?}:\n{said}"),
        Some(status) if !status.success() => {
            panic!("{test} failed after {:?} ({status}):\n{said}", start.elapsed())
        }
        Some(_) => assert!(said.contains("1 passed"), "no test is called {test}:\n{said}"),
    }
}

/// Whether this is the process that was started for `test`.
pub(crate) fn in_child(test: &str) -> bool {
    std::env::var_os(CHILD).is_some_and(|child| child == test)
}

/// Calls `body` in a copy of this process, made by fork(2), and returns the copy's wait status: what
/// `body` returned is its exit status. A copy that hangs ends by a signal, so that none is left
/// behind to hold whatever it inherited.
#[expect(unsafe_code, reason = "fork(2)")]
pub(crate) fn in_a_copy(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child does what its test is about, on its one thread, and leaves by _exit below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let limit = u32::try_from(LIMIT.as_secs() / 2).unwrap_or(1);
        // SAFETY: has SIGALRM sent, whose default action ends the process.
        unsafe { libc::alarm(limit) };
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: ends the process at once, which is what a forked child should do.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writing; the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// `None` when the time is up and the process was killed.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read(output: &mut File) -> String {
    let mut said = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut said).unwrap();
    said
}
