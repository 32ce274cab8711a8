//! Files that others put at a name at the moment at which that is renamed in the view.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::harness::{View, can_mount};

const POLICY: &str = r#"
    [[rule]]
    name = "secrets"
    path = "in/**"
    content = { regex = "the secret" }
    action = "deny"
"#;

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

/// Moves `in/x` to `out/x` in the view and back by `there` while others exchange it with a file, or a
/// directory, that may be read at `out/x` and not in `in`. Nobody gets to read that at `shown`.
fn moves(there: fn(&Path, &Path) -> io::Result<()>, shown: &str, files: &[(&str, &str)]) {
    let view = View::with(POLICY, files);
    let stop = AtomicBool::new(false);
    let (here, out) = (view.at("in/x"), view.at("out/x"));
    let reads_secret = || fs::read(view.at(shown)).is_ok_and(|text| text == b"the secret");
    let until = Instant::now() + Duration::from_millis(1200);
    let read = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (x, secret) = (view.below("in/x"), view.below("in/secret"));
            while !stop.load(Ordering::Relaxed) {
                let _ = exchange(&x, &secret);
            }
        });
        let reader = scope.spawn(|| {
            let mut read = false;
            while !read && !stop.load(Ordering::Relaxed) {
                read = reads_secret();
            }
            read
        });
        let mut read = false;
        while !read && Instant::now() < until {
            if there(&here, &out).is_ok() {
                read |= reads_secret();
                let _ = there(&out, &here);
            }
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap() || read
    });
    assert!(!read && !reads_secret(), "the secret was read");
    assert_eq!(secrets_in(view.lower()), 1, "one is lost, or there twice");
}

fn secrets_in(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let secrets = entries.map(|path| match path.is_dir() {
        true => secrets_in(&path),
        false => usize::from(fs::read(path).unwrap() == b"the secret"),
    });
    secrets.sum()
}

#[test]
fn what_others_put_in_place_of_a_renamed_file_is_judged() {
    if can_mount() {
        let rename: fn(&Path, &Path) -> _ = |from, to| fs::rename(from, to);
        moves(
            rename,
            "out/x",
            &[("in/x", "public"), ("in/secret", "the secret"), ("out/other", "")],
        );
    }
}

#[test]
fn what_others_put_in_place_of_an_exchanged_file_is_judged() {
    if can_mount() {
        let files =
            [("in/x", "public"), ("in/secret", "the secret"), ("out/x", "another, and longer")];
        moves(exchange, "out/x", &files);
    }
}

#[test]
fn what_others_put_in_place_of_a_renamed_directory_is_judged() {
    if can_mount() {
        let rename: fn(&Path, &Path) -> _ = |from, to| fs::rename(from, to);
        let files = [("in/x/f", "public"), ("in/secret/f", "the secret"), ("out/other", "")];
        moves(rename, "out/x/f", &files);
    }
}

/// A rule keeps `it` from being made in `.kept`; a directory without one may get that name. What others put in
/// its place goes back, also to where more is allowed: it has come from there.
#[test]
fn what_may_not_be_made_is_not_moved_there_in_place_of_another() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = '.kept/it'\noperation = ['create', 'write']\naction = 'deny'\n";
    let view = View::with(policy, &[("one/other", ""), ("two/it", "the secret")]);
    let stop = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_millis(1500);
    let kept = view.below(".kept/it");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (one, two) = (view.below("one"), view.below("two"));
            while !stop.load(Ordering::Relaxed) {
                let _ = exchange(&one, &two);
            }
        });
        let [one, two, there] = ["one", "two", ".kept"].map(|name| view.at(name));
        while !kept.exists() && Instant::now() < until {
            for from in [&one, &two] {
                if fs::rename(from, &there).is_ok() {
                    let _ = fs::rename(&there, from);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Where the last rename may just have been refused.
    assert!(!kept.exists(), "it was made in spite of the rule");
    assert_eq!(secrets_in(view.lower()), 1, "one is lost, or there twice");
}
