//! Locks that are waited for.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::agent::{self, Agent, Family, READ, UNLOCK, WRITE};
use super::{ALL, FAMILIES, View, can_mount, until_waiting};

#[test]
fn a_wait_ends_when_the_lock_is_given_up_on_either_side() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = \"userspace\""] {
        let view = View::with(policy, &[("f", "text")]);
        let [mut first, mut second, mut beneath] = [(); 3].map(|()| Agent::new());
        first.open(0, &view.at("f"), "rw");
        second.open(0, &view.at("f"), "rw");
        beneath.open(0, &view.below("f"), "rw");
        for family in FAMILIES {
            for holder in [&mut first, &mut beneath] {
                assert_eq!(holder.set(0, family, WRITE, ALL), 0);
                second.wait(0, family, READ, ALL);
                until_waiting(&view, 1);
                assert_eq!(holder.set(0, family, UNLOCK, ALL), 0);
                assert_eq!(second.answer(), "ok");
                assert_eq!(holder.set(0, family, WRITE, ALL), libc::EAGAIN);
                assert_eq!(second.set(0, family, UNLOCK, ALL), 0);
            }
            assert_eq!(second.set(0, family, WRITE, ALL), 0);
            beneath.wait(0, family, WRITE, ALL);
            assert_eq!(second.set(0, family, UNLOCK, ALL), 0);
            assert_eq!(beneath.answer(), "ok");
            assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
        }
    }
}

#[test]
fn a_signal_ends_a_wait_and_nothing_is_locked_afterwards() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let [mut waiter, mut beneath] = [(); 2].map(|()| Agent::new());
    waiter.open(0, &view.at("f"), "rw");
    beneath.open(0, &view.below("f"), "rw");
    for family in FAMILIES {
        for _ in 0..20 {
            assert_eq!(beneath.set(0, family, WRITE, ALL), 0);
            waiter.wait(0, family, WRITE, ALL);
            until_waiting(&view, 1);
            waiter.interrupt();
            assert_eq!(waiter.answer(), libc::EINTR.to_string());
            until_waiting(&view, 0);
            assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
            assert_eq!(beneath.set(0, family, WRITE, ALL), 0);
            assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
        }
    }
}

/// A lock that somebody else's was in the way of ends with its process as one that was free does,
/// also where no close is reported and another process has inherited the handle.
#[test]
fn a_lock_that_was_waited_for_ends_with_its_process() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let [mut inside, mut beneath] = [(); 2].map(|()| Agent::new());
    inside.open(0, &view.at("f"), "rwtrunc");
    beneath.open(0, &view.below("f"), "rw");
    assert_eq!(beneath.set(0, Family::Posix, WRITE, ALL), 0);
    inside.wait(0, Family::Posix, WRITE, ALL);
    until_waiting(&view, 1);
    assert_eq!(beneath.set(0, Family::Posix, UNLOCK, ALL), 0);
    assert_eq!(inside.answer(), "ok");
    inside.fork();
    assert_eq!(beneath.set(0, Family::Posix, WRITE, ALL), libc::EAGAIN);
    inside.kill();
    let deadline = Instant::now() + Duration::from_secs(20);
    while beneath.set(0, Family::Posix, WRITE, ALL) != 0 {
        assert!(Instant::now() < deadline, "the lock outlives its process");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A thread waits to read while another one of its process locks for writing, for which the server
/// opens the lower file anew: the two are one owner all the same.
#[test]
fn a_thread_that_waits_and_its_process_are_one_owner() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let mut beneath = Agent::new();
    beneath.open(0, &view.below("f"), "rw");
    assert_eq!(beneath.set(0, Family::Posix, WRITE, (100, 10)), 0);
    let [reading, writing] = [false, true].map(|write| {
        Arc::new(fs::File::options().read(true).write(write).open(view.at("f")).unwrap())
    });
    let posix = |file: &fs::File, verb, what: &str| agent::lock(file, verb, "Posix", what);
    assert_eq!(posix(&reading, "set", &format!("{READ} 0 10")), "ok");
    let (told, answer) = channel();
    let waiting = Arc::clone(&reading);
    // Not joined: if it is in its own process's way, it waits until the view goes.
    thread::spawn(move || told.send(posix(&waiting, "wait", &format!("{READ} 90 20"))));
    until_waiting(&view, 1);
    assert_eq!(posix(&writing, "set", &format!("{WRITE} 0 10")), "ok");
    assert_eq!(posix(&writing, "set", &format!("{WRITE} 90 5")), "ok");
    assert_eq!(beneath.set(0, Family::Posix, UNLOCK, (100, 10)), 0);
    assert_eq!(answer.recv_timeout(Duration::from_secs(20)).as_deref(), Ok("ok"));
    for (range, kind, expected) in
        [((0, 10), READ, libc::EAGAIN), ((90, 20), WRITE, libc::EAGAIN), ((90, 20), READ, 0)]
    {
        assert_eq!(beneath.set(0, Family::Posix, kind, range), expected, "{range:?} {kind}");
    }
    assert_eq!(posix(&writing, "set", &format!("{UNLOCK} 0 10")), "ok");
    assert_eq!(beneath.set(0, Family::Posix, WRITE, (0, 10)), 0);
}

/// The server's control group of processes, of which it may have no more; raised again in the end.
struct NoThreads(PathBuf);

impl NoThreads {
    /// `None` after saying that there is no such group here.
    fn of(server: u32) -> Option<Self> {
        let name = format!("tollgate-locks-{server}");
        let group = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().find_map(|root| {
            let group = Self(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            fs::File::options().write(true).open(group.0.join("pids.max")).ok()?;
            fs::write(group.0.join("cgroup.procs"), server.to_string()).ok()?;
            fs::write(group.0.join("pids.max"), "1").ok()?;
            Some(group)
        });
        if group.is_none() {
            println!("skipped: no control group can limit processes here");
        }
        group
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        // A group with a process in it stays until the next start of the machine.
        let _ = fs::write(self.0.join("pids.max"), "max");
        let up = self.0.parent().map(|up| up.join("cgroup.procs"));
        let left = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for (pid, up) in left.lines().zip(std::iter::repeat(up)) {
            let _ = up.map(|up| fs::write(up, pid));
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A request that nobody would try again, and nobody could interrupt, does not wait.
#[test]
fn without_a_thread_a_wait_is_refused_and_not_forgotten() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let [mut waiter, mut beneath] = [(); 2].map(|()| Agent::new());
    waiter.open(0, &view.at("f"), "rw");
    beneath.open(0, &view.below("f"), "rw");
    assert_eq!(beneath.set(0, Family::Posix, WRITE, ALL), 0);
    let Some(limited) = NoThreads::of(view.pid()) else { return };
    waiter.wait(0, Family::Posix, WRITE, ALL);
    assert_eq!(waiter.answer(), libc::ENOLCK.to_string());
    assert_eq!(waiter.set(0, Family::Posix, WRITE, ALL), libc::EAGAIN);
    until_waiting(&view, 0);
    drop(limited);
    waiter.wait(0, Family::Posix, WRITE, ALL);
    until_waiting(&view, 1);
    assert_eq!(beneath.set(0, Family::Posix, UNLOCK, ALL), 0);
    assert_eq!(waiter.answer(), "ok");
}

#[test]
fn a_process_that_is_killed_while_it_waits_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let mut beneath = Agent::new();
    beneath.open(0, &view.below("f"), "rw");
    for family in FAMILIES {
        let mut waiter = Agent::new();
        waiter.open(0, &view.at("f"), "rw");
        assert_eq!(beneath.set(0, family, WRITE, ALL), 0);
        waiter.wait(0, family, WRITE, ALL);
        until_waiting(&view, 1);
        waiter.kill();
        until_waiting(&view, 0);
        assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
        assert_eq!(beneath.set(0, family, WRITE, ALL), 0);
        assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
    }
}

#[test]
fn processes_that_wait_for_each_other_are_told() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text"), ("g", "text")]);
    let mut agents = [(); 3].map(|()| Agent::new());
    for agent in &mut agents {
        agent.open(0, &view.at("f"), "rw");
        agent.open(1, &view.at("g"), "rw");
    }
    let [first, second, third] = &mut agents;
    assert_eq!(first.set(0, Family::Posix, WRITE, (0, 1)), 0);
    assert_eq!(second.set(1, Family::Posix, WRITE, (0, 1)), 0);
    assert_eq!(third.set(0, Family::Posix, WRITE, (5, 1)), 0);
    first.wait(1, Family::Posix, WRITE, ALL);
    until_waiting(&view, 1);
    second.wait(0, Family::Posix, READ, (4, 4));
    until_waiting(&view, 2);
    third.wait(0, Family::Posix, WRITE, (0, 1));
    assert_eq!(third.answer(), libc::EDEADLK.to_string());
    assert_eq!(third.set(0, Family::Posix, UNLOCK, ALL), 0);
    assert_eq!(second.answer(), "ok");
    assert_eq!(second.set(1, Family::Posix, UNLOCK, ALL), 0);
    assert_eq!(first.answer(), "ok");
}

/// Another thread could unlock them, so open file descriptions are let wait, as by the kernel.
#[test]
fn open_file_descriptions_may_wait_for_each_other() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let mut agents = [(); 2].map(|()| Agent::new());
    agents.iter_mut().for_each(|agent| agent.open(0, &view.at("f"), "rw"));
    let [first, second] = &mut agents;
    assert_eq!(first.set(0, Family::Ofd, WRITE, (0, 1)), 0);
    assert_eq!(second.set(0, Family::Ofd, WRITE, (1, 1)), 0);
    first.wait(0, Family::Ofd, WRITE, (1, 1));
    second.wait(0, Family::Ofd, WRITE, (0, 1));
    until_waiting(&view, 2);
    second.interrupt();
    assert_eq!(second.answer(), libc::EINTR.to_string());
    assert_eq!(second.set(0, Family::Ofd, UNLOCK, ALL), 0);
    assert_eq!(first.answer(), "ok");
}

/// More waits than threads wait in the kernel; the server goes on serving meanwhile, and each wait
/// ends with the lock or with its signal.
#[test]
fn many_wait_and_the_view_is_served_meanwhile() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text"), ("g", "other")]);
    let mut beneath = Agent::new();
    beneath.open(0, &view.below("f"), "rw");
    assert_eq!(beneath.set(0, Family::Posix, WRITE, ALL), 0);
    let mut waiters: Vec<Agent> = (0..70).map(|_| Agent::new()).collect();
    for waiter in &mut waiters {
        waiter.open(0, &view.at("f"), "rw");
        waiter.wait(0, Family::Posix, READ, ALL);
    }
    until_waiting(&view, 70);
    assert_eq!(view.server_report()["view"]["locks"]["threads"], 64);
    assert_eq!(fs::read_to_string(view.at("g")).unwrap(), "other");
    for waiter in &mut waiters[60..] {
        waiter.interrupt();
        assert_eq!(waiter.answer(), libc::EINTR.to_string());
    }
    assert_eq!(beneath.set(0, Family::Posix, UNLOCK, ALL), 0);
    for waiter in &mut waiters[..60] {
        assert_eq!(waiter.answer(), "ok");
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while view.threads().iter().any(|name| name == "tollgate-lock") {
        assert!(Instant::now() < deadline, "{:?}", view.threads());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Signals and grants at the same moment: a wait that ended with EINTR holds nothing.
#[test]
fn a_signal_and_a_grant_at_once_end_in_one_of_the_two() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("f", "text")]);
    let [mut waiter, mut beneath] = [(); 2].map(|()| Agent::new());
    waiter.open(0, &view.at("f"), "rw");
    beneath.open(0, &view.below("f"), "rw");
    for round in 0..100 {
        let family = FAMILIES[round % 3];
        assert_eq!(beneath.set(0, family, WRITE, ALL), 0);
        waiter.wait(0, family, WRITE, ALL);
        if round % 2 == 0 {
            until_waiting(&view, 1);
        }
        waiter.interrupt();
        assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
        let taken = match waiter.answer().as_str() {
            "ok" => true,
            answer => {
                assert_eq!(answer, libc::EINTR.to_string());
                false
            }
        };
        let expected = if taken { libc::EAGAIN } else { 0 };
        assert_eq!(beneath.set(0, family, WRITE, ALL), expected, "round {round}");
        assert_eq!(waiter.set(0, family, UNLOCK, ALL), 0);
        assert_eq!(beneath.set(0, family, UNLOCK, ALL), 0);
    }
}
