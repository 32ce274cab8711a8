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

/// FILE and its older parts that exist, oldest first.
///
/// # Errors
/// When there is none.
pub(super) fn of(file: &Path) -> io::Result<Vec<PathBuf>> {
    let rotated = (1..=MAX_ROTATED).map(|number| numbered(file, number));
    let mut files: Vec<_> = rotated.take_while(|path| path.exists()).collect();
    files.reverse();
    match std::fs::metadata(file) {
        Ok(_) => files.push(file.to_owned()),
        Err(error) if files.is_empty() || error.kind() != ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    Ok(files)
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
    ///
    /// Names change while they are looked at; what is open stays the same.
    fn newer(&mut self) -> io::Result<Option<Vec<Reader>>> {
        let Some(now) = if_there(std::fs::metadata(self.file))? else { return Ok(None) };
        if now.ino() == self.reader.inode {
            // It was started again where it is shorter than what was read.
            let is_shorter = now.size() < self.reader.file.stream_position()?;
            return Ok(if is_shorter { Some(vec![Reader::open(self.file)?]) } else { None });
        }
        let Some(last) = if_there(Reader::open(self.file))? else { return Ok(None) };
        let mut newer = vec![last];
        // While parts are renamed, one after the other, one number is missing, and a part that was
        // seen may be met again under its next number.
        let mut is_missing = false;
        for number in 1..=MAX_ROTATED {
            match if_there(Reader::open(&numbered(self.file, number)))? {
                Some(part) if part.inode == self.reader.inode => break,
                Some(part) if newer.iter().any(|known| known.inode == part.inode) => {}
                Some(part) => newer.push(part),
                None if is_missing => break,
                None => is_missing = true,
            }
        }
        let now = if_there(std::fs::metadata(self.file))?;
        let is_last_still = now.is_some_and(|now| now.ino() == newer[0].inode);
        newer.reverse();
        Ok(is_last_still.then_some(newer))
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
    fn parts_are_read_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(of(&path).is_err());
        for name in ["log", "log.1", "log.2", "log.4"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let names: Vec<_> =
            of(&path).unwrap().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["log.2", "log.1", "log"]);
    }
}
