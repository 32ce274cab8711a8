//! Programs that run from a view.
//!
//! A process that executes a program closes its files in the middle of that, while the kernel lets
//! nobody read what /proc tells of it: the server must answer without. What runs is written by
//! nobody.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::harness::{View, can_mount};

const FILES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(30);

/// Children that inherit many open files execute a program, again and again.
#[test]
fn files_that_close_at_execve_do_not_stop_it() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        let open = |n: usize| {
            let path = view.at(&n.to_string());
            fs::write(&path, "text").unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        };
        let _files: Vec<_> = (0..FILES).map(open).collect();
        let (done, ended) = channel();
        std::thread::spawn(move || {
            for _ in 0..20 {
                let status = Command::new("/bin/true").status().unwrap();
                if done.send(status.success()).is_err() {
                    return;
                }
            }
        });
        for _ in 0..20 {
            let outcome = ended.recv_timeout(PATIENCE);
            if outcome != Ok(true) {
                // Who waits for the server waits no longer.
                view.kill_server();
            }
            assert_eq!(outcome, Ok(true), "a process hangs in execve");
        }
        assert!(view.status("descriptors_max") > 0);
    }
}

/// A program in the view that sleeps, with `length` bytes at least.
fn sleeper(path: &Path, length: usize) -> Vec<u8> {
    // By other processes: a child that another test forks at this moment would hold it open.
    let run = |command: &mut Command| assert!(command.arg(path).status().unwrap().success());
    run(Command::new("cp").arg("/bin/sleep"));
    run(Command::new("truncate").arg(format!("--size=>{length}")));
    fs::read(path).unwrap()
}

fn empty(program: &Path, access: OFlags) -> Result<(), Errno> {
    let flags = access | OFlags::TRUNC | OFlags::CLOEXEC;
    // A wait for a close ends where this process is stopped, or the machine freezes it.
    rustix::io::retry_on_intr(|| rustix::fs::openat(CWD, program, flags, Mode::empty())).map(drop)
}

/// Small and large files are opened in different ways, and so are those of a policy.
#[test]
fn a_program_that_runs_is_emptied_by_nobody() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        for (name, length) in [("small", 0), ("large", 200_000)] {
            let program = sleeper(&view.below(name), length);
            let path = view.at(name);
            let mut child = Command::new(&path).arg("600").spawn().unwrap();
            for access in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY] {
                let emptied = empty(&path, access);
                assert_eq!(emptied, Err(Errno::TXTBSY), "{policy:?}, {name}, {access:?}");
                let same = fs::read(view.below(name)).unwrap() == program;
                assert!(same, "{policy:?}, {name}, {access:?}: it is refused and emptied");
            }
            assert!(child.try_wait().unwrap().is_none(), "it runs on");
            child.kill().unwrap();
            child.wait().unwrap();
            // The kernel tells late that nobody executes it any more, on a busy machine very late.
            let begun = Instant::now();
            while empty(&path, OFlags::RDONLY) == Err(Errno::TXTBSY) && begun.elapsed() < PATIENCE {
            }
            assert_eq!(empty(&path, OFlags::RDONLY), Ok(()), "{policy:?}, {name}");
            assert_eq!(fs::metadata(view.below(name)).unwrap().len(), 0);
        }
    }
}

/// More than a server has workers, with those in reserve.
const CALLERS: usize = 56;
/// How often all of them begin at the same time.
const ROUNDS: usize = 20;

/// Whether thread `id` of this process is in open(2).
fn is_opening(id: i32) -> bool {
    let call = fs::read_to_string(format!("/proc/self/task/{id}/syscall")).unwrap_or_default();
    call.split(' ').next() == Some(&libc::SYS_openat.to_string())
}

/// Who would empty a program that runs waits for its end, and others do not wait for that: what they
/// open is open while everybody still waits. Once in so many times, as a machine may be so busy that
/// the wait ends first; while the callers kept all workers it could not be.
#[test]
fn callers_who_would_empty_a_running_program_keep_nobody_else() {
    if !can_mount() {
        return;
    }
    let view = View::new("");
    sleeper(&view.below("program"), 0);
    (0..4).for_each(|n| fs::write(view.below(&n.to_string()), "text").unwrap());
    let path = view.at("program");
    let mut child = Command::new(&path).arg("600").spawn().unwrap();
    let overtook = (0..ROUNDS).any(|_| {
        let (begin, ended) = (Barrier::new(CALLERS + 1), AtomicUsize::new(0));
        let (ids, waiting) = channel();
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                let (ids, begin, ended, path) = (ids.clone(), &begin, &ended, &path);
                scope.spawn(move || {
                    ids.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                    begin.wait();
                    assert_eq!(empty(path, OFlags::RDONLY), Err(Errno::TXTBSY));
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            let ids: Vec<_> = waiting.iter().take(CALLERS).collect();
            begin.wait();
            let nobody_ended = || ended.load(Ordering::SeqCst) == 0;
            while nobody_ended() && !ids.iter().all(|id| is_opening(*id)) {
                std::thread::yield_now();
            }
            let text = (0..4).map(|n| fs::read_to_string(view.at(&n.to_string())).unwrap());
            assert!(text.into_iter().all(|text| text == "text"));
            nobody_ended()
        })
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(overtook, "others wait for callers who wait");
}
