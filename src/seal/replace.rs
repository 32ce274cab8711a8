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
//! removes. If it is neither, but what others had just put there, or the old one, which who waited in
//! open(2) has written after the kill, that command puts it back: the temporary name says which two it
//! was for, and when they were written. Where the lower file system has no leases, or cannot
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

/// Who may write a file: a sealed one, or a plain one.
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

/// Holds off who would open `file`, which `writers` may write, for writing, as far as the file system can.
///
/// # Errors
/// If it cannot be replaced: it has several names, or is open for writing.
pub(super) fn hold(file: &File, writers: Writers) -> Result<Held<'_>> {
    let names = file.metadata()?.nlink();
    if names > 1 {
        match writers {
            Writers::Any => {
                bail!("has {names} names (hard links); only one of them would be sealed")
            }
            Writers::Servers => bail!(
                "has {names} names (hard links), and keeps the key that it has; run this again when the \
                 others are gone"
            ),
        }
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
    let held = hold(old.file, old.writers)?;
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
mod tests;
