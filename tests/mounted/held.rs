//! Rules about what a file holds: no part of it can be exchanged by who may not read it for that.
#![expect(unsafe_code, reason = "the standard library has no truncate(2)")]

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::harness::{View, can_mount};

const KEY: &str = "-----BEGIN PRIVATE KEY-----\nthe secret\n";
const POLICY: &str = r#"
    [[rule]]
    name = "keys"
    path = "**/*.conf"
    content = { regex = 'BEGIN PRIVATE KEY' }
    operation = "read"
    action = "deny"

    [[rule]]
    name = "certificates can be read"
    path = "**/*.pem"
    content = { magic = '-----BEGIN CERTIFICATE' }
    action = "passthrough"

    [[rule]]
    name = "other pem files cannot"
    path = "**/*.pem"
    operation = "read"
    action = "deny"

    [[rule]]
    name = "large"
    path = "large/**"
    size = { min = 1000 }
    operation = "read"
    action = "deny"

    [[rule]]
    name = "drop box"
    path = "drop/**"
    operation = "read"
    action = "deny"
"#;

fn view() -> View {
    View::with(
        POLICY,
        &[
            ("a.conf", KEY),
            ("sub/b.conf", KEY),
            ("key.pem", KEY),
            ("large/x", &"the secret\n".repeat(200)),
            ("drop/log", "first\n"),
            ("plain.conf", "a=1\n"),
            ("config/a.conf", "a=1\n"),
            ("config/sub/b.conf", "b=1\n"),
        ],
    )
}

fn refused(path: &Path, flags: OFlags) -> Option<Errno> {
    open(path, flags, Mode::empty()).err()
}

/// As truncate(2) does it, without opening the file.
fn truncate(path: &Path, length: u64) -> Option<i32> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte and outlives the call.
    let done = unsafe { libc::truncate(path.as_ptr(), i64::try_from(length).unwrap()) };
    (done != 0).then(|| std::io::Error::last_os_error().raw_os_error().unwrap())
}

#[test]
fn what_may_not_be_read_for_what_it_holds_is_not_changed_in_part() {
    if !can_mount() {
        return;
    }
    let view = view();
    for name in ["a.conf", "sub/b.conf", "key.pem", "large/x"] {
        let (path, before) = (view.at(name), fs::read(view.below(name)).unwrap());
        for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::APPEND]
        {
            assert_eq!(refused(&path, flags), Some(Errno::ACCESS), "{name} {flags:?}");
        }
        let size = u64::try_from(before.len()).unwrap();
        for length in [1, 5, size - 1, size, size + 1, 1 << 20] {
            assert_eq!(truncate(&path, length), Some(libc::EACCES), "{name} {length}");
        }
        assert_eq!(fs::read(view.below(name)).unwrap(), before, "{name}");
    }
    // All of it can go.
    assert_eq!(truncate(&view.at("key.pem"), 0), None);
    fs::write(view.at("a.conf"), "new\n").unwrap();
    assert_eq!(fs::read_to_string(view.at("a.conf")).unwrap(), "new\n");
    fs::OpenOptions::new().append(true).open(view.at("a.conf")).unwrap();
    fs::remove_file(view.at("sub/b.conf")).unwrap();
    // Reading is refused whatever it holds, so that nothing is won by a change.
    let mut log = fs::OpenOptions::new().append(true).open(view.at("drop/log")).unwrap();
    log.write_all(b"second\n").unwrap();
    drop(log);
    fs::OpenOptions::new().write(true).open(view.at("drop/log")).unwrap().write_all(b"F").unwrap();
    assert_eq!(fs::read_to_string(view.below("drop/log")).unwrap(), "First\nsecond\n");
}

#[test]
fn further_names_of_the_file_change_nothing() {
    if !can_mount() {
        return;
    }
    let view = view();
    fs::hard_link(view.below("a.conf"), view.below("outside.txt")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(refused(&view.at("outside.txt"), OFlags::WRONLY), Some(Errno::ACCESS));
    fs::hard_link(view.at("a.conf"), view.at("second.conf")).unwrap();
    fs::rename(view.at("second.conf"), view.at("sub/third.conf")).unwrap();
    for name in ["sub/third.conf", "a.conf", "outside.txt"] {
        assert_eq!(refused(&view.at(name), OFlags::WRONLY), Some(Errno::ACCESS), "{name}");
    }
    let linked = fs::hard_link(view.at("sub/b.conf"), view.at("b.txt"));
    assert_eq!(linked.unwrap_err().raw_os_error(), Some(libc::EPERM));
    let moved = fs::rename(view.at("sub/b.conf"), view.at("b.txt"));
    assert_eq!(moved.unwrap_err().raw_os_error(), Some(libc::EXDEV));
    // To a place where nobody reads it, and back with other bytes.
    fs::rename(view.at("sub/b.conf"), view.at("drop/b.conf")).unwrap();
    let opened = fs::OpenOptions::new().write(true).open(view.at("drop/b.conf"));
    opened.unwrap().write_all(&[b'x'; 27]).unwrap();
    for back in ["b.conf", "b.txt"] {
        let moved = fs::rename(view.at("drop/b.conf"), view.at(back));
        assert_eq!(moved.unwrap_err().raw_os_error(), Some(libc::EXDEV), "{back}");
    }
}

/// What it holds may be written by the caller itself, bit by bit.
#[test]
fn a_file_is_kept_from_the_open_on_that_follows_its_content() {
    if !can_mount() {
        return;
    }
    let view = view();
    let path = view.at("made.conf");
    let mut file = fs::File::create_new(&path).unwrap();
    file.write_all(b"# settings\n").unwrap();
    let mut more = fs::OpenOptions::new().append(true).open(&path).unwrap();
    more.write_all(KEY.as_bytes()).unwrap();
    assert_eq!(refused(&path, OFlags::WRONLY), Some(Errno::ACCESS));
    assert_eq!(refused(&path, OFlags::RDONLY), Some(Errno::ACCESS));
    // Who has it open goes on, as with every decision.
    more.write_all(b"more\n").unwrap();
    fs::write(&path, "empty\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "empty\n");
}

/// A directory moves where no file in it would be judged otherwise by what it holds.
#[test]
fn a_directory_is_moved_by_what_its_files_hold() {
    if !can_mount() {
        return;
    }
    let policy = POLICY.replace("**/*.conf", "**/config/**/*.conf");
    let view = View::with(
        &policy,
        &[("config/a.conf", "a=1\n"), ("config/sub/b.conf", "b=1\n"), ("x/c.conf", KEY)],
    );
    fs::rename(view.at("config"), view.at("other")).unwrap();
    assert_eq!(fs::read_to_string(view.at("other/sub/b.conf")).unwrap(), "b=1\n");
    fs::rename(view.at("other"), view.at("config")).unwrap();
    // Into the rules' reach anything may go, and out of it what they say nothing of.
    fs::rename(view.at("x"), view.at("config/x")).unwrap();
    assert_eq!(refused(&view.at("config/x/c.conf"), OFlags::RDONLY), Some(Errno::ACCESS));
    for (from, to) in [("config", "other"), ("config/x", "x")] {
        let moved = fs::rename(view.at(from), view.at(to));
        assert_eq!(moved.unwrap_err().raw_os_error(), Some(libc::EXDEV), "{from}");
    }
    fs::remove_file(view.at("config/x/c.conf")).unwrap();
    fs::rename(view.at("config"), view.at("other")).unwrap();
}
