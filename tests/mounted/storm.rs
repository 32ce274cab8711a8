//! Names in motion: several callers rename, link, remove and look up at random, and none of them may
//! ever see what the policy keeps. `TOLLGATE_STORM_SECONDS` is how long it runs, 3 s unless given;
//! `TOLLGATE_STORM_SEED` repeats a run as far as threads can be repeated.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};

use crate::harness::{View, can_mount};

const SECRET: &str = "what nobody may see";
const POLICY: &str = r#"
    [[rule]]
    path = "vault"
    action = "deny"
    [[rule]]
    path = "hidden"
    action = "hide"
    [[rule]]
    path = ["keys", "**/*.key"]
    operation = "read"
    action = "deny"
    [[rule]]
    path = "watched"
    action = "userspace"
"#;
const DIRS: [&str; 7] = ["vault", "hidden", "keys", "watched", "open", "open/sub", "more"];
const FILES_PER_DIR: u64 = 4;
const SECRETS: [&str; 3] = ["vault", "hidden", "keys"];

/// xorshift64*: the same numbers for the same seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    fn dir(&mut self) -> &'static str {
        DIRS[usize::try_from(self.below(DIRS.len() as u64)).unwrap()]
    }

    fn path(&mut self, root: &Path) -> PathBuf {
        let (dir, number) = (self.dir(), self.below(FILES_PER_DIR));
        let name = if self.below(6) == 0 { format!("{number}.key") } else { number.to_string() };
        root.join(dir).join(name)
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// A tree in which each secret has a further name in each directory that is open.
fn tree() -> tempfile::TempDir {
    let base = tempfile::tempdir().unwrap();
    for dir in DIRS {
        fs::create_dir_all(base.path().join(dir)).unwrap();
        for file in 0..FILES_PER_DIR {
            let text = if SECRETS.contains(&dir) { SECRET } else { "public" };
            fs::write(base.path().join(dir).join(file.to_string()), text).unwrap();
        }
    }
    for dir in SECRETS {
        for open in ["open", "open/sub", "more"] {
            let alias = base.path().join(open).join(format!("alias of {dir}"));
            fs::hard_link(base.path().join(dir).join("0"), alias).unwrap();
        }
    }
    base
}

/// One change or look, whatever comes of it.
fn change(root: &Path, random: &mut Random) {
    let (one, other) = (random.path(root), random.path(root));
    let exchange = || rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
    let dirs = |random: &mut Random| (root.join(random.dir()), root.join(random.dir()));
    match random.below(12) {
        0..4 => drop(rustix::fs::rename(&one, &other)),
        4 => drop(exchange()),
        5 | 6 => drop(rustix::fs::link(&one, &other)),
        7 => drop(fs::remove_file(&one)),
        8 => drop(fs::write(&one, "public")),
        9 => {
            let (from, to) = dirs(random);
            let _ = rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE);
            let _ = rustix::fs::rename(&from, to.join("moved"));
            let _ = rustix::fs::rename(to.join("moved"), &from);
        }
        _ => drop(fs::metadata(&one)),
    }
}

fn assert_public(mut file: fs::File, way: &str) {
    let mut text = String::new();
    if file.read_to_string(&mut text).is_ok() {
        assert!(!text.contains(SECRET), "{way} tells it");
    }
}

/// Reads whatever can be read: by name, from a directory held open, by opening a handle again.
fn look(root: &Path, random: &mut Random, held: &mut Vec<OwnedFd>) {
    let path = random.path(root);
    let alias = root.join(random.dir()).join(format!("alias of {}", random.dir()));
    for path in [&path, &alias] {
        if let Ok(file) = fs::File::open(path) {
            assert_public(file, &path.display().to_string());
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        held.extend(rustix::fs::open(path, flags, Mode::empty()));
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(dir) = rustix::fs::open(root.join(random.dir()), flags, Mode::empty()) {
        let name = random.below(FILES_PER_DIR).to_string();
        if let Ok(fd) = rustix::fs::openat(&dir, name, OFlags::CLOEXEC, Mode::empty()) {
            assert_public(fd.into(), "a file in a directory held open");
        }
    }
    for fd in held.iter() {
        if let Ok(file) = fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
            assert_public(file, "a handle opened again");
        }
    }
    if held.len() > 16 {
        held.drain(..8);
    }
}

#[test]
fn what_is_kept_is_never_seen_while_names_move() {
    if !can_mount() {
        return;
    }
    let duration = Duration::from_secs(number("TOLLGATE_STORM_SECONDS", 3));
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let seed = number("TOLLGATE_STORM_SEED", u64::try_from(now % (1 << 40)).unwrap() | 1);
    println!("seed {seed}");
    let base = tree();
    let view = View::of(base.path(), POLICY, &["--threads", "4"]);
    let (root, end) = (view.root(), Instant::now() + duration);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_add(thread * 7919) | 1);
                while Instant::now() < end {
                    change(root, &mut random);
                }
            });
        }
        for thread in 4..6 {
            scope.spawn(move || {
                let (mut random, mut held) =
                    (Random(seed.wrapping_add(thread * 7919) | 1), Vec::new());
                while Instant::now() < end {
                    look(root, &mut random, &mut held);
                }
            });
        }
    });
    // It still serves, and what was denied from the start is still as it was.
    fs::create_dir_all(view.at("alive")).unwrap();
    let lost = (0..FILES_PER_DIR).filter(|n| {
        fs::read_to_string(base.path().join(format!("vault/{n}"))).is_ok_and(|text| text != SECRET)
    });
    assert_eq!(lost.count(), 0, "a file of the vault was changed");
}
