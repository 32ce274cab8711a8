//! Mounting and unmounting: mount(2) when privileged, `fusermount3` otherwise.

use std::ffi::CString;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::device::Device;
use crate::forked::Maker;

mod asking;
mod error;
mod helper;
mod identity;
mod one_at_a_time;
mod options;
mod replacing;
mod table;

pub use error::MountError;
pub use options::MountOptions;

use asking::Server;
use identity::MountId;
use options::DEFAULT_SUBTYPE;

/// A mount made here. Dropping it unmounts, lazily if it is in use; [`Mount::keep`] leaves it. No other
/// mount is touched: if this one is covered by another, it stays, with a warning in the log, and if it
/// is gone, nothing happens. Nor does anything where a copy of the process (fork) drops it, which may call
/// [`Mount::unmount`].
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    /// `None` where the kernel does not tell (before Linux 5.8): what is at `path` is it then.
    id: Option<MountId>,
    maker: Maker,
    kept: bool,
}

impl Mount {
    /// Where it was mounted. Somebody may have renamed a directory above it since.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts, wherever it is by now; see [`unmount`].
    ///
    /// # Errors
    /// As [`unmount`], and [`MountError::Covered`] if another mount covers it; the mount is then left.
    pub fn unmount(mut self, lazy: bool) -> Result<(), MountError> {
        self.kept = true;
        self.unmount_own(lazy)
    }

    fn unmount_own(&self, lazy: bool) -> Result<(), MountError> {
        let id = match self.id {
            Some(id) if !id.is_at(&self.path) => id,
            _ => return unmount(&self.path, lazy),
        };
        match id.place() {
            None => Err(MountError::NotMounted { path: self.path.clone() }),
            Some(path) if id.is_at(&path) => unmount(&path, lazy),
            Some(path) => Err(MountError::Covered { path }),
        }
    }

    /// Leaves the file system mounted.
    pub fn keep(mut self) -> PathBuf {
        self.kept = true;
        std::mem::take(&mut self.path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.kept || self.maker.was_copied() {
            return;
        }
        match self.unmount_own(true) {
            Ok(()) => {}
            Err(error @ MountError::Covered { .. }) => tracing::warn!(%error, "left mounted"),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::debug!(path = %self.path.display(), error, "not unmounted");
            }
        }
    }
}

/// Mounts at `path` and returns the device, on which a session is to be started: until then, every
/// use of the mount waits.
///
/// # Errors
/// See [`MountError`]; [`MountError::AlreadyMounted`] over a mount of type `fuse.tollgate`, whose server
/// is not waited for: whether it is gone ([`MountError::Stale`]) is asked for a second at most.
pub fn mount(path: &Path, options: &MountOptions) -> Result<(Device, Mount), MountError> {
    let path = mount_point(path, Others::MayMount)?;
    let _turn = one_at_a_time::turn(&path);
    if table::is_ours(&path, DEFAULT_SUBTYPE) {
        return Err(MountError::AlreadyMounted { path });
    }
    let device = match open_and_mount(&path, options) {
        Err(MountError::NotPermitted { .. }) => helper::mount(&path, options)?,
        other => other?,
    };
    let id = MountId::at(&path);
    Ok((device, Mount { path, id, maker: Maker::this(), kept: false }))
}

fn open_and_mount(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let device = Device::open().map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => {
            MountError::NotPermitted { path: path.into(), why: "/dev/fuse cannot be opened" }
        }
        _ => MountError::NoDevice { source },
    })?;
    mount_device(&device, path, options)?;
    Ok(device)
}

/// Mounts an open device with mount(2), in the namespace of the calling thread. A mount that is
/// there already is covered, whatever its type.
///
/// # Errors
/// See [`MountError`].
pub fn mount_device(
    device: &Device,
    path: &Path,
    options: &MountOptions,
) -> Result<(), MountError> {
    options.check()?;
    let path = mount_point(path, Others::Wait)?;
    let data = mount_data(device, &path, options)?;
    let kind = format!("fuse.{}", options.subtype);
    rustix::mount::mount(&options.source, &path, kind, options.flags(), data.as_c_str()).map_err(
        |errno| match errno {
            Errno::PERM | Errno::ACCESS => {
                MountError::NotPermitted { path: path.clone(), why: "mount(2) needs CAP_SYS_ADMIN" }
            }
            Errno::NODEV => MountError::NoDevice { source: errno.into() },
            // It went since it was looked at.
            Errno::NOENT => MountError::NoMountPoint { path: path.clone(), source: errno.into() },
            _ => MountError::System { path: path.clone(), source: errno.into() },
        },
    )
}

fn mount_data(device: &Device, path: &Path, options: &MountOptions) -> Result<CString, MountError> {
    let system = |source| MountError::System { path: path.into(), source };
    let kind = FileType::Directory.as_raw_mode();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let fd = device.as_fd().as_raw_fd();
    let mut data = format!("fd={fd},rootmode={kind:o},user_id={uid},group_id={gid}");
    for option in options.kernel_options() {
        // Writing to a string does not fail.
        let _ = write!(data, ",{option}");
    }
    CString::new(data).map_err(|e| system(e.into()))
}

/// Whether others of this package may mount at a place while it is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    MayMount,
    /// They wait for their turn, or the place is in a namespace of its own.
    Wait,
}

/// The canonical path of a place where a mount can be made: a directory. If a FUSE file system is
/// mounted there, its server is not waited for.
fn mount_point(path: &Path, others: Others) -> Result<PathBuf, MountError> {
    let no_point = |path: &Path, source: io::Error| match Errno::from_io_error(&source) {
        Some(errno) if asking::says_gone(errno) => MountError::Stale { path: path.into() },
        _ => MountError::NoMountPoint { path: path.into(), source },
    };
    let real = path.canonicalize().map_err(|source| no_point(path, source))?;
    // Where nothing was mounted a moment ago, somebody else may be mounting and not serve yet. No thread for
    // that without need: callers may be processes of one thread.
    let is_gone = match others == Others::MayMount || table::is_fuse(&real) {
        true => asking::ask(&real) == Server::Gone,
        false => asking::is_gone(&real),
    };
    if is_gone {
        return Err(MountError::Stale { path: path.into() });
    }
    // As far as the kernel knows: its type does not change.
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(CWD, &real, flags, StatxFlags::TYPE)
        .map_err(|errno| no_point(&real, errno.into()))?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Directory => Ok(real),
        _ => Err(MountError::NotADirectory { path: real }),
    }
}

/// Unmounts `path`; symbolic links in its last component are not followed. `lazy`: detach it now
/// even if it is in use, and let it go when the last user does.
///
/// # Errors
/// [`MountError::Busy`] when it is in use, [`MountError::NotMounted`], [`MountError::Gone`] where there is
/// no such path, [`MountError::UnmountNotPermitted`], and others of the system.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    if path.as_os_str().as_bytes().contains(&0) {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "no path has a NUL byte");
        return Err(MountError::NoMountPoint { path: path.into(), source });
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => helper::unmount(path, lazy),
        Err(Errno::BUSY) => Err(MountError::Busy { path: path.into() }),
        Err(Errno::INVAL) => Err(MountError::NotMounted { path: path.into() }),
        Err(Errno::NOENT | Errno::NOTDIR) => Err(MountError::Gone { path: path.into() }),
        Err(errno) => Err(MountError::System { path: path.into(), source: errno.into() }),
    }
}

/// Whether `path` is in a mount whose server is gone. Asks with statfs(2), which no cache answers:
/// stat(2) goes on working for as long as the kernel's attributes are valid. Waits while a server
/// is alive and busy, or has not started its session, for as long as that takes. A request that the
/// server received and did not reply to ends with
/// `ECONNABORTED`, or `ECANCELED` if a ring was to get it whose thread had ended; later ones with
/// `ENOTCONN`.
#[must_use]
pub fn stale(path: &Path) -> bool {
    asking::is_gone(path)
}

/// As [`stale`], and waits for a second at most: `None` if the server is there and does not answer. The
/// thread that asked is left behind then. Over io_uring the kernel ends no request that a stopped server has
/// taken: until that goes on, this process cannot end.
#[must_use]
pub fn stale_in_time(path: &Path) -> Option<bool> {
    match asking::ask(path) {
        Server::Gone => Some(true),
        Server::Answers => Some(false),
        Server::Silent => None,
    }
}

/// As [`mount`], and in the place of a mount of type `fuse.tollgate` whose server is gone. With privilege,
/// and since Linux 6.5, the new mount is made beneath that one, which is then detached: at no moment the
/// directory below shows. Elsewhere the old one is detached first, and what is done at `path` in the
/// short time between is done to that directory.
///
/// # Errors
/// As [`mount`], and as [`unmount`] of the old one. [`MountError::AlreadyMounted`] over one whose server is
/// not gone.
pub fn replace_stale(path: &Path, options: &MountOptions) -> Result<(Device, Mount), MountError> {
    let no_point = |source| MountError::NoMountPoint { path: path.into(), source };
    let real = table::canonical_parent(path).map_err(no_point)?;
    let turn = one_at_a_time::turn(&real);
    if !table::is_ours(&real, DEFAULT_SUBTYPE) {
        drop(turn);
        return mount(path, options);
    }
    if asking::ask(&real) != Server::Gone {
        return Err(MountError::AlreadyMounted { path: real });
    }
    options.check()?;
    match replacing::replace(&real, options) {
        Ok((device, id)) => {
            Ok((device, Mount { path: real, id, maker: Maker::this(), kept: false }))
        }
        Err(error) => {
            tracing::debug!(path = %real.display(), %error, "not mounted beneath");
            unmount(&real, true)?;
            drop(turn);
            mount(&real, options)
        }
    }
}

/// Unmounts `path` if it is a mount of type `fuse.tollgate` whose server is gone, and returns
/// whether it was. Touches nothing else. A server that is there and silent is not waited for.
///
/// # Errors
/// As [`unmount`].
pub fn clean_stale(path: &Path) -> Result<bool, MountError> {
    let real = match table::canonical_parent(path) {
        Ok(real) => real,
        Err(source) if Errno::from_io_error(&source).is_some_and(asking::says_gone) => {
            return Err(MountError::NoMountPoint { path: path.into(), source });
        }
        Err(_) => return Ok(false),
    };
    if !table::is_ours(&real, DEFAULT_SUBTYPE) || asking::ask(&real) != Server::Gone {
        return Ok(false);
    }
    unmount(&real, true)?;
    Ok(true)
}
