//! A process that has ended, and another one that has its number by now.

#![expect(unsafe_code, reason = "a process connects before it executes its program")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tollgate_control::Directory;

use crate::project::{Daemon, Project, can_mount};

/// A connection of a process that has ended, and that one's number.
fn of_a_process_that_has_ended(socket: &Path) -> (UnixStream, u32) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let own = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let (theirs, address) = (own.try_clone().unwrap(), SocketAddrUnix::new(socket).unwrap());
    let mut process = Command::new("true");
    // SAFETY: connect(2) may be called between fork(2) and execve(2).
    unsafe { process.pre_exec(move || Ok(rustix::net::connect(&theirs, &address)?)) };
    let mut process = process.spawn().unwrap();
    let pid = process.id();
    assert!(process.wait().unwrap().success());
    (own.into(), pid)
}

/// A process with this number, if it can be had: others start processes, too.
fn process_with(pid: u32) -> Option<Child> {
    for _ in 0..100 {
        choose_next(pid).unwrap();
        let mut process = Command::new("sleep").arg("60").spawn().unwrap();
        if process.id() == pid {
            return Some(process);
        }
        end(&mut process);
    }
    None
}

/// Has the next process get this number, if it is free.
fn choose_next(pid: u32) -> std::io::Result<()> {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())
}

fn end(process: &mut Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

/// The socket of the only server that this process number has.
fn socket_of(server: &Daemon<'_>) -> PathBuf {
    let pid = server.status()["pid_here"].as_u64().map(|pid| u32::try_from(pid).unwrap());
    let found = Directory::of_user("tollgate").servers("view").unwrap().found;
    found.into_iter().find(|found| found.pid == pid).unwrap().path
}

/// Whether a server is in its pid namespace is looked up by the number.
#[test]
fn a_process_that_has_the_number_of_one_that_asked_is_not_taken_for_it() {
    if !can_mount() {
        return;
    }
    if let Err(error) = choose_next(std::process::id()) {
        return println!("skipped: process numbers cannot be chosen here: {error}");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut version = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    if (version.next(), version.next()) < (Some(6), Some(5)) {
        return println!("skipped: Linux {release} does not tell a process from another one so");
    }
    let project = Project::new();
    let daemon = Daemon::start(&project);
    let socket = socket_of(&daemon);
    for _ in 0..20 {
        let (mut connection, pid) = of_a_process_that_has_ended(&socket);
        let Some(mut other) = process_with(pid) else { continue };
        let mut reply = String::new();
        let asked = connection.write_all(b"{\"command\":\"reload\"}\n");
        let read = asked.and_then(|()| connection.read_to_string(&mut reply));
        end(&mut other);
        // The machine was too busy: the server waits for a request for some seconds.
        if read.is_err() || reply.contains("did not arrive") {
            continue;
        }
        assert!(reply.contains("cannot have it reloaded"), "{reply}");
        return;
    }
    panic!("no process got the number of another one");
}
