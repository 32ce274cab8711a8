//! Two servers of one directory: one of them writes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

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
