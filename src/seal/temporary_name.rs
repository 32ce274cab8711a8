//! The names of files that are not complete yet, or replaced and not yet removed: what they say of the files
//! that have them.

use std::ffi::OsStr;
use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, StatxFlags};

/// Before the random part of the names of files that are not complete yet.
pub(super) const START: &str = ".tollgate-sealing-";
/// Letters and digits of the random part.
pub(super) const RANDOM: usize = 16;

/// Whether a name is one of those that files have that are not complete. Files of somebody may have such a
/// name, too.
pub(super) fn is_temporary_name(name: &OsStr) -> bool {
    told_by(name).is_some()
}

/// Whether a name says which two files may have it: what else has it is taken for what others had put in the
/// place of one of them.
pub(super) fn is_name_of_two(name: &OsStr) -> bool {
    matches!(told_by(name), Some(Told::Pair(_)))
}

/// What a temporary name says of the file that has it. The random part of it is no evidence: files of
/// somebody may be called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    /// The very file, which is not complete.
    File(Made),
    Pair(Pair),
}

/// What a temporary name says of the two files that may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The inode of the old file. It is in use as long as its replacer, who has it open, lives.
    pub(super) old: u64,
    pub(super) new: Made,
}

/// A file that was made to replace another one, as it was then. Its inode alone does not tell: once it is
/// deleted, a file of somebody may get the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) inode: u64,
    /// In nanoseconds; 0 where the file system does not tell.
    pub(super) born: u64,
    /// The same. A file that was written has another one; 0 where it is not known.
    pub(super) written: u64,
}

impl Made {
    pub(super) fn of(file: &File) -> io::Result<Made> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted)?;
        // Before 1970, or after 2262, any number tells as much.
        let at = |time: rustix::fs::StatxTimestamp| {
            time.tv_sec
                .cast_unsigned()
                .wrapping_mul(1_000_000_000)
                .wrapping_add(time.tv_nsec.into())
        };
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = if has_birth { at(found.stx_btime) } else { 0 };
        Ok(Made { inode: found.stx_ino, born, written: at(found.stx_mtime) })
    }

    /// Whether `file` is this one, written since or not.
    pub(super) fn is(&self, file: &File) -> io::Result<bool> {
        let found = Made::of(file)?;
        Ok((found.inode, found.born) == (self.inode, self.born))
    }
}

/// What a temporary name says. `None` if it is no such name.
pub(super) fn told_by(name: &OsStr) -> Option<Told> {
    let mut parts = name.to_str()?.strip_prefix(START)?.split('-');
    let random = parts.next()?.as_bytes();
    if random.len() != RANDOM || !random.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    let numbers: Vec<_> =
        parts.map(|part| u64::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [] => Some(Told::Nothing),
        [inode, born] => Some(Told::File(Made { inode, born, written: 0 })),
        [old, inode, born, written] => {
            Some(Told::Pair(Pair { old, new: Made { inode, born, written } }))
        }
        _ => None,
    }
}

/// The name `had` with these numbers behind its random part, in the place of those that it had.
pub(super) fn with(had: &str, numbers: &str) -> String {
    format!("{}-{numbers}", had.get(..START.len() + RANDOM).unwrap_or(had))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_name_says_which_files_may_have_it() {
        let of = |name: &str| told_by(OsStr::new(name));
        assert_eq!(of(".tollgate-sealing-0123456789abcXYZ"), Some(Told::Nothing));
        let made = Made { inode: 31, born: 32, written: 0 };
        assert_eq!(of(".tollgate-sealing-0123456789abcXYZ-1f-20"), Some(Told::File(made)));
        let pair = Pair { old: 31, new: Made { inode: 32, born: 10, written: 11 } };
        assert_eq!(of(".tollgate-sealing-0123456789abcXYZ-1f-20-a-b"), Some(Told::Pair(pair)));
        for other in ["-1f", "-1f-20-a", "-1f-20-a-b-c", "-1f-20-a-g", "-", "-1f-20-a-"] {
            assert_eq!(of(&format!(".tollgate-sealing-0123456789abcXYZ{other}")), None, "{other}");
        }
        assert_eq!(of(".tollgate-sealing-short-1-2-3-4"), None);
        assert_eq!(of("other"), None);
    }
}
