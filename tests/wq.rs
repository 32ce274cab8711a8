//! `tollgate wq` against the work queues of this very process.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_workqueue::{Dump, Queue, Rates, Runtime, control};

/// A runtime with a socket of its own, and a place for further sockets.
struct Subject {
    directory: tempfile::TempDir,
    runtime: Runtime,
    crypt: Queue,
    _log: Queue,
    _control: control::Server,
}

impl Subject {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let runtime = Runtime::builder().build().unwrap();
        let crypt = runtime.queue("crypt").build().unwrap();
        let log = runtime.queue("log").ordered().build().unwrap();
        let control = control::serve_at(&runtime, &directory.path().join("a.sock")).unwrap();
        Self { directory, runtime, crypt, _log: log, _control: control }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("a.sock")
    }

    fn wq(&self, arguments: &[&str]) -> Output {
        wq_at(&self.socket(), arguments).output().unwrap()
    }
}

fn wq_at(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let (verb, rest) = arguments.split_first().unwrap();
    command.args(["wq", verb, "--socket"]).arg(socket).args(rest);
    command
}

fn out(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Failed with status 1 and a message that holds each of `parts`, and printed no result.
#[track_caller]
fn fails(output: &Output, parts: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

fn within<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn dump_shows_defaults_and_where_items_go() {
    let subject = Subject::new();
    let output = subject.wq(&["dump"]);
    let text = out(&output);
    for part in
        ["affinity_scope=default (cache)", "max_active=1 ordered", "localize=false", "-> 0.0"]
    {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let json = subject.wq(&["dump", "--json"]);
    let dump: Dump = serde_json::from_str(out(&json)).unwrap();
    let names: Vec<_> = dump.queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["crypt", "log"]);
    assert_eq!(dump.to_string(), subject.runtime.dump().to_string());
}

#[test]
fn monitor_counts_what_is_started() {
    let subject = Subject::new();
    let mut monitor =
        wq_at(&subject.socket(), &["monitor", "--json", "--interval", "0.1", "crypt"]);
    let mut monitor = monitor.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
    let mut next = || -> Rates { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next().queues[0].total, 0);
    (0..100).for_each(|_| subject.crypt.post(|| ()).unwrap());
    subject.crypt.flush().unwrap();
    let (mut started, mut lines) = (0.0, 0);
    while started < 99.5 {
        let rates = next();
        assert_eq!(rates.queues.len(), 1, "only the one that was asked for");
        started += rates.queues[0].started_per_s * rates.seconds;
        lines += 1;
        assert!(lines < 600, "{started} after a minute");
    }
    assert!(started < 100.5, "{started}");
    ends_well_by(&mut monitor, libc::SIGINT);
}

fn ends_well_by(child: &mut Child, signal: libc::c_int) {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
    let status = within(|| child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

#[test]
fn monitor_ends_after_its_count_and_when_the_process_is_gone() {
    let subject = Subject::new();
    let output = subject.wq(&["monitor", "--interval", "0.1", "--count", "2"]);
    let tables = out(&output).lines().filter(|line| line.starts_with("queue")).count();
    assert_eq!(tables, 2);
    let mut monitor = wq_at(&subject.socket(), &["monitor", "--interval", "0.1"]);
    let mut monitor = monitor.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    monitor.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(subject);
    let output = monitor.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    // Either the process is seen to be gone, or its runtime is seen to end before it.
    let ended = error.contains("ended, or closed its socket") || error.contains("is shut down");
    assert!(ended && error.contains("a.sock"), "{error}");
}

#[test]
fn monitor_says_that_the_process_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("k.sock");
    // Answers once, and leaves its socket behind as a killed process does.
    let listener = UnixListener::bind(&socket).unwrap();
    let reply = {
        let runtime = Runtime::builder().build().unwrap();
        control::reply(&runtime, r#"{"command":"monitor"}"#)
    };
    let once = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        BufReader::new(&client).read_line(&mut String::new()).unwrap();
        writeln!(&client, "{reply}").unwrap();
    });
    let output = wq_at(&socket, &["monitor", "--interval", "0.1"]).output().unwrap();
    once.join().unwrap();
    fails(&output, &["k.sock", "ended, or closed its socket, while monitored"]);
}

#[test]
fn a_process_is_found_by_its_number() {
    let runtime = Runtime::builder().build().unwrap();
    let _queue = runtime.queue("by-number").build().unwrap();
    let control = control::serve(&runtime, &control::Directory::of_user("tollgate")).unwrap();
    let pid = std::process::id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let command = command.args(["wq", "dump", "--json", "--pid", &pid]);
    let dump: Dump = serde_json::from_str(out(&command.output().unwrap())).unwrap();
    assert_eq!(dump.queues[0].name, "by-number");
    let socket = control.path().to_owned();
    drop(control);
    assert!(!socket.exists());
    fails(&command.output().unwrap(), &[&format!("process {pid} has no"), "control::serve"]);
}

#[test]
fn set_and_dump_of_a_runtime_that_is_shut_down_say_so() {
    let subject = Subject::new();
    subject.runtime.shutdown();
    for arguments in [&["dump"][..], &["monitor"], &["set", "crypt", "nice=1"]] {
        fails(&subject.wq(arguments), &["the runtime is shut down"]);
    }
}

#[test]
fn set_changes_a_queue_at_work_and_loses_nothing() {
    let subject = Subject::new();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let issued = std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let mut issued = 0;
            while !stop.load(Ordering::Relaxed) {
                let done = Arc::clone(&done);
                let count = move || {
                    done.fetch_add(1, Ordering::Relaxed);
                };
                subject.crypt.post(count).unwrap();
                issued += 1;
            }
            issued
        });
        for settings in [["max_active=1", "nice=1"], ["max_active=default", "affinity_scope=cpu"]] {
            let output = subject.wq(&[&["set", "crypt"][..], &settings[..]].concat());
            assert!(out(&output).starts_with("crypt pool="), "{output:?}");
        }
        stop.store(true, Ordering::Relaxed);
        producer.join().unwrap()
    });
    subject.crypt.flush().unwrap();
    assert_eq!(done.load(Ordering::Relaxed), issued);
    let now = subject.crypt.attributes();
    assert_eq!((now.max_active, now.nice), (None, 1));
    let output = subject.wq(&["dump"]);
    assert!(out(&output).contains("affinity_scope=cpu"));
}

#[test]
fn wrong_names_and_values_are_named() {
    let subject = Subject::new();
    let unknown = ["no queue is named \"krypt\"; there are: ", "crypt"];
    fails(&subject.wq(&["set", "krypt", "nice=1"]), &unknown);
    fails(&subject.wq(&["set", "crypt", "colour=red"]), &["\"colour\"", "affinity_scope"]);
    fails(&subject.wq(&["set", "crypt", "affinity_scope=socket"]), &["socket", "cache"]);
    fails(&subject.wq(&["set", "crypt", "max_active=0"]), &["max_active 0", "from 1"]);
    fails(&subject.wq(&["set", "log", "max_active=2"]), &["ordered", "\"log\""]);
    fails(&subject.wq(&["monitor", "krypt"]), &["\"krypt\"", "crypt, log"]);
    let usage = subject.wq(&["monitor", "--interval", "0"]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("0.1 to 3600"));
    let usage = subject.wq(&["set", "crypt"]);
    assert!(String::from_utf8_lossy(&usage.stderr).contains("ATTRIBUTE=VALUE"));
}

#[test]
fn what_is_no_living_runtime_is_named() {
    let subject = Subject::new();
    let place = subject.directory.path();
    let dump = |name: &str| wq_at(&place.join(name), &["dump"]).output().unwrap();
    fails(&dump("none.sock"), &["none.sock", "No such file"]);
    std::fs::write(place.join("file.sock"), "x").unwrap();
    fails(&dump("file.sock"), &["file.sock", "is not a socket"]);
    drop(UnixListener::bind(place.join("dead.sock")).unwrap());
    // A child that another test forks at this moment listens, too, until it executes its program.
    while UnixStream::connect(place.join("dead.sock")).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    fails(&dump("dead.sock"), &["nobody listens", "dead.sock"]);
    let _other =
        control::Server::start(&place.join("b.sock"), |_, _| "{\"pid\":1}".to_owned()).unwrap();
    fails(&dump("b.sock"), &["b.sock", "not understood"]);
    let _steers = control::Server::start(&place.join("c.sock"), |_, _| {
        r#"{"error":"\u001b[2Jgone"}"#.to_owned()
    })
    .unwrap();
    fails(&dump("c.sock"), &["\u{fffd}[2Jgone"]);
    let second = control::serve_at(&subject.runtime, &subject.socket()).unwrap_err();
    assert!(second.to_string().contains("in use"), "{second}");
}

#[test]
fn a_closed_pipe_ends_it_without_a_word() {
    let subject = Subject::new();
    let mut monitor = wq_at(&subject.socket(), &["monitor", "--interval", "0.1"]);
    let mut monitor = monitor.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(monitor.stdout.take());
    within(|| monitor.try_wait().unwrap());
    let mut said = String::new();
    monitor.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}
