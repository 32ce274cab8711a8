//! The reader that follows a log across rotations.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::audit::read;

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the program waits by them, and its tests use them")
)]
#[path = "../../src/viewer/files.rs"]
mod files;

/// Rotated parts that are kept.
const KEEP: usize = 3;

/// A log that somebody writes, and what its reader has to be told.
struct Written<'d> {
    path: &'d Path,
    /// Lines that are whole, or whose file was rotated.
    lines: Vec<Vec<u8>>,
    /// The end of the file, as far as it is no line yet.
    begun: Vec<u8>,
    /// Rotations that the reader has not looked at.
    rotations: usize,
}

impl Written<'_> {
    fn append(&mut self, bytes: &[u8]) {
        let mut file = File::options().append(true).open(self.path).expect("the log is there");
        file.write_all(bytes).expect("it can be written");
        for byte in bytes {
            match byte {
                b'\n' => self.lines.push(std::mem::take(&mut self.begun)),
                byte => self.begun.push(*byte),
            }
        }
    }

    fn rotate(&mut self) {
        let part = |number: usize| match number {
            0 => self.path.to_owned(),
            number => self.path.with_extension(number.to_string()),
        };
        for number in (0..KEEP).rev() {
            let _ = fs::rename(part(number), part(number + 1));
        }
        File::create(self.path).expect("a new log can be made");
        if !self.begun.is_empty() {
            self.lines.push(std::mem::take(&mut self.begun));
        }
        self.rotations += 1;
    }

    /// As with no rotated parts: the same file from its beginning.
    fn start_again(&mut self) {
        File::create(self.path).expect("the log can be emptied");
        self.begun.clear();
    }
}

/// Takes `data` for what happens to a log: pieces of it are written, it is rotated, started again and
/// looked at. Every line is handed on once, in order, and none that is not whole before its file ends.
pub fn fuzz_one(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("log");
    File::create(&path).expect("a log can be made");
    let reader = files::Reader::open(&path).expect("the log is there");
    let mut follower = files::Follower::new(&path, reader);
    let mut written = Written { path: &path, lines: Vec::new(), begun: Vec::new(), rotations: 0 };
    let mut seen = Vec::new();
    let mut look = |written: &mut Written<'_>| {
        let flow = follower.look(&mut |line: files::Read<'_>| {
            assert!(line.number > 0 && line.file.starts_with(dir.path()));
            let bytes = line.line.expect("no line here is too long");
            let _ = read::parse(bytes);
            seen.push(bytes.to_vec());
            files::Flow::Continue
        });
        assert_eq!(flow.expect("the log can be read"), files::Flow::Continue);
        assert_eq!(seen, written.lines);
        written.rotations = 0;
    };
    let mut rest = data;
    while let Some((what, after)) = rest.split_first() {
        rest = after;
        match what % 8 {
            // What is beyond the parts that are kept is lost, and so is what was not looked at
            // before the log starts again.
            0 if written.rotations < KEEP => written.rotate(),
            1 => {
                look(&mut written);
                written.start_again();
                look(&mut written);
            }
            2 | 3 => look(&mut written),
            _ => {
                let (piece, after) = rest.split_at(rest.len().min(usize::from(what >> 3)));
                rest = after;
                written.append(piece);
            }
        }
    }
    look(&mut written);
}
