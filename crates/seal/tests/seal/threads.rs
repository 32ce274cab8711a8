//! One file, several threads.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tollgate_seal::{MasterKey, Options, SealedFile};

const DOMAIN: &[u8] = b"vault/**";
const BLOCKS: u64 = 64;

/// Blocks are overwritten and committed all the time, so that slots change hands: each reading is
/// of one writing, and none is an authentication error.
#[test]
fn readers_writers_and_commits_at_once_see_whole_blocks() {
    let key = MasterKey::generate(1).unwrap();
    let store = tempfile::tempfile().unwrap();
    let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
    file.write_at(&vec![0; 4096 * 64], 0).unwrap();
    file.commit().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u64)
            .map(|writer| {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..150_u64 {
                        let block = (round * 7 + writer) % (BLOCKS - 3);
                        let value = u8::try_from(round % 251).unwrap();
                        file.write_at(&[value; 3 * 4096], block * 4096).unwrap();
                        if round % 5 == writer {
                            file.commit().unwrap();
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let mut bytes = vec![0; 4096 * 64];
                while !done.load(Relaxed) {
                    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
                    for block in bytes.chunks_exact(4096) {
                        assert!(block.iter().all(|byte| *byte == block[0]));
                    }
                }
            });
        }
        let written: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Relaxed);
        written.into_iter().for_each(|result| result.unwrap());
    });
    // What readers held back is used again by now.
    let length = file.store().metadata().unwrap().len();
    assert!(length < 4096 * BLOCKS * 8, "{length}");
}

/// Parts of one block, written by several threads: none is lost.
#[test]
fn writers_of_one_block_take_turns() {
    let key = MasterKey::generate(1).unwrap();
    let store = tempfile::tempfile().unwrap();
    let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..100_u64 {
                    let at = round * 40 + u64::from(thread) * 10;
                    file.write_at(&[thread + 1; 10], at).unwrap();
                }
            });
        }
    });
    file.commit().unwrap();
    let mut bytes = [0; 4000];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4000);
    for (at, byte) in bytes.iter().enumerate() {
        assert_eq!(usize::from(*byte), at / 10 % 4 + 1, "{at}");
    }
}
