//! New keys for the files of a domain.

use std::fs::{self, File};

use crate::harness::{Mounted, Place, fails, ok};
use crate::mounting;

#[test]
fn rotation_seals_anew_and_goes_on_where_it_was_ended() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let plain = place.exported();
    let old = fs::read(place.path("vault/plan")).unwrap();
    assert!(ok(&place.vault("rotate", &[])).contains("2 files sealed anew, epoch 2"));
    assert_ne!(fs::read(place.path("vault/plan")).unwrap(), old);
    assert_eq!(place.exported(), plain);
    // As a kill between two files leaves it: one of the old epoch, and a file not complete.
    fs::write(place.path("vault/plan"), old).unwrap();
    let half = place.left_behind("0123456789abcXYZ", b"TGSEALED half");
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).contains("1 file sealed anew, epoch 2"), "{said:?}");
    assert!(!half.exists());
    assert_eq!(place.exported(), plain);
}

#[test]
fn files_of_the_newest_epoch_are_counted() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let old = fs::read(place.path("vault/plan")).unwrap();
    ok(&place.vault("rotate", &[]));
    fs::write(place.path("vault/plan"), old).unwrap();
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).ends_with("1 file sealed anew, epoch 2\n1 file of that epoch already\n"));
}

/// A file with several names keeps the key that it has, and does not keep others from a new one.
#[test]
fn a_hard_link_is_named_by_each_rotation_and_ends_none() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    fs::hard_link(place.path("vault/empty"), place.path("same")).unwrap();
    for epoch in [2, 3] {
        let said = place.vault("rotate", &[]);
        fails(&said, &["vault/empty", "2 names", "keeps the key", "1 file could not be done"]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert_eq!(said, format!("1 file sealed anew, epoch {epoch}\n"));
    }
    ok(&place.vault("check", &[]));
    fs::remove_file(place.path("same")).unwrap();
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).contains("going on with epoch 3"), "{said:?}");
    assert!(ok(&said).contains("1 file sealed anew, epoch 3"), "{said:?}");
}

/// A file that can never be sealed anew does not keep the others from a new key.
#[test]
fn a_damaged_file_is_named_by_each_rotation_and_ends_none() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let mut damaged = fs::read(place.path("vault/plan")).unwrap();
    damaged[8192 + 5] ^= 1;
    fs::write(place.path("vault/plan"), damaged).unwrap();
    for epoch in [2, 3] {
        let said = place.vault("rotate", &[]);
        fails(&said, &["vault/plan", "not authentic", "1 file could not be done"]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.ends_with(&format!("1 file sealed anew, epoch {epoch}\n")), "{said}");
    }
}

/// Nor does one that is open for writing all the time, as in a view.
#[test]
fn a_file_that_is_open_for_writing_ends_no_rotation() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let open = File::options().append(true).open(place.path("vault/plan")).unwrap();
    for epoch in [2, 3] {
        let said = place.vault("rotate", &[]);
        fails(&said, &["vault/plan", "open for writing", "1 file could not be done"]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert_eq!(said, format!("1 file sealed anew, epoch {epoch}\n"));
    }
    drop(open);
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).contains("going on with epoch 3"), "{said:?}");
}

/// A new key would have a number that the lost one had, and files of both could not be told apart.
#[test]
fn a_keyring_that_was_put_back_makes_no_epoch_that_is_in_use() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let earlier = fs::read(place.path(".tollgate-seal")).unwrap();
    ok(&place.vault("rotate", &[]));
    let later = fs::read(place.path(".tollgate-seal")).unwrap();
    fs::write(place.path(".tollgate-seal"), &earlier).unwrap();
    let said = place.vault("rotate", &[]);
    fails(&said, &["no new key", "vault/", "epoch 2", "epoch 1", "put the later keyring back"]);
    // Also of files that are not named, and of another domain.
    fs::create_dir_all(place.path("other/none")).unwrap();
    let said = place.seal(&["rotate", "--domain", "other", "other/none"]);
    fails(&said, &["no new key", "vault/", "epoch 2"]);
    assert_eq!(fs::read(place.path(".tollgate-seal")).unwrap(), earlier);
    fs::write(place.path(".tollgate-seal"), later).unwrap();
    assert!(ok(&place.vault("rotate", &[])).contains("epoch 3"));
    ok(&place.vault("check", &[]));
}

/// The keyring has no room for a further epoch.
#[test]
fn a_rotation_that_has_no_room_leaves_nothing() {
    if !mounting::can_mount() {
        return;
    }
    let place = Place::new();
    let full = Mounted::new(place.path("full"), &["-t", "tmpfs", "-o", "size=64k", "none"]);
    let at = |name: &str| full.0.join(name);
    fs::copy(place.path(".tollgate-seal"), at(".tollgate-seal")).unwrap();
    let _ = fs::write(at("filler"), vec![7; 1 << 20]);
    let here = ["--dir", full.0.to_str().unwrap()];
    let ring = fs::read(at(".tollgate-seal")).unwrap();
    let said = place.seal(&[&["rotate", "--domain", "vault"], &here[..]].concat());
    fails(&said, &[".tollgate-seal`", "No space left"]);
    assert!(!at(".tollgate-seal.new").exists());
    assert_eq!(fs::read(at(".tollgate-seal")).unwrap(), ring);
}
