//! The time at which a sealed file was changed: that of the last write, whatever is made durable after it.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FallocateFlags;

use crate::harness::{Place, View, can_mount};
use crate::mapped::Map;

/// As long as the file before a change, at least.
const LENGTH: usize = 3 * 4096;
const ROUNDS: usize = 40;
/// A commit does not wait longer for a change, and the file has its time then.
const CHANGE_TAKES: Duration = Duration::from_millis(100);
const TRANSPORTS: [&str; 2] = ["auto", "devfuse"];

/// What changes a file.
type Way = (&'static str, fn(&File, &Path));

const WAYS: [Way; 10] = [
    ("begin", |file, _| file.write_all_at(b"first", 0).unwrap()),
    ("append", |_, path| {
        let mut file = File::options().append(true).open(path).unwrap();
        file.write_all(b"more").unwrap();
    }),
    ("block", |file, _| file.write_all_at(&[7; 4096], 4096).unwrap()),
    ("much", |file, _| file.write_all_at(&[7; 200_000], 0).unwrap()),
    ("empty", |_, path| drop(File::create(path).unwrap())),
    ("anew", |_, path| fs::write(path, b"anew").unwrap()),
    ("cut", |file, _| file.set_len(4096).unwrap()),
    ("by name", |_, path| {
        assert!(Command::new("truncate").arg("-s5000").arg(path).status().unwrap().success());
    }),
    ("punch", |file, _| {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, hole, 4096, 4096).unwrap();
    }),
    ("map", |file, _| {
        let map = Map::new(file, LENGTH, true, true).unwrap();
        map.write(5000, b"stored");
        map.sync();
    }),
];

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

/// The present, by the clock of the file system below: `clock` lies in it.
fn now(clock: &Path) -> SystemTime {
    fs::write(clock, b"first").unwrap();
    // Since Linux 6.13 the time of the next write is exact, as somebody has seen that of the first.
    modified(clock);
    fs::write(clock, b"second").unwrap();
    modified(clock)
}

/// Has what was written be made durable, without a wait for that: as a shell does that gives a command
/// another number for a file.
fn close_a_copy(file: &File) {
    drop(file.try_clone().unwrap());
}

/// A name that is good in the view and below, and the time to expect of it: of at least, and at most.
type Expected = (String, [SystemTime; 2]);

/// Changes a file while what was changed before becomes durable.
fn change(view: &View<'_>, clock: &Path, (name, way): Way, round: usize) -> Expected {
    let name = format!("vault/{name} {round}");
    let path = view.at(&name);
    fs::write(&path, vec![1; LENGTH]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    close_a_copy(&file);
    std::thread::sleep(Duration::from_micros(round as u64 % 8 * 250));
    let begun = now(clock);
    way(&file, &path);
    let mut ended = SystemTime::now();
    if ended.duration_since(begun).is_ok_and(|took| took >= CHANGE_TAKES) {
        ended += Duration::from_secs(60);
    }
    if round.is_multiple_of(2) {
        drop(file);
        return (name, [begun, ended]);
    }
    let seen = modified(&path);
    assert!((begun..=ended).contains(&seen), "{name}: {seen:?}, not of {begun:?} to {ended:?}");
    drop(file);
    // Who asks for the attributes next has them from the server.
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(modified(&path), seen, "{name}, closed");
    (name, [seen, seen])
}

fn check(when: &str, at: impl Fn(&str) -> PathBuf, all: &[Expected]) {
    let mut wrong = Vec::new();
    for (name, [first, last]) in all {
        let is = modified(&at(name));
        if !(*first..=*last).contains(&is) {
            wrong.push(format!("{name}: {is:?}, not of {first:?} to {last:?}"));
        }
    }
    assert!(wrong.is_empty(), "{when}, {} of {}: {wrong:#?}", wrong.len(), all.len());
}

#[test]
fn the_time_of_the_last_change_stays_while_it_becomes_durable() {
    if !can_mount() {
        return;
    }
    for transport in TRANSPORTS {
        let place = Place::new();
        let view = place.mount(&["--transport", transport]);
        let clock = place.below("open/clock");
        let rounds = (0..ROUNDS).flat_map(|round| WAYS.map(|way| (way, round)));
        let all: Vec<_> = rounds.map(|(way, round)| change(&view, &clock, way, round)).collect();
        check("mounted", |name| view.at(name), &all);
        drop(view);
        check("below", |name| place.below(name), &all);
        let view = place.mount(&["--transport", transport]);
        check("mounted again", |name| view.at(name), &all);
    }
}

/// Set before what was written is durable, or while it becomes so.
#[test]
fn a_time_that_is_set_stays() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("vault/{round}");
        let mut file = File::create(view.at(&name)).unwrap();
        close_a_copy(&file);
        file.write_all(b"content").unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        file.set_modified(time).unwrap();
        all.push((name, [time, time]));
    }
    check("mounted", |name| view.at(name), &all);
    drop(view);
    check("below", |name| place.below(name), &all);
}

/// Small writes, each beside a commit or after it, by one program; another one looks on.
#[test]
fn times_do_not_go_back_while_a_file_is_written() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&["--attr-timeout", "0"]);
    let (path, clock) = (view.at("vault/a"), place.below("open/clock"));
    let file = File::create(&path).unwrap();
    let is_over = AtomicBool::new(false);
    let last = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut last = SystemTime::UNIX_EPOCH;
            while !is_over.load(Ordering::Relaxed) {
                let now = modified(&path);
                assert!(now >= last, "{last:?}, then {now:?}");
                last = now;
            }
        });
        let mut last = SystemTime::UNIX_EPOCH;
        for round in 0..1000_u64 {
            let begun = now(&clock);
            file.write_all_at(&[7; 100], round * 50).unwrap();
            last = modified(&path);
            assert!(last >= begun, "round {round}: {last:?}, written at {begun:?}");
            if round.is_multiple_of(3) {
                close_a_copy(&file);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap();
        last
    });
    file.sync_all().unwrap();
    assert_eq!(modified(&path), last);
    drop((file, view));
    assert_eq!(modified(&place.below("vault/a")), last);
}

/// Before, while and after it becomes durable, and its last handle is gone.
#[test]
fn who_looks_again_and_again_at_a_closed_file_sees_one_time() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&["--attr-timeout", "0", "--watch", "off"]);
    for round in 0..100 {
        let path = view.at(&format!("vault/{round}"));
        fs::write(&path, [7; 5000]).unwrap();
        let seen = modified(&path);
        let begun = Instant::now();
        let look = || {
            while begun.elapsed() < Duration::from_millis(15) {
                assert_eq!(modified(&path), seen, "round {round}, after {:?}", begun.elapsed());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(look);
            scope.spawn(look);
        });
    }
}

/// Also where no block is written for it.
#[test]
fn whoever_makes_a_hole_changes_the_time() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let path = view.at("vault/a");
    fs::write(&path, vec![1; LENGTH]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    for (offset, length) in [(4096, 4096), (100, 100), (5000, 100), (4096, 4096)] {
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
        let begun = now(&place.below("open/clock"));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, offset, length).unwrap();
        let seen = modified(&path);
        assert!(seen >= begun, "{offset}, {length}: {seen:?}");
        file.sync_all().unwrap();
        assert_eq!(modified(&path), seen, "{offset}, {length}");
    }
}

/// The time of a commit is no error of it.
#[test]
fn a_file_of_somebody_else_becomes_durable() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    {
        let view = place.mount(&[]);
        fs::write(view.at("vault/a"), b"mine").unwrap();
    }
    fs::set_permissions(place.below("vault/a"), Permissions::from_mode(0o666)).unwrap();
    std::os::unix::fs::chown(place.below("vault/a"), Some(1000), Some(1000)).unwrap();
    let Some(view) = place.mount_by_non_owner() else { return };
    let file = File::options().write(true).open(view.at("vault/a")).unwrap();
    file.write_all_at(b"theirs", 0).unwrap();
    file.sync_all().unwrap();
    drop((file, view));
    let view = place.mount(&[]);
    assert_eq!(fs::read(view.at("vault/a")).unwrap(), b"theirs");
}
