//! Append-only files (`chattr +a`): what is there stays, whoever may write.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FlockOperation, OFlags, fcntl_lock, fcntl_setfl, flock};

use crate::async_io::{BLOCK, pattern, write_blocks};
use crate::harness::{View, as_user, can_mount};
use crate::small::soon;

/// A view with a file that is append-only beneath, until this is dropped.
struct Log {
    view: View,
    below: PathBuf,
}

impl Log {
    /// `None` where the file system has no such files.
    fn new(policy: &str) -> Option<Self> {
        let view = View::with(policy, &[("log", "first\n")]);
        let below = view.below("log");
        fs::set_permissions(&below, fs::Permissions::from_mode(0o666)).unwrap();
        let log = Self { view, below };
        if !log.chattr("+a") {
            eprintln!("not tested: no append-only files here");
            return None;
        }
        Some(log)
    }

    fn chattr(&self, what: &str) -> bool {
        let chattr = Command::new("chattr").arg(what).arg(&self.below).status();
        chattr.is_ok_and(|status| status.success())
    }

    fn to_append(&self) -> std::io::Result<fs::File> {
        fs::File::options().append(true).open(self.view.at("log"))
    }

    fn errno(&self, options: &fs::OpenOptions) -> Option<i32> {
        options.open(self.view.at("log")).err()?.raw_os_error()
    }

    #[track_caller]
    fn has(&self, text: &str) {
        assert_eq!(fs::read_to_string(&self.below).unwrap(), text);
        assert_eq!(fs::read_to_string(self.view.at("log")).unwrap(), text);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.chattr("-a");
    }
}

const POLICIES: [&str; 2] = ["", "default = 'userspace'"];

#[test]
fn an_append_only_file_is_appended_to_while_others_read_it() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let Some(log) = Log::new(policy) else { return };
        let reader = fs::File::open(log.view.at("log")).unwrap();
        for uid in [0, 1000] {
            let mut file = as_user(uid, uid, || log.to_append()).unwrap();
            file.write_all(b"more\n").unwrap();
            flock(&file, FlockOperation::LockExclusive).unwrap();
            fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        }
        log.has("first\nmore\nmore\n");
        let mut bytes = [0; 32];
        let len = reader.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..len], b"first\nmore\nmore\n", "{policy:?}");
    }
}

/// The view above opens the file as the caller first, to learn what the view beneath says.
#[test]
fn an_append_only_file_is_appended_to_in_a_view_over_a_view() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let Some(log) = Log::new("") else { return };
        let above = View::of(log.view.root(), policy, &[]);
        let mut options = fs::File::options();
        for uid in [0, 1000] {
            let open = || options.append(true).open(above.at("log"));
            as_user(uid, uid, open).unwrap().write_all(b"more\n").unwrap();
        }
        log.has("first\nmore\nmore\n");
        let errno = |options: &fs::OpenOptions| {
            options.open(above.at("log")).map_err(|error| error.raw_os_error()).err()
        };
        assert_eq!(errno(fs::File::options().write(true)), Some(Some(libc::EPERM)), "{policy:?}");
        assert_eq!(errno(options.read(true)), Some(Some(libc::EPERM)), "{policy:?}");
        log.has("first\nmore\nmore\n");
    }
}

#[test]
fn an_append_only_file_opens_for_nothing_but_to_read_and_to_append() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let Some(log) = Log::new(policy) else { return };
        let mut options = fs::File::options();
        assert_eq!(log.errno(options.write(true)), Some(libc::EPERM));
        assert_eq!(log.errno(options.truncate(true)), Some(libc::EPERM));
        // Who has it open so could store into a mapping of it.
        let both = log.errno(fs::File::options().read(true).append(true));
        assert_eq!(both, Some(libc::EPERM), "{policy:?}");
        log.has("first\n");
    }
}

/// The kernel lets `O_APPEND` be taken away, as the attribute is one of the lower file.
#[test]
fn without_its_flag_a_descriptor_changes_nothing_of_an_append_only_file() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let Some(log) = Log::new(policy) else { return };
        let file = log.to_append().unwrap();
        fcntl_setfl(&file, OFlags::empty()).unwrap();
        let written = file.write_at(b"FIRST", 0).map_err(|error| error.raw_os_error());
        assert_eq!(written, Err(Some(libc::EPERM)), "{policy:?}");
        let eperm = -i64::from(libc::EPERM);
        assert_eq!(write_blocks(&file, &mut [pattern(7), pattern(8)]), [eperm; 2], "{policy:?}");
        log.has("first\n");
    }
}

/// The file was open, and the kernel's way to it stands, before it became append-only.
#[test]
fn a_file_that_becomes_append_only_is_appended_to_and_no_more() {
    if !can_mount() {
        return;
    }
    let Some(log) = Log::new("") else { return };
    assert!(log.chattr("-a"));
    let large = vec![b'x'; 32 * BLOCK];
    fs::write(&log.below, &large).unwrap();
    // It stays registered for some time.
    fs::read(log.view.at("log")).unwrap();
    assert!(log.chattr("+a"));
    let file = log.to_append().unwrap();
    fcntl_setfl(&file, OFlags::empty()).unwrap();
    write_blocks(&file, &mut [pattern(7)]);
    (&log.to_append().unwrap()).write_all(b"more").unwrap();
    drop(file);
    let expected = [&large[..], b"more"].concat();
    assert!(fs::read(&log.below).unwrap() == expected);
    // Who reads it all the time has it by the kernel's way.
    assert!(log.chattr("-a"));
    let reader = fs::File::open(log.view.at("log")).unwrap();
    assert!(log.chattr("+a"));
    assert_eq!(log.errno(fs::File::options().append(true)), Some(libc::EBUSY));
    drop(reader);
    soon("nobody has it open any more", || log.to_append().is_ok());
}
