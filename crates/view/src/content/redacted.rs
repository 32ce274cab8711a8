//! A file with its secrets masked: same length, same offsets.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use tollgate_hugepage::Filling;
use tollgate_redact::Redactor;

use crate::audit::{Audit, AuditLevel, Detail, Event, Outcome};
use crate::content::Content;
use crate::content::to_open::ToOpen;
use crate::lower::{self, Stat, Version};
use crate::masked::{Masked, MaskedCounter};
use crate::road::lane::Lane;
use crate::road::memory::{Part, Room};

/// An open file.
struct Redacted {
    fd: Arc<OwnedFd>,
    redactor: Arc<Redactor>,
    path: Box<[u8]>,
    inode: u64,
    /// Through this handle.
    masked: MaskedCounter,
    has_masked: AtomicBool,
    in_view: Arc<MaskedCounter>,
    audit: Option<Arc<dyn Audit>>,
}

/// # Errors
/// `EACCES` if the file is larger than what is masked.
pub(super) fn open(
    file: ToOpen<'_>,
    redactor: Arc<Redactor>,
    in_view: Arc<MaskedCounter>,
    audit: Option<Arc<dyn Audit>>,
) -> Result<Arc<dyn Content>, Errno> {
    let redacted = Redacted {
        fd: file.fd,
        redactor,
        path: file.path.into_boxed_slice(),
        inode: file.node.key.ino(),
        masked: MaskedCounter::default(),
        has_masked: AtomicBool::new(false),
        in_view,
        audit,
    };
    let size = redacted.stat()?.size();
    redacted.redactor.to_read(0..0, size).map_err(|_| Errno::ACCESS)?;
    Ok(Arc::new(redacted))
}

impl Redacted {
    fn stat(&self) -> Result<Stat, Errno> {
        lower::stat_fd(self.fd.as_fd())
    }

    /// Reads `wanted`, and one byte more, which tells whether the file ends there.
    fn fill(&self, wanted: &Range<u64>, room: &Room) -> Result<Filling, Errno> {
        let bytes = usize::try_from(wanted.end - wanted.start).map_err(|_| Errno::INVAL)? + 1;
        let mut filling = room.to_fill(bytes)?;
        while filling.remaining() > 0 {
            let at = wanted.start + filling.filled() as u64;
            let most = filling.remaining();
            if room.read_at(&mut filling, &self.fd, at, most)? == 0 {
                break;
            }
        }
        Ok(filling)
    }

    fn count(&self, found: &Masked) {
        if found.is_empty() {
            return;
        }
        self.masked.add(found);
        self.in_view.add(found);
        if !self.has_masked.swap(true, Ordering::Relaxed) {
            self.in_view.add_open();
        }
    }
}

/// Closed: what was masked is recorded once for all that was read.
impl Drop for Redacted {
    fn drop(&mut self) {
        let masked = self.masked.secrets();
        let Some(audit) = &self.audit else { return };
        if masked.is_empty() || audit.level() < AuditLevel::Opens {
            return;
        }
        audit.record(&Event {
            operation: "masked",
            outcome: Outcome::Done,
            uid: 0,
            gid: 0,
            pid: 0,
            exe: None,
            inode: self.inode,
            path: &self.path,
            rule: None,
            detail: Detail::Masked(masked),
        });
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
        let mut filling = self.fill(&around, &room)?;
        let all = range.end.saturating_add(self.redactor.after() as u64);
        if filling.remaining() == 0 && around.end < all {
            // It has become longer since: what decides about the range may lie behind the old end.
            drop(filling);
            filling = self.fill(&(around.start..all), &room)?;
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
        let mut found = Masked::default();
        let count = |one: tollgate_redact::Found<'_>| found.add(&one);
        let done = self.redactor.mask_range(&mut buffer, around.start, at_end, wanted, count);
        // What could not be masked is not shown.
        done.map_err(|_| Errno::IO)?;
        self.count(&found);
        Ok(Part::new(buffer, start..end, room))
    }
}
