//! What programs do with files that they have open and that others rename directly in DIR.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat, open};

use crate::harness::{View, can_mount};

/// What needs the lower file, by whatever name.
#[track_caller]
fn is_whole(file: &fs::File, below: &Path) {
    assert_eq!(file.metadata().unwrap().len(), 4);
    file.sync_all().unwrap();
    fallocate(file, FallocateFlags::empty(), 0, 8).unwrap();
    file.set_len(6).unwrap();
    assert_eq!(fs::read(below).unwrap(), b"text\0\0");
}

fn made(path: PathBuf) -> fs::File {
    let options = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = fs::File::from(open(path, options, Mode::RUSR | Mode::WUSR).unwrap());
    file.write_all(b"text").unwrap();
    file
}

#[test]
fn a_file_made_without_a_name_is_there_once_its_name_was_changed() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        let options = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(view.root(), options, Mode::RUSR | Mode::WUSR).unwrap();
        let mut file = fs::File::from(file);
        file.write_all(b"text").unwrap();
        let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, by_number, CWD, view.at("a"), AtFlags::SYMLINK_FOLLOW).unwrap();
        fs::rename(view.below("a"), view.below("b")).unwrap();
        is_whole(&file, &view.below("b"));
    }
}

#[test]
fn a_file_that_could_not_be_removed_is_there_once_its_name_was_changed() {
    if !can_mount() {
        return;
    }
    let view = View::new("");
    let file = made(view.at("a"));
    let below = view.below("a");
    let chattr = |what| Command::new("chattr").arg(what).arg(&below).status();
    if !chattr("+i").is_ok_and(|status| status.success()) {
        eprintln!("not tested: no immutable files here");
        return;
    }
    let removed = fs::remove_file(view.at("a")).map_err(|error| error.raw_os_error());
    assert!(chattr("-i").unwrap().success());
    assert_eq!(removed, Err(Some(libc::EPERM)));
    fs::rename(&below, view.below("b")).unwrap();
    is_whole(&file, &view.below("b"));
}
