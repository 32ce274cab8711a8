//! Workers that panic or fail, and sessions that are ended from inside: nobody waits for ever.

mod common;

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use common::clients::{SOON, client, ends_soon, run_client, until};
use common::odd::within;
use common::{VALID, transports};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tollgate_fuse::abi::opcode;
use tollgate_fuse::memory::{self, Kernel, request};
use tollgate_fuse::transport::{Control, Queue, QueueConfig, ReceiveError, Received, Transport};
use tollgate_fuse::*;

#[test]
fn client_process() {
    run_client();
}

/// A payload of a panic that panics itself when it is dropped.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("asked for by the test, of the payload");
    }
}

fn panics() {
    panic::panic_any(PanicsWhenDropped)
}

/// What a handler does with a name.
type Does = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Nothing is there; each method does something first.
struct Looks {
    does: Does,
    destroyed: AtomicUsize,
    connection: OnceLock<Connection>,
}

impl Looks {
    fn new(does: impl Fn(&[u8]) + Send + Sync + 'static) -> Arc<Self> {
        let (destroyed, connection) = (AtomicUsize::new(0), OnceLock::new());
        Arc::new(Self { does: Box::new(does), destroyed, connection })
    }

    fn destroyed(&self) -> usize {
        self.destroyed.load(Ordering::SeqCst)
    }
}

impl Filesystem for Looks {
    fn init(&self, connection: &Connection) -> Result<(), Errno> {
        // Who keeps one does not keep the connection open.
        self.connection.set(connection.clone()).map_err(|_| Errno::EXIST)?;
        (self.does)(b"init");
        Ok(())
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }

    fn lookup(&self, _: &Request<'_>, _: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        (self.does)(name.as_bytes());
        reply.error(Errno::NOENT);
    }

    fn getattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        let attr = Attr { ino: node.0, mode: 0o040_755, nlink: 2, ..Attr::default() };
        reply.ok(&Attributes { attr, valid: VALID });
    }

    fn forget(&self, _: NodeId, _: u64) {
        (self.does)(b"forget");
    }

    fn interrupted(&self, _: u64) {
        (self.does)(b"interrupted");
    }
}

fn play(fs: &Arc<Looks>, config: SessionConfig) -> (Kernel, Running) {
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let running = Session::with_transport(transport, Arc::clone(fs), config).start().unwrap();
    kernel.reply(SOON).unwrap();
    (kernel, running)
}

fn send_lookup(kernel: &Kernel, unique: u64, name: &[u8]) {
    kernel.send(&request(opcode::LOOKUP, unique, 1, &[name, b"\0"])).unwrap();
}

fn lookup(kernel: &Kernel, unique: u64, name: &[u8]) -> i32 {
    send_lookup(kernel, unique, name);
    -kernel.reply(SOON).expect("a reply").0.error
}

#[test]
fn a_payload_that_panics_stops_no_worker() {
    let fs = Looks::new(|name| {
        if ![&b"init"[..], b"missing"].contains(&name) {
            panics();
        }
    });
    let (kernel, running) = play(&fs, SessionConfig::default());
    assert_eq!(lookup(&kernel, 4, b"panics"), Errno::IO.raw_os_error());
    kernel.send(&request(opcode::FORGET, 0, 7, &[&1u64.to_le_bytes()])).unwrap();
    kernel.send(&request(opcode::INTERRUPT, 7, 0, &[&4u64.to_le_bytes()])).unwrap();
    assert_eq!(lookup(&kernel, 8, b"missing"), Errno::NOENT.raw_os_error());
    assert_eq!(running.connection().counts().panics, 3);
    running.stop();
    assert_eq!(running.wait().unwrap(), Ended::Stopped);
    assert_eq!(fs.destroyed(), 1);
}

/// How the workers of [`Fails`] end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Error,
    Panic,
}

/// A transport whose queues fail at the next request, once `now` is set.
struct Fails<T> {
    inner: T,
    end: End,
    now: Arc<AtomicBool>,
}

struct FailingQueue<Q> {
    inner: Q,
    end: End,
    now: Arc<AtomicBool>,
}

impl<T: Transport> Fails<T> {
    fn queue(&self, inner: T::Queue) -> FailingQueue<T::Queue> {
        FailingQueue { inner, end: self.end, now: Arc::clone(&self.now) }
    }
}

impl<T: Transport> Transport for Fails<T> {
    type Queue = FailingQueue<T::Queue>;

    fn open(&mut self, config: &QueueConfig) -> io::Result<Self::Queue> {
        self.inner.open(config).map(|queue| self.queue(queue))
    }

    fn flags(&self) -> InitFlags {
        self.inner.flags()
    }

    fn open_others(
        &mut self,
        agreed: InitFlags,
        config: &QueueConfig,
    ) -> io::Result<Vec<Self::Queue>> {
        let queues = self.inner.open_others(agreed, config)?;
        Ok(queues.into_iter().map(|queue| self.queue(queue)).collect())
    }

    fn control(&self) -> Arc<dyn Control> {
        self.inner.control()
    }

    fn report(&self) -> TransportReport {
        self.inner.report()
    }
}

impl<Q: Queue> Queue for FailingQueue<Q> {
    fn attach(&mut self, polling: PollingTime) -> io::Result<()> {
        self.inner.attach(polling)
    }

    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        let received = self.inner.receive();
        if received.is_err() || !self.now.load(Ordering::SeqCst) {
            return received;
        }
        match self.end {
            End::Error => Err(ReceiveError::Io(io::Error::other("asked for by the test"))),
            End::Panic => {
                panics();
                received
            }
        }
    }

    fn finish(&mut self, handler_ns: u64) {
        self.inner.finish(handler_ns);
    }

    fn sink(&self) -> Arc<dyn transport::ReplySink> {
        self.inner.sink()
    }
}

/// Nobody calls `wait`: the callers learn of it all the same, and later ones do.
#[test]
fn when_the_last_worker_fails_the_connection_ends() {
    for transport in transports() {
        for (end, threads) in [(End::Error, 1), (End::Panic, 1), (End::Error, 3), (End::Panic, 3)] {
            let at = tempfile::tempdir().unwrap();
            let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
            let config = SessionConfig { transport, threads, ..SessionConfig::default() };
            let now = Arc::new(AtomicBool::new(false));
            let device = DeviceTransport::new(device, config.spin);
            let inner = MountedTransport::new(device, transport);
            let failing = Fails { inner, end, now: Arc::clone(&now) };
            let fs = Looks::new(|_| {});
            let session = Session::with_transport(failing, Arc::clone(&fs), config);
            let running = session.start().unwrap();
            assert!(!at.path().join("missing").exists());
            now.store(true, Ordering::SeqCst);
            let mut clients: Vec<_> =
                (0..4).map(|i| client("stat", &at.path().join(format!("x{i}")))).collect();
            clients.iter_mut().for_each(ends_soon);
            let context = format!("{transport}, {end:?}, {threads}");
            let path = at.path().join("later");
            let later = within(move || fs::metadata(path)).unwrap_err();
            assert_eq!(later.raw_os_error(), Some(libc::ENOTCONN), "{context}");
            assert!(stale(at.path()), "{context}");
            assert_eq!(fs.destroyed(), 0, "{context}: `wait` calls it");
            let error = running.wait().unwrap_err();
            match end {
                End::Error => {
                    assert!(matches!(error, SessionError::Receive(_)), "{context}: {error}");
                }
                End::Panic => {
                    let text = error.to_string();
                    assert!(
                        matches!(error, SessionError::PanickedServing { .. }),
                        "{context}: {text}"
                    );
                    assert!(!text.contains("started"), "{context}: {text}");
                }
            }
            assert_eq!(fs.destroyed(), 1, "{context}");
            mount.unmount(true).unwrap();
        }
    }
}

/// The hook of one worker panics, or those of all: `start` fails, and callers that wait are let go.
#[test]
fn a_hook_that_panics_fails_the_start() {
    for transport in transports() {
        for which in [Some(0), Some(1), None] {
            let at = tempfile::tempdir().unwrap();
            let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
            let mut waiting = client("stat", &at.path().join("x"));
            let hook = move |worker| {
                if which.is_none_or(|which| which == worker) {
                    panics();
                }
            };
            let on_thread_start: Option<session::ThreadHook> = Some(Arc::new(hook));
            let config = SessionConfig {
                transport,
                threads: 2,
                on_thread_start,
                ..SessionConfig::default()
            };
            let fs = Looks::new(|_| {});
            let error = Session::new(device, Arc::clone(&fs), config).start().unwrap_err();
            assert!(matches!(error, SessionError::Panicked { .. }), "{transport}: {error}");
            if let Some(which) = which {
                assert_eq!(error.to_string(), format!("worker {which} panicked while it started"));
            }
            ends_soon(&mut waiting);
            assert_eq!(fs.destroyed(), 1, "{transport}");
            mount.unmount(true).unwrap();
        }
    }
}

/// Whether a use of the mount failed because the session has ended.
fn is_over(error: &io::Error) -> bool {
    // The others while the rings of io_uring are taken down.
    let ended = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
    error.raw_os_error().is_some_and(|errno| ended.contains(&errno))
}

/// Runs `test` of this program again, with `variables` set. `true` in the parent, when that is done.
fn in_own_process(test: &str, variables: &[(&str, &str)]) -> bool {
    const AGAIN: &str = "FUSE_TEST_ENDINGS";
    if std::env::var_os(AGAIN).is_some() {
        return false;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(AGAIN, "1");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    true
}

/// Registers nothing, and learns of the session's end.
#[derive(Debug, Default)]
struct Told(AtomicUsize);

impl Registrar for Told {
    fn connect(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn register(&self, _: BorrowedFd<'_>, _: BorrowedFd<'_>) -> io::Result<u32> {
        Err(Errno::PERM.into())
    }

    fn release(&self, _: u32) {}

    fn end(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// In a process that can make no thread: each would have a stack larger than its address space.
#[test]
fn a_session_whose_first_thread_cannot_be_made_is_over() {
    let test = "a_session_whose_first_thread_cannot_be_made_is_over";
    if in_own_process(test, &[("RUST_MIN_STACK", &(64_u64 << 40).to_string())]) {
        return;
    }
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let (fs, registrar) = (Looks::new(|_| {}), Arc::new(Told::default()));
    let given = Some(Arc::clone(&registrar) as Arc<dyn Registrar>);
    let config = SessionConfig { threads: 2, registrar: given, ..SessionConfig::default() };
    let error = Session::with_transport(transport, Arc::clone(&fs), config).start().unwrap_err();
    assert!(matches!(error, SessionError::Worker { worker: 0, .. }), "{error}");
    assert_eq!(registrar.0.load(Ordering::SeqCst), 1, "the connection is closed");
    assert_eq!(fs.destroyed(), 1);
}

/// The file system keeps the connection, and the process has no descriptor left: the device is
/// closed all the same.
#[test]
fn a_session_ends_where_no_descriptor_is_left() {
    if in_own_process("a_session_ends_where_no_descriptor_is_left", &[]) {
        return;
    }
    let before = getrlimit(Resource::Nofile);
    for transport in transports() {
        let at = tempfile::tempdir().unwrap();
        let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let fs = Looks::new(|_| {});
        let config = SessionConfig { transport, threads: 2, ..SessionConfig::default() };
        let running = Session::new(device, Arc::clone(&fs), config).start().unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..before }).unwrap();
        let mut held = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            held.push(file);
        }
        running.stop();
        assert_eq!(running.wait().unwrap(), Ended::Stopped, "{transport}");
        let told = fs.connection.get().unwrap().invalidate_inode(NodeId::ROOT, 0, 0);
        assert_eq!(told.unwrap_err().raw_os_error(), Some(libc::EBADF), "{transport}");
        let path = at.path().join("later");
        let later = within(move || fs::metadata(path)).unwrap_err();
        assert!(is_over(&later), "{transport}: {later}");
        drop(held);
        setrlimit(Resource::Nofile, before).unwrap();
        mount.unmount(true).unwrap();
    }
}

#[test]
fn a_panic_in_init_ends_the_connection() {
    for transport in transports() {
        let at = tempfile::tempdir().unwrap();
        let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let mut waiting = client("stat", &at.path().join("x"));
        let fs = Looks::new(|_| panic!("asked for by the test"));
        let config = SessionConfig { transport, ..SessionConfig::default() };
        let session = Session::new(device, Arc::clone(&fs), config);
        let started = panic::catch_unwind(panic::AssertUnwindSafe(|| session.start()));
        assert_eq!(*started.unwrap_err().downcast::<&str>().unwrap(), "asked for by the test");
        ends_soon(&mut waiting);
        assert_eq!(fs.destroyed(), 0);
        mount.unmount(true).unwrap();
    }
}

/// What a handler does with the session that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Inside {
    Drops,
    Waits,
    Stops,
}

/// Served until a handler gives the session up.
fn given_up(inside: Inside, at: &Path, transport: TransportChoice, name: &'static [u8]) {
    let (device, mount) = mount(at, &MountOptions::default()).unwrap();
    let own: Arc<Mutex<Option<Running>>> = Arc::default();
    let (taken, fs_done) = (Arc::clone(&own), Arc::new(AtomicBool::new(false)));
    let done = Arc::clone(&fs_done);
    let fs = Looks::new(move |found| {
        if found != name {
            return;
        }
        let running = taken.lock().unwrap().take();
        match (inside, running) {
            (_, None) => return,
            (Inside::Drops, running) => drop(running),
            (Inside::Waits, Some(running)) => assert_eq!(running.wait().unwrap(), Ended::Stopped),
            (Inside::Stops, Some(running)) => {
                running.stop();
                *taken.lock().unwrap() = Some(running);
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    let config = SessionConfig { transport, threads: 3, ..SessionConfig::default() };
    let running = Session::new(device, Arc::clone(&fs), config).start().unwrap();
    let connection = running.connection().clone();
    *own.lock().unwrap() = Some(running);
    let path = at.join("gives-up");
    let found = within(move || fs::metadata(path)).unwrap_err();
    let context = format!("{transport}, {inside:?}");
    assert_eq!(found.raw_os_error(), Some(libc::ENOENT), "{context}: the handler's reply is sent");
    assert!(fs_done.load(Ordering::SeqCst), "{context}");
    if let Some(running) = own.lock().unwrap().take() {
        assert_eq!(running.wait().unwrap(), Ended::Stopped, "{context}");
    }
    until("the last worker has ended the session", || fs.destroyed() == 1);
    assert_eq!(connection.counts().panics, 0, "{context}");
    let path = at.join("later");
    let later = within(move || fs::metadata(path)).unwrap_err();
    assert!(is_over(&later), "{context}: {later}");
    mount.unmount(true).unwrap();
    assert_eq!(fs.destroyed(), 1, "{context}");
}

#[test]
fn a_handler_may_give_up_its_own_session() {
    for transport in transports() {
        for inside in [Inside::Drops, Inside::Waits, Inside::Stops] {
            let at = tempfile::tempdir().unwrap();
            let began = std::time::Instant::now();
            given_up(inside, at.path(), transport, b"gives-up");
            assert!(began.elapsed() < SOON, "{transport}, {inside:?}");
        }
    }
}

/// The same in `forget`, which is no request to anybody.
#[test]
fn a_session_that_is_given_up_in_forget_ends_at_once() {
    let own: Arc<Mutex<Option<Running>>> = Arc::default();
    let taken = Arc::clone(&own);
    let fs = Looks::new(move |found| {
        if found == b"forget" {
            drop(taken.lock().unwrap().take());
        }
    });
    let (kernel, running) = play(&fs, SessionConfig { threads: 2, ..SessionConfig::default() });
    *own.lock().unwrap() = Some(running);
    let began = std::time::Instant::now();
    kernel.send(&request(opcode::FORGET, 0, 7, &[&1u64.to_le_bytes()])).unwrap();
    until("the session has ended", || fs.destroyed() == 1);
    // A stop wakes for so long whoever waits for requests.
    assert!(began.elapsed().as_secs() < 4, "{:?}", began.elapsed());
}
