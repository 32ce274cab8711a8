//! What a user's kernel keeps of files, and how their changes are reported without a mark on the file
//! system.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::{Broker, Home, Run, count, until, with_mount_helper};

/// Longer than attributes are kept that nothing reports a change of.
const PAST_TIMEOUT: Duration = Duration::from_millis(1300);
const PATIENCE: Duration = Duration::from_secs(60);

/// A view of the user's directory, mounted with `broker` and `options`.
fn mounted<'a>(home: &'a Home, broker: &Broker, options: &[&str]) -> Run<'a> {
    fs::create_dir(home.at("mnt")).unwrap();
    chown(home.at("mnt"), Some(crate::harness::USER), Some(crate::harness::USER)).unwrap();
    let socket = broker.socket.to_str().unwrap();
    let run =
        home.mount(&[&["--broker", socket, "--small-files", "passthrough"], options].concat());
    let report = run.report(|report| report["view"]["watch"]["on"] == true);
    assert_eq!(report["view"]["watch"]["files"], true, "{report}");
    run
}

/// What the user is told of `sub/file`: its mode and number of names.
fn told(home: &Home) -> String {
    let mut stat = home.as_user("stat");
    let output = stat.args(["-c", "%a %h"]).arg(home.at("mnt/sub/file")).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The user lists everything, twice.
fn list(home: &Home) {
    for _ in 0..2 {
        let output = home.as_user("ls").arg("-lR").arg(home.at("mnt")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Requests for attributes that looking at the file makes when nothing is asked for in time.
fn asked(home: &Home, run: &Run<'_>) -> u64 {
    told(home);
    let before = count(&run.report(|_| true), "getattr");
    std::thread::sleep(PAST_TIMEOUT);
    told(home);
    count(&run.report(|_| true), "getattr") - before
}

/// Inodes of which the server has changes reported.
fn marks(run: &Run<'_>) -> Vec<u64> {
    let of = |text: String| {
        let marks =
            text.lines().filter_map(|line| line.strip_prefix("fanotify ino:")?.split(' ').next());
        marks.map(|ino| u64::from_str_radix(ino, 16).unwrap()).collect::<Vec<_>>()
    };
    let all = fs::read_dir(format!("/proc/{}/fdinfo", run.pid())).unwrap();
    all.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok()).flat_map(of).collect()
}

#[test]
fn attributes_of_a_users_files_are_kept() {
    with_mount_helper(|| {
        let home = Home::new();
        home.write("sub/file", b"text", 0o644);
        let broker = Broker::start(home.at("").as_path(), &[]);
        let run = mounted(&home, &broker, &[]);
        list(&home);
        let start = Instant::now();
        while asked(&home, &run) > 0 {
            assert!(start.elapsed() < PATIENCE, "attributes are asked for again in each round");
        }
    });
}

/// With a timeout of an hour nothing but a report shows it.
#[test]
fn a_change_by_a_name_elsewhere_is_reported_to_a_user() {
    with_mount_helper(|| {
        let home = Home::new();
        home.write("sub/file", b"text", 0o644);
        let broker = Broker::start(home.at("").as_path(), &[]);
        let _run = mounted(&home, &broker, &["--attr-timeout", "3600"]);
        list(&home);
        assert_eq!(told(&home), "644 1\n");
        fs::hard_link(home.below("sub/file"), home.at("elsewhere")).unwrap();
        until("the second name shows", || told(&home) == "644 2\n");
    });
}

/// The file is changed where nobody watches, by a name that it got only after it was listed.
#[test]
fn a_file_that_was_moved_away_changes_for_who_has_it_open() {
    with_mount_helper(|| {
        let home = Home::new();
        home.write("sub/file", b"text", 0o644);
        let broker = Broker::start(home.at("").as_path(), &[]);
        let _run = mounted(&home, &broker, &["--attr-timeout", "3600"]);
        list(&home);
        fs::rename(home.below("sub/file"), home.at("moved")).unwrap();
        until("it is not there", || told(&home).is_empty());
        fs::set_permissions(home.at("moved"), PermissionsExt::from_mode(0o600)).unwrap();
        fs::rename(home.at("moved"), home.below("sub/file")).unwrap();
        until("it is back as it is now", || told(&home) == "600 1\n");
    });
}

/// The kernel compares its pages by the attributes of what it does not read by itself.
#[test]
fn attributes_of_a_file_that_tollgate_serves_expire() {
    with_mount_helper(|| {
        let home = Home::new();
        home.write("sub/file", b"text", 0o644);
        chown(home.below("sub/file"), Some(0), Some(0)).unwrap();
        let broker = Broker::start(home.at("").as_path(), &[]);
        let run = mounted(&home, &broker, &[]);
        list(&home);
        let mut open = home.as_user("sh");
        let script = format!("read go <{}; read go", home.at("mnt/sub/file").display());
        let mut open = open.args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        run.report(|report| count(report, "open_only_read") >= 1);
        assert!(asked(&home, &run) > 0);
        drop(open.stdin.take());
        open.wait().unwrap();
    });
}

/// A mark holds its inode, but not what was deleted.
#[test]
fn marks_of_a_users_files_go_with_the_files() {
    with_mount_helper(|| {
        let home = Home::new();
        for name in ["sub/file", "sub/inside", "sub/outside"] {
            home.write(name, b"text", 0o644);
        }
        let inode = |name: &str| fs::metadata(home.below(name)).unwrap().ino();
        let all = ["sub/file", "sub/inside", "sub/outside"].map(inode);
        let broker = Broker::start(home.at("").as_path(), &[]);
        let run = mounted(&home, &broker, &[]);
        list(&home);
        let marked = |inode: &u64| marks(&run).contains(inode);
        assert!(all.iter().all(marked), "{all:?} {:?}", marks(&run));
        fs::remove_file(home.below("sub/outside")).unwrap();
        let mut remove = home.as_user("rm");
        assert!(remove.arg("-f").arg(home.at("mnt/sub/inside")).status().unwrap().success());
        until("marks of both are gone", || !marked(&all[1]) && !marked(&all[2]));
        assert!(marked(&all[0]));
    });
}
