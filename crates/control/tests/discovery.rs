//! Servers of one user find each other, across pid namespaces too.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use tollgate_control::{ControlError, Directory, Found, Server, TIME_LIMIT, ask};

const KIND: &str = "test";
/// Set for the part of a test that runs in another process.
const DIRECTORY: &str = "TOLLGATE_CONTROL_TEST_DIRECTORY";

fn fixture() -> (tempfile::TempDir, Directory) {
    let home = tempfile::tempdir().unwrap();
    let directory = Directory::at(home.path().join("sockets"));
    (home, directory)
}

fn echo(directory: &Directory) -> Server {
    directory.serve(KIND, |_, request| format!("<{request}>")).unwrap()
}

fn found(directory: &Directory) -> Vec<Found> {
    let discovery = directory.servers(KIND).unwrap();
    assert!(discovery.troubles.is_empty(), "{:?}", discovery.troubles);
    discovery.found
}

fn entries(directory: &Directory) -> usize {
    std::fs::read_dir(directory.path()).unwrap().count()
}

#[test]
fn servers_of_a_kind_are_found_until_they_end() {
    let (_home, directory) = fixture();
    assert_eq!(found(&directory), [], "there is no directory yet");
    let (first, second) = (echo(&directory), echo(&directory));
    let _other = directory.serve("other", |_, _| String::new()).unwrap();
    assert_eq!(found(&directory).len(), 2);
    for server in found(&directory) {
        assert_eq!(server.pid, Some(std::process::id()));
        assert!([first.path(), second.path()].contains(&&*server.path));
        assert_eq!(ask(&server.path, "x").unwrap(), "<x>");
    }
    drop(first);
    assert_eq!(found(&directory).len(), 1);
}

#[test]
fn what_dead_servers_left_is_removed_and_what_is_no_socket_is_reported() {
    let (_home, directory) = fixture();
    let _server = echo(&directory);
    let name = |id: u64| directory.path().join(format!("{KIND}-{id:016x}.sock"));
    drop(UnixListener::bind(name(1)).unwrap());
    // Of another kind: not ours to remove.
    drop(UnixListener::bind(directory.path().join("other-0000000000000001.sock")).unwrap());
    // A child that another test forks at this moment listens there, too, until it executes its program.
    let start = std::time::Instant::now();
    while found(&directory).len() > 1 {
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "it is not removed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(found(&directory).len(), 1);
    assert!(!name(1).exists());
    assert_eq!(entries(&directory), 2);
    std::fs::write(name(2), "").unwrap();
    let discovery = directory.servers(KIND).unwrap();
    assert_eq!(discovery.found.len(), 1);
    assert!(matches!(discovery.troubles[..], [ControlError::NotASocket { .. }]));
    assert!(name(2).exists());
}

#[test]
fn servers_that_take_no_connection_hold_up_a_discovery_once() {
    let (_home, directory) = fixture();
    let _server = echo(&directory);
    let full = |id: u64| {
        let path = directory.path().join(format!("{KIND}-{id:016x}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        // The kernel takes one more than asked for.
        rustix::net::listen(&listener, 0).unwrap();
        let first = std::os::unix::net::UnixStream::connect(&path).unwrap();
        (listener, first)
    };
    let _full: Vec<_> = (1..=8).map(full).collect();
    let begun = std::time::Instant::now();
    let discovery = directory.servers(KIND).unwrap();
    assert!(begun.elapsed() < TIME_LIMIT * 3, "{:?}", begun.elapsed());
    assert_eq!((discovery.found.len(), discovery.troubles.len()), (1, 8));
}

#[test]
fn a_server_that_is_about_to_listen_is_not_taken_for_a_leftover() {
    let (_home, directory) = fixture();
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| {
            (0..200).map(|_| echo(&directory)).filter(|server| !server.path().exists()).count()
        });
        while !starting.is_finished() {
            found_or_starting(&directory);
        }
        assert_eq!(starting.join().unwrap(), 0, "sockets of living servers were removed");
    });
    assert_eq!(entries(&directory), 0);
}

fn found_or_starting(directory: &Directory) {
    let discovery = directory.servers(KIND).unwrap();
    assert!(discovery.troubles.is_empty(), "{:?}", discovery.troubles);
}

#[test]
fn servers_in_nested_directories_are_found_and_their_directories_go_with_their_owner() {
    let (_home, directory) = fixture();
    let _server = echo(&directory);
    let nested = directory.nested().unwrap();
    let inside = Directory::at(nested.path());
    let inner = echo(&inside);
    let deeper = inside.nested().unwrap();
    let _innermost = echo(&Directory::at(deeper.path()));
    assert_eq!(found(&directory).len(), 3);
    drop((inner, deeper));
    assert_eq!(found(&directory).len(), 1, "a directory goes with what is in it");
    drop(nested);
    assert_eq!(entries(&directory), 1);
}

#[test]
fn a_nested_directory_that_a_dead_process_left_is_removed_and_others_stay() {
    let (_home, directory) = fixture();
    let used = directory.nested().unwrap();
    let left = directory.path().join("in-000000ff");
    std::fs::create_dir(&left).unwrap();
    std::fs::set_permissions(&left, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(left.join("file"), "").unwrap();
    // Not one of ours, whatever it is.
    std::fs::create_dir(directory.path().join("in-x")).unwrap();
    let _more = directory.nested().unwrap();
    assert!(!left.exists() && used.path().exists());
    // Two directories, each with its lock, and the other one.
    assert_eq!(entries(&directory), 5);
}

/// Whoever uses a directory may leave anything in it, without permissions and at any depth.
#[test]
fn whatever_is_left_in_a_nested_directory_goes_with_it() {
    let (home, directory) = fixture();
    let outside = home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "").unwrap();
    let set_mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let fill = |top: &std::path::Path, mode| {
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::fs::write(top.join("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink(&outside, top.join("a/link")).unwrap();
        for place in ["a/b/c", "a/b", "a", ""] {
            set_mode(&top.join(place), mode);
        }
    };
    // More levels than descriptors, and than a path may name.
    let deep = |top: &std::path::Path| {
        let flags = rustix::fs::OFlags::PATH;
        let mut place = rustix::fs::open(top, flags, rustix::fs::Mode::empty()).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&place, "d", rustix::fs::Mode::RWXU).unwrap();
            place = rustix::fs::openat(&place, "d", flags, rustix::fs::Mode::empty()).unwrap();
        }
    };
    let nested = directory.nested().unwrap();
    deep(nested.path());
    fill(nested.path(), 0);
    drop(nested);
    assert_eq!(entries(&directory), 0);
    for mode in [0, 0o777] {
        let left = directory.path().join("in-000000ff");
        std::fs::create_dir(&left).unwrap();
        fill(&left, mode);
        drop(directory.nested().unwrap());
        assert_eq!(entries(&directory), 0, "{mode:o}");
    }
    assert!(outside.join("file").exists());
}

#[test]
fn a_link_to_a_directory_is_not_followed() {
    let (home, directory) = fixture();
    let elsewhere = Directory::at(home.path().join("elsewhere"));
    let _server = echo(&elsewhere);
    drop(echo(&directory));
    let link = directory.path().join("in-00000001");
    std::os::unix::fs::symlink(elsewhere.path(), link).unwrap();
    assert_eq!(found(&directory), []);
    let _nested = directory.nested().unwrap();
    assert_eq!(entries(&elsewhere), 1);
}

#[test]
fn a_directory_that_others_can_write_to_is_not_used() {
    let (home, directory) = fixture();
    drop(echo(&directory));
    let remedy =
        if rustix::process::geteuid().is_root() { "`chmod 711` it" } else { "`chmod 700` it" };
    for mode in [0o777, 0o720, 0o702] {
        let open = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let served = directory.serve(KIND, |_, _| String::new()).unwrap_err();
        assert!(served.to_string().contains(remedy), "{served}");
        assert!(directory.servers(KIND).unwrap_err().to_string().contains(remedy));
    }
    let link = home.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    assert!(Directory::at(link).serve(KIND, |_, _| String::new()).is_err());
}

#[test]
fn a_directory_whose_path_is_too_long_is_named_with_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let fill = |len: usize| "d".repeat(len - home.path().as_os_str().len() - 1);
    let longest = Directory::at(home.path().join(fill(80)));
    let server = longest.serve("kind", |_, _| String::new()).unwrap();
    assert_eq!(server.path().as_os_str().len(), 107);
    let longer = Directory::at(home.path().join(fill(81)));
    for error in
        [longer.prepare().unwrap_err(), longer.serve(KIND, |_, _| String::new()).unwrap_err()]
    {
        let told = error.to_string();
        assert!(told.contains(longer.path().to_str().unwrap()), "{told}");
        assert!(told.contains("XDG_RUNTIME_DIR"), "{told}");
    }
    assert!(!longer.path().exists());
}

#[test]
fn roots_directory_may_be_entered_by_others_and_not_listed() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: for root alone");
    }
    let (_home, directory) = fixture();
    let mode = || std::fs::metadata(directory.path()).unwrap().permissions().mode() & 0o7777;
    directory.prepare().unwrap();
    assert_eq!(mode(), 0o700);
    directory.prepare_for_all().unwrap();
    assert_eq!(mode(), 0o711);
    drop(echo(&directory));
    assert_eq!(mode(), 0o711);
    // As others make directories of services; who may open it could lock it.
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = echo(&directory);
    assert_eq!((mode(), found(&directory).len()), (0o711, 1));
    let socket = std::fs::metadata(server.path()).unwrap().permissions().mode();
    assert_eq!(socket & 0o777, 0o600);
}

#[test]
fn the_usual_place_is_named_after_the_program() {
    let path = Directory::of_user("example").path().to_owned();
    let uid = rustix::process::geteuid().as_raw();
    let expected = match std::env::var("XDG_RUNTIME_DIR") {
        _ if uid == 0 => "/run/example".to_owned(),
        Ok(directory) => format!("{directory}/example"),
        Err(_) => format!("/tmp/example-{uid}"),
    };
    assert_eq!(path, Path::new(&expected));
}

/// Runs one of the tests below, which are parts of others, in a new pid namespace.
fn in_new_pid_namespace(part: &str, directory: &Directory) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", part, "--ignored", "--nocapture"]);
    command.env(DIRECTORY, directory.path());
    command
}

fn given_directory() -> Directory {
    Directory::at(std::env::var_os(DIRECTORY).expect("run by another test"))
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: a pid namespace needs root");
    }
    root
}

#[test]
fn a_server_outside_of_the_pid_namespace_serves_and_is_found() {
    if !is_root() {
        return;
    }
    let (_home, directory) = fixture();
    let server = directory.serve(KIND, |peer, _| format!("{:?}", peer.pid.is_some())).unwrap();
    let output = in_new_pid_namespace("part_client_inside", &directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(server.path().exists(), "it was not taken for a leftover");
}

#[test]
#[ignore = "part of another test"]
fn part_client_inside() {
    let found = found(&given_directory());
    assert_eq!(found.iter().map(|found| found.pid).collect::<Vec<_>>(), [None]);
    // The outer namespace sees every process of the inner one.
    assert_eq!(ask(&found[0].path, "x").unwrap(), "true");
}

#[test]
fn servers_with_one_pid_in_several_namespaces_are_told_apart() {
    if !is_root() {
        return;
    }
    let (_home, directory) = fixture();
    let mut inside = [(); 2].map(|()| {
        let mut command = in_new_pid_namespace("part_server_inside", &directory);
        command.stdin(std::process::Stdio::piped()).spawn().unwrap()
    });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let servers = loop {
        let servers = found(&directory);
        if servers.len() == 2 {
            break servers;
        }
        assert!(std::time::Instant::now() < deadline, "they do not start");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let pids: Vec<_> = servers.iter().map(|server| server.pid.unwrap()).collect();
    assert_ne!(pids[0], pids[1], "as this namespace sees them");
    // Each calls itself process 1, and does not see who asks.
    for server in &servers {
        assert_eq!(ask(&server.path, "x").unwrap(), "1 None");
    }
    for child in &mut inside {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(found(&directory), []);
}

#[test]
#[ignore = "part of another test"]
fn part_server_inside() {
    let reply = |peer: &tollgate_control::Peer| format!("{} {:?}", std::process::id(), peer.pid);
    let _server = given_directory().serve(KIND, move |peer, _| reply(peer)).unwrap();
    // Until the other test ends this one.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}
