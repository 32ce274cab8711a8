//! A small file system over one flat lower directory, for tests that mount.
//!
//! Files whose names start with `pass` are served in passthrough mode, others by the server with
//! direct I/O.
#![allow(dead_code, unreachable_pub, reason = "shared by test binaries, each of which uses a part")]

pub mod clients;
pub mod odd;

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tollgate_fuse::*;

pub const VALID: Duration = Duration::from_secs(1);

/// When a handler that waits gives up, so that a mount can be taken down after a failure. Longer than
/// any test waits: a request that is served only because others gave up was not served.
const LETS_GO: Duration = Duration::from_secs(120);

/// Whether mounting works here. Where it does not, says so, unless `TOLLGATE_REQUIRE_MOUNT=1`.
pub fn can_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    match mount(dir.path(), &MountOptions::default()) {
        Ok(_) => true,
        Err(error) if std::env::var_os("TOLLGATE_REQUIRE_MOUNT").is_some_and(|v| v == "1") => {
            panic!("mounting is required: {error}")
        }
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            false
        }
    }
}

/// The transport that tests use unless they choose one: `TOLLGATE_TEST_TRANSPORT`, or what the
/// library chooses.
pub fn transport() -> TransportChoice {
    match std::env::var("TOLLGATE_TEST_TRANSPORT").as_deref() {
        Err(_) | Ok("auto") => TransportChoice::Auto,
        Ok("devfuse") => TransportChoice::DevFuse,
        Ok("uring") => TransportChoice::Uring,
        Ok(other) => {
            panic!("TOLLGATE_TEST_TRANSPORT is `{other}`, but must be auto, devfuse or uring")
        }
    }
}

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The transports to test here: /dev/fuse, and io_uring where the kernel has that switched on;
/// `TOLLGATE_TEST_TRANSPORT` restricts them to one.
pub fn transports() -> Vec<TransportChoice> {
    if !can_mount() {
        return Vec::new();
    }
    match transport() {
        TransportChoice::Auto => {}
        one => return vec![one],
    }
    if fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "Y") {
        return vec![TransportChoice::DevFuse, TransportChoice::Uring];
    }
    eprintln!("SKIPPED for io_uring: {PARAMETER} is not Y");
    vec![TransportChoice::DevFuse]
}

#[derive(Default)]
struct Files {
    by_name: HashMap<Vec<u8>, NodeId>,
    names: HashMap<NodeId, PathBuf>,
    backing: HashMap<NodeId, BackingFile>,
    open: HashMap<u64, File>,
}

pub struct Lower {
    pub dir: PathBuf,
    files: Mutex<Files>,
    next: AtomicU64,
    pub connection: OnceLock<Connection>,
    pub workers_seen: AtomicU64,
    pub interrupted: AtomicBool,
    pub destroyed: AtomicBool,
    pub forgotten: AtomicU64,
    /// RELEASEs that were served.
    pub released: AtomicU64,
    /// Set by a test: a RELEASE is served only once this is false again.
    pub releases_wait: AtomicBool,
    /// FSYNCs that were received, and READs of `hang-*`, and whether they may be answered.
    pub syncing: AtomicU64,
    pub synced: AtomicBool,
    /// Locks that wait for ever.
    locks: Mutex<Vec<Reply<'static, ()>>>,
    /// Set by a test: LOOKUP of `meet` waits here for another one.
    pub meeting: Barrier,
}

impl Lower {
    pub fn new(dir: &Path) -> Arc<Self> {
        Arc::new(Self {
            dir: dir.into(),
            files: Mutex::default(),
            next: AtomicU64::new(2),
            connection: OnceLock::new(),
            workers_seen: AtomicU64::new(0),
            interrupted: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
            forgotten: AtomicU64::new(0),
            released: AtomicU64::new(0),
            releases_wait: AtomicBool::new(false),
            syncing: AtomicU64::new(0),
            synced: AtomicBool::new(false),
            locks: Mutex::default(),
            meeting: Barrier::new(2),
        })
    }

    fn path(&self, node: NodeId) -> Result<PathBuf, Errno> {
        if node == NodeId::ROOT {
            return Ok(self.dir.clone());
        }
        self.files.lock().unwrap().names.get(&node).cloned().ok_or(Errno::NOENT)
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes, Errno> {
        let meta = fs::symlink_metadata(self.path(node)?).map_err(errno)?;
        Ok(Attributes { attr: attr(&meta, node), valid: VALID })
    }

    fn entry(&self, name: &[u8]) -> Result<Entry, Errno> {
        use std::os::unix::ffi::OsStrExt;
        let path = self.dir.join(std::ffi::OsStr::from_bytes(name));
        let meta = fs::symlink_metadata(&path).map_err(errno)?;
        let mut files = self.files.lock().unwrap();
        let node = *files
            .by_name
            .entry(name.to_vec())
            .or_insert_with(|| NodeId(self.next.fetch_add(1, Ordering::Relaxed)));
        files.names.insert(node, path);
        Ok(Entry {
            node,
            generation: 0,
            entry_valid: VALID,
            attr: attr(&meta, node),
            attr_valid: VALID,
        })
    }

    fn opened(&self, node: NodeId) -> Result<Opened, Errno> {
        let path = self.path(node)?;
        let file = File::options().read(true).write(true).open(&path).map_err(errno)?;
        let pass = path.file_name().unwrap().to_str().unwrap().starts_with("pass");
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let mut files = self.files.lock().unwrap();
        let mut opened = Opened {
            handle: FileHandle(handle),
            flags: OpenReply::DIRECT_IO | OpenReply::NOFLUSH,
            backing: None,
        };
        if pass {
            if let MapEntry::Vacant(vacant) = files.backing.entry(node) {
                let connection = self.connection.get().unwrap();
                vacant.insert(connection.open_backing(file.as_fd()).map_err(errno)?);
            }
            opened.flags = OpenReply::PASSTHROUGH | OpenReply::NOFLUSH;
            opened.backing = Some(files.backing[&node].id());
        }
        files.open.insert(handle, file);
        Ok(opened)
    }

    /// Calls `add` for each entry from `offset` on, until it returns `false`.
    fn list(&self, offset: u64, mut add: impl FnMut(Entry, u64, &[u8]) -> bool) {
        use std::os::unix::ffi::OsStrExt;
        let mut names: Vec<_> =
            fs::read_dir(&self.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        for (i, name) in names.iter().enumerate().skip(usize::try_from(offset).unwrap()) {
            let Ok(entry) = self.entry(name.as_bytes()) else { continue };
            if !add(entry, i as u64 + 1, name.as_bytes()) {
                return;
            }
        }
    }

    /// Waits until a test lets it go on.
    fn wait_until_synced(&self) {
        self.syncing.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while !self.synced.load(Ordering::SeqCst) && start.elapsed() < LETS_GO {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn with_file<T>(&self, handle: FileHandle, f: impl FnOnce(&File) -> T) -> Result<T, Errno> {
        let files = self.files.lock().unwrap();
        let file = files.open.get(&handle.0).ok_or(Errno::BADF)?;
        let file = file.try_clone().map_err(errno)?;
        drop(files);
        Ok(f(&file))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn attr(meta: &fs::Metadata, node: NodeId) -> Attr {
    Attr {
        ino: node.0,
        size: meta.size(),
        blocks: meta.blocks(),
        atime: (meta.atime(), 0),
        mtime: (meta.mtime(), 0),
        ctime: (meta.ctime(), 0),
        mode: meta.mode(),
        nlink: 1,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: 0,
        blksize: 4096,
    }
}

impl Filesystem for Lower {
    fn init(&self, connection: &Connection) -> Result<(), Errno> {
        self.connection.set(connection.clone()).map_err(|_| Errno::BUSY)
    }

    fn destroy(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
    }

    fn forget(&self, _node: NodeId, lookups: u64) {
        self.forgotten.fetch_add(lookups, Ordering::SeqCst);
    }

    fn lookup(&self, req: &Request<'_>, _parent: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        self.workers_seen.fetch_or(1 << req.worker(), Ordering::SeqCst);
        match name.as_bytes() {
            b"panic" => panic!("asked for by the test"),
            b"drop" => return drop(reply),
            b"meet" => {
                self.meeting.wait();
            }
            b"slow" => {
                let start = Instant::now();
                while !req.interrupted() && start.elapsed() < LETS_GO {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.interrupted.store(req.interrupted(), Ordering::SeqCst);
                reply.error(Errno::INTR);
                return;
            }
            name if name.starts_with(b"nap") => std::thread::sleep(Duration::from_millis(3)),
            // Not there, if all that was sent before has been served within some seconds.
            name if name.starts_with(b"passing") => {
                let (reply, connection) = (reply.detach(), self.connection.get().unwrap().clone());
                std::thread::spawn(move || {
                    let (start, mut passing) = (Instant::now(), connection.passing());
                    while !passing.is_over() && start.elapsed() < Duration::from_secs(10) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let over = passing.is_over();
                    reply.error(if over { Errno::NOENT } else { Errno::TIMEDOUT });
                });
                return;
            }
            // The same in the worker's thread, which does not wait for itself.
            b"asks-within" => {
                let (start, mut passing) =
                    (Instant::now(), self.connection.get().unwrap().passing());
                while !passing.is_over() && start.elapsed() < Duration::from_secs(10) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let over = passing.is_over();
                reply.error(if over { Errno::NOENT } else { Errno::TIMEDOUT });
                return;
            }
            name if name.starts_with(b"slow-detached") => {
                let mut reply = reply.detach();
                if name.ends_with(b"-twice") {
                    reply = reply.detach();
                }
                std::thread::spawn(move || {
                    let start = Instant::now();
                    while !reply.interrupted() && start.elapsed() < LETS_GO {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let errno = if reply.interrupted() { Errno::INTR } else { Errno::TIMEDOUT };
                    reply.error(errno);
                });
                return;
            }
            _ => {}
        }
        reply.send(self.entry(name.as_bytes()));
    }

    fn getattr(
        &self,
        _req: &Request<'_>,
        node: NodeId,
        _handle: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.send(self.attributes(node));
    }

    fn setattr(
        &self,
        _req: &Request<'_>,
        node: NodeId,
        _set: &SetAttr,
        reply: Reply<'_, Attributes>,
    ) {
        reply.send(self.attributes(node));
    }

    fn open(&self, _req: &Request<'_>, node: NodeId, _args: args::Open, reply: Reply<'_, Opened>) {
        reply.send(self.opened(node));
    }

    fn create(
        &self,
        _req: &Request<'_>,
        _parent: NodeId,
        args: args::Create<'_>,
        reply: Reply<'_, Created>,
    ) {
        use std::os::unix::ffi::OsStrExt;
        let name = args.name;
        let path = self.dir.join(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let created = File::create(path).map_err(errno).and_then(|_| {
            let entry = self.entry(name.as_bytes())?;
            Ok(Created { entry, opened: self.opened(entry.node)? })
        });
        reply.send(created);
    }

    fn release(&self, _req: &Request<'_>, _: NodeId, args: args::Release, reply: Reply<'_, ()>) {
        while self.releases_wait.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut files = self.files.lock().unwrap();
        files.open.remove(&args.handle.0);
        drop(files);
        self.released.fetch_add(1, Ordering::SeqCst);
        reply.ok(&());
    }

    fn read(&self, _req: &Request<'_>, node: NodeId, args: args::Read, reply: Reply<'_, [u8]>) {
        if self.path(node).is_ok_and(|path| path.to_string_lossy().contains("/hang-")) {
            self.wait_until_synced();
        }
        reply.fill(args.size as usize, |buffer| {
            self.with_file(args.handle, |file| file.read_at(buffer, args.offset))?.map_err(errno)
        });
    }

    fn write(
        &self,
        _req: &Request<'_>,
        _node: NodeId,
        args: args::Write<'_>,
        reply: Reply<'_, u32>,
    ) {
        let args::Write { handle, offset, data, .. } = args;
        let result = self.with_file(handle, |file| file.write_all_at(data, offset));
        reply.send(
            result.and_then(|r| r.map_err(errno)).map(|()| u32::try_from(data.len()).unwrap()),
        );
    }

    fn fsync(&self, _req: &Request<'_>, _node: NodeId, _args: args::Fsync, reply: Reply<'_, ()>) {
        self.wait_until_synced();
        reply.ok(&());
    }

    fn setlk(&self, _req: &Request<'_>, _node: NodeId, args: args::Setlk, reply: Reply<'_, ()>) {
        match args.wait {
            true => self.locks.lock().unwrap().push(reply.detach()),
            false => drop(reply.ok(&())),
        }
    }

    fn opendir(&self, _req: &Request<'_>, _node: NodeId, _flags: u32, reply: Reply<'_, Opened>) {
        reply.ok(&Opened { handle: FileHandle(1), flags: OpenReply::empty(), backing: None });
    }

    fn readdir(
        &self,
        _req: &Request<'_>,
        _node: NodeId,
        args: args::Readdir,
        mut reply: DirReply<'_>,
    ) {
        self.list(args.offset, |entry, next, name| {
            reply.add(entry.attr.ino, entry.attr.mode >> 12, next, name)
        });
        reply.send();
    }

    fn readdirplus(
        &self,
        _req: &Request<'_>,
        _node: NodeId,
        args: args::Readdir,
        mut reply: DirReply<'_>,
    ) {
        self.list(args.offset, |entry, next, name| {
            reply.add_plus(&entry, entry.attr.mode >> 12, next, name)
        });
        reply.send();
    }

    fn getxattr(
        &self,
        _req: &Request<'_>,
        _node: NodeId,
        args: args::Getxattr<'_>,
        reply: Reply<'_, [u8]>,
    ) {
        match (args.name.to_bytes(), args.size) {
            (b"user.long", 0) => reply.size(5),
            (b"user.long", 1..5) => reply.error(Errno::RANGE),
            (b"user.long", _) => reply.data(b"value"),
            _ => reply.error(Errno::NODATA),
        };
    }
}

/// A mounted [`Lower`], with what is needed to take it down.
pub struct Served {
    // In the order in which they are to be dropped.
    pub mount: Option<Mount>,
    pub running: Option<Running>,
    pub fs: Arc<Lower>,
    pub at: tempfile::TempDir,
    pub lower: tempfile::TempDir,
}

impl Served {
    pub fn new(mut config: SessionConfig) -> Self {
        if config.transport == TransportChoice::Auto {
            config.transport = transport();
        }
        let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(lower.path().join("pass"), b"through").unwrap();
        fs::write(lower.path().join("direct"), b"served").unwrap();
        let fs = Lower::new(lower.path());
        let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let asked = config.transport;
        let running = Session::new(device, Arc::clone(&fs), config).start().unwrap();
        let report = running.connection().transport().unwrap();
        if asked == TransportChoice::Uring && report.in_use != TransportInUse::Uring {
            panic!("io_uring is required here, but: {:?}", report.uring_unavailable);
        }
        Self { fs, lower, at, mount: Some(mount), running: Some(running) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }

    pub fn connection(&self) -> &Connection {
        self.running.as_ref().unwrap().connection()
    }
}
