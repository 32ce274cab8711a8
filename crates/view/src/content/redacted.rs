//! A file with its secrets masked: same length, same offsets.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use tollgate_redact::Redactor;

use crate::content::Content;
use crate::lower::{self, Stat, Version};
use crate::road::lane::Lane;
use crate::road::memory::{Part, Room};

/// An open file.
struct Redacted {
    fd: Arc<OwnedFd>,
    redactor: Arc<Redactor>,
}

/// # Errors
/// `EACCES` if the file is larger than what is masked.
pub(super) fn open(fd: Arc<OwnedFd>, redactor: Arc<Redactor>) -> Result<Arc<dyn Content>, Errno> {
    let redacted = Redacted { fd, redactor };
    let size = redacted.stat()?.size();
    redacted.redactor.to_read(0..0, size).map_err(|_| Errno::ACCESS)?;
    Ok(Arc::new(redacted))
}

impl Redacted {
    fn stat(&self) -> Result<Stat, Errno> {
        lower::stat_fd(self.fd.as_fd())
    }
}

impl Content for Redacted {
    fn lane(&self) -> Lane {
        Lane::Redact
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.stat()?.size())
    }

    fn version(&self) -> Result<Option<Version>, Errno> {
        let version = self.stat()?.version();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.ok().and_then(|now| i64::try_from(now.as_secs()).ok());
        Ok(now.filter(|now| version.is_settled(*now)).map(|_| version))
    }

    /// Reads the range with what is around it, and masks it. The file may change meanwhile: what
    /// counts is what was read, and where that ended.
    fn read(&self, range: Range<u64>, room: Room) -> Result<Part, Errno> {
        let size = self.stat()?.size();
        let around = self.redactor.to_read(range.clone(), size).map_err(|_| Errno::ACCESS)?;
        if range.start >= size {
            return Ok(Part::end(room));
        }
        // One byte more tells whether the file ends there.
        let wanted = usize::try_from(around.end - around.start).map_err(|_| Errno::INVAL)? + 1;
        let mut filling = room.to_fill(wanted)?;
        while filling.remaining() > 0 {
            let at = around.start + filling.filled() as u64;
            let most = filling.remaining();
            if room.read_at(&mut filling, &self.fd, at, most)? == 0 {
                break;
            }
        }
        let (got, at_end) = (filling.filled(), filling.remaining() > 0);
        let start = usize::try_from(range.start - around.start).map_err(|_| Errno::INVAL)?;
        let length = usize::try_from(range.end - range.start).map_err(|_| Errno::INVAL)?;
        let end = start.saturating_add(length).min(got);
        if start >= end {
            return Ok(Part::end(room));
        }
        let mut buffer = filling.finish().map_err(|_| Errno::IO)?;
        let wanted = range.start..around.start + end as u64;
        let done = self.redactor.mask_range(&mut buffer, around.start, at_end, wanted, |_| ());
        // What could not be masked is not shown.
        done.map_err(|_| Errno::IO)?;
        Ok(Part::new(buffer, start..end, room))
    }
}
