//! `tollgate mount`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tollgate_fuse::{Ended, MountOptions, Stopper};

use crate::cli::MountArgs;
use crate::daemon::{self, ReadyPipe, Side};
use crate::messages;
use crate::policy_choice::Origin;
use crate::sandbox::{Mounter, NotUnmounted};
use crate::serve::of_its_own::{self, Used};
use crate::serve::{self, Server, ServerKind, Spec};
use crate::sys::{self, SignalFd};
use crate::tree::Tree;
use crate::{
    control, escape, inherited, killed, mount_flags, mountinfo, policy_choice, policy_views, tree,
    umount,
};

/// Signals that end the server; SIGHUP from a process has it read its policy again.
const HANDLED: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// How long the end of a server that was unmounted may take before it says what it waits for.
const AFTER_UNMOUNT: Duration = Duration::from_secs(1);

/// Mounts a view and serves it until it is unmounted or a signal arrives.
///
/// # Errors
/// Everything that keeps the view from being served; with `--daemon`, of the server in the
/// background.
pub(crate) fn run(args: &MountArgs) -> anyhow::Result<()> {
    mount_flags::check(&args.flags)?;
    if !args.fake {
        killed::end_connections();
    }
    let (tree, found) = tree::open(&args.dir)?;
    let (source, found) = match mount_flags::restricted(&args.flags, &found)? {
        Some(copy) => (copy, Some(found)),
        None => (found, None),
    };
    let (mnt, replaces) = place(args, &tree)?;
    refuse_circle(&mnt, &tree.path)?;
    let origin = policy_choice::find(args.serve.policy.as_deref(), &tree.path, None)?;
    let (origin, views) = one_of_its_views(origin, args.serve.policy.is_some(), &tree.path)?;
    let chosen = policy_choice::load(origin, &tree.path)?;
    if args.fake {
        return Spec::check(&args.serve, &tree, &chosen.origin, &mnt);
    }
    let used = of_its_own::read_ones(&args.serve, &chosen.origin, &tree.path);
    let spec = Spec::load(&args.serve, chosen, &tree, &source, ServerKind::Mount)?
        .log_outside(&mnt)?
        .with_further(Vec::new(), views)
        .found_at(found)
        .read_only(args.flags.read_only)
        .without_native_unless_permitted(&source);
    let mut options = serve::mount_options(&tree)?;
    mount_flags::apply(&args.flags, &mut options);
    if replaces {
        messages::note(&format!(
            "MNT `{}` was left by a dead server; the new view takes its place",
            escape::shown(&args.mnt)
        ));
    }
    let view = View { source, mnt, replaces, spec, options };
    if !args.daemon {
        return view.serve(None);
    }
    if let Some(log) = &args.log {
        refuse_used(log, &view, &used)?;
    }
    match daemon::split(args.log.as_deref())? {
        Side::Starter => Ok(()),
        Side::Server(ready) => view.serve(Some(ready)),
    }
}

/// What the server says would end up in a file that it reads, or among the records of the audit log, or
/// where nobody sees it while the view is there.
fn refuse_used(log: &Path, view: &View, used: &Used) -> anyhow::Result<()> {
    of_its_own::refuse("log", log, used)?;
    let audit = view.spec.log_files().into_iter();
    of_its_own::refuse("log", log, &audit.map(|file| (file, "the audit log is")).collect())?;
    of_its_own::refuse_below("log", log, &view.mnt)
}

/// MNT without symbolic links, where the view can be mounted, and whether in the place of one that a
/// dead server left. A fake mount is also for what is mounted already.
fn place(args: &MountArgs, tree: &Tree) -> anyhow::Result<(PathBuf, bool)> {
    if !args.fake {
        if let Some(mnt) = umount::dead_view(&args.mnt)? {
            tree::refuse_around(&args.mnt, &mnt, tree)?;
            return Ok((mnt, true));
        }
    } else if let Ok(mnt) = std::fs::canonicalize(&args.mnt)
        && mountinfo::at(&mountinfo::read()?, &mnt).is_some_and(|at| at.kind == mountinfo::VIEW)
    {
        return Ok((mnt, false));
    }
    Ok((tree::check_mount_point(&args.mnt, tree)?, false))
}

/// A view that is mounted shows one directory: DIR, or one that has a `[[view]]`, by the rules of
/// that. Also returns the directories of all that the policy has.
fn one_of_its_views(
    origin: Origin,
    was_named: bool,
    dir: &Path,
) -> anyhow::Result<(Origin, Vec<String>)> {
    let home = std::env::home_dir();
    let further = policy_views::of(&origin, was_named, dir, home.as_deref())?;
    if let Some(first) = further.first()
        && !policy_views::is_among(&further, dir)
    {
        messages::warn(&format!(
            "{}: all of a policy's directories show under `tollgate run`; `mount` shows DIR alone, \
             and each other one if it is mounted itself: `tollgate mount --policy POLICY {} MNT`",
            first.place(),
            escape::word(&first.dir)
        ));
    }
    Ok((policy_views::of_directory(origin, dir)?, policy_views::named(&further)))
}

/// Views that are looked through, one over the other.
const MAX_VIEWS: usize = 16;

/// Where DIR lies in a view of ours, MNT must not lie in what that one shows: each of the two servers
/// would wait for the other, and whoever looks there for both.
fn refuse_circle(mnt: &Path, dir: &Path) -> anyhow::Result<()> {
    let mounts = mountinfo::read()?;
    let mut reports = None;
    let mut shown = dir.to_owned();
    for _ in 0..MAX_VIEWS {
        let covering = mountinfo::covering(&mounts, &shown);
        let Some(view) = covering.filter(|mount| mount.kind == mountinfo::VIEW) else { break };
        let reports = reports.get_or_insert_with(|| control::reports().unwrap_or_default());
        let word = |report: &serde_json::Value, key: &str| report[key].as_str().map(PathBuf::from);
        let is_here =
            |one: &&serde_json::Value| word(one, "mount_point").as_ref() == Some(&view.point);
        let Some(beneath) = reports.iter().find(is_here).and_then(|one| word(one, "dir")) else {
            break;
        };
        if mnt.starts_with(&beneath) {
            bail!(
                "MNT `{}` lies in `{}`, which DIR `{}` shows through another view, so the view would \
                 contain itself; name a directory elsewhere",
                escape::shown(mnt),
                escape::shown(&beneath),
                escape::shown(dir)
            );
        }
        shown = beneath;
    }
    Ok(())
}

struct View {
    source: OwnedFd,
    mnt: PathBuf,
    /// A dead server left a view there.
    replaces: bool,
    spec: Spec,
    options: MountOptions,
}

impl View {
    fn serve(self, ready: Option<ReadyPipe>) -> anyhow::Result<()> {
        let mnt = self.mnt.clone();
        let server = match self.start() {
            Ok(server) => server,
            Err(error) => {
                let Some(ready) = ready else { return Err(error) };
                ready.failed(&error);
                // The starter shows it; a log file has it, too.
                return Err(error);
            }
        };
        daemon::notify_manager();
        server.complete_sandbox();
        messages::say(&server.summary());
        if let Some(ready) = ready {
            ready.ready();
        }
        let ended = server.wait()?;
        say_how_it_ended(ended, &mnt);
        Ok(())
    }

    fn start(self) -> anyhow::Result<Server> {
        // Before the first thread, so that no thread is ended by them.
        let handled = Handled::of_this_process();
        sys::block_signals(&handled.signals).context("cannot block signals")?;
        let signals = SignalFd::new(&handled.signals).context("cannot read signals")?;
        // Dropped on the way out of an error, the guard unmounts, and so does the mounter.
        let (device, guard) = match self.replaces {
            true => tollgate_fuse::replace_stale(&self.mnt, &self.options)?,
            false => tollgate_fuse::mount::mount(&self.mnt, &self.options)?,
        };
        let lower = self.source.try_clone().context("cannot copy a descriptor")?;
        // In the sandbox, this process can neither mount nor unmount.
        let mounter = Mounter::start(lower, &self.mnt, self.spec.native())?;
        let mnt = guard.keep();
        let number = connection_number(&self.mnt);
        let server = Server::start(self.spec, self.source, device, &self.mnt, number)?;
        mounter.mount_native()?;
        server.native_is_mounted();
        let mounter = mounter.keep();
        let (stopper, reload) = (server.stopper(), server.reloader());
        std::thread::Builder::new()
            .name("tollgate-signal".to_owned())
            .spawn(move || {
                let next = || wait_for_end(&signals, &handled, &reload);
                end_on_signal(&signals, &mnt, &mounter, &stopper, &next);
            })
            .context("cannot start the signal thread")?;
        Ok(server)
    }
}

/// The signals that the server reads, of [`HANDLED`]. The kernel has them read also where they are ignored,
/// as they are blocked.
struct Handled {
    signals: Vec<libc::c_int>,
    /// The caller ignored SIGHUP, as nohup(1) does.
    outlives_terminal: bool,
}

impl Handled {
    /// A shell has a job that it starts in the background of a script ignore SIGINT.
    fn of_this_process() -> Self {
        let is_left_out = |signal| signal == libc::SIGINT && inherited::is_ignored(signal);
        Self {
            signals: HANDLED.into_iter().filter(|signal| !is_left_out(*signal)).collect(),
            outlives_terminal: inherited::is_ignored(libc::SIGHUP),
        }
    }
}

/// Of the view at `mnt`, in /sys/fs/fuse.
fn connection_number(mnt: &Path) -> Option<u32> {
    let mounts = mountinfo::read().ok()?;
    mountinfo::at(&mounts, mnt)?.minor_number()
}

/// The first signal unmounts; while the view is in use, or shown in another mount namespace, the
/// second one ends the server all the same.
fn end_on_signal(
    signals: &SignalFd,
    mnt: &Path,
    mounter: &Mounter,
    stopper: &Stopper,
    next: &impl Fn() -> bool,
) {
    if !next() {
        return;
    }
    match mounter.unmount(false) {
        // The process ends within this time, unless a copy of the mount keeps the view alive.
        Ok(()) if sys::readable_within(signals, AFTER_UNMOUNT).unwrap_or(true) => {}
        Ok(()) => messages::note(&format!(
            "`{}` is unmounted here; another mount namespace (of a container, or of a `tollgate \
             run` that started meanwhile) still shows it, so it is served until that ends; a \
             second signal ends it now",
            escape::shown(mnt)
        )),
        // So it does if whoever unmounted the view did so a moment ago.
        Err(NotUnmounted::NotSeen(reason)) => {
            if !sys::readable_within(signals, AFTER_UNMOUNT).unwrap_or(true) {
                say_not_seen(&reason);
            }
        }
        Err(error) => {
            match error {
                NotUnmounted::Failed(reason) => messages::warn(&reason),
                _ => messages::note(&format!(
                    "`{}` is in use; it is detached and served until it is closed; a second \
                     signal ends it now",
                    escape::shown(mnt)
                )),
            }
            match mounter.unmount(true) {
                Err(NotUnmounted::NotSeen(reason)) => say_not_seen(&reason),
                Err(NotUnmounted::Failed(reason)) => messages::warn(&reason),
                Ok(()) | Err(NotUnmounted::Busy) => {}
            }
        }
    }
    if next() {
        stopper.stop();
    }
}

/// Says why the first signal unmounts nothing.
fn say_not_seen(reason: &str) {
    messages::note(&format!(
        "{reason}; it is served until nobody uses it; a second signal ends it now"
    ));
}

/// Reloads until a signal says that it is over; false when signals cannot be read.
fn wait_for_end(signals: &SignalFd, handled: &Handled, reload: &impl Fn()) -> bool {
    loop {
        match signals.read() {
            // A terminal that goes away sends it as well, but by the kernel.
            Ok(arrived) if arrived.signal == libc::SIGHUP && arrived.by_process => reload(),
            Ok(arrived) if arrived.signal == libc::SIGHUP && handled.outlives_terminal => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

fn say_how_it_ended(ended: Ended, mnt: &Path) {
    let (command, mnt) = (format!("tollgate umount {}", escape::word(mnt)), escape::shown(mnt));
    match ended {
        Ended::Unmounted => messages::say(&format!("`{mnt}` is unmounted")),
        Ended::Aborted => messages::warn(&format!(
            "the connection of `{mnt}` was aborted; clean up with `{command}`"
        )),
        Ended::Stopped => messages::say(&format!("`{mnt}` is no longer served")),
    }
}
