//! Names of a file that others move, make and remove directly in DIR, without a pause, while a program in the
//! view opens it.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

const SECRET: &str = "the secret";
const DENIED: &str = "[[rule]]\npath = 'vault'\naction = 'deny'\n";

/// One of its names is always a denied one; it is moved, too.
#[test]
fn a_denied_file_is_not_read_while_others_move_its_names() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    for part in ["vault", "open/d", "open/e"] {
        fs::create_dir_all(at(part)).unwrap();
    }
    fs::write(at("vault/s"), SECRET).unwrap();
    fs::hard_link(at("vault/s"), at("open/a")).unwrap();
    fs::hard_link(at("vault/s"), at("open/b")).unwrap();
    let view = View::of(dir.path(), DENIED, &[]);
    let over = AtomicBool::new(false);
    let others = |names: [&str; 2], links_anew: bool| {
        let (mut names, mut turn) = (names.map(at), 0);
        while !over.load(Ordering::Relaxed) {
            // A directory above it may be elsewhere at the moment.
            if fs::rename(&names[0], &names[1]).is_ok() {
                names.reverse();
            }
            turn += 1;
            if links_anew && turn % 5 == 0 && fs::remove_file(&names[0]).is_ok() {
                while fs::hard_link(at("open/a"), &names[0]).is_err()
                    && !over.load(Ordering::Relaxed)
                {}
            }
            if turn % 7 == 0 {
                std::thread::sleep(Duration::from_micros(turn % 50));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| others(["vault/s", "vault/t"], false));
        scope.spawn(|| others(["open/b", "open/d/c"], true));
        scope.spawn(|| others(["open/d", "open/e/d"], false));
        let (begun, mut read) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs(2) {
            for name in ["open/a", "open/b", "open/d/c", "open/e/d/c"] {
                let bytes = fs::read(view.at(name));
                read += u32::from(bytes.is_ok_and(|bytes| bytes == SECRET.as_bytes()));
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(read, 0, "times it was read");
    });
}
