//! Mapped files: what is mapped is what is read, in the view and beneath.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, open, seek};

use crate::harness::{View, can_mount};
use crate::mapped::{LENGTH, Map, lost_beside_a_mapping};
use crate::small::settle;

fn opened(path: &Path, flags: OFlags) -> std::os::fd::OwnedFd {
    open(path, flags, Mode::empty()).unwrap()
}

#[test]
fn shared_mappings_and_writes_see_each_other() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        fs::write(view.at("f"), vec![b'a'; LENGTH]).unwrap();
        let file = opened(&view.at("f"), OFlags::RDWR);
        let map = Map::new(&file, LENGTH, true, true).unwrap();
        map.write(5000, b"mapped");
        map.sync();
        assert_eq!(&fs::read(view.at("f")).unwrap()[4999..5007], b"amappeda");
        assert_eq!(&fs::read(view.below("f")).unwrap()[4999..5007], b"amappeda");
        rustix::io::pwrite(&file, b"written", 9000).unwrap();
        assert_eq!(map.read(8999, 9), b"awrittena");
        // Another process maps, writes and reads the same pages.
        let other = Map::new(opened(&view.at("f"), OFlags::RDONLY), LENGTH, true, false).unwrap();
        map.write(100, b"at once");
        assert_eq!(other.read(99, 9), b"aat oncea");
        let mut dd = Command::new("dd");
        dd.args(["bs=1", "skip=100", "count=7", "status=none"]);
        let shown = dd.arg(format!("if={}", view.at("f").display())).output().unwrap().stdout;
        assert_eq!(shown, b"at once", "{policy}");
    }
}

#[test]
fn private_mappings_stay_private() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        fs::write(view.at("f"), vec![b'a'; LENGTH]).unwrap();
        let map = Map::new(opened(&view.at("f"), OFlags::RDONLY), LENGTH, false, true).unwrap();
        map.write(10, b"mine");
        assert_eq!(map.read(9, 6), b"aminea");
        assert_eq!(fs::read(view.at("f")).unwrap(), vec![b'a'; LENGTH]);
        assert_eq!(fs::read(view.below("f")).unwrap(), vec![b'a'; LENGTH]);
    }
}

#[test]
fn a_mapping_outlives_descriptor_and_name() {
    if !can_mount() {
        return;
    }
    let view = View::new("");
    fs::write(view.at("f"), vec![b'a'; LENGTH]).unwrap();
    let file = opened(&view.at("f"), OFlags::RDWR);
    let map = Map::new(&file, LENGTH, true, true).unwrap();
    drop(file);
    fs::rename(view.at("f"), view.at("g")).unwrap();
    map.write(0, b"later");
    map.sync();
    assert_eq!(&fs::read(view.below("g")).unwrap()[..5], b"later");
    fs::remove_file(view.at("g")).unwrap();
    assert_eq!(map.read(0, 5), b"later");
}

/// What is stored into a hole is data at once, as read(2) shows it: who skips holes must not miss it.
#[test]
fn what_is_stored_into_a_hole_is_no_hole() {
    if !can_mount() {
        return;
    }
    for (policy, reads_first) in [("", false), ("", true), ("default = 'userspace'", false)] {
        let view = View::new(policy);
        fs::File::create(view.at("f")).unwrap().set_len(50_000).unwrap();
        // A small file that is read first comes from the view's page cache, also for who writes it then.
        let before = reads_first.then(|| {
            settle(&[&view.below("f")]);
            opened(&view.at("f"), OFlags::RDONLY)
        });
        let file = opened(&view.at("f"), OFlags::RDWR);
        let map = Map::new(&file, 50_000, true, true).unwrap();
        map.write(20_000, b"stored");
        let other = opened(&view.at("f"), OFlags::RDONLY);
        let data = seek(&other, SeekFrom::Data(0)).unwrap_or(u64::MAX);
        let hole = seek(&other, SeekFrom::Hole(data.min(20_000))).unwrap();
        assert!((data..hole).contains(&20_000), "{policy}, {reads_first}: {data} to {hole}");
        drop((map, before, file));
    }
}

/// The time of a write through a mapping shows, as `make` wants it to.
#[test]
fn a_write_through_a_mapping_counts_as_a_change() {
    if !can_mount() {
        return;
    }
    let view = View::new("");
    fs::write(view.at("f"), vec![b'a'; LENGTH]).unwrap();
    let before = fs::metadata(view.at("f")).unwrap().modified().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let file = opened(&view.at("f"), OFlags::RDWR);
    let map = Map::new(&file, LENGTH, true, true).unwrap();
    map.write(0, b"x");
    map.sync();
    drop((map, file));
    // The kernel may believe what it knows for the attribute timeout.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(fs::metadata(view.at("f")).unwrap().modified().unwrap() > before);
}

#[test]
fn a_write_beside_stores_into_the_same_page_stays() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        fs::write(view.at("f"), vec![b'a'; LENGTH]).unwrap();
        for copies in [false, true] {
            let source = copies.then(|| {
                let mut options = fs::File::options();
                options.read(true).write(true).create(true).open(view.at("source")).unwrap()
            });
            let lost = lost_beside_a_mapping(&view.at("f"), source, 2);
            let some = &lost[..lost.len().min(9)];
            assert!(lost.is_empty(), "{policy}, copies: {copies}: {} lost: {some:?}", lost.len());
        }
    }
}

/// The kernel writes back later what was stored before.
#[test]
fn times_that_are_set_after_a_store_stay() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = 'userspace'"] {
        let view = View::new(policy);
        fs::write(view.at("f"), vec![b'a'; LENGTH]).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let file = fs::File::options().read(true).write(true).open(view.at("f")).unwrap();
        let map = Map::new(&file, LENGTH, true, true).unwrap();
        map.write(5000, b"stored");
        file.set_modified(time).unwrap();
        drop(map);
        file.sync_all().unwrap();
        drop(file);
        for path in [view.at("f"), view.below("f")] {
            assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time, "{policy}");
            assert_eq!(&fs::read(path).unwrap()[4999..5007], b"astoreda");
        }
    }
}

/// A reader has the kernel write the page back all the time, also between the hole and its answer.
#[test]
fn a_hole_beside_stores_into_the_same_page_stays() {
    if !can_mount() {
        return;
    }
    let view = View::new("default = 'userspace'");
    fs::write(view.at("f"), vec![b'a'; LENGTH]).unwrap();
    let open = || fs::File::options().read(true).write(true).open(view.at("f")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let map = Map::new(open(), LENGTH, true, true).unwrap();
            for count in (0..=u16::MAX).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                map.write(2048, &count.to_ne_bytes());
            }
        });
        scope.spawn(|| {
            let reader = open();
            while !over.load(Ordering::Relaxed) {
                reader.read_exact_at(&mut [0; 64], 1024).unwrap();
            }
        });
        let file = open();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let mut back = 0;
        for round in 0..6_000 {
            file.write_all_at(&[b'A' + u8::try_from(round % 26).unwrap(); 64], 0).unwrap();
            rustix::fs::fallocate(&file, punch, 0, 64).unwrap();
            let mut found = [1; 64];
            file.read_exact_at(&mut found, 0).unwrap();
            back += usize::from(found != [0; 64]);
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(back, 0, "holes that were undone");
    });
}
