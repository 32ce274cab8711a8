//! A file system beneath that does not answer keeps who asks for it, and nobody else.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tollgate_fuse::mount::{MountOptions, mount, unmount};
use tollgate_fuse::{
    Attr, Attributes, Entry, FileHandle, Filesystem, Name, NodeId, OpenReply, Opened, Reply,
    Request, Running, Session, SessionConfig, StatFs, args,
};

use crate::harness::{View, can_mount};

/// More than there are workers without the reserve.
const CALLERS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(30);
const NOT_KEPT: Duration = Duration::ZERO;

/// The file that is found and has zeroes in it, which are not read until [`Hung::let_read`].
const SLOW: NodeId = NodeId(3);
const SLOW_SIZE: u64 = 1 << 20;

/// A directory in which names that begin with `hung` are never found, nor said to be missing,
/// what begins with `slow` is not read, and nothing is renamed. What begins with `none` is missing.
#[derive(Default)]
struct Silent {
    lookups: Mutex<Vec<Reply<'static, Entry>>>,
    reads: Mutex<Vec<(Reply<'static, [u8]>, u32)>>,
    renames: Mutex<Vec<Reply<'static, ()>>>,
}

fn attr(node: NodeId) -> Attr {
    let mode = if node == NodeId::ROOT { 0o040_755 } else { 0o100_644 };
    let size = if node == SLOW { SLOW_SIZE } else { 0 };
    Attr { ino: node.0, mode, size, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl Filesystem for Silent {
    fn lookup(&self, _: &Request<'_>, _: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        if name.as_bytes().starts_with(b"hung") {
            self.lookups.lock().unwrap().push(reply.detach());
            return;
        }
        if name.as_bytes().starts_with(b"none") {
            reply.error(Errno::NOENT);
            return;
        }
        let node = if name.as_bytes().starts_with(b"slow") { SLOW } else { NodeId(2) };
        let (attr_valid, entry_valid) = (NOT_KEPT, NOT_KEPT);
        reply.ok(&Entry { node, generation: 0, attr: attr(node), attr_valid, entry_valid });
    }

    fn getattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.ok(&Attributes { attr: attr(node), valid: NOT_KEPT });
    }

    fn open(&self, _: &Request<'_>, _: NodeId, _: args::Open, reply: Reply<'_, Opened>) {
        reply.ok(&Opened { handle: FileHandle(0), flags: OpenReply::DIRECT_IO, backing: None });
    }

    fn read(&self, _: &Request<'_>, _: NodeId, args: args::Read, reply: Reply<'_, [u8]>) {
        self.reads.lock().unwrap().push((reply.detach(), args.size));
    }

    fn rename(&self, _: &Request<'_>, _: NodeId, _: args::Rename<'_>, reply: Reply<'_, ()>) {
        self.renames.lock().unwrap().push(reply.detach());
    }

    fn statfs(&self, _: &Request<'_>, _: NodeId, reply: Reply<'_, StatFs>) {
        reply.ok(&StatFs { bsize: 4096, namelen: 255, ..StatFs::default() });
    }
}

/// The directory, mounted for the length of a test.
struct Hung {
    files: Arc<Silent>,
    running: Option<Running>,
    at: PathBuf,
}

impl Hung {
    fn at(path: &Path) -> Self {
        // A view that lies in a view is not entered: another name.
        let options = MountOptions { subtype: "silent".into(), ..MountOptions::default() };
        let (device, mounted) = mount(path, &options).unwrap();
        mounted.keep();
        let files = Arc::new(Silent::default());
        let session = Session::new(device, Arc::clone(&files), SessionConfig::default());
        Self { files, running: Some(session.start().unwrap()), at: path.to_owned() }
    }

    /// Who waits gets an error.
    fn answer(&self) {
        let waiting: Vec<_> = self.files.lookups.lock().unwrap().drain(..).collect();
        for reply in waiting {
            reply.error(Errno::IO);
        }
        let renaming: Vec<_> = self.files.renames.lock().unwrap().drain(..).collect();
        for reply in renaming {
            reply.error(Errno::IO);
        }
    }

    /// Who reads gets zeroes.
    fn let_read(&self) {
        let waiting: Vec<_> = self.files.reads.lock().unwrap().drain(..).collect();
        for (reply, size) in waiting {
            reply.data(&vec![0; size as usize]);
        }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.answer();
        self.let_read();
        let _ = unmount(&self.at, true);
        self.running.take().unwrap().stop();
    }
}

/// A view over it. What hangs ends first, else nobody could end the server.
struct Scene {
    hung: Hung,
    view: View,
}

/// Asks for `count` names below `dir` that are not answered, and waits until `status` says that so
/// many workers wait.
fn ask(view: &View, dir: &Path, count: usize) -> Vec<JoinHandle<std::io::Result<fs::Metadata>>> {
    let ask = |n| {
        let path = dir.join(format!("hung {n}"));
        std::thread::spawn(move || fs::metadata(path))
    };
    let mut callers: Vec<_> = (0..count).map(ask).collect();
    let deadline = Instant::now() + PATIENCE;
    while view.server_report()["transport"]["blocked"] != count {
        if let Some(at) = callers.iter().position(JoinHandle::is_finished) {
            panic!("does not wait: {:?}", callers.swap_remove(at).join());
        }
        assert!(Instant::now() < deadline, "{}", view.server_report()["transport"]);
        std::thread::sleep(Duration::from_millis(50));
    }
    callers
}

/// They end once they are answered, with the error.
fn end(hung: &Hung, callers: Vec<JoinHandle<std::io::Result<fs::Metadata>>>) {
    for caller in callers {
        let deadline = Instant::now() + PATIENCE;
        while !caller.is_finished() {
            // An error makes the view ask once more.
            hung.answer();
            assert!(Instant::now() < deadline, "a caller still waits");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(caller.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}

#[test]
fn a_hung_file_system_inside_dir_does_not_stop_the_rest() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("far")).unwrap();
    fs::create_dir_all(dir.path().join("near/sub")).unwrap();
    fs::write(dir.path().join("near/f"), "text").unwrap();
    let hung = Hung::at(&dir.path().join("far"));
    let view = View::of(dir.path(), "", &["--transport", "devfuse"]);
    let scene = Scene { hung, view };
    let view = &scene.view;
    let callers = ask(view, &view.at("far"), CALLERS);
    assert_eq!(fs::read_to_string(view.at("near/f")).unwrap(), "text");
    assert_eq!(fs::read_dir(view.at("near")).unwrap().count(), 2);
    fs::write(view.at("near/new"), "more").unwrap();
    fs::rename(view.at("near/sub"), view.at("moved")).unwrap();
    assert!(fs::metadata(view.at("far/other")).is_ok(), "it answers for other names");
    end(&scene.hung, callers);
    assert_eq!(view.server_report()["transport"]["blocked"], 0);
}

/// Without rules nothing is judged by where it is, so an open that finds a file gone waits for no rename.
#[test]
fn a_hung_rename_does_not_keep_who_opens_a_removed_file() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("far")).unwrap();
    for name in ["gone", "other"] {
        fs::write(dir.path().join(name), "text").unwrap();
    }
    let hung = Hung::at(&dir.path().join("far"));
    // The kernel keeps the name of what is removed below.
    let view = View::of(dir.path(), "", &["--transport", "devfuse", "--watch", "off"]);
    let scene = Scene { hung, view };
    let view = &scene.view;
    fs::metadata(view.at("gone")).unwrap();
    let (from, to) = (view.at("far/a"), view.at("far/none"));
    let renamer = std::thread::spawn(move || fs::rename(from, to));
    eventually("a rename hangs", || !scene.hung.files.renames.lock().unwrap().is_empty());
    fs::remove_file(dir.path().join("gone")).unwrap();
    let gone = view.at("gone");
    let opener = std::thread::spawn(move || fs::File::open(gone));
    let deadline = Instant::now() + PATIENCE;
    while !opener.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let has_ended = opener.is_finished();
    if has_ended {
        fs::rename(view.at("other"), view.at("moved")).unwrap();
    }
    scene.hung.answer();
    assert!(has_ended, "it waits for the rename");
    assert_eq!(opener.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(renamer.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
}

#[test]
fn a_hung_name_does_not_stop_the_rest_with_either_transport() {
    if !can_mount() {
        return;
    }
    // More than the entries of a ring hang in the tests of tollgate-fuse (`faults.rs`).
    for (transport, count) in [("devfuse", CALLERS), ("uring", 3)] {
        let dir = tempfile::tempdir().unwrap();
        let hung = Hung::at(dir.path());
        let view = View::of(dir.path(), "", &["--transport", transport]);
        let scene = Scene { hung, view };
        let view = &scene.view;
        let callers = ask(view, &view.at("."), count);
        for n in 0..50 {
            assert!(fs::metadata(view.at(&format!("free {n}"))).is_ok(), "{transport}");
        }
        end(&scene.hung, callers);
    }
}

/// All buffers of a view are in the hands of reads that do not end. Who waits for one ends when it is
/// killed, also after it was stopped and continued; a signal that it handles changes nothing.
#[test]
fn who_waits_for_a_buffer_can_be_killed() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("far")).unwrap();
    let hung = Hung::at(&dir.path().join("far"));
    let policy = "[[rule]]\npath = 'far/**'\nkind = 'file'\naction = 'redact'\n";
    let view = View::of(dir.path(), policy, &[]);
    let scene = Scene { hung, view };
    let path = scene.view.at("far/slow");
    let read = |path: PathBuf| std::thread::spawn(move || read_once(&path));
    let holders: Vec<_> = (0..BUFFERS).map(|_| read(path.clone())).collect();
    eventually("all buffers are taken", || in_flight(&scene.view) == BUFFERS as u64);
    let head = || Command::new("head").args(["-c", "100"]).arg(&path).spawn().unwrap();
    let (mut killed, mut stopped) = (head(), head());
    let (tell, told) = std::sync::mpsc::channel();
    let patient = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        read_once(&path)
    });
    let patient_id = told.recv().unwrap();
    let reads = |id: u32, call: libc::c_long| {
        let now = fs::read_to_string(format!("/proc/{id}/syscall")).unwrap_or_default();
        now.split(' ').next() == Some(&call.to_string())
    };
    eventually("two wait to be killed", || {
        reads(killed.id(), libc::SYS_read) && reads(stopped.id(), libc::SYS_read)
    });
    let id = patient_id.as_raw_nonzero().get().cast_unsigned();
    eventually("one waits", || reads(id, libc::SYS_pread64));
    // On their way from the kernel to the line.
    std::thread::sleep(Duration::from_millis(200));
    for signal in [Signal::STOP, Signal::CONT] {
        kill_process(Pid::from_child(&stopped), signal).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    killed.kill().unwrap();
    stopped.kill().unwrap();
    interrupt(patient_id);
    eventually("who is killed ends", || killed.try_wait().unwrap().is_some());
    eventually("who was stopped before, too", || stopped.try_wait().unwrap().is_some());
    assert_eq!(in_flight(&scene.view), BUFFERS as u64, "nobody gave a buffer back");
    assert!(!patient.is_finished());
    eventually("all others read", || {
        scene.hung.let_read();
        patient.is_finished() && holders.iter().all(JoinHandle::is_finished)
    });
    for reader in holders.into_iter().chain([patient]) {
        assert_eq!(reader.join().unwrap().unwrap(), 4096);
    }
}

/// As many as a view has.
const BUFFERS: usize = 28;

/// The kernel keeps who asks it about such a view until the server goes on, past any signal. In a mount
/// namespace of its own, so that no other test meets the server.
#[test]
fn who_asks_about_a_view_whose_server_hangs_gets_an_answer() {
    if !can_mount() {
        return;
    }
    let script = r#"
        set -eu
        mount -t tmpfs none /run
        mkdir d m n
        "$T" mount --daemon --policy none --transport "$1" d m 2> /dev/null
        pid=$("$T" status --json m | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p')
        "$T" mount --daemon --policy none --transport "$1" d n 2> /dev/null
        other=$("$T" status --json n | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p')
        kill -STOP "$pid"
        trap 'kill -CONT "$pid"; umount --lazy m n 2> /dev/null || true' EXIT
        kill -KILL "$other"
        timeout 60 "$T" status m && exit 1
        timeout 60 "$T" mount --policy none d m && exit 1
        # Over the dead view, where the kernel says which one the silent server shows.
        if grep -q fuse_connection: "/proc/$pid/fdinfo/"*; then
            timeout 60 "$T" mount --daemon --policy none d n
            # Whose server answers: the other one is not asked.
            "$T" umount n 2> said
            ! grep "does not answer" said
        fi
        timeout 60 "$T" umount m
        ! grep -q "$PWD/m" /proc/self/mounts
    "#;
    let answered = |transport: &str| {
        let place = tempfile::tempdir().unwrap();
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", script, "sh", transport]).current_dir(place.path());
        shell.env("T", env!("CARGO_BIN_EXE_tollgate")).output().unwrap()
    };
    // Over io_uring, too, where it can be had.
    let transports = ["devfuse", "auto"];
    let outputs = std::thread::scope(|scope| {
        let asked = transports.map(|transport| scope.spawn(move || answered(transport)));
        asked.map(|asked| asked.join().unwrap())
    });
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("no server of this user shows at `m`; it"), "{said}");
        assert!(said.contains("MNT `m` shows a view"), "{said}");
        let end = "does not answer: end that one, then `tollgate umount`";
        assert_eq!(said.matches(end).count(), 2, "{said}");
    }
}

/// Who looks for servers must not take one that hangs for one that ended, nor its native directories for a
/// program that uses the view.
#[test]
fn a_server_that_hangs_is_named_by_whoever_looks_for_servers() {
    if !can_mount() {
        return;
    }
    let script = r#"
        set -eu
        mount -t tmpfs none /run
        mkdir -p d/nat m
        printf '[[rule]]\npath = "nat"\naction = "native"\n' > p.toml
        "$T" mount --daemon --policy p.toml d m 2> /dev/null
        pid=$("$T" status --json m | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p')
        kill -STOP "$pid"
        trap 'kill -CONT "$pid"; umount --lazy m 2> /dev/null || true' EXIT
        is_named() {
            if timeout 60 "$T" "$@" > "$out" 2>&1; then echo "$*: status 0"; exit 1; fi
            grep -q "process $pid does not answer" "$out" || { echo "$*:"; cat "$out"; exit 1; }
        }
        out=1 is_named status & waiting="$!"
        out=2 is_named status --json & waiting="$waiting $!"
        out=3 is_named top --once & waiting="$waiting $!"
        out=4 is_named reload d & waiting="$waiting $!"
        out=5 is_named reload --all & waiting="$waiting $!"
        out=6 is_named umount m & waiting="$waiting $!"
        for one in $waiting; do wait "$one"; done
        grep -q native 6
        "$T" umount --lazy m
    "#;
    let place = tempfile::tempdir().unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", script]).current_dir(place.path());
    let output = shell.env("T", env!("CARGO_BIN_EXE_tollgate")).output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said:?}");
}

fn read_once(path: &Path) -> std::io::Result<usize> {
    fs::File::open(path)?.read_at(&mut [1; 4096], 8192)
}

/// Items of the queue `redact`: reads that have their buffers.
fn in_flight(view: &View) -> u64 {
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    monitor.args(["wq", "monitor", "--json", "--interval", "0.1", "--count", "1", "redact"]);
    let output = monitor.args(["--pid", &view.pid().to_string()]).output().unwrap();
    let rates: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    rates["queues"][0]["in_flight"].as_u64().unwrap()
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends `thread` of this process a signal that it handles, and after which no call is made again.
fn interrupt(thread: rustix::thread::Pid) {
    extern "C" fn handle(_: libc::c_int) {}
    #[expect(unsafe_code, reason = "a handler of a signal")]
    // SAFETY: the handler does nothing, and a zeroed action asks for nothing else.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        let id = thread.as_raw_nonzero().get();
        assert_eq!(libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR1), 0);
    }
}
