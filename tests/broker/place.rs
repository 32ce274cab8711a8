//! The broker's usual place is in the directory of root's control sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{Broker, Home, count, open_directory, until, with_own_run};

const PLACE: &str = "/run/tollgate";

fn mode() -> u32 {
    fs::metadata(PLACE).unwrap().permissions().mode() & 0o7777
}

fn tollgate() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
}

/// A `run` of root that goes on until it is ended.
struct Roots {
    process: Child,
    directory: tempfile::TempDir,
}

impl Roots {
    fn start() -> Self {
        let directory = open_directory();
        let mut command = tollgate();
        command.args(["run", "--policy", "none"]).arg(directory.path()).args(["--", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = command.spawn().unwrap();
        let roots = Self { process, directory };
        until("root's server is found", || roots.is_found());
        roots
    }

    /// Whether `status` of root lists it, and has nothing to warn about.
    fn is_found(&self) -> bool {
        let output = tollgate().arg("status").output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        output.stderr.is_empty() && told.contains(self.directory.path().to_str().unwrap())
    }

    /// It said nothing, at no time.
    fn finish(mut self) {
        drop(self.process.stdin.take());
        let output = self.process.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

/// A user's server registers files by the broker that is found there.
fn is_used(broker: &Broker) {
    let home = Home::new();
    home.write("a", b"served", 0o644);
    let run = home.start(&[], "exec 3<>a; cat <&3; cat");
    let report = run.report(|report| count(report, "open_passthrough") >= 1);
    assert_eq!(report["broker"]["socket"], broker.socket.to_str().unwrap(), "{report}");
    assert_eq!(run.finish().stdout, b"served");
}

#[test]
fn root_serves_first_and_then_the_broker_is_reached() {
    with_own_run(|| {
        let roots = Roots::start();
        assert_eq!(mode(), 0o700);
        let broker = Broker::start(Path::new(PLACE), &[]);
        assert_eq!(mode(), 0o711);
        is_used(&broker);
        assert!(roots.is_found());
        roots.finish();
    });
}

#[test]
fn the_broker_is_first_and_root_serves_then() {
    with_own_run(|| {
        let broker = Broker::start(Path::new(PLACE), &[]);
        let roots = Roots::start();
        is_used(&broker);
        assert_eq!(mode(), 0o711);
        roots.finish();
    });
}

/// As the unit of earlier packages had it made.
#[test]
fn a_directory_that_can_be_listed_is_used_and_closed() {
    with_own_run(|| {
        fs::create_dir(PLACE).unwrap();
        fs::set_permissions(PLACE, fs::Permissions::from_mode(0o755)).unwrap();
        let socket = Path::new(PLACE).join("broker.sock");
        let broker = Broker::start_with(tollgate_broker::listener(&socket).unwrap(), &socket);
        let roots = Roots::start();
        assert_eq!(mode(), 0o711);
        is_used(&broker);
        roots.finish();
    });
}

/// A directory of root at `$XDG_RUNTIME_DIR/tollgate` would be none for the user's own sockets.
#[test]
fn a_directory_that_is_missing_elsewhere_is_not_made() {
    with_own_run(|| {
        let home = Home::new();
        let directory = home.at("run/tollgate");
        let mut command = tollgate();
        command.arg("broker").arg("--socket").arg(directory.join("broker.sock"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("No such file or directory"), "{said}");
        assert!(said.contains(directory.to_str().unwrap()) && !directory.exists(), "{said}");
    });
}

/// Who makes the broker's place with the unit has it entered by all.
#[test]
fn the_unit_has_users_enter_the_directory() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/system");
    let unit = fs::read_to_string(unit.join("tollgate-broker.socket")).unwrap();
    let values = |key: &str| {
        let values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(values("ListenSequentialPacket"), [format!("{PLACE}/broker.sock")]);
    assert_eq!(values("DirectoryMode"), ["0711"]);
    assert_eq!(values("ExecStartPre"), [format!("-/bin/chmod 0711 {PLACE}")]);
}
