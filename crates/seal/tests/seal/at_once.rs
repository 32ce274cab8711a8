//! What needs no wait is done at once, and nothing else is.

use std::cell::Cell;
use std::io;

use tollgate_seal::{MasterKey, Options, SealedFile, Store};

use crate::memory::Memory;

const DOMAIN: &[u8] = b"vault/**";

/// Bytes in memory of which it can be said that they are on a slow disk.
#[derive(Debug, Default)]
struct Cached {
    bytes: Memory,
    is_cold: Cell<bool>,
}

impl Store for Cached {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes.read_at(buffer, offset)
    }

    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        if self.is_cold.get() {
            return Ok(false);
        }
        self.bytes.read_at(buffer, offset).map(|()| true)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.bytes.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.bytes.sync()
    }
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

#[test]
fn small_reads_are_the_same_at_once() {
    let key = MasterKey::generate(1).unwrap();
    let store = Cached::default();
    let file = SealedFile::create(&store, &key, DOMAIN, Options::default()).unwrap();
    let plain = text(100_000);
    file.write_at(&plain[..50_000], 0).unwrap();
    file.write_at(&plain[60_000..], 60_000).unwrap();
    file.commit().unwrap();
    let mut all = vec![1; 100_000];
    assert_eq!(file.read_at(&mut all, 0).unwrap(), 100_000);
    for (offset, length) in
        [(0, 4096), (1, 16_000), (4000, 200), (49_000, 12_000), (99_990, 4096), (100_000, 10)]
    {
        let mut buffer = vec![7; length];
        let read = file.read_at_once(&mut buffer, offset as u64).unwrap();
        let read = read.expect("all of the map is in memory");
        assert_eq!(buffer[..read], all[offset..100_000.min(offset + length)], "{offset}");
    }
    let mut much = vec![0; 60_000];
    assert_eq!(file.read_at_once(&mut much, 0).unwrap(), None, "that would be much work");
    store.is_cold.set(true);
    assert_eq!(file.read_at_once(&mut much[..100], 0).unwrap(), None);
    store.is_cold.set(false);
    let again = SealedFile::open(&store, &key, DOMAIN).unwrap();
    store.is_cold.set(true);
    assert_eq!(again.read_at_once(&mut much[..100], 0).unwrap(), None, "the map is on the disk");
    store.is_cold.set(false);
    assert_eq!(again.read_at_once(&mut much[..100], 8000).unwrap(), Some(100));
    assert_eq!(much[..100], plain[8000..8100]);
}

#[test]
fn a_changed_block_is_an_error_at_once_too() {
    let key = MasterKey::generate(1).unwrap();
    let store = Cached::default();
    let file = SealedFile::create(&store, &key, DOMAIN, Options::default()).unwrap();
    file.write_at(&text(4096), 0).unwrap();
    file.commit().unwrap();
    store.bytes.now.borrow_mut()[8192 + 100] ^= 1;
    let mut buffer = [7; 4096];
    file.read_at_once(&mut buffer, 0).unwrap_err();
    assert_eq!(buffer, [0; 4096]);
    let mut buffer = [7; 10];
    file.read_at_once(&mut buffer, 5).unwrap_err();
    assert_eq!(buffer, [7; 10]);
}

#[test]
fn whole_blocks_are_written_at_once_where_nothing_must_be_read() {
    let key = MasterKey::generate(1).unwrap();
    let store = Cached::default();
    let file = SealedFile::create(&store, &key, DOMAIN, Options::default()).unwrap();
    assert!(!file.write_at_once(&mut [5; 4096], 0).unwrap(), "the map has no node yet");
    file.write_at(&text(40_000), 0).unwrap();
    let mut plain = text(40_000);
    for (offset, length, at_once) in
        [(4096, 8192, true), (0, 4095, false), (100, 4096, false), (36_864, 4096, true)]
    {
        let mut bytes = vec![9; length];
        assert_eq!(file.write_at_once(&mut bytes, offset as u64).unwrap(), at_once, "{offset}");
        if at_once {
            plain.resize(plain.len().max(offset + length), 0);
            plain[offset..offset + length].fill(9);
        } else {
            assert!(bytes.iter().all(|byte| *byte == 9), "what is not written stays");
        }
    }
    file.commit().unwrap();
    let again = SealedFile::open(&store, &key, DOMAIN).unwrap();
    let mut all = vec![0; plain.len()];
    assert_eq!(again.read_at(&mut all, 0).unwrap(), plain.len());
    assert_eq!(all, plain);
    // What a commit refers to must be known before anything is overwritten.
    assert!(!again.write_at_once(&mut [5; 4096], 0).unwrap());
}

/// Whoever only writes at once never waits for a commit, and somebody must make one in the end.
#[test]
fn a_commit_is_due_and_then_must_come() {
    let key = MasterKey::generate(1).unwrap();
    let store = Cached::default();
    let file = SealedFile::create(&store, &key, DOMAIN, Options::default()).unwrap();
    file.write_at(&text(4096), 0).unwrap();
    assert!(!file.is_commit_due());
    let mut due_at = None;
    let written = (0..200_000).find(|number| {
        due_at = due_at.or(file.is_commit_due().then_some(*number));
        // The store would keep them all until a commit.
        store.bytes.pending.borrow_mut().clear();
        !file.write_at_once(&mut [5; 4096], 0).unwrap()
    });
    let (due_at, written) = (due_at.expect("due"), written.expect("refused at some time"));
    assert!(due_at * 3 / 2 < written, "there is room between {due_at} and {written}");
    file.write_at(&[6; 4096], 0).unwrap();
    assert!(!file.is_commit_due(), "who may wait made the commit");
    assert!(file.write_at_once(&mut [5; 4096], 0).unwrap());
}
