//! Small files that are only read come from the view's page cache, and nobody notices but by the
//! speed.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FlockOperation;

use crate::harness::{View, as_user, can_mount};
use crate::mapped::Map;

/// A file younger than this may be passed through: its times might not tell a further change.
const SETTLED: Duration = Duration::from_millis(4_200);
/// A handle that is held sees a change outside within this time. It takes a second; a busy machine
/// takes longer.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
/// More rounds than a busy machine disturbs.
const ROUNDS: u64 = 200;
/// The largest file that is served so.
const LARGEST: usize = 64 << 10;

/// Waits until the files have not changed for a while.
pub(crate) fn settle(files: &[&Path]) {
    let youngest = |file: &&Path| fs::metadata(file).unwrap().ctime();
    let youngest = files.iter().map(youngest).max().unwrap();
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let settled = Duration::from_secs(youngest.cast_unsigned()) + SETTLED;
    while now() < settled {
        std::thread::sleep(settled.saturating_sub(now()));
    }
}

/// A view of settled files. `None` where nothing can be mounted, or where the lower file system's
/// times do not tell every change.
pub(crate) fn view(policy: &str, files: &[(&str, &str)]) -> Option<View> {
    if !can_mount() {
        return None;
    }
    let view = View::with(policy, files);
    let paths: Vec<_> = files.iter().map(|(path, _)| view.below(path)).collect();
    settle(&paths.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    let magic = rustix::fs::statfs(view.lower()).unwrap().f_type;
    if ![0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010].contains(&magic) {
        println!("skipped: files on this file system ({magic:#x}) are never cached");
        return None;
    }
    Some(view)
}

/// Opens, reads and closes.
#[track_caller]
pub(crate) fn read(view: &View, path: &str) -> String {
    fs::read_to_string(view.at(path)).unwrap()
}

#[track_caller]
pub(crate) fn soon(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SEEN_WITHIN, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn append(path: &Path) -> File {
    File::options().append(true).open(path).unwrap()
}

#[test]
fn neither_reads_nor_attributes_are_asked_for() {
    if !can_mount() {
        return;
    }
    let sizes = [1, 4095, 4096, 4097, 10_000, LARGEST, LARGEST + 1];
    let text = |size: usize| "tollgate ".repeat(size / 9 + 1)[..size].to_owned();
    let names: Vec<_> = sizes.iter().map(|size| format!("dir/{size}")).collect();
    let texts: Vec<_> = sizes.iter().map(|size| text(*size)).collect();
    let files: Vec<_> = names.iter().map(String::as_str).zip(texts.iter().map(|t| &**t)).collect();
    let Some(view) = view("", &files) else { return };
    // Attributes expire within a second where there are no reports, for a while also where much else
    // changes on the file system: on a busy machine that may be in the middle of a round.
    let mut undisturbed = 0;
    for round in 1.. {
        assert!(round < ROUNDS, "attributes are asked for again in each of {round} rounds");
        // Attributes that are known and valid.
        for name in &names {
            fs::metadata(view.at(name)).unwrap();
        }
        let asked = view.count("getattr");
        for (name, text) in &files[..6] {
            let mut file = File::open(view.at(name)).unwrap();
            let map = Map::new(&file, text.len(), true, false).unwrap();
            assert_eq!(map.read(0, text.len()), text.as_bytes());
            let mut found = String::new();
            file.read_to_string(&mut found).unwrap();
            assert_eq!((&*found, file.metadata().unwrap().len()), (*text, text.len() as u64));
        }
        assert_eq!(view.count("open_cached"), 6 * round);
        undisturbed += u64::from(view.count("getattr") <= asked + 1);
        assert_eq!(read(&view, &names[6]), texts[6]);
        assert_eq!(view.count("open_passthrough"), round, "too large");
        if undisturbed == 3 {
            break;
        }
    }
    assert_eq!(view.count("read"), 0);
}

#[test]
fn the_next_open_sees_what_changed_outside() {
    let Some(view) = view("", &[("dir/f", "first"), ("dir/g", "first")]) else { return };
    let below = view.below("dir/f");
    let changes: [(&str, &dyn Fn()); 6] = [
        ("fir5t", &|| {
            File::options().write(true).open(&below).unwrap().write_all(b"fir5t").unwrap();
        }),
        ("fir5t and more", &|| append(&below).write_all(b" and more").unwrap()),
        ("fir", &|| File::options().write(true).open(&below).unwrap().set_len(3).unwrap()),
        ("third", &|| fs::write(&below, "third").unwrap()),
        ("map", &|| {
            let file = File::options().read(true).write(true).open(&below).unwrap();
            file.set_len(3).unwrap();
            Map::new(&file, 3, true, true).unwrap().write(0, b"map");
        }),
        ("replaced", &|| {
            fs::write(view.below("dir/new"), "replaced").unwrap();
            fs::rename(view.below("dir/new"), &below).unwrap();
        }),
    ];
    for (index, (expected, change)) in changes.iter().enumerate() {
        settle(&[&below]);
        let before = read(&view, "dir/f");
        assert_eq!(read(&view, "dir/f"), before);
        assert_ne!(before, *expected);
        assert_eq!(view.count("open_cached") % 2, 0, "round {index} is served from the cache");
        change();
        if index < 5 {
            assert_eq!(read(&view, "dir/f"), *expected);
        } else {
            // Another inode: names are seen within milliseconds.
            soon("a file that took the place", || read(&view, "dir/f") == *expected);
        }
    }
    assert!(view.count("open_cached") >= 12);
}

/// Who asks for the size first, to read as much or to map it.
#[test]
fn the_next_open_sees_the_size_of_what_changed_outside() {
    let Some(view) = view("", &[("dir/f", "first")]) else { return };
    let below = view.below("dir/f");
    for length in [30_000, 7, 12_345, 1] {
        settle(&[&below]);
        let before = read(&view, "dir/f").len() as u64;
        assert_eq!(fs::metadata(view.at("dir/f")).unwrap().len(), before);
        fs::write(&below, vec![b'x'; length]).unwrap();
        let opened = File::open(view.at("dir/f")).unwrap();
        assert_eq!(opened.metadata().unwrap().len(), length as u64, "{before} before");
    }
}

/// Through a name in a directory that nobody watches, so that no report comes.
#[test]
fn a_held_handle_and_a_mapping_see_a_change_within_the_timeout() {
    let Some(view) = view("", &[("dir/f", "first"), ("away/f", "")]) else { return };
    fs::remove_file(view.below("away/f")).unwrap();
    fs::hard_link(view.below("dir/f"), view.below("away/f")).unwrap();
    settle(&[&view.below("dir/f")]);
    let held = File::open(view.at("dir/f")).unwrap();
    let map = Map::new(&held, 5, true, false).unwrap();
    assert_eq!((view.count("open_cached"), map.read(0, 5)), (1, b"first".to_vec()));
    let outside = File::options().read(true).write(true).open(view.below("away/f")).unwrap();
    outside.write_all_at(b"second, and longer", 0).unwrap();
    let at_start = |expected: &[u8]| {
        let mut bytes = vec![0; expected.len()];
        held.read_at(&mut bytes, 0).is_ok_and(|read| bytes[..read] == *expected)
    };
    soon("a write, by read", || at_start(b"second, and longer"));
    soon("a write, in a mapping", || map.read(0, 5) == b"secon");
    // The first store changes the times, the second does not.
    let stored = Map::new(&outside, 5, true, true).unwrap();
    for text in [b"third", b"forth", b"fifth"] {
        stored.write(0, text);
        soon("a store, in a mapping", || map.read(0, 5) == text);
        soon("a store, by read", || at_start(text));
    }
}

#[test]
fn who_maps_a_file_outside_for_writing_is_seen_at_once() {
    let Some(view) = view("", &[("dir/f", "first")]) else { return };
    let outside = File::options().read(true).write(true).open(view.below("dir/f")).unwrap();
    let stored = Map::new(&outside, 5, true, true).unwrap();
    stored.write(0, b"secon");
    settle(&[&view.below("dir/f")]);
    let held = File::open(view.at("dir/f")).unwrap();
    let map = Map::new(&held, 5, true, false).unwrap();
    assert_eq!(view.count("open_cached"), 0);
    for text in [b"third", b"forth", b"fifth"] {
        stored.write(0, text);
        assert_eq!(
            (map.read(0, 5), read(&view, "dir/f").into_bytes()),
            (text.to_vec(), text.to_vec())
        );
    }
}

/// One inode, one mode: a writer that comes while a reader holds the file goes through the server.
#[test]
fn a_writer_joins_a_reader_and_nothing_is_lost() {
    let Some(view) = view("", &[("dir/log", "0\n"), ("dir/map", "first")]) else { return };
    let mut reader = File::open(view.at("dir/log")).unwrap();
    assert_eq!(view.count("open_cached"), 1);
    // Appended from inside and from outside at the same time.
    std::thread::scope(|scope| {
        for path in [view.at("dir/log"), view.at("dir/log"), view.below("dir/log")] {
            scope.spawn(move || {
                for _ in 0..200 {
                    append(&path).write_all(b"line\n").unwrap();
                }
            });
        }
    });
    let lower = fs::read_to_string(view.below("dir/log")).unwrap();
    assert_eq!((lower.len(), lower.matches("line\n").count()), (2 + 600 * 5, 600));
    assert_eq!(read(&view, "dir/log"), lower);
    let mut seen = String::new();
    reader.seek(SeekFrom::Start(0)).unwrap();
    reader.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, lower);
    // Overwritten, cut short, mapped.
    let held = File::open(view.at("dir/map")).unwrap();
    let writer = File::options().read(true).write(true).open(view.at("dir/map")).unwrap();
    let (shared, shown) =
        (Map::new(&writer, 5, true, true).unwrap(), Map::new(&held, 5, true, false).unwrap());
    shared.write(0, b"Map");
    shared.sync();
    assert_eq!(fs::read(view.below("dir/map")).unwrap(), b"Mapst");
    assert_eq!(shown.read(0, 5), b"Mapst");
    writer.write_all_at(b"xy", 3).unwrap();
    assert_eq!((shown.read(0, 5), &*read(&view, "dir/map")), (b"Mapxy".to_vec(), "Mapxy"));
    writer.set_len(1).unwrap();
    assert_eq!((held.metadata().unwrap().len(), &*read(&view, "dir/map")), (1, "M"));
    drop((shared, shown, writer, held, reader));
    // From now on passthrough serves them better.
    settle(&[&view.below("dir/map"), &view.below("dir/log")]);
    let cached = view.count("open_cached");
    assert_eq!((&*read(&view, "dir/map"), read(&view, "dir/log")), ("M", lower));
    assert_eq!(view.count("open_cached"), cached);
}

/// Whoever has a lock sees what was written before the last holder gave it up.
#[test]
fn a_locked_file_is_what_it_is_beneath() {
    let Some(view) = view("", &[("dir/f", "first")]) else { return };
    let lock = |file: &File, how| rustix::fs::flock(file, how).unwrap();
    let mut held = File::open(view.at("dir/f")).unwrap();
    let mut found = String::new();
    held.read_to_string(&mut found).unwrap();
    assert_eq!((&*found, view.count("open_cached")), ("first", 1));
    for text in ["secon", "third", "forth"] {
        let outside = File::options().write(true).open(view.below("dir/f")).unwrap();
        lock(&outside, FlockOperation::LockExclusive);
        outside.write_all_at(text.as_bytes(), 0).unwrap();
        lock(&outside, FlockOperation::Unlock);
        lock(&held, FlockOperation::LockShared);
        let mut bytes = [0; 5];
        held.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, text.as_bytes());
        lock(&held, FlockOperation::Unlock);
    }
    drop(held);
    settle(&[&view.below("dir/f")]);
    assert_eq!((&*read(&view, "dir/f"), view.count("open_cached")), ("forth", 1));
}

#[test]
fn a_file_that_lost_its_name_and_its_pages_is_still_read() {
    let files = [("dir/inside", "first"), ("dir/outside", "second")];
    let Some(view) = view("", &files) else { return };
    let held = files.map(|(name, _)| File::open(view.at(name)).unwrap());
    fs::remove_file(view.at("dir/inside")).unwrap();
    fs::remove_file(view.below("dir/outside")).unwrap();
    for (mut file, (_, text)) in held.into_iter().zip(files) {
        let drop_pages = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&file, 0, None, drop_pages).unwrap();
        let mut found = String::new();
        file.read_to_string(&mut found).unwrap();
        assert_eq!(found, text);
    }
    assert_eq!((view.count("open_cached"), view.count("read") > 0), (2, true));
}

#[test]
fn what_was_just_made_or_is_written_is_passed_through() {
    let Some(view) = view("", &[("dir/f", "first")]) else { return };
    fs::write(view.at("dir/new"), "new").unwrap();
    assert_eq!(read(&view, "dir/new"), "new");
    let writer = append(&view.at("dir/f"));
    assert_eq!(read(&view, "dir/f"), "first");
    drop(writer);
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(view.at("dir/f"));
    drop(direct.unwrap());
    assert_eq!(view.count("open_cached"), 0);
    assert_eq!(read(&view, "dir/f"), "first");
    assert_eq!(view.count("open_cached"), 1);
}

/// Who may read is asked at each open, whatever the kernel has of the file.
#[test]
fn what_the_kernel_has_is_shown_to_nobody_else() {
    let policy = "
[[rule]]
path = 'dir/f'
uid = 4711
action = 'deny'
[[rule]]
path = 'dir/slow'
action = 'userspace'
";
    let files = [("dir/f", "first"), ("dir/slow", "slow")];
    let Some(view) = view(policy, &files) else { return };
    for dir in [view.root().parent().unwrap(), view.lower()] {
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = view.at("dir/f");
    for _ in 0..2 {
        assert_eq!((&*read(&view, "dir/f"), &*read(&view, "dir/slow")), ("first", "slow"));
        let refused = as_user(4711, 4711, || fs::read(&path).unwrap_err());
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        assert_eq!(as_user(4712, 4712, || fs::read(&path).unwrap()), b"first");
    }
    assert_eq!((view.count("open_cached"), view.count("open_userspace")), (4, 2));
    assert!(view.count("refused_deny") >= 2);
}

#[test]
fn it_can_be_switched_off_and_needs_times_that_tell() {
    let Some(first) = view("", &[("dir/f", "first")]) else { return };
    let opened = |options: &[&str]| {
        let view = View::of(first.lower(), "", options);
        assert_eq!(read(&view, "dir/f"), "first");
        view.count("open_cached")
    };
    assert_eq!(opened(&[]), 1);
    assert_eq!(opened(&["--small-files", "passthrough"]), 0);
    assert_eq!(opened(&["--watch", "off"]), 0);
    assert_eq!(opened(&["--watch", "off", "--small-files", "cached"]), 1);
    assert_eq!(opened(&["--small-files", "cached", "--attr-timeout", "0.5"]), 0);
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(memory.path().join("dir")).unwrap();
    let file = memory.path().join("dir/f");
    fs::write(&file, "first").unwrap();
    settle(&[&file]);
    let view = View::of(memory.path(), "", &["--small-files", "cached"]);
    assert_eq!((&*read(&view, "dir/f"), view.count("open_cached")), ("first", 0));
}
