//! What to serve, checked before anything is mounted or started.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::thread::CapabilitySet;
use serde_json::Value;
use tollgate_fuse::TransportChoice;
use tollgate_policy::Policy;
use tollgate_view::{AuditLevel, SmallFiles, Unavailable, WatchMode};

use super::common::{Common, DescriptorShare};
use super::{ServerKind, of_its_own};
use crate::audit::{AuditConfig, AuditLog, Origin, Recorder};
use crate::broker::{self, Broker};
use crate::cli::{AuditDetail, SandboxMode, ServeArgs, WatchArg};
use crate::control::{self, Guest};
use crate::escape::shown;
use crate::mountinfo;
use crate::native;
use crate::other_mounts;
use crate::other_paths;
use crate::policy_choice::{self, Chosen};
use crate::sandbox::{Duties, Places, Sandbox};
use crate::seal;
use crate::soft_limits::raise_file_size;
use crate::tree::Tree;

/// What to serve, checked before anything is mounted or started.
pub(crate) struct Spec {
    pub(super) kind: ServerKind,
    pub(super) dir: PathBuf,
    /// That directory where it was found, if it is served on a copy of its mount.
    pub(super) found: Option<OwnedFd>,
    pub(super) policy: Arc<Policy>,
    pub(super) policy_origin: policy_choice::Origin,
    pub(super) policy_was_named: bool,
    pub(super) seal_keys: Option<Arc<tollgate_view::SealKeys>>,
    /// `--read-only`.
    pub(super) is_read_only: bool,
    pub(super) audit: Option<AuditConfig>,
    pub(super) timeout: Duration,
    pub(super) watch: WatchMode,
    pub(super) small_files: SmallFiles,
    pub(super) threads: Option<usize>,
    pub(super) transport: TransportChoice,
    pub(super) max_descriptors: Option<usize>,
    pub(super) keep_awake: tollgate_haltpoll::Mode,
    pub(super) native: Vec<PathBuf>,
    pub(super) unavailable: Vec<Unavailable>,
    pub(super) metrics_port: Option<u16>,
    pub(super) broker: Option<Arc<Broker>>,
    pub(super) sandbox: SandboxMode,
    /// User and group of the namespace that it is mounted in, where that has no others.
    pub(super) only_ids: Option<(u32, u32)>,
    /// Says nothing of what is not available; `status` does.
    pub(super) quiet: bool,
    pub(super) outside: Option<Outside>,
    /// The directories of the further views that the same process serves (`[[view]]`).
    pub(super) further: Vec<PathBuf>,
    /// All that the policy has, as it has them.
    pub(super) further_named: Vec<String>,
    /// A directory, relative to this one, that another view of the process is mounted over.
    pub(super) covered: Option<PathBuf>,
    /// Directories of things that this process removes at its end.
    pub(super) removes_in: Vec<PathBuf>,
    /// Who is answered besides.
    pub(super) guest: Option<Guest>,
}

/// What holds for a path outside of DIR, as JSON.
pub(super) type Outside = Box<dyn Fn(&Path) -> Value + Send + Sync>;

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
        let audit = audit_config(args, tree, &policy_origin)?;
        let mut prepared = native::prepare(&policy, source)?;
        let mut unavailable = prepared.not_native;
        let (dir, to_mount) = (tree.path.as_path(), &mut prepared.to_mount);
        unavailable.extend(native::leave_out_mounted(dir, to_mount, &[dir]));
        unavailable.extend(other_paths::layers(tree, &policy));
        unavailable.extend(other_paths::beneath(tree, &policy));
        let seals = policy.seals();
        let seal_keys = seals.then(|| seal::keys_of(&tree.path, source, &args.seal)).transpose();
        let seal_keys = seal_keys.context("the policy has `seal` rules")?.map(Arc::new);
        Ok(Self {
            kind,
            seal_keys,
            is_read_only: false,
            dir: tree.path.clone(),
            native: prepared.to_mount,
            policy: Arc::new(policy),
            policy_origin,
            policy_was_named: args.policy.is_some(),
            audit,
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
            found: None,
            only_ids: (kind == ServerKind::Run).then(own_ids_alone).flatten(),
            quiet: false,
            outside: None,
            further: Vec::new(),
            further_named: Vec::new(),
            covered: None,
            removes_in: Vec::new(),
            guest: None,
        })
    }

    /// Checks where the audit log goes, as [`Spec::load`] and [`Spec::log_outside`] do, and prepares
    /// nothing.
    ///
    /// # Errors
    /// When it cannot lie there.
    pub(crate) fn check(
        args: &ServeArgs,
        tree: &Tree,
        policy: &policy_choice::Origin,
        mnt: &Path,
    ) -> anyhow::Result<()> {
        audit_config(args, tree, policy)?.map_or(Ok(()), |config| refuse_below(&config, mnt))
    }

    /// The same, unless the audit log would lie inside `mnt`: the server would wait for itself.
    ///
    /// # Errors
    /// When it would.
    pub(crate) fn log_outside(self, mnt: &Path) -> anyhow::Result<Self> {
        self.audit.as_ref().map_or(Ok(()), |config| refuse_below(config, mnt))?;
        Ok(self)
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
        raise_file_size();
        let sandbox = Sandbox::begin(self.sandbox, self.duties(), directories, &self.places())?;
        let policy = self.policy_origin.file();
        let origin = Origin::new(self.kind.word(), &self.dir, mount_point, policy.as_deref());
        let log = self.audit.take().map(|config| start_audit(config, origin)).transpose()?;
        Common::of(sandbox, Recorder::new(log), &self.dir, share, directories)
            .context("the directories of the policy cannot be looked at")
    }

    /// Gives the directory where it was found, if it is served on a copy of its mount.
    pub(crate) fn found_at(self, found: Option<OwnedFd>) -> Self {
        Self { found, ..self }
    }

    /// Says whether it is mounted read-only.
    pub(crate) fn read_only(self, is_read_only: bool) -> Self {
        Self { is_read_only, ..self }
    }

    /// Names the directories of the further views that the same process serves; as the policy has
    /// them, also those that it does not serve.
    pub(crate) fn with_further(self, further: Vec<PathBuf>, further_named: Vec<String>) -> Self {
        Self { further, further_named, ..self }
    }

    /// Has `covered`, relative to this directory, kept where it is for a view that is mounted over it.
    pub(crate) fn covering(self, covered: PathBuf) -> Self {
        Self { covered: Some(covered), ..self }
    }

    /// What a process serves once, another view of it does.
    pub(crate) fn beside_another(self) -> Self {
        Self { metrics_port: None, audit: None, ..self }
    }

    /// Has the view serve native directories that show files which the rules of `others` protect: by
    /// further names, or by mounts.
    pub(crate) fn leave_out_linked(&mut self, source: &OwnedFd, others: &[native::Beside<'_>]) {
        let left_out = native::leave_out_linked(source, &mut self.native, others);
        self.unavailable.extend(left_out);
        let directories: Vec<_> = others.iter().map(|other| other.dir).collect();
        let left_out = native::leave_out_mounted(&self.dir, &mut self.native, &directories);
        self.unavailable.extend(left_out);
    }

    /// Directories, relative to this one, that something is mounted over.
    pub(crate) fn mount_points(&self) -> Vec<PathBuf> {
        self.native.iter().chain(&self.covered).cloned().collect()
    }

    /// Those of them that another view is mounted over.
    pub(crate) fn covered(&self) -> Vec<PathBuf> {
        self.covered.iter().cloned().collect()
    }

    /// Answers questions about paths outside of DIR.
    pub(crate) fn with_outside(
        mut self,
        place: impl Fn(&Path) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.outside = Some(Box::new(place));
        self
    }

    /// The files of the audit log, those that were full included, there or not.
    pub(crate) fn log_files(&self) -> Vec<PathBuf> {
        self.audit.as_ref().map_or_else(Vec::new, AuditConfig::files)
    }

    /// The files that the policy is read from.
    pub(crate) fn policy_files(&self) -> Vec<&Path> {
        self.policy_origin.files()
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
            runs: self.kind == ServerKind::Run,
            // Until the sandbox has another process do that.
            looks: true,
            connects: self.broker.is_some(),
            listens: self.metrics_port.is_some(),
            rings: self.transport.may_use_uring(),
        }
    }

    /// The places outside of DIR that this process uses.
    fn places(&self) -> Places {
        let log = self.audit.as_ref().and_then(|audit| audit.path.parent());
        // It says why, if there is none, when it opens its socket.
        let own = control::directory();
        let own = own.prepare().is_ok().then(|| own.path().to_owned());
        let of_guests = self.guest.as_ref().map(|_| Guest::directory().to_owned());
        let sockets = own.into_iter().chain(of_guests).collect();
        Places { log: log.map(Path::to_owned), sockets, removes_in: self.removes_in.clone() }
    }

    /// Has the server answer one more user.
    pub(crate) fn answering(&mut self, guest: Guest) {
        self.guest = Some(guest);
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

/// Who may not mount, mounts in a user namespace of its own, which maps nobody else.
fn own_ids_alone() -> Option<(u32, u32)> {
    let sets = rustix::thread::capabilities(None).ok()?;
    let may_mount = sets.effective.contains(CapabilitySet::SYS_ADMIN);
    let own = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    (!may_mount).then(own)
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

fn audit_config(
    args: &ServeArgs,
    tree: &Tree,
    policy: &policy_choice::Origin,
) -> anyhow::Result<Option<AuditConfig>> {
    let Some(file) = args.audit.as_deref() else { return Ok(None) };
    let shown = file.display();
    let path = std::path::absolute(file).with_context(|| format!("audit file `{shown}`"))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        bail!("audit file `{shown}` names a directory");
    };
    let parent = std::fs::canonicalize(parent).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow!(
            "the directory of audit file `{shown}` does not exist{}; make it first: `mkdir -p {}`",
            crate::nearest::path(parent),
            crate::escape::word(parent)
        ),
        _ => anyhow!("the directory of audit file `{shown}` cannot be used: {error}"),
    })?;
    let level = match args.audit_level {
        AuditDetail::Refused => AuditLevel::Refused,
        AuditDetail::Opens => AuditLevel::Opens,
        AuditDetail::All => AuditLevel::All,
    };
    let (path, max_bytes) = (parent.join(name), args.audit_size << 20);
    let config = AuditConfig { path, level, max_bytes, keep: args.audit_keep };
    refuse_inside(&config, &tree.path)?;
    let read = of_its_own::read_ones(args, policy, &tree.path);
    config.files().iter().try_for_each(|file| of_its_own::refuse("audit", file, &read))?;
    Ok(Some(config))
}

/// Where the view will be mounted.
fn refuse_below(config: &AuditConfig, mnt: &Path) -> anyhow::Result<()> {
    config.files().iter().try_for_each(|file| of_its_own::refuse_below("audit", file, mnt))
}

/// By another mount, DIR can show the log although its path does not say so.
fn refuse_inside(config: &AuditConfig, dir: &Path) -> anyhow::Result<()> {
    let mounts = mountinfo::read()?;
    for file in config.files() {
        let Some(place) = other_mounts::paths_in(&mounts, dir, &file).into_iter().next() else {
            continue;
        };
        let by = if place == file { String::new() } else { format!(" (as `{}`)", shown(&place)) };
        let name = config.path.file_name().unwrap_or_default();
        bail!(
            "audit file `{}` lies inside DIR `{}`{by}, where what it watches could change it; name \
             one elsewhere, `~/{}` for instance",
            shown(&file),
            shown(dir),
            name.display()
        );
    }
    Ok(())
}

fn start_audit(config: AuditConfig, origin: Origin) -> anyhow::Result<AuditLog> {
    let shown = config.path.display().to_string();
    AuditLog::start(config, origin)
        .with_context(|| format!("audit file `{shown}` cannot be opened"))
}
