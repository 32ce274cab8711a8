//! A file is used by a descriptor that names it, while it is renamed through the view again and again.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use crate::harness::{View, can_mount};

/// One in a hundred and more was met on its way.
const FILES: usize = 1_500;
const NONE: usize = usize::MAX;

const POLICIES: [&str; 2] = ["", "[[rule]]\npath = 'secret'\naction = 'deny'\n"];

fn path_of(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// What `act` got for files that were on their way meanwhile. It has each for the first time then.
fn failures(policy: &str, act: impl Fn(&OwnedFd) -> io::Result<()>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        fs::write(dir.path().join(format!("a{n}")), "text").unwrap();
    }
    let view = View::of(dir.path(), policy, &[]);
    let (moved, over) = (AtomicUsize::new(NONE), AtomicBool::new(false));
    let mut failures = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let n = moved.load(Ordering::Relaxed);
                if n != NONE {
                    let names = ["a", "b"].map(|name| view.at(&format!("{name}{n}")));
                    fs::rename(&names[0], &names[1]).unwrap();
                    fs::rename(&names[1], &names[0]).unwrap();
                }
            }
        });
        for n in 0..FILES {
            let name = view.at(&format!("a{n}"));
            let file = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            moved.store(n, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(300 + (n as u64 * 7_919) % 500));
            failures.extend(act(&file.unwrap()).err().map(|error| format!("{n}: {error}")));
        }
        over.store(true, Ordering::Relaxed);
    });
    failures
}

#[test]
fn a_file_opens_for_writing_whenever_it_is_renamed() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let open = |file: &OwnedFd| fs::File::options().write(true).open(path_of(file)).map(drop);
        assert_eq!(failures(policy, open), Vec::<String>::new(), "{policy}");
    }
}

#[test]
fn attributes_of_a_file_are_had_whenever_it_is_renamed() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let all = |file: &OwnedFd| {
            rustix::fs::fstat(file)?;
            fs::set_permissions(path_of(file), fs::Permissions::from_mode(0o600))?;
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH)?;
            match rustix::fs::getxattr(path_of(file), c"user.test", &mut [0; 8]) {
                Err(Errno::NODATA) => Ok(()),
                other => Ok(other.map(drop)?),
            }
        };
        assert_eq!(failures(policy, all), Vec::<String>::new(), "{policy}");
    }
}
