//! One file, several threads.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_seal::{MasterKey, Options, SealError, SealedFile, Store, Task};

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
    // What readers held back is used again now, and given back: how much that was is up to the scheduler.
    for block in (0..BLOCKS - 3).cycle().take(800) {
        file.write_at(&[1; 3 * 4096], block * 4096).unwrap();
        file.commit().unwrap();
    }
    let length = file.store().metadata().unwrap().len();
    assert!(length < 3 * BLOCKS * 4096, "{length}");
}

/// The end is cut off by commits while others write and take slots behind it.
#[test]
fn what_others_write_is_not_cut_off_with_the_end() {
    let key = MasterKey::generate(1).unwrap();
    let store = tempfile::tempfile().unwrap();
    let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
    file.write_at(&vec![0; 4096 * 64], 0).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for half in 0..2_u64 {
            let (file, done) = (&file, &done);
            scope.spawn(move || {
                let mut rounds = (0..=250_u8).cycle();
                while !done.load(Relaxed) {
                    let value = rounds.next().unwrap();
                    file.write_at(&[value; 32 * 4096], half * 32 * 4096).unwrap();
                    let mut read = vec![0; 32 * 4096];
                    file.read_at(&mut read, half * 32 * 4096).unwrap();
                    assert!(read.iter().all(|byte| *byte == value));
                }
            });
        }
        let cut = || {
            for _ in 0..40 {
                file.write_at(&vec![1; 1 << 20], 1 << 20)?;
                file.commit()?;
                file.set_len(64 * 4096)?;
                file.commit()?;
                file.rest()?;
            }
            Ok::<_, SealError>(())
        };
        let result = cut();
        done.store(true, Relaxed);
        result.unwrap();
    });
    file.commit().unwrap();
    let mut read = vec![0; 64 * 4096];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), read.len());
    let again = SealedFile::open(file.store(), &key, DOMAIN).unwrap();
    let mut durable = vec![0; 64 * 4096];
    assert_eq!(again.read_at(&mut durable, 0).unwrap(), read.len());
    assert!(durable == read);
}

/// Who reads beside who cuts the file and writes it anew finds some of its bytes, and none that it never had.
#[test]
fn what_is_cut_off_meanwhile_is_not_read_as_zero() {
    const LENGTH: usize = 8 * 4096 - 100;
    let key = MasterKey::generate(1).unwrap();
    let store = tempfile::tempfile().unwrap();
    let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                file.write_at(&[1; LENGTH], 0).unwrap();
                file.set_len(0).unwrap();
            }
        });
        let mut bytes = vec![0; LENGTH];
        let (mut is_zero, mut reads) = (false, 0);
        let until = Instant::now() + Duration::from_secs(60);
        while !is_zero && reads < 5000 && Instant::now() < until {
            let length = file.read_at(&mut bytes, 0).unwrap();
            is_zero |= bytes[..length].contains(&0);
            reads += usize::from(length > 0);
        }
        done.store(true, Relaxed);
        assert!(!is_zero, "zeroes that nobody wrote");
    });
}

/// A commit beside a cut has the file as it was before or after: never the old length with a hole.
#[test]
fn a_commit_has_all_of_a_cut_or_nothing() {
    let key = MasterKey::generate(1).unwrap();
    let store = tempfile::tempfile().unwrap();
    let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                file.write_at(&[1; 8 * 4096], 0).unwrap();
                file.set_len(4096).unwrap();
            }
        });
        let committed = || {
            for _ in 0..200 {
                file.commit()?;
                let durable = SealedFile::open(file.store(), &key, DOMAIN)?;
                let mut bytes = vec![1; 8 * 4096];
                durable.read_at(&mut bytes, 0)?;
                if bytes.contains(&0) {
                    return Ok(false);
                }
            }
            Ok::<_, SealError>(true)
        };
        let whole = committed();
        done.store(true, Relaxed);
        assert!(whole.unwrap(), "zeroes that nobody wrote");
    });
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

/// A file on which writes fail from a certain one on.
struct Fails {
    file: File,
    left: AtomicUsize,
}

impl Store for Fails {
    fn len(&self) -> io::Result<u64> {
        Store::len(&self.file)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        Store::read_at(&self.file, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let left = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| io::ErrorKind::StorageFull)?;
        Store::write_at(&self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Store::sync(&self.file)
    }
}

fn on_threads(tasks: &mut [Task<'_>]) {
    thread::scope(|scope| {
        tasks.iter_mut().for_each(|task| drop(scope.spawn(task)));
    });
}

/// As many bytes as five parts and some, at a place where blocks are written in part.
#[test]
fn a_write_on_several_threads_is_as_on_one() {
    let key = MasterKey::generate(1).unwrap();
    let new =
        || SealedFile::create(tempfile::tempfile().unwrap(), &key, DOMAIN, Options::default());
    let (file, other) = (new().unwrap(), new().unwrap());
    let bytes: Vec<u8> = (0..=250_u8).cycle().take(5 * 64 * 4096 + 1234).collect();
    let parts = AtomicUsize::new(0);
    for offset in [4096, 1000, 3 << 20] {
        let run = |tasks: &mut [Task<'_>]| {
            parts.fetch_max(tasks.len(), Relaxed);
            on_threads(tasks);
        };
        assert_eq!(file.write_beside(&mut bytes.clone(), offset, &run).unwrap(), bytes.len());
        other.write_at(&bytes, offset).unwrap();
    }
    assert_eq!(parts.into_inner(), 5);
    file.commit().unwrap();
    let (mut read, mut expected) = (vec![0; 6 << 20], vec![0; 6 << 20]);
    assert_eq!(file.read_at(&mut read, 0).unwrap(), other.read_at(&mut expected, 0).unwrap());
    assert!(read == expected && file.size() == other.size());
}

/// What was there stays, but for parts before the one that failed; and slots are not lost.
#[test]
fn a_part_that_fails_or_is_not_done_ends_the_write_before_it() {
    let key = MasterKey::generate(1).unwrap();
    let store = Fails { file: tempfile::tempfile().unwrap(), left: AtomicUsize::new(usize::MAX) };
    let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
    let part = 64 * 4096;
    file.write_at(&vec![1; 4 * part], 0).unwrap();
    file.commit().unwrap();
    let skips_third = |tasks: &mut [Task<'_>]| {
        for (index, task) in tasks.iter_mut().enumerate() {
            if index != 2 {
                task();
            }
        }
    };
    let written = file.write_beside(&mut vec![2; 5 * part], 0, &skips_third);
    assert_eq!(written.unwrap(), 2 * part, "what was written is told");
    let failed = file.write_beside(&mut vec![2; 3 * part], 2 * part as u64, &|_| ());
    assert!(failed.unwrap_err().to_string().contains("not done"), "nothing was written");
    let mut read = vec![0; 5 * part];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), 4 * part, "not longer");
    assert!(read[..2 * part].iter().all(|byte| *byte == 2));
    assert!(read[2 * part..4 * part].iter().all(|byte| *byte == 1));
    file.commit().unwrap();
    let length = file.store().file.metadata().unwrap().len();
    file.store().left.store(1, Relaxed);
    let written = file.write_beside(&mut vec![3; 4 * part], 0, &on_threads).unwrap_or(0);
    file.store().left.store(usize::MAX, Relaxed);
    assert_eq!(file.read_at(&mut read, 0).unwrap(), 4 * part);
    let values: Vec<u8> = read[..4 * part].chunks(part).map(|part| part[0]).collect();
    assert!(matches!(values[..], [2, 2, 1, 1] | [3, 2, 1, 1]), "{values:?}");
    assert_eq!(written, if values[0] == 3 { part } else { 0 });
    assert!(read[..4 * part].chunks(part).all(|part| part.iter().all(|byte| *byte == part[0])));
    for _ in 0..3 {
        assert_eq!(file.write_beside(&mut vec![4; 4 * part], 0, &on_threads).unwrap(), 4 * part);
        file.commit().unwrap();
    }
    let now = file.store().file.metadata().unwrap().len();
    assert!(
        now < length + 6 * part as u64,
        "{length} bytes before, {now} after: slots are used again"
    );
}

/// What is written while a commit fails is lost with what was written before.
#[test]
fn a_write_beside_a_commit_that_fails_is_an_error() {
    let key = MasterKey::generate(1).unwrap();
    let store = Fails { file: tempfile::tempfile().unwrap(), left: AtomicUsize::new(usize::MAX) };
    let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
    file.write_at(&[1; 8 * 4096], 0).unwrap();
    file.commit().unwrap();
    file.write_at(&[2; 4096], 0).unwrap();
    let commit_fails = |tasks: &mut [Task<'_>]| {
        on_threads(tasks);
        // So many writes of the map succeed; then the one of the header fails.
        (0..).find(|left| {
            file.store().left.store(*left, Relaxed);
            assert!(file.commit().is_err());
            file.has_failed()
        });
        file.store().left.store(usize::MAX, Relaxed);
    };
    let written = file.write_beside(&mut [3; 2 * 4096], 4096, &commit_fails);
    assert!(matches!(written, Err(SealError::Failed)), "{written:?}");
    assert!(matches!(file.set_len(5000), Err(SealError::Failed)));
    assert!(matches!(file.punch(0..5000), Err(SealError::Failed)));
    let again = SealedFile::open(&file.store().file, &key, DOMAIN).unwrap();
    let mut bytes = [0; 8 * 4096];
    assert_eq!(again.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes == [1; 8 * 4096]);
}

/// A disk that is full in the middle: the count says what changed, and the size ends there.
#[test]
fn what_a_write_without_space_has_changed_is_what_it_says() {
    let key = MasterKey::generate(1).unwrap();
    for left in 0..4 {
        let store =
            Fails { file: tempfile::tempfile().unwrap(), left: AtomicUsize::new(usize::MAX) };
        let file = SealedFile::create(store, &key, DOMAIN, Options::default()).unwrap();
        let old = vec![1; 10_000];
        file.write_at(&old, 0).unwrap();
        file.commit().unwrap();
        file.store().left.store(left, Relaxed);
        // A block in part, whole ones, and one in part behind the end.
        let written = file.write_beside(&mut vec![2; 12_000], 3000, &on_threads);
        let written = written.unwrap_or(0);
        assert_eq!(written, [0, 1096, 1096 + 2 * 4096, 12_000][left]);
        let mut expected = old;
        let end = (3000 + written).max(expected.len());
        expected.resize(end, 0);
        expected[3000..3000 + written].fill(2);
        assert_eq!(file.size(), end as u64);
        let mut read = vec![0; end];
        file.read_at(&mut read, 0).unwrap();
        assert!(read == expected, "{left}");
    }
}
