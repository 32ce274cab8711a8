//! Putting a new file in the place of another one, without losing what somebody writes meanwhile.
//!
//! Whoever opens a file finds the inode by its name first and is seen to have it open a moment later. A
//! rename in between leaves them an inode without a name: what they write and sync is gone with
//! their last descriptor. So:
//!
//! 1. A read lease on the old file. It is refused while somebody has the file open for writing; from
//!    then on, whoever would open it so waits in open(2), and so does who would cut it, until the
//!    lease is given up. That they wait shows in the lease.
//! 2. The new file is written under another name, synced, and gets a lease, too.
//! 3. The two exchange their names ([`RenameFlags::EXCHANGE`]): the old file keeps one.
//! 4. What lies under the temporary name has to be the old file, with the attributes and the names
//!    that it had: nothing holds off who renames, links, or changes attributes. The directory is synced,
//!    and this looked at again. Then the old lease is looked at.
//! 5. If somebody waits, or changed something, the names are exchanged back, and only then the leases are
//!    given up: who waits goes on with the file that has the name. Nobody has written the new one, which
//!    is removed: who would have waits on its own lease.
//! 6. If nobody waits, the old file is removed, and the leases are given up.
//!
//! What is left is who found the old inode before 3 and is not seen to open it before 6.
//!
//! * A server of a view looks, after it has opened a sealed file for writing, whether a name of the
//!   file still leads to what it opened, and else has the kernel look the name up again (`ESTALE`;
//!   `View::must_lead_here`). It is seen to have the file open either before 4, and then 5 keeps the name for it
//!   (or its open has not ended yet, and it looks after 5); or after 4, hence after 3, and then the name
//!   leads elsewhere when it looks. So nothing is lost, and only servers write sealed files:
//!   `rotate` needs no more.
//! * A program that writes a plain file without a view cannot be made to look. `convert` therefore
//!   waits between 3 and 4 for [`LATE`], which in the kernel takes microseconds unless the CPU is
//!   taken away in between. Nothing that the kernel offers tells of those who take longer: the page
//!   says so.
//!
//! The same holds for who changes attributes of the old inode, or gives it a further name, after 4: a
//! server looks afterwards, too.
//!
//! A kill leaves the old or the new file under the name and at most one more, which the next command
//! removes. If it is neither, but what others had just put there, that command puts it back: the
//! temporary name says which two it was for. Where the lower file system has no leases, or cannot
//! exchange names, the times and the size of the old file are compared before a plain rename: that finds
//! who has written, not who will.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::escape::shown;
use crate::seal::attributes::Attributes;
use crate::seal::locked::is_locked;
use crate::seal::spot::{Spot, path_of};
use crate::seal::unfinished::{self, Name, Temporary};
use crate::sys::{self, Lease};

/// For who found a plain file's inode, and is on the way to open it: some turns of other processes on
/// their CPU.
const LATE: Duration = Duration::from_millis(10);
const CHANGED: &str = "was changed meanwhile; run this again";
/// How often names are exchanged back that others move at the same time.
const TRIES: usize = 5;

/// A file that is to be replaced.
pub(super) struct Old<'a> {
    pub(super) spot: &'a Spot,
    pub(super) file: &'a File,
    /// The keyring's directory.
    pub(super) dir: &'a Path,
    pub(super) writers: Writers,
}

/// Who may write a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writers {
    /// Servers of views, which look whether it still has its name.
    Servers,
    /// Any program.
    Any,
}

/// A file that nobody has open for writing, and nobody opens so, as far as the file system can.
pub(super) struct Held<'a> {
    file: &'a File,
    is_leased: bool,
}

impl Held<'_> {
    /// # Errors
    /// If somebody waits to open it for writing, or has it open so by now.
    pub(super) fn is_undisturbed(&self) -> Result<()> {
        if self.is_leased && !sys::still_leased(self.file, Lease::Read) {
            bail!("was opened for writing meanwhile; run this again");
        }
        Ok(())
    }
}

/// Holds off who would open `file` for writing, as far as the file system can.
///
/// # Errors
/// If it cannot be replaced: it has several names, or is open for writing.
pub(super) fn hold(file: &File) -> Result<Held<'_>> {
    let names = file.metadata()?.nlink();
    if names > 1 {
        bail!("has {names} names (hard links); only one of them would be sealed");
    }
    let is_leased = refuse_if_written(file)?;
    refuse_if_locked(file)?;
    Ok(Held { file, is_leased })
}

fn refuse_if_locked(file: &File) -> Result<()> {
    if is_locked(file)? {
        bail!("is locked by a program; run this again when that has ended");
    }
    Ok(())
}

/// Takes a read lease on `file`; whether there is one to be had.
///
/// # Errors
/// If it is open for writing: whoever has it open would go on with the old file, and what they write
/// would be lost.
pub(super) fn refuse_if_written(file: &File) -> Result<bool> {
    let lease = sys::lease(file, Lease::Read);
    if let Err(error) = &lease
        && error.kind() == io::ErrorKind::WouldBlock
    {
        bail!("is open for writing elsewhere; close it and run this again");
    }
    Ok(lease.is_ok())
}

/// Has `write` fill a new file, and puts it in the place of the old one.
///
/// # Errors
/// As [`hold`], or if somebody opened or changed it meanwhile; then it is as it was.
pub(super) fn replace(
    old: &Old<'_>,
    write: impl FnOnce(&File, &Held<'_>) -> Result<()>,
) -> Result<()> {
    let before = Attributes::of(old.file)?;
    let held = hold(old.file)?;
    let new = unfinished::temporary_for(old.file, &old.spot.directory(), old.dir)?;
    write(new.as_file(), &held)?;
    before.give(new.as_file())?;
    new.as_file().sync_all()?;
    held.is_undisturbed()?;
    let now = old.file.metadata()?;
    let version = |of: &Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
    if version(&now) != version(&before.metadata) || now.len() != before.metadata.len() {
        bail!(CHANGED);
    }
    put_in_place(old, &held, &before, new, || ())
}

/// Steps 2 to 6; `meanwhile` is run after step 3.
fn put_in_place(
    old: &Old<'_>,
    held: &Held<'_>,
    before: &Attributes,
    new: Temporary,
    meanwhile: impl FnOnce(),
) -> Result<()> {
    if !held.is_leased {
        return rename_over(old, new);
    }
    let (written, name) = new.into_parts();
    // A lease for reading is given to who cannot write.
    let new = File::open(path_of(&written))?;
    unfinished::mark(&new)?;
    drop(written);
    sys::lease(&new, Lease::Read).context("the new file is open elsewhere; run this again")?;
    let name = unfinished::named_for(name, old.file, &new)?;
    let pair = Pair { old, new: &new, name };
    match pair.exchange(old.spot) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            pair.name.path.persist(old.spot.path()).map_err(|error| error.error)?;
            return Ok(old.spot.sync()?);
        }
        Err(Errno::NOENT) => bail!("was deleted or renamed meanwhile; run this again"),
        exchanged => exchanged?,
    }
    let exchanged = Instant::now();
    meanwhile();
    // At once, too: what others put there in between is missing under its name until then.
    let settled = pair.is_as_it_was(before).and_then(|()| {
        old.spot.sync()?;
        if old.writers == Writers::Any {
            std::thread::sleep(LATE.saturating_sub(exchanged.elapsed()));
        }
        pair.is_as_it_was(before)?;
        refuse_if_locked(old.file)?;
        held.is_undisturbed()
    });
    if let Err(why) = settled {
        if let Err(error) = pair.exchange_back() {
            let kept = pair.keep_old();
            return Err(why.context(format!("{error}; the file as it was is {}", shown(&kept))));
        }
        return Err(why);
    }
    pair.name.path.close()?;
    Ok(())
}

/// Where nobody can be held off.
fn rename_over(old: &Old<'_>, new: Temporary) -> Result<()> {
    let (_file, name) = new.into_parts();
    name.path.persist(old.spot.path()).map_err(|error| error.error)?;
    Ok(old.spot.sync()?)
}

/// The two files whose names are exchanged.
struct Pair<'a> {
    old: &'a Old<'a>,
    new: &'a File,
    /// Where the new file is at first, and the old one then.
    name: Name,
}

impl Pair<'_> {
    fn exchange(&self, spot: &Spot) -> Result<(), Errno> {
        let name: &Path = &self.name.path;
        rustix::fs::renameat_with(CWD, name, CWD, spot.path(), RenameFlags::EXCHANGE)
    }

    /// Whether the name apart leads to the old file, which nobody has changed.
    fn is_as_it_was(&self, before: &Attributes) -> Result<()> {
        if !self.has_apart(self.old.file)? {
            bail!("was replaced meanwhile; run this again");
        }
        if !before.are_those_of(self.old.file)? {
            bail!(CHANGED);
        }
        Ok(())
    }

    /// Whether the name apart leads to `file`.
    fn has_apart(&self, file: &File) -> Result<bool> {
        let (found, file) = (std::fs::symlink_metadata(&self.name.path)?, file.metadata()?);
        Ok((found.dev(), found.ino()) == (file.dev(), file.ino()))
    }

    /// Gives the old file the name that the new one has by now: others may have moved it.
    fn exchange_back(&self) -> Result<()> {
        for _ in 0..TRIES {
            if self.new.metadata()?.nlink() == 0 {
                // Removed, or replaced, by its name: that was meant for the old one.
                return Ok(());
            }
            let moved = std::fs::read_link(path_of(self.new)).and_then(|path| Spot::of(&path));
            // Others may be moving its directory, too.
            let Ok(spot) = &moved else { continue };
            match self.exchange(spot) {
                Err(Errno::NOENT) => continue,
                exchanged => exchanged?,
            }
            if self.has_apart(self.new)? {
                return Ok(spot.sync()?);
            }
            // Something else had taken that name a moment before.
            self.exchange(spot)?;
        }
        Err(anyhow!("others move it at the same time"))
    }

    /// Keeps the old file, beside the new one where that name is free.
    fn keep_old(self) -> PathBuf {
        let mut beside = self.old.spot.name().to_owned();
        beside.push(".before-sealing");
        let beside = self.old.spot.directory().join(beside);
        let apart = self.name.path.to_path_buf();
        let kept = match self.name.path.persist_noclobber(&beside) {
            Ok(()) => beside,
            // Dropped, the name would be removed.
            Err(error) => error.path.keep().unwrap_or(apart),
        };
        std::fs::read_link(path_of(self.old.file)).unwrap_or(kept)
    }
}

#[cfg(test)]
mod tests {
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
                    Err(error)
                        if meanwhile.is_some() && error.to_string().contains("elsewhere") => {}
                    replaced => return replaced,
                }
            }
        }

        fn try_replace(&self, meanwhile: impl FnOnce(&File)) -> Result<()> {
            let file = unfinished::open(&self.path).expect("it is there");
            let (spot, dir, writers) = (self.spot(), self.dir.path(), Writers::Servers);
            let old = Old { spot: &spot, file: &file, dir, writers };
            let held = hold(&file)?;
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
        // The new file has the times of the old one.
        let past = std::time::SystemTime::now() - Duration::from_secs(10);
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
        assert!(
            matches!(&tidied, Tidied::Kept(why) if why.contains("written since")),
            "{tidied:?}"
        );
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
        File::options()
            .write(true)
            .open(&theirs)
            .expect("open")
            .set_modified(modified)
            .expect("set");
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
}
