//! A disk loses what it had taken: nobody who wrote goes without an error.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::harness::{Place, can_mount, eventually};

/// A file system that believes it has more room than the disk below it.
struct ThinDisk {
    disk: PathBuf,
    below: PathBuf,
}

impl Drop for ThinDisk {
    fn drop(&mut self) {
        for path in [&self.disk, &self.below] {
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

impl ThinDisk {
    /// `None` after saying what is missing.
    fn new() -> Option<(ThinDisk, Place)> {
        let base = tempfile::tempdir().unwrap();
        let (disk, below) = (base.path().join("lower"), base.path().join("thin"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&below).unwrap();
        mount("tmpfs", &below, "tmpfs", MountFlags::empty(), c"size=16m").unwrap();
        let thin = ThinDisk { disk, below };
        let image = thin.below.join("image");
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        // Nothing is written but what the file has, and where.
        let options = ["-q", "-F", "-b", "4096", "-N", "64", "-m", "0", "-O", "^has_journal"];
        let lazy = ["-E", "lazy_itable_init=0,nodiscard"];
        let made = Command::new("mkfs.ext4").args(options).args(lazy).arg(&image).status();
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop,errors=continue"]).arg(&image).arg(&thin.disk);
        if !made.is_ok_and(|made| made.success()) || !mount.status().is_ok_and(|m| m.success()) {
            println!("skipped: no mkfs.ext4 in PATH (package e2fsprogs), or no loop device");
            return None;
        }
        let lower = thin.disk.clone();
        Some((thin, Place::of(base, lower)))
    }

    /// Takes all room of the disk below, until the file is removed.
    fn fill(&self) -> PathBuf {
        let path = self.below.join("fill");
        let mut file = File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

fn writer(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// A file that is durable with its first content, open to be written.
fn durable(path: &Path) -> File {
    fs::write(path, [1; 20_000]).unwrap();
    let file = writer(path);
    file.sync_all().unwrap();
    file
}

/// Writes more than the disk below has room for. A commit that was due may come between, and fail: then
/// the rest is refused.
fn overfill(file: &File) {
    let _ = file.write_all_at(&vec![3; 4 << 20], 1 << 20);
}

/// As soon as nobody is at work in it any more.
fn opened(path: &Path) -> File {
    let mut opened = None;
    eventually("nobody is at work in it", || {
        opened = File::open(path).ok();
        opened.is_some()
    });
    opened.unwrap()
}

/// One handle is told by its own fsync. What another one wrote before went with it, and the file is
/// opened again in between, by who reads it at first.
#[test]
fn each_handle_is_told_once_that_what_was_written_is_lost() {
    if !can_mount() {
        return;
    }
    let Some((disk, place)) = ThinDisk::new() else { return };
    {
        let view = place.mount(&[]);
        let path = view.at("vault/f");
        let (first, second, idle) = (durable(&path), writer(&path), writer(&path));
        first.write_all_at(&[2; 4096], 0).unwrap();
        let fill = disk.fill();
        overfill(&second);
        assert!(second.sync_all().is_err(), "the disk below has no room");
        assert!(second.write_all_at(&[4; 10], 0).is_err(), "it must be opened again");
        fs::remove_file(fill).unwrap();
        let reader = opened(&path);
        second.sync_all().unwrap();
        // A process with a copy of each descriptor ends: nobody hears of what its closes are told.
        let copies = [first.try_clone().unwrap(), idle.try_clone().unwrap()];
        let child = Command::new("true").stdin(copies[0].try_clone().unwrap()).status().unwrap();
        assert!(child.success());
        drop(copies);
        assert!(first.sync_all().is_err(), "what it wrote is lost, too");
        first.sync_all().unwrap();
        assert!(idle.sync_all().is_err(), "so is each that was open");
        idle.sync_all().unwrap();
        assert_eq!(reader.metadata().unwrap().len(), 20_000);
        first.write_all_at(&[5; 4096], 8192).unwrap();
        first.sync_all().unwrap();
        let later = writer(&path);
        later.write_all_at(&[6; 4096], 12_288).unwrap();
        later.sync_all().unwrap();
        reader.sync_all().unwrap();
        let mut expected = vec![1; 20_000];
        expected[8192..12_288].fill(5);
        expected[12_288..16_384].fill(6);
        // Where this stood still in between, the first block is durable.
        assert!(fs::read(&path).unwrap()[4096..] == expected[4096..]);
    }
    assert!(place.is_good("vault"));
}

/// The commit that is due two seconds after a write comes when the error was told already.
#[test]
fn who_opens_the_file_later_is_not_told_of_what_others_were_told() {
    if !can_mount() {
        return;
    }
    let Some((disk, place)) = ThinDisk::new() else { return };
    let view = place.mount(&[]);
    let path = view.at("vault/f");
    let file = durable(&path);
    let fill = disk.fill();
    overfill(&file);
    assert!(file.sync_all().is_err(), "the disk below has no room");
    fs::remove_file(fill).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    drop(file);
    let later = opened(&path);
    later.sync_all().unwrap();
}
