//! What programs are told of sealed files, beside files of the bare directory below.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, SeekFrom, mknodat, seek};
use rustix::io::Errno;

use crate::harness::{Place, View, can_mount, eventually};
use crate::mapped::Map;

const MIB: u64 = 1 << 20;

/// The same name in the view, sealed, and in the bare directory.
fn both(place: &Place, view: &View<'_>, name: &str) -> [PathBuf; 2] {
    [view.at(&format!("vault/{name}")), place.below(&format!("open/{name}"))]
}

pub(crate) fn make_by_mknod(path: &Path, mode: u32) -> Result<(), Errno> {
    mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(mode), 0)
}

/// As `tar --xattrs -x` does.
#[test]
fn a_file_that_is_made_by_mknod_is_written_and_read() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    for path in both(&place, &view, "f") {
        make_by_mknod(&path, 0o640).unwrap();
        assert_eq!(make_by_mknod(&path, 0o640), Err(Errno::EXIST));
        let made = fs::metadata(&path).unwrap();
        assert_eq!((made.len(), made.mode() & 0o7777), (0, 0o640));
        assert_eq!(fs::read(&path).unwrap(), b"");
        rustix::fs::setxattr(&path, "user.k", b"v", rustix::fs::XattrFlags::empty()).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"content", 0).unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"content");
    }
    assert!(fs::read(place.below("vault/f")).unwrap().starts_with(b"TGSEALED"));
    // Never opened, also by nobody who could.
    make_by_mknod(&view.at("vault/never opened"), 0o600).unwrap();
    make_by_mknod(&view.at("vault/for nobody"), 0).unwrap();
    drop(view);
    assert!(place.is_good("vault"));
    let view = place.mount(&[]);
    for name in ["never opened", "for nobody"] {
        assert_eq!(fs::read(view.at("vault").join(name)).unwrap(), b"");
    }
}

/// What lseek(2) finds from each of these places.
fn found(file: &File) -> Vec<Result<u64, Errno>> {
    let places = [0, 1, 4096, MIB - 1, MIB, MIB + 1, MIB + 4096, 2 * MIB, 3 * MIB - 1, 3 * MIB];
    let seeks = places.iter().flat_map(|at| [SeekFrom::Data(*at), SeekFrom::Hole(*at)]);
    seeks.map(|to| seek(file, to)).collect()
}

#[test]
fn holes_are_found_where_the_bare_directory_has_them() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let open = |path: &Path| {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let [sealed, bare] = both(&place, &view, "f").map(|path| open(&path));
    let same = |what: &str| assert_eq!(found(&sealed), found(&bare), "{what}");
    let all = |act: &dyn Fn(&File)| [&sealed, &bare].into_iter().for_each(act);
    same("an empty file");
    all(&|file| file.set_len(3 * MIB).unwrap());
    same("one hole");
    all(&|file| file.write_all_at(&[1; 4096], MIB).unwrap());
    same("a block between two holes");
    all(&|file| file.write_all_at(&vec![2; 1 << 20], 3 * MIB / 2).unwrap());
    same("many blocks");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    all(&|file| rustix::fs::fallocate(file, hole, 2 * MIB, 8192).unwrap());
    same("a hole that was punched");
    all(&|file| file.sync_all().unwrap());
    same("on the disk");
    all(&|file| file.write_all_at(&[3; 1], 3 * MIB - 1).unwrap());
    same("the last byte");
    drop((sealed, view));
    let view = place.mount(&[]);
    assert_eq!(found(&File::open(view.at("vault/f")).unwrap()), found(&bare), "opened again");
}

/// What is stored through a mapping is data, as read(2) shows it.
#[test]
fn what_is_stored_into_a_hole_is_no_hole() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let path = view.at("vault/f");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(MIB).unwrap();
    let other = File::open(&path).unwrap();
    assert_eq!(seek(&other, SeekFrom::Data(0)), Err(Errno::NXIO));
    let map = Map::new(&file, 1 << 20, true, true).unwrap();
    map.write(500_000, b"stored");
    let data = seek(&other, SeekFrom::Data(0)).unwrap();
    let hole = seek(&other, SeekFrom::Hole(data)).unwrap();
    assert!((data..hole).contains(&500_000), "{data} to {hole}");
    drop((map, file, other));
    // Nobody can store into it any more.
    eventually("the holes are found again", || {
        seek(File::open(&path).unwrap(), SeekFrom::Data(0)) == Ok(500_000 / 4096 * 4096)
    });
}

/// Whether the time of access was left at the one that was set, after each of these.
fn keeps_time_of_access(path: &Path, below: &Path) -> Vec<bool> {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let kept = || fs::metadata(below).unwrap().accessed().unwrap() == at(5);
    let mut all = Vec::new();
    fs::write(path, vec![1; 100_000]).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_times(FileTimes::new().set_accessed(at(5)).set_modified(at(7))).unwrap();
    drop(file);
    all.push(kept());
    // As `touch -m` does.
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(at(9)).unwrap();
    file.sync_all().unwrap();
    drop(file);
    all.push(kept());
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(b"in part", 50_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    all.push(kept());
    let file = File::open(path).unwrap();
    file.metadata().unwrap();
    all.push(kept());
    file.read_exact_at(&mut [0; 100], 0).unwrap();
    all.push(kept());
    all
}

#[test]
fn the_time_of_access_is_that_of_reading() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let [sealed, bare] = both(&place, &view, "f");
    let below = place.below("vault/f");
    let kept = keeps_time_of_access(&bare, &bare);
    assert_eq!(keeps_time_of_access(&sealed, &below), kept);
    drop(view);
    // Nobody has it open, and the server knows nothing of it.
    let view = place.mount(&[]);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
    let times = FileTimes::new().set_accessed(long_ago);
    File::options().write(true).open(&below).unwrap().set_times(times).unwrap();
    assert_eq!(fs::metadata(view.at("vault/f")).unwrap().len(), 100_000);
    assert_eq!(fs::metadata(&below).unwrap().accessed().unwrap(), long_ago);
}
