//! What was closed, and cannot be made durable on a full disk: nobody is told that it is.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;

use crate::faults::{SmallDisk, on_a_small_disk};
use crate::harness::{Place, View, can_mount, eventually};

/// Takes all room but so many pages.
fn fill(place: &Place, left: u64) -> File {
    let file = File::create(place.below("fill")).unwrap();
    let mut full = 0;
    while file.write_at(&[0; 4096], full).is_ok_and(|written| written == 4096) {
        full += 4096;
    }
    file.set_len(full - left * 4096).unwrap();
    file
}

fn write_and_sync(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

fn cut(path: &Path, length: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

/// As who opens it for that alone.
fn sync(path: &Path) -> io::Result<()> {
    File::options().read(true).write(true).open(path)?.sync_all()
}

/// Makes a file, fills the disk but for a page, and has the file changed by a block, which has room; the map
/// has none, so that the change cannot become durable. If the file gives space back meanwhile, as on a busy
/// machine, there is room; it has free blocks of its own then for each change that follows, so that another
/// file is made, and given longer to rest. Returns what takes the room, and the name of the file.
fn change_without_room(
    place: &Place,
    view: &View,
    content: &[u8],
    change: impl Fn(&Path),
) -> (File, String) {
    for attempt in 0..10 {
        let name = format!("vault/{}-{attempt}", content.len());
        let path = view.at(&name);
        write_and_sync(&path, content);
        std::thread::sleep(Duration::from_millis(100) * attempt);
        let room = fill(place, 1);
        change(&path);
        if no_room(sync(&path)) {
            return (room, name);
        }
        room.set_len(0).unwrap();
        fs::remove_file(&path).unwrap();
    }
    panic!("each change has become durable");
}

fn no_room(result: io::Result<()>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC))
}

#[test]
fn what_finds_no_room_behind_a_close_stays_and_is_told_to_who_syncs() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    let (long, new) = {
        let view = place.mount(&[]);
        let (room, long) =
            change_without_room(&place, &view, &[1; 500_000], |path| cut(path, 100_000));
        let path = view.at(&long);
        let modified = || fs::metadata(&path).unwrap().modified().unwrap();
        let cut_at = modified();
        for _ in 0..3 {
            assert!(no_room(sync(&path)), "it is not durable");
            assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
            assert_eq!(modified(), cut_at, "the content was not changed");
        }
        room.set_len(0).unwrap();
        sync(&path).unwrap();
        // What is closed gives back all that it does not need; it makes room for nobody later.
        let space = || fs::metadata(place.below(&long)).unwrap().blocks() * 512;
        eventually("its space is given back", || space() <= (29 + 16 + 3) * 4096);
        let write = |path: &Path| fs::write(path, [2; 4000]).unwrap();
        let (room, new) = change_without_room(&place, &view, &[], write);
        for _ in 0..3 {
            assert!(no_room(sync(&view.at(&new))), "it is not durable");
            assert_eq!(fs::read(view.at(&new)).unwrap(), [2; 4000]);
        }
        room.set_len(0).unwrap();
        sync(&view.at(&new)).unwrap();
        (long, new)
    };
    assert!(place.is_good("vault"));
    fs::remove_file(place.below("fill")).unwrap();
    let view = place.mount(&[]);
    assert!(fs::read(view.at(&long)).unwrap() == [1; 100_000]);
    assert_eq!(fs::read(view.at(&new)).unwrap(), [2; 4000]);
}

/// More files than are kept. What is lost is told once, and shown as it is.
#[test]
fn what_is_lost_on_a_full_disk_is_told_once_and_not_shown_any_more() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    let (kept, lost, names) = {
        let view = place.mount(&[]);
        let names: Vec<_> = (0..67).map(|number| format!("vault/{number}")).collect();
        names.iter().for_each(|name| write_and_sync(&view.at(name), &[1; 8192]));
        let room = fill(&place, 0);
        names.iter().for_each(|name| cut(&view.at(name), 4096));
        let is_lost = |name: &&String| fs::metadata(view.at(name)).unwrap().len() == 8192;
        eventually("three are lost", || names.iter().filter(is_lost).count() == 3);
        let (lost, kept): (Vec<_>, Vec<_>) = names.iter().partition(is_lost);
        for name in &lost {
            assert!(no_room(sync(&view.at(name))), "{name}: nobody was told");
            sync(&view.at(name)).unwrap();
            assert!(fs::read(view.at(name)).unwrap() == [1; 8192]);
        }
        assert!(kept.iter().all(|name| no_room(sync(&view.at(name)))));
        assert!(kept.iter().all(|name| no_room(sync(&view.at(name)))));
        room.set_len(0).unwrap();
        kept.iter().for_each(|name| sync(&view.at(name)).unwrap());
        let owned = |names: Vec<&String>| names.into_iter().cloned().collect::<Vec<_>>();
        (owned(kept), owned(lost), names)
    };
    assert_eq!(kept.len() + lost.len(), names.len());
    let view = place.mount(&[]);
    assert!(kept.iter().all(|name| fs::read(view.at(name)).unwrap() == [1; 4096]));
    assert!(lost.iter().all(|name| fs::read(view.at(name)).unwrap() == [1; 8192]));
}

/// Deleting what cannot be made durable gives its space back.
#[test]
fn a_deleted_file_is_not_kept() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    let view = place.mount(&[]);
    let (room, name) = change_without_room(&place, &view, &[1; 500_000], |path| cut(path, 100_000));
    let free = || {
        let found = rustix::fs::statvfs(place.below("")).unwrap();
        found.f_bfree * found.f_bsize
    };
    fs::remove_file(view.at(&name)).unwrap();
    eventually("its space is free", || free() > 400_000);
    // Nor until it would be tried again.
    room.set_len(0).unwrap();
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let (room, name) =
            change_without_room(&place, &view, &[1; 500_000], |path| cut(path, 100_000));
        // The commit behind the close finds no room either.
        std::thread::sleep(Duration::from_millis(300));
        let (before, removed) = (free(), Instant::now());
        fs::remove_file(view.at(&name)).unwrap();
        eventually("its space is free", || free() > before + 300_000);
        fastest = fastest.min(removed.elapsed());
        drop(room);
        fs::remove_file(place.below("fill")).unwrap();
    }
    assert!(fastest < Duration::from_secs(1), "it was kept for {fastest:?}");
}

/// Runs `act` as a user without any right of root.
fn as_user<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    use rustix::process::{Gid, Uid};
    let as_that = || {
        let (uid, gid) = (Uid::from_raw(4321), Gid::from_raw(4321));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(as_that).join().unwrap())
}

/// What a new file needs is not for those who may not have it: 40 % are for root.
#[test]
fn blocks_that_are_reserved_are_not_for_new_files_of_a_user() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (image, lower) = (base.path().join("image"), base.path().join("lower"));
    fs::create_dir(&lower).unwrap();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh"]).arg(&image).arg(&lower);
        command.output().is_ok_and(|output| output.status.success())
    };
    if !shell("truncate -s 16M $1; mke2fs -q -F -t ext4 -m 40 $1; mount -o loop $1 $2") {
        println!("skipped: no ext4 image can be mounted");
        return;
    }
    let _disk = SmallDisk(lower.clone());
    let place = Place::of(base, lower);
    fs::set_permissions(place.below("vault"), PermissionsExt::from_mode(0o777)).unwrap();
    // Large enough for the names to come.
    let names = || (0..1000).map(|number| place.below("vault").join(format!("name-{number}")));
    names().for_each(|name| drop(File::create(name).unwrap()));
    names().for_each(|name| fs::remove_file(name).unwrap());
    let view = place.mount(&[]);
    let by_user = |script: &str| {
        let mut command = Command::new("setpriv");
        let ids = ["--reuid", "4321", "--regid", "4321", "--clear-groups", "sh", "-c", script];
        command.args(ids).current_dir(view.at("vault")).output().unwrap()
    };
    let filled = by_user("cat /dev/zero >big");
    assert!(!filled.status.success(), "{filled:?}");
    let made = by_user("n=0; while [ $n -lt 300 ] && true >f$n; do n=$((n+1)); done; echo $n");
    let count: u32 = String::from_utf8_lossy(&made.stdout).trim().parse().unwrap();
    assert!(count < 50, "{count} files were made: {made:?}");
    let left = fs::read_dir(view.at("vault")).unwrap().count();
    assert_eq!(left, count as usize + 1, "one that cannot be made leaves no name");
    // A hole in a block takes a new one until the next commit.
    let free = || {
        let found = rustix::fs::statvfs(place.below("")).unwrap();
        found.f_bfree * found.f_frsize
    };
    let before = free();
    let punched = as_user(|| {
        let file = File::options().read(true).write(true).open(view.at("vault/big")).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = |block: u64| rustix::fs::fallocate(&file, hole, block * 4096 + 1, 1);
        (0..1000).try_for_each(punch)
    });
    assert_eq!(punched, Err(rustix::io::Errno::NOSPC));
    assert!(free() + (1 << 20) > before, "{} of {before} bytes are free", free());
    fs::write(view.at("vault/root"), "has room").unwrap();
}

/// As with other files: the mode is asked when a file is opened, and not again.
#[test]
fn who_has_a_file_open_may_punch_and_cut_it_whatever_its_mode_is_by_now() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let view = place.mount(&[]);
    let path = view.at("vault/plan");
    write_and_sync(&path, &[1; 20_000]);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    let file = as_user(|| File::options().read(true).write(true).open(&path)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    as_user(|| {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 4096, 4096).unwrap();
        file.set_len(10_000).unwrap();
    });
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
}

/// Made durable by its writer, it waits for no commit.
#[test]
fn a_file_without_a_name_is_gone_with_its_last_close() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    let view = place.mount(&[]);
    let free = || {
        let found = rustix::fs::statvfs(place.below("")).unwrap();
        found.f_bfree * found.f_bsize
    };
    let before = free();
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let file = File::from(rustix::fs::open(view.at("vault"), flags, mode).unwrap());
        file.write_all_at(&[7; 200_000], 0).unwrap();
        file.sync_all().unwrap();
        assert!(free() < before);
        let closed = Instant::now();
        drop(file);
        eventually("its space is free", || free() >= before);
        fastest = fastest.min(closed.elapsed());
    }
    assert!(fastest < Duration::from_secs(1), "it was kept for {fastest:?}");
}

/// The server writes to a new file before its maker does.
#[test]
fn a_new_file_keeps_its_set_id_bits() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(place.below("vault"), PermissionsExt::from_mode(0o777)).unwrap();
    let view = place.mount(&[]);
    let made = as_user(|| {
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::RDWR;
        rustix::fs::open(view.at("vault/made"), flags, rustix::fs::Mode::from_raw_mode(0o6755))
    });
    drop(made.unwrap());
    std::thread::sleep(Duration::from_millis(300));
    let mode = fs::metadata(place.below("vault/made")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o6755);
}

/// Each append seals the last block anew: what it replaces is used again without a commit.
#[test]
fn small_appends_fit_where_what_they_hold_does() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    let line = |number: usize| format!("{number:099}\n");
    {
        let view = place.mount(&[]);
        let path = view.at("vault/log");
        let mut log = File::options().append(true).create(true).open(&path).unwrap();
        (0..8000).for_each(|number| log.write_all(line(number).as_bytes()).unwrap());
        log.sync_all().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 800_000);
    }
    assert!(place.is_good("vault"));
    let view = place.mount(&[]);
    let expected: String = (0..8000).map(line).collect();
    assert!(fs::read_to_string(view.at("vault/log")).unwrap() == expected);
}

/// What the last commit referred to goes back when the next one is durable, and the rest with a close.
#[test]
fn what_a_file_does_not_need_is_free_for_others() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    let below = place.below("vault/long");
    let space = || fs::metadata(&below).unwrap().blocks() * 512;
    {
        let view = place.mount(&[]);
        let long = view.at("vault/long");
        write_and_sync(&long, &[1; 900_000]);
        assert!(space() > 900_000);
        cut(&long, 10_000);
        let modified = fs::metadata(&long).unwrap().modified().unwrap();
        eventually("the space is given back", || space() < 200_000);
        assert_eq!(fs::metadata(&long).unwrap().modified().unwrap(), modified);
        write_and_sync(&view.at("vault/other"), &[2; 900_000]);
        // A hole in the middle, too.
        let file = File::options().write(true).open(view.at("vault/other")).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 100_000, 700_000).unwrap();
        drop(file);
        let other = || fs::metadata(place.below("vault/other")).unwrap().blocks() * 512;
        eventually("the hole takes no space", || other() < 400_000);
    }
    assert!(place.is_good("vault"));
    let view = place.mount(&[]);
    assert!(fs::read(view.at("vault/long")).unwrap() == [1; 10_000]);
    let other = fs::read(view.at("vault/other")).unwrap();
    assert!(other.len() == 900_000 && other[..100_000].iter().all(|byte| *byte == 2));
    assert!(other[100_000..800_000].iter().all(|byte| *byte == 0));
    assert!(other[800_000..].iter().all(|byte| *byte == 2));
}

/// The kernel ends a process for a write beyond its limit, unless it ignores the signal.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_for_who_writes() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    fs::write(view.at("vault/small"), "small").unwrap();
    view.limit_files(64 << 10);
    let path = view.at("vault/large");
    let file = File::create(&path).unwrap();
    let written = (0..64).try_for_each(|block| file.write_all_at(&[b'l'; 4096], block * 4096));
    let synced = written.and_then(|()| file.sync_all());
    assert_eq!(synced.map_err(|error| error.raw_os_error()), Err(Some(libc::EFBIG)));
    drop(file);
    assert_eq!(fs::read(view.at("vault/small")).unwrap(), b"small");
    fs::remove_file(path).unwrap();
    fs::write(view.at("vault/after"), "after").unwrap();
    drop(view);
    let key = place.key();
    let dir = place.below("");
    let mut command = std::process::Command::new("bash");
    command.args(["-c", "ulimit -f 1; exec \"$@\"", "-", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(["seal", "rotate", "--key-file", &key, "--domain", "vault", "--dir"]).arg(&dir);
    command.arg(dir.join("vault"));
    let rotated = command.output().unwrap();
    let said = String::from_utf8_lossy(&rotated.stderr);
    assert_eq!(rotated.status.code(), Some(1), "{said}");
    assert!(said.contains("File too large"), "{said}");
}
