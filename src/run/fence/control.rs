//! The control sockets of servers outside: CMD, which may be of the same user, finds them, and does
//! not remove or replace them. Its own servers have a directory of their own inside.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tollgate_control::{Directory, Nested};

use super::elsewhere;
use super::kept::{Kept, open_path};
use super::layers;
use super::shape::Fence;
use crate::control::Guest;
use crate::messages;
use crate::mountinfo;

/// The name of a user's directory of sessions. Not the one of control sockets, which CMD sees.
const SESSIONS: &str = "tollgate-sessions";
/// That of control sockets.
const CONTROL: &str = crate::control::DIRECTORY;

/// Where this user's sessions listen.
pub(crate) fn session_directory() -> Directory {
    Directory::of_user(SESSIONS)
}

/// The directory of sockets, and the one in it that is CMD's, which goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    outer: PathBuf,
    own: Option<Own>,
    /// Whether servers answer CMD's user as a guest.
    has_guest: bool,
}

/// CMD's directory.
#[derive(Debug)]
struct Own {
    /// Without symbolic links.
    path: PathBuf,
    /// Keeps it there.
    _nested: Nested,
}

impl Control {
    /// Makes CMD's directory. Where that cannot be had, servers that CMD starts have no socket, and
    /// say so; those of others are out of its reach all the same. `None` where there are none.
    pub(crate) fn new(directory: &Directory) -> Option<Self> {
        let nested = directory.nested().ok();
        // Mounts are put where no symbolic link leads elsewhere.
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let outer = real(directory.path())?;
        let own =
            nested.and_then(|nested| Some(Own { path: real(nested.path())?, _nested: nested }));
        Some(Self { outer, own, has_guest: false })
    }

    /// CMD's user, who cannot enter either directory, gets the one of guests' sockets.
    pub(crate) fn show_guest(&mut self) {
        self.has_guest = true;
    }

    /// What is to be attached: the outer one read-only, CMD's writable.
    pub(super) fn kept(&self) -> anyhow::Result<Vec<Kept>> {
        let mut kept = vec![Kept::read_only_copy(&self.outer)?];
        if let Some(own) = &self.own {
            kept.push(Kept::of_sockets(&own.path)?);
        }
        if self.has_guest {
            kept.push(Kept::read_only_copy(Guest::directory())?);
        }
        Ok(kept)
    }
}

/// The same where there is no fence, for all directories in which servers of this user, and of `user`, who
/// CMD runs as, may have their sockets: they need not have the `XDG_RUNTIME_DIR` of this process.
///
/// # Errors
/// The mounts cannot be made.
pub(crate) fn protect(control: Option<&Control>, user: u32) -> anyhow::Result<()> {
    let mut users = vec![own_uid(), user];
    users.dedup();
    for place in users.into_iter().flat_map(|user| other_places(control, user)) {
        Kept::read_only_copy(&place)?.attach()?;
    }
    if !control.is_some_and(|control| control.has_guest)
        && let Some(place) = guest_directory()
    {
        // Guests alone have use for it. CMD may give itself to other users by a `run --user`.
        let empty = layers::memory(&open_path(&place)?)?;
        Kept::of(&place, empty).attach()?;
    }
    control.map_or_else(|| Ok(Vec::new()), Control::kept)?.iter().try_for_each(Kept::attach)
}

/// Has root's directory of guests' sockets made before CMD could make it, where CMD has no fence: what
/// lies in a directory that CMD has made is in its hands.
pub(crate) fn prepare_for_guests() {
    if rustix::process::geteuid().is_root() {
        // Where it cannot be made, CMD cannot make it either, or others could change it.
        let _ = Guest::prepare_directory();
    }
}

/// The directories of the servers of `user` that are there, without symbolic links, but for that of
/// `control`.
fn other_places(control: Option<&Control>, user: u32) -> Vec<PathBuf> {
    let places = match user {
        0 => vec![Path::new("/run").join(CONTROL)],
        _ => vec![
            Path::new("/run/user").join(user.to_string()).join(CONTROL),
            PathBuf::from(format!("/tmp/{CONTROL}-{user}")),
        ],
    };
    let own = control.map(|control| control.outer.as_path());
    let real = places.iter().filter_map(|place| real_if_of(user, place));
    real.filter(|place| Some(place.as_path()) != own).collect()
}

fn guest_directory() -> Option<PathBuf> {
    real_if_of(own_uid(), Guest::directory()).filter(|_| own_uid() == 0)
}

/// The directory without symbolic links, if it is this user's.
fn real_if_of(user: u32, path: &Path) -> Option<PathBuf> {
    let found = std::fs::symlink_metadata(path).ok()?;
    let is_own = found.is_dir() && found.uid() == user;
    if is_own { std::fs::canonicalize(path).ok() } else { None }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether what shows at `path` outside shows inside, too: in what is allowed, in DIR or in a view.
fn is_shown(fence: &Fence, dir: &Path, path: &Path) -> bool {
    let is_allowed = fence.allowed.iter().any(|allowed| path.starts_with(&allowed.path));
    is_allowed || is_in_a_view(fence, dir, path)
}

fn is_in_a_view(fence: &Fence, dir: &Path, path: &Path) -> bool {
    path.starts_with(dir) || fence.is_in_a_view(path)
}

/// Read-only, the other directories in which servers of this user may have their sockets, as far as
/// `--allow` or a view would show them. Of a view it is what the view shows: its rules and its record go
/// for them as for the rest of it, and through it nobody connects to a socket. Root's CMD, and what root
/// has run as another user, finds those of other users [hidden].
pub(super) fn others(
    fence: &Fence,
    dir: &Path,
    control: Option<&Control>,
) -> anyhow::Result<Vec<Kept>> {
    let mut places = other_places(control, own_uid());
    let mounts = mountinfo::read()?;
    let own = control.map(|control| &control.outer);
    // A second mount of them, or of what is above them, shows them, too.
    let further = places.iter().chain(own).flat_map(|place| elsewhere::paths_to(&mounts, place));
    let further: Vec<_> = further.collect();
    places.extend(further);
    places.retain(|place| is_shown(fence, dir, place));
    let read_only = |place: &PathBuf| {
        let mut kept = Kept::read_only_copy(place)?;
        // A view may not show the place, where nothing is to be kept then.
        kept.hides = true;
        kept.is_of_view = is_in_a_view(fence, dir, place);
        Ok(kept)
    };
    places.iter().map(read_only).collect()
}

/// Empty directories in the place of those with the sockets of sessions, and of those where root
/// would find the control sockets of other users, as far as `--allow` or a view would show them:
/// who is answered at the former is handed the namespaces of a fence.
pub(super) fn hidden(
    fence: &Fence,
    dir: &Path,
    warnings: &mut Vec<String>,
) -> anyhow::Result<Vec<Kept>> {
    let own = session_directory();
    let is_shown = |path: &Path| is_shown(fence, dir, path);
    if own.path().parent().is_some_and(is_shown) {
        // One that is made later would show.
        if let Err(error) = own.prepare() {
            let reason = messages::in_words(&error.into());
            warnings.push(format!(
                "CMD would find a session that begins while it runs, as its place cannot be made \
                 and hidden: {reason}"
            ));
        }
    }
    let of_users = |directory: &str| -> Vec<PathBuf> {
        let users = std::fs::read_dir("/run/user").into_iter().flatten().flatten();
        users.map(|user| user.path().join(directory)).collect()
    };
    let temporary = |is_one: &dyn Fn(&std::fs::DirEntry) -> bool| -> Vec<PathBuf> {
        let all = std::fs::read_dir("/tmp").into_iter().flatten().flatten();
        all.filter(is_one).map(|entry| entry.path()).collect()
    };
    let mut all = of_users(SESSIONS);
    all.extend(temporary(&|entry| name(entry).is_some_and(|name| name.starts_with(SESSIONS))));
    all.extend([own.path().to_owned(), Path::new("/run").join(SESSIONS)]);
    all.push(Guest::directory().to_owned());
    if rustix::process::geteuid().is_root() {
        all.extend(of_users(CONTROL));
        all.extend(temporary(&|entry| is_control_directory(entry)));
    }
    all.sort();
    all.dedup();
    let mounts = mountinfo::read()?;
    let elsewhere: Vec<_> = all.iter().flat_map(|one| elsewhere::paths_to(&mounts, one)).collect();
    all.retain(|path| is_shown(path));
    all.extend(elsewhere);
    all.retain(|path| path.is_dir());
    let empty = |path: &PathBuf| {
        let mut empty = Kept::read_only(path, layers::memory(&open_path(path)?)?)?;
        empty.hides = true;
        Ok(empty)
    };
    all.iter().map(empty).collect()
}

fn name(entry: &std::fs::DirEntry) -> Option<String> {
    entry.file_name().into_string().ok()
}

/// Whether that is a user's directory of control sockets in /tmp, named by the user's number.
fn is_control_directory(entry: &std::fs::DirEntry) -> bool {
    let uid = name(entry).and_then(|name| {
        let rest = name.strip_prefix(CONTROL)?.strip_prefix('-')?;
        rest.parse::<u32>().ok()
    });
    uid.is_some_and(|uid| entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == uid))
}
