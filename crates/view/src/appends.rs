//! Where what a program appends goes in the lower file.
//!
//! The kernel sends an append with the offset that it takes for the end of the file. Others write the
//! file, too, directly or in another view, so the end may be elsewhere: what they appended must not be
//! overwritten, and where they emptied the file no hole may come to be. So it goes to the end of the
//! lower file.
//!
//! But an append by asynchronous I/O that does not fit one request comes in several at the same time,
//! which may be served in any order: one that comes before those in front of it lies beyond the end by what
//! they hold.

use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::lower;

/// A request that others follow holds so much less than the largest one, if it is the first: the kernel sends
/// whole pages, and the buffer may begin within one.
const PAGE: u64 = 4096;

/// Appends through one handle.
#[derive(Debug, Default)]
pub(crate) struct Appends(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    /// Where the file ended after the latest append.
    end: u64,
    /// That came before others in front of it.
    overtook: bool,
}

impl Appends {
    /// Writes `data`, which the kernel would append at `offset`. A request holds at most `most` bytes.
    /// Returns how many bytes were written, as write(2) does.
    ///
    /// # Errors
    /// Those of fstat(2) and write(2).
    pub(crate) fn write(
        &self,
        fd: BorrowedFd<'_>,
        (data, offset): (&[u8], u64),
        most: u64,
    ) -> Result<usize, Errno> {
        // Held over the write: two requests look at the end one after the other.
        let mut latest = self.0.lock();
        let end = lower::stat_fd(fd)?.size();
        if latest.fits_at(offset, end, most) {
            let len = lower::write_full(fd, data, offset)?;
            *latest = Latest { end: end.max(offset + len as u64), overtook: true };
            return Ok(len);
        }
        let len = lower::append_full(fd, data)?;
        let overtook = latest.overtook && (latest.end, offset) == (end, end);
        *latest = Latest { end: end + len as u64, overtook };
        Ok(len)
    }
}

impl Latest {
    /// Whether an append at `offset`, in a file that ends at `end`, is a part of one that belongs there: it
    /// leaves room for parts in front of it, or is one for which another left it. A file that became
    /// shorter was cut by others.
    fn fits_at(&self, offset: u64, end: u64, most: u64) -> bool {
        if end < self.end || offset == end {
            return false;
        }
        if offset < end {
            return self.overtook && self.end == end;
        }
        let beyond = offset - end;
        beyond.div_ceil(most) * most - beyond < PAGE
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    const MOST: u64 = 1 << 20;

    fn written(
        before: &[u8],
        appends: &[(&[u8], u64)],
        between: impl Fn(&std::fs::File),
    ) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), before).unwrap();
        let handle = Appends::default();
        for (data, offset) in appends {
            let len = handle.write(file.as_file().as_fd(), (data, *offset), MOST).unwrap();
            assert_eq!(len, data.len());
            between(file.as_file());
        }
        std::fs::read(file.path()).unwrap()
    }

    #[test]
    fn what_others_appended_stays() {
        let other = |file: &std::fs::File| {
            lower::append_full(file.as_fd(), b"out").unwrap();
        };
        assert_eq!(written(b"old", &[(b"one", 3), (b"two", 6)], other), b"oldoneouttwoout");
    }

    #[test]
    fn no_hole_comes_to_be_where_others_emptied_the_file() {
        let other = |file: &std::fs::File| file.set_len(0).unwrap();
        assert_eq!(written(b"old", &[(b"one", 3), (b"two", 6)], other), b"");
        let appends: [(&[u8], u64); 2] = [(b"one", 3), (b"two", 6)];
        let once = |file: &std::fs::File| {
            if file.metadata().unwrap().len() == 6 {
                other(file);
            }
        };
        assert_eq!(written(b"old", &appends, once), b"two");
        // Also where as much is gone as whole requests hold.
        let large = vec![b'a'; 2 << 20];
        let once = |file: &std::fs::File| {
            if file.metadata().unwrap().len() == 2 * MOST {
                other(file);
            }
        };
        assert_eq!(written(b"", &[(&large, 0), (b"two", 2 * MOST)], once), b"two");
    }

    #[test]
    fn parts_of_one_append_may_come_in_any_order() {
        for unaligned in [0, 100, 4_095] {
            let sizes = [MOST - unaligned, MOST, 5];
            let mut offset = 3;
            let parts = sizes.iter().zip([b'a', b'b', b'c']).map(|(size, byte)| {
                let part = (vec![byte; usize::try_from(*size).unwrap()], offset);
                offset += size;
                part
            });
            let parts: Vec<_> = parts.collect();
            let expected: Vec<u8> =
                b"old".iter().chain(parts.iter().flat_map(|(data, _)| data)).copied().collect();
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                let parts = order.map(|part| (&*parts[part].0, parts[part].1));
                assert!(written(b"old", &parts, |_| ()) == expected, "{unaligned} {order:?}");
            }
        }
    }

    #[test]
    fn after_parts_others_are_seen_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let handle = Appends::default();
        let append = |data: &[u8], offset| {
            handle.write(file.as_file().as_fd(), (data, offset), MOST).unwrap();
        };
        append(b"tail", MOST);
        append(&vec![b'a'; 1 << 20], 0);
        file.as_file().write_at(b"out", MOST + 4).unwrap();
        append(b"next", MOST + 4);
        let text = std::fs::read(file.path()).unwrap();
        assert_eq!(&text[1 << 20..], b"tailoutnext");
    }
}
