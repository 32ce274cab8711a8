//! Who can open a keyring, and what a damaged or hostile one does.

use tollgate_seal::{Keyring, KeyringError, PassphraseCost};

const COST: PassphraseCost = PassphraseCost { memory_kib: 64, passes: 1, lanes: 1 };

fn ring() -> Keyring {
    let (mut ring, key) = Keyring::generate().unwrap();
    ring.add_passphrase(&key, "anna", b"one", COST).unwrap();
    ring.add_passphrase(&key, "ben", b"two", COST).unwrap();
    ring.add_key_file(&key, "ci", &[7; 64]).unwrap();
    ring
}

#[test]
fn each_recipient_opens_it_and_nobody_else() {
    let ring = Keyring::parse(&ring().to_string()).unwrap();
    let key = |opened: Result<_, KeyringError>| {
        let key = ring.master_key(&opened.unwrap(), 1).unwrap();
        assert_eq!(key.epoch(), 1);
    };
    key(ring.open_with_passphrase(b"one"));
    key(ring.open_with_passphrase(b"two"));
    key(ring.open_with_key_file(&[7; 64]));
    assert!(matches!(ring.open_with_passphrase(b"three"), Err(KeyringError::Rejected(2))));
    assert!(matches!(ring.open_with_key_file(b"one"), Err(KeyringError::Rejected(1))));
}

#[test]
fn a_passphrase_changes_without_the_master_key_changing() {
    let mut ring = ring();
    let key = ring.open_with_passphrase(b"one").unwrap();
    let epochs = |ring: &Keyring| {
        let text = ring.to_string();
        text.lines().filter(|line| line.starts_with("epoch")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = epochs(&ring);
    ring.change_passphrase(&key, "anna", b"new", COST).unwrap();
    assert_eq!(epochs(&ring), before);
    assert!(ring.open_with_passphrase(b"one").is_err());
    ring.open_with_passphrase(b"new").unwrap();
    ring.remove("ben").unwrap();
    assert!(ring.open_with_passphrase(b"two").is_err());
    ring.remove("ci").unwrap();
    assert!(matches!(ring.remove("anna"), Err(KeyringError::LastRecipient(_))));
    assert!(matches!(ring.remove("zoe"), Err(KeyringError::NoRecipient(_))));
}

#[test]
fn rotation_adds_an_epoch_that_every_recipient_can_open() {
    let mut ring = ring();
    let key = ring.open_with_key_file(&[7; 64]).unwrap();
    assert_eq!(ring.rotate(&key).unwrap(), 2);
    let other = ring.open_with_passphrase(b"two").unwrap();
    assert_eq!(ring.master_key(&other, ring.epoch()).unwrap().epoch(), 2);
    assert!(ring.master_key(&other, 1).is_ok());
    assert!(matches!(ring.master_key(&other, 3), Err(KeyringError::NoEpoch(3))));
}

/// Every character of the text, changed: an error, or a ring that opens nothing it did not open.
#[test]
fn a_changed_ring_gives_no_other_key() {
    let (mut ring, key) = Keyring::generate().unwrap();
    ring.add_key_file(&key, "ci", &[7; 64]).unwrap();
    let text = ring.to_string();
    let mut opened = 0;
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
        let Ok(changed) = Keyring::parse(std::str::from_utf8(&bytes).unwrap()) else { continue };
        if let Ok(key) = changed.open_with_key_file(&[7; 64]) {
            assert!(changed.master_key(&key, 1).is_err(), "byte {at}");
            opened += 1;
        }
    }
    assert!(opened > 0);
}

#[test]
fn hostile_costs_are_refused_before_anything_is_allocated() {
    let text = ring().to_string();
    for cost in ["4294967295 1 1", "64 4294967295 1", "64 1 65535", "0 1 1", "64 0 1", "64 1 0"] {
        let hostile = text.replacen("64 1 1", cost, 1);
        let error = Keyring::parse(&hostile).unwrap_err();
        assert!(matches!(error, KeyringError::Line { line: 2, .. }), "{cost}: {error}");
    }
    let (mut ring, key) = Keyring::generate().unwrap();
    let cost = PassphraseCost { memory_kib: u32::MAX, passes: 1, lanes: 1 };
    assert!(matches!(ring.add_passphrase(&key, "a", b"x", cost), Err(KeyringError::Cost(..))));
}

#[test]
fn what_is_no_ring_is_refused_with_the_line() {
    let error = Keyring::parse("hello").unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("tollgate keyring 1"), "{error}");
    let error = Keyring::parse("tollgate keyring 1\nepoch 1 zz zz\n").unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("hexadecimal"), "{error}");
    let error = Keyring::parse("tollgate keyring 1\nowner x\n").unwrap_err().to_string();
    assert!(error.contains("`owner`"), "{error}");
}

/// What would be lost is refused, and the ring is as it was.
#[test]
fn nobody_loses_what_they_can_open() {
    let mut ring = ring();
    let key = ring.open_with_passphrase(b"one").unwrap();
    let before = ring.to_string();
    let error = ring.change_passphrase(&key, "ci", b"new", COST).unwrap_err();
    assert!(matches!(error, KeyringError::HasKeyFile(_)), "{error}");
    let (_, other) = Keyring::generate().unwrap();
    assert!(matches!(ring.rotate(&other), Err(KeyringError::AnothersKey)));
    let added = ring.add_key_file(&other, "new", &[1; 32]);
    assert!(matches!(added, Err(KeyringError::AnothersKey)));
    let added = ring.add_passphrase(&other, "new", b"new", COST);
    assert!(matches!(added, Err(KeyringError::AnothersKey)));
    let changed = ring.change_passphrase(&other, "anna", b"new", COST);
    assert!(matches!(changed, Err(KeyringError::AnothersKey)));
    assert_eq!(ring.to_string(), before);
    ring.forget_before(ring.epoch() + 1);
    assert_eq!(ring.to_string(), before);
    assert_eq!(ring.rotate(&key).unwrap(), 2);
    ring.forget_before(u32::MAX);
    assert_eq!(ring.epoch(), 2);
    assert!(matches!(ring.master_key(&key, 1), Err(KeyringError::NoEpoch(1))));
    assert_eq!(ring.rotate(&key).unwrap(), 3);
}
