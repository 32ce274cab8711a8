//! The directory that holds the sockets of one user's servers.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD};

use crate::lock::Spot;
use crate::nested::{self, Nested};
use crate::peer::{Credentials, Peer, own_uid};
use crate::reserve::Reserve;
use crate::server::{Server, Socket, listen_as_new};
use crate::{ControlError, TIME_LIMIT};

/// The most sockets that one discovery looks at.
pub const SERVERS_MAX: usize = 4096;

/// The longest path of a directory: that of a socket has 107 bytes, and its name at least this many
/// (`view-0123456789abcdef.sock`).
const PATH_MAX: usize = 107 - "/".len() - 26;

/// What the names of sockets begin with that do not listen yet.
const NEW: &str = "new-";
/// How long one of those is left alone.
const UNNAMED_FOR: Duration = Duration::from_secs(60);

/// Who has no number in a user namespace (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_ID: u32 = 65_534;

/// The mode of a directory that others can enter, and neither list nor change.
const ENTERED: u32 = 0o711;

/// A directory of sockets, private to one user. Others may enter one of root, where a socket is for
/// them ([`Directory::prepare_for_all`]); all others have mode 600, and ask who connects.
///
/// A socket's name is `KIND-ID.sock`, where ID is random: processes of other pid namespaces share
/// the directory, so a pid would not tell servers apart. A client learns the pid from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
}

/// What [`Directory::servers`] finds.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The servers that listen, those of nested directories last.
    pub found: Vec<Found>,
    /// Sockets that cannot be used, each with its reason.
    pub troubles: Vec<ControlError>,
}

/// A server that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its socket.
    pub path: PathBuf,
    /// Its process id; `None` for a server that this process's pid namespace does not see.
    pub pid: Option<u32>,
    /// Its user id.
    pub uid: u32,
}

impl Directory {
    /// The directory of this user for the programs that use `name`: `/run/NAME` for root, `NAME` in
    /// `$XDG_RUNTIME_DIR` for others, or `/tmp/NAME-UID` without that variable.
    #[must_use]
    pub fn of_user(name: &str) -> Self {
        let uid = own_uid();
        if uid == 0 {
            return Self::at(Path::new("/run").join(name));
        }
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(directory) if Path::new(&directory).is_absolute() => {
                Self::at(Path::new(&directory).join(name))
            }
            _ => Self::at(format!("/tmp/{name}-{uid}")),
        }
    }

    /// A directory elsewhere.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a server of `kind`, which is part of the socket's name: 1 to 32 letters, digits, `-` and `_`
    /// of ASCII. Makes the directory, with
    /// mode 700, if it is not there. Where it is read-only for this process, the socket lies in the
    /// directory that [`Directory::nested`] made for it.
    ///
    /// # Errors
    /// `kind` is no such name; the directory cannot be made, or is not private; no socket or thread can be
    /// had.
    pub fn serve(
        &self,
        kind: &str,
        handler: impl Fn(&Peer<'_>, &str) -> String + Send + 'static,
    ) -> Result<Server, ControlError> {
        self.serve_by(kind, listen_as_new, handler)
    }

    /// As [`Directory::serve`], by a socket that was made before.
    ///
    /// # Errors
    /// The directory cannot be made, or is not private; the socket has no descriptor to spare, or no
    /// thread can be had.
    pub fn serve_later(
        &self,
        reserve: &Reserve,
        kind: &str,
        handler: impl Fn(&Peer<'_>, &str) -> String + Send + 'static,
    ) -> Result<Server, ControlError> {
        self.serve_by(kind, |path| reserve.listen(path), handler)
    }

    fn serve_by(
        &self,
        kind: &str,
        listen: impl Fn(&Path) -> Result<UnixListener, ControlError>,
        handler: impl Fn(&Peer<'_>, &str) -> String + Send + 'static,
    ) -> Result<Server, ControlError> {
        must_be_a_kind(kind)?;
        self.prepare()?;
        let directory = nested::writable(&self.path);
        loop {
            let id = random_id(&directory)?;
            let path = directory.join(socket_name(kind, id));
            match Socket::at_own(&path, &directory.join(new_name(id)), &listen) {
                // 64 random bits met a name that is taken: the next ones will not.
                Err(ControlError::InUse { .. }) => {}
                other => return other?.serving(None, handler),
            }
        }
    }

    /// Makes a directory in this one for processes whose mount namespace will have this one
    /// read-only: what they serve is found here too, and they do not touch the sockets of others.
    ///
    /// # Errors
    /// As [`Directory::serve`].
    pub fn nested(&self) -> Result<Nested, ControlError> {
        self.prepare()?;
        let parent = nested::writable(&self.path);
        Nested::make(&parent, random_id(&parent)?)
    }

    /// Finds the servers of `kind`, those of [nested](Directory::nested) directories last. Sockets
    /// that dead servers left are removed. Waits at most [`TIME_LIMIT`](crate::TIME_LIMIT) in all
    /// for those that take no connection.
    ///
    /// # Errors
    /// The directory is there and cannot be read, or is not private to this user.
    pub fn servers(&self, kind: &str) -> Result<Discovery, ControlError> {
        self.servers_until(kind, Instant::now() + TIME_LIMIT)
    }

    /// The same, and waits until a time for all of them together.
    ///
    /// # Errors
    /// As [`Directory::servers`].
    pub fn servers_until(&self, kind: &str, until: Instant) -> Result<Discovery, ControlError> {
        match std::fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Discovery::default());
            }
            other => other.map_err(|error| ControlError::system(&self.path, error))?,
        };
        self.check()?;
        let mut discovery = Discovery::default();
        let mut number = 0;
        for place in nested::all(&self.path) {
            // It may be gone, or something else by now.
            let Ok(directory) = place.open() else { continue };
            remove_unnamed(&directory, &place.path(), until);
            for name in nested::names(&directory).filter(|name| is_of(kind, name)) {
                if number == SERVERS_MAX {
                    discovery.troubles.push(ControlError::TooMany { path: self.path.clone() });
                    return Ok(discovery);
                }
                number += 1;
                let path = place.path().join(&name);
                match look(Spot { directory: &directory, name: &name, path }, until) {
                    Ok(found) => discovery.found.extend(found),
                    Err(error) => discovery.troubles.push(error),
                }
            }
        }
        Ok(discovery)
    }

    /// Makes the directory, or checks that it is private.
    ///
    /// # Errors
    /// It cannot be made, or is not private to this user; no socket in it could have a name.
    pub fn prepare(&self) -> Result<(), ControlError> {
        if self.path.as_os_str().len() > PATH_MAX {
            let why = "is too long for the path of a socket in it (107 bytes): set XDG_RUNTIME_DIR to a \
                       directory with a shorter path";
            return Err(ControlError::Directory { path: self.path.clone(), why });
        }
        match std::fs::DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(ControlError::system(&self.path, error));
            }
            _ => {}
        }
        let mode = self.check()?;
        // Who may list root's could lock it for ever.
        if mode & 0o044 == 0 { Ok(()) } else { self.set_mode(mode & ENTERED) }
    }

    /// The same, and lets others enter it if it is root's: one of its sockets is for them. They can
    /// neither list nor change it.
    ///
    /// # Errors
    /// It cannot be made or changed, or is not private to this user.
    pub fn prepare_for_all(&self) -> Result<(), ControlError> {
        self.prepare()?;
        if own_uid() == 0 { self.set_mode(ENTERED) } else { Ok(()) }
    }

    fn set_mode(&self, mode: u32) -> Result<(), ControlError> {
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(mode))
            .map_err(|error| ControlError::system(&self.path, error))
    }

    /// A path in this directory for a socket of `kind` that is another user's
    /// ([`Server::start_for`]). The directory is made if it is not there: others can enter it, and
    /// neither list nor change it. Sockets that dead servers left in it are removed.
    ///
    /// # Errors
    /// `kind` is no such name, or the directory cannot be made, or is another user's.
    pub fn path_for_another(&self, kind: &str) -> Result<PathBuf, ControlError> {
        must_be_a_kind(kind)?;
        let failed = |error| ControlError::system(&self.path, error);
        match std::fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let found = std::fs::symlink_metadata(&self.path).map_err(failed)?;
        if !found.is_dir() || found.uid() != own_uid() {
            let why = "is not a directory that belongs to this user";
            return Err(ControlError::Directory { path: self.path.clone(), why });
        }
        self.set_mode(ENTERED)?;
        let directory = nested::open(CWD, &self.path).map_err(|error| failed(error.into()))?;
        let until = Instant::now() + TIME_LIMIT;
        for name in
            nested::names(&directory).filter(|name| name != "." && name != "..").take(SERVERS_MAX)
        {
            let path = self.path.join(&name);
            // One that is in use stays.
            let _ = Spot { directory: &directory, name: &name, path }.remove_leftover(until);
        }
        Ok(self.path.join(socket_name(kind, random_id(&self.path)?)))
    }

    /// Others could put sockets into a directory that is not private. Returns its mode.
    fn check(&self) -> Result<u32, ControlError> {
        let found = std::fs::symlink_metadata(&self.path)
            .map_err(|error| ControlError::system(&self.path, error))?;
        let (own, is_root) = (own_uid(), own_uid() == 0);
        let not_private = |why| ControlError::Directory { path: self.path.clone(), why };
        if !found.is_dir() || found.uid() != own {
            return Err(not_private(match is_root {
                // Of the root who made this user namespace, or of another one.
                true if found.is_dir() && found.uid() == OVERFLOW_ID => {
                    "belongs to a user outside of this user namespace"
                }
                true => "is not a directory of root: remove it",
                false => {
                    "is not a directory of this user: set XDG_RUNTIME_DIR to a directory of your own"
                }
            }));
        }
        if is_root && found.mode() & 0o022 != 0 {
            return Err(not_private("can be changed by others: `chmod 711` it"));
        }
        if !is_root && found.mode() & 0o077 != 0 {
            return Err(not_private("is open to others: `chmod 700` it"));
        }
        Ok(found.mode() & 0o7777)
    }
}

/// `None` when the server is gone, or ends just now.
fn look(spot: Spot<'_>, until: Instant) -> Result<Option<Found>, ControlError> {
    match spot.connect(until) {
        Ok((_, Credentials { uid, pid })) => Ok(Some(Found { path: spot.path, pid, uid })),
        Err(ControlError::Gone { .. }) => match spot.remove() {
            // It is not this process's to remove.
            Err(ControlError::System { source, .. })
                if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
            {
                Ok(None)
            }
            other => other.map(|()| None),
        },
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes what servers left that were killed before their sockets had names.
fn remove_unnamed(directory: &OwnedFd, at: &Path, until: Instant) {
    let names = nested::names(directory).filter(|name| is_new_name(name)).take(SERVERS_MAX);
    for name in names.filter(|name| is_old(directory, name)) {
        let spot = Spot { directory, name: &name, path: at.join(&name) };
        if matches!(spot.connect(until), Err(ControlError::Gone { .. })) {
            let _ = spot.remove();
        }
    }
}

/// Whether it is there for longer than any socket that is about to get its name.
fn is_old(directory: &OwnedFd, name: &OsStr) -> bool {
    let changed = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .ok()
        .and_then(|found| u64::try_from(found.st_ctime).ok())
        .map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    let age = changed.and_then(|changed| changed.elapsed().ok());
    age.is_some_and(|age| age > UNNAMED_FOR)
}

fn random_id(directory: &Path) -> Result<u64, ControlError> {
    let mut bytes = [0; 8];
    // Requests of up to 256 bytes are never cut short.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| ControlError::system(directory, error))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A path in it would lead out of the directory.
fn must_be_a_kind(kind: &str) -> Result<(), ControlError> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=32).contains(&kind.len()) && kind.bytes().all(is_part) {
        return Ok(());
    }
    Err(ControlError::Kind(kind.to_owned()))
}

fn socket_name(kind: &str, id: u64) -> String {
    format!("{kind}-{id:016x}.sock")
}

/// That of a socket that does not listen yet. No longer than its later name.
fn new_name(id: u64) -> String {
    format!("{NEW}{id:016x}")
}

fn is_of(kind: &str, name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_prefix(kind)?.strip_prefix('-')?.strip_suffix(".sock"))
        .is_some_and(is_id)
}

fn is_new_name(name: &OsStr) -> bool {
    name.to_str().and_then(|name| name.strip_prefix(NEW)).is_some_and(is_id)
}

fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_kind_are_told_from_all_others() {
        let is = |name: &str| is_of("wq", OsStr::new(name));
        assert!(is(&socket_name("wq", 0)) && is(&socket_name("wq", u64::MAX)));
        for other in ["wq-12.sock", "wqx-0000000000000000.sock", "wq-0000000000000000.txt", "wq"] {
            assert!(!is(other), "{other}");
        }
        assert!(!is(&socket_name("view", 7)) && !is("wq-000000000000000g.sock"));
    }
}
