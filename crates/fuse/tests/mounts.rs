//! Mounts that are silent, covered or gone, and options that cannot be: no call hangs, and none touches
//! another file system.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::clients::{client, ends_soon, more_requests, run_client};
use common::odd::within;
use common::{Lower, can_mount};
use rustix::mount::MountFlags;
use tollgate_fuse::*;

#[test]
fn client_process() {
    run_client();
}

/// Mounts a tmpfs; `false` where that is not allowed.
fn mount_tmpfs(at: &Path) -> bool {
    let mounted = rustix::mount::mount("none", at, "tmpfs", MountFlags::empty(), None);
    if let Err(error) = mounted {
        eprintln!("SKIPPED: no tmpfs can be mounted: {error}");
    }
    mounted.is_ok()
}

/// The types of what is mounted at `path`, from the bottom up.
fn kinds(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut kinds = Vec::new();
    for line in table.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        if Path::new(&fields[4].replace("\\040", " ")) == path {
            let kind = fields.iter().position(|&field| field == "-").unwrap() + 1;
            kinds.push(fields[kind].to_owned());
        }
    }
    kinds
}

/// A second mount is refused, a clean-up finds nothing to do, and neither waits.
fn is_left_alone(at: &Path) {
    let path = at.to_path_buf();
    let again = within(move || mount(&path, &MountOptions::default()).map(drop));
    assert!(matches!(again, Err(MountError::AlreadyMounted { .. })), "{again:?}");
    let path = at.to_path_buf();
    assert!(!within(move || clean_stale(&path)).unwrap());
    assert_eq!(kinds(at), ["fuse.tollgate"]);
}

#[test]
fn a_mount_whose_session_has_not_started_is_not_waited_for() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let (device, own) = mount(&at, &MountOptions::default()).unwrap();
    is_left_alone(&at);
    // By another name, too.
    let link = tempfile::tempdir().unwrap();
    let by_link = link.path().join("link");
    std::os::unix::fs::symlink(&at, &by_link).unwrap();
    let again = within(move || mount(&by_link, &MountOptions::default()).map(drop));
    assert!(matches!(again, Err(MountError::AlreadyMounted { .. })), "{again:?}");
    // What covers it does not ask it either.
    let path = at.clone();
    let above = within(move || {
        let above = Device::open().unwrap();
        mount_device(&above, &path, &MountOptions::default()).map(|()| above)
    });
    if above.is_ok() {
        assert_eq!(kinds(&at), ["fuse.tollgate"; 2]);
        unmount(&at, true).unwrap();
    }
    drop(device);
    // Its server is gone now.
    let path = at.clone();
    let again = within(move || mount(&path, &MountOptions::default()).map(drop));
    assert!(matches!(again, Err(MountError::Stale { .. })), "{again:?}");
    let path = at.clone();
    assert!(within(move || clean_stale(&path)).unwrap());
    assert_eq!(kinds(&at), [""; 0]);
    assert!(matches!(own.unmount(true), Err(MountError::NotMounted { .. })));
}

#[test]
fn a_mount_whose_worker_is_blocked_is_not_waited_for() {
    if !can_mount() {
        return;
    }
    let (lower, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = dir.path().canonicalize().unwrap();
    let (device, own) = mount(&at, &MountOptions::default()).unwrap();
    let config = SessionConfig { transport: TransportChoice::DevFuse, ..SessionConfig::default() };
    let served = Lower::new(lower.path());
    let running = Session::new(device, std::sync::Arc::clone(&served), config).start().unwrap();
    let before = running.connection().counts().total();
    let mut waits = client("stat", &at.join("meet"));
    more_requests(running.connection(), before + 1);
    is_left_alone(&at);
    served.meeting.wait();
    ends_soon(&mut waits);
    drop((own, running));
    assert_eq!(kinds(&at), [""; 0]);
}

#[test]
fn a_mount_that_is_dropped_leaves_other_file_systems() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    for gives_back in [false, true] {
        // It is gone, and something else is there, often with the same number.
        let (device, own) = mount(&at, &MountOptions::default()).unwrap();
        unmount(&at, true).unwrap();
        drop(device);
        if !mount_tmpfs(&at) {
            return;
        }
        match gives_back {
            false => drop(own),
            true => {
                let error = own.unmount(true).unwrap_err();
                assert!(matches!(error, MountError::NotMounted { .. }), "{error}");
            }
        }
        assert_eq!(kinds(&at), ["tmpfs"]);
        unmount(&at, false).unwrap();
        // It is covered.
        let (_device, own) = mount(&at, &MountOptions::default()).unwrap();
        assert!(mount_tmpfs(&at));
        match gives_back {
            false => drop(own),
            true => {
                let error = own.unmount(false).unwrap_err();
                assert!(matches!(error, MountError::Covered { .. }), "{error}");
                assert!(error.to_string().contains("unmount that first"), "{error}");
            }
        }
        assert_eq!(kinds(&at), ["fuse.tollgate", "tmpfs"]);
        unmount(&at, false).unwrap();
        unmount(&at, true).unwrap();
    }
    // Another one of the same kind is another one.
    let (_first, own) = mount(&at, &MountOptions::default()).unwrap();
    unmount(&at, true).unwrap();
    let (_second, other) = mount(&at, &MountOptions::default()).unwrap();
    drop(own);
    assert_eq!(kinds(&at), ["fuse.tollgate"]);
    other.unmount(true).unwrap();
    assert_eq!(kinds(&at), [""; 0]);
}

/// Others may rename a directory above a mount point. Something else may be at the old path then.
#[test]
fn a_mount_is_unmounted_where_it_is_by_now() {
    if !can_mount() {
        return;
    }
    for (is_dropped, is_replaced) in [(false, false), (true, false), (false, true), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().canonicalize().unwrap();
        let [before, after] = ["a", "b c"].map(|name| above.join(name).join("mnt"));
        fs::create_dir_all(&before).unwrap();
        let (_device, own) = mount(&before, &MountOptions::default()).unwrap();
        fs::rename(above.join("a"), above.join("b c")).unwrap();
        assert_eq!(kinds(&after), ["fuse.tollgate"]);
        if is_replaced {
            fs::create_dir_all(&before).unwrap();
            if !mount_tmpfs(&before) {
                return;
            }
        }
        match is_dropped {
            true => drop(own),
            false => own.unmount(true).unwrap(),
        }
        assert_eq!(kinds(&after), [""; 0]);
        assert_eq!(kinds(&before), if is_replaced { vec!["tmpfs"] } else { vec![] });
        if is_replaced {
            unmount(&before, false).unwrap();
        }
    }
}

#[test]
fn a_mount_that_moved_and_is_covered_is_left() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let above = dir.path().canonicalize().unwrap();
    let [before, after] = ["a", "b"].map(|name| above.join(name).join("mnt"));
    fs::create_dir_all(&before).unwrap();
    let (_device, own) = mount(&before, &MountOptions::default()).unwrap();
    fs::rename(above.join("a"), above.join("b")).unwrap();
    if !mount_tmpfs(&after) {
        return;
    }
    let error = own.unmount(true).unwrap_err();
    assert!(matches!(&error, MountError::Covered { path } if *path == after), "{error:?}");
    assert_eq!(kinds(&after), ["fuse.tollgate", "tmpfs"]);
    unmount(&after, false).unwrap();
    unmount(&after, true).unwrap();
}

#[test]
fn a_mount_point_that_is_gone_is_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [dir.path().join("gone"), dir.path().join("gone/mnt"), file.join("mnt")] {
        for lazy in [false, true] {
            let error = unmount(&path, lazy).unwrap_err();
            assert!(
                matches!(&error, MountError::Gone { path: said } if *said == path),
                "{error:?}"
            );
            assert!(error.to_string().contains("renamed"), "{error}");
        }
        assert!(!clean_stale(&path).unwrap());
        let error = mount(&path, &MountOptions::default()).unwrap_err();
        assert!(matches!(error, MountError::NoMountPoint { .. }), "{error:?}");
    }
}

#[test]
fn an_option_that_is_too_long_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let with_source = |len| MountOptions { source: "s".repeat(len), ..MountOptions::default() };
    let with_subtype = |len| MountOptions { subtype: "t".repeat(len), ..MountOptions::default() };
    for (name, options) in [("source", with_source(4096)), ("subtype", with_subtype(256))] {
        let error = mount(dir.path(), &options).unwrap_err();
        assert!(matches!(error, MountError::Option { option, .. } if option == name), "{error}");
    }
    if can_mount() {
        for options in [with_source(4095), with_subtype(255)] {
            mount(dir.path(), &options).unwrap();
        }
    }
}

#[test]
fn a_path_with_a_nul_byte_is_no_path() {
    use std::error::Error;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(b"a\0b"));
    for error in
        [unmount(&path, false).unwrap_err(), mount(&path, &MountOptions::default()).unwrap_err()]
    {
        assert!(matches!(error, MountError::NoMountPoint { .. }), "{error:?}");
        assert!(error.source().unwrap().to_string().contains("NUL"), "{error:?}");
    }
}
