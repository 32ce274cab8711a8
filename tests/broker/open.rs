//! What an open file of a user can be asked for, whatever its mode has become.

use std::fs;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::harness::{Broker, Home, count, until, with_open_device};

/// Asks an open file for everything that the kernel does not do itself, and prints what fails.
fn ask(what: &str, file: &File) {
    let fd = file.as_fd();
    let told = |call: &str, result: Result<(), Errno>| match result {
        Ok(()) => {}
        Err(errno) => println!("{what}: {call}: {errno}"),
    };
    told("ftruncate", rustix::fs::ftruncate(fd, 100_000));
    told("fallocate", rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, 200_000));
    told("fsync", rustix::fs::fsync(fd));
    told("fdatasync", rustix::fs::fdatasync(fd));
    told("SEEK_DATA", rustix::fs::seek(fd, SeekFrom::Data(0)).map(drop));
    told("SEEK_HOLE", rustix::fs::seek(fd, SeekFrom::Hole(0)).map(drop));
    told("ftruncate", rustix::fs::ftruncate(fd, 12));
    let len = file.metadata().unwrap().len();
    println!("{what}: {len} bytes");
}

fn next_line() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Not a test: what the others run as CMD.
#[test]
#[ignore = "a program for the other tests"]
fn program() {
    // The test harness may have begun a line.
    println!();
    let to_write = || File::options().read(true).write(true).clone();
    let made = |name: &str, mode: u32| {
        let mut file = to_write().create_new(true).mode(mode).open(name).unwrap();
        file.write_all(b"made here").unwrap();
        file
    };
    ask("made 444", &made("made-444", 0o444));
    ask("made 0", &made("made-0", 0o000));
    let only_written =
        File::options().write(true).create_new(true).mode(0o000).open("only-written");
    let only_written = only_written.unwrap();
    rustix::fs::ftruncate(&only_written, 5).unwrap();
    rustix::fs::fsync(&only_written).unwrap();
    let changed = made("changed", 0o644);
    changed.set_permissions(fs::Permissions::from_mode(0o000)).unwrap();
    ask("changed", &changed);
    drop(made("changed-later", 0o644));
    let changed = to_write().open("changed-later").unwrap();
    changed.set_permissions(fs::Permissions::from_mode(0o444)).unwrap();
    ask("changed at once", &changed);
    // Registered by the first of these opens, which is over.
    drop(to_write().open("again").unwrap());
    let again = [to_write().open("again").unwrap(), to_write().open("again").unwrap()];
    fs::write("ready", "").unwrap();
    next_line();
    for file in again {
        ask("again", &file);
    }
    fs::write("closed", "").unwrap();
    next_line();
}

fn told_by_program(options: &[&str]) -> (String, bool) {
    let home = Home::new();
    home.write("again", &[7; 300_000], 0o755);
    // By another process, as the program itself.
    let mut copy = Command::new("cp");
    copy.arg(std::env::current_exe().unwrap()).arg(home.at("program"));
    assert!(copy.status().unwrap().success());
    let broker = Broker::start(&home.at(""), &[]);
    let mut all = vec!["--small-files", "passthrough", "--broker"];
    all.push(broker.socket.to_str().unwrap());
    all.extend(options);
    let arguments = "--ignored --nocapture --exact open::program";
    let script = format!("{} {arguments}", home.at("program").display());
    let mut run = home.start(&all, &script);
    until("it is ready", || home.below("ready").exists());
    let report = run.report(|_| true);
    until("the server keeps a descriptor of it", || {
        let directory = format!("/proc/{}/fd", report["pid_here"]);
        let names = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
        let is_it = |fd: &PathBuf| fs::read_link(fd).is_ok_and(|to| to == home.below("again"));
        // The owner may do of a descriptor what it is open for.
        names.filter(is_it).any(|fd| {
            fs::symlink_metadata(fd).is_ok_and(|link| link.permissions().mode() & 0o600 == 0o600)
        })
    });
    fs::set_permissions(home.below("again"), fs::Permissions::from_mode(0o000)).unwrap();
    run.say("go");
    until("it has closed all", || home.below("closed").exists());
    // What was kept for its sake is given up, and the file can be executed again.
    fs::write(home.below("again"), "#!/bin/true\n").unwrap();
    fs::set_permissions(home.below("again"), fs::Permissions::from_mode(0o755)).unwrap();
    until("it can be executed", || Command::new(home.below("again")).status().is_ok());
    run.say("go");
    let output = run.finish();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let of_program =
        told.lines().filter(|line| line.contains(": ")).map(|line| format!("{line}\n"));
    (of_program.collect(), count(&report, "open_passthrough") >= 7)
}

#[test]
fn an_open_file_is_truncated_and_synced_whatever_its_mode() {
    with_open_device(|| {
        let (told, passes) = told_by_program(&[]);
        let expected = ["made 444", "made 0", "changed", "changed at once", "again", "again"];
        let expected: String = expected.iter().map(|what| format!("{what}: 12 bytes\n")).collect();
        let told = told.lines().filter(|line| !line.starts_with("test")).collect::<Vec<_>>();
        assert_eq!(told.join("\n") + "\n", expected);
        assert!(passes, "it was all served by tollgate");
    });
}

/// As `cp` and `tar` make files that are read-only from the start.
#[test]
fn sparse_files_without_permission_to_write_are_copied_and_unpacked() {
    with_open_device(|| {
        let home = Home::new();
        home.write("sparse", b"", 0o644);
        File::options().write(true).open(home.below("sparse")).unwrap().set_len(3 << 20).unwrap();
        fs::set_permissions(home.below("sparse"), fs::Permissions::from_mode(0o444)).unwrap();
        let broker = Broker::start(&home.at(""), &[]);
        let options = ["--broker", broker.socket.to_str().unwrap()];
        let script = "set -e; cp -p sparse copy; tar cSf archive copy; rm -f copy; tar xSf archive
            umask 333; dd if=/dev/null of=made bs=1 seek=70000 count=0 conv=fsync 2>/dev/null
            stat -c '%a %s' copy made";
        let output = home.start(&options, script).finish();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "444 3145728\n444 70000\n",
            "{output:?}"
        );
    });
}
