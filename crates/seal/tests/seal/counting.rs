//! What is written under a file's key is accounted for by every header that a crash may leave, and
//! openings alone do not use the key up.

use std::cell::Cell;
use std::io;
use std::ops::Range;

use crate::memory::Memory;
use proptest::prelude::*;
use tollgate_seal::{MasterKey, Options, SealedFile, Store};
use zeroize::Zeroizing;

const DOMAIN: &[u8] = b"vault/**";
const BLOCK: u64 = 4096;
/// Blocks that a node of the lowest level names.
const FANOUT: u64 = 85;
/// What may be written beyond the header of a file that was written little.
const LEAST: u64 = 1 << 10;

fn key() -> MasterKey {
    MasterKey::from_bytes(1, Zeroizing::new([3; 32]))
}

/// What a header says: its generation, the count, and how many more may be written.
fn header(bytes: &[u8]) -> Option<(u64, u64, u64)> {
    let copy = |at: usize| {
        let copy = bytes.get(at..at + 160).filter(|copy| copy.starts_with(b"TGSEALED"))?;
        let number = |at: usize| u64::from_le_bytes(copy[at..at + 8].try_into().unwrap());
        let ahead = if copy[73] == 0 { 18 } else { copy[73] };
        Some((number(48), number(64), 1 << ahead))
    };
    copy(0).max(copy(4096))
}

/// Counts the blocks and nodes that are written, and compares with the headers at each operation.
#[derive(Clone, Debug, Default)]
struct Counting {
    memory: Memory,
    written: Cell<u64>,
    /// The generation that a handle found, and what was written until then.
    opened: Cell<(u64, u64)>,
}

impl Counting {
    fn new() -> Counting {
        let store = Counting::default();
        let file = SealedFile::create(&store, &key(), DOMAIN, Options::default()).unwrap();
        file.commit().unwrap();
        drop(file);
        store
    }

    fn open(&self) -> SealedFile<&Counting> {
        let (generation, count, ahead) = header(&self.memory.now.borrow()).unwrap();
        // Who opens a file takes all of that for written. Each opening is looked at for itself: several
        // that each end without a commit of their own count as one.
        self.written.set(count + ahead);
        self.opened.set((generation, count + ahead));
        SealedFile::open(self, &key(), DOMAIN).unwrap()
    }

    /// Only what is durable is left.
    fn crash(&mut self) {
        let left = self.memory.durable.borrow().clone();
        self.memory = Memory::of(left);
    }

    fn is_accounted_for(&self) {
        let (found, before) = self.opened.get();
        for bytes in [&self.memory.durable, &self.memory.now] {
            let Some((generation, count, ahead)) = header(&bytes.borrow()) else { continue };
            let written = self.written.get();
            let most = if generation == found { before + ahead } else { count + ahead };
            assert!(written <= most, "{written} written; generation {generation} has {most}");
        }
    }
}

impl Store for Counting {
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.memory.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset >= 2 * BLOCK {
            self.written.set(self.written.get() + bytes.len() as u64 / BLOCK);
        }
        let done = self.memory.write_at(bytes, offset);
        self.is_accounted_for();
        done
    }

    fn sync(&self) -> io::Result<()> {
        let done = self.memory.sync();
        self.is_accounted_for();
        done
    }

    fn give_back(&self, bytes: Range<u64>) -> io::Result<()> {
        self.memory.give_back(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.memory.truncate(length)
    }
}

/// As a log to which something is appended each minute, for eleven days.
#[test]
fn a_file_is_opened_and_written_very_often() {
    let store = Memory::default();
    SealedFile::create(&store, &key(), DOMAIN, Options::default()).unwrap().commit().unwrap();
    for opening in 0..16_400 {
        let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
        let written = file.write_at(b"x", 0).and_then(|()| file.commit());
        written.unwrap_or_else(|error| panic!("opening {opening}: {error}"));
    }
    let (_, count, _) = header(&store.bytes()).unwrap();
    assert!(count <= 16_401 * (LEAST + 2) + (1 << 18), "{count}");
}

/// A header that allows for few writes is followed by others that allow for more.
#[test]
fn a_stream_needs_few_headers() {
    let store = Counting::new();
    for _ in 0..2 {
        let file = store.open();
        file.write_at(b"x", 0).unwrap();
        file.commit().unwrap();
    }
    let file = store.open();
    let before = file.generation();
    let mut run = vec![7; 64 * 4096];
    (0..128).for_each(|at| file.write_in_place(&mut run, at * 64 * BLOCK).unwrap());
    file.commit().unwrap();
    assert!((2..8).contains(&(file.generation() - before)), "{}", file.generation() - before);
}

/// Holes change nodes without a block that is written.
#[test]
fn more_nodes_than_the_header_has_room_for_are_counted_before_they_are_written() {
    const LEAVES: u64 = 1500;
    let store = Counting::new();
    let file = store.open();
    let place = |leaf: u64| leaf * FANOUT * BLOCK;
    (0..LEAVES).for_each(|leaf| file.write_at(&[1; 8192], place(leaf)).unwrap());
    file.commit().unwrap();
    file.write_at(b"x", 0).unwrap();
    file.commit().unwrap();
    drop(file);
    let (.., ahead) = header(&store.memory.bytes()).unwrap();
    assert_eq!(ahead, LEAST);
    let file = store.open();
    (0..LEAVES).for_each(|leaf| file.punch(place(leaf)..place(leaf) + BLOCK).unwrap());
    file.commit().unwrap();
    drop(file);
    let file = store.open();
    let mut bytes = [7; 8192];
    for leaf in (0..LEAVES).step_by(99) {
        file.read_at(&mut bytes, place(leaf)).unwrap();
        assert!(bytes[..4096] == [0; 4096] && bytes[4096..] == [1; 4096], "{leaf}");
    }
}

/// No room for blocks: what was tried counts, and can be tried again and again.
#[test]
fn what_could_not_be_written_is_counted() {
    let store = Memory::default();
    SealedFile::create(&store, &key(), DOMAIN, Options::default()).unwrap().commit().unwrap();
    let (_, _, ahead) = header(&store.bytes()).unwrap();
    assert_eq!(ahead, LEAST);
    let full = Memory { fails_at: Some(store.operations.get()), ..store };
    let file = SealedFile::open(&full, &key(), DOMAIN).unwrap();
    (0..20).for_each(|_| assert!(file.write_at(&[1; 64 * 4096], 0).is_err()));
    let (_, count, ahead) = header(&full.bytes()).unwrap();
    let tried = full.pending.borrow().iter().filter(|write| write.offset >= 8192).count();
    assert!(tried as u64 * 64 <= count + ahead, "{tried}");
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize),
    Punch(u64, u64),
    SetLen(u64),
    Commit,
    Reopen,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || prop_oneof![0..2000_u64, 0..200_000_u64];
    let step = prop_oneof![
        6 => (place(), 1..500_usize).prop_map(|(at, blocks)| Step::Write(at, blocks)),
        2 => (place(), 1..2000_u64).prop_map(|(at, blocks)| Step::Punch(at, blocks)),
        1 => place().prop_map(Step::SetLen),
        2 => Just(Step::Commit),
        2 => Just(Step::Reopen),
        2 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn every_header_that_a_crash_may_leave_accounts_for_what_was_written(steps in steps()) {
        let mut store = Counting::new();
        let mut rest = &steps[..];
        while !rest.is_empty() {
            let file = store.open();
            let mut crashed = false;
            while let Some((step, after)) = rest.split_first() {
                rest = after;
                match *step {
                    Step::Write(at, blocks) => {
                        file.write_at(&vec![1; blocks * 4096], at * BLOCK).unwrap();
                    }
                    Step::Punch(at, blocks) => {
                        file.punch(at * BLOCK + 5..(at + blocks) * BLOCK + 9).unwrap();
                    }
                    Step::SetLen(blocks) => file.set_len(blocks * BLOCK + 3).unwrap(),
                    Step::Commit => file.commit().unwrap(),
                    Step::Reopen => break,
                    Step::Crash => {
                        crashed = true;
                        break;
                    }
                }
            }
            drop(file);
            if crashed {
                store.crash();
            }
        }
    }
}
