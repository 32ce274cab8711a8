//! A file system with one file, `file`, whose replies a test chooses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use tollgate_fuse::*;

use super::VALID;
use super::clients::SOON;

/// How long a caller may have to wait.
const PATIENCE: Duration = Duration::from_secs(20);

const FILE: NodeId = NodeId(2);

/// Replies to a request that asked for so many bytes, and returns what sending returned.
pub type Answers = Box<dyn Fn(Reply<'_, [u8]>, usize) -> bool + Send + Sync>;

/// Answers READ, READLINK, GETXATTR and IOCTL as it is told.
pub struct Odd {
    answers: Answers,
    sent: mpsc::Sender<bool>,
    were_sent: Mutex<mpsc::Receiver<bool>>,
}

impl Odd {
    pub fn new(answers: Answers) -> Arc<Self> {
        let (sent, were_sent) = mpsc::channel();
        Arc::new(Self { answers, sent, were_sent: Mutex::new(were_sent) })
    }

    fn answer(&self, reply: Reply<'_, [u8]>, size: usize) {
        self.sent.send((self.answers)(reply, size)).unwrap();
    }

    /// What sending the next reply returned.
    pub fn was_sent(&self) -> bool {
        self.were_sent.lock().unwrap().recv_timeout(SOON).unwrap()
    }
}

fn attr(node: NodeId) -> Attr {
    let mode = match node {
        NodeId::ROOT => 0o040_755,
        FILE => 0o100_644,
        _ => 0o120_777,
    };
    Attr { ino: node.0, mode, nlink: 1, size: 1 << 30, ..Attr::default() }
}

impl Filesystem for Odd {
    fn lookup(&self, _: &Request<'_>, _: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        let node = match name.as_bytes() {
            b"file" => FILE,
            b"link" => NodeId(3),
            _ => {
                reply.error(Errno::NOENT);
                return;
            }
        };
        let attr = attr(node);
        reply.ok(&Entry { node, generation: 0, entry_valid: VALID, attr, attr_valid: VALID });
    }

    fn getattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.ok(&Attributes { attr: attr(node), valid: VALID });
    }

    fn open(&self, _: &Request<'_>, _: NodeId, _: args::Open, reply: Reply<'_, Opened>) {
        reply.ok(&Opened { handle: FileHandle(1), flags: OpenReply::DIRECT_IO, backing: None });
    }

    fn read(&self, _: &Request<'_>, _: NodeId, args: args::Read, reply: Reply<'_, [u8]>) {
        self.answer(reply, args.size as usize);
    }

    fn readlink(&self, _: &Request<'_>, _: NodeId, reply: Reply<'_, [u8]>) {
        self.answer(reply, 4095);
    }

    fn getxattr(
        &self,
        _: &Request<'_>,
        _: NodeId,
        args: args::Getxattr<'_>,
        reply: Reply<'_, [u8]>,
    ) {
        if args.name.to_bytes().starts_with(b"user.") {
            self.answer(reply, args.size as usize);
        } else {
            reply.error(Errno::NODATA);
        }
    }
}

/// It, mounted.
pub struct ServedOdd {
    // In the order in which they are to be dropped.
    _mount: Mount,
    pub running: Running,
    pub fs: Arc<Odd>,
    pub at: tempfile::TempDir,
}

impl ServedOdd {
    pub fn new(
        transport: TransportChoice,
        answers: impl Fn(Reply<'_, [u8]>, usize) -> bool + Send + Sync + 'static,
    ) -> Self {
        let at = tempfile::tempdir().unwrap();
        let fs = Odd::new(Box::new(answers));
        let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let config = SessionConfig { transport, threads: 2, ..SessionConfig::default() };
        let running = Session::new(device, Arc::clone(&fs), config).start().unwrap();
        Self { _mount: mount, running, fs, at }
    }

    /// Reads the start of the file.
    pub fn read(&self, len: usize) -> io::Result<Vec<u8>> {
        let path = self.at.path().join("file");
        within(move || {
            let mut data = vec![0; len];
            let n = File::open(path)?.read_at(&mut data, 0)?;
            data.truncate(n);
            Ok(data)
        })
    }
}

/// What `f` returns in a thread of its own, which a hang does not stop from failing.
pub fn within<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(f()));
    is_done.recv_timeout(PATIENCE).expect("it does not hang")
}
