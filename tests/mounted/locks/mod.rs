//! Locks are the lower file's: whoever locks a file, inside or outside the view, excludes everyone
//! else.

mod agent;
mod programs;
mod storm;
mod waiting;

use std::sync::atomic::{AtomicBool, Ordering};

use agent::{Agent, Family, READ, UNLOCK, WRITE};

use crate::harness::{View, can_mount};

pub(crate) const ALL: (i64, i64) = (0, 0);
pub(crate) const FAMILIES: [Family; 3] = [Family::Posix, Family::Ofd, Family::Flock];

/// Waits until so many requests wait for locks.
pub(crate) fn until_waiting(view: &View, count: u64) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while view.server_report()["view"]["locks"]["waiting"].as_u64() != Some(count) {
        assert!(std::time::Instant::now() < deadline, "{}", view.server_report()["view"]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_lock_in_the_view_and_one_beneath_exclude_each_other() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = \"userspace\""] {
        let view = View::with(policy, &[("f", "text")]);
        let (mut inside, mut beneath) = (Agent::new(), Agent::new());
        inside.open(0, &view.at("f"), "rw");
        beneath.open(0, &view.below("f"), "rw");
        for family in FAMILIES {
            for kinds in [(WRITE, WRITE), (WRITE, READ), (READ, WRITE), (READ, READ)] {
                let expected = if kinds == (READ, READ) { 0 } else { libc::EAGAIN };
                let agents = [(&mut inside, &mut beneath)];
                for (first, second) in agents {
                    assert_eq!(first.set(0, family, kinds.0, ALL), 0);
                    assert_eq!(
                        second.set(0, family, kinds.1, ALL),
                        expected,
                        "{family:?} {kinds:?}"
                    );
                    assert_eq!(first.set(0, family, UNLOCK, ALL), 0);
                    assert_eq!(second.set(0, family, WRITE, ALL), 0);
                    assert_eq!(first.set(0, family, kinds.0, ALL), libc::EAGAIN);
                    assert_eq!(second.set(0, family, UNLOCK, ALL), 0);
                }
            }
        }
    }
}

#[test]
fn locks_are_taken_through_handles_of_every_kind() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let (mut inside, mut beneath) = (Agent::new(), Agent::new());
    beneath.open(0, &view.below("f"), "rw");
    for (how, kind) in [("r", READ), ("w", WRITE), ("rw", READ), ("rw", WRITE)] {
        for family in FAMILIES {
            inside.open(0, &view.at("f"), how);
            assert_eq!(inside.set(0, family, kind, ALL), 0, "{how} {kind} {family:?}");
            assert_eq!(beneath.set(0, family, WRITE, ALL), libc::EAGAIN);
            assert_eq!(inside.set(0, family, UNLOCK, ALL), 0);
            inside.close(0);
            assert_eq!(beneath.set(0, family, WRITE, ALL), 0, "{how} {kind} {family:?}");
            assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
        }
    }
    // The kernel's own check of how the file was opened.
    inside.open(0, &view.at("f"), "r");
    assert_eq!(inside.set(0, Family::Posix, WRITE, ALL), libc::EBADF);
}

/// A lock for reading, taken through a handle that cannot write, becomes one for writing through
/// another handle of the process. Nobody gets in between.
#[test]
fn a_process_goes_over_from_reading_to_writing() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let (mut inside, mut beneath) = (Agent::new(), Agent::new());
    beneath.open(0, &view.below("f"), "rw");
    inside.open(0, &view.at("f"), "r");
    inside.open(1, &view.at("f"), "rw");
    for at in [0, 10, 20] {
        assert_eq!(inside.set(0, Family::Posix, READ, (at, 5)), 0);
    }
    assert_eq!(inside.set(1, Family::Posix, WRITE, (10, 5)), 0);
    for (at, kind, expected) in
        [(0, READ, 0), (10, READ, libc::EAGAIN), (20, WRITE, libc::EAGAIN), (5, WRITE, 0)]
    {
        assert_eq!(beneath.set(0, Family::Posix, kind, (at, 5)), expected, "{at}");
        assert_eq!(beneath.set(0, Family::Posix, UNLOCK, (at, 5)), 0);
    }
}

#[test]
fn f_getlk_names_the_process_that_holds_the_lock() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let (mut first, mut second, mut beneath) = (Agent::new(), Agent::new(), Agent::new());
    first.open(0, &view.at("f"), "rw");
    second.open(0, &view.at("f"), "rw");
    beneath.open(0, &view.below("f"), "rw");
    assert_eq!(first.set(0, Family::Posix, WRITE, (10, 5)), 0);
    assert_eq!(beneath.set(0, Family::Posix, READ, (30, 0)), 0);
    let line = |kind: i32, start, len, pid: i64| [i64::from(kind), start, len, pid];
    assert_eq!(second.get(0, READ, (0, 20)), line(WRITE, 10, 5, i64::from(first.pid())));
    assert_eq!(second.get(0, WRITE, (20, 0)), line(READ, 30, 0, i64::from(beneath.pid())));
    assert_eq!(second.get(0, READ, (20, 0))[0], i64::from(UNLOCK));
    assert_eq!(first.get(0, WRITE, (0, 20))[0], i64::from(UNLOCK), "one's own is not in the way");
    // An owner from the view is an open file description to the lower file system.
    assert_eq!(beneath.get(0, READ, (0, 20)), line(WRITE, 10, 5, -1));
}

#[test]
fn every_close_ends_a_processs_locks() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = \"userspace\""] {
        let view = View::with(policy, &[("f", "text")]);
        let (mut inside, mut beneath) = (Agent::new(), Agent::new());
        beneath.open(0, &view.below("f"), "rw");
        inside.open(0, &view.at("f"), "rw");
        inside.open(1, &view.at("f"), "rw");
        assert_eq!(inside.set(0, Family::Posix, WRITE, (0, 5)), 0);
        assert_eq!(inside.set(1, Family::Posix, WRITE, (9, 5)), 0);
        assert_eq!(inside.set(0, Family::Ofd, WRITE, (20, 5)), 0);
        inside.close(1);
        assert_eq!(beneath.set(0, Family::Posix, WRITE, (0, 15)), 0);
        assert_eq!(beneath.set(0, Family::Posix, WRITE, (20, 1)), libc::EAGAIN);
    }
}

/// What a lock holds is given up when its owner is killed: the locks of a process also when another
/// one has inherited the handle, those of a handle only when that is gone too.
#[test]
fn locks_end_with_their_owner() {
    if !can_mount() {
        return;
    }
    for how in ["rw", "rwtrunc"] {
        for family in FAMILIES {
            for heir in [false, true] {
                let view = View::with("", &[("f", "text")]);
                let (mut inside, mut beneath) = (Agent::new(), Agent::new());
                inside.open(0, &view.at("f"), how);
                beneath.open(0, &view.below("f"), "rw");
                assert_eq!(inside.set(0, family, WRITE, ALL), 0);
                if heir {
                    inside.fork();
                }
                assert_eq!(beneath.set(0, family, WRITE, ALL), libc::EAGAIN);
                inside.kill();
                if heir && family != Family::Posix {
                    assert_eq!(beneath.set(0, family, WRITE, ALL), libc::EAGAIN);
                    drop(inside);
                }
                beneath.wait(0, family, WRITE, ALL);
                assert_eq!(beneath.answer(), "ok", "{how} {family:?} {heir}");
            }
        }
    }
}

/// A close returns before the server knows of it, and the server's thread that is told may have to
/// wait for a CPU. Who locks after the close has to get the lock all the same.
#[test]
fn who_locks_right_after_a_close_gets_it_however_busy_the_cpus_are() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text"), ("g", "text")]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // A file that others open and close keeps further threads of the server at work.
        let relays = ["f", "g"].map(|name| {
            let path = view.at(name);
            scope.spawn(move || Agent::new().relay(&path, 300))
        });
        let missed: Vec<_> = relays.map(std::thread::ScopedJoinHandle::join).into();
        done.store(true, Ordering::Relaxed);
        assert!(missed.iter().all(|missed| matches!(missed, Ok(0))), "{missed:?}");
    });
}
