//! As whom the kernel reads and writes what a broker registered, and what else must not change.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Broker, Home, USER, count, until, with_mount_helper, with_open_device};

fn options(broker: &Broker) -> [&str; 4] {
    ["--broker", broker.socket.to_str().unwrap(), "--small-files", "passthrough"]
}

#[test]
fn a_write_takes_set_id_bits_away() {
    with_open_device(|| {
        let home = Home::new();
        home.write("tool", b"old\n", 0o6755);
        let broker = Broker::start(&home.at(""), &[]);
        let run = home.start(&options(&broker), "echo new >>tool; cat");
        let report = run.report(|report| count(report, "open_passthrough") >= 1);
        assert_eq!(count(&report, "write"), 0, "{report}");
        assert!(run.finish().status.success());
        assert_eq!(fs::read(home.below("tool")).unwrap(), b"old\nnew\n");
        assert_eq!(fs::metadata(home.below("tool")).unwrap().mode() & 0o7777, 0o755);
    });
}

#[test]
fn blocks_that_are_reserved_for_root_stay_so() {
    with_open_device(|| {
        let home = Home::new();
        let image = home.at("image");
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let run = |program: &str, words: &[&str]| {
            let done = Command::new(program).args(words).stdout(Stdio::null()).status();
            done.is_ok_and(|status| status.success())
        };
        let (image, lower) = (image.to_str().unwrap().to_owned(), home.at("lower"));
        let lower = lower.to_str().unwrap();
        let made = run("mkfs.ext4", &["-q", "-m", "50", "-E", "lazy_itable_init=0", &image]);
        if !made || !run("mount", &["-o", "loop", &image, lower]) {
            return println!("skipped: no ext4 can be made and mounted");
        }
        chown(lower, Some(USER), Some(USER)).unwrap();
        let broker = Broker::start(&home.at(""), &[]);
        let script = "dd if=/dev/zero of=big bs=64k; cat";
        let view = home.start(&options(&broker), script);
        let report = view.report(|report| count(report, "open_passthrough") >= 1);
        assert_eq!(count(&report, "open_fallback"), 0, "{report}");
        let output = view.finish();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let left = rustix::fs::statvfs(lower).unwrap();
        let _ = run("umount", &["-l", lower]);
        assert!(said.contains("No space left"), "{said}");
        assert!(left.f_bavail * 20 < left.f_blocks, "{} left", left.f_bavail);
        assert!(left.f_bfree * 3 > left.f_blocks, "{} of {}", left.f_bfree, left.f_blocks);
    });
}

#[test]
fn a_registered_file_can_be_executed_meanwhile() {
    with_open_device(|| {
        let home = Home::new();
        home.write("tool", &fs::read("/bin/true").unwrap(), 0o755);
        let broker = Broker::start(&home.at(""), &[]);
        let run = home.start(&options(&broker), "exec 3<tool; ./tool && echo ran; cat");
        run.report(|report| count(report, "open_passthrough") >= 2);
        assert!(Command::new(home.below("tool")).status().unwrap().success());
        assert_eq!(run.finish().stdout, b"ran\n");
    });
}

#[test]
fn a_server_that_is_killed_leaves_nothing() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", b"a", 0o644);
        let broker = Broker::start(&home.at(""), &[]);
        let mut run = home.start(&options(&broker), "exec 3<a; cat");
        run.report(|report| count(report, "open_passthrough") >= 1);
        assert_eq!(broker.children().len(), 1);
        kill_process(Pid::from_raw(run.pid()).unwrap(), Signal::KILL).unwrap();
        until("the broker lets go", || broker.children().is_empty());
        until("the mount ends", || !run.is_running());
    });
}

#[test]
fn a_user_who_is_not_in_the_group_is_told_so() {
    with_open_device(|| {
        let home = Home::new();
        home.write("a", b"served", 0o644);
        let broker = Broker::start(&home.at(""), &["--user-group", "daemon"]);
        let output = home.start(&options(&broker), "cat a").finish();
        assert_eq!(output.stdout, b"served");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("this user is not in the group"), "{said}");
    });
}

/// By fusermount3, outside of every user namespace of the user's own.
#[test]
fn a_mount_by_the_helper_has_passthrough_too() {
    with_mount_helper(|| {
        let home = Home::new();
        home.write("a", b"through the helper", 0o644);
        fs::create_dir(home.at("mnt")).unwrap();
        chown(home.at("mnt"), Some(USER), Some(USER)).unwrap();
        let broker = Broker::start(&home.at(""), &[]);
        let view = home.mount(&options(&broker));
        let read = home.as_user("cat").arg(home.at("mnt/a")).output().unwrap();
        assert_eq!(read.stdout, b"through the helper", "{read:?}");
        let report = view.report(|report| count(report, "open_passthrough") >= 1);
        assert_eq!(count(&report, "read"), 0, "{report}");
        assert!(
            home.as_user("fusermount3").arg("-u").arg(home.at("mnt")).status().unwrap().success()
        );
        assert!(view.finish().status.success());
    });
}
