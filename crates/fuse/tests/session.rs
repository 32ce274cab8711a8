//! Sessions over the in-memory transport: the test plays the kernel.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Lower;
use rustix::io::Errno;
use tollgate_fuse::abi::{self, EntryOut, OutHeader, opcode};
use tollgate_fuse::memory::{self, Kernel, request};
use tollgate_fuse::*;
use zerocopy::{FromBytes, IntoBytes};

const SOON: Duration = Duration::from_secs(5);
/// How long "nothing happens" is watched.
const NEVER: Duration = Duration::from_millis(50);

struct Played {
    kernel: Kernel,
    running: Running,
    fs: Arc<Lower>,
    _dir: tempfile::TempDir,
}

fn play(threads: usize) -> Played {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"content").unwrap();
    let fs = Lower::new(dir.path());
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let config = SessionConfig { threads, ..SessionConfig::default() };
    let running = Session::with_transport(transport, Arc::clone(&fs), config).start().unwrap();
    let (header, body) = kernel.reply(SOON).unwrap();
    assert_eq!((header.unique, header.error, body.len()), (2, 0, 64));
    Played { kernel, running, fs, _dir: dir }
}

impl Played {
    fn call(&self, code: u32, unique: u64, node: u64, args: &[&[u8]]) -> (OutHeader, Vec<u8>) {
        self.kernel.send(&request(code, unique, node, args)).unwrap();
        self.kernel.reply(SOON).expect("a reply")
    }

    fn until(&self, what: impl Fn(&RequestCounts) -> bool) -> RequestCounts {
        let start = std::time::Instant::now();
        loop {
            let counts = self.running.connection().counts();
            if what(&counts) {
                return counts;
            }
            assert!(start.elapsed() < SOON, "{counts:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A transport has a reserve only if it made one: memory does not.
#[test]
fn a_reserve_that_the_transport_does_not_have_is_not_reported() {
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let spin = Duration::from_micros(20);
    let config = SessionConfig { threads: 2, reserve: 5, spin, ..SessionConfig::default() };
    let fs = Lower::new(tempfile::tempdir().unwrap().path());
    let running = Session::with_transport(transport, fs, config).start().unwrap();
    let connection = running.connection();
    assert_eq!((connection.queues(), connection.reserve()), (2, 0));
}

fn errno(header: &OutHeader) -> i32 {
    -header.error
}

#[test]
fn a_lookup_is_answered_with_an_entry() {
    let played = play(2);
    let (header, body) = played.call(opcode::LOOKUP, 4, 1, &[b"file\0"]);
    assert_eq!((header.error, header.unique, header.len), (0, 4, 144));
    let entry = EntryOut::read_from_bytes(&body).unwrap();
    assert_eq!((entry.attr.size, entry.entry_valid), (7, 1));
    assert_eq!(played.kernel.pending(), 0);
}

#[test]
fn malformed_requests_are_answered_and_counted() {
    let played = play(1);
    for (unique, code, args, expected) in [
        (4, opcode::LOOKUP, &b"no end"[..], Errno::IO),
        (6, opcode::LOOKUP, b"\0", Errno::INVAL),
        (8, opcode::LOOKUP, b"a/b\0", Errno::INVAL),
        (10, opcode::LOOKUP, b"..\0", Errno::INVAL),
        (12, opcode::OPEN, b"1234567", Errno::IO),
        (14, opcode::WRITE, &[0xff; 40], Errno::IO),
        (16, 999, b"", Errno::NOSYS),
        (18, opcode::POLL, &[0; 24], Errno::NOSYS),
        (20, opcode::INIT, &[0; 64], Errno::IO),
    ] {
        let (header, _) = played.call(code, unique, 1, &[args]);
        assert_eq!((header.unique, errno(&header)), (unique, expected.raw_os_error()));
    }
    let long = [&[b'a'; 1025][..], b"\0"].concat();
    let (header, _) = played.call(opcode::LOOKUP, 22, 1, &[&long]);
    assert_eq!(errno(&header), Errno::NAMETOOLONG.raw_os_error());
    // No header, a lying header, and what is never answered.
    played.kernel.send(b"short").unwrap();
    let mut lying = request(opcode::LOOKUP, 24, 1, &[b"file\0"]);
    lying[0] += 1;
    played.kernel.send(&lying).unwrap();
    assert_eq!(errno(&played.kernel.reply(SOON).unwrap().0), Errno::IO.raw_os_error());
    played.kernel.send(&request(opcode::BATCH_FORGET, 0, 0, &[&[0xff; 8]])).unwrap();
    assert_eq!(played.until(|c| c.malformed == 10).undelivered, 0);
    assert!(played.kernel.reply(NEVER).is_none());
}

#[test]
fn a_panic_or_a_dropped_reply_is_eio_and_the_worker_lives() {
    let played = play(1);
    for (unique, name) in [(4, &b"panic\0"[..]), (6, b"drop\0")] {
        let (header, _) = played.call(opcode::LOOKUP, unique, 1, &[name]);
        assert_eq!(errno(&header), Errno::IO.raw_os_error());
    }
    let counts = played.running.connection().counts();
    assert_eq!((counts.panics, counts.dropped), (1, 1));
    assert_eq!(played.call(opcode::LOOKUP, 8, 1, &[b"file\0"]).0.error, 0);
}

#[test]
fn forgets_are_counted_and_never_answered() {
    let played = play(1);
    played.kernel.send(&request(opcode::FORGET, 0, 7, &[&3u64.to_le_bytes()])).unwrap();
    let two = [2u32, 0].map(u32::to_le_bytes).concat();
    let pairs = [8u64, 10, 9, 100].map(u64::to_le_bytes).concat();
    played.kernel.send(&request(opcode::BATCH_FORGET, 0, 0, &[&two, &pairs])).unwrap();
    played.until(|c| c.forgets == 3);
    assert_eq!(played.fs.forgotten.load(Ordering::SeqCst), 113);
    assert!(played.kernel.reply(NEVER).is_none());
}

fn interrupt(played: &Played, own: u64, target: u64) {
    let bytes = request(opcode::INTERRUPT, own, 0, &[&target.to_le_bytes()]);
    played.kernel.send(&bytes).unwrap();
}

#[test]
fn an_interrupt_reaches_the_handler_and_is_not_answered() {
    for name in [&b"slow\0"[..], b"slow-detached\0", b"slow-detached-twice\0"] {
        let played = play(2);
        played.kernel.send(&request(opcode::LOOKUP, 4, 1, &[name])).unwrap();
        played.until(|c| c.of(opcode::LOOKUP) == 1);
        interrupt(&played, 5, 4);
        let (header, _) = played.kernel.reply(SOON).unwrap();
        assert_eq!((header.unique, errno(&header)), (4, Errno::INTR.raw_os_error()));
    }
}

#[test]
fn an_interrupt_that_overtakes_its_request_reaches_it() {
    for name in [&b"slow\0"[..], b"slow-detached\0"] {
        let played = play(1);
        interrupt(&played, 5, 4);
        played.until(|c| c.interrupts == 1);
        assert!(played.kernel.reply(NEVER).is_none());
        played.kernel.send(&request(opcode::LOOKUP, 4, 1, &[name])).unwrap();
        let (header, _) = played.kernel.reply(SOON).unwrap();
        assert_eq!((header.unique, errno(&header)), (4, Errno::INTR.raw_os_error()));
    }
}

#[test]
fn an_interrupt_for_nobody_has_no_reply() {
    let played = play(1);
    for own in 0..200 {
        interrupt(&played, 7 + 2 * own, 4 + 2 * own);
    }
    played.until(|c| c.interrupts == 200);
    assert!(played.kernel.reply(NEVER).is_none());
    assert_eq!(played.running.connection().counts().interrupts_unknown, 200);
}

#[test]
fn a_reply_is_refused_when_its_request_is_over() {
    let played = play(2);
    played.kernel.send(&request(opcode::LOOKUP, 4, 1, &[b"meet\0"])).unwrap();
    played.until(|c| c.of(opcode::LOOKUP) == 1);
    played.kernel.abort();
    // The handler waits for this and answers only now.
    played.fs.meeting.wait();
    let connection = played.running.connection().clone();
    assert_eq!(played.running.wait().unwrap(), Ended::Aborted);
    assert!(played.fs.destroyed.load(Ordering::SeqCst));
    assert_eq!(connection.counts().undelivered, 1);
    assert!(played.kernel.reply(NEVER).is_none());
}

#[test]
fn unmount_and_stop_end_the_session() {
    let played = play(3);
    played.kernel.unmount();
    assert_eq!(played.running.wait().unwrap(), Ended::Unmounted);
    let played = play(3);
    let stopper = played.running.stopper();
    std::thread::spawn(move || stopper.stop()).join().unwrap();
    assert_eq!(played.running.wait().unwrap(), Ended::Stopped);
    assert!(played.fs.destroyed.load(Ordering::SeqCst));
}

#[test]
fn extensions_carry_the_supplementary_group() {
    struct Group(Mutex<Vec<Option<u32>>>);
    impl Filesystem for Group {
        fn mkdir(
            &self,
            req: &Request<'_>,
            _: NodeId,
            args: args::Mkdir<'_>,
            reply: Reply<'_, Entry>,
        ) {
            assert_eq!(args.name.as_bytes(), b"dir");
            assert_eq!(req.caller(), Caller { uid: 1000, gid: 1000, pid: 4242 });
            self.0.lock().unwrap().push(req.supplementary_group());
            reply.error(Errno::ACCESS);
        }
    }
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let fs = Arc::new(Group(Mutex::default()));
    let config = SessionConfig::default();
    let running = Session::with_transport(transport, Arc::clone(&fs), config).start().unwrap();
    kernel.reply(SOON).unwrap();
    let extension = [16u32, 32, 1, 555].map(u32::to_le_bytes).concat();
    for (len, first, expected) in [
        (16, 16, Errno::ACCESS),
        // An extension that is longer than all extensions, or shorter than its own head.
        (16, 24, Errno::IO),
        (16, 4, Errno::IO),
        // More extensions than request.
        (800, 16, Errno::IO),
    ] {
        let mut extension = extension.clone();
        extension[0] = first;
        let mut bytes = request(opcode::MKDIR, 4, 1, &[&[0; 8], b"dir\0", &extension]);
        bytes[36..38].copy_from_slice(&u16::to_le_bytes(len / 8));
        kernel.send(&bytes).unwrap();
        assert_eq!(errno(&kernel.reply(SOON).unwrap().0), expected.raw_os_error());
    }
    assert_eq!(*fs.0.lock().unwrap(), [Some(555)]);
    drop(running);
}

#[test]
fn the_handshake_negotiates_down_and_refuses_what_is_too_old() {
    for (minor, accepted) in [(30, false), (31, true), (45, true), (60, true)] {
        let (transport, kernel) = memory::pair();
        kernel.send_init(minor, InitFlags::all() - InitFlags::PASSTHROUGH).unwrap();
        let fs = Lower::new(std::path::Path::new("/"));
        let session = Session::with_transport(transport, fs, SessionConfig::default());
        match session.start() {
            Ok(running) => {
                assert!(accepted);
                let agreed = *running.connection().negotiated();
                assert_eq!((agreed.minor, agreed.kernel_minor), (minor.min(45), minor));
                assert_eq!(agreed.missing(), InitFlags::PASSTHROUGH);
                assert_eq!(agreed.max_stack_depth, 0);
                assert!(agreed.to_string().contains("PASSTHROUGH: wanted, not available"));
            }
            Err(error) => {
                assert!(!accepted);
                assert!(error.to_string().contains("7.30"), "{error}");
                assert!(kernel.reply(SOON).unwrap().0.error < 0);
            }
        }
    }
}

#[test]
fn a_kernel_of_a_later_major_version_asks_again() {
    let (transport, kernel) = memory::pair();
    let later = abi::InitIn { major: 8, minor: 1, max_readahead: 0, flags: 0 };
    kernel.send(&request(opcode::INIT, 2, 0, &[later.as_bytes()])).unwrap();
    kernel.send_init(45, InitFlags::empty()).unwrap();
    let fs = Lower::new(std::path::Path::new("/"));
    let running = Session::with_transport(transport, fs, SessionConfig::default()).start().unwrap();
    let (_, first) = kernel.reply(SOON).unwrap();
    assert_eq!(first[..4], 7u32.to_le_bytes());
    assert_eq!(running.connection().negotiated().major, 7);
}

#[test]
fn backing_files_are_given_back_and_notifications_have_the_kernels_form() {
    use std::os::fd::AsFd;
    let played = play(1);
    let connection = played.running.connection();
    let file = std::fs::File::open("/dev/null").unwrap();
    let backing = connection.open_backing(file.as_fd()).unwrap();
    assert_eq!((backing.id(), played.kernel.backings()), (BackingId(1), 1));
    drop(backing);
    assert_eq!(played.kernel.backings(), 0);
    connection.invalidate_entry(NodeId(5), Name::new(c"name").unwrap()).unwrap();
    let bytes = played.kernel.notification(SOON).unwrap();
    assert_eq!(bytes.len(), 16 + 16 + 5);
    let (header, _) = OutHeader::read_from_prefix(&bytes).unwrap();
    assert_eq!((header.len, header.error, header.unique), (37, abi::notify::INVAL_ENTRY, 0));
    connection.resend().unwrap();
    assert_eq!(played.kernel.notification(SOON).unwrap().len(), 16);
}

/// Both arrivals are served; the kernel takes the answer to the second one alone.
#[test]
fn a_request_that_is_sent_again_is_answered_once_per_arrival() {
    let played = play(2);
    // The handler waits for a second one.
    played.kernel.send(&request(opcode::LOOKUP, 4, 1, &[b"meet\0"])).unwrap();
    played.until(|c| c.of(opcode::LOOKUP) == 1);
    played.running.connection().resend().unwrap();
    let (header, _) = played.kernel.reply(SOON).unwrap();
    assert_eq!(
        (header.unique, errno(&header)),
        (4 | abi::UNIQUE_RESEND, Errno::NOENT.raw_os_error())
    );
    let counts = played.until(|c| c.undelivered == 1);
    assert_eq!((counts.resent, counts.of(opcode::LOOKUP), counts.dropped), (1, 2, 0));
    assert_eq!((played.kernel.pending(), played.kernel.reply(NEVER)), (0, None));
    // What is answered is not sent again.
    assert_eq!(played.call(opcode::LOOKUP, 6, 1, &[b"file\0"]).0.error, 0);
    played.running.connection().resend().unwrap();
    assert!(played.kernel.reply(NEVER).is_none());
    assert_eq!(played.until(|c| c.of(opcode::LOOKUP) == 3).resent, 1);
}

/// By the id that it had when the INTERRUPT was queued, or by the one that it has since.
#[test]
fn an_interrupt_reaches_both_arrivals_of_a_request() {
    for name in [&b"slow\0"[..], b"slow-detached\0"] {
        for target in [4, 4 | abi::UNIQUE_RESEND] {
            let played = play(3);
            played.kernel.send(&request(opcode::LOOKUP, 4, 1, &[name])).unwrap();
            played.until(|c| c.of(opcode::LOOKUP) == 1);
            played.running.connection().resend().unwrap();
            played.until(|c| c.of(opcode::LOOKUP) == 2);
            // Either may be counted and not yet entered: goes on as long as the handlers do.
            let (mut own, mut to_it) = (5, Vec::new());
            while to_it.is_empty() || played.running.connection().counts().undelivered == 0 {
                interrupt(&played, own, target);
                own += 2;
                let answers = std::iter::from_fn(|| played.kernel.reply(Duration::from_millis(5)));
                to_it.extend(answers.filter(|(header, _)| header.unique % 2 == 0));
                assert!(own < 1000, "{:?}", played.running.connection().counts());
            }
            assert_eq!(played.running.connection().counts().resent, 1);
            let [(header, _)] = &to_it[..] else { panic!("{to_it:?}") };
            let expected = (4 | abi::UNIQUE_RESEND, Errno::INTR.raw_os_error());
            assert_eq!((header.unique, errno(header)), expected);
        }
    }
}

#[test]
fn one_readers_bytes_are_gone_before_the_next_request() {
    struct Peek;
    impl Filesystem for Peek {
        fn read(&self, _: &Request<'_>, _: NodeId, args: args::Read, reply: Reply<'_, [u8]>) {
            reply.fill(args.size as usize, |buffer| {
                assert!(buffer.iter().all(|&b| b == 0), "left by an earlier request");
                buffer.fill(b'x');
                Ok(buffer.len() / 2)
            });
        }
    }
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let session = Session::with_transport(transport, Arc::new(Peek), SessionConfig::default());
    let _running = session.start().unwrap();
    kernel.reply(SOON).unwrap();
    for unique in [4, 6, 8] {
        let args = abi::ReadIn { size: 8192, ..abi::ReadIn::default() };
        kernel.send(&request(opcode::READ, unique, 2, &[args.as_bytes()])).unwrap();
        let (header, body) = kernel.reply(SOON).unwrap();
        assert_eq!((header.error, body.len()), (0, 4096));
    }
}
