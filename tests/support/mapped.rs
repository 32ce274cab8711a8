//! Mapped files.
#![expect(unsafe_code, reason = "a mapping is memory that others change")]
#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Of the files that are mapped here.
pub(crate) const LENGTH: usize = 3 * 4096;

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

/// Two programs change a page, one of them through a mapping. For each of `writes` in turn: what was written
/// was there after the call, and once the mapping is synchronized; so was the last store. Returns what was not.
/// Every other write is copied by the kernel if there is a `source` for that.
pub(crate) fn lost_beside_a_mapping(
    path: &Path,
    mut source: Option<fs::File>,
    seconds: u64,
) -> Vec<String> {
    let open = |path| fs::File::options().read(true).write(true).open(path).unwrap();
    let file = open(path);
    let map = Map::new(&file, LENGTH, true, true).unwrap();
    let (stop, mut lost) = (AtomicBool::new(false), Vec::new());
    // Two bytes at the end of each page; the writer has what is before.
    let stored = |page: usize| page * 4096 + 4094;
    std::thread::scope(|scope| {
        let last = scope.spawn(|| {
            let map = Map::new(open(path), LENGTH, true, true).unwrap();
            let (mut count, mut lost) = (0u16, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let before = count.to_ne_bytes();
                count = count.wrapping_add(1);
                for page in 0..3 {
                    if count > 1 && map.read(stored(page), 2) != before {
                        lost.push(format!("store before {count} of page {page}"));
                    }
                    map.write(stored(page), &count.to_ne_bytes());
                }
            }
            (count, lost)
        });
        let (writer, until, mut round) = (open(path), Instant::now(), 0u64);
        while until.elapsed() < Duration::from_secs(seconds) {
            round += 1;
            let at = round * 512 % 4096 + round % 3 * 4096;
            let bytes = [round.to_ne_bytes(); 32].concat();
            match &mut source {
                Some(source) if round.is_multiple_of(2) => copy(source, &bytes, (&writer, at)),
                _ => writer.write_all_at(&bytes, at).unwrap(),
            }
            let mut found = vec![0; bytes.len()];
            writer.read_exact_at(&mut found, at).unwrap();
            if found != bytes {
                lost.push(format!("write {round} of {at}"));
            }
            if round.is_multiple_of(64) {
                map.sync();
            }
        }
        stop.store(true, Ordering::Relaxed);
        let (count, stores) = last.join().unwrap();
        lost.extend(stores);
        map.sync();
        for page in 0..3 {
            let mut found = [0; 2];
            file.read_exact_at(&mut found, stored(page) as u64).unwrap();
            if found != count.to_ne_bytes() {
                lost.push(format!("store {count} of page {page}"));
            }
        }
        // Each place has the last that was written there, and so has the mapping.
        for (at, round) in (round.saturating_sub(23)..=round)
            .map(|round| (round * 512 % 4096 + round % 3 * 4096, round))
        {
            let mut found = [0; 256];
            file.read_exact_at(&mut found, at).unwrap();
            let wanted = [round.to_ne_bytes(); 32].concat();
            if found[..] != wanted || map.read(usize::try_from(at).unwrap(), 256) != wanted {
                lost.push(format!("write {round} of {at}, at the end"));
            }
        }
    });
    lost
}

/// Has the kernel copy `bytes`.
fn copy(source: &mut fs::File, bytes: &[u8], (target, at): (&fs::File, u64)) {
    source.write_all_at(bytes, 0).unwrap();
    let (mut from, mut to, mut left) = (0, at, bytes.len());
    while left > 0 {
        let copied =
            rustix::fs::copy_file_range(&*source, Some(&mut from), target, Some(&mut to), left);
        left -= copied.unwrap();
    }
}
