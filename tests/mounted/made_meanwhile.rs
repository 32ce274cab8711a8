//! Names that are made in a directory, or below it, while that gets another name under which they could
//! not be made.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, linkat, mknodat};

use crate::harness::{View, can_mount};

const POLICY: &str = r#"
    [[rule]]
    name = "kept"
    path = ["**/.kept/it", "**/.kept/deep/it"]
    operation = "create"
    action = "deny"
"#;

/// Makes what is at the path, with the help of a directory of one's own.
type Way = fn(&Path, &Path) -> io::Result<()>;

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

const WAYS: [Way; 7] = [
    |path, _| File::create_new(path).map(drop),
    |path, _| File::create(path).map(drop),
    |path, _| fs::create_dir(path),
    |path, _| std::os::unix::fs::symlink("nowhere", path),
    |path, _| Ok(mknodat(CWD, path, FileType::Socket, MODE, 0)?),
    |path, own| {
        let unnamed = rustix::fs::open(own, OFlags::TMPFILE | OFlags::RDWR, MODE)?;
        Ok(linkat(unnamed, "", CWD, path, AtFlags::EMPTY_PATH)?)
    },
    |path, own| {
        fs::write(own.join("it"), "")?;
        fs::rename(own.join("it"), path)
    },
];

fn make_and_remove(view: &View, own: &str, stop: &AtomicBool) {
    fs::create_dir(view.at(own)).unwrap();
    let own = view.at(own);
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let path = view.at(if round % 3 == 0 { "d/deep/it" } else { "d/it" });
        let _ = WAYS[round % WAYS.len()](&path, &own);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
}

/// The rule is asked about the name in the directory of the moment at which it is made.
#[test]
fn what_may_not_be_made_is_not_made_while_its_directory_moves() {
    if !can_mount() {
        return;
    }
    let view = View::with(POLICY, &[("d/deep/other", "")]);
    let stop = AtomicBool::new(false);
    let is_made = || {
        let made = |path: &str| fs::symlink_metadata(view.below(path)).is_ok();
        made(".kept/it") || made(".kept/deep/it")
    };
    let until = Instant::now() + Duration::from_millis(1500);
    let seen = std::thread::scope(|scope| {
        for own in ["a", "b"] {
            let (view, stop) = (&view, &stop);
            scope.spawn(move || make_and_remove(view, own, stop));
        }
        let mut seen = false;
        while !seen && Instant::now() < until {
            let _ = fs::rename(view.at("d"), view.at(".kept"));
            seen |= is_made();
            let _ = fs::rename(view.at(".kept"), view.at("d"));
            seen |= is_made();
        }
        stop.store(true, Ordering::Relaxed);
        seen
    });
    assert!(!seen && !is_made(), "a name was made that a rule keeps from being made");
    // Nobody waits for somebody who has gone.
    let is_at = ["d", ".kept"].map(|dir| view.below(dir).exists());
    assert_eq!(is_at.iter().filter(|is_there| **is_there).count(), 1);
}
