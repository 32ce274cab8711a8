//! Others remove the name that a file was met by, and leave it one whose rules are stricter.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};

use crate::harness::{View, can_mount};

const SECRET: &str = "password = \"Sup3rS3cretValue99\"\n";
const POLICY: &str = r#"
    [[rule]]
    path = "deny"
    action = "deny"
    [[rule]]
    path = "masked"
    action = "redact"
    [[rule]]
    path = "fixed"
    action = "read-only"
"#;
const PARTS: [&str; 3] = ["deny", "masked", "fixed"];
/// How long opens go on after the name is gone: the kernel may believe in it for a second.
const AFTER: Duration = Duration::from_millis(1_300);

/// A file in each directory that rules are about.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for part in PARTS.into_iter().chain(["plain"]) {
        fs::create_dir(dir.path().join(part)).unwrap();
        fs::write(dir.path().join(part).join("f"), SECRET).unwrap();
    }
    dir
}

/// What somebody gets who opens `path`.
fn opened(path: &Path, part: &str) -> Option<String> {
    let writes = part == "fixed";
    let file = fs::File::options().read(true).write(writes).open(path).ok()?;
    let text = std::io::read_to_string(&file).unwrap_or_default();
    text.contains("Sup3rS3cret").then(|| format!("{part}: {text:?} by {}", path.display()))
}

/// Opens `path` without a pause while `others` do something, and `AFTER` that.
fn opened_beside(path: &Path, part: &str, others: impl FnOnce() + Send) -> Option<String> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            others();
            std::thread::sleep(AFTER);
            over.store(true, Ordering::Relaxed);
        });
        let mut leaked = None;
        while leaked.is_none() && !over.load(Ordering::Relaxed) {
            leaked = opened(path, part);
        }
        leaked
    })
}

/// A path that leads to the file itself, whatever becomes of its names.
fn by_descriptor(path: &Path) -> (rustix::fd::OwnedFd, PathBuf) {
    let fd = rustix::fs::openat(CWD, path, OFlags::PATH, Mode::empty()).unwrap();
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    (fd, path.into())
}

#[test]
fn a_name_that_is_left_counts_whoever_met_it() {
    if !can_mount() {
        return;
    }
    for case in 0..8 {
        let [is_made_later, is_replaced, by_path] = [1, 2, 4].map(|bit| case & bit != 0);
        let dir = tree();
        let at = |path: &str| dir.path().join(path);
        let link = || {
            for part in PARTS {
                let name = format!("plain/of-{part}");
                fs::hard_link(at(&format!("{part}/f")), at(&name)).unwrap();
            }
        };
        if !is_made_later {
            link();
        }
        let view = View::of(dir.path(), POLICY, &[]);
        if is_made_later {
            link();
        }
        let leaks = &|part: &str| {
            let name = format!("plain/of-{part}");
            let file = view.at(&name);
            assert_eq!(opened(&file, part), None);
            let (_held, itself) = by_descriptor(&file);
            let others = || {
                if is_replaced {
                    fs::write(at(&format!("plain/new-{part}")), "").unwrap();
                    fs::rename(at(&format!("plain/new-{part}")), at(&name)).unwrap();
                } else {
                    fs::remove_file(at(&name)).unwrap();
                }
            };
            let leaked = opened_beside(if by_path { &file } else { &itself }, part, others);
            leaked.or_else(|| opened(&itself, part))
        };
        let what = format!("{is_made_later}, {is_replaced}, {by_path}");
        std::thread::scope(|scope| {
            let opening = PARTS.map(|part| scope.spawn(move || leaks(part)));
            for opening in opening {
                assert_eq!(opening.join().unwrap(), None, "{what}");
            }
        });
    }
}

/// Between the moment at which it is found and that at which its links are counted.
#[test]
fn a_name_that_comes_and_goes_opens_nothing() {
    if !can_mount() {
        return;
    }
    for part in ["deny", "masked"] {
        for pause_us in [0, 50, 2_000] {
            let dir = tree();
            let at = |path: &str| dir.path().join(path);
            let view = View::of(dir.path(), POLICY, &[]);
            let others = || {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(700) {
                    fs::hard_link(at(&format!("{part}/f")), at("plain/l")).unwrap();
                    std::thread::sleep(Duration::from_micros(pause_us));
                    fs::remove_file(at("plain/l")).unwrap();
                    std::thread::sleep(Duration::from_micros(pause_us));
                }
            };
            assert_eq!(opened_beside(&view.at("plain/l"), part, others), None, "{pause_us} us");
        }
    }
}

/// Nor does it lend the file a further name, which would stay when the stricter one is gone.
#[test]
fn a_name_that_comes_and_goes_is_not_linked() {
    if !can_mount() {
        return;
    }
    for pause_us in [0, 50, 300] {
        let dir = tree();
        let at = |path: &str| dir.path().join(path);
        let view = View::of(dir.path(), POLICY, &[]);
        let over = AtomicBool::new(false);
        let linked = std::thread::scope(|scope| {
            let link = |thread: usize| {
                let (view, over) = (&view, &over);
                move || {
                    let mut linked = Vec::new();
                    for n in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let from = view.at(&format!("plain/l{}", n % 6));
                        let to = view.at(&format!("plain/L{thread}-{n}"));
                        linked.extend(fs::hard_link(from, &to).is_ok().then_some(to));
                    }
                    linked
                }
            };
            let linking = [0, 1].map(|thread| scope.spawn(link(thread)));
            let start = Instant::now();
            for n in 0.. {
                if start.elapsed() > Duration::from_millis(1_500) {
                    break;
                }
                fs::hard_link(at("deny/f"), at(&format!("plain/l{}", n % 6))).unwrap();
                std::thread::sleep(Duration::from_micros(pause_us));
                if n % 3 > 0 {
                    fs::remove_file(at(&format!("plain/l{}", (n - 1) % 6))).unwrap();
                }
                if n % 3 == 2 {
                    fs::remove_file(at(&format!("plain/l{}", n % 6))).unwrap();
                }
            }
            over.store(true, Ordering::Relaxed);
            linking.map(|linking| linking.join().unwrap()).concat()
        });
        assert_eq!(linked, Vec::<PathBuf>::new(), "{pause_us} us");
    }
}

/// Whoever has it open to read may not change it by that.
#[test]
fn a_handle_gets_no_further_by_the_name_that_is_gone() {
    if !can_mount() {
        return;
    }
    let dir = tree();
    let at = |path: &str| dir.path().join(path);
    fs::hard_link(at("fixed/f"), at("plain/l")).unwrap();
    let view = View::of(dir.path(), POLICY, &[]);
    let file = fs::File::open(view.at("plain/l")).unwrap();
    let mode = || fs::Permissions::from_mode(0o600);
    assert!(file.set_permissions(mode()).is_err());
    fs::remove_file(at("plain/l")).unwrap();
    let start = Instant::now();
    while start.elapsed() < AFTER {
        assert!(file.set_permissions(mode()).is_err());
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(fs::File::options().write(true).open(&itself).is_err());
        assert!(fs::File::options().write(true).custom_flags(libc::O_TRUNC).open(&itself).is_err());
    }
    assert_eq!(fs::read_to_string(at("fixed/f")).unwrap(), SECRET);
}

/// What has one name all the time is opened while others write it and move its directory.
#[test]
fn a_file_of_one_name_is_opened_whatever_others_do_to_it() {
    if !can_mount() {
        return;
    }
    let dir = tree();
    let at = |path: &str| dir.path().join(path);
    let view = View::of(dir.path(), POLICY, &[]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fs::write(at("plain/f"), SECRET).unwrap();
            }
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            fs::read(view.at("plain/f")).unwrap();
            fs::File::options().append(true).open(view.at("plain/f")).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    let file = fs::File::open(view.at("plain/f")).unwrap();
    fs::rename(at("plain/f"), at("plain/moved")).unwrap();
    fs::read(view.at("plain/moved")).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(at("plain"), at("elsewhere")).unwrap();
    fs::read(view.at("elsewhere/moved")).unwrap();
}
