//! What commands that were killed leave beside the files.

use std::fs::{self, File};
use std::path::Path;

use crate::harness::{Place, fails, ok};

#[test]
fn what_only_looks_removes_nothing() {
    let place = Place::new();
    let apart = place.path(".tollgate-seal.new");
    let replaced = apart.join(".tollgate-sealing-dddddddddddddddd");
    let leave = || {
        fs::create_dir_all(&apart).unwrap();
        fs::write(&replaced, b"replaced").unwrap();
        place.left_behind("cccccccccccccccc", b"TGSEALED half")
    };
    let left = leave();
    assert!(ok(&place.vault("convert", &["--dry-run"])).contains("2 files to be sealed"));
    assert!(left.exists() && replaced.exists());
    assert!(ok(&place.vault("convert", &[])).contains("2 files sealed"));
    assert!(!left.exists() && !apart.exists());
    let left = leave();
    assert!(ok(&place.vault("check", &[])).contains("2 files good"));
    assert!(ok(&place.seal(&["check", "--domain", "vault"])).contains("2 files good"));
    place.exported();
    assert!(left.exists() && replaced.exists());
}

#[test]
fn only_what_the_program_left_behind_is_removed() {
    let place = Place::new();
    let at = |end: &str| place.path(&format!("vault/.tollgate-sealing-{end}"));
    let [own, long, bare, linked] =
        ["mine", "0123456789abcdef.txt", "MyNotesOfAugust1", "aaaaaaaaaaaaaaaa"].map(at);
    // As a copy has it of what a kill left.
    let [zeros, empty, other] =
        ["dddddddddddddddd", "eeeeeeeeeeeeeeee", "ffffffffffffffff-1-2"].map(at);
    for file in [&own, &long, &bare, &linked, &other] {
        fs::write(file, b"mine").unwrap();
    }
    fs::write(&zeros, [0; 99]).unwrap();
    fs::write(&empty, b"").unwrap();
    fs::hard_link(&linked, place.path("second")).unwrap();
    let left = place.left_behind("cccccccccccccccc", b"TGSEALED half");
    let said = place.vault("convert", &[]);
    fails(&said, &["aaaaaaaaaaaaaaaa", "2 names", "1 file could not be done"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "8 files sealed\n");
    assert!(!left.exists());
    fs::remove_file(&linked).unwrap();
    // Sealed, they look as those of the program do.
    let held = place.left_behind("bbbbbbbbbbbbbbbb", b"TGSEALED");
    let holder = File::options().append(true).open(&held).unwrap();
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).contains("8 files sealed anew"), "{said:?}");
    let notes = String::from_utf8_lossy(&said.stderr);
    assert_eq!(notes.matches("` is left as it is: somebody has it open").count(), 1, "{notes}");
    assert!(notes.contains("sealing-bbbbbbbbbbbbbbbb-") && held.exists(), "{notes}");
    drop(holder);
    assert!(ok(&place.vault("rotate", &[])).contains("8 files sealed anew"));
    assert!(!held.exists());
    let to = tempfile::tempdir().unwrap();
    ok(&place.vault("export", &["--to", to.path().to_str().unwrap()]));
    let plain = |path: &Path| fs::read(to.path().join(path.file_name().unwrap())).unwrap();
    for file in [&own, &long, &bare, &other] {
        assert_eq!(plain(file), b"mine");
    }
    assert_eq!((plain(&zeros), plain(&empty)), (vec![0; 99], vec![]));
}

/// A view seals them as any others.
#[test]
fn a_file_is_looked_at_although_its_name_begins_as_those_of_the_program() {
    let place = Place::new();
    let at = |end: &str| place.path(&format!("vault/.tollgate-sealing-{end}"));
    fs::write(at("abc"), b"a secret").unwrap();
    assert!(ok(&place.vault("convert", &[])).contains("3 files sealed"));
    assert!(ok(&place.vault("check", &[])).contains("3 files good"));
    assert!(ok(&place.vault("rotate", &[])).contains("3 files sealed anew, epoch 2"));
    let to = tempfile::tempdir().unwrap();
    let to = |name: &str| to.path().join(name);
    ok(&place.vault("export", &["--to", to("a").to_str().unwrap()]));
    assert_eq!(fs::read(to("a/.tollgate-sealing-abc")).unwrap(), b"a secret");
    for name in ["plain", "ffffffffffffffff", "ffffffffffffffff-1-2-3-4"] {
        fs::write(at(name), b"plain").unwrap();
        let named = [name, "is plain", "1 file could not be done"];
        fails(&place.vault("check", &[]), &named);
        fails(&place.vault("export", &["--to", to(name).to_str().unwrap()]), &named);
        assert_eq!(fs::read(at(name)).unwrap(), b"plain");
        fs::remove_file(at(name)).unwrap();
    }
    let mut damaged = fs::read(at("abc")).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(at("abc"), damaged).unwrap();
    fails(&place.vault("check", &[]), &["sealing-abc", "1 file could not be done"]);
}

/// It cannot be told what is to become of it: a file of somebody, put in the place of one that was replaced
/// when the command was killed, and that is gone by now.
#[test]
fn what_is_somebodys_is_named_until_it_is_moved() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let left = place.path(".tollgate-seal.new/.tollgate-sealing-aaaaaaaaaaaaaaaa-1-2-3-4");
    fs::create_dir(left.parent().unwrap()).unwrap();
    fs::write(&left, "somebody's").unwrap();
    for _ in 0..2 {
        let said = place.vault("rotate", &[]);
        fails(&said, &["another program", "that is gone", "1 file could not be done"]);
        assert_eq!(fs::read(&left).unwrap(), b"somebody's");
    }
    fs::rename(&left, place.path("vault/back")).unwrap();
    ok(&place.vault("convert", &[]));
    ok(&place.vault("rotate", &[]));
}
