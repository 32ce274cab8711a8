//! A sealed file against a plain one, and against everything that an attacker may do to its bytes.

use crate::memory::{Memory, apply};
use proptest::prelude::*;
use tollgate_seal::{Cipher, MasterKey, Options, SealError, SealedFile, Store, stat};
use zeroize::Zeroizing;

const DOMAIN: &[u8] = b"vault/**";

fn key() -> MasterKey {
    MasterKey::from_bytes(1, Zeroizing::new([3; 32]))
}

fn sealed(plain: &[u8]) -> Vec<u8> {
    let store = Memory::default();
    let file = SealedFile::create(&store, &key(), DOMAIN, Options::default()).unwrap();
    file.write_at(plain, 0).unwrap();
    file.commit().unwrap();
    store.bytes()
}

fn plain(length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect()
}

/// All bytes, in one read.
fn read(bytes: Vec<u8>, key: &MasterKey, domain: &[u8]) -> Result<Vec<u8>, SealError> {
    let file = SealedFile::open(Memory::of(bytes), key, domain)?;
    let mut plain = vec![0; usize::try_from(file.size()).unwrap()];
    file.read_at(&mut plain, 0)?;
    Ok(plain)
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Read(u64, usize),
    SetLen(u64),
    Punch(u64, usize),
    Commit,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = prop_oneof![0..20_000_u64, 0..2_000_000_u64];
    let length = prop_oneof![1..300_usize, 1..40_000_usize];
    let step = prop_oneof![
        4 => (place.clone(), length.clone(), any::<u8>()).prop_map(|(at, n, v)| Step::Write(at, n, v)),
        3 => (place.clone(), length).prop_map(|(at, n)| Step::Read(at, n)),
        1 => place.clone().prop_map(Step::SetLen),
        1 => (place, 1..100_000_usize).prop_map(|(at, n)| Step::Punch(at, n)),
        1 => Just(Step::Commit),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_sealed_file_reads_as_a_plain_one(
        steps in steps(), block_log2 in 12..=16_u8, chacha in any::<bool>(),
    ) {
        let cipher = if chacha { Cipher::XChaCha20Poly1305 } else { Cipher::Aes256Gcm };
        let mut model = Vec::new();
        let mut file =
            SealedFile::create(Memory::default(), &key(), DOMAIN, Options { cipher, block_log2 }).unwrap();
        for step in steps {
            match step {
                Step::Write(at, length, value) => {
                    file.write_at(&vec![value; length], at).unwrap();
                    apply(&mut model, usize::try_from(at).unwrap(), &vec![value; length]);
                }
                Step::Read(at, length) => {
                    let mut bytes = vec![0xee; length];
                    let got = file.read_at(&mut bytes, at).unwrap();
                    let from = usize::try_from(at).unwrap().min(model.len());
                    prop_assert_eq!(&bytes[..got], &model[from..model.len().min(from + length)]);
                }
                Step::SetLen(length) => {
                    file.set_len(length).unwrap();
                    model.resize(usize::try_from(length).unwrap(), 0);
                }
                Step::Punch(at, length) => {
                    file.punch(at..at + length as u64).unwrap();
                    let at = usize::try_from(at).unwrap().min(model.len());
                    let end = model.len().min(at + length);
                    model[at..end].fill(0);
                }
                Step::Commit => file.commit().unwrap(),
                Step::Reopen => {
                    file.commit().unwrap();
                    file = SealedFile::open(Memory::of(file.store().bytes()), &key(), DOMAIN).unwrap();
                }
            }
            prop_assert_eq!(file.size(), model.len() as u64);
        }
        file.commit().unwrap();
        prop_assert_eq!(read(file.store().bytes(), &key(), DOMAIN).unwrap(), model);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_or_changes_nothing() {
    let plain = plain(20_000);
    let bytes = sealed(&plain);
    let mut refused = 0;
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        match read(changed, &key(), DOMAIN) {
            Ok(read) => assert_eq!(read, plain, "byte {at}"),
            Err(_) => refused += 1,
        }
    }
    // Every byte of the blocks and of the map; one copy of the header stands in for the other.
    assert!(refused >= 20_480 + 240, "{refused}");
}

#[test]
fn a_cut_file_is_an_error_at_every_length() {
    let plain = plain(9_000);
    let bytes = sealed(&plain);
    for length in (0..bytes.len()).step_by(97) {
        match read(bytes[..length].to_vec(), &key(), DOMAIN) {
            Ok(read) => panic!("{length} of {}: {} bytes", bytes.len(), read.len()),
            Err(SealError::Io(error)) => panic!("{length}: {error}"),
            Err(_) => {}
        }
    }
}

/// Every two slots of one file, and every slot of another file or another state of the same file.
#[test]
fn swapped_and_foreign_blocks_are_errors() {
    let plain = plain(30_000);
    let bytes = sealed(&plain);
    let slots = bytes.len() / 4096;
    let store = Memory::of(bytes.clone());
    let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
    file.write_at(&plain, 0).unwrap();
    file.commit().unwrap();
    drop(file);
    let foreign = [sealed(&plain), store.bytes()];
    let take = |from: &[u8], slot: usize| from[slot * 4096..(slot + 1) * 4096].to_vec();
    let mut refused = 0;
    for slot in 2..slots {
        for other in (2..slots).filter(|other| *other != slot) {
            let mut changed = bytes.clone();
            apply(&mut changed, slot * 4096, &take(&bytes, other));
            apply(&mut changed, other * 4096, &take(&bytes, slot));
            assert!(read(changed, &key(), DOMAIN).is_err(), "{slot} and {other}");
            refused += 1;
        }
        for foreign in &foreign {
            let mut changed = bytes.clone();
            apply(&mut changed, slot * 4096, &take(foreign, slot));
            if changed != bytes {
                assert!(read(changed, &key(), DOMAIN).is_err(), "{slot}");
                refused += 1;
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

/// The one that was read may be what a crash left, and nobody's damage.
#[test]
fn a_copy_of_the_header_that_cannot_be_read_now_is_no_wrong_one() {
    for (damaged, unreadable) in [(0, 4096), (4096, 0)] {
        let mut bytes = sealed(&plain(9_000));
        bytes[damaged + 100] ^= 1;
        let store = Memory::of(bytes);
        stat(&store, &key(), DOMAIN).unwrap();
        store.unreadable.set(Some(unreadable));
        let error = stat(&store, &key(), DOMAIN).unwrap_err();
        assert!(matches!(error, SealError::Io(_)), "{unreadable}: {error}");
    }
}

/// One that has the higher generation, one that has the lower, of an empty file and of one that is all
/// holes: that file's own blocks would not be missed.
#[test]
fn a_copy_of_the_header_that_is_of_another_file_is_an_error() {
    let empty = Memory::default();
    let file = SealedFile::create(&empty, &key(), DOMAIN, Options::default()).unwrap();
    file.commit().unwrap();
    let holes = Memory::of(empty.bytes());
    for length in [1 << 20, 2 << 20, 3 << 20] {
        let file = SealedFile::open(&holes, &key(), DOMAIN).unwrap();
        file.set_len(length).unwrap();
        file.commit().unwrap();
    }
    for foreign in [empty.bytes(), holes.bytes(), sealed(&plain(9_000))] {
        for at in [0, 4096] {
            let mut changed = sealed(&plain(30_000));
            apply(&mut changed, at, &foreign[at..at + 160]);
            let error = read(changed.clone(), &key(), DOMAIN).unwrap_err();
            assert!(matches!(error, SealError::HeadersOfTwoFiles), "{error}");
            stat(&Memory::of(changed), &key(), DOMAIN).unwrap_err();
        }
    }
}

#[test]
fn a_hole_cannot_be_made_and_a_hole_takes_no_space() {
    let bytes = sealed(&plain(30_000));
    for slot in 2..bytes.len() / 4096 {
        let mut changed = bytes.clone();
        changed[slot * 4096..(slot + 1) * 4096].fill(0);
        assert!(read(changed, &key(), DOMAIN).is_err(), "{slot}");
    }
    let file = SealedFile::create(Memory::default(), &key(), DOMAIN, Options::default()).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_at(b"end", (1 << 40) - 3).unwrap();
    file.commit().unwrap();
    assert!(file.store().len().unwrap() < 100_000, "{}", file.store().len().unwrap());
    let mut end = [1; 5];
    assert_eq!(file.read_at(&mut end, (1 << 40) - 5).unwrap(), 5);
    assert_eq!(&end, b"\0\0end");
}

#[test]
fn another_key_domain_epoch_or_file_is_refused_with_the_reason() {
    let bytes = sealed(b"text");
    let other = MasterKey::from_bytes(1, Zeroizing::new([4; 32]));
    assert!(matches!(read(bytes.clone(), &other, DOMAIN), Err(SealError::HeaderNotAuthentic)));
    assert!(matches!(read(bytes.clone(), &key(), b"open/**"), Err(SealError::HeaderNotAuthentic)));
    let newer = MasterKey::from_bytes(2, Zeroizing::new([3; 32]));
    let error = read(bytes.clone(), &newer, DOMAIN).unwrap_err();
    assert!(matches!(error, SealError::WrongEpoch { found: 1, given: 2 }), "{error}");
    assert!(matches!(read(b"plain text".to_vec(), &key(), DOMAIN), Err(SealError::NotSealed)));
    assert!(matches!(read(vec![b'x'; 10_000], &key(), DOMAIN), Err(SealError::NotSealed)));
    let mut version = bytes;
    version[8] = 9;
    version[4096 + 8] = 9;
    assert!(matches!(read(version, &key(), DOMAIN), Err(SealError::UnknownVersion(9))));
}

#[test]
fn stat_reads_the_header_alone() {
    let bytes = sealed(&plain(9_000));
    let mut header = bytes[..8192].to_vec();
    let found = stat(&Memory::of(header.clone()), &key(), DOMAIN).unwrap();
    assert_eq!((found.size, found.epoch, found.copies_agree), (9_000, 1, true));
    header[4096] = 0;
    let found = stat(&Memory::of(header), &key(), DOMAIN).unwrap();
    assert_eq!((found.size, found.copies_agree, found.both_good), (9_000, false, false));
}

/// No crash leaves that, as each commit begins with the older one.
#[test]
fn a_copy_of_the_header_from_two_commits_before_is_none() {
    let store = Memory::of(sealed(&plain(9_000)));
    let older = store.bytes()[4096..4256].to_vec();
    for (commit, both_good) in [(1, true), (2, false), (3, false)] {
        let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
        file.write_at(b"x", 0).unwrap();
        file.commit().unwrap();
        drop(file);
        for at in [0, 4096] {
            let newest = store.bytes()[at..at + 160].to_vec();
            store.write_at(&older, at as u64).unwrap();
            let found = stat(&store, &key(), DOMAIN).unwrap();
            assert_eq!(found.both_good, both_good, "{commit} {at}");
            store.write_at(&newest, at as u64).unwrap();
        }
    }
}

/// As a crash between the two leaves them; the next commit writes both.
#[test]
fn an_older_copy_of_the_header_is_a_good_one() {
    let store = Memory::of(sealed(&plain(9_000)));
    let older = store.bytes()[4096..4256].to_vec();
    let commit = || {
        let file = SealedFile::open(&store, &key(), DOMAIN).unwrap();
        file.write_at(b"x", 0).unwrap();
        file.commit().unwrap();
    };
    let agree = || {
        let found = stat(&store, &key(), DOMAIN).unwrap();
        (found.copies_agree, found.both_good)
    };
    commit();
    assert_eq!(agree(), (true, true));
    for (bytes, found) in [(&older[..], (false, true)), (&[7; 160], (false, false))] {
        store.write_at(bytes, 4096).unwrap();
        assert_eq!(agree(), found);
        commit();
        assert_eq!(agree(), (true, true));
    }
}

/// Whole blocks that nothing names may be left of a cut; a part of one is not.
#[test]
fn bytes_behind_the_last_block_are_counted() {
    let behind = |bytes: &[u8], more: usize| {
        let bytes = [bytes, &vec![7; more]].concat();
        SealedFile::open(Memory::of(bytes), &key(), DOMAIN).unwrap().bytes_behind().unwrap()
    };
    let empty = Memory::default();
    SealedFile::create(&empty, &key(), DOMAIN, Options::default()).unwrap().commit().unwrap();
    for bytes in [sealed(b""), sealed(&plain(9_000)), empty.bytes()] {
        assert_eq!([0, 5, 3000].map(|more| behind(&bytes, more)), [0, 5, 3000]);
    }
    assert_eq!(behind(&sealed(&plain(9_000)), 4096), 0);
}

#[test]
fn no_plain_text_is_in_the_store_and_equal_blocks_differ() {
    let bytes = sealed(&b"secret words ".repeat(2000));
    assert!(!bytes.windows(12).any(|window| window == b"secret words"));
    let blocks: std::collections::HashSet<_> = bytes[8192..].chunks(4096).collect();
    assert_eq!(blocks.len(), (bytes.len() - 8192) / 4096);
}

/// Written over and over: slots are used again, and every byte of what was freed stays out of the way.
#[test]
fn space_is_used_again() {
    let file = SealedFile::create(Memory::default(), &key(), DOMAIN, Options::default()).unwrap();
    for round in 0..50 {
        file.write_at(&[round; 40_960], 0).unwrap();
        file.commit().unwrap();
    }
    let length = file.store().len().unwrap();
    assert!(length <= 64 * 4096, "{length}");
}
