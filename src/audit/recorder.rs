//! Who hears what happens: the log, if there is one, and the count of refusals.

use std::sync::Mutex;

use tollgate_view::{Audit, AuditLevel, Event};

use super::log::AuditLog;
use super::shared::lock;
use super::tally::{Tally, TallyReport};

/// Most paths in the report of `status` and in the summary.
const PATHS: usize = 20;

/// Hands events on.
pub(crate) struct Recorder {
    log: Option<AuditLog>,
    /// Taken for each refusal.
    tally: Mutex<Tally>,
}

impl Recorder {
    pub(crate) fn new(log: Option<AuditLog>) -> Self {
        Self { log, tally: Mutex::default() }
    }

    /// The log, if there is one.
    pub(crate) fn log(&self) -> Option<&AuditLog> {
        self.log.as_ref()
    }

    /// What was refused so far.
    pub(crate) fn refusals(&self) -> TallyReport {
        lock(&self.tally).report(PATHS)
    }
}

impl Audit for Recorder {
    fn level(&self) -> AuditLevel {
        self.log.as_ref().map_or(AuditLevel::Refused, AuditLog::level)
    }

    fn record(&self, event: &Event<'_>) {
        lock(&self.tally).count(event);
        if let Some(log) = &self.log {
            log.record(event);
        }
    }
}
