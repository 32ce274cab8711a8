//! Files that one program in the view opens while another one renames, links or removes them there.

use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `open` in two threads, again and again, while `change` runs in a third; what they counted.
fn meanwhile(open: impl Fn() -> bool + Sync, change: impl FnOnce()) -> usize {
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    count.fetch_add(usize::from(open()), Ordering::Relaxed);
                }
            });
        }
        let changed = catch_unwind(AssertUnwindSafe(change));
        over.store(true, Ordering::Relaxed);
        changed.unwrap_or_else(|panic| resume_unwind(panic));
    });
    count.into_inner()
}

/// The name that is removed goes on counting, from before it is gone.
#[test]
fn a_file_is_not_read_by_its_other_name_while_the_stricter_one_is_removed() {
    if !can_mount() {
        return;
    }
    const PAIRS: usize = 4000;
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str, n: usize| dir.path().join(format!("{path}/{n}"));
    for part in ["vault", "lax"] {
        fs::create_dir(dir.path().join(part)).unwrap();
    }
    for n in 0..PAIRS {
        fs::write(at("vault", n), "the secret").unwrap();
        fs::hard_link(at("vault", n), at("lax", n)).unwrap();
    }
    let policy = "[[rule]]\npath = 'vault'\noperation = 'read'\naction = 'deny'\n";
    let view = View::of(dir.path(), policy, &[]);
    let now = AtomicUsize::new(0);
    let open = || {
        let name = format!("lax/{}", now.load(Ordering::Relaxed));
        fs::File::open(view.at(&name)).is_ok()
    };
    let read = meanwhile(open, || {
        for n in 0..PAIRS {
            now.store(n, Ordering::Relaxed);
            let _ = fs::metadata(view.at(&format!("lax/{n}")));
            fs::remove_file(view.at(&format!("vault/{n}"))).unwrap();
        }
    });
    assert_eq!(read, 0, "times it was read");
}

/// What was removed goes on counting as long as the file is there, and not longer.
#[test]
fn nothing_is_kept_of_files_whose_last_name_is_gone() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'strict'\noperation = 'read'\naction = 'deny'\n";
    let view = View::with(policy, &[("strict/other", ""), ("lax/other", "")]);
    let (lax, strict) = (view.at("lax/x"), view.at("strict/x"));
    let links = || view.server_report()["view"]["links"].clone();
    for how in ["unlink", "rename over", "open"] {
        fs::write(&lax, "text").unwrap();
        fs::hard_link(&lax, &strict).unwrap();
        fs::remove_file(&strict).unwrap();
        assert!(fs::read(&lax).is_err(), "the name that was removed does not count");
        assert!(links()["bytes"].as_u64().unwrap() > 0);
        let held = (how == "open").then(|| fs::File::options().write(true).open(&lax).unwrap());
        if how == "rename over" {
            fs::write(view.at("lax/y"), "").unwrap();
            fs::rename(view.at("lax/y"), &lax).unwrap();
        } else {
            fs::remove_file(&lax).unwrap();
        }
        drop(held);
        let begun = Instant::now();
        while links()["bytes"] != 0 {
            assert!(begun.elapsed() < PATIENCE, "{how}: {}", links());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A file that is open in passthrough does not get a name by which each read passes the server, also while it is
/// being opened: of who has it open there the server sees the reads.
fn moves_to_where_it_is_seen(from: &str, to: &str, file: [&str; 2]) {
    let dir = tempfile::tempdir().unwrap();
    for part in ["seen", "plain/d"] {
        fs::create_dir_all(dir.path().join(part)).unwrap();
    }
    for name in ["plain/f", "plain/d/f"] {
        fs::write(dir.path().join(name), "text").unwrap();
    }
    let policy = "[[rule]]\npath = 'seen'\naction = 'userspace'\n";
    // It is not judged each time as long as it may be read and nobody wants to know.
    let log = tempfile::NamedTempFile::new().unwrap();
    let audit = ["--audit-level", "opens", "--audit", log.path().to_str().unwrap()];
    for audit in [&[][..], &audit] {
        renames_while_it_is_opened(&View::of(dir.path(), policy, audit), [from, to], file);
    }
}

fn renames_while_it_is_opened(view: &View, [from, to]: [&str; 2], file: [&str; 2]) {
    let begun = Instant::now();
    let (plain, seen) = (view.at(file[0]), view.below(file[1]));
    let open = || {
        let Ok(open) = fs::File::open(&plain) else { return false };
        let is_there = (0..3).any(|_| seen.exists());
        if is_there {
            assert_eq!(open.read_at(&mut [0; 4], 0).unwrap(), 4);
        }
        drop(open);
        // Whoever renames it has to meet it closed.
        std::thread::sleep(Duration::from_micros(100));
        is_there
    };
    let read = meanwhile(open, || {
        while begun.elapsed() < Duration::from_secs(2) {
            if fs::rename(view.at(from), view.at(to)).is_ok() {
                std::thread::sleep(Duration::from_micros(500));
                fs::rename(view.below(to), view.below(from)).unwrap();
            }
        }
    });
    let counted = view.count("read");
    assert!(counted >= read as u64, "{counted} of {read} reads were seen");
}

#[test]
fn a_file_is_judged_again_that_is_renamed_while_it_is_opened() {
    if can_mount() {
        moves_to_where_it_is_seen("plain/f", "seen/f", ["plain/f", "seen/f"]);
        moves_to_where_it_is_seen("plain/d", "seen/d", ["plain/d/f", "seen/d/f"]);
    }
}

/// Others remove and make files below it; it is theirs to be renamed all the same.
#[test]
fn a_directory_is_renamed_while_files_below_are_removed() {
    if !can_mount() {
        return;
    }
    let view = View::with("[[rule]]\npath = 'src/.env'\naction = 'deny'\n", &[("src/d/f", "")]);
    for n in 0..500 {
        fs::write(view.below(&format!("src/{n}")), "").unwrap();
    }
    let begun = Instant::now();
    let names = ["src", "src2"]
        .map(|name| (view.below(&format!("{name}/t")), view.below(&format!("{name}/d/g"))));
    let make = || {
        for (file, dir) in &names {
            let _ = fs::write(file, "");
            let _ = fs::create_dir(dir);
            let _ = fs::remove_file(file);
            let _ = fs::remove_dir(dir);
        }
        false
    };
    meanwhile(make, || {
        while begun.elapsed() < Duration::from_secs(2) {
            fs::rename(view.at("src"), view.at("src2")).unwrap();
            fs::rename(view.at("src2"), view.at("src")).unwrap();
        }
    });
}

/// As soon as the kernel was told what others did to `path`.
fn is_read_soon(path: &Path, text: &[u8]) {
    let begun = Instant::now();
    loop {
        let read = fs::read(path);
        if read.as_ref().is_ok_and(|read| read == text) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{}: {read:?}", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// By others, right before it is removed in the view: the one that has another name by then is not taken for the
/// one that was removed.
#[test]
fn a_file_that_others_rename_while_its_name_is_removed_is_still_read() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'log*'\ncontent = { regex = 'secret' }\naction = 'deny'\n";
    let view = View::with(policy, &[]);
    let [log, old, new] = ["log", "log.1", "new"].map(|name| view.below(name));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        fs::write(&log, "old").unwrap();
        fs::write(&new, "new").unwrap();
        is_read_soon(&view.at("log"), b"old");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if fs::rename(&log, &old).is_ok() {
                    fs::rename(&new, &log).unwrap();
                }
            });
            let _ = fs::remove_file(view.at("log"));
        });
        // Unless it was removed before it was renamed.
        if let Ok(text) = fs::read(&old) {
            is_read_soon(&view.at("log.1"), &text);
            fs::remove_file(&old).unwrap();
        }
        let _ = (fs::remove_file(&log), fs::remove_file(&new));
    }
}
