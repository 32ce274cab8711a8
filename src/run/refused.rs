//! What the proxy refused, for the audit log and the summary.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_view::{Audit, Detail, Event, Outcome};

use crate::audit::Recorder;

/// Most targets that are told apart in the summary.
const TARGETS_MAX: usize = 16;

/// Hears what CMD asked for and did not get.
#[derive(Default)]
pub(super) struct Refused {
    /// CMD's user.
    uid: u32,
    recorder: Option<Arc<Recorder>>,
    targets: BTreeSet<String>,
}

impl Refused {
    /// Of a CMD of this user; nothing is heard before there is a recorder.
    pub(super) fn of(uid: u32) -> Self {
        Self { uid, ..Self::default() }
    }

    pub(super) fn record_with(&mut self, recorder: Arc<Recorder>) {
        self.recorder = Some(recorder);
    }

    /// A connection to `HOST:PORT`.
    pub(super) fn record(&mut self, target: &str) {
        if self.targets.len() < TARGETS_MAX {
            self.targets.insert(target.to_owned());
        }
        if let Some(recorder) = &self.recorder {
            recorder.record(&Event {
                operation: "connect",
                outcome: Outcome::Refused(Errno::ACCESS),
                uid: self.uid,
                gid: rustix::process::getgid().as_raw(),
                pid: 0,
                exe: None,
                inode: 0,
                path: target.as_bytes(),
                rule: Some("--allow-host"),
                detail: Detail::None,
            });
        }
    }

    /// The options that would have allowed it.
    pub(super) fn options(&self) -> Vec<String> {
        let option = |target: &String| {
            let port = target.rsplit_once(':').map(|(name, port)| (name, port == "443"));
            let target = match port {
                Some((name, true)) => name,
                _ => target,
            };
            format!("--allow-host {target}")
        };
        self.targets.iter().map(option).collect()
    }
}
