//! Two servers of one directory: one of them writes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::compared::make_by_mknod;
use crate::harness::{Place, View, can_mount, eventually};

/// Everything that changes a sealed file.
fn attempts(view: &View<'_>) -> Vec<io::Result<()>> {
    vec![
        File::options().write(true).open(view.at("vault/a")).map(drop),
        File::options().append(true).open(view.at("vault/a")).map(drop),
        fs::write(view.at("vault/a"), b"of the second"),
        fs::write(view.at("vault/new"), b"of the second"),
        make_by_mknod(&view.at("vault/new"), 0o600).map_err(io::Error::from),
    ]
}

/// Nobody writes through a view that is read-only, so it lacks nothing, and is in nobody's way.
#[test]
fn a_view_that_is_read_only_leaves_writing_to_another() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let first = place.mount(&["--read-only"]);
    assert!(!first.said.contains("sealed files"), "{}", first.said);
    let mut status = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let status = status.arg("status").arg(first.at("")).output().unwrap();
    assert!(status.status.success(), "{status:?}");
    assert!(!String::from_utf8_lossy(&status.stdout).contains("sealed"), "{status:?}");
    let second = place.mount_beside();
    assert!(!second.said.contains("can only be read here"), "{}", second.said);
    fs::write(second.at("vault/a"), b"of the second").unwrap();
    drop(second);
    // The lock is there by now.
    drop(first);
    let first = place.mount(&["--read-only"]);
    assert_eq!(fs::read(first.at("vault/a")).unwrap(), b"of the second");
    let second = place.mount_beside();
    assert!(!second.said.contains("can only be read here"), "{}", second.said);
    fs::write(second.at("vault/a"), b"again").unwrap();
}

/// No other server is waited for.
#[test]
fn a_lock_that_cannot_be_had_is_said_to_be_no_other_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.below(".tollgate-seal.lock")).unwrap();
    let view = place.mount(&[]);
    let said = &view.said;
    assert!(said.contains("can only be read here") && said.contains("cannot be had"), "{said}");
    assert!(!said.contains("other server"), "{said}");
}

#[test]
fn a_second_server_reads_what_the_first_writes_and_writes_after_its_end() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut first = place.mount(&[]);
    assert!(!first.said.contains("another server"), "{}", first.said);
    let file = File::create(first.at("vault/a")).unwrap();
    file.write_all_at(&[b'a'; 50_000], 0).unwrap();
    file.sync_all().unwrap();
    let second = place.mount_beside();
    assert!(second.said.contains("can only be read here"), "{}", second.said);
    let kept = File::open(second.at("vault/a")).unwrap();
    for attempt in attempts(&second) {
        assert_eq!(attempt.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    assert!(!place.below("vault/new").exists());
    fs::write(second.at("open/plain"), b"of the second").unwrap();
    // What the first one makes durable is what the second shows, also to who has it open.
    for (round, byte) in (0..5).zip(b'b'..) {
        file.write_all_at(&vec![byte; 50_000 + round], 0).unwrap();
        file.sync_all().unwrap();
        let shown = fs::read(second.at("vault/a")).unwrap();
        assert_eq!(shown, vec![byte; 50_000 + round]);
        let mut start = [0; 5000];
        kept.read_exact_at(&mut start, 0).unwrap();
        assert!(start.iter().all(|shown| *shown <= byte));
    }
    assert_eq!(fs::read(first.at("vault/a")).unwrap(), [b'f'; 50_004]);
    first.kill();
    drop(file);
    // Also while a reader of before has the file open.
    eventually("the second one writes", || fs::write(second.at("vault/b"), b"second").is_ok());
    let file = File::options().write(true).open(second.at("vault/a")).unwrap();
    file.write_all_at(b"second", 0).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(second.at("vault/a")).unwrap().starts_with(b"secondff"));
    drop((file, kept, first, second));
    assert!(place.is_good("vault"));
    // The lock is nobody's any more, and no file of the view.
    let third = place.mount(&[]);
    assert!(!third.said.contains("another server"), "{}", third.said);
    assert_eq!(fs::read(third.at("vault/b")).unwrap(), b"second");
    fs::write(third.at("vault/b"), b"third").unwrap();
    let names = fs::read_dir(third.at("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_str().unwrap().starts_with(".tollgate")));
}

/// What is replaced while it is read was not damaged.
#[test]
fn who_reads_below_beside_a_writer_finds_no_damage() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let beside = place.mount_beside();
    let path = view.at("vault/a");
    fs::write(&path, vec![1; 4_000_000]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let kept = File::open(beside.at("vault/a")).unwrap();
    let (checks_done, dest) = (AtomicBool::new(false), place.base.path().join("plain"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&path).unwrap();
            for byte in (2..=250).cycle() {
                if checks_done.load(Relaxed) {
                    break;
                }
                let length = if byte % 2 == 0 { 4_000_000 } else { 40_000 };
                file.write_all_at(&vec![byte; length], 0).unwrap();
                file.set_len(length as u64).unwrap();
                file.sync_all().unwrap();
            }
        });
        let work = || {
            let mut said = Vec::new();
            let (dir, key) = (place.below(""), place.key());
            let key = ["--dir", dir.to_str().unwrap(), "--key-file", &key, "--domain", "vault"];
            for round in 0..8 {
                let below = dir.join("vault");
                let more = [&key[..], &[below.to_str().unwrap()]].concat();
                said.push(place.seal(&[&["check"], &more[..]].concat()));
                let to = format!("{}-{round}", dest.to_str().unwrap());
                let exported = place.seal(&[&["export", "--to", &to], &more[..]].concat());
                if exported.status.success() {
                    let plain = fs::read(dest.with_file_name(format!("plain-{round}")).join("a"));
                    let plain = plain.map_err(|error| error.to_string())?;
                    if plain.len() < 40_000 || plain.contains(&0) {
                        return Err("a copy of what never was".to_owned());
                    }
                }
                said.push(exported);
                let mut start = [0; 30_000];
                kept.read_exact_at(&mut start, 0).map_err(|error| error.to_string())?;
            }
            Ok(said)
        };
        let said = work();
        checks_done.store(true, Relaxed);
        for said in said.unwrap() {
            let text = String::from_utf8_lossy(&said.stderr).into_owned();
            let is_busy = text.contains("is being written");
            assert!(said.status.success() || is_busy, "{text}");
            assert!(!text.contains("authentic") && !text.contains("damaged"), "{text}");
        }
    });
    drop((kept, beside, view));
    assert!(place.is_good("vault"));
}
