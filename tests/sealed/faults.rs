//! Wrong keys, damaged files, full disks.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
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
    let damaged = |change: fn(&mut Vec<u8>)| {
        let mut key = fs::read(place.key()).unwrap();
        change(&mut key);
        fs::write(&wrong, key).unwrap();
        place.refused(&["--seal-key-file", wrong.to_str().unwrap()])
    };
    let said = damaged(|key| key[5] ^= 1);
    assert!(said.contains("Key was rejected by service (os error 129)"), "{said}");
    let said = damaged(|key| key.truncate(20));
    assert!(said.contains("has 20 bytes; at least 32"), "{said}");
    refuses_a_wrong_passphrase(&place);
    let ring = place.below(".tollgate-seal");
    let whole = fs::read(&ring).unwrap();
    fs::write(&ring, &whole[..100]).unwrap();
    let said = place.refused(&["--seal-key-file", &place.key()]);
    assert!(said.contains("line 2 of the keyring"), "{said}");
    fs::write(&ring, &whole).unwrap();
    fs::remove_file(place.below(".tollgate-seal")).unwrap();
    let said = place.refused(&["--seal-key-file", &place.key()]);
    assert!(said.contains("no keyring") && said.contains("tollgate seal init"), "{said}");
    assert!(!said.contains("--dir"), "`mount` has no such option: {said}");
}

fn refuses_a_wrong_passphrase(place: &Place) {
    let word = |text: &str| {
        let path = place.base.path().join("word");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (dir, key) = (place.below(""), place.key());
    let add = ["add", "--dir", dir.to_str().unwrap(), "--key-file", &key, "--name", "me"];
    let new = ["--memory-mib", "1", "--new-passphrase-file", &word("right")];
    let added = place.seal(&[&add[..], &new].concat());
    assert!(added.status.success(), "{added:?}");
    let said = place.refused(&["--seal-passphrase-file", &word("wrong")]);
    let parts = ["none of its 1 recipients with a passphrase", "Key was rejected by service"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
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
        for name in ["flipped", "cut", "foreign", "header", "good"] {
            fs::write(view.at(&format!("vault/{name}")), [1; 20_000]).unwrap();
        }
        fs::write(view.at("vault/empty"), "").unwrap();
        fs::write(view.at("other/foreign"), [2; 20_000]).unwrap();
    }
    let below = |name: &str| File::options().write(true).open(place.below(name)).unwrap();
    let mut byte = [0];
    File::open(place.below("vault/flipped")).unwrap().read_exact_at(&mut byte, 16_400).unwrap();
    below("vault/flipped").write_all_at(&[byte[0] ^ 4], 16_400).unwrap();
    below("vault/cut").set_len(9000).unwrap();
    fs::copy(place.below("other/foreign"), place.below("vault/foreign")).unwrap();
    fs::write(place.below("vault/plain"), b"plain where a sealed file is expected").unwrap();
    let empty = fs::read(place.below("vault/empty")).unwrap();
    below("vault/header").write_all_at(&empty[..160], 0).unwrap();
    let log = place.base.path().join("audit.log");
    {
        let view = place.mount(&["--audit", log.to_str().unwrap()]);
        for name in ["flipped", "cut", "foreign", "header", "plain"] {
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
        fs::write(view.at("vault/header"), "anew").unwrap();
        assert_eq!(fs::read(view.at("vault/header")).unwrap(), b"anew");
    }
    let log = fs::read_to_string(log).unwrap();
    let damaged: Vec<_> = log.lines().filter(|line| line.contains("\"damaged\"")).collect();
    for name in ["flipped", "cut", "foreign", "header", "plain"] {
        let named = damaged.iter().any(|line| line.contains(&format!("vault/{name}")));
        assert!(named, "{name} in {log}");
    }
    let block = damaged.iter().find(|line| line.contains("flipped")).unwrap();
    assert!(block.contains("8192"), "{block}");
    // This thread opened and read them all.
    let own = format!("\"pid\":{},", rustix::thread::gettid().as_raw_nonzero());
    assert!(damaged.iter().all(|line| line.contains(&own)), "{own} in {damaged:?}");
}

/// What is searched for secrets is shown otherwise as it is, which encrypted bytes are not for.
#[test]
fn a_sealed_file_where_secrets_are_masked_is_an_error() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let policy = place.base.path().join("policy.toml");
    let rule = "[[rule]]\npath = \"open/**\"\nkind = \"file\"\naction = \"redact\"\n";
    let rules = fs::read_to_string(&policy).unwrap();
    fs::write(&policy, format!("{rules}\n{rule}")).unwrap();
    let view = place.mount(&[]);
    for (name, length) in [("empty", 0), ("large", 300_000)] {
        fs::write(view.at(&format!("vault/{name}")), vec![1; length]).unwrap();
        File::open(view.at(&format!("vault/{name}"))).unwrap().sync_all().unwrap();
        fs::copy(place.below(&format!("vault/{name}")), place.below(&format!("open/{name}")))
            .unwrap();
        let refused = fs::read(view.at(&format!("open/{name}")));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EIO), "{name}");
    }
    fs::write(place.below("open/plain"), "words").unwrap();
    assert_eq!(fs::read(view.at("open/plain")).unwrap(), b"words");
}

/// A policy of DIR only tightens: it does not open a sealed place to plain files by masking them.
#[test]
fn what_dir_redacts_or_seals_otherwise_is_denied_and_recorded() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.below("vault")).unwrap();
    fs::write(place.below("vault/plain"), "words").unwrap();
    let log = place.base.path().join("audit.log");
    let rule = "[[rule]]\npath = \"vault/**\"\nkind = \"file\"\n";
    for way in ["action = \"redact\"", "action = \"seal\"\ndomain = \"other\""] {
        fs::write(place.below(".tollgate.toml"), format!("{rule}{way}\n")).unwrap();
        let _ = fs::remove_file(&log);
        let view = place.mount(&["--audit", log.to_str().unwrap()]);
        let refused = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EACCES), "{way}");
        };
        refused(fs::read(view.at("vault/plain")).map(drop));
        refused(fs::write(view.at("vault/new"), "x"));
        drop(view);
        let records = fs::read_to_string(&log).unwrap();
        assert!(records.contains("vault/plain") && records.contains("vault/new"), "{records}");
    }
}

/// As truncate(2) does it, without opening the file.
#[expect(unsafe_code, reason = "truncate has no safe wrapper")]
fn truncated(path: &Path, length: i64) -> std::io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte and outlives the call.
    if unsafe { libc::truncate(path.as_ptr(), length) } == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error())
}

/// Somebody moves sealed files beneath to where no rule seals.
#[test]
fn a_sealed_file_where_plain_ones_are_expected_is_an_error_and_recorded() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let log = place.base.path().join("audit.log");
    let view = place.mount(&["--audit", log.to_str().unwrap()]);
    for (name, length) in [("empty", 0), ("small", 100), ("large", 300_000)] {
        fs::write(view.at(&format!("vault/{name}")), vec![1; length]).unwrap();
        File::open(view.at(&format!("vault/{name}"))).unwrap().sync_all().unwrap();
        fs::copy(place.below(&format!("vault/{name}")), place.below(&format!("open/{name}")))
            .unwrap();
        let path = view.at(&format!("open/{name}"));
        let opens = |options: &mut OpenOptions| options.open(&path).map(drop);
        for refused in [
            opens(OpenOptions::new().read(true)),
            opens(OpenOptions::new().write(true)),
            opens(OpenOptions::new().append(true)),
            truncated(&path, 4096),
            truncated(&path, 1 << 20),
        ] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EIO), "{name}");
        }
        fs::write(&path, "plain from now on").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"plain from now on");
    }
    // Of a length that sealed files have, too.
    fs::write(place.below("open/blocks"), vec![7; 16_384]).unwrap();
    assert!(fs::read(view.at("open/blocks")).unwrap() == [7; 16_384]);
    truncated(&view.at("open/blocks"), 8192).unwrap();
    assert!(fs::read(view.at("open/blocks")).unwrap() == [7; 8192]);
    drop(view);
    let log = fs::read_to_string(log).unwrap();
    for name in ["empty", "small", "large"] {
        let path = format!("open/{name}");
        let said = log.lines().any(|line| line.contains("\"damaged\"") && line.contains(&path));
        assert!(said, "{name} in {log}");
    }
}

/// What was written to it while a rule sealed it is committed soon after the close, and must not come over
/// what is written to it as a plain file.
#[test]
fn a_sealed_file_that_was_just_moved_is_a_plain_one_once_it_is_written_anew() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let names: Vec<_> = (0..40).map(|number| format!("f{number}")).collect();
    for name in &names {
        let (sealed, plain) = (format!("vault/{name}"), format!("open/{name}"));
        fs::write(view.at(&sealed), b"secret".repeat(5000)).unwrap();
        fs::rename(place.below(&sealed), place.below(&plain)).unwrap();
        if name.ends_with('3') {
            truncated(&view.at(&plain), 0).unwrap();
            let mut file = OpenOptions::new().append(true).open(view.at(&plain)).unwrap();
            file.write_all(b"plain text").unwrap();
        } else {
            fs::write(view.at(&plain), "plain text").unwrap();
        }
    }
    // Is used as a sealed one still.
    fs::write(view.at("vault/used"), b"secret".repeat(5000)).unwrap();
    let mut used = OpenOptions::new().write(true).open(view.at("vault/used")).unwrap();
    used.write_all(b"more").unwrap();
    fs::rename(place.below("vault/used"), place.below("open/used")).unwrap();
    let refused = truncated(&view.at("open/used"), 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
    drop(used);
    drop(view);
    for name in &names {
        let found = fs::read(place.below(&format!("open/{name}"))).unwrap();
        assert!(found == b"plain text", "{name}: {} bytes", found.len());
    }
}

/// What is read ahead of a program has the damaged block in it sooner than the program.
#[test]
fn blocks_before_a_damaged_one_are_read_in_order_as_well() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let content: Vec<u8> = (0..400_000_u32).map(|byte| (byte % 251) as u8).collect();
    fs::write(place.mount(&[]).at("vault/f"), &content).unwrap();
    let lower = File::options().read(true).write(true).open(place.below("vault/f")).unwrap();
    let (mut byte, at) = ([0], 60 * 4096 + 100);
    lower.read_exact_at(&mut byte, at).unwrap();
    lower.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let view = place.mount(&[]);
    let failing = |order: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
        let file = File::open(view.at("vault/f")).unwrap();
        let fails = |block: &usize| {
            let expected = &content[block * 4096..content.len().min(block * 4096 + 4096)];
            let mut bytes = vec![0; expected.len()];
            match file.read_exact_at(&mut bytes, *block as u64 * 4096) {
                Ok(()) => assert!(bytes == expected, "block {block}"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "block {block}");
                    return true;
                }
            }
            false
        };
        order.filter(fails).collect()
    };
    let blocks = content.len().div_ceil(4096);
    let damaged = failing(&mut (0..blocks).rev());
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    for _ in 0..5 {
        assert_eq!(failing(&mut (0..blocks)), damaged);
    }
}

/// What is cut to nothing needs no old map. Only whoever cuts it so may go on.
#[test]
fn a_file_whose_map_is_damaged_is_good_again_when_it_is_cut_to_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let names = ["by-open", "by-name", "by-handle", "beside-a-reader"];
    {
        let view = place.mount(&[]);
        for name in names {
            fs::write(view.at(&format!("vault/{name}")), [1; 20_000]).unwrap();
        }
    }
    for name in names {
        // All but the two copies of the header.
        let path = place.below(&format!("vault/{name}"));
        let length = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&vec![7; length - 8192], 8192).unwrap();
    }
    let view = place.mount(&[]);
    let is_damaged = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    };
    for name in names {
        let path = view.at(&format!("vault/{name}"));
        is_damaged(fs::read(&path).map(drop));
        let file = File::options().write(true).open(&path).unwrap();
        is_damaged(file.set_len(5000));
        is_damaged(file.write_all_at(b"in a block that is there", 100));
        drop(file);
        match name {
            "by-open" => fs::write(&path, b"anew").unwrap(),
            "by-name" => {
                let mut truncate = std::process::Command::new("truncate");
                assert!(truncate.arg("-s0").arg(&path).status().unwrap().success());
                assert_eq!(fs::read(&path).unwrap(), b"");
                File::options().append(true).open(&path).unwrap().write_all(b"anew").unwrap();
            }
            "by-handle" => {
                let file = File::options().write(true).open(&path).unwrap();
                file.set_len(0).unwrap();
                file.write_all_at(b"anew", 0).unwrap();
                file.sync_all().unwrap();
            }
            _ => {
                let reader = File::open(&path).unwrap();
                fs::write(&path, b"anew").unwrap();
                let mut bytes = [0; 4];
                reader.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(&bytes, b"anew");
            }
        }
        assert_eq!(fs::read(&path).unwrap(), b"anew");
    }
    drop(view);
    assert!(place.is_good("vault"));
}

/// Unmounted at the end of the test, whatever happens.
pub(crate) struct SmallDisk(pub(crate) std::path::PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A place whose lower directory is a file system of 2 MiB.
pub(crate) fn on_a_small_disk() -> (SmallDisk, Place) {
    let base = tempfile::tempdir().unwrap();
    let lower = base.path().join("lower");
    fs::create_dir(&lower).unwrap();
    mount("tmpfs", &lower, "tmpfs", MountFlags::empty(), c"size=2m").unwrap();
    (SmallDisk(lower.clone()), Place::of(base, lower))
}

#[test]
fn a_full_disk_leaves_the_old_content_readable() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    {
        let view = place.mount(&[]);
        fs::write(view.at("vault/old"), [1; 500_000]).unwrap();
        let file = File::options().write(true).open(view.at("vault/old")).unwrap();
        file.sync_all().unwrap();
        let reserve = File::create(place.below("reserve")).unwrap();
        reserve.write_all_at(&[0; 400_000], 0).unwrap();
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
        assert_eq!(big.metadata().unwrap().len(), at, "it ends where the last write did");
        // In place, too: only what is told to have been written is overwritten. Space for some
        // blocks comes between.
        let mut expected = vec![1; 500_000];
        let mut left = 400_000;
        for (step, room) in [0, 1, 3, 9, 30].into_iter().enumerate() {
            left -= room * 4096;
            reserve.set_len(left).unwrap();
            let from = step * 90_000 + 1000;
            let written = file.write_at(&[3; 80_000], from as u64).unwrap_or_else(|error| {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
                0
            });
            expected[from..from + written].fill(3);
            let bytes = fs::read(view.at("vault/old")).unwrap();
            let wrong = bytes.iter().zip(&expected).position(|(is, should)| is != should);
            assert!(bytes.len() == 500_000 && wrong.is_none(), "{room}: {written}, {wrong:?}");
        }
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

/// A hole with a part of a block at each end needs room for two blocks below. Room for none, one and
/// so on is there: it is made as a whole or not at all.
#[test]
fn a_hole_is_made_as_a_whole_or_not_at_all_on_a_full_disk() {
    if !can_mount() {
        return;
    }
    let (_disk, place) = on_a_small_disk();
    {
        let view = place.mount(&[]);
        let path = view.at("vault/f");
        fs::write(&path, [1; 40_000]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        let reserve = File::create(place.below("reserve")).unwrap();
        let mut full = 0;
        while reserve.write_at(&[0; 4096], full).is_ok_and(|written| written == 4096) {
            full += 4096;
        }
        let (from, to) = (1_000, 30_000);
        let mut bytes = vec![1; 40_000];
        let mut refused = 0;
        while let Err(error) = punch(&file, from as u64, (to - from) as u64) {
            assert_eq!(error, Errno::NOSPC);
            assert!(fs::read(&path).unwrap() == bytes, "changed by what was refused");
            full -= 4096;
            reserve.set_len(full).unwrap();
            refused += 1;
        }
        assert!(refused > 1, "there was room for one block only, once");
        bytes[from..to].fill(0);
        assert!(fs::read(&path).unwrap() == bytes);
        reserve.set_len(0).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
    }
    assert!(place.is_good("vault"));
}

fn punch(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, offset, length)
}
