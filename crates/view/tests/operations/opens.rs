//! Opening files: who may, and in which I/O mode.

use std::time::{Duration, Instant};

use libc::{O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
use rustix::io::Errno;
use tollgate_fuse::abi::{CreateIn, EntryOut, OpenOut, opcode};
use tollgate_fuse::{InitFlags, OpenReply};
use zerocopy::{FromBytes, IntoBytes};

use crate::kernel::{Played, ROOT};

const SECRETS: &str = "
[[rule]]
path = '**/*.pem'
action = 'deny'
[[rule]]
path = 'docs'
action = 'read-only'
[[rule]]
path = 'hidden'
action = 'hide'
[[rule]]
path = 'watched'
action = 'userspace'
";

fn secrets() -> Played {
    Played::with(
        SECRETS,
        &[
            ("a", "plain"),
            ("key.pem", "secret"),
            ("docs/a", "text"),
            ("hidden/a", "unseen"),
            ("watched/a", "watched"),
        ],
    )
}

#[test]
fn an_allowed_file_is_opened_in_passthrough_with_one_backing_file() {
    let view = Played::with("", &[("a", "text")]);
    let [first, second] = [O_RDONLY, O_RDWR].map(|flags| view.open("a", flags).unwrap());
    assert_eq!(first.flags, OpenReply::PASSTHROUGH | OpenReply::NOFLUSH);
    assert_ne!(first.backing, 0);
    assert_eq!(first.backing, second.backing, "all openers of an inode share one backing file");
    assert_eq!(view.backings(), 1);
    assert_eq!(view.counts().open_passthrough, 2);
    // The kernel never sends these; a stray one reaches no file.
    assert_eq!(view.read(first, 0, 10).unwrap_err(), Errno::BADF);
    assert_eq!(view.write(first, 0, b"x").unwrap_err(), Errno::BADF);
}

#[test]
fn a_registration_outlives_the_last_handle_for_a_moment() {
    let view = Played::with("", &[("a", "text")]);
    let first = view.opens("a", O_RDONLY);
    let again = view.opens("a", O_RDONLY);
    assert_eq!((first.backing, view.backings()), (again.backing, 1));
    let deadline = Instant::now() + Duration::from_secs(10);
    while view.backings() > 0 {
        assert!(Instant::now() < deadline, "the registration stays");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(view.opens("a", O_RDONLY).is_passthrough());
}

#[test]
fn a_watched_file_is_read_and_written_by_the_server() {
    let view = secrets();
    let handle = view.open("watched/a", O_RDWR).unwrap();
    assert!(!handle.is_passthrough());
    assert!(handle.flags.contains(OpenReply::DIRECT_IO));
    assert_eq!(view.read(handle, 2, 3).unwrap(), b"tch");
    assert_eq!(view.write(handle, 7, b" more").unwrap(), 5);
    assert_eq!(std::fs::read(view.below("watched/a")).unwrap(), b"watched more");
    assert_eq!(view.read(handle, 100, 10).unwrap(), b"");
    let counts = view.counts();
    assert_eq!((counts.open_userspace, counts.read_bytes, counts.write_bytes), (1, 3, 5));
    assert_eq!((view.backings(), view.view().snapshot().userspace_handles), (0, 1));
    view.release(handle);
    assert_eq!(view.read(handle, 0, 1).unwrap_err(), Errno::BADF);
    assert_eq!(view.view().snapshot().userspace_handles, 0);
}

#[test]
fn a_handle_opened_for_appending_writes_where_the_kernel_says() {
    let view = secrets();
    let handle = view.open("watched/a", O_WRONLY | O_APPEND).unwrap();
    assert_eq!(view.write(handle, 0, b"W").unwrap(), 1);
    assert_eq!(std::fs::read(view.below("watched/a")).unwrap(), b"Watched");
}

#[test]
fn what_is_denied_is_not_opened() {
    let view = secrets();
    for flags in [O_RDONLY, O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC] {
        assert_eq!(view.open("key.pem", flags).unwrap_err(), Errno::ACCESS);
    }
    assert_eq!(view.create("new.pem", O_WRONLY).unwrap_err(), Errno::ACCESS);
    assert!(!view.below("new.pem").exists());
    assert_eq!(std::fs::read(view.below("key.pem")).unwrap(), b"secret");
    assert_eq!((view.counts().refused_deny, view.backings()), (5, 0));
}

#[test]
fn what_is_read_only_is_read() {
    let view = secrets();
    assert!(view.opens("docs/a", O_RDONLY).is_passthrough());
    for flags in [O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC] {
        assert_eq!(view.open("docs/a", flags).unwrap_err(), Errno::ROFS);
    }
    assert_eq!(view.create("docs/b", O_RDONLY).unwrap_err(), Errno::ROFS);
    assert_eq!(view.set_size("docs/a", 0).unwrap_err(), Errno::ROFS);
    assert_eq!(view.set_mode("docs/a", 0o777).unwrap_err(), Errno::ROFS);
    assert_eq!(std::fs::read(view.below("docs/a")).unwrap(), b"text");
    assert_eq!(view.counts().refused_read_only, 6);
}

#[test]
fn what_is_hidden_does_not_exist_and_cannot_be_made() {
    let view = secrets();
    assert!(view.lookup("hidden").is_none());
    assert_eq!(view.create("hidden", O_WRONLY).unwrap_err(), Errno::ACCESS);
    assert_eq!(view.mkdir("hidden").unwrap_err(), Errno::ACCESS);
    assert_eq!(view.rmdir("hidden").unwrap_err(), Errno::NOENT);
    assert_eq!(view.rename("hidden", "seen", 0).unwrap_err(), Errno::NOENT);
    assert_eq!(view.rename("a", "hidden", 0).unwrap_err(), Errno::ACCESS);
    assert!(view.counts().hidden >= 1);
    assert_eq!(std::fs::read(view.below("hidden/a")).unwrap(), b"unseen");
}

#[test]
fn the_mode_holds_while_the_file_is_open() {
    let policy = "
[[rule]]
path = '**'
content = { magic = 'SECRET' }
action = 'userspace'
";
    let view = Played::with(policy, &[("a", "public")]);
    let first = view.open("a", O_RDONLY).unwrap();
    assert!(first.is_passthrough());
    std::fs::write(view.below("a"), "SECRET").unwrap();
    let second = view.open("a", O_RDONLY).unwrap();
    assert!(second.is_passthrough(), "the kernel refuses an inode that is open in two modes");
    view.release(first);
    assert!(view.opens("a", O_RDONLY).is_passthrough());
    view.release(second);
    assert!(!view.opens("a", O_RDONLY).is_passthrough(), "everyone has closed it");
    let third = view.open("a", O_RDONLY).unwrap();
    std::fs::write(view.below("a"), "public").unwrap();
    assert!(!view.opens("a", O_RDONLY).is_passthrough());
    view.release(third);
    assert!(view.opens("a", O_RDONLY).is_passthrough());
}

#[test]
fn the_content_decides_who_may_read() {
    let policy = "
[[rule]]
path = '**'
content = { regex = 'BEGIN .* KEY' }
action = 'deny'
";
    let view = Played::with(policy, &[("a", "-----BEGIN RSA KEY-----"), ("b", "text")]);
    assert_eq!(view.open("a", O_RDONLY).unwrap_err(), Errno::ACCESS);
    assert_eq!(view.unlink("a").unwrap_err(), Errno::ACCESS);
    assert!(view.opens("b", O_RDONLY).is_passthrough());
    // An empty file has no content that could match.
    let made = view.create("c", O_WRONLY).unwrap();
    assert!(made.is_passthrough());
    view.unlink("b").unwrap();
}

#[test]
fn the_executable_decides_for_its_process_alone() {
    let own = std::env::current_exe().unwrap();
    let policy = format!(
        "default = 'deny'\n[[rule]]\npath = '**'\nexe = '{}'\naction = 'passthrough'\n",
        own.display()
    );
    let view = Played::with(&policy, &[("a", "text")]);
    assert!(view.opens("a", O_RDONLY).is_passthrough());
    let policy = "[[rule]]\npath = '**'\nexe = '/usr/bin/another'\naction = 'deny'\n";
    let view = Played::with(policy, &[("a", "text")]);
    assert!(view.opens("a", O_RDONLY).is_passthrough());
    let policy = format!("[[rule]]\npath = '**'\nexe = '{}'\naction = 'deny'\n", own.display());
    let view = Played::with(&policy, &[("a", "text")]);
    assert_eq!(view.open("a", O_RDONLY).unwrap_err(), Errno::ACCESS);
}

#[test]
fn every_name_of_an_inode_is_judged() {
    let view = secrets();
    // Nobody has met the other name; it is searched for.
    std::fs::hard_link(view.below("key.pem"), view.below("innocent")).unwrap();
    assert_eq!(view.open("innocent", O_RDONLY).unwrap_err(), Errno::ACCESS);
    std::fs::hard_link(view.below("watched/a"), view.below("other")).unwrap();
    assert!(!view.opens("other", O_RDONLY).is_passthrough(), "the strictest mode wins");
}

#[test]
fn opening_with_truncation_truncates() {
    let view = secrets();
    assert!(view.opens("a", O_WRONLY | O_TRUNC).is_passthrough());
    assert_eq!(std::fs::read(view.below("a")).unwrap(), b"");
    view.opens("watched/a", O_RDONLY | O_TRUNC);
    assert_eq!(std::fs::read(view.below("watched/a")).unwrap(), b"");
}

#[test]
fn a_kernel_without_passthrough_is_served_through_the_page_cache() {
    let offered = InitFlags::all() - InitFlags::PASSTHROUGH;
    let files = [("a", "text")];
    let view = Played::configured("", &files, offered, |config| config);
    let handle = view.open("a", O_RDONLY).unwrap();
    assert_eq!((handle.flags, handle.backing), (OpenReply::empty(), 0));
    assert_eq!(view.read(handle, 0, 100).unwrap(), b"text");
    let snapshot = view.view().snapshot();
    assert!(!snapshot.passthrough);
    assert_eq!(snapshot.counts.open_fallback, 1);
    assert!(snapshot.unavailable[0].reason.contains("Linux 6.9"), "{snapshot:?}");
}

#[test]
fn a_new_file_is_open_and_known() {
    let view = secrets();
    let made = view.create("new", O_RDWR | O_CREAT).unwrap();
    assert!(made.is_passthrough());
    assert_eq!(view.node("new"), made.node);
    assert_eq!(view.attributes(made.node).unwrap().mode, 0o100_644);
    let watched = view.create("watched/new", O_RDWR | O_CREAT).unwrap();
    assert!(!watched.is_passthrough());
    assert_eq!(view.write(watched, 0, b"text").unwrap(), 4);
    assert_eq!(std::fs::read(view.below("watched/new")).unwrap(), b"text");
}

#[test]
fn a_creation_never_opens_a_file_that_exists() {
    let view = secrets();
    // Somebody else made it after the kernel's lookup; the file was not judged for an open.
    let raced = view.create("a", O_WRONLY | O_CREAT).unwrap_err();
    assert_eq!(raced, Errno::STALE, "the kernel looks the name up again");
    let exclusive = view.create("a", O_WRONLY | O_CREAT | O_EXCL).unwrap_err();
    assert_eq!(exclusive, Errno::EXIST);
    std::os::unix::fs::symlink("/etc/passwd", view.below("link")).unwrap();
    assert_eq!(view.create("link", O_WRONLY | O_CREAT).unwrap_err(), Errno::STALE);
    assert_eq!(std::fs::read(view.below("a")).unwrap(), b"plain");
}

#[test]
fn only_regular_files_are_opened() {
    let view = Played::with("", &[("dir/a", "")]);
    assert_eq!(view.open("dir", O_RDONLY).unwrap_err(), Errno::NXIO);
    rustix::fs::mkfifoat(rustix::fs::CWD, view.below("fifo"), 0o600.into()).unwrap();
    assert_eq!(view.open("fifo", O_RDONLY).unwrap_err(), Errno::NXIO);
    assert_eq!(view.open_node(4711, O_RDONLY).unwrap_err(), Errno::STALE);
}

#[test]
fn a_file_without_a_name_keeps_the_decision_of_its_directory() {
    let view = secrets();
    let made = tmpfile(&view, ROOT).unwrap();
    assert!(made.is_passthrough());
    view.release(made);
    assert!(view.open_node(made.node, O_RDONLY).unwrap().is_passthrough());
    assert_eq!(view.link_node(made.node, "new.pem").unwrap_err(), Errno::ACCESS);
    view.link_node(made.node, "named").unwrap();
    assert!(view.below("named").exists());
    let docs = view.node("docs");
    assert_eq!(tmpfile(&view, docs).unwrap_err(), Errno::ROFS);
}

fn tmpfile(view: &Played, dir: u64) -> Result<crate::kernel::Handle, Errno> {
    let flags = (libc::O_TMPFILE | O_RDWR).cast_unsigned();
    let args = CreateIn { flags, mode: 0o100_600, umask: 0, open_flags: 0 };
    let body = view.call(opcode::TMPFILE, dir, &[args.as_bytes(), b"#1\0"])?;
    let (entry, rest) = EntryOut::read_from_prefix(&body).unwrap();
    let (out, _) = OpenOut::read_from_prefix(rest).unwrap();
    Ok(crate::kernel::Handle {
        node: entry.nodeid,
        number: out.fh,
        flags: OpenReply::from_bits_retain(out.open_flags),
        backing: out.backing_id,
    })
}

/// Which name of the file hides it makes no difference.
#[test]
fn a_further_name_of_what_is_hidden_cannot_be_made() {
    let view = secrets();
    for path in ["other", "docs/other"] {
        std::fs::hard_link(view.below("hidden/a"), view.below(path)).unwrap();
    }
    assert!(view.lookup("other").is_none());
    for flags in [O_WRONLY | O_CREAT, O_RDWR | O_CREAT | O_EXCL] {
        assert_eq!(view.create("other", flags).unwrap_err(), Errno::ACCESS);
        assert_eq!(view.create("docs/other", flags).unwrap_err(), Errno::ROFS, "by its own rule");
    }
    assert_eq!(view.mkdir("other").unwrap_err(), Errno::ACCESS);
    assert_eq!(view.link("a", "other").unwrap_err(), Errno::ACCESS);
    assert_eq!(std::fs::read(view.below("other")).unwrap(), b"unseen");
    // Of what is not hidden, it is told that it is there.
    assert_eq!(view.mkdir("a").unwrap_err(), Errno::EXIST);
    assert_eq!(view.link("a", "a").unwrap_err(), Errno::EXIST);
    assert_eq!(view.counts().refused_deny, 4);
}

/// `FMODE_EXEC`, which the kernel sends along for who executes the file.
const TO_EXECUTE: i32 = 0x20;

/// The kernel looks whether a file is executed only after an open that reads alone, which would have
/// emptied it by then.
#[test]
fn a_file_that_is_executed_is_not_emptied() {
    let view = secrets();
    for path in ["a", "watched/a"] {
        let text = std::fs::read(view.below(path)).unwrap();
        let [first, second] = [(); 2].map(|()| view.open(path, O_RDONLY | TO_EXECUTE).unwrap());
        let reader = view.open(path, O_RDONLY).unwrap();
        for handle in [first, second] {
            assert_eq!(view.open(path, O_RDONLY | O_TRUNC).unwrap_err(), Errno::TXTBSY);
            assert_eq!(std::fs::read(view.below(path)).unwrap(), text);
            view.release(handle);
        }
        view.opens(path, O_RDONLY | O_TRUNC);
        assert_eq!(std::fs::read(view.below(path)).unwrap(), b"");
        view.release(reader);
    }
    // Whoever runs it: what the policy refuses, it refuses.
    let handle = view.open("docs/a", O_RDONLY | TO_EXECUTE).unwrap();
    assert_eq!(view.open("docs/a", O_RDONLY | O_TRUNC).unwrap_err(), Errno::ROFS);
    view.release(handle);
    let counts = view.counts();
    assert_eq!((counts.open, counts.refused_read_only), (14, 1));
}
