//! Mapped files: what is mapped is what is read, in the view and beneath.
#![expect(unsafe_code, reason = "a mapping is memory that others change")]

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::harness::{View, can_mount};

/// A mapping of a whole file.
pub(crate) struct Map {
    start: *mut u8,
    length: usize,
}

impl Map {
    pub(crate) fn new(
        file: impl AsFd,
        length: usize,
        shared: bool,
        write: bool,
    ) -> Result<Self, Errno> {
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: no address is asked for, so that nothing that exists is replaced.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap());
        }
        Ok(Self { start: start.cast(), length })
    }

    pub(crate) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: the range lies within the mapping (checked above), which lives as long as `self`,
        // and the callers keep the file at least that long. Bytes have no invalid value, whoever
        // changes them.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), length) };
        bytes
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: as in `read`; only mappings made with `write` are written to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    pub(crate) fn sync(&self) {
        // SAFETY: the mapping is this object's own.
        let result = unsafe { libc::msync(self.start.cast(), self.length, libc::MS_SYNC) };
        assert_eq!(result, 0, "msync: {}", std::io::Error::last_os_error());
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and nothing borrows from it.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

const LENGTH: usize = 3 * 4096;

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
