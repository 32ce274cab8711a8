//! Wrong keys, damaged files, full disks.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::harness::{Place, can_mount, eventually};

#[test]
fn a_wrong_or_missing_key_refuses_the_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let wrong = place.base.path().join("wrong");
    fs::write(&wrong, [7; 64]).unwrap();
    let said = place.refused(&["--seal-key-file", wrong.to_str().unwrap()]);
    assert!(said.contains("seal") && said.contains("rejected"), "{said}");
    let said = place.refused(&["--seal-key-file", "/nowhere/key"]);
    assert!(said.contains("/nowhere/key"), "{said}");
    fs::remove_file(place.below(".tollgate-seal")).unwrap();
    let said = place.refused(&["--seal-key-file", &place.key()]);
    assert!(said.contains("no keyring") && said.contains("tollgate seal init"), "{said}");
}

/// EIO for what is damaged, a record that names file and block, and the other files go on.
#[test]
fn damage_is_an_error_of_that_file_alone_and_is_recorded() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    {
        let view = place.mount(&[]);
        for name in ["flipped", "cut", "foreign", "good"] {
            fs::write(view.at(&format!("vault/{name}")), [1; 20_000]).unwrap();
        }
        fs::write(view.at("other/foreign"), [2; 20_000]).unwrap();
    }
    let below = |name: &str| File::options().write(true).open(place.below(name)).unwrap();
    let mut byte = [0];
    File::open(place.below("vault/flipped")).unwrap().read_exact_at(&mut byte, 16_400).unwrap();
    below("vault/flipped").write_all_at(&[byte[0] ^ 4], 16_400).unwrap();
    below("vault/cut").set_len(9000).unwrap();
    fs::copy(place.below("other/foreign"), place.below("vault/foreign")).unwrap();
    fs::write(place.below("vault/plain"), b"plain where a sealed file is expected").unwrap();
    let log = place.base.path().join("audit.log");
    {
        let view = place.mount(&["--audit", log.to_str().unwrap()]);
        for name in ["flipped", "cut", "foreign", "plain"] {
            let error = fs::read(view.at(&format!("vault/{name}"))).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
        }
        // Blocks before the damaged one, and other files, are there.
        let mut bytes = [0; 4096];
        let flipped = File::open(view.at("vault/flipped")).unwrap();
        flipped.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [1; 4096]);
        assert!(fs::read(view.at("vault/good")).unwrap() == [1; 20_000]);
        assert!(fs::read(view.at("other/foreign")).unwrap() == [2; 20_000]);
    }
    let log = fs::read_to_string(log).unwrap();
    let damaged: Vec<_> = log.lines().filter(|line| line.contains("\"damaged\"")).collect();
    for name in ["flipped", "cut", "foreign", "plain"] {
        let named = damaged.iter().any(|line| line.contains(&format!("vault/{name}")));
        assert!(named, "{name} in {log}");
    }
    let block = damaged.iter().find(|line| line.contains("flipped")).unwrap();
    assert!(block.contains("8192"), "{block}");
}

/// Unmounted at the end of the test, whatever happens.
struct Full(std::path::PathBuf);

impl Drop for Full {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_leaves_the_old_content_readable() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let lower = base.path().join("lower");
    fs::create_dir(&lower).unwrap();
    mount("tmpfs", &lower, "tmpfs", MountFlags::empty(), c"size=2m").unwrap();
    let _full = Full(lower.clone());
    let place = Place::of(base, lower);
    {
        let view = place.mount(&[]);
        fs::write(view.at("vault/old"), [1; 500_000]).unwrap();
        let file = File::options().write(true).open(view.at("vault/old")).unwrap();
        file.sync_all().unwrap();
        let big = File::create(view.at("vault/big")).unwrap();
        let mut at = 0;
        let error = loop {
            match big.write_at(&[2; 65_536], at) {
                Ok(length) => at += length as u64,
                Err(error) => break error,
            }
            assert!(at < 4 << 20, "the disk is never full");
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        // In place, too: nothing of the old is overwritten.
        let _ = file.write_at(&[3; 300_000], 0);
        let bytes = fs::read(view.at("vault/old")).unwrap();
        assert!(bytes.len() == 500_000 && bytes[300_000..].iter().all(|byte| *byte == 1));
        drop((big, file));
        fs::remove_file(view.at("vault/big")).unwrap();
        // The lower file goes when its last descriptor does, which nobody waits for.
        eventually("there is space again", || {
            fs::write(view.at("vault/after"), [4; 100_000]).is_ok()
        });
        assert!(fs::read(view.at("vault/after")).unwrap() == [4; 100_000]);
    }
    assert!(place.is_good("vault"));
}
