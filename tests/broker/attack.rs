//! What a caller might send to get more than it has. Each must fail, and leave the broker to others.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::thread::CpuSet;
use tollgate_broker::{Refusal, Request};

use crate::fuse::{Caller, Mounted};
use crate::harness::{Broker, USER, can_mount, open_directory, until};

const OTHER: u32 = 4321;

/// A broker, a mount of [`USER`], and a connection for it.
pub(crate) struct Stage {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) broker: Broker,
    pub(crate) mounted: Mounted,
    pub(crate) caller: Caller,
}

impl Stage {
    pub(crate) fn new(options: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let directory = open_directory();
        let broker = Broker::start(directory.path(), options);
        let mounted = Mounted::of(USER);
        let caller = Caller::of(&broker.socket, USER, &mounted);
        Some(Self { directory, broker, mounted, caller })
    }

    /// A file of the lower file system, open for both.
    pub(crate) fn file(&self, name: &str) -> File {
        let path = self.directory.path().join(name);
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    pub(crate) fn refused(&self, file: impl AsFd, refusal: Refusal) {
        assert_eq!(self.caller.register(file), Err(refusal));
        self.broker.has_said(&format!("refused: {refusal}"));
    }

    /// The broker serves this caller as before.
    pub(crate) fn serves(&self) {
        let id = self.caller.register(self.file("as-before")).unwrap();
        self.caller.send(&Request::Close(id).encode(), &[]);
    }
}

pub(crate) fn open(path: impl AsRef<Path>, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path.as_ref(), flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn what_was_registered_is_read_and_written_by_the_kernel() {
    let Some(stage) = Stage::new(&[]) else { return };
    let file = stage.file("lower");
    file.write_all_at(b"content", 0).unwrap();
    let id = stage.caller.register(&file).unwrap();
    let seen = File::options().read(true).write(true).open(stage.mounted.file_of(id)).unwrap();
    let mut bytes = [0; 7];
    seen.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"content");
    seen.write_all_at(b"CON", 0).unwrap();
    assert_eq!(fs::read(stage.directory.path().join("lower")).unwrap(), b"CONtent");
}

#[test]
fn a_descriptor_that_cannot_do_both_is_refused() {
    let Some(stage) = Stage::new(&[]) else { return };
    drop(stage.file("lower"));
    let path = stage.directory.path().join("lower");
    for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::PATH] {
        stage.refused(open(&path, flags), Refusal::NotReadWrite);
    }
    stage.refused(open(&path, OFlags::RDWR | OFlags::APPEND), Refusal::NotReadWrite);
    stage.serves();
}

#[test]
fn what_is_no_regular_file_of_data_is_refused() {
    let Some(stage) = Stage::new(&[]) else { return };
    let at = |name: &str| stage.directory.path().join(name);
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    stage.refused(open(at("fifo"), OFlags::RDWR), Refusal::NotRegular);
    // A directory cannot be open for writing.
    stage.refused(open(at(""), OFlags::RDONLY), Refusal::NotReadWrite);
    stage.refused(open("/dev/null", OFlags::RDWR), Refusal::NotRegular);
    for kernel in ["/proc/self/mem", "/proc/self/oom_score_adj", "/sys/kernel/uevent_seqnum"] {
        if let Ok(file) = File::options().read(true).write(true).open(kernel) {
            stage.refused(file, Refusal::FileSystem);
        }
    }
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    stage.refused(socket, Refusal::FileSystem);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    stage.refused(event, Refusal::FileSystem);
    // Another FUSE, this one's own.
    let id = stage.caller.register(stage.file("lower")).unwrap();
    stage.refused(open(stage.mounted.file_of(id), OFlags::RDWR), Refusal::FileSystem);
    stage.refused(stage.mounted.device.as_fd(), Refusal::NotRegular);
    stage.serves();
}

#[test]
fn a_regular_file_among_devices_is_refused() {
    let Some(stage) = Stage::new(&[]) else { return };
    let path = format!("/dev/.tollgate-test-{}", std::process::id());
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let kind = rustix::fs::fstatfs(&file).unwrap().f_type;
    // A container may have a tmpfs there, whose files are like any other.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    if kind == 0x0102_1994 && mounts.contains(" /dev ") && mounts.contains(" - devtmpfs ") {
        stage.refused(file, Refusal::FileSystem);
    }
    stage.serves();
}

#[test]
fn protected_files_are_refused() {
    let Some(stage) = Stage::new(&[]) else { return };
    for (attribute, name) in [("a", "append-only"), ("i", "immutable")] {
        let file = stage.file(name);
        let path = stage.directory.path().join(name);
        let chattr = |what: String| Command::new("chattr").arg(what).arg(&path).status();
        match chattr(format!("+{attribute}")) {
            Ok(status) if status.success() => {}
            other => return println!("skipped: no file can be protected here: {other:?}"),
        }
        let refused = stage.caller.register(&file);
        chattr(format!("-{attribute}")).unwrap();
        assert_eq!(refused, Err(Refusal::Protected), "{name}");
        stage.caller.register(&file).unwrap();
    }
}

#[test]
fn a_memfd_is_refused_if_it_is_sealed_or_can_be() {
    let Some(stage) = Stage::new(&[]) else { return };
    let memfd = |flags| rustix::fs::memfd_create("test", flags).unwrap();
    let sealable = memfd(MemfdFlags::ALLOW_SEALING);
    stage.refused(&sealable, Refusal::Sealed);
    rustix::fs::fcntl_add_seals(&sealable, SealFlags::WRITE).unwrap();
    stage.refused(&sealable, Refusal::Sealed);
    // One that can never be is an unnamed file of a tmpfs.
    stage.caller.register(memfd(MemfdFlags::empty())).unwrap();
}

#[test]
fn a_file_mounted_noexec_is_refused() {
    let Some(stage) = Stage::new(&[]) else { return };
    let at = stage.directory.path().join("noexec");
    fs::create_dir(&at).unwrap();
    let mount =
        |options| Command::new("mount").args(["-t", "tmpfs", "-o", options, "x"]).arg(&at).status();
    if !mount("noexec").unwrap().success() {
        return println!("skipped: no tmpfs can be mounted");
    }
    let file = stage.file("noexec/f");
    let refused = stage.caller.register(&file);
    drop(file);
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(refused, Err(Refusal::NoExec));
}

#[test]
fn only_the_device_of_an_own_mount_is_welcome() {
    let Some(stage) = Stage::new(&[]) else { return };
    let hello = |user: u32, device: &dyn AsFd| {
        let caller = Caller::connect(&stage.broker.socket, user, &[]);
        let reply = caller.ask(Request::Hello, &[device.as_fd()]).unwrap();
        assert!(reply.is_ok() || caller.reply().is_none(), "it must hang up");
        reply
    };
    assert_eq!(hello(OTHER, &stage.mounted.device), Err(Refusal::NotYours));
    assert_eq!(hello(0, &stage.mounted.device), Err(Refusal::NotYours));
    assert_eq!(hello(USER, &open("/dev/fuse", OFlags::RDWR)), Err(Refusal::NotYours));
    assert_eq!(hello(USER, &open("/dev/fuse", OFlags::PATH)), Err(Refusal::NotFuse));
    assert_eq!(hello(USER, &open("/dev/fuse", OFlags::RDONLY)), Err(Refusal::NotFuse));
    assert_eq!(hello(USER, &open("/dev/null", OFlags::RDWR)), Err(Refusal::NotFuse));
    assert_eq!(hello(USER, &stage.file("lower")), Err(Refusal::NotFuse));
    stage.serves();
}

#[test]
fn ids_of_another_connection_stay() {
    let Some(stage) = Stage::new(&[]) else { return };
    let file = stage.file("lower");
    file.write_all_at(b"mine", 0).unwrap();
    let id = stage.caller.register(&file).unwrap();
    let other = Mounted::of(OTHER);
    let attacker = Caller::of(&stage.broker.socket, OTHER, &other);
    for id in 1..=id + 10 {
        attacker.send(&Request::Close(id).encode(), &[]);
    }
    attacker.register(stage.file("other")).unwrap();
    assert_eq!(fs::read(stage.mounted.file_of(id)).unwrap(), b"mine");
    // The own one goes.
    stage.caller.send(&Request::Close(id).encode(), &[]);
    stage.serves();
    fs::read(stage.mounted.file_of(id)).unwrap_err();
}

#[test]
fn what_is_no_message_is_answered_and_extra_descriptors_are_closed() {
    let Some(stage) = Stage::new(&[]) else { return };
    let file = stage.file("lower");
    let fd = file.as_fd();
    let register = Request::Register(0).encode();
    for bytes in [&register[..1], &register[..15], &[0; 16], &[7; 4000]] {
        stage.caller.send(bytes, &[fd]);
        assert_eq!(stage.caller.reply(), Some(Err(Refusal::Malformed)), "{} bytes", bytes.len());
    }
    for many in [0, 2, 3, 253] {
        stage.caller.send(&register, &vec![fd; many]);
        assert_eq!(stage.caller.reply(), Some(Err(Refusal::Malformed)), "{many} descriptors");
    }
    stage.caller.send(&Request::Close(1).encode(), &[fd]);
    assert_eq!(stage.caller.reply(), Some(Err(Refusal::Malformed)));
    let hello = stage.caller.ask(Request::Hello, &[stage.mounted.device.as_fd()]);
    assert_eq!(hello, Some(Err(Refusal::Malformed)));
    let mut later = register;
    later[4] = 2;
    stage.caller.send(&later, &[fd]);
    assert_eq!(stage.caller.reply(), Some(Err(Refusal::Version(1))));
    stage
        .broker
        .has_said("the message has version 2 of the broker's protocol, this program speaks 1");
    stage.serves();
    // Standard streams, the socket and the device: nothing that came along is left.
    let child = stage.broker.children().pop().unwrap();
    let open: Vec<_> = fs::read_dir(format!("/proc/{child}/fd")).unwrap().collect();
    assert_eq!(open.len(), 5, "{open:?}");
}

#[test]
fn floods_are_refused_and_concern_their_user_alone() {
    let Some(stage) = Stage::new(&["--max-files", "100"]) else { return };
    let file = stage.file("lower");
    let ids: Vec<_> = (0..100).map(|_| stage.caller.register(&file).unwrap()).collect();
    stage.refused(&file, Refusal::TooManyFiles);
    let close = |id| stage.caller.send(&Request::Close(id).encode(), &[]);
    ids.into_iter().for_each(close);
    // Fifteen times as many in fifteen seconds, however fast each is closed.
    let fast = (0..3000).any(|_| match stage.caller.register(&file) {
        Ok(id) => {
            close(id);
            false
        }
        refused => refused == Err(Refusal::TooManyFiles),
    });
    assert!(fast, "3000 registrations, of 1500");
    until("later it is served again", || stage.caller.register(&file).is_ok());
    let socket = &stage.broker.socket;
    let crowd: Vec<_> = (0..20).map(|_| Caller::connect(socket, USER, &[])).collect();
    let refused = || {
        crowd.iter().rev().take(5).all(|one| one.reply() == Some(Err(Refusal::TooManyConnections)))
    };
    assert!(refused());
    let other = Mounted::of(OTHER);
    Caller::of(socket, OTHER, &other).register(&file).unwrap();
    drop(crowd);
    until("there is room again", || stage.broker.children().len() == 1);
    Caller::of(socket, USER, &stage.mounted).register(&file).unwrap();
    // A line for each of the first refusals, and then a count.
    for _ in 0..200 {
        stage.caller.send(b"x", &[]);
        stage.caller.reply();
    }
    assert!(stage.broker.said().lines().count() < 60, "{}", stage.broker.said());
}

/// Each connection is a process of its own, and they share one limit.
#[test]
fn connections_that_are_refused_flood_no_log() {
    let Some(stage) = Stage::new(&[]) else { return };
    let begun = std::time::Instant::now();
    for _ in 0..300 {
        let caller = Caller::connect(&stage.broker.socket, OTHER, &[]);
        caller.try_send(b"x", &[]);
        caller.reply();
    }
    // Some are refused by the listening process, as too many.
    let lines = |user: u32| {
        let of_user = format!("tollgate broker: user {user} ");
        stage.broker.said().lines().filter(|line| line.starts_with(&of_user)).count()
    };
    let windows = begun.elapsed().as_secs() / 15 + 2;
    let logged = lines(OTHER);
    assert!((1..=12 * windows).contains(&(logged as u64)), "{logged} lines in {windows} windows");
    // Another user's are not left out.
    stage.refused(open("/dev/null", OFlags::RDONLY), Refusal::NotReadWrite);
    assert_eq!(lines(USER), 1);
}

#[test]
fn a_caller_that_says_nothing_is_not_waited_for() {
    let Some(stage) = Stage::new(&[]) else { return };
    let silent = Caller::connect(&stage.broker.socket, OTHER, &[]);
    stage.serves();
    assert_eq!(silent.reply(), None);
}

#[test]
fn only_members_of_the_group_are_served() {
    if !can_mount() {
        return;
    }
    let directory = open_directory();
    let broker = Broker::start(directory.path(), &["--user-group", "daemon"]);
    let daemon = 1;
    let mounted = Mounted::of(USER);
    let stranger = Caller::connect(&broker.socket, USER, &[5, 6]);
    assert_eq!(stranger.reply(), Some(Err(Refusal::NotAllowed)));
    let member = Caller::connect(&broker.socket, USER, &[5, daemon, 6]);
    assert_eq!(member.ask(Request::Hello, &[mounted.device.as_fd()]), Some(Ok(1)));
    broker.has_said(&Refusal::NotAllowed.to_string());
}

#[test]
fn the_end_of_a_connection_closes_what_it_registered() {
    let Some(stage) = Stage::new(&[]) else { return };
    let file = stage.file("lower");
    let id = stage.caller.register(&file).unwrap();
    let Stage { broker, mounted, caller, directory: _directory } = stage;
    drop(caller);
    until("the process ends", || broker.children().is_empty());
    fs::read(mounted.file_of(id)).unwrap_err();
    // A mount that is gone is nobody's.
    mounted.unmount();
    let late = Caller::connect(&broker.socket, USER, &[]);
    let reply = late.ask(Request::Hello, &[mounted.device.as_fd()]);
    assert_eq!(reply, Some(Err(Refusal::NotYours)));
}

/// The descriptor is a reference to an open file, not a number: what the caller does with the number
/// afterwards changes nothing. What it can change is `O_APPEND`, which it may take away anyway.
#[test]
fn a_descriptor_that_is_exchanged_after_it_was_sent_is_the_old_one() {
    let Some(stage) = Stage::new(&[]) else { return };
    let secret = stage.directory.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let file = stage.file("lower");
    file.write_all_at(b"own", 0).unwrap();
    let mut number = OwnedFd::from(file);
    stage.caller.send(&Request::Register(0).encode(), &[number.as_fd()]);
    let other = File::options().read(true).write(true).custom_flags(0).open(&secret).unwrap();
    rustix::io::dup2(&other, &mut number).unwrap();
    let id = stage.caller.reply().unwrap().unwrap();
    assert_eq!(fs::read(stage.mounted.file_of(id)).unwrap(), b"own");
}

#[test]
fn the_process_that_serves_has_one_capability_no_file_system_and_a_dozen_calls() {
    let Some(stage) = Stage::new(&[]) else { return };
    let child = stage.broker.children().pop().unwrap();
    let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    let line = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let admin = format!("{:016x}", 1_u64 << 21);
    assert_eq!((line("CapEff:"), line("CapPrm:")), (vec![admin.clone()], vec![admin]));
    assert_eq!(line("CapInh:"), ["0000000000000000"]);
    let user = USER.to_string();
    assert_eq!((&line("Uid:")[3], &line("Gid:")[3]), (&user, &user));
    assert_eq!((line("NoNewPrivs:"), line("Seccomp:")), (vec!["1".into()], vec!["2".into()]));
    let root = fs::read_dir(format!("/proc/{child}/root")).unwrap();
    assert_eq!(root.count(), 0, "its root is not empty");
    let mounts = fs::read_to_string(format!("/proc/{child}/mountinfo")).unwrap();
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
}

/// It answers on the CPU where its client sleeps, one of those that the broker was started with.
#[test]
fn the_process_that_serves_goes_to_the_cpu_of_its_client_and_to_no_other() {
    if !can_mount() {
        return;
    }
    let own = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).collect();
    let [first, .., last] = cpus[..] else { return println!("skipped: one CPU") };
    let start = |cpus: &[usize]| {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        // Inherited by the broker; this thread ends with it.
        let stage = || {
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            Stage::new(&[]).unwrap()
        };
        std::thread::scope(|scope| scope.spawn(stage).join().unwrap())
    };
    let stage = start(&[first, last]);
    let file = stage.file("lower");
    let ask = |stage: &Stage, cpu: usize| {
        let request = Request::Register(u32::try_from(cpu).unwrap());
        stage.caller.ask(request, &[file.as_fd()]).unwrap().unwrap();
        let child = stage.broker.children().pop().unwrap();
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
        list.unwrap().to_owned()
    };
    let both = ask(&stage, last);
    assert_ne!(both, last.to_string(), "named once");
    assert_eq!(ask(&stage, last), last.to_string());
    for elsewhere in [first, last, CpuSet::MAX_CPU, CpuSet::MAX_CPU, u32::MAX as usize] {
        assert_eq!(ask(&stage, elsewhere), last.to_string(), "{elsewhere}");
    }
    assert_eq!(ask(&stage, u32::MAX as usize), last.to_string());
    let narrow = start(&[first]);
    for _ in 0..3 {
        assert_eq!(ask(&narrow, last), first.to_string(), "not one of the broker's");
    }
}
