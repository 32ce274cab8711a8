//! Two who mount at one place at the same moment would both find it free.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};

/// How long others are waited for. A mount takes a few milliseconds; somebody else may have a lock on the
/// directory for a reason of his own.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// Waits for all others of this package that mount in the directory that `path` is in, until the value is
/// dropped: by a lock on that directory. `None` where it cannot be had; then nobody is held off.
pub(super) fn turn(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let directory = rustix::fs::open(path.parent()?, flags, Mode::empty()).ok()?;
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory.into()),
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            Err(_) => return None,
        }
    }
}
