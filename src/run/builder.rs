//! The builder: makes the mount namespace in which CMD will live, and the process that holds it.
//!
//! ```text
//! tollgate (server)    outside; holds the raw tree's descriptor and /dev/fuse
//! ├─ builder           new mount namespace (without privilege: new user namespace first);
//! │                    mounts the view over DIR, hands /dev/fuse out, ends
//! └─ init              first process of a new pid namespace; then a second user and mount
//!    │                 namespace, in which every mount is locked; dies with the server
//!    └─ CMD            everything it starts dies with init
//! ```
//!
//! The kernel locks the mounts that a mount namespace inherits from a more privileged one
//! (`MNT_LOCKED`): CMD holds every capability at most in the second user namespace, so it cannot
//! unmount, move or look beneath the view, whatever its user id.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::process::Pid;
use tollgate_fuse::MountOptions;

use super::fence::Built;
use super::plan::Plan;
use super::privilege::enter_mount_namespace;
use super::signals::die_with_parent;
use super::views::Shown;
use super::wire::{Channel, Message};
use super::{aliases, fence, init, session};
use crate::escape::shown;
use crate::mountinfo::MountInfo;
use crate::sys::{self, Forked};
use crate::{messages, mountinfo, native, serve, tree};

/// The builder: runs in the child of a fork, and never returns.
pub(super) fn run(plan: &Plan, channel: &Channel) -> ! {
    if let Err(error) = build_view(plan, channel) {
        // If the server is gone, the reason does not matter.
        let _ = channel.send(&Message::Failed(messages::in_words(&error)), None);
        sys::exit_now(1);
    }
    sys::exit_now(0)
}

fn build_view(plan: &Plan, channel: &Channel) -> anyhow::Result<()> {
    // The raw tree's descriptor must not get into CMD's reach.
    sys::close_all_but(channel).context("cannot close inherited descriptors")?;
    die_with_parent()?;
    rustix::process::chdir("/").context("cannot change to `/`")?;
    let privilege = enter_mount_namespace()?;
    plan.limits.enter()?;
    if let Some(listener) = plan.network.enter()? {
        channel.send(&Message::Listener, Some(listener.as_fd()))?;
    }
    let views = cover(plan, channel)?;
    // A mount of its own, which stays writable: the id maps of init are written there.
    let proc = native::detached_copy(&open_path("/proc")?).context("cannot keep /proc")?;
    let built = build_fence(plan, &views)?;
    ensure!(
        !plan.start.whole_fence || built.warnings.is_empty(),
        "--require fence: {}",
        built.warnings.join("; ")
    );
    for warning in &built.warnings {
        channel.send(&Message::Warning(warning.clone()), None)?;
    }
    let outer = plan.is_session.then(session::user).transpose()?;
    let (mut own_end, init_end) = UnixStream::pair().context("cannot make a socket pair")?;
    match sys::fork_sibling_in_pid_namespace().context("cannot enter a new pid namespace")? {
        Forked::Child => {
            drop((own_end, proc));
            init::run(plan, channel, privilege, built, (init_end, outer))
        }
        Forked::Parent(init) => {
            drop(init_end);
            // An end without the number: init failed, and has reported why itself.
            let mut shown_as = [0; 4];
            if own_end.read_exact(&mut shown_as).is_ok() {
                let shown_as = Pid::from_raw(i32::from_ne_bytes(shown_as)).unwrap_or(init);
                map_identity(&proc, shown_as)?;
                own_end.write_all(b"m").context("init is gone")?;
            }
            Ok(())
        }
    }
}

fn build_fence(plan: &Plan, views: &[PathBuf]) -> anyhow::Result<Built> {
    match &plan.fence {
        Some(fence) => fence::build(fence, views, &plan.start.cwd, plan.control.as_ref()),
        None => {
            fence::protect(plan.control.as_ref(), plan.start.uid())?;
            Ok(Built::default())
        }
    }
}

/// Mounts each view over its directory and every other path to that, and gives the server its end.
/// Answers the paths at which views show, DIR first.
fn cover(plan: &Plan, channel: &Channel) -> anyhow::Result<Vec<PathBuf>> {
    let mounts = mountinfo::read()?;
    let around = plan.views.around.as_ref();
    // All of them before the first view covers anything.
    let places = plan.views.all().map(|shown| Place::open(shown, &mounts));
    let places = places.collect::<anyhow::Result<Vec<_>>>()?;
    let mut views = vec![plan.tree().path.clone()];
    views.extend(plan.views.further().map(|shown| shown.tree.path.clone()));
    for place in &places {
        let outer = around.filter(|outer| place.lies_in(outer));
        if let (Some(outer), Some(alias)) = (around, place.alias_in(around)) {
            bail!(alias.between(&place.shown.tree.path, &outer.tree.path));
        }
        place.mount(outer, channel)?;
    }
    for place in places {
        let view = open_path(&place.shown.tree.path)?;
        let view_path = format!("/proc/self/fd/{}", view.as_raw_fd());
        for alias in place.aliases {
            if aliases::cover(&alias, &view_path)? {
                views.push(alias.at);
            }
        }
    }
    Ok(views)
}

/// Where a view is mounted, opened while nothing covers it.
struct Place<'p> {
    shown: &'p Shown,
    raw: OwnedFd,
    mount_id: u64,
    options: MountOptions,
    aliases: Vec<aliases::Alias>,
}

impl<'p> Place<'p> {
    fn open(view: &'p Shown, mounts: &[MountInfo]) -> anyhow::Result<Self> {
        let tree = &view.tree;
        let raw = open_path(&tree.path)?;
        ensure!(
            tree::identity(&raw)? == tree.identity,
            "`{}` was exchanged while tollgate started",
            shown(&tree.path)
        );
        let mount_id = rustix::fs::statx(&raw, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
            .context("statx")?
            .stx_mnt_id;
        let aliases = aliases::find(mounts, mount_id, &tree.path);
        Ok(Self { shown: view, raw, mount_id, options: serve::mount_options(tree)?, aliases })
    }

    fn lies_in(&self, outer: &Shown) -> bool {
        let path = &self.shown.tree.path;
        *path != outer.tree.path && path.starts_with(&outer.tree.path)
    }

    /// Another path to the same files that lies in the view `outer`, which is not of this place.
    fn alias_in(&self, outer: Option<&Shown>) -> Option<&aliases::Alias> {
        let outer = &outer?.tree.path;
        let mut others = self.aliases.iter().filter(|_| self.shown.tree.path != *outer);
        others.find(|alias| alias.at.starts_with(outer))
    }

    /// Mounts the view, in that of `outer` if it lies there, and gives the server its end.
    fn mount(&self, outer: Option<&Shown>, channel: &Channel) -> anyhow::Result<()> {
        let tree = &self.shown.tree;
        // In another view, which the server answers for by now, the place is a directory of that.
        let inside = outer.map(|outer| self.inside(outer)).transpose()?;
        let device = serve::mount_over(inside.as_ref().unwrap_or(&self.raw), tree, &self.options)?;
        // The mount went by path; nobody may have moved the path meanwhile. Where DIR is in a view
        // itself, the mount that it lay in is of the same kind.
        let covered = mountinfo::read()?;
        let own = mountinfo::at(&covered, &tree.path)
            .filter(|mount| mount.kind == mountinfo::VIEW && mount.id != self.mount_id)
            .with_context(|| format!("`{}` was moved while tollgate started", shown(&tree.path)))?;
        let number = own.minor_number().and_then(|number| i32::try_from(number).ok());
        channel.send(&Message::Mounted(number.unwrap_or(0)), Some(device.as_fd()))?;
        drop(device);
        native::mount(&self.raw, open_path(&tree.path)?, &self.shown.native)
    }

    fn inside(&self, outer: &Shown) -> anyhow::Result<OwnedFd> {
        let (path, outer) = (&self.shown.tree.path, &outer.tree.path);
        let place = open_path(path).with_context(|| {
            let (path, outer) = (shown(path), shown(outer));
            format!(
                "DIR `{path}` does not show in the `[[view]]` of `{outer}`; does a rule hide it?"
            )
        })?;
        ensure!(
            tree::identity(&place)?.1 == self.shown.tree.identity.1,
            "`{}` was exchanged while tollgate started",
            shown(path)
        );
        Ok(place)
    }
}

fn open_path(path: impl rustix::path::Arg + Copy + std::fmt::Debug) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .with_context(|| format!("cannot open {path:?}"))
}

/// Gives the user namespace of `init` the ids of our own, each as itself.
fn map_identity(proc: &OwnedFd, init: Pid) -> anyhow::Result<()> {
    for file in ["uid_map", "gid_map"] {
        let own = read_at(proc, &format!("self/{file}"))
            .with_context(|| format!("cannot read our own {file}"))?;
        let name = format!("{}/{file}", init.as_raw_nonzero());
        let map = rustix::fs::openat(proc, &name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("cannot open /proc/{name}"))?;
        std::fs::File::from(map)
            .write_all(identity_map(&own).as_bytes())
            .with_context(|| format!("cannot write /proc/{name}"))?;
    }
    Ok(())
}

fn read_at(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let fd = rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(std::fs::File::from(fd))
}

/// Lines of `inside outside count` to lines of `inside inside count`.
fn identity_map(own: &str) -> String {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (inside, count) = (words.next()?, words.nth(1)?);
        Some(format!("{inside} {inside} {count}\n"))
    };
    own.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_map_covers_what_is_mapped_and_no_more() {
        assert_eq!(identity_map("         0          0 4294967295\n"), "0 0 4294967295\n");
        assert_eq!(identity_map(" 0 1000 1\n 1 100000 65536\n"), "0 0 1\n1 1 65536\n");
        assert_eq!(identity_map(""), "");
    }
}
