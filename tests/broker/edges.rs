//! Further attempts: at the protocol's edges, at the limits of the kernel, at what descriptors can be.

use std::fs::{self, File};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tollgate_broker::{Client, MESSAGE_BYTES, Refusal, RegisterError, Request, encode_reply};

use crate::attack::{Stage, open};
use crate::fuse::Caller;
use crate::harness::{USER, can_mount, open_directory, until};

/// Descriptors of the process that serves the stage's caller: standard streams, socket, device. None of
/// one that has just ended.
fn descriptors(stage: &Stage) -> usize {
    let child = stage.broker.children().pop().unwrap();
    fs::read_dir(format!("/proc/{child}/fd")).map_or(0, Iterator::count)
}

#[test]
fn messages_that_are_cut_off_by_a_close_leave_nothing_and_delay_nobody() {
    let Some(stage) = Stage::new(&[]) else { return };
    let (file, register) = (stage.file("lower"), Request::Register(0).encode());
    for length in [0, 1, 8, 15, 16] {
        let caller = Caller::of(&stage.broker.socket, USER, &stage.mounted);
        caller.send(&register[..length], &[file.as_fd()]);
        drop(caller);
        let silent = Caller::connect(&stage.broker.socket, USER, &[]);
        silent.send(&register[..length], &[]);
    }
    stage.serves();
    // The last of them may be accepted only now, and is not the stage's caller.
    let is_alone = || stage.broker.children().len() == 1 && descriptors(&stage) == 5;
    until("their processes end, and nothing of theirs is left", is_alone);
}

/// A client that never reads fills its own socket, ends its own process, and takes nothing along.
#[test]
fn a_client_that_never_reads_ends_itself_alone() {
    let Some(stage) = Stage::new(&[]) else { return };
    let file = stage.file("lower");
    let deaf = Caller::of(&stage.broker.socket, USER, &stage.mounted);
    let register = Request::Register(0).encode();
    let ended = (0..4096).any(|_| !deaf.try_send(&register, &[file.as_fd()]));
    until("its process ends", || ended || stage.broker.children().len() == 1);
    stage.serves();
    drop(deaf);
    until("its process is gone", || stage.broker.children().len() == 1);
    assert_eq!(descriptors(&stage), 5);
}

#[test]
fn append_only_stays_so_whenever_it_is_asked_for() {
    let Some(stage) = Stage::new(&[]) else { return };
    let path = stage.directory.path().join("log");
    let file = stage.file("log");
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND).unwrap();
    stage.refused(&file, Refusal::NotReadWrite);
    // Of an append-only file no descriptor without it can be had, nor can it be taken away.
    let attribute = |what: &str| {
        Command::new("chattr").arg(what).arg(&path).status().is_ok_and(|status| status.success())
    };
    if attribute("+a") {
        let reopened = File::options().read(true).append(true).open(&path).unwrap();
        let freed = rustix::fs::fcntl_setfl(&reopened, OFlags::empty());
        let refused = (stage.caller.register(&reopened), stage.caller.register(&file));
        assert!(attribute("-a"));
        freed.unwrap_err();
        assert_eq!(refused, (Err(Refusal::NotReadWrite), Err(Refusal::NotReadWrite)));
    }
    stage.serves();
}

#[test]
fn a_file_without_a_name_is_served_and_a_copy_of_a_reader_is_not() {
    let Some(stage) = Stage::new(&[]) else { return };
    let file = stage.file("gone");
    fs::remove_file(stage.directory.path().join("gone")).unwrap();
    let id = stage.caller.register(&file).unwrap();
    stage.caller.send(&Request::Close(id).encode(), &[]);
    let temporary: OwnedFd = open(stage.directory.path(), OFlags::RDWR | OFlags::TMPFILE);
    stage.caller.register(&temporary).unwrap();
    let path = stage.directory.path().join("of-root");
    drop(stage.file("of-root"));
    let reads = open(&path, OFlags::RDONLY);
    stage.refused(&reads, Refusal::NotReadWrite);
    stage.refused(reads.try_clone().unwrap(), Refusal::NotReadWrite);
    stage.serves();
}

#[test]
fn many_clients_at_once_are_served_or_told_and_nothing_stays_open() {
    let Some(stage) = Stage::new(&[]) else { return };
    let crowd = || {
        for _ in 0..40 {
            let one = Caller::connect(&stage.broker.socket, USER, &[]);
            let device = stage.mounted.device.as_fd();
            let answer = one.try_send(&Request::Hello.encode(), &[device]).then(|| one.reply());
            assert!(
                !matches!(answer, Some(Some(Err(other))) if other != Refusal::TooManyConnections),
                "{answer:?}"
            );
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(crowd))));
    until("they are gone", || stage.broker.children().len() == 1);
    stage.serves();
    assert_eq!(descriptors(&stage), 5);
    // The listening process: standard streams, its socket, and what each new process begins with.
    assert!(stage.broker.open_files().len() <= 8, "{:?}", stage.broker.open_files());
}

/// connect(2) says of any file what it says of the socket that a dead broker left.
#[test]
fn what_is_no_socket_is_left_where_a_broker_is_to_listen() {
    let directory = open_directory();
    let (socket, file, link) = (
        directory.path().join("socket"),
        directory.path().join("file"),
        directory.path().join("link"),
    );
    drop(tollgate_broker::listener(&socket).unwrap());
    std::fs::write(&file, "precious").unwrap();
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    for path in [&file, &link] {
        let refused = tollgate_broker::listener(path).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse, "{}", path.display());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(link.is_symlink());
    drop(tollgate_broker::listener(&socket).unwrap());
}

/// With a time limit set, the kernel ends a wait with `EINTR` also when the process was only stopped and
/// continued.
#[test]
fn a_client_that_is_interrupted_goes_on_waiting() {
    // Only root's process can be a broker.
    if !can_mount() {
        return;
    }
    let directory = open_directory();
    let socket = directory.path().join("socket");
    let listener = tollgate_broker::listener(&socket).unwrap();
    let client = Client::new(&socket);
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let client = &client;
        let asking = scope.spawn(move || {
            tollgate_fuse::blocking::prepare_thread();
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send(tid).unwrap();
            client.connect(open("/dev/null", OFlags::RDWR).as_fd())
        });
        let asker = told.recv().unwrap();
        let connection = rustix::net::accept(&listener).unwrap();
        let mut hello = [0; MESSAGE_BYTES];
        rustix::net::recv(&connection, &mut hello[..], RecvFlags::empty()).unwrap();
        for _ in 0..20 {
            tollgate_fuse::blocking::interrupt(asker);
            std::thread::sleep(Duration::from_millis(5));
        }
        rustix::net::send(&connection, &encode_reply(Ok(1)), SendFlags::NOSIGNAL).unwrap();
        asking.join().unwrap().unwrap();
    });
}

/// What was registered on a connection ends with it, and files are open by that.
#[test]
fn a_broker_that_is_late_keeps_its_connection_and_is_asked_again() {
    // Only root's process can be a broker.
    if !can_mount() {
        return;
    }
    let directory = open_directory();
    let socket = directory.path().join("socket");
    let listener = tollgate_broker::listener(&socket).unwrap();
    let client = Client::new(&socket);
    let (device, file) = (open("/dev/null", OFlags::RDWR), open("/dev/null", OFlags::RDWR));
    let register = || client.register(device.as_fd(), file.as_fd());
    let unreachable = |answer: Result<u32, RegisterError>| {
        assert!(matches!(answer, Err(RegisterError::Unreachable(_))), "{answer:?}");
    };
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| unreachable(register()));
        let connection = rustix::net::accept(&listener).unwrap();
        let receive = || {
            let mut bytes = [0; MESSAGE_BYTES + 1];
            let (len, _) =
                rustix::net::recv(&connection, &mut bytes[..], RecvFlags::empty()).unwrap();
            assert!(len > 0, "the connection has ended");
            Request::decode(&bytes[..len]).unwrap()
        };
        let answer = |id| {
            let reply = encode_reply(Ok(id));
            rustix::net::send(&connection, &reply, SendFlags::NOSIGNAL).unwrap();
        };
        assert_eq!(receive(), Request::Hello);
        answer(1);
        assert!(matches!(receive(), Request::Register(_)));
        asking.join().unwrap();
        // It is not asked again before it has answered, nor told of anything.
        client.close(5);
        unreachable(register());
        std::thread::sleep(Duration::from_millis(600));
        unreachable(register());
        answer(7);
        let asking = scope.spawn(|| {
            let mut id = None;
            until("the broker is not asked again", || {
                id = register().ok();
                id.is_some()
            });
            id
        });
        // Nobody knows of the registration that came late.
        let closed = [receive(), receive()];
        assert_eq!(closed, [Request::Close(5), Request::Close(7)]);
        assert!(matches!(receive(), Request::Register(_)));
        answer(8);
        assert_eq!(asking.join().unwrap(), Some(8));
    });
}

/// Most descriptors of one message (`SCM_MAX_FD`).
const IN_ONE_MESSAGE: usize = 253;
/// A user that nothing else runs as.
const NOBODY_ELSE: u32 = 3_571_113;

/// Sends copies of `fd` that nobody receives, until the kernel takes no more of this user, and returns
/// what holds them.
fn in_flight(fd: BorrowedFd<'_>) -> [OwnedFd; 2] {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (here, there) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let copies = [fd; IN_ONE_MESSAGE];
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(IN_ONE_MESSAGE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&copies)));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&here, &[IoSlice::new(b"x")], &mut control, flags)
    };
    let refused = std::iter::repeat_with(send).find_map(Result::err);
    assert_eq!(refused, Some(Errno::TOOMANYREFS));
    [here, there]
}

/// The kernel may take no descriptor: what was not sent is not waited for.
#[test]
fn a_request_that_could_not_be_sent_costs_no_connection_and_is_made_again() {
    // Only root's process can be a broker.
    if !can_mount() {
        return;
    }
    let directory = open_directory();
    let socket = directory.path().join("socket");
    let listener = tollgate_broker::listener(&socket).unwrap();
    let client = Client::new(&socket);
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(limit.current.map_or(1024, |old| old.min(1024))), ..limit };
    std::thread::scope(|scope| {
        // The client goes with this thread, also when it fails.
        let asking = scope.spawn(move || {
            let (device, file) = (open("/dev/null", OFlags::RDWR), open("/dev/null", OFlags::RDWR));
            let register = || client.register(device.as_fd(), file.as_fd());
            client.connect(device.as_fd()).unwrap();
            // Root is not limited, and the user of this thread alone changes.
            let user = Uid::from_raw(NOBODY_ELSE);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            setrlimit(Resource::Nofile, few).unwrap();
            let crowd = in_flight(file.as_fd());
            let refused = register().unwrap_err();
            setrlimit(Resource::Nofile, limit).unwrap();
            let trouble = client.trouble();
            drop(crowd);
            client.close(5);
            until("the broker is not asked again", || register().is_ok());
            (refused, trouble, client.trouble())
        });
        let connection = rustix::net::accept(&listener).unwrap();
        let receive = || {
            let mut bytes = [0; MESSAGE_BYTES + 1];
            let (len, _) =
                rustix::net::recv(&connection, &mut bytes[..], RecvFlags::empty()).unwrap();
            assert!(len > 0, "the connection has ended");
            Request::decode(&bytes[..len]).unwrap()
        };
        let answer = |id| {
            let reply = encode_reply(Ok(id));
            rustix::net::send(&connection, &reply, SendFlags::NOSIGNAL).unwrap();
        };
        assert_eq!(receive(), Request::Hello);
        answer(1);
        // Not the request that was refused, nor is the connection another one.
        assert_eq!(receive(), Request::Close(5));
        assert!(matches!(receive(), Request::Register(_)));
        answer(8);
        let (refused, trouble, trouble_later) = asking.join().unwrap();
        let why = std::io::Error::from(Errno::TOOMANYREFS).to_string();
        assert!(refused.to_string().ends_with(&why), "{refused}");
        assert_eq!((trouble, trouble_later), (Some(why), None));
    });
}
