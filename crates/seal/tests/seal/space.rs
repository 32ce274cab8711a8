//! How much of the store a file takes.

use tollgate_seal::{MasterKey, Options, SealedFile, Store};

use crate::memory::Memory;

const DOMAIN: &[u8] = b"vault/**";
const BLOCK: u64 = 4096;

fn new(store: &Memory) -> SealedFile<&Memory> {
    let key = MasterKey::generate(1).unwrap();
    SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap()
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
    for round in 0..50 {
        file.write_at(&[2; 400_000], 0).unwrap();
        file.set_len(if round % 2 == 0 { 0 } else { 4000 }).unwrap();
    }
    assert!(store.len().unwrap() <= 110_000 + 2 * 410_000, "{}", store.len().unwrap());
    // All that the last commit refers to is as it was.
    let now = store.bytes();
    assert!(now[2 * 4096..committed.len()] == committed[2 * 4096..]);
}
