//! Holes take neither space nor time.

use std::ops::ControlFlow;

use crate::memory::Memory;
use tollgate_seal::{MasterKey, Options, SealError, SealedFile, Store};
use zeroize::Zeroizing;

const DOMAIN: &[u8] = b"vault/**";
const TIB: u64 = 1 << 40;

fn key() -> MasterKey {
    MasterKey::from_bytes(1, Zeroizing::new([3; 32]))
}

fn new() -> SealedFile<Memory> {
    SealedFile::create(Memory::default(), &key(), DOMAIN, Options::default()).unwrap()
}

/// Reads of the store that `act` takes.
fn reads<T>(file: &SealedFile<Memory>, act: impl FnOnce() -> T) -> usize {
    let before = file.store().reads.get();
    act();
    file.store().reads.get() - before
}

/// Block by block this would be 268 million steps each.
#[test]
fn cutting_checking_and_searching_skip_holes() {
    let file = new();
    file.set_len(TIB).unwrap();
    file.write_at(b"middle", TIB / 2).unwrap();
    file.write_at(b"end", TIB - 3).unwrap();
    file.commit().unwrap();
    let mut seen = Vec::new();
    let all = |blocks, _| {
        seen.push(blocks);
        ControlFlow::Continue(())
    };
    assert!(reads(&file, || file.check(0, all).unwrap()) < 50);
    assert_eq!(seen, [TIB / 8192..TIB / 8192 + 1, TIB / 4096 - 1..TIB / 4096]);
    assert_eq!(file.next_data(0).unwrap(), Some(TIB / 2..TIB / 2 + 4096));
    assert_eq!(file.next_data(TIB / 2 + 5).unwrap(), Some(TIB / 2 + 5..TIB / 2 + 4096));
    assert_eq!(file.next_data(TIB / 2 + 4096).unwrap(), Some(TIB - 4096..TIB));
    assert!(reads(&file, || assert_eq!(file.next_hole(5).unwrap(), 5)) < 50);
    assert_eq!(file.next_hole(TIB / 2 + 5).unwrap(), TIB / 2 + 4096);
    assert_eq!(file.next_hole(TIB - 4).unwrap(), TIB);
    assert!(reads(&file, || file.punch(4096..TIB - 4096).unwrap()) < 50);
    assert_eq!(file.next_data(0).unwrap(), Some(TIB - 4096..TIB));
    assert!(reads(&file, || file.set_len(10).unwrap()) < 50);
    file.commit().unwrap();
    assert_eq!(file.next_data(0).unwrap(), None);
    let mut bytes = [1; 20];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 10);
    assert_eq!(bytes[..10], [0; 10]);
}

/// What was cut off is used again, also what was never committed.
#[test]
fn space_of_what_is_cut_off_or_punched_is_used_again() {
    let file = new();
    for round in 0..20 {
        file.write_at(&[round; 1 << 20], 0).unwrap();
        if round % 2 == 0 {
            file.commit().unwrap();
        }
        if round % 3 == 0 {
            file.set_len(0).unwrap();
        } else {
            file.punch(0..1 << 20).unwrap();
        }
        file.commit().unwrap();
    }
    let length = file.store().len().unwrap();
    assert!(length < 3 << 20, "{length}");
}

/// A file whose map has two levels, then only blocks that no commit knows yet.
#[test]
fn blocks_that_were_never_committed_are_found() {
    let file = new();
    file.write_at(&[1; 4096], 5 << 20).unwrap();
    assert_eq!(file.next_data(0).unwrap(), Some(5 << 20..(5 << 20) + 4096));
    file.set_len(TIB).unwrap();
    file.write_at(b"x", TIB - 1).unwrap();
    assert_eq!(file.next_data(0).unwrap(), Some(5 << 20..(5 << 20) + 4096));
    file.set_len(0).unwrap();
    file.set_len(TIB).unwrap();
    assert_eq!(file.next_data(0).unwrap(), None);
}

/// Data of many nodes of the map is one piece, whose end is that of the file or of its last whole block.
#[test]
fn the_next_hole_is_behind_all_data_that_lies_together() {
    let file = new();
    file.write_at(&vec![1; 3 << 20], 4096).unwrap();
    let end = (3 << 20) + 4096;
    assert_eq!(file.next_hole(0).unwrap(), 0);
    for offset in [4096, 5000, 1 << 20, end - 1] {
        assert_eq!(file.next_hole(offset).unwrap(), end);
    }
    file.set_len(end + 1).unwrap();
    assert_eq!(file.next_hole(4096).unwrap(), end);
    file.write_at(&[1], end).unwrap();
    assert_eq!(file.next_hole(4096).unwrap(), end + 1);
    file.punch(2 << 20..(2 << 20) + 4096).unwrap();
    assert_eq!(file.next_hole(4096).unwrap(), 2 << 20);
}

/// Where the map is damaged, `check` says so and goes on behind it.
#[test]
fn check_goes_on_behind_what_is_damaged() {
    let file = new();
    file.write_at(&vec![1; 200 * 4096], 0).unwrap();
    file.commit().unwrap();
    let bytes = file.store().bytes();
    let mut nodes = 0;
    for slot in 2..bytes.len() / 4096 {
        let mut damaged = bytes.clone();
        damaged[slot * 4096 + 7] ^= 1;
        let file = SealedFile::open(Memory::of(damaged), &key(), DOMAIN).unwrap();
        let (mut good, mut bad) = (0, Vec::new());
        let checked = file.check(0, |blocks, error| {
            match error {
                None => good += blocks.end - blocks.start,
                Some(error) => bad.push((blocks, error)),
            }
            ControlFlow::Continue(())
        });
        checked.unwrap();
        assert_eq!(bad.len(), 1, "slot {slot}");
        match &bad[0] {
            (blocks, SealError::BlockNotAuthentic(block)) => {
                assert_eq!((good, blocks.start), (199, *block));
            }
            (blocks, SealError::MapNotAuthentic { level: 0, .. }) => {
                nodes += 1;
                assert_eq!(good + (blocks.end.min(200) - blocks.start), 200);
            }
            (_, error) => assert!(matches!(error, SealError::MapNotAuthentic { .. }) && good == 0),
        }
    }
    assert_eq!(nodes, 3);
}
