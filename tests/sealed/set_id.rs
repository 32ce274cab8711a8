//! Set-id bits of sealed files go as those of others do.
#![expect(unsafe_code, reason = "the standard library has no truncate(2)")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::process::{Gid, Uid};

use crate::harness::{Place, can_mount};

const USER: u32 = 4321;

/// What a user does who may write the file.
type Change = fn(&Path);

const CHANGES: [(&str, Change); 5] = [
    ("fallocate", |path| {
        let file = File::options().write(true).open(path).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 0, 4096).unwrap();
    }),
    ("ftruncate", |path| File::options().write(true).open(path).unwrap().set_len(4096).unwrap()),
    ("truncate", |path| {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a string that ends with 0, and lives until the call returns.
        assert_eq!(unsafe { libc::truncate(path.as_ptr(), 4096) }, 0);
    }),
    ("open", |path| drop(File::options().write(true).truncate(true).open(path).unwrap())),
    ("write", |path| File::options().append(true).open(path).unwrap().write_all(b"x").unwrap()),
];

fn mode_after(path: &Path, (before, group): (u32, u32), change: Change) -> u32 {
    fs::write(path, [7; 8192]).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
    chown(path, Some(0), Some(group)).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(before)).unwrap();
    std::thread::scope(|scope| {
        let as_user = || {
            let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            change(path);
        };
        scope.spawn(as_user).join().unwrap();
    });
    File::open(path).unwrap().sync_all().unwrap();
    let mode = fs::metadata(path).unwrap().mode() & 0o7777;
    fs::remove_file(path).unwrap();
    mode
}

#[test]
fn set_id_bits_go_with_a_cut_by_a_caller_without_privilege() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let view = place.mount(&[]);
    for group in [0, USER] {
        for before in [0o4777, 0o6777, 0o2766] {
            for (name, change) in CHANGES {
                let of = (before, group);
                let bare = mode_after(&place.base.path().join("bare"), of, change);
                let got = mode_after(&view.at("vault/file"), of, change);
                assert_eq!(format!("{got:o}"), format!("{bare:o}"), "{name}, {before:o}, {group}");
                assert_eq!(bare & 0o4000, 0, "{name}, {before:o}");
            }
        }
    }
}
