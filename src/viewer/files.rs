//! The files of a log: FILE and those that it was rotated to.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
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
    read_bytes: u64,
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
        Ok(Self { path, file, inode, number: 0, read_bytes: 0, buffer: Vec::new() })
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
            self.read_bytes += self.buffer.len() as u64 + 1;
            let too_long = || format!("longer than {} bytes", read::MAX_LINE);
            let line = if fits { Ok(&self.buffer[..]) } else { Err(too_long()) };
            if take(Read { file: &self.path, number: self.number, line }) == Flow::End {
                return Ok(Flow::End);
            }
        }
    }

    /// Whether the rest of the file has an end of a line; else the file is read on from here later.
    fn has_whole_line(&mut self) -> io::Result<bool> {
        use std::io::{BufRead, Read, Seek, SeekFrom};
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
    mut reader: Reader,
    take: &mut impl FnMut(Read<'_>) -> Flow,
) -> io::Result<()> {
    loop {
        if reader.read(true, take)? == Flow::End {
            return Ok(());
        }
        let now = std::fs::metadata(file);
        match now {
            Ok(now) if now.ino() != reader.inode => {
                // What was written before it was renamed.
                if reader.read(false, take)? == Flow::End {
                    return Ok(());
                }
                for newer in newer_than(file, reader.inode) {
                    if Reader::open(&newer)?.read(false, take)? == Flow::End {
                        return Ok(());
                    }
                }
                reader = Reader::open(file)?;
            }
            // It was started again.
            Ok(now) if now.size() < reader.read_bytes => reader = Reader::open(file)?,
            Ok(_) => std::thread::sleep(INTERVAL),
            Err(error) if error.kind() == ErrorKind::NotFound => std::thread::sleep(INTERVAL),
            Err(error) => return Err(error),
        }
    }
}

/// Rotated files that are newer than the one with `inode`, oldest first.
fn newer_than(file: &Path, inode: u64) -> Vec<PathBuf> {
    let is_other = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.ino() != inode);
    let rotated = (1..=MAX_ROTATED).map(|number| numbered(file, number));
    let mut newer: Vec<_> = rotated.take_while(is_other).collect();
    newer.reverse();
    newer
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
