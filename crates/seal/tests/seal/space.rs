//! How much of the store a file takes.

use proptest::prelude::*;
use tollgate_seal::{MasterKey, Options, SealError, SealedFile, Store};
use zeroize::Zeroizing;

use crate::crash::leftovers;
use crate::memory::{Memory, apply};

const DOMAIN: &[u8] = b"vault/**";
const BLOCK: u64 = 4096;

fn key() -> MasterKey {
    MasterKey::from_bytes(1, Zeroizing::new([3; 32]))
}

fn new(store: &Memory) -> SealedFile<&Memory> {
    SealedFile::create(store, &key(), DOMAIN, Options::default()).unwrap()
}

fn blocks_of(store: &Memory) -> usize {
    store.taken.borrow().len()
}

/// Each seals the last block anew. What no commit has seen can be used again at once.
#[test]
fn small_appends_without_a_commit_take_little_more_than_they_hold() {
    let store = Memory::default();
    let file = new(&store);
    for number in 0..10_000 {
        file.write_at(&[7; 100], number * 100).unwrap();
    }
    let plain = 10_000 * 100_u64;
    assert!(store.len().unwrap() <= plain + 8 * BLOCK, "{}", store.len().unwrap());
    file.commit().unwrap();
    let mut bytes = vec![0; 1_000_000];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 1_000_000);
    assert!(bytes.iter().all(|byte| *byte == 7));
}

/// What was written and cut between two commits is used again, too; what a commit refers to is not.
#[test]
fn what_is_written_and_cut_between_commits_takes_its_space_once() {
    let store = Memory::default();
    let file = new(&store);
    file.write_at(&[1; 100_000], 0).unwrap();
    file.commit().unwrap();
    let committed = store.bytes();
    // Fewer blocks than make a commit due.
    for round in 0..20 {
        file.write_at(&[2; 40_000], 0).unwrap();
        file.set_len(if round % 2 == 0 { 0 } else { 4000 }).unwrap();
    }
    assert!(!file.is_commit_due());
    assert!(store.len().unwrap() <= 110_000 + 2 * 50_000, "{}", store.len().unwrap());
    // All that the last commit refers to is as it was.
    let now = store.bytes();
    assert!(now[2 * 4096..committed.len()] == committed[2 * 4096..]);
}

/// Slots that may stay free with their space, beside so many that are used.
fn reserve(used: usize) -> usize {
    16 + used / 8
}

#[test]
fn what_is_cut_off_is_given_back_with_the_commit() {
    let store = Memory::default();
    let file = new(&store);
    file.write_at(&vec![1; 4 << 20], 0).unwrap();
    file.commit().unwrap();
    let before = blocks_of(&store);
    assert!(before > 1024);
    file.set_len(8192).unwrap();
    assert_eq!(blocks_of(&store), before, "the last commit refers to it");
    file.commit().unwrap();
    assert!(blocks_of(&store) < 6 + 2 * reserve(6), "{}", blocks_of(&store));
    file.rest().unwrap();
    assert!(blocks_of(&store) <= 6 + reserve(6), "a file that rests: {}", blocks_of(&store));
    // What is written next goes to the beginning.
    file.write_at(&[2; 100], 0).unwrap();
    file.commit().unwrap();
    file.rest().unwrap();
    assert!(store.len().unwrap() < 100 * BLOCK, "{}", store.len().unwrap());
    let mut bytes = [0; 9000];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 8192);
    assert!(bytes[..100] == [2; 100] && bytes[100..8192].iter().all(|byte| *byte == 1));
}

#[test]
fn a_hole_in_the_middle_is_given_back_and_filled_again() {
    let store = Memory::default();
    let file = new(&store);
    let plain: Vec<u8> = (0..4 << 20).map(|at| u8::try_from(at / 4096 % 251).unwrap()).collect();
    file.write_at(&plain, 0).unwrap();
    file.commit().unwrap();
    file.punch(1 << 20..3 << 20).unwrap();
    file.commit().unwrap();
    file.rest().unwrap();
    let used = 512 + 2 + 10;
    assert!(blocks_of(&store) <= used + reserve(used), "{}", blocks_of(&store));
    file.write_at(&plain[1 << 20..3 << 20], 1 << 20).unwrap();
    file.commit().unwrap();
    assert!(store.len().unwrap() < 1100 * BLOCK, "{}", store.len().unwrap());
    let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
    let mut read = vec![0; 4 << 20];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), 4 << 20);
    assert!(read == plain);
}

/// Its end alone, and without an error.
#[test]
fn a_store_without_holes_gives_its_end_back() {
    let store = Memory { has_no_holes: true, ..Memory::default() };
    let file = new(&store);
    file.write_at(&vec![1; 4 << 20], 0).unwrap();
    file.commit().unwrap();
    file.set_len(8192).unwrap();
    for value in 0..3 {
        file.write_at(&[value; 8192], 0).unwrap();
        file.commit().unwrap();
        file.rest().unwrap();
    }
    assert!(store.len().unwrap() < 50 * BLOCK, "{}", store.len().unwrap());
    let mut bytes = [0; 9000];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 8192);
    assert!(bytes[..8192] == [2; 8192]);
}

/// As a crash leaves it, or who appends to it beside the view, by as much as a file can have.
#[test]
fn what_follows_the_last_block_is_cut_off() {
    let store = tempfile::tempfile().unwrap();
    let file = SealedFile::create(&store, &key(), DOMAIN, Options::default()).unwrap();
    file.write_at(&[1; 9000], 0).unwrap();
    file.commit().unwrap();
    for length in [1 << 20, 1 << 40] {
        store.set_len(length).unwrap();
        let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
        file.write_at(&[2; 100], 0).unwrap();
        file.commit().unwrap();
        let length = store.metadata().unwrap().len();
        assert!(length < 50 * BLOCK, "{length}");
        let mut bytes = [0; 9000];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 9000);
        assert!(bytes[..100] == [2; 100] && bytes[100..] == [1; 8900]);
    }
}

/// A file that is overwritten and committed on and on keeps what it needs for that.
#[test]
fn a_busy_file_keeps_its_space() {
    let store = Memory::default();
    let file = new(&store);
    let round = |value: u8| {
        file.write_at(&vec![value; 1 << 20], 0).unwrap();
        file.commit().unwrap();
    };
    (0..4).for_each(round);
    let blocks = blocks_of(&store);
    let operations = store.operations.get();
    round(4);
    let one = store.operations.get() - operations;
    (5..20).for_each(round);
    assert!(blocks_of(&store) <= blocks + 64, "{blocks}, {}", blocks_of(&store));
    assert!(store.operations.get() <= operations + 17 * one, "nothing but writes and syncs");
    file.rest().unwrap();
    let used = 256 + 2 + 5;
    assert!(blocks_of(&store) <= used + reserve(used), "{}", blocks_of(&store));
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    SetLen(u64),
    Punch(u64, u64),
    Commit,
    Rest,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![0..400_000_u64, (0..100_u64).prop_map(|block| block * BLOCK)];
    prop_oneof![
        3 => (at(), 1..300_000_usize, any::<u8>()).prop_map(|(at, length, value)| Step::Write(at, length, value)),
        2 => (at(), 1..200_usize, any::<u8>()).prop_map(|(at, length, value)| Step::Write(at, length, value)),
        2 => at().prop_map(Step::SetLen),
        2 => (at(), 1..300_000_u64).prop_map(|(at, length)| Step::Punch(at, at + length)),
        4 => Just(Step::Commit),
        2 => Just(Step::Rest),
        1 => Just(Step::Reopen),
    ]
}

/// Runs the steps until one fails; what was committed, and what the commit under way would have.
fn run(store: &Memory, steps: &[Step]) -> (Vec<u8>, Vec<u8>) {
    let open = || SealedFile::open(store, &key(), DOMAIN);
    let (mut committed, mut plain) = (Vec::new(), Vec::new());
    let mut file = open().unwrap();
    for step in steps {
        let place = |at: u64| usize::try_from(at).unwrap();
        let done: Result<(), SealError> = match *step {
            Step::Write(offset, length, value) => {
                apply(&mut plain, place(offset), &vec![value; length]);
                file.write_at(&vec![value; length], offset)
            }
            Step::SetLen(length) => {
                plain.resize(place(length), 0);
                file.set_len(length)
            }
            Step::Punch(start, end) => {
                let end = place(end).min(plain.len());
                plain[place(start).min(end)..end].fill(0);
                file.punch(start..end as u64)
            }
            Step::Commit => file.commit(),
            Step::Rest => file.rest(),
            Step::Reopen => file.commit().and_then(|()| {
                file = open()?;
                Ok(())
            }),
        };
        if done.is_err() {
            break;
        }
        if matches!(step, Step::Commit | Step::Reopen) {
            committed.clone_from(&plain);
        }
    }
    (committed, plain)
}

fn read_all(file: &SealedFile<Memory>) -> Vec<u8> {
    let mut bytes = vec![0xee; usize::try_from(file.size()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is written, cut, punched and given back: a crash at any operation leaves the last commit
    /// or the one under way, and a file that rests takes what it holds and its reserve.
    #[test]
    fn nothing_is_given_back_that_a_crash_may_find(
        steps in prop::collection::vec(step(), 1..24),
        crashes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 8),
    ) {
        let empty = Memory::default();
        new(&empty).commit().unwrap();
        let whole = empty.clone();
        run(&whole, &steps);
        let operations = whole.operations.get() - empty.operations.get();
        for (at, which) in crashes {
            let fails_at = empty.operations.get() + at.index(operations + 1);
            let store = Memory { fails_at: Some(fails_at), ..empty.clone() };
            let (committed, under_way) = run(&store, &steps);
            let left = leftovers(&store.durable.borrow(), &store.pending.borrow());
            for bytes in [which.get(&left), &left[0], &left[left.len() - 1]] {
                let file = SealedFile::open(Memory::of(bytes.clone()), &key(), DOMAIN).unwrap();
                let found = read_all(&file);
                prop_assert!(found == committed || found == under_way, "{fails_at}");
            }
        }
    }

    #[test]
    fn a_file_that_rests_takes_what_it_holds_and_its_reserve(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let store = Memory::default();
        new(&store).commit().unwrap();
        let (_, plain) = run(&store, &steps);
        let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
        file.write_at(&plain, 0).unwrap();
        file.set_len(plain.len() as u64).unwrap();
        file.commit().unwrap();
        file.rest().unwrap();
        let blocks = plain.len().div_ceil(4096);
        let used = blocks + blocks.div_ceil(85) + 2 + 3;
        prop_assert!(blocks_of(&store) <= used + reserve(used), "{} for {}", blocks_of(&store), used);
        drop(file);
        prop_assert!(read_all(&SealedFile::open(Memory::of(store.bytes()), &key(), DOMAIN).unwrap()) == plain);
    }
}
