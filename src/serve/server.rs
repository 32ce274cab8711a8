//! A view that is being served.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use rustix::fs::MemfdFlags;
use tollgate_fuse::{Connection, Device, InitFlags, Running, Session, TransportChoice};
use tollgate_view::{ANOTHER_WRITES, Config, OpenError, View, WRITING_SEALED};

use super::common::Common;
use super::queues::QueuesSocket;
use super::state::State;
use super::{ServerKind, Spec};
use crate::audit::Recorder;
use crate::broker;
use crate::control::{self, Guest};
use crate::escape::{escaped, shown};
use crate::messages;
use crate::policy_choice::Origin;
use crate::prometheus;

/// A command that ends within this time is not held up by the end of a watch.
const SHORT_COMMAND: Duration = Duration::from_millis(200);

/// A view that is being served.
#[derive(Debug)]
pub(crate) struct Server {
    state: Arc<State>,
    running: Running,
    control: Option<tollgate_control::Server>,
    /// For CMD's user, who is not this process's.
    for_guest: Option<tollgate_control::Server>,
    passthrough: bool,
}

impl Server {
    /// Confines the process, and starts the only view that it serves.
    ///
    /// # Errors
    /// As [`Server::start_in`].
    pub(crate) fn start(
        spec: Spec,
        source: OwnedFd,
        device: impl Into<Device>,
        mount_point: &Path,
        connection_number: Option<u32>,
    ) -> anyhow::Result<Self> {
        let mut spec = spec;
        let common = spec.common(&[source.as_fd()], mount_point)?;
        Self::start_in(&common, spec, source, device, mount_point, connection_number)
    }

    /// Starts the threads, completes the handshake with the kernel, and opens the control socket.
    ///
    /// # Errors
    /// When the directory cannot be viewed, or the kernel does not agree.
    pub(crate) fn start_in(
        common: &Common,
        spec: Spec,
        source: OwnedFd,
        device: impl Into<Device>,
        mount_point: &Path,
        connection_number: Option<u32>,
    ) -> anyhow::Result<Self> {
        let sandbox = Arc::clone(&common.sandbox);
        let policy_file = spec.policy_origin.file();
        let recorder = common.recorder(&spec.dir);
        let config = Config {
            policy: Arc::clone(&spec.policy),
            attr_timeout: spec.timeout,
            entry_timeout: spec.timeout,
            watch: spec.watch,
            watch_after: if spec.kind == ServerKind::Run { SHORT_COMMAND } else { Duration::ZERO },
            small_files: spec.small_files,
            max_descriptors: common.descriptors(),
            mount_points: spec.covered(),
            found: spec.found.map(Arc::new),
            native: spec.native.clone(),
            neighbours: common.neighbours(),
            only_ids: spec.only_ids,
            on_search: Some(messages::searching),
            is_read_only: spec.is_read_only,
            seal_keys: spec.seal_keys,
            callers: sandbox.callers(),
            audit: Some(Arc::clone(&recorder) as Arc<dyn tollgate_view::Audit>),
        };
        let view = View::open(source, config)
            .map_err(|error| not_viewed(error, &spec.dir, &spec.policy_origin))?;
        let mut session_config = view.session_config(spec.threads);
        let keep_awake = common.keep_awake(spec.keep_awake);
        session_config.keep_awake = Some(Arc::clone(&keep_awake));
        session_config.transport = spec.transport;
        session_config.registrar = spec.broker.clone().map(|broker| broker as Arc<_>);
        let running = Session::new(device.into(), view.clone(), session_config)
            .start()
            .context("the FUSE connection cannot be started")?;
        common.served.add(&spec.dir, &view);
        let state = Arc::new(State {
            kind: spec.kind,
            mount_point: mount_point.to_owned(),
            policy_file,
            leads_into_dir: spec.policy_origin.leads_into(&spec.dir),
            policy_origin: spec.policy_origin,
            served: Arc::clone(&common.served),
            dir: spec.dir,
            policy_was_named: spec.policy_was_named,
            native: spec.native,
            native_is_mounted: AtomicBool::new(false),
            unavailable: spec.unavailable,
            connection_number,
            clock: Instant::now(),
            started: SystemTime::now(),
            view,
            connection: running.connection().clone(),
            recorder,
            keep_awake,
            broker: spec.broker,
            sandbox,
            policy: Mutex::new(spec.policy),
            outside: spec.outside,
            further: spec.further,
            further_named: spec.further_named,
            queues: QueuesSocket::default(),
        });
        let passthrough = probe_passthrough(&state.connection);
        if spec.transport == TransportChoice::Uring {
            tell_of_missing_rings(&state);
        }
        tell_what_is_missing(&state, passthrough.as_ref().err(), spec.quiet);
        let control = start_control(&state);
        let for_guest = spec.guest.and_then(|guest| start_for_guest(&state, &guest));
        if let Some(port) = spec.metrics_port {
            start_metrics(&state, port)?;
        }
        state.queues.open_or_keep(state.view.work_queues());
        Ok(Self { state, running, control, for_guest, passthrough: passthrough.is_ok() })
    }

    /// Gives up the system calls that serving does not need. When all that is done once is done.
    pub(crate) fn complete_sandbox(&self) {
        self.state.sandbox.complete();
    }

    /// Whether the kernel reads and writes files directly.
    pub(crate) fn has_passthrough(&self) -> bool {
        self.passthrough
    }

    /// That the directory is elsewhere by now.
    pub(crate) fn moved(&self) -> Option<String> {
        self.state.moved()
    }

    /// Whether a file got a set-user-ID bit or the like through the view.
    pub(crate) fn has_raised(&self) -> bool {
        self.state.view.has_raised()
    }

    /// A path of the directory now, if there is one.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.state.served.now(&self.state.dir).ok()
    }

    /// One line about what is served.
    pub(crate) fn summary(&self) -> String {
        let how = match (self.passthrough, &self.state.broker) {
            (false, _) => "user space only",
            (true, None) => "kernel passthrough",
            (true, Some(_)) => "kernel passthrough by the broker",
        };
        let (dir, at) = (self.state.dir.display(), self.state.mount_point.display());
        let threads = self.threads();
        format!("ready: `{dir}` at `{at}`, {how}, {threads}")
    }

    /// What serves requests, in words: threads at the device, or the owners of rings and helpers.
    fn threads(&self) -> String {
        let number =
            |of: usize, what: &str| format!("{of} {what}{}", if of == 1 { "" } else { "s" });
        match self.state.connection.transport().and_then(|report| report.rings) {
            Some(rings) => format!(
                "io_uring with {} and {}",
                number(rings.threads, "ring"),
                number(rings.helpers, "helper")
            ),
            None => number(self.state.connection.queues(), "thread"),
        }
    }

    /// Who counts what is refused; the counts are complete when the server has ended.
    pub(crate) fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.state.recorder)
    }

    /// What reads the policy again and says on standard error what came of it.
    pub(crate) fn reloader(&self) -> impl Fn() + Send + 'static {
        let state = Arc::clone(&self.state);
        move || {
            let dir = state.dir.to_string_lossy();
            match state.reload() {
                Ok(reloaded) => reloaded.lines(&dir).iter().for_each(|line| messages::say(line)),
                Err(error) => {
                    let reason = messages::in_words(&error);
                    messages::warn(&format!("`{dir}` keeps its policy: {reason}"));
                }
            }
        }
    }

    /// The native directories are mounted in the view.
    pub(crate) fn native_is_mounted(&self) {
        self.state.view.mounts_are_made();
        self.state.native_is_mounted.store(true, Ordering::Release);
    }

    /// Ends the session from another thread.
    pub(crate) fn stopper(&self) -> tollgate_fuse::Stopper {
        self.running.stopper()
    }

    /// Waits until the view is unmounted, then closes everything; the reason in words.
    ///
    /// # Errors
    /// When the transport failed.
    pub(crate) fn wait(self) -> anyhow::Result<tollgate_fuse::Ended> {
        let Self { state, running, control, for_guest, passthrough: _ } = self;
        let ended = running.wait().context("the FUSE connection failed");
        drop((control, for_guest));
        state.queues.close();
        state.finish();
        ended
    }

    /// Ends the session now.
    pub(crate) fn finish(self) {
        self.running.stop();
        if let Err(error) = self.wait() {
            messages::warn(&messages::in_words(&error));
        }
    }
}

/// Says on standard error that io_uring, which was asked for, is not used.
fn tell_of_missing_rings(state: &State) {
    let report = state.connection.transport();
    if let Some(reason) = report.and_then(|report| report.uring_unavailable.as_ref()) {
        messages::warn(&format!("io_uring cannot be used, /dev/fuse serves: {reason}"));
    }
}

/// Says on standard error what the view does without; what is only slower not if `quiet`.
fn tell_what_is_missing(state: &State, no_passthrough: Option<&String>, quiet: bool) {
    let tell = |text: &str| {
        if !quiet {
            messages::note(text);
        }
    };
    if let Some(reason) = no_passthrough {
        tell(&format!(
            "not available: passthrough ({reason}); files are served by tollgate{}",
            state.broker.as_deref().map_or(broker::WOULD_HELP, |_| "")
        ));
    }
    for missing in state.snapshot().unavailable {
        if missing.feature == WRITING_SEALED {
            messages::warn(&only_reads_sealed(&state.dir, &missing.reason));
            continue;
        }
        tell(&escaped(&format!("not available: {} ({})", missing.feature, missing.reason)));
    }
}

/// What to do where the sealed files of DIR are not written here.
fn only_reads_sealed(dir: &Path, reason: &str) -> String {
    let (dir, reason) = (shown(dir), escaped(reason));
    let until = if reason == ANOTHER_WRITES {
        " until the other server has ended; `tollgate status` shows what is served"
    } else {
        ""
    };
    format!(
        "sealed files of `{dir}` can only be read here ({reason}): whoever writes gets `Read-only file \
         system`{until}"
    )
}

/// Registers a file of our own, to know before the first open whether the kernel lets us; a broker
/// is only called.
fn probe_passthrough(connection: &Connection) -> Result<(), String> {
    if !connection.has(InitFlags::PASSTHROUGH) {
        return Err("this kernel does not offer it; Linux 6.9 and later do".to_owned());
    }
    if connection.has_registrar() {
        return connection.reach_registrar().map_err(|error| error.to_string());
    }
    let file = rustix::fs::memfd_create("tollgate-probe", MemfdFlags::CLOEXEC);
    match file.map_err(Into::into).and_then(|file| connection.open_backing(file.as_fd())) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Err("registering a file with the kernel needs CAP_SYS_ADMIN".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A view without a control socket is still served.
fn start_control(state: &Arc<State>) -> Option<tollgate_control::Server> {
    let reporter: Arc<dyn control::Reporter> = state.clone();
    match control::serve(reporter) {
        Ok(control) => Some(control),
        Err(error) => {
            let reason = messages::in_words(&error.into());
            messages::warn(&format!("`tollgate status` will not show this server: {reason}"));
            None
        }
    }
}

fn start_for_guest(state: &Arc<State>, guest: &Guest) -> Option<tollgate_control::Server> {
    let reporter: Arc<dyn control::Reporter> = state.clone();
    match control::serve_guest(reporter, guest) {
        Ok(control) => Some(control),
        Err(error) => {
            let reason = messages::in_words(&error.into());
            messages::warn(&format!("`tollgate why` will not answer user {}: {reason}", guest.uid));
            None
        }
    }
}

fn start_metrics(state: &Arc<State>, port: u16) -> anyhow::Result<()> {
    let state = Arc::clone(state);
    let text = move || control::Reporter::metrics(&*state);
    let address = prometheus::serve(port, Arc::new(text))
        .with_context(|| format!("--metrics-port {port} cannot be listened at"))?;
    tracing::debug!("counters are served at http://{address}/metrics");
    Ok(())
}

fn not_viewed(error: OpenError, dir: &Path, origin: &Origin) -> anyhow::Error {
    let dir = dir.display();
    let is_view = matches!(origin, Origin::View { .. });
    let what = if is_view { format!("`[[view]]` of `{dir}`") } else { format!("DIR `{dir}`") };
    let remedy = match &error {
        OpenError::Watch(_) => " with `--watch on`; leave that out, or raise \
                                fs.fanotify.max_user_groups (EMFILE), or run as root (EPERM)"
            .to_owned(),
        // Also one without rules of its own protects the files of policies.
        OpenError::Caseless(_) if is_view => format!(
            " with its rules, and those that keep policy files; give it nothing but `default = \
             \"read-only\"`, or open it as a whole, `--allow {dir}:rw`, in place of the `[[view]]`"
        ),
        OpenError::Caseless(_) => " by a policy that tells names apart, as each does that refuses \
                                   something and lets something be made: it keeps policy files"
            .to_owned(),
        _ => String::new(),
    };
    anyhow::Error::new(error).context(format!("{what} cannot be viewed{remedy}"))
}
