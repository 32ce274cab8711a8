//! Random operations on one file against a model in memory: buffered, mapped and direct, with holes
//! and changes of size. The seed is printed; `TOLLGATE_FSX_SEED` plays it again,
//! `TOLLGATE_FSX_OPERATIONS` says how many.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use crate::harness::{View, can_mount};
use crate::mapped::Map;

const OPERATIONS: u64 = 20_000;
/// Longest file in bytes.
const MAX_LEN: usize = 256 << 10;
/// Longest piece in bytes that one operation moves.
const MAX_PIECE: usize = 64 << 10;
/// What direct I/O is aligned to.
const ALIGN: usize = 4096;
/// How often the file is read whole, in the view and beneath.
const CHECK_EVERY: u64 = 500;
/// How many operations are told when one goes wrong.
const TOLD: usize = 30;

/// xorshift64*, good enough to get about.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).unwrap() % end.max(1)
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let first = u8::try_from(self.below(251)).unwrap();
        let pattern: Vec<u8> = (0..241).map(|at| first.wrapping_add(at).max(1)).collect();
        let mut bytes = pattern.repeat(length.div_ceil(pattern.len()));
        bytes.truncate(length);
        bytes
    }
}

/// Bytes at an address that direct I/O takes.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start, length }
    }

    fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length]
    }
}

struct Fsx {
    random: Random,
    model: Vec<u8>,
    path: PathBuf,
    below: PathBuf,
    file: fs::File,
    direct: fs::File,
    log: VecDeque<String>,
}

impl Fsx {
    fn new(view: &View, seed: u64) -> Self {
        let path = view.at("f");
        fs::write(&path, "").unwrap();
        Self {
            random: Random(seed | 1),
            model: Vec::new(),
            below: view.below("f"),
            file: open(&path, 0),
            direct: open(&path, libc::O_DIRECT),
            path,
            log: VecDeque::new(),
        }
    }

    fn step(&mut self, number: u64) {
        match self.random.below(13) {
            0..=2 => self.write(),
            3 | 4 => self.read(),
            5 => self.map_write(),
            6 => self.map_read(),
            7 => self.direct_write(),
            8 => self.direct_read(),
            9 => self.truncate(),
            10 => self.hole(),
            11 => self.copy(),
            _ => self.reopen(),
        }
        if number.is_multiple_of(CHECK_EVERY) {
            self.check();
        }
    }

    fn tell(&mut self, what: &str, at: usize, length: usize) {
        self.log.push_back(format!("{what} {length} at {at}, size {}", self.model.len()));
        if self.log.len() > TOLD {
            self.log.pop_front();
        }
    }

    /// A range that may reach past the end, up to the longest file.
    fn any_range(&mut self) -> (usize, usize) {
        let at = self.random.below((self.model.len() + MAX_PIECE).min(MAX_LEN));
        (at, 1 + self.random.below(MAX_PIECE.min(MAX_LEN - at)))
    }

    /// A range inside the file; `None` if it is empty.
    fn inner_range(&mut self) -> Option<(usize, usize)> {
        let length = self.model.len();
        let at = self.random.below(length);
        (length > 0).then(|| (at, 1 + self.random.below(MAX_PIECE.min(length - at))))
    }

    fn aligned_range(&mut self) -> (usize, usize) {
        let (at, length) = self.any_range();
        let at = at / ALIGN * ALIGN;
        (at, length.next_multiple_of(ALIGN).min(MAX_LEN - at))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at..end].copy_from_slice(bytes);
    }

    /// What a read of `length` bytes gives.
    fn expected(&self, at: usize, length: usize) -> &[u8] {
        let end = (at + length).min(self.model.len());
        &self.model[at.min(end)..end]
    }

    fn compare(&self, what: &str, at: usize, found: &[u8], length: usize) {
        let expected = self.expected(at, length);
        // Found once there is a difference: byte by byte, tests compare slowly.
        let same = || expected.iter().zip(found).take_while(|(one, other)| one == other).count();
        assert!(
            expected == found,
            "{what} of {length} at {at}: {} bytes instead of {}, different from byte {} on; before that:\n{}",
            found.len(),
            expected.len(),
            at + same(),
            self.log.iter().cloned().collect::<Vec<_>>().join("\n")
        );
    }

    fn write(&mut self) {
        let (at, length) = self.any_range();
        self.tell("write", at, length);
        let bytes = self.random.bytes(length);
        self.file.write_all_at(&bytes, at as u64).unwrap();
        self.put(at, &bytes);
    }

    fn read(&mut self) {
        let (at, length) = self.any_range();
        self.tell("read", at, length);
        let found = read_at(&self.file, at, &mut vec![0; length]);
        self.compare("read", at, &found, length);
    }

    fn map_write(&mut self) {
        let Some((at, length)) = self.inner_range() else { return };
        self.tell("map write", at, length);
        let bytes = self.random.bytes(length);
        let map = Map::new(&self.file, self.model.len(), true, true).unwrap();
        map.write(at, &bytes);
        if self.random.below(2) == 0 {
            map.sync();
        }
        self.put(at, &bytes);
    }

    fn map_read(&mut self) {
        let Some((at, length)) = self.inner_range() else { return };
        self.tell("map read", at, length);
        let shared = self.random.below(2) == 0;
        let map = Map::new(&self.file, self.model.len(), shared, false).unwrap();
        self.compare("map read", at, &map.read(at, length), length);
    }

    fn direct_write(&mut self) {
        let (at, length) = self.aligned_range();
        self.tell("direct write", at, length);
        let bytes = self.random.bytes(length);
        let mut buffer = Aligned::new(length);
        buffer.slice().copy_from_slice(&bytes);
        self.direct.write_all_at(buffer.slice(), at as u64).unwrap();
        self.put(at, &bytes);
    }

    fn direct_read(&mut self) {
        let (at, length) = self.aligned_range();
        self.tell("direct read", at, length);
        let found = read_at(&self.direct, at, Aligned::new(length).slice());
        self.compare("direct read", at, &found, length);
    }

    fn truncate(&mut self) {
        let length = self.random.below(MAX_LEN + 1);
        self.tell("truncate", 0, length);
        self.file.set_len(length as u64).unwrap();
        self.model.resize(length, 0);
    }

    /// Punches a hole, zeroes a range, or allocates one.
    fn hole(&mut self) {
        let (at, length) = self.any_range();
        let keep = FallocateFlags::KEEP_SIZE;
        let (what, flags) = match self.random.below(3) {
            0 => ("punch", FallocateFlags::PUNCH_HOLE | keep),
            1 => ("zero", FallocateFlags::ZERO_RANGE | keep),
            _ => ("allocate", FallocateFlags::empty()),
        };
        self.tell(what, at, length);
        fallocate(&self.file, flags, at as u64, length as u64).unwrap();
        if flags.is_empty() {
            self.model.resize(self.model.len().max(at + length), 0);
        } else {
            let end = (at + length).min(self.model.len());
            self.model[at.min(end)..end].fill(0);
        }
    }

    fn copy(&mut self) {
        let Some((from, length)) = self.inner_range() else { return };
        let to = self.random.below(MAX_LEN - length + 1);
        if from.abs_diff(to) < length {
            return;
        }
        self.tell(&format!("copy to {to} of"), from, length);
        let bytes = self.model[from..from + length].to_vec();
        let (mut source, mut target) = (from as u64, to as u64);
        let mut left = length;
        while left > 0 {
            let ends = (Some(&mut source), Some(&mut target));
            let moved = copy_file_range(&self.file, ends.0, &self.file, ends.1, left).unwrap();
            assert!(moved > 0, "nothing copied of {left}");
            left -= moved;
        }
        self.put(to, &bytes);
    }

    /// Opens anew, in between made durable or not.
    fn reopen(&mut self) {
        self.tell("reopen", 0, 0);
        match self.random.below(3) {
            0 => self.file.sync_all().unwrap(),
            1 => self.file.sync_data().unwrap(),
            _ => {}
        }
        if self.random.below(2) == 0 {
            self.file = open(&self.path, 0);
        }
        if self.random.below(2) == 0 {
            self.direct = open(&self.path, libc::O_DIRECT);
        }
    }

    /// The whole file, in the view and beneath.
    fn check(&self) {
        assert_eq!(self.file.metadata().unwrap().len(), self.model.len() as u64);
        self.compare("all", 0, &fs::read(&self.path).unwrap(), MAX_LEN);
        self.file.sync_all().unwrap();
        self.compare("all beneath", 0, &fs::read(&self.below).unwrap(), MAX_LEN);
    }
}

fn open(path: &PathBuf, flags: i32) -> fs::File {
    fs::File::options().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &fs::File, at: usize, buffer: &mut [u8]) -> Vec<u8> {
    let mut taken = 0;
    while taken < buffer.len() {
        match file.read_at(&mut buffer[taken..], (at + taken) as u64).unwrap() {
            0 => break,
            more => taken += more,
        }
    }
    buffer[..taken].to_vec()
}

fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}: `{text}` is no number")),
        Err(_) => otherwise,
    }
}

fn play(policy: &str) {
    if !can_mount() {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("TOLLGATE_FSX_SEED", u64::from(now.subsec_nanos()) ^ now.as_secs());
    let operations = number("TOLLGATE_FSX_OPERATIONS", OPERATIONS);
    println!("seed {seed}, {operations} operations");
    let view = View::new(policy);
    let mut fsx = Fsx::new(&view, seed);
    for number in 1..=operations {
        fsx.step(number);
    }
    fsx.check();
}

#[test]
fn random_operations_over_passthrough() {
    play("");
}

#[test]
fn random_operations_through_user_space() {
    play("default = 'userspace'");
}
