//! The files of a log: FILE and those that it was rotated to.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::audit::read;

/// Most rotated files that are looked for.
const MAX_ROTATED: u32 = 1000;
/// How often a log that is followed is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// How often the parts of a log are looked for, where it is rotated each time, and how long after
/// each other.
const MAX_LOOKS: u32 = 200;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// A line, or why it is none, with where it stands.
pub(super) struct Read<'a> {
    pub(super) file: &'a Path,
    /// From 1.
    pub(super) number: u64,
    pub(super) line: Result<&'a [u8], String>,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    End,
}

/// FILE and its older parts that exist, oldest first. All are opened before one is read, as a
/// rotation changes the names meanwhile; with [`MAX_ROTATED`] they are fewer than the usual limit of
/// open files.
///
/// # Errors
/// When there is none, or one cannot be opened.
pub(super) fn open_all(file: &Path) -> io::Result<Vec<Reader>> {
    for _ in 0..MAX_LOOKS {
        match newer_than(None, file)? {
            Some(parts) if parts.is_empty() => {
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
            Some(parts) => return Ok(parts),
            None => std::thread::sleep(BETWEEN_LOOKS),
        }
    }
    Err(io::Error::other("it is rotated again and again"))
}

/// FILE and its older parts that exist, down to the one with the number `inode`, which is left out;
/// oldest first. `None` if FILE was rotated meanwhile.
///
/// Names change while they are looked at; what is open stays the same.
fn newer_than(inode: Option<u64>, file: &Path) -> io::Result<Option<Vec<Reader>>> {
    let mut parts = Vec::from_iter(if_there(Reader::open(file))?);
    let last = parts.first().map(|part| part.inode);
    // While parts are renamed, one after the other, one number is missing, and a part that was
    // seen may be met again under its next number.
    let mut is_missing = false;
    for number in 1..=MAX_ROTATED {
        match rotated(file, number)? {
            Some(part) if Some(part.inode) == inode => break,
            Some(part) if parts.iter().any(|known| known.inode == part.inode) => {}
            Some(part) => parts.push(part),
            None if is_missing => break,
            None => is_missing = true,
        }
    }
    let now = if_there(std::fs::metadata(file))?.map(|now| now.ino());
    parts.reverse();
    Ok((now == last).then_some(parts))
}

fn rotated(file: &Path, number: u32) -> io::Result<Option<Reader>> {
    let path = numbered(file, number);
    match if_there(Reader::open(&path)) {
        // There is none where the name of FILE has the greatest length.
        Err(error) if error.kind() == ErrorKind::InvalidFilename => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))),
        there => there,
    }
}

fn numbered(file: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(format!(".{number}"));
    name.into()
}

/// One file, from where it was read to.
pub(super) struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    inode: u64,
    number: u64,
    buffer: Vec<u8>,
}

impl Reader {
    /// # Errors
    /// Those of open(2); `InvalidInput` for what is not a regular file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Opening a FIFO would wait for a writer.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let (file, inode) = (BufReader::new(file), metadata.ino());
        let path = path.to_owned();
        Ok(Self { path, file, inode, number: 0, buffer: Vec::new() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Hands every line on; with `whole`, a last one without its end is left for the next time.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn read(
        &mut self,
        whole: bool,
        take: &mut impl FnMut(Read<'_>) -> Flow,
    ) -> io::Result<Flow> {
        loop {
            if whole && !self.has_whole_line()? {
                return Ok(Flow::Continue);
            }
            let Some(fits) = read::next_line(&mut self.file, &mut self.buffer)? else {
                return Ok(Flow::Continue);
            };
            self.number += 1;
            let too_long = || format!("longer than {} bytes", read::MAX_LINE);
            let line = if fits { Ok(&self.buffer[..]) } else { Err(too_long()) };
            if take(Read { file: &self.path, number: self.number, line }) == Flow::End {
                return Ok(Flow::End);
            }
        }
    }

    /// Whether the rest of the file has an end of a line; else the file is read on from here later.
    fn has_whole_line(&mut self) -> io::Result<bool> {
        use std::io::{BufRead, Read, SeekFrom};
        if self.file.fill_buf()?.contains(&b'\n') {
            return Ok(true);
        }
        let at = self.file.stream_position()?;
        let mut rest = Vec::new();
        self.file.by_ref().take(read::MAX_LINE as u64 + 1).read_to_end(&mut rest)?;
        self.file.seek(SeekFrom::Start(at))?;
        Ok(rest.contains(&b'\n') || rest.len() > read::MAX_LINE)
    }
}

/// Reads on at the end of FILE until `take` ends it, across rotations.
///
/// # Errors
/// Those of reading.
pub(super) fn follow(
    file: &Path,
    reader: Reader,
    take: &mut impl FnMut(Read<'_>) -> Flow,
) -> io::Result<()> {
    let mut follower = Follower::new(file, reader);
    while follower.look(take)? == Flow::Continue {
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// FILE, as far as it was read.
pub(super) struct Follower<'f> {
    file: &'f Path,
    reader: Reader,
}

impl<'f> Follower<'f> {
    pub(super) fn new(file: &'f Path, reader: Reader) -> Self {
        Self { file, reader }
    }

    /// Hands on every line that was written since the last look.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn look(&mut self, take: &mut impl FnMut(Read<'_>) -> Flow) -> io::Result<Flow> {
        loop {
            if self.reader.read(true, take)? == Flow::End {
                return Ok(Flow::End);
            }
            let Some(newer) = self.newer()? else { return Ok(Flow::Continue) };
            // What was written before it was renamed.
            if self.reader.inode != newer[0].inode && self.reader.read(false, take)? == Flow::End {
                return Ok(Flow::End);
            }
            for part in newer {
                self.reader = part;
                let is_last = self.reader.path == self.file;
                if !is_last && self.reader.read(false, take)? == Flow::End {
                    return Ok(Flow::End);
                }
            }
        }
    }

    /// What comes after the part that was read to its end, oldest first; FILE is the last. `None` if
    /// there is nothing, or a rotation is under way and this is to be asked again.
    fn newer(&mut self) -> io::Result<Option<Vec<Reader>>> {
        let Some(now) = if_there(std::fs::metadata(self.file))? else { return Ok(None) };
        if now.ino() == self.reader.inode {
            // It was started again where it is shorter than what was read.
            let is_shorter = now.size() < self.reader.file.stream_position()?;
            return Ok(if is_shorter { Some(vec![Reader::open(self.file)?]) } else { None });
        }
        let parts = newer_than(Some(self.reader.inode), self.file)?;
        Ok(parts.filter(|parts| parts.last().is_some_and(|last| last.path == self.file)))
    }
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_followed_log_is_read_across_rotations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "1\n2\nhal").unwrap();
        let reader = Reader::open(&path).unwrap();
        let mut seen = Vec::new();
        follow(&path, reader, &mut |read: Read<'_>| {
            seen.push(String::from_utf8(read.line.unwrap().to_vec()).unwrap());
            match seen.len() {
                2 => {
                    let mut file = File::options().append(true).open(&path).unwrap();
                    file.write_all(b"f\n").unwrap();
                }
                3 => {
                    std::fs::rename(&path, numbered(&path, 2)).unwrap();
                    std::fs::write(numbered(&path, 1), "4\n").unwrap();
                    std::fs::write(&path, "5\n").unwrap();
                }
                5 => return Flow::End,
                _ => {}
            }
            Flow::Continue
        })
        .unwrap();
        assert_eq!(seen, ["1", "2", "half", "4", "5"]);
    }

    /// The names change at any moment of a look.
    #[test]
    fn nothing_is_left_out_of_a_log_that_is_rotated_very_often() {
        const LINES: usize = 600;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "").unwrap();
        let reader = Reader::open(&path).unwrap();
        let write = || {
            let (mut file, mut parts) = (File::options().append(true).open(&path).unwrap(), 0);
            for line in 0..LINES {
                writeln!(file, "{line}").unwrap();
                if line % 4 == 0 {
                    for number in (1..=parts).rev() {
                        std::fs::rename(numbered(&path, number), numbered(&path, number + 1))
                            .unwrap();
                    }
                    std::fs::rename(&path, numbered(&path, 1)).unwrap();
                    file = File::options().append(true).create(true).open(&path).unwrap();
                    parts += 1;
                }
            }
        };
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(write);
            let mut follower = Follower::new(&path, reader);
            let mut take = |read: Read<'_>| {
                seen.push(String::from_utf8(read.line.unwrap().to_vec()).unwrap());
                if seen.len() < LINES { Flow::Continue } else { Flow::End }
            };
            let start = std::time::Instant::now();
            while follower.look(&mut take).unwrap() == Flow::Continue {
                // Whatever was left out does not come any more.
                assert!(start.elapsed() < Duration::from_secs(60), "a line is missing");
            }
        });
        let expected: Vec<_> = (0..LINES).map(|line| line.to_string()).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn nothing_is_left_out_of_a_log_that_is_rotated_while_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(numbered(&path, 2), "1\n2\n").unwrap();
        std::fs::write(numbered(&path, 1), "3\n4\n").unwrap();
        std::fs::write(&path, "5\n6\n").unwrap();
        let mut seen = Vec::new();
        let mut take = |read: Read<'_>| {
            seen.push(String::from_utf8(read.line.unwrap().to_vec()).unwrap());
            if seen.len() == 1 {
                // As with `--audit-keep 2`: the oldest part goes.
                std::fs::rename(numbered(&path, 1), numbered(&path, 2)).unwrap();
                std::fs::rename(&path, numbered(&path, 1)).unwrap();
                std::fs::write(&path, "7\n").unwrap();
            }
            Flow::Continue
        };
        for mut part in open_all(&path).unwrap() {
            part.read(false, &mut take).unwrap();
        }
        assert_eq!(seen, ["1", "2", "3", "4", "5", "6"]);
    }

    /// It has all parts that were there, at whatever moment of a rotation it is opened.
    #[test]
    fn all_parts_are_opened_at_any_moment_of_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let rename = |from: &Path, to| std::fs::rename(from, numbered(&path, to)).unwrap();
        let texts = || -> Vec<String> {
            let read = |mut part: Reader| {
                let mut text = String::new();
                io::Read::read_to_string(&mut part.file, &mut text).unwrap();
                text
            };
            open_all(&path).unwrap().into_iter().map(read).collect()
        };
        for (name, text) in [("log.2", "1"), ("log.1", "2"), ("log", "3")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(texts(), ["1", "2", "3"]);
        rename(&numbered(&path, 2), 3);
        assert_eq!(texts(), ["1", "2", "3"]);
        rename(&numbered(&path, 1), 2);
        assert_eq!(texts(), ["1", "2", "3"]);
        rename(&path, 1);
        assert_eq!(texts(), ["1", "2", "3"]);
        std::fs::write(&path, "4").unwrap();
        assert_eq!(texts(), ["1", "2", "3", "4"]);
    }

    #[test]
    fn a_log_whose_name_leaves_no_room_for_a_number_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l".repeat(255));
        std::fs::write(&path, "").unwrap();
        assert_eq!(open_all(&path).unwrap().len(), 1);
    }

    #[test]
    fn parts_are_read_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(open_all(&path).is_err());
        for name in ["log", "log.1", "log.2", "log.5"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let parts = open_all(&path).unwrap();
        let names: Vec<_> = parts.iter().map(|part| part.path.file_name().unwrap()).collect();
        assert_eq!(names, ["log.2", "log.1", "log"]);
    }
}
