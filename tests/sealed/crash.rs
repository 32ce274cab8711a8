//! The server is killed under load: what was synced is there, and every file is whole.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{Place, can_mount};

const WRITERS: u64 = 3;
const RECORD: usize = 700;

/// Rounds of writing and killing; `TOLLGATE_TEST_KILLS` for more.
fn kills() -> u64 {
    std::env::var("TOLLGATE_TEST_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8)
}

fn record(writer: u64, number: u64) -> Vec<u8> {
    let mut bytes = format!("writer {writer} record {number} ").into_bytes();
    bytes.resize(RECORD, b'.');
    bytes
}

/// Appends records, each synced, and overwrites an area behind them, until the server is gone.
fn write_until_gone(path: &std::path::Path, writer: u64, durable: &AtomicU64) {
    let Ok(file) = File::options().write(true).create(true).truncate(false).open(path) else {
        return;
    };
    for number in durable.load(Ordering::SeqCst).. {
        let at = number * RECORD as u64;
        let unsynced = file.write_all_at(&[b'x'; 9000], at + 100_000);
        let written = unsynced.and_then(|()| file.write_all_at(&record(writer, number), at));
        if written.and_then(|()| file.sync_data()).is_err() {
            return;
        }
        durable.store(number + 1, Ordering::SeqCst);
    }
}

#[test]
fn what_was_synced_outlives_the_server_at_any_moment() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let durable: Vec<_> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    // Whoever is killed while it makes a file may leave it empty, which is no sealed file.
    let view = place.mount(&[]);
    for writer in 0..WRITERS {
        File::create(view.at(&format!("vault/{writer}"))).unwrap().sync_all().unwrap();
    }
    drop(view);
    for round in 0..kills() {
        let mut view = place.mount(&[]);
        for (writer, count) in (0..).zip(&durable) {
            let count = count.load(Ordering::SeqCst);
            let bytes = fs::read(view.at(&format!("vault/{writer}"))).unwrap_or_default();
            for number in 0..count {
                let at = usize::try_from(number).unwrap() * RECORD;
                assert_eq!(bytes[at..at + RECORD], record(writer, number), "round {round}");
            }
        }
        std::thread::scope(|scope| {
            for (writer, count) in (0..).zip(&durable) {
                let path = view.at(&format!("vault/{writer}"));
                scope.spawn(move || write_until_gone(&path, writer, count));
            }
            // The load, not a synchronisation: the moment of the kill is part of the test.
            std::thread::sleep(Duration::from_millis(20 + round * 37 % 230));
            view.kill();
        });
        drop(view);
        assert!(place.is_good("vault"), "round {round}");
    }
    let all: u64 = durable.iter().map(|count| count.load(Ordering::SeqCst)).sum();
    println!("{} kills, {all} synced records, all there", kills());
}
