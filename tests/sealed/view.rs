//! What programs do with sealed files, and what lies below.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};

use crate::harness::{Place, can_mount, eventually};
use crate::mapped::{LENGTH, lost_beside_a_mapping};

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

#[test]
fn files_are_plain_in_the_view_and_encrypted_below() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let bytes = text(3_000_000);
    {
        let view = place.mount(&[]);
        fs::write(view.at("vault/a"), &bytes).unwrap();
        assert_eq!(fs::read(view.at("vault/a")).unwrap(), bytes);
        assert_eq!(fs::metadata(view.at("vault/a")).unwrap().len(), 3_000_000);
        let mut file = File::options().append(true).open(view.at("vault/a")).unwrap();
        file.write_all(b"the end").unwrap();
        drop(file);
        fs::write(view.at("vault/empty"), b"").unwrap();
        fs::write(view.at("open/plain"), b"plain").unwrap();
        assert!(!view.at(".tollgate-seal").exists());
        assert!(File::create(view.at(".tollgate-seal")).is_err());
    }
    let below = fs::read(place.below("vault/a")).unwrap();
    assert!(below.starts_with(b"TGSEALED"));
    assert!(!below.windows(64).any(|part| part == &bytes[..64]));
    assert_eq!(fs::read(place.below("open/plain")).unwrap(), b"plain");
    assert!(place.is_good("vault"));
    // Sizes without anything being open, by name and in listings.
    let view = place.mount(&[]);
    assert_eq!(fs::metadata(view.at("vault/a")).unwrap().len(), 3_000_007);
    let sizes = fs::read_dir(view.at("vault")).unwrap();
    let mut sizes: Vec<_> = sizes.map(|one| one.unwrap().metadata().unwrap().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [0, 3_000_007]);
    assert!(fs::read(view.at("vault/a")).unwrap().ends_with(b"the end"));
}

#[test]
fn a_file_is_changed_in_place_cut_and_extended() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let mut model = text(100_000);
    fs::write(view.at("vault/a"), &model).unwrap();
    let file = File::options().read(true).write(true).open(view.at("vault/a")).unwrap();
    for (at, length) in [(0, 1), (4095, 2), (50_000, 20_000), (99_999, 5)] {
        file.write_all_at(&vec![9; length], at as u64).unwrap();
        model.resize(model.len().max(at + length), 0);
        model[at..at + length].fill(9);
    }
    assert_eq!(fs::read(view.at("vault/a")).unwrap(), model);
    file.set_len(5000).unwrap();
    file.set_len(20_000).unwrap();
    model.truncate(5000);
    model.resize(20_000, 0);
    assert_eq!(fs::read(view.at("vault/a")).unwrap(), model);
    let holes = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, holes, 100, 4900).unwrap();
    model[100..5000].fill(0);
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(view.at("vault/a")).unwrap(), model);
    // By name, as truncate(1) does, and by O_TRUNC.
    let mut by_name = Command::new("truncate");
    assert!(by_name.arg("-s7").arg(view.at("vault/a")).status().unwrap().success());
    assert_eq!(fs::read(view.at("vault/a")).unwrap(), model[..7]);
    fs::write(view.at("vault/a"), b"anew").unwrap();
    assert_eq!(fs::read(view.at("vault/a")).unwrap(), b"anew");
    drop(view);
    assert!(place.is_good("vault"));
}

#[test]
fn all_handles_see_the_same_and_times_are_those_of_the_content() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    fs::write(view.at("vault/a"), text(10_000)).unwrap();
    let mut reader = File::open(view.at("vault/a")).unwrap();
    let writer = File::options().write(true).open(view.at("vault/a")).unwrap();
    writer.write_all_at(b"new", 5).unwrap();
    let mut bytes = [0; 8];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes[5..], b"new");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    writer.set_modified(old).unwrap();
    writer.sync_all().unwrap();
    drop(writer);
    for path in [view.at("vault/a"), place.below("vault/a")] {
        assert_eq!(fs::metadata(path).unwrap().modified().unwrap(), old);
    }
    reader.seek(SeekFrom::Start(0)).unwrap();
    fs::hard_link(view.at("vault/a"), view.at("vault/b")).unwrap();
    fs::write(view.at("vault/b"), b"through the other name").unwrap();
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"through the other name");
}

#[test]
fn a_mapping_reads_and_writes_plain_text() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    fs::write(view.at("vault/a"), text(20_000)).unwrap();
    let script = "import mmap, sys\n\
        f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)\n\
        assert m[:3] == bytes([0, 7, 14]); m[4096:4099] = b'abc'; m.flush(); m.close()";
    let python = Command::new("python3").args(["-c", script]).arg(view.at("vault/a")).status();
    match python {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        status => assert!(status.unwrap().success()),
    }
    let bytes = fs::read(view.at("vault/a")).unwrap();
    assert_eq!(&bytes[4096..4099], b"abc");
    assert_eq!(bytes[..4096], text(4096));
}

#[test]
fn names_move_within_a_domain_and_not_out_of_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    fs::write(view.at("vault/a"), b"secret").unwrap();
    fs::create_dir(view.at("vault/in")).unwrap();
    fs::rename(view.at("vault/a"), view.at("vault/in/b")).unwrap();
    assert_eq!(fs::read(view.at("vault/in/b")).unwrap(), b"secret");
    for to in ["other/b", "open/b"] {
        let error = fs::rename(view.at("vault/in/b"), view.at(to)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{to}");
        let error = fs::hard_link(view.at("vault/in/b"), view.at(to)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{to}");
    }
    // A copy through the view is sealed anew.
    fs::copy(view.at("vault/in/b"), view.at("other/b")).unwrap();
    assert_eq!(fs::read(view.at("other/b")).unwrap(), b"secret");
    drop(view);
    assert!(place.is_good("vault") && place.is_good("other"));
}

/// Close is enough: nobody has to sync, and nobody has to unmount.
#[test]
fn what_is_closed_is_durable_soon() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut view = place.mount(&[]);
    fs::write(view.at("vault/a"), text(50_000)).unwrap();
    let written = File::create(view.at("vault/open")).unwrap();
    written.write_all_at(&text(5000), 0).unwrap();
    let to = place.base.path().join("out");
    let exported = || {
        let _ = fs::remove_dir_all(&to);
        let (dir, below) = (place.below(""), place.below("vault"));
        let arguments =
            ["export", "--domain", "vault", "--dir", dir.to_str().unwrap(), "--key-file"];
        let key = place.key();
        let rest = [key.as_str(), "--to", to.to_str().unwrap(), below.to_str().unwrap()];
        place.seal(&[&arguments[..], &rest].concat());
        let is = |name: &str, length| fs::read(to.join(name)).is_ok_and(|got| got == text(length));
        is("a", 50_000) && is("open", 5000)
    };
    eventually("both files are committed", exported);
    view.kill();
    drop(view);
    assert!(exported());
}

#[test]
fn many_streams_at_once_read_and_write_what_is_theirs() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    std::thread::scope(|scope| {
        for stream in 0..16_u8 {
            let path = view.at(&format!("vault/{stream}"));
            scope.spawn(move || {
                let mut file = File::create(&path).unwrap();
                for part in 0..20_u8 {
                    file.write_all(&[stream ^ part; 30_000]).unwrap();
                }
                file.sync_all().unwrap();
                let bytes = fs::read(&path).unwrap();
                assert_eq!(bytes.len(), 600_000);
                for (part, bytes) in (0..).zip(bytes.chunks(30_000)) {
                    assert!(bytes.iter().all(|byte| *byte == stream ^ part));
                }
            });
        }
    });
    assert_eq!(fs::metadata(view.at("vault/3")).unwrap().size(), 600_000);
}

/// A lock is the lower file's: it excludes who has the file open in the view, and who has it below.
#[test]
fn a_lock_on_a_sealed_file_excludes_everybody_else() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    fs::write(view.at("vault/a"), b"locked").unwrap();
    let [mine, other] = [0, 1].map(|_| File::open(view.at("vault/a")).unwrap());
    let below = File::open(place.below("vault/a")).unwrap();
    mine.lock().unwrap();
    let is_held = |file: &File| matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    assert!(is_held(&other) && is_held(&below));
    mine.unlock().unwrap();
    below.lock().unwrap();
    assert!(is_held(&other));
    below.unlock().unwrap();
    other.lock().unwrap();
    drop(other);
    eventually("the lock of a closed file is gone", || mine.try_lock().is_ok());
}

/// `flock FILE CMD` makes its file so: open for reading alone.
#[test]
fn a_file_is_made_by_who_only_reads_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let lock = rustix::fs::open(view.at("vault/lock"), flags, mode).map(File::from).unwrap();
    lock.lock().unwrap();
    assert_eq!(rustix::io::write(&lock, b"x").unwrap_err(), rustix::io::Errno::BADF);
    assert_eq!(fs::read(view.at("vault/lock")).unwrap(), b"");
    fs::write(view.at("vault/lock"), b"written").unwrap();
    assert_eq!(fs::read(view.at("vault/lock")).unwrap(), b"written");
    // Without a name, by who only writes.
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let unnamed = rustix::fs::open(view.at("vault"), flags, mode).map(File::from).unwrap();
    unnamed.write_all_at(&text(9000), 0).unwrap();
    drop((lock, unnamed, view));
    assert!(place.is_good("vault"));
}

/// A server that is killed while it makes a file leaves such a one.
#[test]
fn a_file_without_a_good_header_is_begun_anew_by_who_cuts_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    for (name, bytes) in [("empty", &b""[..]), ("plain", b"not sealed"), ("cut", b"TGSEALED")] {
        let path = format!("vault/{name}");
        fs::write(place.below(&path), bytes).unwrap();
        let unreadable = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO), "{name}");
        };
        unreadable(fs::read(view.at(&path)).map(drop));
        unreadable(File::options().append(true).open(view.at(&path)).map(drop));
        assert_eq!(fs::read(place.below(&path)).unwrap(), bytes);
        fs::write(view.at(&path), b"anew").unwrap();
        assert_eq!(fs::read(view.at(&path)).unwrap(), b"anew");
    }
    drop(view);
    assert!(place.is_good("vault"));
}

/// A log that a program empties while another one goes on to append: the kernel knows of the cut only when
/// the open returns, and sends some records with the old end as their place.
#[test]
fn what_is_appended_while_the_file_is_emptied_is_there_once_and_in_order() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    for round in 0..150 {
        let path = view.at(&format!("vault/log{round}"));
        let mut log = File::options().append(true).create(true).open(&path).unwrap();
        let is_over = AtomicBool::new(false);
        let count = std::thread::scope(|scope| {
            let appending = scope.spawn(|| {
                let mut count = 0;
                // Ends of itself where an assertion fails.
                while count < 200 || (count < 100_000 && !is_over.load(Ordering::Relaxed)) {
                    log.write_all(format!("{count:09}\n").as_bytes()).unwrap();
                    count += 1;
                }
                count
            });
            std::thread::sleep(Duration::from_millis(1));
            File::options().write(true).truncate(true).open(&path).unwrap();
            is_over.store(true, Ordering::Relaxed);
            appending.join().unwrap()
        });
        let text = fs::read_to_string(&path).unwrap();
        let first = count - text.lines().count();
        let expected: String = (first..count).map(|record| format!("{record:09}\n")).collect();
        assert!(text == expected, "round {round}, {count} records: {:?}", text.get(..200));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_write_beside_stores_into_the_same_page_stays() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    fs::write(view.at("vault/a"), text(LENGTH)).unwrap();
    let lost = lost_beside_a_mapping(&view.at("vault/a"), None, 3);
    assert!(lost.is_empty(), "{} lost: {:?}", lost.len(), &lost[..lost.len().min(9)]);
}

/// As with any file, also where the size stays.
#[test]
fn whoever_cuts_or_extends_a_file_changes_its_times() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let path = view.at("vault/a");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for before in [0, 6, 10_000] {
        for after in [None, Some(0), Some(3), Some(6), Some(10_000), Some(20_000)] {
            for by_name in [true, false] {
                fs::write(&path, text(before)).unwrap();
                let file = File::options().write(true).open(&path).unwrap();
                file.set_modified(long_ago).unwrap();
                let begun = SystemTime::now() - Duration::from_millis(20);
                match after {
                    None => drop(File::create(&path).unwrap()),
                    Some(size) if by_name => truncate(&path, size, 0),
                    Some(size) => file.set_len(size).unwrap(),
                }
                let at = || fs::metadata(&path).unwrap().modified().unwrap();
                assert!(at() >= begun, "{before} to {after:?}, by name: {by_name}: {:?}", at());
                file.sync_all().unwrap();
                assert!(at() >= begun, "{before} to {after:?}, by name: {by_name}, synchronized");
            }
        }
    }
    // Of a file of somebody else that may be written.
    let them = rustix::fs::Mode::from_raw_mode(0o666);
    fs::write(&path, text(10)).unwrap();
    rustix::fs::chmod(&path, them).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(long_ago).unwrap();
    truncate(&path, 20, 1000);
    assert!(fs::metadata(&path).unwrap().modified().unwrap() > long_ago);
}

/// truncate(2) by name, as this user.
fn truncate(path: &Path, size: u64, user: u32) {
    let mut command = Command::new("truncate");
    command.args(["-s", &size.to_string()]).arg(path).uid(user).gid(user);
    assert!(command.status().unwrap().success());
}
