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

    /// The options that would have allowed it. One for a host that was asked for at both ports that
    /// its name alone means.
    pub(super) fn options(&self) -> Vec<String> {
        let host_at = |target: &String, port: &str| target.strip_suffix(port).map(str::to_owned);
        let is_covered = |target: &&String| {
            let host = host_at(target, ":80");
            host.is_some_and(|host| self.targets.contains(&format!("{host}:443")))
        };
        let named = self.targets.iter().filter(|target| !is_covered(target));
        let named = named.map(|target| host_at(target, ":443").unwrap_or(target.clone()));
        named.map(|target| format!("--allow-host {target}")).collect()
    }
}
