//! What is said of a sealed file that cannot be read or written: to the caller, and to the logs.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_seal::SealError;

use crate::audit::{Audit, Detail, Event, Outcome};
use crate::content::asker::asker;

/// What the caller gets; `damaged` hears of bytes that are not what was written there, and says whether
/// that is news, for the log.
pub(super) fn errno_of(
    error: &SealError,
    path: &[u8],
    damaged: impl FnOnce(Option<Range<u64>>) -> bool,
) -> Errno {
    let path = path.escape_ascii();
    match error {
        SealError::Io(error) => error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error),
        SealError::TooLarge(_) => Errno::FBIG,
        SealError::Failed | SealError::NoRandom | SealError::KeyUsedUp => {
            tracing::error!(%path, %error, "a sealed file is not written");
            Errno::IO
        }
        SealError::BlockNotAuthentic(block) => {
            let start = block.saturating_mul(4096);
            if damaged(Some(start..start.saturating_add(4096))) {
                tracing::error!(%path, %error, "a sealed file is damaged");
            }
            Errno::IO
        }
        _ => {
            if damaged(None) {
                tracing::error!(%path, %error, "a sealed file cannot be read");
            }
            Errno::IO
        }
    }
}

/// Records that bytes are not what was written there; `None`: the file as a whole.
pub(super) fn tell(
    audit: &Option<Arc<dyn Audit>>,
    path: &[u8],
    inode: u64,
    bytes: Option<Range<u64>>,
) {
    let Some(audit) = audit else { return };
    let detail = bytes.map_or(Detail::None, |bytes| Detail::Span {
        offset: bytes.start,
        bytes: bytes.end - bytes.start,
    });
    let (outcome, caller) = (Outcome::Failed(Errno::IO), asker());
    audit.record(&Event {
        operation: "damaged",
        outcome,
        uid: caller.uid,
        gid: caller.gid,
        pid: caller.pid,
        exe: None,
        inode,
        path,
        rule: None,
        detail,
    });
}
