//! The systemd units: as systemd reads them, and their commands as they are.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::deb::PACKAGE;
use crate::helper::{Place, can_mount};

fn unit(manager: &str) -> String {
    let path = format!("usr/lib/systemd/{manager}/tollgate@.service");
    std::fs::read_to_string(PACKAGE.root.join(path)).unwrap()
}

/// The values of a setting.
fn values<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    lines.filter(|(found, _)| *found == name).map(|(_, value)| value).collect()
}

#[test]
fn systemd_knows_every_setting() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    }
    for manager in ["system", "user"] {
        let file = PACKAGE.root.join(format!("usr/lib/systemd/{manager}/tollgate@.service"));
        let mut analyze = Command::new("systemd-analyze");
        analyze.args([&format!("--{manager}"), "verify", "--man=no"]).arg(&file);
        let output = analyze.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The program is not installed on this machine.
        let faults = said.lines().filter(|line| !line.contains("/usr/bin/tollgate is not exec"));
        let ours: Vec<_> = faults.filter(|line| line.contains("tollgate")).collect();
        assert!(ours.is_empty(), "{manager}: {ours:?}");
    }
}

#[test]
fn units_name_files_that_the_package_installs() {
    for manager in ["system", "user"] {
        let unit = unit(manager);
        for name in ["ExecStart", "ExecReload"] {
            let line = values(&unit, name)[0];
            let program = line.split(' ').next().unwrap().trim_start_matches('/');
            assert!(PACKAGE.root.join(program).is_file(), "{manager}: {line}");
        }
        assert_eq!(values(&unit, "Documentation"), ["man:tollgate-mount(1)"]);
        assert!(PACKAGE.root.join("usr/share/man/man1/tollgate-mount.1.gz").is_file());
    }
}

/// What systemd would do, by hand: variables and specifiers, commands in order, the ready message; and again
/// after the server was killed.
#[test]
fn the_commands_of_the_system_unit_start_reload_and_end_a_view() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (dir, mnt) = (place.shown("dir"), place.shown("new/mnt"));
    std::fs::copy(place.path("policy.toml"), place.path("web.toml")).unwrap();
    let unit = unit("system");
    let command = |name: &str| {
        let line = values(&unit, name)[0].trim_start_matches('-');
        let line = line.replace("/etc/tollgate/%i", &place.shown("web"));
        let line = line.replace("${DIR}", &dir).replace("${MNT}", &mnt);
        let line = line.replace("$OPTIONS", "--read-only --attr-timeout 2");
        let program = PACKAGE.root.join("usr/bin/tollgate");
        let mut words = line.split(' ').map(|word| match word {
            "/usr/bin/tollgate" => program.to_str().unwrap().to_owned(),
            word => word.to_owned(),
        });
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        command
    };
    let prepare = || {
        // What fails is no matter where a dash precedes it.
        let may_fail = values(&unit, "ExecStartPre")[0].starts_with('-');
        let prepared = command("ExecStartPre").stderr(Stdio::null()).status().unwrap();
        assert!(prepared.success() || may_fail, "{prepared}");
    };
    let manager = std::os::unix::net::UnixDatagram::bind(place.path("notify")).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let start = || {
        prepare();
        let mut start = command("ExecStart");
        start.env("NOTIFY_SOCKET", place.path("notify")).stderr(Stdio::null());
        let server = start.spawn().unwrap();
        let mut message = [0; 100];
        let length = manager.recv(&mut message).unwrap();
        let message = String::from_utf8_lossy(&message[..length]).into_owned();
        assert_eq!(message, format!("READY=1\nMAINPID={}", server.id()));
        server
    };
    let mnt = Path::new(&mnt);
    let mut killed = start();
    killed.kill().unwrap();
    killed.wait().unwrap();
    // As mkdir asks: the kernel answers that until what it has of the directory is too old.
    let begun = std::time::Instant::now();
    while rustix::fs::stat(mnt).is_ok() {
        assert!(begun.elapsed().as_secs() < 20, "the view is not dead");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut server = start();
    assert_eq!(std::fs::read_to_string(mnt.join("a")).unwrap(), "plain\n");
    assert!(!mnt.join(".env").exists());
    std::fs::write(place.path("web.toml"), "wrong").unwrap();
    assert_eq!(command("ExecReload").stderr(Stdio::null()).status().unwrap().code(), Some(1));
    std::fs::copy(place.path("policy.toml"), place.path("web.toml")).unwrap();
    assert!(command("ExecReload").stdout(Stdio::null()).status().unwrap().success());
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(std::fs::read_dir(mnt).unwrap().next().is_none());
}
