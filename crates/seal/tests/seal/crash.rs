//! A crash at every operation on the store, with what was not synced lost, torn or out of order: the
//! file is as its last commit left it, or as the commit under way would have.

use crate::memory::{Memory, Write, apply};
use tollgate_seal::{Cipher, MasterKey, Options, SealError, SealedFile};
use zeroize::Zeroizing;

const DOMAIN: &[u8] = b"vault/**";

fn key() -> MasterKey {
    MasterKey::from_bytes(1, Zeroizing::new([3; 32]))
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Offset, length, value.
    Write(u64, usize, u8),
    SetLen(u64),
    Commit,
}

use Step::{Commit, SetLen, Write as Put};

/// Overwrites, holes, growth over two levels of the map, cuts.
const STEPS: [Step; 16] = [
    Put(0, 9000, 1),
    Commit,
    Put(4096, 4096, 2),
    Put(100, 50, 3),
    Commit,
    Put(400_000, 10_000, 4),
    Commit,
    SetLen(5000),
    Commit,
    SetLen(20_000),
    Put(8192, 4096, 5),
    Commit,
    Put(0, 20_000, 6),
    Put(0, 4096, 7),
    Commit,
    Put(1, 1, 8),
];

fn read_all(file: &SealedFile<Memory>) -> Result<Vec<u8>, SealError> {
    let mut bytes = vec![0xee; usize::try_from(file.size()).unwrap()];
    let length = file.read_at(&mut bytes, 0)?;
    assert_eq!(length, bytes.len());
    Ok(bytes)
}

fn change(plain: &mut Vec<u8>, step: Step) {
    match step {
        Put(offset, length, value) => {
            apply(plain, usize::try_from(offset).unwrap(), &vec![value; length]);
        }
        SetLen(length) => plain.resize(usize::try_from(length).unwrap(), 0),
        Commit => {}
    }
}

fn perform(file: &SealedFile<&Memory>, step: Step) -> Result<(), SealError> {
    match step {
        Put(offset, length, value) => file.write_at(&vec![value; length], offset),
        SetLen(length) => file.set_len(length),
        Commit => file.commit(),
    }
}

/// Runs the steps until one fails: what was committed, and what the failed commit would have.
fn run(store: &Memory) -> (Vec<u8>, Vec<u8>) {
    let (mut committed, mut plain) = (Vec::new(), Vec::new());
    let file = SealedFile::open(store, &key(), DOMAIN).unwrap();
    for step in STEPS {
        change(&mut plain, step);
        if perform(&file, step).is_err() {
            break;
        }
        if matches!(step, Commit) {
            committed.clone_from(&plain);
        }
    }
    (committed, plain)
}

/// What a crash may leave: none of what was pending, all, each beginning, each without one, each torn in the
/// middle of one, only one.
pub(crate) fn leftovers(durable: &[u8], pending: &[Write]) -> Vec<Vec<u8>> {
    let mut left = Vec::new();
    let mut build = |parts: Vec<(usize, &[u8], bool)>| {
        let mut bytes = durable.to_vec();
        for (offset, part, cuts) in parts {
            if cuts {
                bytes.truncate(offset);
            }
            apply(&mut bytes, offset, part);
        }
        left.push(bytes);
    };
    let part = |index: usize, from: usize, to: usize| {
        let Write { offset, bytes, cuts } = &pending[index];
        (offset + from, &bytes[from..to], *cuts)
    };
    let all = |index: usize| part(index, 0, pending[index].bytes.len());
    for count in 0..=pending.len() {
        build((0..count).map(all).collect());
        build((0..count).rev().map(all).collect());
    }
    for one in 0..pending.len() {
        let length = pending[one].bytes.len();
        build(vec![all(one)]);
        build((0..pending.len()).filter(|index| *index != one).map(all).collect());
        // Torn in two ways: in pages, and within a header.
        for cut in [length / 2, length - length / 3, 64.min(length)] {
            build((0..one).map(all).chain([part(one, 0, cut)]).collect());
            build((0..one).map(all).chain([part(one, cut, length)]).collect());
        }
    }
    left
}

#[test]
fn a_crash_at_any_operation_leaves_the_last_commit_or_the_one_under_way() {
    for cipher in [Cipher::Aes256Gcm, Cipher::XChaCha20Poly1305] {
        let new = Memory::default();
        let options = Options { cipher, block_log2: 12 };
        SealedFile::create(&new, &key(), DOMAIN, options).unwrap().commit().unwrap();
        // The second copy of the header is written and not synced: that is part of what may be lost.
        let whole = new.clone();
        run(&whole);
        let operations = whole.operations.get();
        assert!(operations > 30, "{operations}");
        let mut crashes = 0;
        for fails_at in new.operations.get()..=operations {
            let store = Memory { fails_at: Some(fails_at), ..new.clone() };
            let (committed, under_way) = run(&store);
            for bytes in leftovers(&store.durable.borrow(), &store.pending.borrow()) {
                crashes += 1;
                let file = SealedFile::open(Memory::of(bytes), &key(), DOMAIN)
                    .unwrap_or_else(|error| panic!("crash at {fails_at}: {error}"));
                let plain =
                    read_all(&file).unwrap_or_else(|error| panic!("crash at {fails_at}: {error}"));
                let fine = plain == committed || plain == under_way;
                assert!(fine, "crash at {fails_at}: {} bytes of neither", plain.len());
            }
        }
        assert!(crashes > 1000, "{crashes}");
    }
}

/// After a crash, work goes on: the copy of the header that was lost is not the one relied on.
#[test]
fn a_crash_after_a_crash_leaves_a_commit_too() {
    let new = Memory::default();
    let options = Options::default();
    SealedFile::create(&new, &key(), DOMAIN, options).unwrap().commit().unwrap();
    let whole = new.clone();
    run(&whole);
    for fails_at in (new.operations.get()..=whole.operations.get()).step_by(7) {
        let store = Memory { fails_at: Some(fails_at), ..new.clone() };
        run(&store);
        for bytes in
            leftovers(&store.durable.borrow(), &store.pending.borrow()).into_iter().step_by(9)
        {
            let before =
                read_all(&SealedFile::open(Memory::of(bytes.clone()), &key(), DOMAIN).unwrap())
                    .unwrap();
            for second in 0..12 {
                let store = Memory { fails_at: Some(second), ..Memory::of(bytes.clone()) };
                let mut after = before.clone();
                apply(&mut after, 4000, &[9; 300]);
                let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
                let done = file.write_at(&[9; 300], 4000).and_then(|()| file.commit()).is_ok();
                for bytes in leftovers(&store.durable.borrow(), &store.pending.borrow())
                    .into_iter()
                    .step_by(3)
                {
                    let file = SealedFile::open(Memory::of(bytes), &key(), DOMAIN).unwrap();
                    let plain = read_all(&file).unwrap();
                    assert!(plain == after || (!done && plain == before), "{fails_at}, {second}");
                }
            }
        }
    }
}

/// A server is killed, or gives up, while it syncs; the next one writes, and then the power fails. The
/// header that it found may not have been durable: what only the one before names is not overwritten.
#[test]
fn a_power_failure_after_a_failed_sync_and_another_server_leaves_a_commit() {
    let new = Memory::default();
    SealedFile::create(&new, &key(), DOMAIN, Options::default()).unwrap().commit().unwrap();
    let whole = new.clone();
    run(&whole);
    let mut syncs = 0;
    for fails_at in new.operations.get()..=whole.operations.get() {
        let store = Memory { fails_at: Some(fails_at), ..new.clone() };
        let (committed, under_way) = run(&store);
        if !store.failed_in_sync() {
            continue;
        }
        syncs += 1;
        let store = Memory { fails_at: None, ..store };
        let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
        file.write_at(&[9; 40_000], 0).unwrap();
        for bytes in leftovers(&store.durable.borrow(), &store.pending.borrow()) {
            let file = SealedFile::open(Memory::of(bytes), &key(), DOMAIN).unwrap();
            let plain =
                read_all(&file).unwrap_or_else(|error| panic!("sync at {fails_at}: {error}"));
            assert!(plain == committed || plain == under_way, "sync at {fails_at}");
        }
    }
    assert!(syncs > 10, "{syncs}");
}

/// The disk loses the copy of the header that a commit writes second, and the sync says so that comes
/// after it. Who opens the file then finds both copies the same in the page cache. The one that is on
/// the disk is not the first to be overwritten.
#[test]
fn a_power_failure_after_a_copy_of_the_header_was_lost_leaves_a_commit() {
    // The copy that is written second is another one with each commit.
    for commits in 1..=4 {
        let lost = Memory::default();
        let file = SealedFile::create(&lost, &key(), DOMAIN, Options::default()).unwrap();
        for value in 1..=commits {
            file.write_at(&[value; 40_000], 0).unwrap();
            file.commit().unwrap();
        }
        file.write_at(&[8; 40_000], 0).unwrap();
        lost.next_sync_loses.set(true);
        assert!(matches!(file.commit(), Err(SealError::Io(_))));
        drop(file);
        for fails_at in lost.operations.get().. {
            let store = Memory { fails_at: Some(fails_at), ..lost.clone() };
            let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
            let written = file.write_at(&[9; 40_000], 0).and_then(|()| file.commit());
            for bytes in leftovers(&store.durable.borrow(), &store.pending.borrow()) {
                let file = SealedFile::open(Memory::of(bytes), &key(), DOMAIN).unwrap();
                let plain = read_all(&file)
                    .unwrap_or_else(|error| panic!("{commits}, crash at {fails_at}: {error}"));
                let before = written.is_err() && plain == [commits; 40_000];
                assert!(before || plain == [9; 40_000], "{commits}, crash at {fails_at}");
            }
            if written.is_ok() {
                break;
            }
        }
    }
}

/// No space: what was there before the write is read, and the write can be tried again.
#[test]
fn a_write_without_space_leaves_the_old_content_readable() {
    let store = Memory::default();
    let file = SealedFile::create(&store, &key(), DOMAIN, Options::default()).unwrap();
    file.write_at(&[1; 50_000], 0).unwrap();
    file.commit().unwrap();
    drop(file);
    for extra in 0..6 {
        let mut store = store.clone();
        store.fails_at = Some(store.operations.get() + extra);
        let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
        let written = file.write_at(&[2; 5000], 3000).and_then(|()| file.commit());
        let mut bytes = [0; 50_000];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 50_000);
        for (index, byte) in bytes.iter().enumerate() {
            let new = (3000..8000).contains(&index);
            assert!(*byte == 1 || new, "{index}");
            assert!(written.is_err() || !new || *byte == 2, "{index}");
        }
    }
}

/// What a failed sync leaves out may never come: nothing is said to be durable after it.
#[test]
fn after_a_failed_sync_nothing_is_written_until_the_file_is_opened_again() {
    let store = Memory::default();
    let file = SealedFile::create(&store, &key(), DOMAIN, Options::default()).unwrap();
    file.write_at(&[1; 5000], 0).unwrap();
    file.commit().unwrap();
    file.write_at(&[2; 5000], 0).unwrap();
    store.syncs_fail.set(true);
    assert!(matches!(file.commit(), Err(SealError::Io(_))));
    store.syncs_fail.set(false);
    assert!(file.has_failed());
    assert!(matches!(file.commit(), Err(SealError::Failed)));
    assert!(matches!(file.write_at(b"x", 0), Err(SealError::Failed)));
    let file = SealedFile::open(Memory::of(store.durable.borrow().clone()), &key(), DOMAIN);
    assert_eq!(read_all(&file.unwrap()).unwrap(), [1; 5000]);
}
