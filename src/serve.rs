//! A view with everything that serves it: session, audit log, control socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use rustix::fs::{MemfdFlags, StatVfsMountFlags};
use serde_json::{Value, json};
use tollgate_control::Peer;
use tollgate_fuse::{
    Connection, Device, InitFlags, MountOptions, Running, Session, TransportChoice,
};
use tollgate_haltpoll::KeepAwake;
use tollgate_policy::Policy;
use tollgate_view::{
    Config, OpenError, SmallFiles, Snapshot, Unavailable, View, WRITING_SEALED, WatchMode,
};

use crate::audit::{self, AuditConfig, AuditLog, Origin, Recorder};
use crate::broker::{self, Broker};
use crate::cli::{AuditDetail, SandboxMode, ServeArgs, WatchArg};
use crate::control;
use crate::files;
use crate::messages;
use crate::native;
use crate::other_paths;
use crate::policy_choice::{self, Chosen};
use crate::prometheus;
use crate::reload::Reloaded;
use crate::requests::{self, Operation as RequestsOf, Requests};
use crate::sandbox::{self, Duties, Places, Sandbox};
use crate::seal;
use crate::serve_common::{Common, DescriptorShare};
use crate::status::{self, Report};
use crate::tree::Tree;
use tollgate_view::AuditLevel;

/// Where the view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// Over DIR itself, for one command.
    Run,
    /// At a mount point.
    Mount,
}

impl ServerKind {
    fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Mount => "mount",
        }
    }
}

/// What to serve, checked before anything is mounted or started.
pub(crate) struct Spec {
    kind: ServerKind,
    dir: PathBuf,
    policy: Arc<Policy>,
    policy_origin: policy_choice::Origin,
    seal_keys: Option<Arc<tollgate_view::SealKeys>>,
    audit: Option<AuditConfig>,
    timeout: Duration,
    watch: WatchMode,
    small_files: SmallFiles,
    threads: Option<usize>,
    transport: TransportChoice,
    max_descriptors: Option<usize>,
    keep_awake: tollgate_haltpoll::Mode,
    native: Vec<PathBuf>,
    unavailable: Vec<Unavailable>,
    metrics_port: Option<u16>,
    broker: Option<Arc<Broker>>,
    sandbox: SandboxMode,
    /// Says nothing of what is not available; `status` does.
    quiet: bool,
    outside: Option<Outside>,
    /// The directories of the further views that the same process serves (`[[view]]`).
    further: Vec<PathBuf>,
    /// A directory, relative to this one, that another view of the process is mounted over.
    covered: Option<PathBuf>,
    /// Directories of things that this process removes at its end.
    removes_in: Vec<PathBuf>,
}

/// What holds for a path outside of DIR, as JSON.
type Outside = Box<dyn Fn(&Path) -> Value + Send + Sync>;

/// What to do where another server writes the sealed files of DIR.
fn only_reads_sealed(dir: &Path, reason: &str) -> String {
    format!(
        "sealed files of `{}` can only be read here ({reason}): whoever writes gets `Read-only file \
         system` until the other server has ended; `tollgate status` shows what is served",
        dir.display()
    )
}

/// A command that ends within this time is not held up by the end of a watch.
const SHORT_COMMAND: Duration = Duration::from_millis(200);

impl Spec {
    /// Checks where the audit log goes and prepares native directories.
    ///
    /// # Errors
    /// When a native directory cannot be used, or when the audit log would lie inside DIR.
    pub(crate) fn load(
        args: &ServeArgs,
        chosen: Chosen,
        tree: &Tree,
        source: &OwnedFd,
        kind: ServerKind,
    ) -> anyhow::Result<Self> {
        let Chosen { policy, origin: policy_origin } = chosen;
        let prepared = native::prepare(&policy, source)?;
        let mut unavailable = prepared.not_native;
        unavailable.extend(other_paths::layers(tree, &policy));
        let seals = policy.seals();
        let seal_keys = seals.then(|| seal::keys_of(&tree.path, source, &args.seal)).transpose();
        let seal_keys = seal_keys.context("the policy has `seal` rules")?.map(Arc::new);
        Ok(Self {
            kind,
            seal_keys,
            dir: tree.path.clone(),
            native: prepared.to_mount,
            policy: Arc::new(policy),
            policy_origin,
            audit: args.audit.as_deref().map(|file| audit_config(args, file, tree)).transpose()?,
            timeout: args.attr_timeout,
            watch: match args.watch {
                WatchArg::Auto => WatchMode::Auto,
                WatchArg::On => WatchMode::On,
                WatchArg::Off => WatchMode::Off,
            },
            small_files: small_files(args),
            threads: args.threads,
            transport: args.transport.into(),
            max_descriptors: args.max_descriptors,
            keep_awake: args.keep_awake.into(),
            unavailable,
            metrics_port: args.metrics_port,
            broker: broker::find(&args.broker).map(Arc::new),
            sandbox: args.sandbox,
            quiet: false,
            outside: None,
            further: Vec::new(),
            covered: None,
            removes_in: Vec::new(),
        })
    }

    /// Confines the process to `directories`, of this view and of the further ones.
    ///
    /// # Errors
    /// When it cannot be confined, the audit log cannot be opened, or so many descriptors cannot be
    /// had.
    pub(crate) fn common(
        &mut self,
        directories: &[BorrowedFd<'_>],
        mount_point: &Path,
    ) -> anyhow::Result<Common> {
        let share = DescriptorShare::of(self.max_descriptors, directories.len())?;
        let sandbox = Sandbox::begin(self.sandbox, self.duties(), directories, &self.places())?;
        let policy = self.policy_origin.file();
        let origin = Origin::new(self.kind.word(), &self.dir, mount_point, policy.as_deref());
        let log = self.audit.take().map(|config| start_audit(config, origin)).transpose()?;
        Ok(Common::of(sandbox, Recorder::new(log), &self.dir, share))
    }

    /// Names the directories of the further views that the same process serves.
    pub(crate) fn with_further(self, further: Vec<PathBuf>) -> Self {
        Self { further, ..self }
    }

    /// Has `covered`, relative to this directory, kept where it is for a view that is mounted over it.
    pub(crate) fn covering(self, covered: PathBuf) -> Self {
        Self { covered: Some(covered), ..self }
    }

    /// What a process serves once, another view of it does.
    pub(crate) fn beside_another(self) -> Self {
        Self { metrics_port: None, audit: None, ..self }
    }

    /// Directories, relative to this one, that something is mounted over.
    fn mount_points(&self) -> Vec<PathBuf> {
        self.native.iter().chain(&self.covered).cloned().collect()
    }

    /// Answers questions about paths outside of DIR.
    pub(crate) fn with_outside(
        mut self,
        place: impl Fn(&Path) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.outside = Some(Box::new(place));
        self
    }

    /// What it begins with; a `reload` may put another in force.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy)
    }

    /// Leaves out notes about what is not available.
    pub(crate) fn quietly_if(self, quiet: bool) -> Self {
        Self { quiet, ..self }
    }

    /// What this process does besides serving.
    fn duties(&self) -> Duties {
        Duties {
            kills: self.kind == ServerKind::Run,
            // Until the sandbox has another process do that.
            looks: true,
            connects: self.broker.is_some(),
            listens: self.metrics_port.is_some(),
            rings: self.transport == TransportChoice::Uring,
        }
    }

    /// The places outside of DIR that this process uses.
    fn places(&self) -> Places {
        let log = self.audit.as_ref().and_then(|audit| audit.path.parent());
        // It says why, if there is none, when it opens its socket.
        let sockets = control::directory();
        let sockets = sockets.prepare().is_ok().then(|| sockets.path().to_owned());
        Places { log: log.map(Path::to_owned), sockets, removes_in: self.removes_in.clone() }
    }

    /// Names directories of things that this process removes at its end.
    pub(crate) fn removing_in(mut self, directories: Vec<PathBuf>) -> Self {
        self.removes_in = directories;
        self
    }

    /// Paths, relative to DIR, of the directories to mount natively.
    pub(crate) fn native(&self) -> &[PathBuf] {
        &self.native
    }

    /// Has the view serve native directories like everything else where this process may not
    /// mount.
    pub(crate) fn without_native_unless_permitted(mut self, source: &OwnedFd) -> Self {
        if !self.native.is_empty() && !native::is_permitted(source) {
            self.native.clear();
            self.unavailable.push(Unavailable {
                feature: "native".into(),
                reason: "mounting needs CAP_SYS_ADMIN; native directories are served by tollgate"
                    .into(),
            });
        }
        self
    }
}

/// A server that may not register files itself serves those that it may only read, and those that
/// no broker registers, from the view's page cache anyway. With small files in it, too, an open of
/// one costs neither a call of the broker nor a READ. What changes behind the view is seen as
/// late as before: with the next open, or within about a second.
fn small_files(args: &ServeArgs) -> SmallFiles {
    match args.small_files.into() {
        SmallFiles::Auto if !broker::may_register() => SmallFiles::Cached,
        chosen => chosen,
    }
}

fn audit_config(args: &ServeArgs, file: &Path, tree: &Tree) -> anyhow::Result<AuditConfig> {
    let shown = file.display();
    let path = std::path::absolute(file).with_context(|| format!("audit file `{shown}`"))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        bail!("audit file `{shown}` names a directory");
    };
    let parent = std::fs::canonicalize(parent)
        .with_context(|| format!("the directory of audit file `{shown}` cannot be used"))?;
    if parent.starts_with(&tree.path) {
        bail!(
            "audit file `{shown}` lies inside DIR `{}`, where what it watches could change it",
            tree.path.display()
        );
    }
    let level = match args.audit_level {
        AuditDetail::Refused => AuditLevel::Refused,
        AuditDetail::Opens => AuditLevel::Opens,
        AuditDetail::All => AuditLevel::All,
    };
    let max_bytes = args.audit_size << 20;
    Ok(AuditConfig { path: parent.join(name), level, max_bytes, keep: args.audit_keep })
}

/// How a view of `tree` is mounted: never with set-user-id programs or devices, and not more freely
/// than the file system beneath.
pub(crate) fn mount_options(tree: &Tree) -> anyhow::Result<MountOptions> {
    let lower = rustix::fs::statvfs(&tree.path).context("statvfs")?.f_flag;
    Ok(MountOptions {
        allow_other: rustix::process::geteuid().is_root(),
        read_only: lower.contains(StatVfsMountFlags::RDONLY),
        noexec: lower.contains(StatVfsMountFlags::NOEXEC),
        ..MountOptions::default()
    })
}

/// Mounts a new connection over the directory `place`, in the mount namespace of the caller.
///
/// # Errors
/// When /dev/fuse cannot be opened or the kernel refuses the mount.
pub(crate) fn mount_over(
    place: &OwnedFd,
    tree: &Tree,
    options: &MountOptions,
) -> anyhow::Result<Device> {
    let device = open_device()?;
    let options = MountOptions { allow_other: true, ..options.clone() };
    let path = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    tollgate_fuse::mount_device(&device, &path, &options)
        .with_context(|| format!("cannot mount the view over `{}`", tree.path.display()))?;
    Ok(device)
}

/// Opens /dev/fuse.
///
/// # Errors
/// With what to do about it.
pub(crate) fn open_device() -> anyhow::Result<Device> {
    Device::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => anyhow::anyhow!(
            "/dev/fuse is not there: load the kernel module (`modprobe fuse`), or give this \
             container the device"
        ),
        Some(libc::EACCES | libc::EPERM) => anyhow::anyhow!(
            "/dev/fuse may not be opened by this user: run as root, or have it made accessible \
             (`chmod 666 /dev/fuse`, or the group that owns it)"
        ),
        _ => anyhow::anyhow!("/dev/fuse cannot be opened: {error}"),
    })
}

/// A view that is being served.
#[derive(Debug)]
pub(crate) struct Server {
    state: Arc<State>,
    running: Running,
    control: Option<tollgate_control::Server>,
    /// The socket of the work queues, if the view has any from the start.
    work_queues: Option<tollgate_control::Server>,
    passthrough: bool,
}

struct State {
    kind: ServerKind,
    dir: PathBuf,
    mount_point: PathBuf,
    policy_file: Option<PathBuf>,
    policy_origin: policy_choice::Origin,
    native: Vec<PathBuf>,
    /// From now on a native directory that is not mounted has lost its mount.
    native_is_mounted: AtomicBool,
    unavailable: Vec<Unavailable>,
    /// Of the connection in /sys/fs/fuse, where it is known.
    connection_number: Option<u32>,
    clock: Instant,
    started: SystemTime,
    view: Arc<View>,
    connection: Connection,
    recorder: Arc<Recorder>,
    keep_awake: Arc<KeepAwake>,
    broker: Option<Arc<Broker>>,
    sandbox: Arc<Sandbox>,
    /// The one in force.
    policy: Mutex<Arc<Policy>>,
    outside: Option<Outside>,
    further: Vec<PathBuf>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("mount_point", &self.mount_point).finish_non_exhaustive()
    }
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
            mount_points: spec.mount_points(),
            on_search: Some(messages::searching),
            seal_keys: spec.seal_keys,
            callers: sandbox.callers(),
            audit: Some(Arc::clone(&recorder) as Arc<dyn tollgate_view::Audit>),
        };
        let view = View::open(source, config).map_err(|error| not_viewed(error, &spec.dir))?;
        let mut session_config = view.session_config(spec.threads);
        let keep_awake = common.keep_awake(spec.keep_awake);
        session_config.keep_awake = Some(Arc::clone(&keep_awake));
        session_config.transport = spec.transport;
        session_config.registrar = spec.broker.clone().map(|broker| broker as Arc<_>);
        let view = Arc::new(view);
        let running = Session::new(device.into(), view.clone(), session_config)
            .start()
            .context("the FUSE connection cannot be started")?;
        let state = Arc::new(State {
            kind: spec.kind,
            dir: spec.dir,
            mount_point: mount_point.to_owned(),
            policy_file,
            policy_origin: spec.policy_origin,
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
        });
        let passthrough = probe_passthrough(&state.connection);
        let tell = |text: &str| {
            if !spec.quiet {
                messages::note(text);
            }
        };
        if let Err(reason) = &passthrough {
            tell(&format!(
                "not available: passthrough ({reason}); files are served by tollgate{}",
                state.broker.as_deref().map_or(broker::WOULD_HELP, |_| "")
            ));
        }
        let report = state.connection.transport();
        if let Some(reason) = report.and_then(|report| report.uring_unavailable.as_ref()) {
            messages::warn(&format!("io_uring cannot be used, /dev/fuse serves: {reason}"));
        }
        for missing in state.snapshot().unavailable {
            if missing.feature == WRITING_SEALED {
                messages::warn(&only_reads_sealed(&state.dir, &missing.reason));
                continue;
            }
            tell(&format!("not available: {} ({})", missing.feature, missing.reason));
        }
        let control = start_control(&state);
        if let Some(port) = spec.metrics_port {
            start_metrics(&state, port)?;
        }
        let work_queues = state.view.work_queues().and_then(serve_work_queues);
        Ok(Self { state, running, control, work_queues, passthrough: passthrough.is_ok() })
    }

    /// Gives up the system calls that serving does not need. When all that is done once is done.
    pub(crate) fn complete_sandbox(&self) {
        self.state.sandbox.complete();
    }

    /// Whether the kernel reads and writes files directly.
    pub(crate) fn has_passthrough(&self) -> bool {
        self.passthrough
    }

    /// One line about what is served.
    pub(crate) fn summary(&self) -> String {
        let how = match (self.passthrough, &self.state.broker) {
            (false, _) => "user space only",
            (true, None) => "kernel passthrough",
            (true, Some(_)) => "kernel passthrough by the broker",
        };
        let (dir, at) = (self.state.dir.display(), self.state.mount_point.display());
        let queues = self.state.connection.queues();
        let threads = if queues == 1 { "1 thread".to_owned() } else { format!("{queues} threads") };
        format!("ready: `{dir}` at `{at}`, {how}, {threads}")
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
        let Self { state, running, control, work_queues, passthrough: _ } = self;
        let ended = running.wait().context("the FUSE connection failed");
        drop((control, work_queues));
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

impl State {
    fn finish(&self) {
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
    fn reload(&self) -> anyhow::Result<Reloaded> {
        let file = self.policy_file.as_deref();
        let file = file.context("it was started without a policy file")?;
        // What a confined server could not read would be taken for empty.
        files::take_out_of_reach();
        let (policy, warnings) = self.policy_origin.read_again(&self.dir)?;
        if let Some(file) = files::take_out_of_reach() {
            bail!(
                "`{}` cannot be read, as it was not read at the start; end the view and start it again",
                file.display()
            );
        }
        let policy = Arc::new(policy);
        let changed = self.view.replace_policy(Arc::clone(&policy))?;
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy;
        if let Some(log) = self.recorder.log() {
            log.policy_changed(audit::digest_of(file, &self.dir));
        }
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        Ok(Reloaded {
            policy: file.to_string_lossy().into_owned(),
            warnings,
            open: changed.open,
            not_revoked: changed.not_revoked,
            still_open: changed.still_open.iter().map(text).collect(),
        })
    }

    /// The view's state, and what this server has to do without.
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.view.snapshot();
        snapshot.unavailable.extend(self.unavailable.iter().cloned());
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

    /// The native directories that are mounted, and those that are no more. Those of a `run` are in
    /// a mount namespace that the server does not see.
    fn native_now(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        match self.kind {
            ServerKind::Mount if self.native_is_mounted.load(Ordering::Acquire) => {
                native::still_mounted(&self.mount_point, &self.native)
            }
            _ => (self.native.clone(), Vec::new()),
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
            mount_point: self.mount_point.to_string_lossy().into_owned(),
            uptime_ns: u64::try_from(elapsed).unwrap_or(u64::MAX),
            waiting: self.connection_number.and_then(requests::waiting),
            operations: self.connection.latencies().iter().map(RequestsOf::of).collect(),
            threads: requests::threads(),
            busiest: audit.map(AuditLog::busiest),
        }
    }

    fn report(&self) -> Report {
        Report {
            version: status::VERSION,
            pid: std::process::id(),
            kind: self.kind.word(),
            dir: self.dir.to_string_lossy().into_owned(),
            mount_point: self.mount_point.to_string_lossy().into_owned(),
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

    fn requests(&self, peer: &Peer) -> Value {
        in_json(&self.requests(is_in_own_pid_namespace(peer)))
    }

    fn metrics(&self) -> String {
        prometheus::text(&self.requests(false))
    }

    fn why(&self, about: &control::About) -> Value {
        let policy = Arc::clone(&self.policy.lock().unwrap_or_else(PoisonError::into_inner));
        let inside = about.path.strip_prefix(&self.dir).ok();
        let inside = inside.map(|inside| crate::why::in_dir(&policy, inside, about));
        let outside = self.outside.as_ref().map(|place| place(&about.path));
        let further: Vec<_> = self.further.iter().map(|dir| dir.to_string_lossy()).collect();
        json!({
            "dir": self.dir.to_string_lossy(),
            "connection": self.connection_number,
            "why": inside,
            "outside": outside,
            "further": further,
        })
    }

    fn reload(&self, peer: &Peer) -> Value {
        let result = if is_in_own_pid_namespace(peer) {
            State::reload(self)
        } else {
            Err(anyhow::anyhow!("a process of another pid namespace cannot have it reloaded"))
        };
        match result {
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

/// Paths that others use through the view are not for CMD of a `run`, nor for a container.
fn is_in_own_pid_namespace(peer: &Peer) -> bool {
    if let Some(looker) = sandbox::looker() {
        return peer.pid.is_some_and(|pid| looker.is_in_own_pid_namespace(pid));
    }
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let theirs = peer.pid.and_then(|pid| namespace(&pid.to_string()));
    theirs.is_some() && theirs == namespace("self")
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

fn start_audit(config: AuditConfig, origin: Origin) -> anyhow::Result<AuditLog> {
    let shown = config.path.display().to_string();
    AuditLog::start(config, origin)
        .with_context(|| format!("audit file `{shown}` cannot be opened"))
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

/// For `tollgate wq`. Without it files are still redacted and sealed.
fn serve_work_queues(runtime: &tollgate_workqueue::Runtime) -> Option<tollgate_control::Server> {
    match tollgate_workqueue::control::serve(runtime, &control::directory()) {
        Ok(server) => Some(server),
        Err(error) => {
            let reason = messages::in_words(&error.into());
            messages::warn(&format!("`tollgate wq` will not show this server: {reason}"));
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

fn not_viewed(error: OpenError, dir: &Path) -> anyhow::Error {
    let remedy = match error {
        OpenError::Watch(_) => " with `--watch on`; leave that out, or run as root",
        _ => "",
    };
    let dir = dir.display();
    anyhow::Error::new(error).context(format!("DIR `{dir}` cannot be viewed{remedy}"))
}
