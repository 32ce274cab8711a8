//! Writers that meet a file at the moment at which another one takes its place.
#![expect(unsafe_code, reason = "the standard library has no leases")]

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::harness::{PATIENCE, Place, can_mount, eventually};

/// Whether a lease holds off who would open the file for writing.
fn hold(file: &File) -> bool {
    const F_SETSIG: i32 = 10;
    // Instead of the signal that would end this process.
    // SAFETY: the descriptor is open, and the argument is a signal's number.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) }, 0);
    // SAFETY: the descriptor is open, and the argument is a kind of lease.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) == 0 }
}

fn somebody_waits(file: &File) -> bool {
    // SAFETY: the descriptor is open, and this command has no argument.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) != libc::F_RDLCK }
}

fn append(path: &Path) -> io::Result<()> {
    let mut file = File::options().append(true).open(path)?;
    file.write_all(b"late")?;
    file.sync_all()
}

fn empty_and_write(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(b"late")?;
    file.sync_all()
}

fn cut_by_name(path: &Path) -> io::Result<()> {
    let done = Command::new("truncate").arg("-s2").arg(path).status()?;
    if done.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EAGAIN)) }
}

/// `seal rotate` gives its lease up with another file under the name: who has waited for it found the
/// file of before, which nobody will find any more.
#[test]
fn who_waits_while_a_file_is_replaced_writes_the_new_one() {
    if !can_mount() {
        return;
    }
    type Way = fn(&Path) -> io::Result<()>;
    let ways: [(&str, Way, &[u8]); 3] = [
        ("append", append, b"oldlate"),
        ("empty", empty_and_write, b"late"),
        ("cut", cut_by_name, b"ol"),
    ];
    let place = Place::new();
    {
        let view = place.mount(&[]);
        for (name, way, expected) in ways {
            let (path, below) = (view.at("vault").join(name), place.below("vault").join(name));
            fs::write(&path, b"old").unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
            let leased = File::open(&below).unwrap();
            eventually("the server has closed it", || hold(&leased));
            let new = place.below("vault").join("new");
            fs::copy(&below, &new).unwrap();
            let late = std::thread::spawn({
                let path = path.clone();
                move || {
                    let begun = Instant::now();
                    // The server waits a second for leases.
                    while let Err(error) = way(&path) {
                        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{name}: {error}");
                        assert!(begun.elapsed() < PATIENCE, "{name}");
                    }
                }
            });
            eventually("somebody waits", || somebody_waits(&leased));
            fs::rename(&new, &below).unwrap();
            drop(leased);
            late.join().unwrap();
            assert_eq!(fs::read(&path).unwrap(), expected, "{name}");
        }
    }
    let view = place.mount(&[]);
    for (name, _, expected) in ways {
        assert_eq!(fs::read(view.at("vault").join(name)).unwrap(), expected, "{name}");
    }
}

/// What is not complete yet, or was replaced a moment ago, would be judged by a name that no rule is
/// about.
#[test]
fn what_a_command_is_at_work_on_is_not_shown() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let apart = place.below(".tollgate-seal.new");
    fs::create_dir(&apart).unwrap();
    fs::write(apart.join("plain"), b"to be sealed").unwrap();
    let view = place.mount(&[]);
    let error = fs::read(view.at(".tollgate-seal.new/plain")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let mut names = fs::read_dir(view.at("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| name == ".tollgate-seal.new"));
}

/// As by `seal rotate`, before the kernel has looked a name up again.
#[test]
fn what_is_changed_of_a_file_that_was_replaced_just_now_is_changed_of_the_new_one() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let names = ["mode", "attribute", "linked"].map(|name| format!("vault/{name}"));
    let view = place.mount(&[]);
    names.iter().for_each(|name| fs::write(view.at(name), "sealed").unwrap());
    drop(view);
    let view = place.mount(&["--watch", "off", "--attr-timeout", "600"]);
    let apart = place.below("apart");
    for name in &names {
        let (seen, below) = (view.at(name), place.below(name));
        // The server keeps the file that it has found here.
        fs::read(&seen).unwrap();
        fs::metadata(&seen).unwrap();
        fs::copy(&below, &apart).unwrap();
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &apart, rustix::fs::CWD, &below, flags).unwrap();
        match name.strip_prefix("vault/") {
            Some("mode") => {
                fs::set_permissions(&seen, fs::Permissions::from_mode(0o604)).unwrap();
                assert_eq!(fs::metadata(&below).unwrap().mode() & 0o777, 0o604);
            }
            Some("attribute") => {
                let none = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&seen, "user.k", b"v", none).unwrap();
                assert_eq!(rustix::fs::getxattr(&below, "user.k", &mut [0; 8]), Ok(1));
            }
            _ => {
                fs::hard_link(&seen, view.at("vault/further")).unwrap();
                let inode = |path: &Path| fs::metadata(path).unwrap().ino();
                assert_eq!(inode(&place.below("vault/further")), inode(&below));
                assert_eq!(fs::metadata(&apart).unwrap().nlink(), 1);
            }
        }
        assert_eq!(fs::read_to_string(&seen).unwrap(), "sealed");
    }
}

/// As by `seal rotate`, which found that the file had got a further name, and put it back.
#[test]
fn a_file_that_was_put_back_is_found_by_its_first_name_when_the_further_one_is_gone() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&["--watch", "off", "--attr-timeout", "600"]);
    let (first, further) = (view.at("vault/first"), view.at("vault/further"));
    fs::write(&first, "sealed").unwrap();
    fs::hard_link(&first, &further).unwrap();
    let (below, apart) = (place.below("vault/first"), place.below("apart"));
    fs::copy(&below, &apart).unwrap();
    let exchange = || {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &apart, rustix::fs::CWD, &below, flags).unwrap();
    };
    let inode = fs::metadata(&below).unwrap().ino();
    exchange();
    // The server looks at the names here.
    fs::set_permissions(&further, fs::Permissions::from_mode(0o640)).unwrap();
    exchange();
    fs::remove_file(&further).unwrap();
    fs::set_permissions(&first, fs::Permissions::from_mode(0o604)).unwrap();
    let found = fs::metadata(&below).unwrap();
    assert_eq!((found.ino(), found.mode() & 0o777), (inode, 0o604));
}

/// What takes the place of a file has no lock, and nobody is kept out by the one on the old file.
#[test]
fn a_file_that_is_locked_is_not_replaced() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    fs::write(view.at("vault/lock"), "sealed").unwrap();
    let rotate = || {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let done = place.seal_vault("rotate");
            // The server has it open to write for a moment longer.
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            if !said.contains("open for writing elsewhere") {
                return (done.status.code(), said);
            }
            assert!(Instant::now() < deadline, "{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    assert_eq!(rotate().0, Some(0));
    let file = File::open(view.at("vault/lock")).unwrap();
    for lock in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
        rustix::fs::flock(&file, lock).unwrap();
        let (code, said) = rotate();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("vault/lock: is locked by a program"), "{said}");
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    }
    let (code, said) = rotate();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fs::read_to_string(view.at("vault/lock")).unwrap(), "sealed");
}

/// A log that `tail -f` has open from its beginning, say: whoever has it open reads on.
#[test]
fn a_file_that_was_written_and_is_only_read_now_is_replaced() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let path = view.at("vault/log");
    let mut writer = File::create(&path).unwrap();
    let mut reader = File::open(&path).unwrap();
    let mut content = Vec::new();
    for round in 0..3_u8 {
        writer.write_all(&[round; 5000]).unwrap();
        content.extend([round; 5000]);
        drop(writer);
        eventually("it is replaced", || {
            let done = place.seal_vault("rotate");
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.status.success() || said.contains("open for writing elsewhere"), "{said}");
            done.status.success()
        });
        assert_eq!(fs::read(&path).unwrap(), content);
        let mut read = Vec::new();
        reader.seek(SeekFrom::Start(0)).unwrap();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, content);
        reader = File::open(&path).unwrap();
        // Who only reads may empty it.
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC;
        drop(rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        content.clear();
        writer = File::options().append(true).open(&path).unwrap();
    }
    drop((writer, reader, view));
    assert!(place.is_good("vault"));
}
