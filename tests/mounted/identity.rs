//! What the server does, it does with the caller's identity: the lower file system judges the
//! caller, not root.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, XattrFlags};

use crate::harness::{View, as_user, can_mount};
use crate::mapped::Map;

const USER: u32 = 4321;
const OTHER: u32 = 4322;
const POLICIES: [&str; 2] = ["", "default = \"userspace\""];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A view that everybody may reach.
fn open_view(policy: &str, options: &[&str]) -> (tempfile::TempDir, View) {
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o777);
    let view = View::of(dir.path(), policy, options);
    set_mode(view.root().parent().unwrap(), 0o755);
    (dir, view)
}

/// Every way to change a file's data.
const CHANGES: [&str; 7] =
    ["write", "direct", "truncate", "ftruncate", "fallocate", "copy", "open"];

fn change(how: &str, path: &Path) {
    let writer = || OpenOptions::new().write(true).open(path).unwrap();
    match how {
        "write" => writer().write_all(b"changed").unwrap(),
        "direct" => {
            let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path);
            let block = vec![7_u8; 8192 + 4096];
            let start = block.as_ptr().align_offset(4096);
            file.unwrap().write_all_at(&block[start..start + 4096], 0).unwrap();
        }
        "truncate" => {
            let name = path.to_str().unwrap();
            assert!(Command::new("truncate").args(["-s", "3", name]).status().unwrap().success());
        }
        "ftruncate" => writer().set_len(5).unwrap(),
        "fallocate" => rustix::fs::fallocate(writer(), FallocateFlags::empty(), 0, 8192).unwrap(),
        "copy" => {
            let source = path.with_extension("source");
            fs::write(&source, vec![3_u8; 8192]).unwrap();
            let from = File::open(&source).unwrap();
            let to = writer();
            rustix::fs::copy_file_range(&from, None, &to, None, 8192).unwrap();
            drop(from);
            fs::remove_file(source).unwrap();
        }
        _ => drop(OpenOptions::new().write(true).truncate(true).open(path).unwrap()),
    }
}

/// The mode of a file of root and `group` after `how` by a user who is in no group that counts.
fn mode_after(dir: &Path, how: &str, before: u32, group: u32) -> u32 {
    let path = dir.join("f");
    let _ = fs::remove_file(&path);
    fs::write(&path, vec![1_u8; 4096]).unwrap();
    chown(&path, None, Some(group)).unwrap();
    set_mode(&path, before);
    as_user(USER, USER, || change(how, &path));
    mode(&path)
}

#[test]
fn set_id_bits_go_with_a_change_by_a_caller_without_privilege() {
    if !can_mount() {
        return;
    }
    let bare = tempfile::tempdir_in(".").unwrap();
    set_mode(bare.path(), 0o777);
    for policy in POLICIES {
        let (_dir, view) = open_view(policy, &[]);
        for group in [0, OTHER] {
            for before in [0o6777, 0o2766, 0o2666, 0o4766, 0o2777] {
                for how in CHANGES {
                    let expected = mode_after(bare.path(), how, before, group);
                    let got = mode_after(view.root(), how, before, group);
                    let case = format!("{how} of {before:o}, group {group}, {policy}");
                    assert_eq!(expected & 0o6000, 0, "{case}");
                    assert_eq!(format!("{got:o}"), format!("{expected:o}"), "{case}");
                }
            }
        }
    }
}

/// The kernel's own check goes by attributes that it may have cached. The lower inode is what counts.
#[test]
fn a_former_owner_changes_nothing() {
    if !can_mount() {
        return;
    }
    let (dir, view) = open_view("", &["--attr-timeout", "60", "--watch", "off"]);
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
    };
    for attempt in ["chmod", "chgrp", "utimes", "truncate", "setxattr", "removexattr"] {
        let (path, below) = (view.at(attempt), dir.path().join(attempt));
        fs::write(&below, "text").unwrap();
        rustix::fs::setxattr(&below, c"user.a", b"1", XattrFlags::empty()).unwrap();
        chown(&below, Some(USER), Some(USER)).unwrap();
        set_mode(&below, 0o700);
        as_user(USER, USER, || fs::metadata(&path).unwrap());
        chown(&below, Some(0), Some(0)).unwrap();
        set_mode(&below, 0o755);
        let result = as_user(USER, USER, || -> std::io::Result<()> {
            match attempt {
                "chmod" => fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)),
                "chgrp" => chown(&path, None, Some(USER)),
                "utimes" => rustix::fs::utimensat(
                    rustix::fs::CWD,
                    &path,
                    &times,
                    rustix::fs::AtFlags::empty(),
                )
                .map_err(Into::into),
                "truncate" => rustix::fs::open(
                    &path,
                    rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC,
                    rustix::fs::Mode::empty(),
                )
                .map(drop)
                .map_err(Into::into),
                "setxattr" => rustix::fs::setxattr(&path, c"user.b", b"2", XattrFlags::empty())
                    .map_err(Into::into),
                _ => rustix::fs::removexattr(&path, c"user.a").map_err(Into::into),
            }
        });
        let meta = fs::metadata(&below).unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o755, "{attempt}");
        assert_eq!((meta.uid(), meta.gid(), meta.len()), (0, 0, 4), "{attempt}");
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied, "{attempt}");
        let mut value = [0; 8];
        assert!(rustix::fs::getxattr(&below, c"user.a", &mut value).is_ok());
        assert!(rustix::fs::getxattr(&below, c"user.b", &mut value).is_err());
    }
}

#[test]
fn names_are_changed_as_the_caller_may_now() {
    if !can_mount() {
        return;
    }
    let (dir, view) = open_view("", &["--attr-timeout", "60", "--watch", "off"]);
    for attempt in ["unlink", "rename", "link", "rmdir"] {
        let (below, place) = (dir.path().join(attempt), view.at(attempt));
        fs::create_dir(&below).unwrap();
        fs::write(below.join("f"), "text").unwrap();
        fs::create_dir(below.join("d")).unwrap();
        set_mode(&below, 0o777);
        set_mode(&below.join("f"), 0o666);
        as_user(USER, USER, || {
            fs::metadata(place.join("f")).unwrap();
            fs::metadata(place.join("d")).unwrap();
        });
        set_mode(&below, 0o755);
        let result = as_user(USER, USER, || match attempt {
            "unlink" => fs::remove_file(place.join("f")),
            "rename" => fs::rename(place.join("f"), place.join("g")),
            "link" => fs::hard_link(place.join("f"), place.join("g")),
            _ => fs::remove_dir(place.join("d")),
        });
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied, "{attempt}");
        assert!(below.join("f").exists() && below.join("d").exists(), "{attempt}");
        assert!(!below.join("g").exists(), "{attempt}");
    }
}

/// What groups give, they give in the view too: the kernel does not tell them to the server.
#[test]
fn supplementary_groups_count() {
    if !can_mount() {
        return;
    }
    let (dir, view) = open_view("", &[]);
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    chown(&shared, None, Some(OTHER)).unwrap();
    set_mode(&shared, 0o770);
    for name in ["a", "b", "own"] {
        fs::write(shared.join(name), "text").unwrap();
        chown(shared.join(name), (name == "own").then_some(USER), Some(OTHER)).unwrap();
        set_mode(&shared.join(name), 0o660);
    }
    let place = view.at("shared");
    let script = "set -e; cd \"$1\"; rm a; mv b c; ln own more; chmod 2770 own; truncate -s 1 c";
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "4321", "--regid", "4321", "--groups", "4322", "sh", "-c", script, "sh"]);
    let output = command.arg(&place).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.is_empty(), "{said}");
    assert_eq!(mode(&shared.join("own")), 0o2770);
    assert!(shared.join("c").exists() && !shared.join("a").exists());
}

#[test]
fn trusted_attributes_are_roots_alone() {
    if !can_mount() {
        return;
    }
    let (dir, view) = open_view("", &[]);
    let below = dir.path().join("f");
    fs::write(&below, "text").unwrap();
    rustix::fs::setxattr(&below, c"trusted.secret", b"1", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&below, c"user.open", b"1", XattrFlags::empty()).unwrap();
    chown(&below, Some(USER), Some(USER)).unwrap();
    let path = view.at("f");
    let names = || {
        let mut names = vec![0_u8; 1024];
        let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
        String::from_utf8_lossy(&names[..len]).into_owned()
    };
    assert!(names().contains("trusted.secret"));
    let (seen, read, written) = as_user(USER, USER, || {
        let mut value = [0_u8; 8];
        let read = rustix::fs::getxattr(&path, c"trusted.secret", &mut value);
        let written = rustix::fs::setxattr(&path, c"trusted.own", b"1", XattrFlags::empty());
        (names(), read, written)
    });
    assert!(seen.contains("user.open") && !seen.contains("trusted"), "{seen}");
    assert!(read.is_err() && written.is_err());
}

/// The server knows without asking that a file that was just made has none.
#[test]
fn capabilities_of_a_file_are_told_whoever_gave_them() {
    if !can_mount() {
        return;
    }
    // Version 2, CAP_NET_RAW permitted.
    let value = [0x0200_0000_u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
    let name = c"security.capability";
    for policy in POLICIES {
        let (dir, view) = open_view(policy, &[]);
        for (index, is_below) in [false, true].into_iter().enumerate() {
            let (path, below) =
                (view.at(&format!("f{index}")), dir.path().join(format!("f{index}")));
            let has = |path: &Path| rustix::fs::getxattr_query(path, name).is_ok();
            let mut file = File::create(&path).unwrap();
            assert!(!has(&path) && !has(&path));
            // Before Linux 6.13 the clock of change times stands still for so long.
            std::thread::sleep(std::time::Duration::from_millis(30));
            let giver = if is_below { &below } else { &path };
            rustix::fs::setxattr(giver, name, &value, XattrFlags::empty()).unwrap();
            assert!(has(&path), "{policy}: given below: {is_below}");
            file.write_all(b"text").unwrap();
            assert!(!has(&path) && !has(&below), "{policy}: gone with the first write");
        }
    }
}

#[test]
fn a_link_that_is_denied_to_a_caller_is_not_read_from_a_cache() {
    if !can_mount() {
        return;
    }
    let policy = format!(
        "[[rule]]\nname = 'links'\npath = '**/*'\nkind = 'symlink'\noperation = 'read'\nuid = {USER}\naction = 'deny'\n"
    );
    let (dir, view) = open_view(&policy, &[]);
    std::os::unix::fs::symlink("secret", dir.path().join("link")).unwrap();
    let path = view.at("link");
    for _ in 0..3 {
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("secret"));
        let denied = as_user(USER, USER, || fs::read_link(&path));
        assert_eq!(denied.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_file_that_is_written_through_a_mapping_has_new_times() {
    if !can_mount() {
        return;
    }
    let (dir, view) = open_view("", &["--attr-timeout", "60", "--watch", "off"]);
    for sync in ["msync", "munmap", "close"] {
        let below = dir.path().join(sync);
        fs::write(&below, vec![1_u8; 4096]).unwrap();
        let old = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
        rustix::fs::utimensat(rustix::fs::CWD, &below, &times, rustix::fs::AtFlags::empty())
            .unwrap();
        let path = view.at(sync);
        assert_eq!(fs::metadata(&path).unwrap().mtime(), 1_000_000_000);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let map = Map::new(file.as_fd(), 4096, true, true).unwrap();
        // The kernel asks for the attributes now, and may keep them.
        assert_eq!(fs::metadata(&path).unwrap().mtime(), 1_000_000_000);
        map.write(0, b"changed");
        let ctime = fs::metadata(&below).unwrap().ctime_nsec();
        match sync {
            "msync" => map.sync(),
            "munmap" => drop(map),
            _ => drop((map, file)),
        }
        let (seen, lower) = (fs::metadata(&path).unwrap(), fs::metadata(&below).unwrap());
        assert_ne!(seen.mtime(), 1_000_000_000, "{sync}");
        assert_eq!(
            (seen.mtime(), seen.mtime_nsec()),
            (lower.mtime(), lower.mtime_nsec()),
            "{sync}"
        );
        assert_eq!(seen.ctime_nsec(), lower.ctime_nsec(), "{sync} {ctime}");
    }
}
