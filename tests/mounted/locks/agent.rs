//! A process that locks files on command: owners of POSIX locks are processes.
#![expect(unsafe_code, reason = "rustix has no locks of byte ranges")]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What kind of lock a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Posix,
    Ofd,
    Flock,
}

pub(crate) const READ: i32 = libc::F_RDLCK;
pub(crate) const WRITE: i32 = libc::F_WRLCK;
pub(crate) const UNLOCK: i32 = libc::F_UNLCK;

/// The other process, seen from the test.
pub(crate) struct Agent {
    child: Child,
    /// The thread that locks: a signal to the process would go to another one.
    thread: i32,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Agent {
    pub(crate) fn new() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "locks::agent::agent", "--ignored", "--nocapture"])
            .env("TOLLGATE_TEST_AGENT", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut agent = Self { child, thread: 0, commands, answers };
        while agent.thread == 0 {
            let line = agent.line();
            agent.thread = line.strip_prefix("agent ").map_or(0, |thread| thread.parse().unwrap());
        }
        agent
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens `path` as number `slot`; `how` is `r`, `w`, `rw` or `rwtrunc`.
    #[track_caller]
    pub(crate) fn open(&mut self, slot: usize, path: &Path, how: &str) {
        assert_eq!(self.ask(&format!("open {slot} {how} {}", path.display())), "ok");
    }

    pub(crate) fn close(&mut self, slot: usize) {
        assert_eq!(self.ask(&format!("close {slot}")), "ok");
    }

    /// Passes a `flock` of `path` from one open file to the next by a close, `rounds` times.
    /// Returns how often the next one did not get it at once.
    pub(crate) fn relay(&mut self, path: &Path, rounds: usize) -> usize {
        self.ask(&format!("relay {rounds} {}", path.display())).parse().unwrap()
    }

    /// Locks without waiting: `ok`, or the error's number.
    pub(crate) fn set(&mut self, slot: usize, family: Family, kind: i32, range: (i64, i64)) -> i32 {
        let answer = self.ask(&command("set", slot, family, kind, range));
        if answer == "ok" { 0 } else { answer.parse().unwrap() }
    }

    /// Begins to lock with waiting; [`Agent::answer`] tells how it ended.
    pub(crate) fn wait(&mut self, slot: usize, family: Family, kind: i32, range: (i64, i64)) {
        self.tell(&command("wait", slot, family, kind, range));
    }

    /// The answer to a command that was told.
    pub(crate) fn answer(&mut self) -> String {
        self.line()
    }

    /// F_GETLK: kind, start, length, process.
    pub(crate) fn get(&mut self, slot: usize, kind: i32, range: (i64, i64)) -> [i64; 4] {
        let answer = self.ask(&command("get", slot, Family::Posix, kind, range));
        let numbers: Vec<i64> = answer.split(' ').map(|n| n.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    }

    /// Starts a process that inherits all open files and sleeps; ends with the agent's stdin.
    pub(crate) fn fork(&mut self) {
        assert_eq!(self.ask("fork"), "ok");
    }

    /// Sends SIGUSR1, which ends a system call with EINTR.
    pub(crate) fn interrupt(&self) {
        let process = i32::try_from(self.pid()).unwrap();
        // SAFETY: no memory is involved.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread, libc::SIGUSR1) };
        assert_eq!(sent, 0);
    }

    /// Kills it and waits until it is gone; who inherited its files lives on.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.line()
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the agent ended");
            // The test harness notes on standard output that a test, the agent, takes long.
            if !line.starts_with("test ") {
                return line.trim_end().to_owned();
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(verb: &str, slot: usize, family: Family, kind: i32, range: (i64, i64)) -> String {
    format!("{verb} {slot} {family:?} {kind} {} {}", range.0, range.1)
}

/// Not a test: what a process started by [`Agent::new`] does.
#[test]
#[ignore = "the body of another process"]
fn agent() {
    if std::env::var_os("TOLLGATE_TEST_AGENT").is_none() {
        return;
    }
    interruptible();
    println!("\nagent {}", rustix::thread::gettid().as_raw_nonzero());
    let mut files = HashMap::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.splitn(4, ' ').collect();
        println!("{}", act(&mut files, &words));
    }
    std::process::exit(0);
}

fn act(files: &mut HashMap<usize, File>, words: &[&str]) -> String {
    match words {
        ["fork"] => fork(),
        ["open", slot, how, path] => {
            let mut options = OpenOptions::new();
            options
                .read(how.contains('r'))
                .write(how.contains('w'))
                .truncate(how.contains("trunc"));
            // Without O_CLOEXEC nothing changes here: nothing is executed.
            let file = options.custom_flags(0).open(path).unwrap();
            let before = files.insert(slot.parse().unwrap(), file);
            assert!(before.is_none());
            "ok".to_owned()
        }
        ["close", slot] => {
            drop(files.remove(&slot.parse().unwrap()).unwrap());
            "ok".to_owned()
        }
        ["relay", rounds, path] => relay(Path::new(path), rounds.parse().unwrap()).to_string(),
        [verb, slot, family, rest] => lock(&files[&slot.parse().unwrap()], verb, family, rest),
        _ => panic!("{words:?}"),
    }
}

/// One process of one thread: nothing else keeps a file open that it has closed.
fn relay(path: &Path, rounds: usize) -> usize {
    let open = || OpenOptions::new().read(true).write(true).open(path).unwrap();
    // SAFETY: no memory is involved.
    let flock =
        |file: &File| unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    let mut holder = open();
    assert_eq!(flock(&holder), 0);
    let mut missed = 0;
    for _ in 0..rounds {
        let next = open();
        drop(holder);
        missed += usize::from(flock(&next) != 0);
        holder = next;
    }
    missed
}

/// What `verb`, kind, start and length in `rest` ask of `file`, with the answer.
pub(crate) fn lock(file: &File, verb: &str, family: &str, rest: &str) -> String {
    let numbers: Vec<i64> = rest.split(' ').map(|n| n.parse().unwrap()).collect();
    let (kind, start, len) = (i32::try_from(numbers[0]).unwrap(), numbers[1], numbers[2]);
    if family == "Flock" {
        let nonblocking = if verb == "wait" { 0 } else { libc::LOCK_NB };
        let operation = match kind {
            READ => libc::LOCK_SH,
            WRITE => libc::LOCK_EX,
            _ => libc::LOCK_UN,
        };
        // SAFETY: no memory is involved.
        return outcome(unsafe { libc::flock(file.as_raw_fd(), operation | nonblocking) });
    }
    let command = match (verb, family) {
        ("get", _) => libc::F_GETLK,
        ("set", "Posix") => libc::F_SETLK,
        ("wait", "Posix") => libc::F_SETLKW,
        ("set", _) => libc::F_OFD_SETLK,
        _ => libc::F_OFD_SETLKW,
    };
    // SAFETY: plain data for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap();
    (lock.l_start, lock.l_len) = (start, len);
    // SAFETY: the command takes a pointer to a `struct flock`, which lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if verb == "get" {
        return format!("{} {} {} {}", lock.l_type, lock.l_start, lock.l_len, lock.l_pid);
    }
    outcome(result)
}

fn outcome(result: i32) -> String {
    match result {
        0 => "ok".to_owned(),
        _ => std::io::Error::last_os_error().raw_os_error().unwrap().to_string(),
    }
}

/// SIGUSR1 ends system calls with EINTR.
fn interruptible() {
    extern "C" fn nothing(_: i32) {}
    let handler: extern "C" fn(i32) = nothing;
    // SAFETY: plain data, initialised; the handler does nothing; there is no SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
}

fn fork() -> String {
    // SAFETY: the child calls async-signal-safe functions only.
    match unsafe { libc::fork() } {
        // SAFETY: as above. It ends when the test does, which holds the other end of stdin.
        0 => unsafe {
            libc::prctl(libc::PR_SET_NAME, c"heir".as_ptr());
            libc::close(1);
            let mut byte = 0_u8;
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0)
        },
        _ => "ok".to_owned(),
    }
}
