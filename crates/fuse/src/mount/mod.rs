//! Mounting and unmounting: mount(2) when privileged, `fusermount3` otherwise.

use std::ffi::CString;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::device::Device;

mod error;
mod helper;
mod options;
mod table;

pub use error::MountError;
pub use options::MountOptions;

use options::DEFAULT_SUBTYPE;

/// A mount made here. Dropping it unmounts, lazily if it is in use; [`Mount::keep`] leaves it.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    kept: bool,
}

impl Mount {
    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts; see [`unmount`].
    ///
    /// # Errors
    /// As [`unmount`]; the mount is then left.
    pub fn unmount(mut self, lazy: bool) -> Result<(), MountError> {
        self.kept = true;
        unmount(&self.path, lazy)
    }

    /// Leaves the file system mounted.
    pub fn keep(mut self) -> PathBuf {
        self.kept = true;
        std::mem::take(&mut self.path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = unmount(&self.path, true)
        {
            let error: &dyn std::error::Error = &error;
            tracing::debug!(path = %self.path.display(), error, "not unmounted");
        }
    }
}

/// Mounts at `path` and returns the device, on which a session is to be started: until then, every
/// use of the mount waits.
///
/// # Errors
/// See [`MountError`]; [`MountError::AlreadyMounted`] over a mount of type `fuse.tollgate`.
pub fn mount(path: &Path, options: &MountOptions) -> Result<(Device, Mount), MountError> {
    let path = mount_point(path)?;
    if table::is_ours(&path, DEFAULT_SUBTYPE) {
        return Err(MountError::AlreadyMounted { path });
    }
    let device = match open_and_mount(&path, options) {
        Err(MountError::NotPermitted { .. }) => helper::mount(&path, options)?,
        other => other?,
    };
    Ok((device, Mount { path, kept: false }))
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
    let path = mount_point(path)?;
    let data = mount_data(device, &path, options)?;
    let kind = format!("fuse.{}", options.subtype);
    rustix::mount::mount(&options.source, &path, kind, options.flags(), data.as_c_str()).map_err(
        |errno| match errno {
            Errno::PERM | Errno::ACCESS => {
                MountError::NotPermitted { path: path.clone(), why: "mount(2) needs CAP_SYS_ADMIN" }
            }
            Errno::NODEV => MountError::NoDevice { source: errno.into() },
            _ => MountError::System { path: path.clone(), source: errno.into() },
        },
    )
}

fn mount_data(device: &Device, path: &Path, options: &MountOptions) -> Result<CString, MountError> {
    let system = |source| MountError::System { path: path.into(), source };
    let stat = rustix::fs::stat(path).map_err(|e| system(e.into()))?;
    let kind = FileType::from_raw_mode(stat.st_mode).as_raw_mode();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let fd = device.as_fd().as_raw_fd();
    let mut data = format!("fd={fd},rootmode={kind:o},user_id={uid},group_id={gid}");
    for option in options.kernel_options() {
        // Writing to a string does not fail.
        let _ = write!(data, ",{option}");
    }
    CString::new(data).map_err(|e| system(e.into()))
}

/// The canonical path of a place where a mount can be made.
fn mount_point(path: &Path) -> Result<PathBuf, MountError> {
    if stale(path) {
        return Err(MountError::Stale { path: path.into() });
    }
    let real = path
        .canonicalize()
        .map_err(|source| MountError::NoMountPoint { path: path.into(), source })?;
    match rustix::fs::stat(&real) {
        Err(errno) => Err(MountError::NoMountPoint { path: real, source: errno.into() }),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
            Err(MountError::NotADirectory { path: real })
        }
        Ok(_) => Ok(real),
    }
}

/// Unmounts `path`; symbolic links in its last component are not followed. `lazy`: detach it now
/// even if it is in use, and let it go when the last user does.
///
/// # Errors
/// [`MountError::Busy`] when it is in use, [`MountError::NotMounted`], and others of the system.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => helper::unmount(path, lazy),
        Err(Errno::BUSY) => Err(MountError::Busy { path: path.into() }),
        Err(Errno::INVAL) => Err(MountError::NotMounted { path: path.into() }),
        Err(errno) => Err(MountError::System { path: path.into(), source: errno.into() }),
    }
}

/// Whether `path` is in a mount whose server is gone. Asks with statfs(2), which no cache answers:
/// stat(2) goes on working for as long as the kernel's attributes are valid. Waits while a server
/// is alive and busy. A request that the server received and did not reply to ends with
/// `ECONNABORTED`, or `ECANCELED` if a ring was to get it whose thread had ended; later ones with
/// `ENOTCONN`.
#[must_use]
pub fn stale(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED))
}

/// Unmounts `path` if it is a mount of type `fuse.tollgate` whose server is gone, and returns
/// whether it was. Touches nothing else.
///
/// # Errors
/// As [`unmount`].
pub fn clean_stale(path: &Path) -> Result<bool, MountError> {
    if !stale(path) {
        return Ok(false);
    }
    let real = table::canonical_parent(path)
        .map_err(|source| MountError::NoMountPoint { path: path.into(), source })?;
    if !table::is_ours(&real, DEFAULT_SUBTYPE) {
        return Ok(false);
    }
    unmount(&real, true)?;
    Ok(true)
}
