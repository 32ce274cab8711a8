//! The file that audit lines go to, rotated by size.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::escape::shown;

/// An append-only file that is renamed to `FILE.1` (and `FILE.1` to `FILE.2`, ...) when it is full.
#[derive(Debug)]
pub(super) struct RotatedFile {
    path: PathBuf,
    place: Place,
    file: File,
    size_bytes: u64,
    max_bytes: u64,
    keep: u32,
    /// The last line lacks its end.
    torn: bool,
    /// Why no other file could be begun where it has no name any more: what is appended would be lost.
    lost: Option<String>,
}

/// Where the file is: in a directory as it was at the start, wherever its path leads to by now.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    name: OsString,
}

/// What others did to the file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    Moved,
    /// With what was in it.
    Removed,
    /// Its path leads to another directory, or to none. It is still where it was.
    DirectoryMoved,
    /// With the directory that it was in.
    DirectoryRemoved,
}

/// Lines that were not appended, or not all of them.
#[derive(Debug)]
pub(super) struct Failed {
    /// Whole lines that are in the file.
    pub(super) appended: u64,
    pub(super) error: io::Error,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self { appended: 0, error }
    }
}

impl RotatedFile {
    /// Opens `path` for appending; makes it, readable by its owner alone, when it is not there.
    ///
    /// # Errors
    /// The error of open(2); `InvalidInput` when `path` is not a regular file, or it or a file that
    /// was full before has a further name: by that one, who is watched could change it. A symbolic
    /// link is refused.
    pub(super) fn open(path: PathBuf, max_bytes: u64, keep: u32) -> io::Result<Self> {
        let place = Place::of(&path)?;
        // Before one is made.
        refuse_full(&place, &path, keep)?;
        let file = place.open()?;
        let mut opened =
            Self { path, place, file, size_bytes: 0, max_bytes, keep, torn: false, lost: None };
        opened.begin()?;
        Ok(opened)
    }

    /// Looks at the file that was opened.
    fn begin(&mut self) -> io::Result<()> {
        let found = self.file.metadata()?;
        refuse_further_names(found.nlink(), "it")?;
        refuse_full(&self.place, &self.path, self.keep)?;
        self.size_bytes = found.size();
        // Who wrote it before may have been killed.
        self.torn = self.place.lacks_end();
        self.lost = None;
        Ok(())
    }

    /// Appends whole lines. They stay together in one file.
    ///
    /// # Errors
    /// The error of write(2), with how many lines are in the file all the same; the others are lost
    /// then. Of one that was written in part nothing stays, or, where that cannot be, the next line
    /// begins behind it.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), Failed> {
        if let Some(reason) = &self.lost {
            let what = format!("it was removed, and cannot be begun again: {reason}");
            return Err(io::Error::other(what).into());
        }
        if self.torn {
            self.file.write_all(b"\n")?;
            self.size_bytes += 1;
            self.torn = false;
        }
        let (written, result) = self.write(lines);
        self.size_bytes += written as u64;
        let Err(error) = result else { return Ok(()) };
        let whole = lines[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.torn = written > whole && self.take_back((written - whole) as u64).is_err();
        let ends = lines[..whole].iter().filter(|byte| **byte == b'\n');
        Err(Failed { appended: ends.count() as u64, error })
    }

    /// Writes, and answers how many bytes of it are in the file.
    fn write(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.write(&bytes[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }

    /// Cuts off the last bytes, which are of this server where nobody else wrote.
    fn take_back(&mut self, bytes: u64) -> io::Result<()> {
        if self.file.metadata()?.size() != self.size_bytes {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.file.set_len(self.size_bytes - bytes)?;
        self.size_bytes -= bytes;
        Ok(())
    }

    /// Whether it should be rotated before the next lines. One that has no name any more cannot be.
    pub(super) fn is_full(&self) -> bool {
        self.lost.is_none() && self.size_bytes >= self.max_bytes
    }

    /// Makes what was appended durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Keeps this file under another name and begins a new one.
    ///
    /// # Errors
    /// The error of rename(2) or open(2); the old file is written on then, and the older ones keep
    /// their names. At most the one that was to go is gone.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        if self.keep == 0 {
            self.file.set_len(0)?;
        } else {
            let mut moved = Vec::new();
            match self.make_room(&mut moved) {
                Ok(new) => self.file = new,
                Err(error) => {
                    self.place.move_back(&moved);
                    return Err(error);
                }
            }
        }
        self.size_bytes = 0;
        self.torn = false;
        Ok(())
    }

    /// Renames the files, and makes a new one. `moved` gets the names that changed, old and new, in order.
    fn make_room(&self, moved: &mut Vec<(OsString, OsString)>) -> io::Result<File> {
        let place = &self.place;
        // What is older than a number that is free stays where it is.
        let is_free = |number: &u32| {
            place.look(&place.numbered(*number)).is_err_and(|errno| errno == Errno::NOENT)
        };
        let last = (1..self.keep).find(is_free).unwrap_or(self.keep);
        let numbers = (1..last).rev().map(|number| (place.numbered(number), number + 1));
        for (from, to) in numbers.chain([(place.name.clone(), 1)]) {
            let to = place.numbered(to);
            if place.rename_if_there(&from, &to)? {
                moved.push((from, to));
            }
        }
        place.open()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What others did to the file that is written, if it is not the one of its path any more.
    pub(super) fn away(&self) -> Option<Away> {
        let own = self.file.metadata().ok()?;
        let directory = rustix::fs::fstat(&self.place.directory).ok()?;
        let is_here = match self.place.look(&self.place.name) {
            Ok(found) => (found.st_dev, found.st_ino) == (own.dev(), own.ino()),
            Err(Errno::NOENT) => false,
            Err(_) => return None,
        };
        match is_here {
            false if directory.st_nlink == 0 => Some(Away::DirectoryRemoved),
            false => Some(if own.nlink() == 0 { Away::Removed } else { Away::Moved }),
            true => {
                let above = self.path.parent().unwrap_or(Path::new("/"));
                let found = std::fs::symlink_metadata(above).ok();
                let is_same = |found: Metadata| {
                    (found.dev(), found.ino()) == (directory.st_dev, directory.st_ino)
                };
                (!found.is_some_and(is_same)).then_some(Away::DirectoryMoved)
            }
        }
    }

    /// Goes on in the file that has the name now, or in a new one, in the same directory.
    ///
    /// # Errors
    /// As of [`Self::open`]; the old file is written on then. Where it has no name, nothing is written any more.
    pub(super) fn begin_again(&mut self) -> io::Result<()> {
        self.replace_file().inspect_err(|error| {
            let is_lost = self.file.metadata().is_ok_and(|found| found.nlink() == 0);
            self.lost = is_lost.then(|| error.to_string());
        })
    }

    /// Gives the old file back where the new one is refused.
    fn replace_file(&mut self) -> io::Result<()> {
        let new = self.place.open()?;
        let old = std::mem::replace(&mut self.file, new);
        let (size_bytes, torn) = (self.size_bytes, self.torn);
        self.begin().inspect_err(|_| {
            self.file = old;
            (self.size_bytes, self.torn) = (size_bytes, torn);
        })
    }
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(above, flags, Mode::empty())?;
        Ok(Self { directory, name: name.to_owned() })
    }

    fn numbered(&self, number: u32) -> OsString {
        numbered(Path::new(&self.name), number).into_os_string()
    }

    fn look(&self, name: &OsStr) -> rustix::io::Result<Stat> {
        rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// For appending; made if it is not there.
    fn open(&self) -> io::Result<File> {
        let flags = OPENING | OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = rustix::fs::openat(&self.directory, &*self.name, flags, mode);
        let file = File::from(opened.map_err(|errno| match errno {
            Errno::LOOP => io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link"),
            // A FIFO that nobody reads, or a socket.
            Errno::NXIO => io::Error::new(io::ErrorKind::InvalidInput, NO_FILE),
            _ => errno.into(),
        })?);
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, NO_FILE))
    }

    /// Whether the last line of what may be read has no end.
    fn lacks_end(&self) -> bool {
        let opened = rustix::fs::openat(&self.directory, &*self.name, OPENING, Mode::empty());
        let mut last = [b'\n'];
        opened.is_ok_and(|file| {
            let mut file = File::from(file);
            file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last)).is_ok()
        }) && last != [b'\n']
    }

    /// Whether it was there.
    fn rename_if_there(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        match rustix::fs::renameat(&self.directory, from, &self.directory, to) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives back names that were changed, the last one first, unless somebody has them by now.
    fn move_back(&self, moved: &[(OsString, OsString)]) {
        for (old, new) in moved.iter().rev() {
            let (from, to) = (&self.directory, &self.directory);
            let _ = rustix::fs::renameat_with(from, new, to, old, RenameFlags::NOREPLACE);
        }
    }
}

/// The name of a file that was full.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

const NO_FILE: &str = "it is not a regular file";
/// Follows no link, and waits for nobody.
const OPENING: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Looks at the places of files that were full.
fn refuse_full(place: &Place, path: &Path, keep: u32) -> io::Result<()> {
    for number in 1..=keep {
        let Ok(full) = place.look(&place.numbered(number)) else { continue };
        let shown = shown(&numbered(path, number));
        if FileType::from_raw_mode(full.st_mode) == FileType::Directory {
            let reason = format!("`{shown}`, which it is renamed to, is a directory; move it away");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        #[expect(clippy::useless_conversion, reason = "it has 32 bits on other machines")]
        refuse_further_names(full.st_nlink.into(), &format!("`{shown}`"))?;
    }
    Ok(())
}

/// Where the others are cannot be told; one inside DIR would be in CMD's reach.
fn refuse_further_names(names: u64, what: &str) -> io::Result<()> {
    if names <= 1 {
        return Ok(());
    }
    let reason = format!(
        "{what} has {names} names (hard links), and by another one, in DIR say, what is watched could \
         read and change it; remove the others, or name a file of its own"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_files_are_renamed_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = RotatedFile::open(path.clone(), 4, 2).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            if file.is_full() {
                file.rotate().unwrap();
            }
            file.append(line.as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            (read("log"), read("log.1"), read("log.2")),
            ("four\n".into(), "three\n".into(), "two\n".into())
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    /// Nor does a full one take a further name, which keeps it from being begun again, for an older file.
    #[test]
    fn a_full_file_that_was_removed_is_begun_again_once_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut file = RotatedFile::open(at("log"), 4, 2).unwrap();
        file.append(b"one\n").unwrap();
        std::fs::write(at("log.1"), "older").unwrap();
        std::fs::hard_link(at("log.1"), at("other")).unwrap();
        std::fs::remove_file(at("log")).unwrap();
        file.begin_again().unwrap_err();
        assert!(!file.is_full());
        file.append(b"lost\n").unwrap_err();
        std::fs::remove_file(at("other")).unwrap();
        assert!(file.away().is_some());
        file.begin_again().unwrap();
        file.append(b"two\n").unwrap();
        assert_eq!(std::fs::read(at("log")).unwrap(), b"two\n");
        assert_eq!(std::fs::read(at("log.1")).unwrap(), b"older");
    }

    #[test]
    fn what_cannot_be_renamed_is_written_on_and_moves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = RotatedFile::open(path.clone(), 4, 3).unwrap();
        file.append(b"now\n").unwrap();
        std::fs::write(dir.path().join("log.1"), "one").unwrap();
        std::fs::create_dir(dir.path().join("log.2")).unwrap();
        std::fs::write(dir.path().join("log.3"), "three").unwrap();
        let names = || {
            let entries = std::fs::read_dir(dir.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let before = names();
        for _ in 0..3 {
            file.rotate().unwrap_err();
            assert_eq!(names(), before);
        }
        file.append(b"more\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "now\nmore\n");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((read("log.1"), read("log.3")), ("one".into(), "three".into()));
    }

    /// As where the last step fails.
    #[test]
    fn names_are_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = RotatedFile::open(path.clone(), 4, 3).unwrap();
        file.append(b"now\n").unwrap();
        std::fs::write(dir.path().join("log.1"), "one").unwrap();
        std::fs::write(dir.path().join("log.3"), "three").unwrap();
        let mut moved = Vec::new();
        file.make_room(&mut moved).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.place.move_back(&moved);
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
        assert_eq!(read("log").as_deref(), Some("now\n"));
        assert_eq!(read("log.1").as_deref(), Some("one"));
        assert_eq!((read("log.2"), read("log.3").as_deref()), (None, Some("three")));
    }

    #[test]
    fn with_none_kept_the_file_starts_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = RotatedFile::open(path.clone(), 4, 0).unwrap();
        file.append(b"one\n").unwrap();
        assert!(file.is_full());
        file.rotate().unwrap();
        file.append(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn a_restarted_log_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        RotatedFile::open(path.clone(), 100, 1).unwrap().append(b"one\n").unwrap();
        RotatedFile::open(path.clone(), 100, 1).unwrap().append(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn links_and_special_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let error = RotatedFile::open(link, 1, 1).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        let error = RotatedFile::open("/dev/null".into(), 1, 1).unwrap_err();
        assert!(error.to_string().contains("regular file"), "{error}");
    }

    #[test]
    fn what_is_torn_gets_an_end_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "one\ntor").unwrap();
        let mut file = RotatedFile::open(path.clone(), 100, 1).unwrap();
        file.append(b"two\n").unwrap();
        file.append(b"three\n").unwrap();
        drop(file);
        RotatedFile::open(path.clone(), 100, 1).unwrap().append(b"four\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntor\ntwo\nthree\nfour\n");
    }

    /// A descriptor that may not write fails as a full disk does, again and again.
    #[test]
    fn lines_that_cannot_be_written_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = RotatedFile::open(path.clone(), 100, 1).unwrap();
        file.append(b"one\n").unwrap();
        let whole = std::mem::replace(&mut file.file, File::open(&path).unwrap());
        for _ in 0..3 {
            assert_eq!(file.append(b"lost\nlost\n").unwrap_err().appended, 0);
        }
        file.file = whole;
        // As after a write that ended within the second line.
        file.file.write_all(b"two\nthr").unwrap();
        file.size_bytes += 7;
        file.take_back(3).unwrap();
        file.append(b"four\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nfour\n");
        // What somebody else wrote is not taken back.
        std::fs::write(dir.path().join("log"), "another's\n").unwrap();
        assert!(file.take_back(3).is_err());
    }
}
