//! `tollgate mount`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use tollgate_fuse::{Ended, MountError, Stopper};

use crate::cli::MountArgs;
use crate::daemon::{self, ReadyPipe, Side};
use crate::messages;
use crate::serve::{self, Server, ServerKind, Spec};
use crate::sys::{self, SignalFd};
use crate::tree::{self, Tree};
use crate::{mountinfo, native, umount};

/// Signals that end the server.
const ENDING: &[libc::c_int] = &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Mounts a view and serves it until it is unmounted or a signal arrives.
///
/// # Errors
/// Everything that keeps the view from being served; with `--daemon`, of the server in the
/// background.
pub(crate) fn run(args: &MountArgs) -> anyhow::Result<()> {
    let (tree, source) = tree::open(&args.dir)?;
    clean_leftover(&args.mnt)?;
    let mnt = tree::check_mount_point(&args.mnt, &tree)?;
    let spec = Spec::load(&args.serve, &tree, &source, ServerKind::Mount)?
        .without_native_unless_permitted(&source);
    if !args.daemon {
        return View { tree, source, mnt, spec }.serve(None);
    }
    match daemon::split(args.log.as_deref())? {
        Side::Starter => Ok(()),
        Side::Server(ready) => View { tree, source, mnt, spec }.serve(Some(ready)),
    }
}

fn clean_leftover(mnt: &Path) -> anyhow::Result<()> {
    let cleaned = umount::clean_dead(mnt).with_context(|| {
        format!("MNT `{}` was left by a dead server and cannot be cleaned up", mnt.display())
    })?;
    if cleaned {
        messages::note(&format!("MNT `{}` was left by a dead server; cleaned up", mnt.display()));
    }
    Ok(())
}

struct View {
    tree: Tree,
    source: OwnedFd,
    mnt: PathBuf,
    spec: Spec,
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
        messages::say(&server.summary());
        daemon::notify_manager();
        if let Some(ready) = ready {
            ready.ready();
        }
        let ended = server.wait()?;
        say_how_it_ended(ended, &mnt);
        Ok(())
    }

    fn start(self) -> anyhow::Result<Server> {
        // Before the first thread, so that no thread is ended by them.
        sys::block_signals(ENDING).context("cannot block signals")?;
        let signals = SignalFd::new(ENDING).context("cannot read signals")?;
        let options = serve::mount_options(&self.tree)?;
        // Dropped on the way out of an error, the guard unmounts.
        let (device, guard) = tollgate_fuse::mount::mount(&self.mnt, &options)?;
        let lower = self.source.try_clone().context("cannot copy a descriptor")?;
        let native = self.spec.native().to_vec();
        let number = connection_number(&self.mnt);
        let server = Server::start(self.spec, self.source, device, &self.mnt, number)?;
        mount_native(&lower, &self.mnt, &native)?;
        drop(lower);
        let mnt = guard.keep();
        let stopper = server.stopper();
        std::thread::Builder::new()
            .name("tollgate-signal".to_owned())
            .spawn(move || end_on_signal(&signals, &mnt, &native, &stopper))
            .context("cannot start the signal thread")?;
        Ok(server)
    }
}

/// Of the view at `mnt`, in /sys/fs/fuse.
fn connection_number(mnt: &Path) -> Option<u32> {
    let mounts = mountinfo::read().ok()?;
    mountinfo::at(&mounts, mnt)?.minor_number()
}

fn mount_native(lower: &OwnedFd, mnt: &Path, native: &[PathBuf]) -> anyhow::Result<()> {
    if native.is_empty() {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let view = rustix::fs::open(mnt, flags, Mode::empty()).context("cannot open the view")?;
    native::mount(lower, &view, native)
}

/// The first signal unmounts; while the view is in use, the second one ends the server all the
/// same.
fn end_on_signal(signals: &SignalFd, mnt: &Path, native: &[PathBuf], stopper: &Stopper) {
    let Ok(_) = signals.read() else { return };
    match native::unmount_view(mnt, native, false) {
        Ok(()) => return,
        Err(MountError::Busy { .. }) => messages::note(&format!(
            "`{}` is in use; it is detached and served until it is closed; a second signal ends it \
             now",
            mnt.display()
        )),
        Err(error) => messages::warn(&messages::in_words(&error.into())),
    }
    if let Err(error) = native::unmount_view(mnt, native, true) {
        messages::warn(&messages::in_words(&error.into()));
    }
    let _ = signals.read();
    stopper.stop();
}

fn say_how_it_ended(ended: Ended, mnt: &Path) {
    let mnt = mnt.display();
    match ended {
        Ended::Unmounted => messages::say(&format!("`{mnt}` is unmounted")),
        Ended::Aborted => messages::warn(&format!(
            "the connection of `{mnt}` was aborted; clean up with `tollgate umount {mnt}`"
        )),
        Ended::Stopped => messages::say(&format!("`{mnt}` is no longer served")),
    }
}
