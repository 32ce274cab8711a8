//! What a view that is served answers to those who ask, and how it takes another policy.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tollgate_control::Peer;
use tollgate_fuse::Connection;
use tollgate_haltpoll::KeepAwake;
use tollgate_policy::Policy;
use tollgate_view::{Snapshot, Unavailable, View};

use super::ServerKind;
use super::queues::QueuesSocket;
use super::served::Served;
use super::spec::Outside;
use crate::audit::{self, AuditLog, Recorder};
use crate::broker::Broker;
use crate::control;
use crate::escape::{self, shown};
use crate::files;
use crate::messages;
use crate::native;
use crate::policy_choice::{IN_DIR, Origin};
use crate::policy_views;
use crate::prometheus;
use crate::reload::Reloaded;
use crate::requests::{self, Operation as RequestsOf, Requests};
use crate::sandbox::{self, Sandbox};
use crate::status::{self, Report};

/// A view that is served, and what serves it.
pub(super) struct State {
    pub(super) kind: ServerKind,
    pub(super) dir: PathBuf,
    pub(super) mount_point: PathBuf,
    pub(super) policy_file: Option<PathBuf>,
    pub(super) policy_origin: Origin,
    /// A file of the policy, or the user's configuration, that was in DIR at the start by another path.
    pub(super) leads_into_dir: Option<PathBuf>,
    /// Not found in DIR, nor configured.
    pub(super) policy_was_named: bool,
    pub(super) native: Vec<PathBuf>,
    /// From now on a native directory that is not mounted has lost its mount.
    pub(super) native_is_mounted: AtomicBool,
    pub(super) unavailable: Vec<Unavailable>,
    /// Of the connection in /sys/fs/fuse, where it is known.
    pub(super) connection_number: Option<u32>,
    pub(super) clock: Instant,
    pub(super) started: SystemTime,
    pub(super) view: Arc<View>,
    /// This view, and the others of the process.
    pub(super) served: Arc<Served>,
    pub(super) connection: Connection,
    pub(super) recorder: Arc<Recorder>,
    pub(super) keep_awake: Arc<KeepAwake>,
    pub(super) broker: Option<Arc<Broker>>,
    pub(super) sandbox: Arc<Sandbox>,
    /// The one in force.
    pub(super) policy: Mutex<Arc<Policy>>,
    pub(super) outside: Option<Outside>,
    pub(super) further: Vec<PathBuf>,
    pub(super) further_named: Vec<String>,
    pub(super) queues: QueuesSocket,
}

/// Held by a reload from before it reads the policy until that is in force, whichever view of this process
/// it is for. Signals and the control sockets of the views have threads of their own: of two at once, the
/// one that read an older policy could be the last one, or miss what it could not open
/// ([`files::take_out_of_reach`]), which the other one took.
static RELOADS: Mutex<()> = Mutex::new(());

/// Waits for the reload that is under way. What it leaves is whole, however it ended.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    RELOADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A policy that was read again.
struct ReadAgain {
    policy: Arc<Policy>,
    warnings: Vec<String>,
    /// What of it does not hold before the next start.
    not_applied: Vec<String>,
    file: PathBuf,
    /// The directory, where it is now.
    dir: PathBuf,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("mount_point", &self.mount_point).finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn finish(&self) {
        self.view.finish();
        let Some(audit) = self.recorder.own_log() else { return };
        audit.finish();
        let status = audit.status();
        if status.dropped + status.failed > 0 {
            messages::warn(&format!(
                "the audit log lacks {} events that were dropped and {} that could not be written",
                status.dropped, status.failed
            ));
        }
    }

    /// Reads the policy's file again and puts it in force; when it is wrong, the old one stays.
    pub(super) fn reload(&self) -> anyhow::Result<Reloaded> {
        let _alone = one_at_a_time();
        let ReadAgain { policy, warnings, not_applied, file, dir } = self.read_again()?;
        let changed = self.view.replace_policy(Arc::clone(&policy))?;
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy;
        if let Some(runtime) = self.view.work_queues() {
            self.queues.open(runtime);
        }
        if let Some(log) = self.recorder.log() {
            log.policy_changed(audit::digest_of(&file, &dir));
        }
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        Ok(Reloaded {
            policy: file.to_string_lossy().into_owned(),
            warnings,
            not_applied,
            open: changed.open,
            not_revoked: changed.not_revoked,
            still_open: changed.still_open.iter().map(text).collect(),
        })
    }

    /// Whether [`State::reload`] would put the policy in force as it is now, as far as other views are to
    /// wait for that.
    fn may_reload(&self) -> anyhow::Result<()> {
        let _alone = one_at_a_time();
        if self.policy_now()?.1.was_dropped() {
            // It goes on by the rules that it had, and the others do not.
            return Ok(());
        }
        Ok(self.view.may_be_replaced_by(&self.read_again()?.policy)?)
    }

    /// For who is [alone](one_at_a_time).
    fn read_again(&self) -> anyhow::Result<ReadAgain> {
        let file = self.policy_file.as_deref();
        let file = file.context("it was started without a policy file")?;
        // What a confined server could not read would be taken for empty.
        files::take_out_of_reach();
        let (dir, origin) = self.policy_now()?;
        let (policy, warnings) = origin.read_again(&dir)?;
        let only_dir = self.kind == ServerKind::Mount;
        let mut not_applied = policy_views::not_applied(
            &origin,
            self.policy_was_named,
            &dir,
            &self.further_named,
            only_dir,
        )?;
        not_applied.extend(self.new_in_dir(&origin, &dir));
        if let Some(file) = files::take_out_of_reach() {
            bail!(
                "`{}` cannot be read, as it was not read at the start; end the view and start it again",
                file.display()
            );
        }
        // What was found may be another directory's that was put at the path meanwhile.
        if self.policy_now()? != (dir.clone(), origin.clone()) {
            bail!("`{}` was moved while its policy was read; reload it again", shown(&dir));
        }
        let file = origin.file().unwrap_or_else(|| file.to_owned());
        Ok(ReadAgain { policy: Arc::new(policy), warnings, not_applied, file, dir })
    }

    /// That DIR has a policy by now, which it had not at the start.
    fn new_in_dir(&self, origin: &Origin, dir: &Path) -> Option<String> {
        let own = dir.join(IN_DIR);
        let holds = match origin {
            Origin::None | Origin::View { .. } => true,
            Origin::Preset(_) | Origin::File(_) => self.policy_was_named,
            Origin::Found(_) | Origin::Tightened(..) => true,
        };
        let is_new = !holds && own.symlink_metadata().is_ok();
        is_new.then(|| format!("`{}` is new: it holds from the next start on", shown(&own)))
    }

    /// The directory by a path of now, and where its policy comes from: what was in it went with it.
    fn policy_now(&self) -> anyhow::Result<(PathBuf, Origin)> {
        let dir = self.served.now(&self.dir)?;
        if let Some(file) = self.leads_into_dir.as_ref().filter(|_| dir != self.dir) {
            bail!(
                "`{}` led into `{}`, which is `{}` now: what protects it there is found by its path; \
                 move the directory back, or end the view and start it again",
                shown(file),
                shown(&self.dir),
                shown(&dir)
            );
        }
        Ok((dir, self.policy_origin.relocated(&|file| self.served.now(file))?))
    }

    /// The view's state, and what this server has to do without.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.view.snapshot();
        snapshot.unavailable.extend(self.unavailable.iter().cloned());
        snapshot.unavailable.extend(
            self.moved().map(|reason| Unavailable {
                feature: "rules at the path of DIR".to_owned(),
                reason,
            }),
        );
        for directory in self.native_now().1 {
            snapshot.unavailable.push(Unavailable {
                feature: format!("native directory `{}`", directory.display()),
                reason: "it was removed or exchanged in DIR, which took its mount away; what is \
                         there is served by tollgate until the next start"
                    .into(),
            });
        }
        snapshot
    }

    /// That the directory is elsewhere by now, and that something else may be at its path, where the view
    /// is over the directory itself. Names are in it as they are.
    pub(super) fn moved(&self) -> Option<String> {
        if self.kind == ServerKind::Mount && self.mount_point != self.dir {
            return None;
        }
        let now = self.view.moved_to()?;
        Some(format!(
            "`{}` was moved or removed outside since the start (it is `{}` now), and the view went with \
             it: what is at that path since then is not behind the view, and no rule holds for it",
            self.dir.display(),
            now.display()
        ))
    }

    /// The native directories that are mounted, and those that are no more. Those of a `run`, and of a view
    /// that was unmounted here, are in a mount namespace that the server does not see.
    fn native_now(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let is_mounted =
            self.kind == ServerKind::Mount && self.native_is_mounted.load(Ordering::Acquire);
        match self.connection_number.filter(|_| is_mounted) {
            Some(number) => native::still_mounted(&self.mount_point, number, &self.native),
            None => (self.native.clone(), Vec::new()),
        }
    }

    /// Requests and threads; what is busiest only for those who may know.
    fn requests(&self, with_busiest: bool) -> Requests {
        let elapsed = self.clock.elapsed().as_nanos();
        let audit = self.recorder.log().filter(|_| with_busiest);
        Requests {
            version: requests::VERSION,
            pid: std::process::id(),
            kind: self.kind.word().to_owned(),
            dir: self.dir.to_string_lossy().into_owned(),
            dir_hex: escape::hex(&self.dir),
            mount_point: self.mount_point.to_string_lossy().into_owned(),
            mount_point_hex: escape::hex(&self.mount_point),
            uptime_ns: u64::try_from(elapsed).unwrap_or(u64::MAX),
            waiting: self.connection_number.and_then(requests::waiting),
            operations: self.connection.latencies().iter().map(RequestsOf::of).collect(),
            threads: requests::threads(),
            busiest: audit.map(AuditLog::busiest),
        }
    }

    fn report(&self) -> Report {
        let dir_now = self.view.moved_to();
        Report {
            version: status::VERSION,
            pid: std::process::id(),
            kind: self.kind.word(),
            dir: self.dir.to_string_lossy().into_owned(),
            dir_hex: escape::hex(&self.dir),
            dir_now: dir_now.as_ref().map(|now| now.to_string_lossy().into_owned()),
            dir_now_hex: dir_now.as_deref().and_then(escape::hex),
            mount_point: self.mount_point.to_string_lossy().into_owned(),
            mount_point_hex: escape::hex(&self.mount_point),
            connection: self.connection_number,
            policy: self.policy_file.as_ref().map(|file| file.to_string_lossy().into_owned()),
            tightened_by: self
                .policy_origin
                .tightened_by()
                .map(|file| file.to_string_lossy().into_owned()),
            native: self
                .native_now()
                .0
                .iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect(),
            started: crate::audit::timestamp(self.started),
            uptime_seconds: self.started.elapsed().unwrap_or_default().as_secs(),
            queues: self.connection.queues(),
            negotiated: status::negotiated(self.connection.negotiated()),
            transport: status::transport(&self.connection),
            view: self.snapshot(),
            audit: self.recorder.log().map(AuditLog::status),
            refusals: self.recorder.refusals(),
            keep_awake: status::keep_awake(&self.keep_awake.status()),
            broker: self.broker.as_deref().map(Broker::report),
            sandbox: self.sandbox.report(),
        }
    }
}

impl control::Reporter for State {
    fn status(&self) -> Value {
        in_json(&self.report())
    }

    fn brief(&self) -> Value {
        let mut brief = json!({
            "version": status::VERSION,
            "brief": true,
            "kind": self.kind.word(),
            "dir": self.dir.to_string_lossy(),
            "mount_point": self.mount_point.to_string_lossy(),
            "started": crate::audit::timestamp(self.started),
            "uptime_seconds": self.started.elapsed().unwrap_or_default().as_secs(),
        });
        for (key, path) in [("dir_hex", &self.dir), ("mount_point_hex", &self.mount_point)] {
            if let Some(hex) = escape::hex(path) {
                brief[key] = hex.into();
            }
        }
        brief
    }

    fn requests(&self, peer: &Peer<'_>) -> Value {
        in_json(&self.requests(is_in_own_pid_namespace(peer)))
    }

    fn metrics(&self) -> String {
        prometheus::text(&self.requests(false))
    }

    fn why(&self, about: &control::About) -> Value {
        let policy = Arc::clone(&self.policy.lock().unwrap_or_else(PoisonError::into_inner));
        let now = self.view.moved_to();
        let mut dirs = now.iter().chain([&self.dir]);
        let inside = dirs.find_map(|dir| about.path.strip_prefix(dir).ok());
        let inside = inside.map(|inside| {
            let answer = crate::why::in_dir(&policy, inside, about);
            crate::why::under_all_names(answer, &self.view, inside, about)
        });
        let outside = self.outside.as_ref().map(|place| place(&about.path));
        let further: Vec<_> = self.further.iter().map(|dir| dir.to_string_lossy()).collect();
        json!({
            "dir": self.dir.to_string_lossy(),
            "connection": self.connection_number,
            "moved": self.moved().is_some(),
            "why": inside,
            "outside": outside,
            "further": further,
        })
    }

    fn may_reload(&self, peer: &Peer<'_>) -> Value {
        match may_have_it_reloaded(peer).and_then(|()| State::may_reload(self)) {
            Ok(()) => json!({}),
            Err(error) => json!({ "error": messages::in_words(&error) }),
        }
    }

    fn reload(&self, peer: &Peer<'_>) -> Value {
        match may_have_it_reloaded(peer).and_then(|()| State::reload(self)) {
            Ok(reloaded) => {
                reloaded.warnings.iter().for_each(|warning| messages::say(warning));
                in_json(&reloaded)
            }
            Err(error) => json!({ "error": messages::in_words(&error) }),
        }
    }
}

fn in_json(report: &impl serde::Serialize) -> Value {
    // A report has strings for keys, so there is nothing in it that JSON could not hold.
    serde_json::to_value(report).expect("a report is JSON")
}

fn may_have_it_reloaded(peer: &Peer<'_>) -> anyhow::Result<()> {
    ensure!(
        is_in_own_pid_namespace(peer),
        "a process of another pid namespace, or one that has ended, cannot have it reloaded"
    );
    Ok(())
}

/// Paths that others use through the view are not for CMD of a `run`, nor for a container.
fn is_in_own_pid_namespace(peer: &Peer<'_>) -> bool {
    let Some(pid) = peer.pid else { return false };
    let is_in_own = match sandbox::looker() {
        Some(looker) => looker.is_in_own_pid_namespace(pid),
        None => {
            let namespace =
                |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
            let theirs = namespace(&pid.to_string());
            theirs.is_some() && theirs == namespace("self")
        }
    };
    // It may have handed its connection to others and ended, and another process have its number.
    is_in_own && peer.still_has_pid()
}
