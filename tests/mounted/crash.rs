//! A server that is killed: what was made durable is there, and the way to a new view is free.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{View, can_mount};

const WRITERS: usize = 4;
const RECORD: usize = 512;

/// The records that a writer appends: each tells its writer and number, all through.
fn record(writer: usize, number: u64) -> Vec<u8> {
    let mut bytes = format!("writer {writer} record {number} ").into_bytes();
    bytes.resize(RECORD, b'.');
    bytes
}

/// Appends records, each made durable, until the server is gone; `durable` counts those that are.
fn append_until_gone(path: &Path, writer: usize, durable: &AtomicU64) {
    let Ok(mut file) = fs::File::options().create(true).append(true).open(path) else { return };
    for number in 0.. {
        if file.write_all(&record(writer, number)).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        durable.store(number + 1, Ordering::SeqCst);
    }
}

fn kill_under_load(policy: &str) {
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), policy, &[]);
    let paths: Vec<_> = (0..WRITERS).map(|writer| view.at(&format!("log {writer}"))).collect();
    let durable: Vec<_> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (writer, (path, count)) in paths.iter().zip(&durable).enumerate() {
            scope.spawn(move || append_until_gone(path, writer, count));
        }
        // Other requests under way, too.
        scope.spawn(|| {
            while fs::write(view.at("churn"), "x").is_ok()
                && fs::remove_file(view.at("churn")).is_ok()
            {}
        });
        std::thread::sleep(Duration::from_millis(700));
        view.kill_server();
    });
    let mnt = view.root().to_owned();
    // The kernel may answer from what it remembers, but not this.
    let error = fs::File::create(mnt.join("new")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    for (writer, count) in durable.iter().enumerate() {
        let bytes = fs::read(lower.path().join(format!("log {writer}"))).unwrap();
        let count = count.load(Ordering::SeqCst);
        println!("writer {writer}: {count} durable records, {} bytes", bytes.len());
        assert!(count > 0);
        assert!(bytes.len() as u64 >= count * RECORD as u64);
        for (number, found) in (0..count).zip(bytes.chunks(RECORD)) {
            assert_eq!(found, record(writer, number), "writer {writer}, record {number}");
        }
    }
    // The next server cleans up what the dead one left, and serves on.
    let umount =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("umount").arg(&mnt).output().unwrap();
    assert!(umount.status.success(), "{}", String::from_utf8_lossy(&umount.stderr));
    assert!(fs::read_dir(&mnt).unwrap().next().is_none());
    let view = View::of(lower.path(), policy, &[]);
    assert!(fs::read(view.at("log 0")).unwrap().starts_with(&record(0, 0)));
}

#[test]
fn killed_under_load_with_passthrough() {
    if can_mount() {
        kill_under_load("");
    }
}

#[test]
fn killed_under_load_through_user_space() {
    if can_mount() {
        kill_under_load("default = 'userspace'");
    }
}
