//! `--network` and `--allow-host`: what CMD reaches. Servers here listen at 127.0.0.1 alone.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::project::{PATIENCE, Project, all, can_mount, first_line, text};

/// A server outside, which answers each connection and tells what it was asked.
struct Outside {
    port: u16,
    heard: std::sync::mpsc::Receiver<String>,
}

impl Outside {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = Vec::new();
                let mut part = [0; 1024];
                while !bytes.ends_with(b"\r\n\r\n") {
                    match stream.read(&mut part).unwrap_or(0) {
                        0 => break,
                        read => bytes.extend_from_slice(&part[..read]),
                    }
                }
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n";
                let _ = stream.write_all((answer.to_owned() + "reply\n").as_bytes());
                if tell.send(text(&bytes)).is_err() {
                    return;
                }
            }
        });
        Self { port, heard }
    }

    fn next(&self) -> String {
        self.heard.recv_timeout(PATIENCE).expect("nobody connected")
    }

    fn nobody(&self) -> bool {
        self.heard.recv_timeout(Duration::from_millis(1)).is_err()
    }
}

/// What a program inside does: an HTTP request as it is, and by CONNECT, through the proxy that the
/// environment names, or without one.
const PYTHON: &str = r#"
import os, socket, sys
def talk(address, *texts):
    got = b''
    try:
        with socket.create_connection(address, 20) as s:
            s.settimeout(20)
            for text in texts:
                s.sendall(text.encode())
                got = s.recv(65536)
                if not got.startswith(b'HTTP/1.1 200'): break
            while True:
                more = s.recv(65536)
                if not more: break
                got += more
    except OSError as error:
        return type(error).__name__
    return got.decode().replace('\r', '')
what, host = sys.argv[1:3]
name, port = host.rsplit(':', 1)
end = ' HTTP/1.1\r\nHost: ' + host + '\r\n\r\n'
if what == 'direct':
    print(talk((name, int(port)), 'GET /' + end))
else:
    proxy = os.environ['http_proxy'].rsplit('/', 1)[1].split(':')
    proxy = (proxy[0], int(proxy[1]))
    if what == 'plain': print(talk(proxy, 'GET http://' + host + '/path' + end))
    if what == 'tunnel': print(talk(proxy, 'CONNECT ' + host + end, 'GET /' + end))
"#;

fn python(project: &Project, options: &[&str], what: &str, host: &str) -> Output {
    let mut command = project.run_with(options);
    command.args(["python3", "-c", PYTHON, what, host]).stdin(Stdio::null()).output().unwrap()
}

fn has_python() -> bool {
    let found = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: no python3");
    }
    found
}

/// Its end, and what it asked for last, are there when `run` looks.
#[test]
fn what_is_refused_right_before_the_end_is_recorded() {
    if !can_mount() || !has_python() {
        return;
    }
    let project = Project::new();
    let code = "import os, socket
name, port = os.environ['http_proxy'].rsplit('/', 1)[1].split(':')
print('begun', flush=True)
input()
for host in ('evil.test:443', 'other.test:443'):
    s = socket.create_connection((name, int(port)), 20)
    s.sendall(f'CONNECT {host} HTTP/1.1\\r\\n\\r\\n'.encode())
    s.recv(65536)
os._exit(0)";
    let mut command = project.run_with(&["--allow-host", "localhost:1"]);
    command.args(["python3", "-c", code]).stdin(Stdio::piped());
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut run), "begun");
    let signal = |signal| rustix::process::kill_process(Pid::from_child(&run), signal).unwrap();
    signal(Signal::STOP);
    run.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
    // CMD needs nothing of `run` to end.
    std::thread::sleep(Duration::from_millis(500));
    signal(Signal::CONT);
    let output = run.wait_with_output().unwrap();
    for host in ["evil.test:443", "other.test:443"] {
        let line = format!("connect {host}: EACCES");
        assert!(text(&output.stderr).contains(&line), "{}", all(&output));
    }
}

#[test]
fn a_network_of_its_own_does_not_reach_the_machine() {
    if !can_mount() || !has_python() {
        return;
    }
    let (project, outside) = (Project::new(), Outside::start());
    let host = format!("127.0.0.1:{}", outside.port);
    let output = python(&project, &[], "direct", &host);
    assert!(text(&output.stdout).ends_with("reply\n\n"), "{}", all(&output));
    outside.next();
    for mode in ["off", "loopback"] {
        let output = python(&project, &["--network", mode], "direct", &host);
        let said = text(&output.stdout);
        assert!(["ConnectionRefusedError\n", "OSError\n"].contains(&&*said), "{}", all(&output));
        assert!(outside.nobody(), "{mode}");
    }
    // What CMD starts reaches each other, with `loopback`.
    let script = "import socket, threading
server = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b'inside')).start()
print(socket.create_connection(server.getsockname()).recv(9).decode())";
    let mut command = project.run_with(&["--network", "loopback"]);
    let output = command.args(["python3", "-c", script]).output().unwrap();
    assert_eq!(text(&output.stdout), "inside\n", "{}", all(&output));
}

#[test]
fn sockets_that_no_namespace_holds_back_are_refused() {
    if !can_mount() || !has_python() {
        return;
    }
    let project = Project::new();
    let script = "import socket, ctypes, os
for family in (40, 38, 31, 17):
    try: socket.socket(family, socket.SOCK_STREAM); print(family, 'opened')
    except OSError as error: print(family, error.errno)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 1, 0), ctypes.get_errno())
socket.socket(socket.AF_UNIX); socket.socket(socket.AF_INET6)";
    let mut command = project.run_with(&["--network", "off"]);
    let output = command.args(["python3", "-c", script]).output().unwrap();
    let expected = "40 97\n38 97\n31 97\n17 97\n-1 38\n";
    assert_eq!(text(&output.stdout), expected, "{}", all(&output));
}

#[test]
fn a_host_that_is_named_is_reached_by_the_proxy_and_no_other() {
    if !can_mount() || !has_python() {
        return;
    }
    let (project, outside) = (Project::new(), Outside::start());
    let named = format!("localhost:{}", outside.port);
    let log = project.path("audit.jsonl");
    let options = ["--allow-host", &named, "--audit", log.to_str().unwrap()];
    for (what, begin) in [("plain", "GET /path HTTP/1.1\r\n"), ("tunnel", "GET / HTTP/1.1\r\n")] {
        let output = python(&project, &options, what, &named);
        assert!(text(&output.stdout).ends_with("reply\n\n"), "{what}: {}", all(&output));
        let heard = outside.next();
        assert!(heard.starts_with(begin) && heard.contains(&format!("Host: {named}")), "{heard}");
    }
    // Neither by its address, nor on another port, nor without the proxy, nor another name.
    let address = format!("127.0.0.1:{}", outside.port);
    for (what, host) in [
        ("plain", address.as_str()),
        ("tunnel", address.as_str()),
        ("tunnel", "localhost:1"),
        ("plain", "other.invalid:80"),
    ] {
        let output = python(&project, &options, what, host);
        let said = text(&output.stdout);
        assert!(said.starts_with("HTTP/1.1 403 Forbidden"), "{what} {host}: {}", all(&output));
        assert!(said.contains(&format!("--allow-host {host}")), "{said}");
        let summary = text(&output.stderr);
        let line = format!("connect {host}: EACCES by rule `--allow-host`");
        assert!(summary.contains(&line), "{host}: {summary}");
        assert!(summary.contains("would have been allowed by: --allow-host"), "{summary}");
    }
    // One option is enough for both ports that a name means.
    let both = "import os, socket
for request in ('GET http://evil.test/', 'CONNECT evil.test:443', 'CONNECT other.test:80'):
    name, port = os.environ['http_proxy'].rsplit('/', 1)[1].split(':')
    with socket.create_connection((name, int(port)), 20) as s:
        s.sendall((request + ' HTTP/1.1\\r\\n\\r\\n').encode())
        print(s.recv(65536)[:12].decode())";
    let mut command = project.run_with(&options[..2]);
    let output = command.args(["python3", "-c", both]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output.stdout), "HTTP/1.1 403\n".repeat(3), "{}", all(&output));
    let proposed = "allowed by: --allow-host evil.test --allow-host other.test:80\n";
    assert!(text(&output.stderr).contains(proposed), "{}", all(&output));
    let output = python(&project, &options, "direct", &address);
    assert_eq!(text(&output.stdout), "ConnectionRefusedError\n", "{}", all(&output));
    assert!(outside.nobody());
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("\"operation\":\"connect\"").count(), 4, "{log}");
}

#[test]
fn a_name_that_leads_to_this_machine_is_not_enough() {
    if !can_mount() || !has_python() {
        return;
    }
    let (project, outside) = (Project::new(), Outside::start());
    let port = outside.port;
    let script = format!(
        "printf '127.0.0.1 localhost\\n127.0.0.1 public.test\\n' >hosts
        mount --bind hosts /etc/hosts
        for more in '' '--allow-host 127.0.0.1:{port}'; do
            $T run --quiet --policy none --allow-host public.test:{port} $more dir -- \
                python3 -c \"$PYTHON\" plain public.test:{port} | head -1
        done"
    );
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-ec", &script])
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .env("PYTHON", PYTHON)
        .current_dir(project.path("."))
        .output()
        .unwrap();
    let expected = "HTTP/1.1 403 Forbidden\nHTTP/1.1 200 OK\n";
    assert_eq!(text(&output.stdout), expected, "{}", all(&output));
}

/// An interface of a server may have an address of the internet, several of one network, or a route may
/// have a whole network end at the machine.
#[test]
fn nor_is_a_name_that_leads_to_this_machine_by_an_address_of_the_internet() {
    if !can_mount() || !has_python() {
        return;
    }
    let project = Project::new();
    let script = "
        ip link set lo up; ip addr add 203.0.113.7/32 dev lo; ip addr add 2001:db8::7/128 dev lo nodad
        ip addr add 192.0.2.8/24 dev lo; ip addr add 192.0.2.9/24 dev lo
        ip route add local 198.51.100.0/24 dev lo
        python3 -m http.server --bind :: 8080 >/dev/null 2>&1 & trap 'kill $!' EXIT
        touch path hosts; mount --bind hosts /etc/hosts
        i=0; until python3 -c 'import socket; socket.create_connection((\"203.0.113.7\", 8080))' 2>/dev/null
        do sleep 0.1; i=$((i + 1)); [ $i -lt 200 ]; done
        options= names=
        for address in 203.0.113.7 2001:db8::7 192.0.2.8 192.0.2.9 198.51.100.5; do
            name=n$(echo $address | tr -d .:).test; echo \"$address $name\" >>hosts
            case $address in *:*) address=[$address];; esac
            names=\"$names $name:8080\" options=\"$options --allow-host $name:8080\"
            more=\"$more --allow-host $address:8080\"
        done
        for more in '' \"$more\"; do
            $T run --quiet --policy none $options $more dir -- sh -c '
                for name in '\"$names\"'; do python3 -c \"$PYTHON\" plain $name | head -1; done'
        done";
    let output = std::process::Command::new("unshare")
        .args(["-mn", "sh", "-ec", script])
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .env("PYTHON", PYTHON)
        .current_dir(project.path("."))
        .output()
        .unwrap();
    let expected = "HTTP/1.1 403 Forbidden\n".repeat(5) + &"HTTP/1.0 200 OK\n".repeat(5);
    assert_eq!(text(&output.stdout), expected, "{}", all(&output));
}

#[test]
fn a_user_has_a_network_of_its_own_too() {
    if !can_mount() || !has_python() {
        return;
    }
    let (project, outside) = (Project::new(), Outside::start());
    let named = format!("localhost:{}", outside.port);
    let script = format!(
        "cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        for host in {named} 127.0.0.1:{}; do
            HOME=/ setpriv --reuid 4321 --regid 4321 --clear-groups \
                ./tollgate run --allow-host {named} --policy policy.toml dir -- \
                    python3 -c \"$PYTHON\" plain $host | head -1
        done",
        outside.port
    );
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-ec", &script])
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .env("PYTHON", PYTHON)
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .current_dir(project.path("."))
        .output()
        .unwrap();
    let said = all(&output);
    if said.contains("user namespaces are not allowed") || said.contains("not found in PATH") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(text(&output.stdout), "HTTP/1.1 200 OK\nHTTP/1.1 403 Forbidden\n", "{said}");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let project = Project::new();
    for (options, why) in [
        (&["--network", "on", "--allow-host", "a.test"][..], "--allow-host leaves the hosts"),
        (&["--require", "network"], "--require network: CMD would have the machine's network"),
        (&["--allow-host", "http://a.test"], "expected NAME, NAME:PORT"),
        (&["--fence", "off", "--require", "fence"], "--require fence: --fence off leaves none"),
        (&["--memory", "12"], "expected a size of at least 1M"),
    ] {
        let output = project.run_with(options).arg("true").output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", all(&output));
        assert!(all(&output).contains(why), "{why} is not in: {}", all(&output));
    }
}
