//! How much space a caller may have: that of the lower file system counts for the caller, not for the
//! server.
#![expect(unsafe_code, reason = "quotactl_fd has no safe wrapper")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::{View, as_user, can_mount};

const USER: u32 = 4321;
const POLICIES: [&str; 2] = ["", "default = \"userspace\""];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Root may fill a file system to the last block; nobody else may, through root's server either.
#[test]
fn reserved_blocks_are_not_for_every_caller() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    set_mode(base.path(), 0o755);
    let (image, disk) = (base.path().join("image"), base.path().join("disk"));
    fs::create_dir(&disk).unwrap();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh"]).arg(&image).arg(&disk);
        command.output().is_ok_and(|output| output.status.success())
    };
    let made = shell("truncate -s 16M $1; mke2fs -q -F -t ext4 -m 40 $1; mount -o loop $1 $2");
    if !made {
        println!("skipped: no ext4 image can be mounted");
        return;
    }
    set_mode(&disk, 0o777);
    let failures = more_than_bare(&disk, u64::MAX);
    assert!(shell("umount $2"), "the image stays mounted");
    assert!(failures.is_empty(), "{failures:?}");
}

/// Bytes that can be written to a new file, which is removed.
fn filled(path: &Path) -> u64 {
    let mut written = 0_u64;
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    while file.write_all(&[1; 65536]).is_ok() {
        written += 65536;
    }
    drop(file);
    fs::remove_file(path).unwrap();
    written
}

/// Views of `disk` in which a user writes more than on the bare directory, where that may not be more
/// than `most`.
fn more_than_bare(disk: &Path, most: u64) -> Vec<String> {
    let mut failures = Vec::new();
    let bare = as_user(USER, USER, || filled(&disk.join("f")));
    if bare > most {
        failures.push(format!("{bare} bytes, bare"));
    }
    for policy in POLICIES {
        let view = View::of(disk, policy, &[]);
        set_mode(view.root().parent().unwrap(), 0o755);
        let seen = as_user(USER, USER, || filled(&view.at("f")));
        if seen > bare + (bare / 10) {
            failures.push(format!("{seen} bytes of {bare}, {policy}"));
        }
    }
    failures
}

/// What a user may have on a file system counts in a view of it, too.
const QUOTA: u64 = 4 << 20;

/// A file system of its own at `disk`, far larger than the user's quota there; `None` where this kernel
/// has no quota of users.
fn with_quota(disk: &Path, image: &Path) -> Option<()> {
    let is_done = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    let mut tmpfs = Command::new("mount");
    let tmpfs = is_done(tmpfs.args(["-t", "tmpfs", "-o", "usrquota,size=64M", "none"]).arg(disk));
    if !tmpfs {
        fs::File::create(image).unwrap().set_len(64 << 20).unwrap();
        let options = ["-q", "-F", "-O", "quota", "-E", "quotatype=usrquota"];
        let made = is_done(Command::new("mkfs.ext4").args(options).arg(image));
        let mut mount = Command::new("mount");
        let mount = mount.args(["-o", "loop,usrquota"]).arg(image).arg(disk);
        (made && is_done(mount)).then_some(())?;
    }
    set_mode(disk, 0o777);
    Some(())
}

/// Sets the quota of [`USER`] on the file system at `disk`.
fn set_quota(disk: &Path) -> std::io::Result<()> {
    const Q_SETQUOTA: u32 = 0x0080_0008 << 8;
    /// `QIF_BLIMITS`
    const LIMITS: u32 = 1;
    let at = fs::File::open(disk)?;
    let limits = [QUOTA >> 10, QUOTA >> 10, 0, 0, 0, 0, 0, 0, u64::from(LIMITS)];
    // SAFETY: the call reads a `struct if_dqblk`: eight numbers of 64 bits (the first two are the
    // limits, in KiB) and one of 32, which begins the last of these on a little-endian machine.
    let set = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, at.as_raw_fd(), Q_SETQUOTA, USER, limits.as_ptr())
    };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn quota_counts_for_the_caller() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    set_mode(base.path(), 0o755);
    let disk = base.path().join("disk");
    fs::create_dir(&disk).unwrap();
    if with_quota(&disk, &base.path().join("image")).is_none() {
        println!("skipped: this kernel has no quota of users on tmpfs or ext4");
        return;
    }
    let failures = set_quota(&disk).map(|()| more_than_bare(&disk, QUOTA));
    rustix::mount::unmount(&disk, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(failures.unwrap(), [""; 0]);
}
