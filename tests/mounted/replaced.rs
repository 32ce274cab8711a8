//! Files that others replace beneath, by rename(2), as editors and package managers do.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

/// Each way to open a file that is read: passthrough or the page cache, by this process, masked.
const POLICIES: [&str; 3] =
    ["", "default = 'userspace'", "[[rule]]\npath = '**'\naction = 'redact'\n"];
/// Files that the page cache of the view serves, and others.
const LENGTHS: [usize; 2] = [100, 70_000];

fn replace(path: &Path, text: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// A server keeps a file for a while after it was open. A further name is for the one that has the name by
/// now.
#[test]
fn a_file_that_was_replaced_beneath_just_now_is_linked() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let (dir, below) = (base.path().join("dir"), base.path().join("dir/f"));
    fs::create_dir(&dir).unwrap();
    fs::write(&below, b"old").unwrap();
    let view = View::of(&dir, "", &["--attr-timeout", "600", "--watch", "off"]);
    drop(File::options().append(true).open(view.at("f")).unwrap());
    replace(&below, b"new");
    fs::hard_link(view.at("f"), view.at("further")).unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&dir.join("further")), inode(&below));
}

/// Whoever has it open has the old one, with attributes, and can open it again.
#[test]
fn who_has_a_file_open_keeps_it_when_it_is_replaced_beneath() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let base = tempfile::tempdir().unwrap();
        let (dir, below) = (base.path().join("dir"), base.path().join("dir/f"));
        fs::create_dir(&dir).unwrap();
        let view = View::of(&dir, policy, &["--attr-timeout", "0"]);
        for length in LENGTHS {
            let old = vec![b'o'; length];
            replace(&below, &old);
            let mut file = File::open(view.at("f")).unwrap();
            let before = file.metadata().unwrap();
            replace(&below, b"new");
            let now = file.metadata().map(|now| (now.ino(), now.len(), now.nlink()));
            assert_eq!(now.ok(), Some((before.ino(), before.len(), 0)), "{policy:?}, {length}");
            let mut text = Vec::new();
            file.read_to_end(&mut text).unwrap();
            assert!(text == old, "{policy:?}, {length}");
            let again = fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()));
            assert!(again.is_ok_and(|text| text == old), "{policy:?}, {length}");
            assert_eq!(fs::read(view.at("f")).unwrap(), b"new");
        }
    }
}

/// What is kept for the next open does not keep a name that is gone, as of the journal of a database
/// that another process has just removed.
#[test]
fn a_file_that_was_replaced_and_removed_beneath_is_gone_at_once() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        for length in LENGTHS {
            let view = View::new(policy);
            let (path, shown) = (view.below("f"), view.at("f"));
            for round in 0..50 {
                replace(&path, &vec![b'a'; length]);
                drop(fs::read(&shown));
                replace(&path, &vec![b'b'; length]);
                drop(fs::read(&shown));
                let _ = fs::metadata(&shown);
                fs::remove_file(&path).unwrap();
                // The kernel may not have heard of it yet, and then has to ask.
                std::thread::sleep(Duration::from_millis(round % 4));
                let found = File::open(&shown).is_ok();
                assert!(!found, "{policy:?}, {length}, round {round}: opened");
            }
        }
    }
}

/// Also while a program has the file open, which opens it again as often as it likes through `/proc`,
/// and through a descriptor that names it only.
#[test]
fn a_file_that_is_open_and_was_removed_beneath_has_no_name_at_once() {
    if !can_mount() {
        return;
    }
    // The kernel keeps what it knows until it is told, or for long.
    let options = [&[][..], &["--attr-timeout", "600", "--watch", "off"]];
    let cases = || POLICIES.into_iter().flat_map(|policy| LENGTHS.map(|length| (policy, length)));
    for (options, (policy, length)) in
        options.into_iter().flat_map(|one| cases().map(move |case| (one, case)))
    {
        for replaced in [false, true] {
            let case = format!("{policy:?}, {length}, {options:?}, replaced: {replaced}");
            let base = tempfile::tempdir().unwrap();
            let (dir, path) = (base.path().join("dir"), base.path().join("dir/f"));
            fs::create_dir(&dir).unwrap();
            let text = vec![b'a'; length];
            fs::write(&path, &text).unwrap();
            let view = View::of(&dir, policy, options);
            let shown = view.at("f");
            let held = File::open(&shown).unwrap();
            let named = File::options().read(true).custom_flags(libc::O_PATH).open(&shown).unwrap();
            if replaced {
                replace(&path, b"new");
                assert_eq!(fs::read(&shown).unwrap(), b"new", "{case}");
            } else {
                fs::remove_file(&path).unwrap();
                let error = File::open(&shown).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{case}");
            }
            for _ in 0..3 {
                for file in [&held, &named] {
                    let again = fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()));
                    assert!(again.is_ok_and(|again| again == text), "{case}");
                }
            }
        }
    }
}

/// Without another look at it: rename(2) looks its names up itself, and holds locks meanwhile that keep
/// the kernel from moving what it knows. What comes in place of the old name does not matter.
#[test]
fn a_directory_that_others_moved_is_renamed_to_another_directory() {
    if !can_mount() {
        return;
    }
    for options in [&["--attr-timeout", "0"][..], &["--watch", "off"], &[]] {
        for replaced in [false, true] {
            let base = tempfile::tempdir().unwrap();
            let dir = base.path().join("dir");
            fs::create_dir_all(dir.join("q")).unwrap();
            fs::create_dir_all(dir.join("v/s")).unwrap();
            let view = View::of(&dir, "", options);
            assert_eq!(fs::read_dir(view.at("v")).unwrap().count(), 1);
            fs::rename(view.below("v"), view.below("q/a")).unwrap();
            if replaced {
                fs::create_dir(view.below("v")).unwrap();
            }
            let start = Instant::now();
            while let Err(error) = fs::rename(view.at("q/a"), view.at("b")) {
                let case = format!("{options:?}, replaced: {replaced}");
                assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{case}");
                assert!(start.elapsed() < Duration::from_secs(20), "{case}: it stays so");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(view.below("b/s").exists());
            assert_eq!(view.at("v").exists(), replaced);
        }
    }
}

/// The kernel cannot use a directory that a listing shows below itself, and has the server forget it: over
/// io_uring, whoever lists waits until that is answered.
#[test]
fn a_directory_that_others_moved_below_its_own_child_can_be_listed_there() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("dir");
    fs::create_dir_all(dir.join("x/y/z")).unwrap();
    let view = View::of(&dir, "", &["--watch", "off"]);
    for known in ["", "x", "x/y", "x/y/z"] {
        fs::read_dir(view.at(known)).unwrap().for_each(drop);
    }
    fs::rename(dir.join("x/y"), dir.join("y")).unwrap();
    fs::rename(dir.join("x"), dir.join("y/z/x")).unwrap();
    let (listed, names) = std::sync::mpsc::channel();
    let below = view.at("x/y/z");
    // Not joined: one that hangs ends with the server.
    std::thread::spawn(move || {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name());
        let names = fs::read_dir(below)
            .and_then(|entries| entries.map(name).collect::<std::io::Result<Vec<_>>>());
        listed.send(names)
    });
    let names = names.recv_timeout(Duration::from_secs(10)).expect("the listing hangs");
    // Or an error that says that it was moved.
    assert!(names.is_err() || names.is_ok_and(|names| names == ["x"]));
}
