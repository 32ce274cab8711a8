//! The group of those who may keep CPUs awake: empty, and given one device and nothing else.

use std::process::Command;

use crate::deb::PACKAGE;

/// What counts of an installed file: neither comments nor empty lines.
fn lines(path: &str) -> Vec<String> {
    let text = std::fs::read_to_string(PACKAGE.root.join(path)).unwrap();
    let counts = |line: &&str| !line.is_empty() && !line.starts_with('#');
    text.lines().filter(counts).map(str::to_owned).collect()
}

#[test]
fn the_rule_gives_one_device_to_the_group_and_to_nobody_else() {
    let rules = lines("usr/lib/udev/rules.d/70-tollgate.rules");
    assert_eq!(rules, [r#"KERNEL=="cpu_dma_latency", GROUP="tollgate", MODE="0660""#]);
}

#[test]
fn the_group_is_made_without_a_user_or_a_member() {
    const CONF: &str = "usr/lib/sysusers.d/tollgate.conf";
    assert_eq!(lines(CONF), ["g tollgate -"]);
    if Command::new("systemd-sysusers").arg("--version").output().is_err() {
        eprintln!("skipped: there is no systemd-sysusers");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    std::fs::create_dir_all(at("etc")).unwrap();
    std::fs::create_dir_all(at(CONF).parent().unwrap()).unwrap();
    std::fs::copy(PACKAGE.root.join(CONF), at(CONF)).unwrap();
    // Twice: an installation that is repeated changes nothing.
    for _ in 0..2 {
        let mut make = Command::new("systemd-sysusers");
        let output = make.arg("--root").arg(root.path()).arg("tollgate.conf").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let groups = std::fs::read_to_string(at("etc/group")).unwrap();
    let fields: Vec<_> = groups.trim_end().split(':').collect();
    let [name, _, id, members] = fields[..] else { panic!("{groups}") };
    assert_eq!((name, members), ("tollgate", ""), "{groups}");
    // A system group: no person's number.
    assert!(id.parse::<u32>().unwrap() < 1000, "{groups}");
    let users = std::fs::read_to_string(at("etc/passwd")).unwrap_or_default();
    assert_eq!(users, "", "a group alone was asked for");
}

/// Nobody is added to it by an installation: no script of the package is run then.
#[test]
fn the_package_has_no_scripts() {
    let script = "ar p \"$1\" control.tar.gz | tar tz";
    let list = Command::new("sh").args(["-c", script, "sh"]).arg(&PACKAGE.deb).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&list.stdout), "control\n");
}
