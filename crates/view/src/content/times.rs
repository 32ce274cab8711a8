//! When the content of a sealed file was changed last.
//!
//! The lower file's own time is that of the last write to it, which is right while blocks are written.
//! A commit writes the map and the header as well, which change no content: when it is over, the lower
//! file gets the time of the last change of the content back, and meanwhile that one is shown.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

/// Seconds and nanoseconds.
pub(crate) type Time = (i64, u32);

/// A commit waits so long for those who change the content.
const CHANGE_TAKES: Duration = Duration::from_millis(100);

/// Order of locks: `changing`, then `committing`.
#[derive(Default)]
pub(super) struct Times {
    /// Shared by those who change the content. A commit takes it alone at its end, if they let it in
    /// time; none of them waits for a commit meanwhile.
    changing: RwLock<()>,
    /// During a commit: when the content was changed last.
    committing: RwLock<Option<Time>>,
}

impl Times {
    /// Runs `act`, which changes the content and with it the time of the lower file.
    pub(super) fn change<T>(&self, fd: impl Fn() -> Arc<OwnedFd>, act: impl FnOnce() -> T) -> T {
        let _changing = self.changing.read();
        let done = act();
        // What the commit writes from now on is later.
        if self.committing.read().is_some() {
            let mut committing = self.committing.write();
            if committing.is_some() {
                *committing = modified(&*fd()).ok().or(*committing);
            }
        }
        done
    }

    /// A commit begins. There is one at a time.
    ///
    /// # Errors
    /// If the lower file does not say its time.
    pub(super) fn commit_begins(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let mut committing = self.committing.write();
        *committing = Some(modified(fd)?);
        Ok(())
    }

    /// The commit that began has ended. Waits for who changes the content, so that the time that the
    /// file gets back is that of the change; not for long, as those who come meanwhile wait as well.
    /// A change that takes longer, as with a storage that hangs, ends after the last write of the commit,
    /// whose time the file keeps.
    pub(super) fn commit_ends(&self, fd: &OwnedFd) {
        if let Some(_alone) = self.changing.try_write_for(CHANGE_TAKES) {
            let changed = *self.committing.read();
            let done = changed.map_or(Ok(()), |time| set_modified(fd, time));
            if let Err(error) = done {
                // A user's server may write the file of somebody else, and not set its time. The
                // content is as durable as the commit says.
                tracing::debug!(%error, "a sealed file has the time of its commit");
            }
        }
        *self.committing.write() = None;
    }

    /// When the content was changed last, by what `fd` has below. `None` if that cannot be told.
    pub(super) fn shown(&self, fd: &OwnedFd) -> Option<Time> {
        // Held meanwhile, so that no commit begins.
        let committing = self.committing.read();
        committing.or_else(|| modified(fd).ok())
    }
}

fn modified(fd: impl AsFd) -> Result<Time, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)))
}

fn set_modified(fd: &OwnedFd, (tv_sec, nanoseconds): Time) -> Result<(), Errno> {
    rustix::fs::futimens(
        fd,
        &Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec, tv_nsec: nanoseconds.into() },
        },
    )
}

/// The content was changed now, of which nothing is in the lower file until a commit.
pub(super) fn touch(fd: &OwnedFd) -> Result<(), Errno> {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let modified = |last_access| Timestamps {
        last_access: time(last_access),
        last_modification: time(UTIME_NOW),
    };
    match rustix::fs::futimens(fd, &modified(UTIME_OMIT)) {
        // Of a file of somebody else, who may write it may set both times, and no single one.
        Err(Errno::PERM | Errno::ACCESS) => rustix::fs::futimens(fd, &modified(UTIME_NOW)),
        done => done,
    }
}
