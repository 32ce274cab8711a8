//! A file system beneath that does not answer keeps who asks for it, and nobody else.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tollgate_fuse::mount::{MountOptions, mount, unmount};
use tollgate_fuse::{
    Attr, Attributes, Entry, FileHandle, Filesystem, Name, NodeId, Reply, Request, Running,
    Session, SessionConfig, StatFs,
};

use crate::harness::{View, can_mount};

/// More than there are workers without the reserve.
const CALLERS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(30);
const NOT_KEPT: Duration = Duration::ZERO;

/// A directory in which names that begin with `hung` are never found, nor said to be missing.
#[derive(Default)]
struct Silent(Mutex<Vec<Reply<'static, Entry>>>);

fn attr(node: NodeId) -> Attr {
    let mode = if node == NodeId::ROOT { 0o040_755 } else { 0o100_644 };
    Attr { ino: node.0, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl Filesystem for Silent {
    fn lookup(&self, _: &Request<'_>, _: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        if name.as_bytes().starts_with(b"hung") {
            self.0.lock().unwrap().push(reply.detach());
            return;
        }
        let node = NodeId(2);
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
        let waiting: Vec<_> = self.files.0.lock().unwrap().drain(..).collect();
        for reply in waiting {
            reply.error(Errno::IO);
        }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.answer();
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

#[test]
fn a_hung_name_does_not_stop_the_rest_with_either_transport() {
    if !can_mount() {
        return;
    }
    // Each CPU's queue of io_uring has four entries, and what comes while all are held waits for the
    // next request of that CPU.
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
