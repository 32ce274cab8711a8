//! Who hears what happens: the log, if there is one, and the count of refusals.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tollgate_view::{Audit, AuditLevel, Detail, Event};

use super::log::AuditLog;
use super::shared::lock;
use super::tally::{Tally, TallyReport};

/// Most paths in the report of `status` and in the summary.
const PATHS: usize = 20;

/// Longest path, with that of a directory before it, in bytes. What is longer is cut.
const WHOLE_MAX_BYTES: usize = 8192;

/// Hands events on.
pub(crate) struct Recorder {
    log: Option<Arc<AuditLog>>,
    /// The directory of a further view (`[[view]]`), which its paths are told with.
    further: Option<PathBuf>,
    /// Taken for each refusal.
    tally: Mutex<Tally>,
}

impl Recorder {
    pub(crate) fn new(log: Option<AuditLog>) -> Self {
        Self { log: log.map(Arc::new), further: None, tally: Mutex::default() }
    }

    /// For a further view of the same server, of the directory `dir`: it has the same log, in which
    /// its paths are absolute, and a count of its own.
    pub(crate) fn further(&self, dir: &Path) -> Self {
        Self { log: self.log.clone(), further: Some(dir.to_owned()), tally: Mutex::default() }
    }

    /// The log, if there is one.
    pub(crate) fn log(&self) -> Option<&AuditLog> {
        self.log.as_deref()
    }

    /// The log, if it ends with this view.
    pub(crate) fn own_log(&self) -> Option<&AuditLog> {
        self.log().filter(|_| self.further.is_none())
    }

    /// What was refused so far.
    pub(crate) fn refusals(&self) -> TallyReport {
        lock(&self.tally).report(PATHS)
    }

    fn hand_on(&self, event: &Event<'_>) {
        lock(&self.tally).count(event);
        if let Some(log) = &self.log {
            log.record(event);
        }
    }
}

impl Audit for Recorder {
    fn level(&self) -> AuditLevel {
        self.log.as_ref().map_or(AuditLevel::Refused, |log| log.level())
    }

    fn record(&self, event: &Event<'_>) {
        let Some(dir) = &self.further else { return self.hand_on(event) };
        let (mut first, mut second) = ([0; WHOLE_MAX_BYTES], [0; WHOLE_MAX_BYTES]);
        let path = joined(dir, event.path, &mut first);
        let detail = match event.detail {
            Detail::To(to) => Detail::To(joined(dir, to, &mut second)),
            other => other,
        };
        self.hand_on(&Event { path, detail, ..*event });
    }
}

/// `dir/path` in `room`: nothing is allocated for a record.
fn joined<'r>(dir: &Path, path: &[u8], room: &'r mut [u8; WHOLE_MAX_BYTES]) -> &'r [u8] {
    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
    let mut len = 0;
    for part in [dir.as_os_str().as_bytes(), slash, path] {
        let kept = part.len().min(room.len() - len);
        room[len..len + kept].copy_from_slice(&part[..kept]);
        len += kept;
    }
    &room[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_further_view_are_whole() {
        let mut room = [0; WHOLE_MAX_BYTES];
        let dir = Path::new("/home/me");
        assert_eq!(joined(dir, b".ssh/id", &mut room), b"/home/me/.ssh/id");
        assert_eq!(joined(dir, b"", &mut room), b"/home/me");
        assert_eq!(joined(dir, &[b'x'; 9000], &mut room).len(), WHOLE_MAX_BYTES);
    }
}
