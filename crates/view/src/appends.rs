//! Where what a program appends goes in the file.
//!
//! The kernel sends an append with the offset that it takes for the end of the file. Others write the lower
//! file, too, directly or in another view, so the end may be elsewhere: what they appended must not be
//! overwritten, and where they emptied the file no hole may come to be. In the view itself, an open with
//! `O_TRUNC` does not hold off who appends. So it goes to the end of the file, whatever the offset.
//!
//! The offset tells in which order parts belong: an append by asynchronous I/O, or with `O_DIRECT`, that
//! does not fit one request comes in several at the same time, which may be served in any order. One that
//! comes before those in front of it waits for them. They have been received by then, or are about to be, as the
//! kernel sends them in order.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

/// A request that others follow holds so much less than the largest one, if it is the first: the kernel sends
/// whole pages, and the buffer may begin within one.
const PAGE: u64 = 4096;
/// How long a request waits for what is in front of it. Where others cut the file, one in 256 looks so
/// by chance, and nothing comes; else whoever serves what comes may wait for a CPU.
const PATIENCE: Duration = Duration::from_millis(100);

/// Appends to one file through the view.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    /// The offset at which the kernel sends the next one, if it has not looked at the file since the
    /// latest.
    next: Mutex<Option<u64>>,
    served: Condvar,
}

impl Appends {
    /// Has `write` append what the kernel would append at `offset`, at the end of the file, which `size` tells. A
    /// request holds at most `most` bytes. Returns how many bytes were written, as write(2) does.
    ///
    /// # Errors
    /// Those of `size` and `write`.
    pub(crate) fn append(
        &self,
        (offset, most): (u64, u64),
        size: impl Fn() -> Result<u64, Errno>,
        write: impl FnOnce(u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        self.append_within(PATIENCE, (offset, most), size, write)
    }

    /// The same after [`Appends::wait`]: what is in front of it is there, or does not come.
    pub(crate) fn append_now(
        &self,
        size: impl FnOnce() -> Result<u64, Errno>,
        offset: u64,
        write: impl FnOnce(u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut next = self.next.lock();
        let len = write(size()?)?;
        self.follow(&mut next, offset, len);
        Ok(len)
    }

    /// Waits as [`Appends::append`] does, and appends nothing: for threads that may wait, before others do
    /// the work.
    pub(crate) fn wait(
        &self,
        (offset, most): (u64, u64),
        size: impl Fn() -> Result<u64, Errno>,
    ) -> Result<(), Errno> {
        self.wait_within(PATIENCE, &mut self.next.lock(), (offset, most), size).map(|_| ())
    }

    /// [`Appends::append`] with another bound of the wait.
    fn append_within(
        &self,
        patience: Duration,
        (offset, most): (u64, u64),
        size: impl Fn() -> Result<u64, Errno>,
        write: impl FnOnce(u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        // Held over the write: what waits for it comes after it.
        let mut next = self.next.lock();
        let end = self.wait_within(patience, &mut next, (offset, most), size)?;
        let len = write(end)?;
        self.follow(&mut next, offset, len);
        Ok(len)
    }

    /// Returns the end of the file, to which nothing is appended as long as `next` is held.
    fn wait_within(
        &self,
        patience: Duration,
        next: &mut MutexGuard<'_, Option<u64>>,
        (offset, most): (u64, u64),
        size: impl Fn() -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        let mut until = None;
        loop {
            let end = size()?;
            if !is_early(offset, end, **next, most) {
                return Ok(end);
            }
            let until = *until.get_or_insert_with(|| Instant::now() + patience);
            if self.served.wait_until(next, until).timed_out() {
                return size();
            }
        }
    }

    /// So much was appended of what the kernel sent for `offset`.
    fn follow(&self, next: &mut Option<u64>, offset: u64, len: usize) {
        *next = Some(offset + len as u64);
        self.served.notify_all();
    }

    /// The same where nothing has to be waited for; else `None`, and nothing is done.
    pub(crate) fn append_at_once(
        &self,
        (offset, most): (u64, u64),
        size: impl FnOnce() -> Result<u64, Errno>,
        write: impl FnOnce(u64) -> Option<usize>,
    ) -> Option<usize> {
        let mut next = self.next.try_lock()?;
        let end = size().ok()?;
        if is_early(offset, end, *next, most) {
            return None;
        }
        let len = write(end)?;
        self.follow(&mut next, offset, len);
        Some(len)
    }

    /// Runs `change`, which cuts the file, while nothing is appended: the end is where it was looked for.
    pub(crate) fn held_off<T>(&self, change: impl FnOnce() -> T) -> T {
        let _held = self.next.lock();
        change()
    }
}

/// Whether an append at `offset`, to a file that ends at `end`, comes before a part of the same in front of it. The
/// kernel sends the next one at `next`.
fn is_early(offset: u64, end: u64, next: Option<u64>, most: u64) -> bool {
    if next == Some(offset) || offset == end {
        return false;
    }
    [Some(end), next].iter().flatten().any(|at| is_part(offset, *at, most))
}

/// Whether an append at `offset` leaves room for parts of the same in front of it, if that began at `start`.
fn is_part(offset: u64, start: u64, most: u64) -> bool {
    let Some(front) = offset.checked_sub(start).filter(|front| *front > 0) else { return false };
    front.div_ceil(most) * most - front < PAGE
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::lower;

    const MOST: u64 = 1 << 20;

    /// A file that is appended to through the view.
    struct Appended {
        file: tempfile::NamedTempFile,
        appends: Appends,
    }

    impl Appended {
        fn new(before: &[u8]) -> Appended {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), before).unwrap();
            Appended { file, appends: Appends::default() }
        }

        fn append(&self, data: &[u8], offset: u64) {
            self.append_within(data, offset, PATIENCE);
        }

        fn append_within(&self, data: &[u8], offset: u64, patience: Duration) {
            let fd = self.other().as_fd();
            let size = || Ok(lower::stat_fd(fd)?.size());
            let write = |_| lower::append_full(fd, data);
            let len = self.appends.append_within(patience, (offset, MOST), size, write).unwrap();
            assert_eq!(len, data.len());
        }

        /// As others have it.
        fn other(&self) -> &File {
            self.file.as_file()
        }

        fn content(&self) -> Vec<u8> {
            std::fs::read(self.file.path()).unwrap()
        }
    }

    fn bytes(byte: u8, count: u64) -> Vec<u8> {
        vec![byte; usize::try_from(count).unwrap()]
    }

    #[test]
    fn what_others_appended_stays() {
        let file = Appended::new(b"old");
        file.append(b"one", 3);
        lower::append_full(file.other().as_fd(), b"out").unwrap();
        file.append(b"two", 6);
        assert_eq!(file.content(), b"oldoneouttwo");
    }

    /// Whatever is gone, also as much as whole requests hold, or nearly.
    #[test]
    fn no_hole_comes_to_be_where_others_cut_the_file() {
        for size in [6, MOST, 2 * MOST - 6, 3 * MOST, 200 * MOST - 4_000] {
            for left in [0, 5] {
                let file = Appended::new(b"");
                file.other().set_len(size - 1).unwrap();
                file.append(b"x", size - 1);
                file.other().set_len(left).unwrap();
                for (place, record) in [b"one", b"two", b"six"].iter().enumerate() {
                    file.append(*record, size + 3 * place as u64);
                }
                let expected = [&bytes(0, left), &b"onetwosix"[..]].concat();
                assert_eq!(file.content(), expected, "{size} {left}");
            }
        }
    }

    /// Nothing was appended through the view before.
    #[test]
    fn no_hole_comes_to_be_where_others_cut_the_file_before_the_first_append() {
        let file = Appended::new(b"");
        file.append(b"one", 8 * MOST);
        // What was waited for once is not waited for again.
        let years = Duration::from_secs(1 << 30);
        file.append_within(b"two", 8 * MOST + 3, years);
        file.append_within(b"six", 8 * MOST + 6, years);
        assert_eq!(file.content(), b"onetwosix");
    }

    /// Each in a thread of its own, one after the other.
    #[test]
    fn parts_of_one_append_may_come_in_any_order() {
        for (unaligned, by_others) in [(0, ""), (100, ""), (4_095, ""), (100, "cut"), (100, "grew")]
        {
            let sizes = [MOST - unaligned, MOST, 5];
            // The kernel takes this for the end.
            let end = 3 * MOST + 7;
            let mut offset = end;
            let parts = sizes.iter().zip([b'a', b'b', b'c']).map(|(size, byte)| {
                let part = (bytes(byte, *size), offset);
                offset += size;
                part
            });
            let parts: Vec<_> = parts.collect();
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                let file = Appended::new(b"");
                file.other().set_len(end - 1).unwrap();
                file.append(b"x", end - 1);
                match by_others {
                    "cut" => file.other().set_len(1).unwrap(),
                    "grew" => file.other().set_len(6 * MOST).unwrap(),
                    _ => (),
                }
                let before = file.content();
                let file = &file;
                std::thread::scope(|scope| {
                    for part in order.map(|part| &parts[part]) {
                        let patience = Duration::from_secs(60);
                        scope.spawn(move || file.append_within(&part.0, part.1, patience));
                        std::thread::sleep(Duration::from_millis(3));
                    }
                });
                let parts = parts.iter().flat_map(|(data, _)| data);
                let expected: Vec<u8> = before.iter().chain(parts).copied().collect();
                assert!(file.content() == expected, "{unaligned} {by_others} {order:?}");
            }
        }
    }
}
