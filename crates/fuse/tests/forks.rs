//! Copies of a process that serves (fork): they neither end nor answer anything for it.
#![expect(unsafe_code, reason = "fork(2)")]

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use common::clients::{SOON, until};
use common::odd::{Odd, within};
use common::{VALID, transports};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tollgate_fuse::*;

const AGAIN: &str = "FUSE_TEST_FORKS";

/// Runs `body` in a process of its own, which has this one test and may be copied.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(AGAIN).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(AGAIN, "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
}

/// A copy of this process that does `body` on its one thread.
fn copy(body: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the copy has this thread alone, and leaves by _exit below.
    match unsafe { libc::fork() } {
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the copy at once.
            unsafe { libc::_exit(status.unwrap_or(101)) }
        }
        pid => Pid::from_raw(pid).expect("fork"),
    }
}

/// How the copy exits; one that hangs is killed.
fn ends(copy: Pid) -> i32 {
    let mut status = None;
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("a copy ends", || {
            status = waitpid(Some(copy), WaitOptions::NOHANG).unwrap();
            status.is_some()
        });
    }));
    if ended.is_err() {
        let _ = kill_process(copy, Signal::KILL);
        let _ = waitpid(Some(copy), WaitOptions::empty());
        panic!("a copy hangs");
    }
    status.and_then(|(_, status)| status.exit_status()).expect("it exits")
}

fn read(path: &Path) -> mpsc::Receiver<std::io::Result<Vec<u8>>> {
    let (tell, told) = mpsc::channel();
    let path = path.to_owned();
    let read = move || {
        let mut data = vec![0; 64];
        let len = File::open(path)?.read(&mut data)?;
        data.truncate(len);
        Ok(data)
    };
    thread::spawn(move || tell.send(read()));
    told
}

/// Everything that a server has, dropped by a copy of it.
#[test]
fn what_a_copy_drops_goes_on_in_the_server() {
    alone("what_a_copy_drops_goes_on_in_the_server", || {
        for transport in transports() {
            let replies = Arc::new(Mutex::new(Vec::new()));
            let kept = Arc::clone(&replies);
            let fs = Odd::new(Box::new(move |reply, _| {
                kept.lock().unwrap().push(reply.detach());
                true
            }));
            let at = tempfile::tempdir().unwrap();
            let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
            let config = SessionConfig { transport, threads: 2, ..SessionConfig::default() };
            let running = Session::new(device, fs, config).start().unwrap();
            let stopper = running.stopper();
            let lower = tempfile::NamedTempFile::new().unwrap();
            let backing = running.connection().open_backing(lower.as_file().as_fd()).unwrap();
            let id = backing.id();
            let connection = running.connection().clone();
            let [first, second] = [(); 2].map(|()| read(&at.path().join("file")));
            until("both wait", || replies.lock().unwrap().len() == 2);
            let objects = Mutex::new(Some((mount, running, backing)));
            let copied = copy(|| {
                let (mount, running, backing) = objects.lock().unwrap().take().unwrap();
                let mut replies = std::mem::take(&mut *replies.lock().unwrap());
                let was_sent = replies.pop().unwrap().data(b"copy");
                drop(replies);
                stopper.stop();
                drop((backing, mount));
                let ended = running.wait();
                drop(connection);
                i32::from(was_sent || !matches!(ended, Err(SessionError::Copy)))
            });
            assert_eq!(ends(copied), 0, "{transport}");
            let copied = copy(|| {
                drop(objects.lock().unwrap().take());
                0
            });
            assert_eq!(ends(copied), 0, "{transport}");
            // Its requests wait still, its files are registered, and others are served.
            let missing = at.path().join("missing");
            let found = within(move || fs::metadata(missing)).unwrap_err();
            assert_eq!(found.kind(), std::io::ErrorKind::NotFound, "{transport}");
            for reply in std::mem::take(&mut *replies.lock().unwrap()) {
                assert!(reply.data(b"server"), "{transport}");
            }
            for reader in [first, second] {
                assert_eq!(reader.recv_timeout(SOON).unwrap().unwrap(), b"server", "{transport}");
            }
            let (mount, running, backing) = objects.lock().unwrap().take().unwrap();
            let another = running.connection().open_backing(lower.as_file().as_fd()).unwrap();
            assert_ne!(another.id(), id, "the number is in use: {transport}");
            drop((another, backing));
            assert_eq!(running.connection().counts().undelivered, 0, "{transport}");
            mount.unmount(false).unwrap();
            assert_eq!(running.wait().unwrap(), Ended::Unmounted, "{transport}");
        }
    });
}

/// Replies to READ by a copy of the process first.
struct Copying;

fn attributes(node: NodeId) -> Attr {
    let mode = if node == NodeId::ROOT { 0o040_755 } else { 0o100_644 };
    Attr { ino: node.0, mode, nlink: 1, size: 64, ..Attr::default() }
}

impl Filesystem for Copying {
    fn lookup(&self, _: &Request<'_>, _: NodeId, _: Name<'_>, reply: Reply<'_, Entry>) {
        let (node, attr) = (NodeId(2), attributes(NodeId(2)));
        reply.ok(&Entry { node, generation: 0, entry_valid: VALID, attr, attr_valid: VALID });
    }

    fn getattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.ok(&Attributes { attr: attributes(node), valid: VALID });
    }

    fn open(&self, _: &Request<'_>, _: NodeId, _: args::Open, reply: Reply<'_, Opened>) {
        // The copy that a handler waits for has this file open, too. Its FLUSH would come to the ring of
        // the CPU where it ends, whose owner may be the thread that waits.
        let flags = OpenReply::DIRECT_IO | OpenReply::NOFLUSH;
        reply.ok(&Opened { handle: FileHandle(1), flags, backing: None });
    }

    fn read(&self, _: &Request<'_>, _: NodeId, _: args::Read, reply: Reply<'_, [u8]>) {
        // SAFETY: the copy has this thread alone, which ends it after this handler.
        match unsafe { libc::fork() } {
            0 => _ = reply.data(b"copy"),
            pid => {
                ends(Pid::from_raw(pid).expect("fork"));
                reply.data(b"server");
            }
        }
    }
}

/// A thread of the session that is copied in a handler serves nobody in the copy, which ends with it.
#[test]
fn a_copy_of_a_worker_serves_nobody() {
    alone("a_copy_of_a_worker_serves_nobody", || {
        for transport in transports() {
            let at = tempfile::tempdir().unwrap();
            let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
            let config = SessionConfig { transport, threads: 2, ..SessionConfig::default() };
            let running = Session::new(device, Arc::new(Copying), config).start().unwrap();
            for _ in 0..3 {
                let data = read(&at.path().join("file")).recv_timeout(SOON).unwrap();
                assert_eq!(data.unwrap(), b"server", "{transport}");
            }
            let counts = running.connection().counts();
            assert_eq!((counts.undelivered, counts.dropped, counts.panics), (0, 0, 0));
            let path = at.path().join("file");
            assert!(within(move || fs::metadata(path)).is_ok());
        }
    });
}

/// What a program leaves behind by exec has no part in the connection.
#[test]
fn no_descriptor_of_a_session_survives_exec() {
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    alone("no_descriptor_of_a_session_survives_exec", || {
        for transport in transports() {
            let at = tempfile::tempdir().unwrap();
            let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
            // As it comes from somebody who passed it through exec.
            rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::empty()).unwrap();
            let config = SessionConfig { transport, threads: 4, ..SessionConfig::default() };
            let fs = Odd::new(Box::new(|reply, _| reply.error(Errno::IO)));
            let _running = Session::new(device, fs, config).start().unwrap();
            let mut devices = 0;
            for entry in fs::read_dir("/proc/self/fd").unwrap() {
                let entry = entry.unwrap();
                let Ok(target) = fs::read_link(entry.path()) else { continue };
                let target = target.to_str().unwrap();
                if !["/dev/fuse", "anon_inode:"].iter().any(|what| target.starts_with(what)) {
                    continue;
                }
                devices += u32::from(target == "/dev/fuse");
                let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
                let info = fs::read_to_string(info).unwrap();
                let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
                let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
                assert_ne!(flags & CLOSE_ON_EXEC, 0, "{transport}: {target}");
            }
            assert!(devices > 0, "{transport}");
        }
    });
}
