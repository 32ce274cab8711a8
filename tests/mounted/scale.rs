//! Many files: more than descriptors, more than should stay in memory. And callers who would keep
//! the workers from serving others.
#![expect(unsafe_code, reason = "the standard library has no leases and no signal dispositions")]

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};

use crate::harness::{View, can_mount};

const DIRS: usize = 60;
const FILES_PER_DIR: usize = 1000;
const DESCRIPTORS: &str = "1024";
/// The server may keep a quarter of what a full table takes once everything is forgotten: fragments
/// of the allocator, and what threads touched that had not run before (6 of 38 MiB on a busy machine).
const KEPT: u64 = 4;
/// Longer than it takes the kernel to forget, and the server to give memory back, on a busy machine.
const FORGETS_WITHIN: Duration = Duration::from_secs(60);

fn make_tree(root: &Path) {
    for dir in 0..DIRS {
        let dir = root.join(format!("dir {dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..FILES_PER_DIR {
            fs::write(dir.join(format!("file {file}")), file.to_string()).unwrap();
        }
    }
}

/// Reads every file, and returns how many there were.
fn read_tree(root: &Path) -> usize {
    let mut count = 0;
    for dir in fs::read_dir(root).unwrap().map(Result::unwrap) {
        for file in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            let text = fs::read_to_string(file.path()).unwrap();
            assert_eq!(file.file_name().to_str(), Some(&*format!("file {text}")));
            count += 1;
        }
    }
    count
}

/// 60,000 files are walked and read with 1,024 descriptors, then removed: nothing fails, and what
/// the kernel has forgotten the server has forgotten too.
#[test]
fn more_files_than_descriptors() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), "", &["--max-descriptors", DESCRIPTORS]);
    fs::create_dir(lower.path().join("tree")).unwrap();
    make_tree(&lower.path().join("tree"));
    // Once round with a few files, so that what is made at first use is there.
    fs::read_to_string(view.at("tree/dir 0/file 0")).unwrap();
    let before = view.resident_kib();
    assert_eq!(read_tree(&view.at("tree")), DIRS * FILES_PER_DIR);
    let (full, nodes) = (view.resident_kib(), view.status("nodes"));
    let used = view.status("descriptors_used");
    assert!(used <= 1024, "{used} descriptors");
    fs::remove_dir_all(view.at("tree")).unwrap();
    let deadline = Instant::now() + FORGETS_WITHIN;
    while view.status("nodes") > 1 {
        assert!(Instant::now() < deadline, "{} nodes are not forgotten", view.status("nodes"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let most = before + full.saturating_sub(before) / KEPT;
    // Memory is given back a little later.
    let deadline = Instant::now() + FORGETS_WITHIN;
    while view.resident_kib() > most && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = view.resident_kib();
    println!("resident: {before} KiB before, {full} KiB with {nodes} nodes, {after} KiB after");
    assert!(after <= most, "{before} KiB before, {full} KiB full, {after} KiB after");
}

/// Files that are open need a descriptor each, and nobody who opens one waits until the kernel has made
/// the server's table of descriptors larger.
#[test]
fn the_table_of_descriptors_has_room() {
    const FILES: usize = 600;
    if !can_mount() {
        return;
    }
    let view = View::new("");
    (0..FILES).for_each(|n| fs::write(view.below(&format!("f{n}")), "text").unwrap());
    let room = || {
        let status = fs::read_to_string(format!("/proc/{}/status", view.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let before = room();
    let open = |n| fs::File::options().write(true).open(view.at(&format!("f{n}"))).unwrap();
    let files: Vec<_> = (0..FILES).map(open).collect();
    let (used, after) = (view.status("descriptors_used"), room());
    drop(files);
    assert!(used >= FILES as u64, "{used} descriptors: the test shows nothing");
    assert_eq!(after, before, "the table grew while {used} descriptors were used");
}

/// A caller who holds write leases on files does not stop others while somebody opens or truncates
/// those files.
#[test]
fn leases_do_not_hold_all_workers() {
    const FILES: usize = 12;
    /// The kernel gives the holder of a lease 45 s.
    const LONG: Duration = Duration::from_secs(20);
    if !can_mount() {
        return;
    }
    let view = View::new("[[rule]]\npath = 'watched'\naction = 'userspace'\n");
    fs::create_dir(view.below("watched")).unwrap();
    let name = |n: usize| format!("watched/{n}");
    let leased: Vec<_> = (0..FILES)
        .map(|n| {
            fs::write(view.below(&name(n)), "text").unwrap();
            fs::File::options().write(true).open(view.below(&name(n))).unwrap()
        })
        .collect();
    // SAFETY: takes no pointer to memory; the break of a lease is signalled and must not end the
    // test.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    for file in &leased {
        // SAFETY: takes no pointer; the descriptor is open.
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        if taken != 0 {
            println!("skipped: no lease can be taken here");
            return;
        }
    }
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..FILES {
            let path = view.at(&name(n));
            scope.spawn(move || {
                let file = fs::File::options().write(true).open(&path);
                let cut = file.and_then(|file| file.set_len(1));
                assert_eq!(cut.err().and_then(|error| error.raw_os_error()), Some(libc::EAGAIN));
            });
        }
        while view.count("open") == 0 {
            std::thread::yield_now();
        }
        fs::write(view.at("free"), "served").unwrap();
        assert_eq!(fs::read_to_string(view.at("free")).unwrap(), "served");
    });
    assert!(begun.elapsed() < LONG, "others waited for {:?}", begun.elapsed());
    drop(leased);
    fs::write(view.at(&name(0)), "again").unwrap();
}

/// The path of a directory is not kept where it is long: what a caller can make the server keep for
/// each inode is bounded.
#[test]
fn directories_at_long_paths_cost_no_more_than_others() {
    const DIRS: usize = 1_500;
    /// Bytes of memory that the server may take for a directory; 60,000 before.
    const MAX_BYTES_EACH: u64 = 3_000;
    if !can_mount() {
        return;
    }
    let view = View::new("[[rule]]\npath = '**/secret'\naction = 'deny'\n");
    let (name, flags) = ("n".repeat(250), OFlags::DIRECTORY | OFlags::CLOEXEC);
    let mut here = rustix::fs::open(view.root(), flags, Mode::empty()).unwrap();
    for _ in 0..200 {
        rustix::fs::mkdirat(&here, &name, Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, &name, flags, Mode::empty()).unwrap();
    }
    let make = |from: usize| {
        for n in from..from + DIRS {
            let name = n.to_string();
            rustix::fs::mkdirat(&here, &name, Mode::RWXU).unwrap();
            let dir = rustix::fs::openat(&here, &name, flags, Mode::empty()).unwrap();
            let file = rustix::fs::openat(&dir, "f", OFlags::CREATE, Mode::RWXU).unwrap();
            drop((dir, file));
        }
    };
    // What threads take that are called while others are slow is taken once.
    make(0);
    let before = view.resident_kib();
    make(DIRS);
    let grown = view.resident_kib().saturating_sub(before) << 10;
    println!("{} bytes for each directory", grown / DIRS as u64);
    assert!(grown / (DIRS as u64) < MAX_BYTES_EACH, "{grown} bytes for {DIRS} directories");
}

/// What rules look into is a regular file, also where somebody has a FIFO take its place at any
/// moment: whoever opened that would wait for a writer who never comes.
#[test]
fn a_fifo_that_takes_a_files_place_holds_nobody() {
    if !can_mount() {
        return;
    }
    const CALLERS: usize = 4;
    const ROUNDS: usize = 300;
    let policy = "[[rule]]\npath = '**'\nkind = 'file'\naction = 'deny'\n\
                  content = { regex = 'held back' }\n";
    let view = View::with(policy, &[("file", "text")]);
    let paths = [view.below("file"), view.below("fifo")];
    rustix::fs::mkfifoat(CWD, &paths[1], Mode::from_raw_mode(0o666)).unwrap();
    let at = view.at("file");
    let (done, ended) = channel();
    for _ in 0..CALLERS {
        let (at, done) = (at.clone(), done.clone());
        // Not waited for if it hangs.
        std::thread::spawn(move || {
            let moved = at.with_extension("moved");
            for _ in 0..ROUNDS {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                drop(rustix::fs::openat(CWD, &at, flags, Mode::empty()));
                let _ = fs::rename(&at, &moved).and_then(|()| fs::rename(&moved, &at));
                let _ = fs::metadata(&at);
            }
            done.send(()).unwrap();
        });
    }
    let begun = Instant::now();
    let mut left = CALLERS;
    while left > 0 && begun.elapsed() < FORGETS_WITHIN {
        for _ in 0..50 {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            let _ = rustix::fs::renameat_with(CWD, &paths[0], CWD, &paths[1], exchange);
        }
        left -= ended.try_iter().count();
    }
    if left > 0 {
        view.kill_server();
    }
    assert_eq!(left, 0, "callers hang");
    assert!(view.status("descriptors_max") > 0);
}
