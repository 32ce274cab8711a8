//! Paths that are longer than the kernel tells (`PATH_MAX`).

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::harness::{View, can_mount};

/// Of as many levels the path takes more than 4,096 bytes.
const LEVELS: usize = 20;
/// Longer than the view goes by what it saw.
const LATER: Duration = Duration::from_millis(2_500);

fn level() -> CString {
    CString::new([b'l'; 250]).unwrap()
}

/// The lowest directory below `top`; with `make` all of them are made.
fn lowest(top: &Path, make: bool) -> OwnedFd {
    let mut here: OwnedFd = File::open(top).unwrap().into();
    for _ in 0..LEVELS {
        if make {
            mkdirat(&here, level(), Mode::RWXU).unwrap();
        }
        here = openat(&here, level(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    here
}

fn write(dir: &OwnedFd, name: &str, text: &str) {
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = openat(dir, name, flags, Mode::RUSR | Mode::WUSR).unwrap();
    File::from(file).write_all(text.as_bytes()).unwrap();
}

/// Whoever holds the directory gets nothing more.
fn is_lost(dir: &OwnedFd) {
    for (name, flags) in [
        (".", OFlags::DIRECTORY),
        ("old", OFlags::RDONLY),
        ("key", OFlags::RDONLY),
        ("old", OFlags::WRONLY),
        ("new", OFlags::WRONLY | OFlags::CREATE),
    ] {
        let opened = openat(dir, name, flags, Mode::RWXU);
        let opened = opened.and_then(|file| match name {
            // A directory can be opened; what it lists is asked for then.
            "." => rustix::fs::Dir::read_from(&file)?.next().unwrap_or(Err(Errno::STALE)).map(drop),
            _ => Ok(()),
        });
        assert!(
            matches!(opened, Err(Errno::STALE | Errno::ACCESS | Errno::NOENT)),
            "{name} {flags:?}: {opened:?}"
        );
    }
}

#[test]
fn what_others_moved_to_a_denied_place_is_lost_however_long_its_path_is() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = ['closed/**', '**/sec/**']\naction = 'deny'\n";
    let view = View::with(policy, &[("open/far/x", ""), ("open/near/x", ""), ("closed/x", "")]);
    for moved in ["far", "near"] {
        let top = format!("open/{moved}");
        let below = lowest(&view.below(&top), true);
        write(&below, "old", "old");
        let held = lowest(&view.at(&top), false);
        let old = openat(&held, "old", OFlags::RDONLY, Mode::empty()).unwrap();
        std::thread::sleep(LATER);
        assert!(openat(&held, "old", OFlags::RDONLY, Mode::empty()).is_ok(), "nobody moved it");
        if moved == "far" {
            fs::rename(view.below(&top), view.below("closed/far")).unwrap();
        } else {
            // The lowest one alone.
            let mut above = Some(File::open(view.below(&top)).unwrap().into());
            for _ in 1..LEVELS {
                let here: OwnedFd = above.take().unwrap();
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                above = Some(openat(&here, level(), flags, Mode::empty()).unwrap());
            }
            let above = above.unwrap();
            mkdirat(&above, "sec", Mode::RWXU).unwrap();
            rustix::fs::renameat(&above, level(), &above, "sec/d").unwrap();
        }
        write(&below, "key", "the secret");
        std::thread::sleep(LATER);
        is_lost(&held);
        drop(old);
    }
}
