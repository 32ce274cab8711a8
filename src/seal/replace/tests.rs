//! Others are at work on the file while it is replaced, or the command is killed.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use super::*;
use crate::seal::unfinished::Tidied;

struct Place {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, "old ").expect("a file");
        Place { dir, path }
    }

    /// Replaces the file by `new`, and has `meanwhile` run once that has the name.
    fn replace(&self, meanwhile: impl FnOnce(&File)) -> Result<()> {
        let mut meanwhile = Some(meanwhile);
        loop {
            let replaced = self.try_replace(|file| {
                meanwhile.take().expect("run once")(file);
            });
            // Another test may be about to execute a program, which has it open until then.
            match replaced {
                Err(error) if meanwhile.is_some() && error.to_string().contains("elsewhere") => {}
                replaced => return replaced,
            }
        }
    }

    fn try_replace(&self, meanwhile: impl FnOnce(&File)) -> Result<()> {
        let file = unfinished::open(&self.path).expect("it is there");
        let (spot, dir, writers) = (self.spot(), self.dir.path(), Writers::Servers);
        let old = Old { spot: &spot, file: &file, dir, writers };
        let held = hold(&file, writers)?;
        assert!(held.is_leased, "leases are to be had where tests run");
        let new = unfinished::temporary_for(&file, dir, dir)?;
        new.as_file().write_all_at_start(b"new ");
        put_in_place(&old, &held, &Attributes::of(&file)?, new, || meanwhile(&file))
    }

    fn spot(&self) -> Spot {
        let dir = self.dir.path().canonicalize().expect("a path");
        Spot::of(&dir.join("file")).expect("its directory is there")
    }

    fn content(&self) -> String {
        std::fs::read_to_string(&self.path).expect("a file")
    }

    /// What is in the directory beside the file.
    fn others(&self) -> usize {
        let apart = std::fs::read_dir(self.dir.path().join(unfinished::IN_DIR));
        let beside = std::fs::read_dir(self.dir.path()).expect("a directory").count();
        apart.map_or(0, Iterator::count) + beside - 2
    }
}

trait WriteAtStart {
    fn write_all_at_start(&self, bytes: &[u8]);
}

impl WriteAtStart for File {
    fn write_all_at_start(&self, bytes: &[u8]) {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, 0).expect("written");
    }
}

fn wait_until_disturbed(file: &File) {
    let begun = Instant::now();
    while sys::still_leased(file, Lease::Read) {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for the lease");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// By the inode, as who found it by its name before that led elsewhere.
fn opens(file: &File) -> impl FnOnce() -> File + Send + 'static {
    let flags = i32::try_from(rustix::fs::OFlags::PATH.bits()).expect("flags");
    let inode = File::options().read(true).custom_flags(flags).open(path_of(file));
    let inode = inode.expect("named");
    move || File::options().append(true).open(path_of(&inode)).expect("opened")
}

#[test]
fn a_file_is_replaced_and_nothing_is_left_of_the_old_one() {
    let place = Place::new();
    place.replace(|_| ()).expect("nobody is in the way");
    assert_eq!((place.content().as_str(), place.others()), ("new ", 0));
}

#[test]
fn who_found_the_old_inode_and_opens_it_after_the_rename_writes_what_has_the_name() {
    let place = Place::new();
    let mut late = None;
    let said = place.replace(|file| {
        let open = opens(file);
        late = Some(std::thread::spawn(move || {
            open().write_all(b"late").expect("written");
        }));
        wait_until_disturbed(file);
    });
    late.expect("begun").join().expect("written");
    assert!(said.expect_err("somebody waits").to_string().contains("meanwhile"));
    assert_eq!((place.content().as_str(), place.others()), ("old late", 0));
}

#[test]
fn who_waits_finds_the_file_under_the_name_that_others_gave_it() {
    let place = Place::new();
    let moved = place.dir.path().join("moved");
    let mut late = None;
    let said = place.replace(|file| {
        std::fs::rename(&place.path, &moved).expect("renamed");
        let open = opens(file);
        late = Some(std::thread::spawn(move || {
            open().write_all(b"late").expect("written");
        }));
        wait_until_disturbed(file);
    });
    late.expect("begun").join().expect("written");
    said.expect_err("somebody waits");
    assert_eq!(std::fs::read_to_string(&moved).expect("a file"), "old late");
    assert!(!place.path.exists());
}

/// No lease holds these off.
#[test]
fn what_was_changed_meanwhile_has_the_name_again() {
    let mode = |of: &Path| of.metadata().expect("there").mode() & 0o777;
    let changes: [fn(&File); 3] = [
        |file| file.set_permissions(std::fs::Permissions::from_mode(0o604)).expect("changed"),
        |file| {
            let set = rustix::fs::setxattr;
            set(path_of(file), "user.k", b"v", rustix::fs::XattrFlags::empty()).expect("set");
        },
        |file| {
            let further = std::fs::read_link(path_of(file)).expect("a path");
            let further = further.ancestors().nth(2).expect("DIR").join("further");
            let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, path_of(file), CWD, &further, flags).expect("linked");
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let place = Place::new();
        let inode = || std::fs::metadata(&place.path).expect("there").ino();
        let before = inode();
        let said = place.replace(change).expect_err("it was changed");
        assert!(said.to_string().contains("meanwhile"), "{said}");
        assert_eq!((inode(), place.content().as_str()), (before, "old "), "{number}");
        assert_eq!(mode(&place.path) == 0o604, number == 0);
        assert_eq!(place.dir.path().join("further").exists(), number == 2);
    }
}

/// Leaves what a kill after the exchange leaves, where `others` changed something just before. The
/// temporary name.
fn killed(place: &Place, others: impl FnOnce()) -> PathBuf {
    let file = unfinished::open(&place.path).expect("it is there");
    let new = unfinished::temporary_for(&file, place.dir.path(), place.dir.path());
    let (written, name) = new.expect("a file").into_parts();
    written.write_all_at_start(b"new ");
    // The new file has the times of the old one, which is older than the clock is coarse.
    let past = std::time::SystemTime::now() - Duration::from_secs(10);
    let old = File::options().write(true).open(&place.path).expect("open");
    old.set_modified(past).expect("set");
    drop(old);
    written.set_modified(past).expect("set");
    let name = unfinished::named_for(name, &file, &written).expect("renamed");
    let _ = name.path.keep().expect("kept");
    // Not through the place, which is closed.
    let name = std::fs::read_link(path_of(&written)).expect("a path");
    drop((written, file));
    others();
    rustix::fs::renameat_with(CWD, &name, CWD, &place.path, RenameFlags::EXCHANGE)
        .expect("exchanged");
    assert_eq!(place.content(), "new ");
    name
}

impl Place {
    /// Others put a file in the place of the one that is being replaced.
    fn put_other(&self) {
        let other = self.dir.path().join("other");
        std::fs::write(&other, "other").expect("a file");
        std::fs::rename(&other, &self.path).expect("renamed");
    }

    /// Another test may be about to execute a program, which has files open until then.
    fn remove_unfinished(&self, name: &Path) -> Tidied {
        loop {
            match unfinished::remove_unfinished(name, self.dir.path(), true) {
                Err(error) if error.to_string().contains("has it open") => {}
                tidied => return tidied.expect("nothing is in the way"),
            }
        }
    }
}

#[test]
fn what_others_put_there_before_a_kill_is_put_back_by_the_next_command() {
    let place = Place::new();
    let name = killed(&place, || place.put_other());
    assert!(matches!(place.remove_unfinished(&name), Tidied::Done));
    assert_eq!((place.content().as_str(), place.others()), ("other", 0));
}

/// Who waited for the lease on the old file goes on with it after the kill.
#[test]
fn what_was_written_to_the_old_file_after_a_kill_is_put_back_by_the_next_command() {
    let write_late = |name: &Path| {
        let mut late = File::options().append(true).open(name).expect("it is there");
        late.write_all(b"late").expect("written");
    };
    let place = Place::new();
    let name = killed(&place, || ());
    write_late(&name);
    assert!(matches!(place.remove_unfinished(&name), Tidied::Done));
    assert_eq!((place.content().as_str(), place.others()), ("old late", 0));
    // Both were written.
    let place = Place::new();
    let name = killed(&place, || ());
    write_late(&name);
    std::fs::write(&place.path, "since").expect("written");
    let tidied = place.remove_unfinished(&name);
    assert!(
        matches!(&tidied, Tidied::Kept(why) if why.contains("had written in the place of")),
        "{tidied:?}"
    );
    assert_eq!(place.content(), "since");
    assert_eq!(std::fs::read_to_string(&name).expect("kept"), "old late");
}

#[test]
fn the_old_file_is_removed_after_a_kill_if_nobody_wrote_it() {
    let place = Place::new();
    let name = killed(&place, || ());
    assert!(matches!(place.remove_unfinished(&name), Tidied::Done));
    assert_eq!((place.content().as_str(), place.others()), ("new ", 0));
}

/// What was written since has another time of change, whatever time that is.
#[test]
fn what_was_written_since_a_kill_stays() {
    let place = Place::new();
    let name = killed(&place, || place.put_other());
    std::fs::write(&place.path, "since").expect("written");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(99);
    File::options()
        .write(true)
        .open(&place.path)
        .expect("open")
        .set_modified(long_ago)
        .expect("set");
    let tidied = place.remove_unfinished(&name);
    assert!(matches!(&tidied, Tidied::Kept(why) if why.contains("written since")), "{tidied:?}");
    assert_eq!(place.content(), "since");
    assert_eq!(std::fs::read_to_string(&name).expect("kept"), "other");
}

/// The inode of the new file is another one's, once that was deleted.
#[test]
fn a_file_that_only_has_the_inode_of_the_new_one_stays() {
    let place = Place::new();
    let name = killed(&place, || place.put_other());
    let file = std::fs::metadata(&place.path).expect("there");
    std::thread::sleep(Duration::from_millis(20));
    let modified = file.modified().expect("a time");
    let named = name.to_str().expect("UTF-8").to_owned();
    let inode = format!("-{:x}-", file.ino());
    // As if that inode were the one of a file that is made now.
    let theirs = place.dir.path().join("theirs");
    std::fs::write(&theirs, "theirs").expect("a file");
    File::options().write(true).open(&theirs).expect("open").set_modified(modified).expect("set");
    let other = format!("-{:x}-", std::fs::metadata(&theirs).expect("there").ino());
    std::fs::remove_file(&place.path).expect("removed");
    let renamed = PathBuf::from(named.replace(&inode, &other));
    std::fs::rename(&name, &renamed).expect("renamed");
    let tidied = place.remove_unfinished(&renamed);
    assert!(matches!(&tidied, Tidied::Kept(why) if why.contains("that is gone")), "{tidied:?}");
    assert_eq!(std::fs::read_to_string(&theirs).expect("there"), "theirs");
    assert_eq!(std::fs::read_to_string(&renamed).expect("kept"), "other");
}

#[test]
fn names_that_were_given_before_a_kill_lead_to_one_file_again() {
    let place = Place::new();
    let further = place.dir.path().join("further");
    let link = || std::fs::hard_link(&place.path, &further).expect("linked");
    let name = killed(&place, link);
    assert!(matches!(place.remove_unfinished(&name), Tidied::Done));
    let inode = |path: &Path| std::fs::metadata(path).expect("there").ino();
    assert_eq!((place.content().as_str(), inode(&place.path)), ("old ", inode(&further)));
    assert!(!name.exists());
    // Nothing is lost of one that was written since: each has its own content then.
    std::fs::remove_file(&further).expect("removed");
    let name = killed(&place, link);
    std::fs::write(&place.path, "since").expect("written");
    assert!(matches!(place.remove_unfinished(&name), Tidied::Done));
    assert_eq!(place.content(), "since");
    assert_eq!(std::fs::read_to_string(&further).expect("there"), "old ");
    assert!(!name.exists());
}

#[test]
fn a_file_that_others_put_there_stays() {
    let place = Place::new();
    let file = unfinished::open(&place.path).expect("it is there");
    let other = place.dir.path().join("other");
    std::fs::write(&other, "other").expect("a file");
    std::fs::rename(&other, &place.path).expect("renamed");
    let (dir, writers) = (place.dir.path(), Writers::Servers);
    let spot = place.spot();
    let old = Old { spot: &spot, file: &file, dir, writers };
    // Another test may be about to execute a program, which has it open to write until then.
    while sys::lease(&file, Lease::Read).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let held = Held { file: &file, is_leased: true };
    let before = Attributes::of(&file).expect("it is there");
    let said = loop {
        let new = unfinished::temporary_for(&file, dir, dir).expect("a file");
        let said = put_in_place(&old, &held, &before, new, || ()).expect_err("another file");
        if !said.to_string().contains("elsewhere") {
            break said.to_string();
        }
    };
    assert!(said.contains("replaced meanwhile"), "{said}");
    assert_eq!((place.content().as_str(), place.others()), ("other", 0));
}

#[test]
fn a_new_file_that_is_open_elsewhere_is_removed() {
    let place = Place::new();
    let file = unfinished::open(&place.path).expect("it is there");
    let (spot, dir, writers) = (place.spot(), place.dir.path(), Writers::Servers);
    let old = Old { spot: &spot, file: &file, dir, writers };
    let held = Held { file: &file, is_leased: true };
    let new = unfinished::temporary_for(&file, dir, dir).expect("a file");
    let _elsewhere = new.as_file().try_clone().expect("a descriptor");
    let before = Attributes::of(&file).expect("it is there");
    let said = put_in_place(&old, &held, &before, new, || ()).expect_err("it is open");
    assert!(said.to_string().contains("open elsewhere"), "{said}");
    assert_eq!((place.content().as_str(), place.others()), ("old ", 0));
}
