//! A real kernel: passthrough, several queues, interrupts, and every way to end.

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Served, can_mount};
use rustix::io::Errno;
use tollgate_fuse::abi::opcode;
use tollgate_fuse::*;

#[test]
fn files_are_read_and_written_in_both_modes() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    for (name, content) in [("pass", "through"), ("direct", "served")] {
        assert_eq!(fs::read_to_string(served.path(name)).unwrap(), content);
        let file = File::options().write(true).open(served.path(name)).unwrap();
        file.write_all_at(b"THR", 0).unwrap();
        let lower = fs::read(served.lower.path().join(name)).unwrap();
        assert_eq!(&lower[..3], b"THR");
    }
    let counts = served.connection().counts();
    assert!(served.connection().has(InitFlags::PASSTHROUGH));
    // The direct file alone reached the server.
    assert_eq!(counts.of(opcode::WRITE), 1);
    // The kernel asks for `security.capability` once, not with every write.
    assert!(counts.of(opcode::GETXATTR) <= 1, "{counts:?}");
}

#[test]
fn created_files_pass_through_too() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    fs::write(served.path("pass-new"), b"new").unwrap();
    assert_eq!(fs::read(served.lower.path().join("pass-new")).unwrap(), b"new");
    assert_eq!(served.connection().counts().of(opcode::WRITE), 0);
}

#[test]
fn megabytes_cross_in_requests_of_a_megabyte() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig { threads: 2, ..SessionConfig::default() });
    // Page-aligned: one that straddles a page more than it needs takes a request more.
    let mut data = buffer::PageBuffer::new(3 << 20);
    data.iter_mut().zip((0..251).cycle()).for_each(|(byte, i)| *byte = i);
    fs::write(served.lower.path().join("big"), b"").unwrap();
    let file = File::options().read(true).write(true).open(served.path("big")).unwrap();
    file.write_all_at(&data, 0).unwrap();
    let mut back = buffer::PageBuffer::new(data.len());
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(*back == *data);
    let counts = served.connection().counts();
    assert_eq!((counts.of(opcode::WRITE), counts.of(opcode::READ)), (3, 3), "{counts:?}");
    assert_eq!(served.connection().negotiated().max_pages, 256);
}

/// Binds this thread to a CPU, if there is such a one.
fn run_on(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[test]
fn requests_are_served_by_several_threads_at_once() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig { threads: 2, ..SessionConfig::default() });
    fs::write(served.lower.path().join("meet"), b"").unwrap();
    // Two directories' worth of parallelism is not needed: PARALLEL_DIROPS lets two names of one
    // directory be looked up at once. Each waits for the other, so one thread alone would hang.
    let other = served.path("meet");
    let second = std::thread::spawn({
        let other = other.clone();
        move || fs::metadata(other).map(drop)
    });
    served.fs.meeting.wait();
    second.join().unwrap().unwrap();
    assert!(served.connection().has(InitFlags::PARALLEL_DIROPS));
    assert!(served.connection().queues() >= 2);
    let rings = served.connection().transport().unwrap().rings;
    if rings.is_some_and(|rings| rings.threads < 2) {
        // The one owner serves all CPUs; helpers serve only what may wait.
        return;
    }
    for i in 0..2000 {
        // Over io_uring the caller's CPU decides which worker gets the request.
        run_on(i % 2);
        let missing = served.path(&format!("missing-{i}"));
        assert_eq!(fs::metadata(missing).unwrap_err().kind(), ErrorKind::NotFound);
        if served.fs.workers_seen.load(Ordering::SeqCst).count_ones() == 2 {
            return;
        }
    }
    panic!("only one of two workers ever got a request");
}

/// The first arrival waits for the second one; the caller gets one answer.
#[test]
fn a_request_is_sent_again_on_demand() {
    if !can_mount() {
        return;
    }
    // Over io_uring the kernel sends nothing again.
    let transport = TransportChoice::DevFuse;
    let served = Served::new(SessionConfig { threads: 2, transport, ..SessionConfig::default() });
    if !served.connection().has(InitFlags::HAS_RESEND) {
        return eprintln!("SKIPPED: this kernel does not send again");
    }
    fs::write(served.lower.path().join("meet"), b"met").unwrap();
    let path = served.path("meet");
    let caller = std::thread::spawn(move || fs::metadata(path).map(|meta| meta.len()));
    let until = |what: &dyn Fn(&RequestCounts) -> bool| {
        let start = Instant::now();
        while !what(&served.connection().counts()) {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{:?}",
                served.connection().counts()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until(&|counts| counts.of(opcode::LOOKUP) == 1);
    served.connection().resend().unwrap();
    assert_eq!(caller.join().unwrap().unwrap(), 3);
    until(&|counts| counts.undelivered == 1);
    let counts = served.connection().counts();
    assert_eq!((counts.resent, counts.of(opcode::LOOKUP)), (1, 2), "{counts:?}");
    assert_eq!(fs::read(served.path("meet")).unwrap(), b"met");
}

#[test]
fn a_large_directory_is_listed_completely() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    for i in 0..1000 {
        fs::write(served.lower.path().join(format!("{i:0>100}")), b"").unwrap();
    }
    let names: Vec<_> =
        fs::read_dir(served.at.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1002);
    // The kernel chose between the two; one request does not hold them all.
    let counts = served.connection().counts();
    assert!(counts.of(opcode::READDIRPLUS) >= 1, "{counts:?}");
    assert!(counts.of(opcode::READDIRPLUS) + counts.of(opcode::READDIR) > 2, "{counts:?}");
}

#[test]
fn the_length_of_an_attribute_can_be_asked_for() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    let mut buffer = [0u8; 16];
    let get = |buffer: &mut [u8]| rustix::fs::getxattr(served.path("pass"), "user.long", buffer);
    assert_eq!(rustix::fs::getxattr_query(served.path("pass"), "user.long").unwrap(), 5);
    assert_eq!(get(&mut buffer[..3]).unwrap_err(), Errno::RANGE);
    assert_eq!(get(&mut buffer).unwrap(), 5);
    assert_eq!(&buffer[..5], b"value");
}

#[test]
fn a_handlers_panic_is_eio_for_its_caller_alone() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    for name in ["panic", "drop"] {
        let error = fs::metadata(served.path(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
    assert!(fs::metadata(served.path("pass")).is_ok());
    let counts = served.connection().counts();
    assert_eq!((counts.panics, counts.dropped), (1, 1));
}

/// A caller that gets a signal: its request is interrupted, whether its reply is detached or not.
#[test]
fn a_signal_interrupts_a_request() {
    if !can_mount() {
        return;
    }
    // One more thread than requests, or nobody would hear of the interrupt.
    let served = Served::new(SessionConfig { threads: 2, ..SessionConfig::default() });
    for name in ["slow", "slow-detached"] {
        let mut child = std::process::Command::new("stat")
            .arg(served.path(name))
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let before = served.connection().counts().interrupts;
        std::thread::sleep(Duration::from_millis(100));
        let pid = i32::try_from(child.id()).unwrap();
        let start = Instant::now();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: the interrupt was not heard");
        assert!(served.connection().counts().interrupts > before);
    }
    assert!(served.fs.interrupted.load(Ordering::SeqCst));
}

#[test]
fn a_descriptor_without_access_rights_serves_as_backing_file() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let path = served.lower.path().join("pass");
    let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
    let backing = served.connection().open_backing(fd.as_fd()).unwrap();
    assert_ne!(backing.id().0, 0);
    let directory = File::open(served.lower.path()).unwrap();
    let error = served.connection().open_backing(directory.as_fd()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ISDIR.raw_os_error()));
}

#[test]
fn what_cannot_be_a_backing_file_is_told_apart() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    let (pipe, _writes) = std::io::pipe().unwrap();
    let open = |path| File::open(path).unwrap();
    for (what, fd, expected) in [
        ("a device", open("/dev/null").as_fd(), Errno::INVAL),
        ("a pipe", pipe.as_fd(), Errno::INVAL),
        ("a file of procfs", open("/proc/self/maps").as_fd(), Errno::LOOP),
        (
            "a file of the mount itself",
            open(served.path("direct").to_str().unwrap()).as_fd(),
            Errno::LOOP,
        ),
    ] {
        let error = served.connection().open_backing(fd).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(expected.raw_os_error()), "{what}");
    }
}

#[test]
fn what_cannot_be_stored_is_refused() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    let node = NodeId(fs::metadata(served.path("pass")).unwrap().ino());
    let longest = i64::MAX.unsigned_abs();
    for (what, node, offset, len, expected) in [
        ("an unknown inode", NodeId(999_999), 0, 10, Errno::NOENT),
        ("more than a message holds", node, 0, 2 << 30, Errno::INVAL),
        ("behind the end of every file", node, longest - 9, 10, Errno::INVAL),
        ("an end that overflows", node, u64::MAX, 10, Errno::INVAL),
    ] {
        let error = served.connection().store(node, offset, &vec![0; len]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(expected.raw_os_error()), "{what}");
    }
    served.connection().store(node, 0, b"stored").unwrap();
}

#[test]
fn invalidation_shows_what_changed_below() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    let root = served.connection().clone();
    let size = || fs::metadata(served.path("pass")).unwrap().size();
    assert_eq!(size(), 7);
    let node = NodeId(fs::metadata(served.path("pass")).unwrap().ino());
    fs::write(served.lower.path().join("pass"), b"longer than before").unwrap();
    assert_eq!(size(), 7, "attributes are cached for a second");
    root.invalidate_inode(node, -1, 0).unwrap();
    assert_eq!(size(), 18);
    fs::remove_file(served.lower.path().join("direct")).unwrap();
    fs::metadata(served.path("pass")).unwrap();
    root.invalidate_entry(NodeId::ROOT, Name::new(c"pass").unwrap()).unwrap();
    let unknown = root.invalidate_inode(NodeId(999_999), 0, 0).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

fn abort(at: &Path) {
    let minor = rustix::fs::minor(fs::metadata(at).unwrap().dev());
    let path = format!("/sys/fs/fuse/connections/{minor}/abort");
    if !Path::new(&path).exists() {
        let at = Path::new("/sys/fs/fuse/connections");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("fusectl", at, "fusectl", flags, None).unwrap();
    }
    fs::write(path, b"1").unwrap();
}

#[test]
fn unmounting_ends_the_session() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(SessionConfig { threads: 3, ..SessionConfig::default() });
    let file = File::open(served.path("pass")).unwrap();
    let busy = unmount(served.at.path(), false).unwrap_err();
    assert!(matches!(busy, MountError::Busy { .. }), "{busy}");
    drop(file);
    served.mount.take().unwrap().unmount(false).unwrap();
    assert_eq!(served.running.take().unwrap().wait().unwrap(), Ended::Unmounted);
    assert!(served.fs.destroyed.load(Ordering::SeqCst));
    let again = unmount(served.at.path(), false).unwrap_err();
    assert!(matches!(again, MountError::NotMounted { .. }), "{again}");
}

#[test]
fn an_aborted_connection_ends_the_session_and_leaves_a_stale_mount() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(SessionConfig { threads: 3, ..SessionConfig::default() });
    // A handle on the connection does not keep it open.
    let connection = served.connection().clone();
    abort(served.at.path());
    assert_eq!(served.running.take().unwrap().wait().unwrap(), Ended::Aborted);
    let mount = served.mount.take().unwrap().keep();
    assert!(stale(&mount));
    let error = tollgate_fuse::mount(&mount, &MountOptions::default()).unwrap_err();
    assert!(matches!(error, MountError::Stale { .. }), "{error}");
    assert!(clean_stale(&mount).unwrap());
    assert!(!stale(&mount) && !clean_stale(&mount).unwrap());
    assert!(connection.resend().is_err());
}

#[test]
fn stopping_ends_a_session_that_waits() {
    if !can_mount() {
        return;
    }
    let mut served = Served::new(SessionConfig { threads: 3, ..SessionConfig::default() });
    let stopper = served.running.as_ref().unwrap().stopper();
    let start = Instant::now();
    stopper.stop();
    assert_eq!(served.running.take().unwrap().wait().unwrap(), Ended::Stopped);
    assert!(start.elapsed() < Duration::from_secs(5));
    // The device was let go of although the file system holds a `Connection`.
    assert!(stale(served.at.path()));
    assert!(clean_stale(served.at.path()).unwrap());
    served.mount.take().unwrap().keep();
}

fn mounts_beneath() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(5))
}

/// What is done there meanwhile must not be done to the directory below.
#[test]
fn a_stale_mount_is_replaced_and_the_directory_below_never_shows() {
    if !can_mount() {
        return;
    }
    if !mounts_beneath() {
        return eprintln!("SKIPPED: needs Linux 6.5");
    }
    let mut served = Served::new(SessionConfig::default());
    let at = served.at.path().to_owned();
    let line = || {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let lines = table.lines().filter(|line| line.contains(at.to_str().unwrap()));
        let lines: Vec<String> =
            lines.map(|line| line.splitn(4, ' ').nth(3).unwrap().into()).collect();
        assert_eq!(lines.len(), 1, "{table}");
        lines.concat()
    };
    let is_alive = replace_stale(&at, &MountOptions::default()).unwrap_err();
    assert!(matches!(is_alive, MountError::AlreadyMounted { .. }), "{is_alive}");
    abort(&at);
    served.running.take().unwrap().wait().unwrap();
    served.mount.take().unwrap().keep();
    let mut lines = Vec::new();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut made = 0;
            while !is_over.load(Ordering::SeqCst) {
                made += u32::from(fs::create_dir(at.join("made here")).is_ok());
            }
            made
        });
        for _ in 0..20 {
            assert_eq!(stale_in_time(&at), Some(true));
            let (device, mount) = replace_stale(&at, &MountOptions::default()).unwrap();
            lines.push(line());
            // Nobody serves it: who asks waits, until the device is closed.
            drop(device);
            mount.keep();
        }
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(other.join().unwrap(), 0, "the directory below has shown");
    });
    assert!(clean_stale(&at).unwrap());
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    // It looks like any other.
    let _mount = mount(&at, &MountOptions::default()).unwrap();
    assert!(lines.iter().all(|one| *one == line()), "{lines:?}");
}

/// One of them has it; the other one is told.
#[test]
fn of_two_who_mount_at_one_place_one_does() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    for round in 0..4 {
        let options = MountOptions::default();
        if round % 2 == 1 {
            // A dead one is there.
            let (device, mounted) = mount(&at, &options).unwrap();
            drop(device);
            mounted.keep();
        }
        let both = std::thread::scope(|scope| {
            let mounts = || scope.spawn(|| replace_stale(&at, &options));
            [mounts(), mounts()].map(|thread| thread.join().unwrap())
        });
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let count = table.lines().filter(|line| line.contains(at.to_str().unwrap())).count();
        let [one, other] = both.map(Result::ok);
        assert!(one.is_some() != other.is_some() && count == 1, "round {round}: {count} mounts");
        let (device, mounted) = one.or(other).unwrap();
        drop(device);
        mounted.unmount(true).unwrap();
    }
}

#[test]
fn only_our_stale_mounts_are_cleaned() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    assert!(!clean_stale(served.at.path()).unwrap(), "it is alive");
    assert!(fs::metadata(served.path("pass")).is_ok());
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions { subtype: "other".into(), ..MountOptions::default() };
    let (device, mount) = mount(dir.path(), &options).unwrap();
    drop(device);
    assert!(stale(dir.path()));
    assert!(!clean_stale(dir.path()).unwrap(), "it is not of our type");
    mount.unmount(false).unwrap();
}

#[test]
fn what_cannot_be_mounted_says_why() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    let options = MountOptions::default();
    let error = |path: &Path| mount(path, &options).map(drop).unwrap_err();
    let file = error(&served.lower.path().join("pass"));
    assert!(matches!(file, MountError::NotADirectory { .. }), "{file}");
    let missing = error(Path::new("/does/not/exist"));
    assert!(missing.to_string().contains("/does/not/exist"), "{missing}");
    let twice = error(served.at.path());
    assert!(matches!(twice, MountError::AlreadyMounted { .. }), "{twice}");
    let strange = MountOptions { subtype: "a,b".into(), ..MountOptions::default() };
    let strange = mount(served.lower.path(), &strange).map(drop).unwrap_err();
    assert!(strange.to_string().contains("subtype"), "{strange}");
}

#[test]
fn a_device_that_is_not_mounted_is_refused() {
    if !can_mount() {
        return;
    }
    let fs = common::Lower::new(Path::new("/"));
    let session = Session::new(Device::open().unwrap(), fs, SessionConfig::default());
    assert!(matches!(session.start(), Err(SessionError::NotMounted)));
}

#[test]
fn spaces_and_commas_in_names_survive() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("a, b\\c\nd");
    fs::create_dir(&at).unwrap();
    let options = MountOptions { source: "/x,allow_other y\\z".into(), ..MountOptions::default() };
    let (device, mount) = mount(&at, &options).unwrap();
    let mut table = String::new();
    File::open("/proc/self/mounts").unwrap().read_to_string(&mut table).unwrap();
    let line = table.lines().find(|line| line.starts_with("/x,allow_other\\040y\\134z ")).unwrap();
    let mut fields = line.split(' ').skip(2);
    assert_eq!(fields.next(), Some("fuse.tollgate"));
    assert!(!fields.next().unwrap().contains("allow_other"), "{line}");
    drop(device);
    assert!(clean_stale(&at).unwrap());
    mount.keep();
}

/// `mount` does not cover a view; `mount_device` does, for who means to.
#[test]
fn an_open_device_can_be_mounted_over_a_view() {
    if !can_mount() {
        return;
    }
    let below = Served::new(SessionConfig::default());
    let at = below.at.path();
    let options = MountOptions { source: "above".into(), ..MountOptions::default() };
    let device = Device::open().unwrap();
    mount_device(&device, at, &options).unwrap();
    let count = |source: &str| {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = format!("{source} {} fuse.tollgate ", at.display());
        table.lines().filter(|row| row.starts_with(&line)).count()
    };
    assert_eq!((count("above"), count("tollgate")), (1, 1));
    drop(device);
    assert!(stale(at));
    unmount(at, true).unwrap();
    assert_eq!(fs::read_to_string(below.path("pass")).unwrap(), "through");
}

/// The kernel still has attributes to show, and the one who asks is already waiting when the server
/// goes.
#[test]
fn a_dead_server_is_seen_in_spite_of_caches_and_by_who_waits() {
    /// Takes STATFS and never answers it.
    #[derive(Default)]
    struct Silent(Mutex<Option<Reply<'static, StatFs>>>);
    impl Filesystem for Silent {
        fn getattr(
            &self,
            _: &Request<'_>,
            node: NodeId,
            _: Option<FileHandle>,
            reply: Reply<'_, Attributes>,
        ) {
            let attr = Attr { ino: node.0, mode: 0o040_755, nlink: 1, ..Attr::default() };
            reply.ok(&Attributes { attr, valid: Duration::from_secs(3600) });
        }

        fn statfs(&self, _: &Request<'_>, _: NodeId, reply: Reply<'_, StatFs>) {
            *self.0.lock().unwrap() = Some(reply.detach());
        }
    }
    if !can_mount() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let (device, mount) = mount(at.path(), &MountOptions::default()).unwrap();
    let silent = Arc::new(Silent::default());
    let running =
        Session::new(device, Arc::clone(&silent), SessionConfig::default()).start().unwrap();
    let path = at.path().to_path_buf();
    let waiting = std::thread::spawn(move || stale(&path));
    while silent.0.lock().unwrap().is_none() {
        assert!(!waiting.is_finished(), "it asked nobody");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(fs::metadata(at.path()).is_ok());
    running.stop();
    assert_eq!(running.wait().unwrap(), Ended::Stopped);
    assert!(waiting.join().unwrap(), "what was under way was not taken for the end");
    assert!(fs::metadata(at.path()).is_ok(), "the kernel remembers");
    assert!(stale(at.path()));
    mount.unmount(true).unwrap();
}

/// Leader and followers of one queue: workers tell when they hold no request.
fn in_turns() -> SessionConfig {
    let (threads, spin) = (3, Duration::from_micros(20));
    SessionConfig { threads, spin, transport: TransportChoice::DevFuse, ..SessionConfig::default() }
}

/// A close returns before its RELEASE is served, and a request after it may overtake it.
#[test]
fn what_was_closed_is_released_once_it_has_passed() {
    if !can_mount() {
        return;
    }
    let served = Served::new(in_turns());
    for round in 1..=20 {
        served.fs.releases_wait.store(true, Ordering::SeqCst);
        drop(File::open(served.path("direct")).unwrap());
        // Served by another worker, while the first one is at the RELEASE.
        assert!(fs::metadata(served.path(&format!("missing-{round}"))).is_err());
        let mut passing = served.connection().passing();
        for _ in 0..20 {
            assert!(!passing.is_over(), "the RELEASE is not served yet");
            std::thread::sleep(Duration::from_micros(100));
        }
        served.fs.releases_wait.store(false, Ordering::SeqCst);
        let begin = Instant::now();
        while !passing.is_over() {
            assert!(begin.elapsed() < Duration::from_secs(20), "it never passes");
            std::thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(served.fs.released.load(Ordering::SeqCst), round, "a close is under way");
    }
}

#[test]
fn a_session_counts_its_reserve_apart() {
    if !can_mount() {
        return;
    }
    for (spin, reserve) in [(in_turns().spin, 4), (Duration::ZERO, 0)] {
        let served = Served::new(SessionConfig { reserve: 4, spin, ..in_turns() });
        let connection = served.connection();
        assert_eq!((connection.queues(), connection.reserve()), (3, reserve));
    }
}

/// Where nobody was closing anything, nobody waits: workers that wait for requests hold none.
#[test]
fn nothing_passes_where_nothing_is_under_way() {
    if !can_mount() {
        return;
    }
    let served = Served::new(in_turns());
    assert!(fs::metadata(served.path("missing")).is_err());
    std::thread::sleep(Duration::from_millis(50));
    let mut passing = served.connection().passing();
    let begin = Instant::now();
    while !passing.is_over() {
        assert!(begin.elapsed() < Duration::from_secs(20), "a worker that sleeps seems at work");
    }
}

/// A handler that asks is under way itself, and is not meant.
#[test]
fn a_handler_that_asks_does_not_wait_for_itself() {
    if !can_mount() {
        return;
    }
    let served = Served::new(in_turns());
    let found = fs::metadata(served.path("asks-within")).unwrap_err();
    assert_eq!(found.kind(), ErrorKind::NotFound, "{found}");
}
