//! The server is killed under load: what was synced is there, and every file is whole.
//!
//! `TOLLGATE_TEST_KILLS=300 cargo test --test sealed outlives -- --nocapture` kills it 300 times.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::harness::{Place, View, can_mount};

const RECORD: usize = 700;
const BLOCK: usize = 4096;
/// Written at once: so much is encrypted in parts by several threads.
const LARGE: usize = 1 << 20;
/// A pass over a large file has a number below this in each of its bytes.
const PASSES: u64 = 251;

/// Rounds of writing and killing; `TOLLGATE_TEST_KILLS` for more.
fn kills() -> u64 {
    std::env::var("TOLLGATE_TEST_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8)
}

/// Somebody who writes, and what was synced.
struct Writer {
    path: &'static str,
    kind: Kind,
    durable: AtomicU64,
}

enum Kind {
    /// Appends records, each synced, and overwrites an area behind them.
    Alone,
    /// Writes every second record of a file, so that two write the same blocks.
    Shared(u64),
    /// Writes a large file again and again.
    Large,
}

const fn writer(path: &'static str, kind: Kind) -> Writer {
    Writer { path, kind, durable: AtomicU64::new(0) }
}

impl Writer {
    fn record(&self, number: u64) -> (Vec<u8>, u64) {
        let place = match self.kind {
            Kind::Shared(which) => 2 * number + which,
            _ => number,
        };
        let mut bytes = format!("{} place {place} record {number} ", self.path).into_bytes();
        bytes.resize(RECORD, b'.');
        (bytes, place * RECORD as u64)
    }

    /// Writes until the server is gone.
    fn run(&self, path: &Path) {
        let Ok(file) = File::options().write(true).open(path) else { return };
        let mut large = Vec::new();
        for number in self.durable.load(Ordering::SeqCst).. {
            let (record, at) = self.record(number);
            let written = match self.kind {
                Kind::Alone => file
                    .write_all_at(&[b'x'; 9000], at + 100_000)
                    .and_then(|()| file.write_all_at(&record, at)),
                Kind::Shared(_) => file.write_all_at(&record, at),
                Kind::Large => file.write_all_at(in_one_request(&mut large, pass(number + 1)), 0),
            };
            if written.and_then(|()| file.sync_data()).is_err() {
                return;
            }
            self.durable.store(number + 1, Ordering::SeqCst);
        }
    }

    /// What was synced is there; of what was not, each block is as before or as after.
    fn check(&self, view: &View<'_>, round: u64) {
        let durable = self.durable.load(Ordering::SeqCst);
        let bytes = fs::read(view.at(self.path)).unwrap_or_default();
        let what = format!("{} in round {round}", self.path);
        if matches!(self.kind, Kind::Large) {
            assert!(durable == 0 || bytes.len() == LARGE, "{what}: {} bytes", bytes.len());
            for (index, block) in bytes.chunks(BLOCK).enumerate() {
                let other = block.iter().position(|byte| *byte != block[0]);
                assert!(other.is_none(), "{what}: block {index} is in parts, from {other:?} on");
                let right = [pass(durable), pass(durable + 1)].contains(&block[0]);
                assert!(right, "{what}: pass {} after {durable} were synced", block[0]);
            }
            return;
        }
        for number in 0..durable {
            let (record, at) = self.record(number);
            let at = usize::try_from(at).unwrap();
            assert_eq!(bytes[at..at + RECORD], record, "{what}");
        }
    }
}

/// A megabyte of `byte` that the kernel sends as one request: from the start of a page. From any other
/// address it makes two, and a commit between them leaves their common block in parts.
fn in_one_request(buffer: &mut Vec<u8>, byte: u8) -> &[u8] {
    buffer.clear();
    buffer.resize(LARGE + BLOCK, byte);
    let to_page = buffer.as_ptr().align_offset(BLOCK);
    &buffer[to_page..to_page + LARGE]
}

fn pass(number: u64) -> u8 {
    u8::try_from(number % PASSES).unwrap()
}

#[test]
fn what_was_synced_outlives_the_server_at_any_moment() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let writers = [
        writer("vault/alone", Kind::Alone),
        writer("vault/other", Kind::Alone),
        writer("vault/shared", Kind::Shared(0)),
        writer("vault/shared", Kind::Shared(1)),
        writer("vault/large", Kind::Large),
    ];
    // Whoever is killed while it makes a file may leave it empty, which is no sealed file.
    let view = place.mount(&[]);
    for writer in &writers {
        File::create(view.at(writer.path)).unwrap().sync_all().unwrap();
    }
    drop(view);
    for round in 0..kills() {
        let mut view = place.mount(&[]);
        writers.iter().for_each(|writer| writer.check(&view, round));
        std::thread::scope(|scope| {
            for writer in &writers {
                let path = view.at(writer.path);
                scope.spawn(move || writer.run(&path));
            }
            // The load, not a synchronisation: the moment of the kill is part of the test.
            std::thread::sleep(Duration::from_millis(20 + round * 37 % 230));
            view.kill();
        });
        drop(view);
        assert!(place.is_good("vault"), "round {round}");
    }
    let view = place.mount(&[]);
    writers.iter().for_each(|writer| writer.check(&view, kills()));
    let all: u64 = writers.iter().map(|writer| writer.durable.load(Ordering::SeqCst)).sum();
    println!("{} kills, {all} synced writes, all there", kills());
}

/// Part of a block, some, and more than the transport's thread writes itself.
const SIZES: [usize; 3] = [700, 3 * BLOCK, LARGE + 5000];

#[test]
fn what_was_written_with_o_sync_outlives_the_server() {
    if !can_mount() {
        return;
    }
    let ways: [(&str, OFlags, ReadWriteFlags); 4] = [
        ("O_SYNC", OFlags::SYNC, ReadWriteFlags::empty()),
        ("O_DSYNC", OFlags::DSYNC, ReadWriteFlags::empty()),
        ("RWF_SYNC", OFlags::empty(), ReadWriteFlags::SYNC),
        ("RWF_DSYNC", OFlags::empty(), ReadWriteFlags::DSYNC),
    ];
    let place = Place::new();
    for (name, open, write) in ways {
        let path = |size: usize| format!("vault/{name}-{size}");
        let mut view = place.mount(&[]);
        // Open until the server is gone: a close would have them committed.
        let mut files = Vec::new();
        for size in SIZES {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | open;
            let file = rustix::fs::open(view.at(&path(size)), flags, Mode::RUSR | Mode::WUSR);
            let file = file.unwrap();
            // Once more: what is there is written at once, by the thread that received it.
            for byte in [b'a', b'b'] {
                let bytes = vec![byte; size];
                let written = pwritev2(&file, &[IoSlice::new(&bytes)], 0, write).unwrap();
                assert_eq!(written, size, "{name}");
            }
            files.push(file);
        }
        view.kill();
        drop((files, view));
        let view = place.mount(&[]);
        for size in SIZES {
            let found = fs::read(view.at(&path(size))).unwrap_or_default();
            assert!(found == vec![b'b'; size], "{name}: {} of {size} bytes", found.len());
        }
        drop(view);
        assert!(place.is_good("vault"), "{name}");
    }
}
