//! Mounting and unmounting: mount(2) when privileged, `fusermount3` otherwise.

use std::ffi::CString;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::device::Device;

mod error;
mod helper;
mod table;

pub use error::MountError;

/// Type of mounts made here, as `/proc/mounts` shows it, without a chosen subtype.
const DEFAULT_SUBTYPE: &str = "tollgate";

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// First column of `/proc/mounts`; the path of what is served, or a name.
    pub source: String,
    /// `/proc/mounts` shows `fuse.SUBTYPE`. Letters, digits, `-` and `_`.
    pub subtype: String,
    /// Users other than the one who mounts may use the file system.
    pub allow_other: bool,
    /// The kernel checks permissions by owner and mode. Without it and with `allow_other`, one
    /// user's permission could be reused for another: leave it on.
    pub default_permissions: bool,
    /// Read-only.
    pub read_only: bool,
    /// Set-id bits have no effect. `fusermount3` insists on it.
    pub nosuid: bool,
    /// Device files cannot be opened. `fusermount3` insists on it.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// No access times.
    pub noatime: bool,
    /// Largest READ in bytes; 0 leaves it to the kernel (`max_pages`).
    pub max_read: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: DEFAULT_SUBTYPE.into(),
            subtype: DEFAULT_SUBTYPE.into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            noatime: false,
            max_read: 0,
        }
    }
}

impl MountOptions {
    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::NOATIME, self.noatime);
        flags
    }

    /// Options that the FUSE file system itself takes. All values are numbers: nothing to escape.
    fn kernel_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.default_permissions {
            options.push("default_permissions".into());
        }
        if self.allow_other {
            options.push("allow_other".into());
        }
        if self.max_read > 0 {
            options.push(format!("max_read={}", self.max_read));
        }
        options
    }

    fn check(&self) -> Result<(), MountError> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.subtype.is_empty() || !self.subtype.chars().all(word) {
            return Err(MountError::Option {
                option: "subtype",
                value: self.subtype.clone(),
                allowed: "letters, digits, '-' and '_'",
            });
        }
        if self.source.is_empty() || self.source.contains(['\0', '\n']) {
            return Err(MountError::Option {
                option: "source",
                value: self.source.clone(),
                allowed: "a path or name without NUL and newline",
            });
        }
        Ok(())
    }
}

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
/// `ECONNABORTED`, later ones with `ENOTCONN`.
#[must_use]
pub fn stale(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
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

/// Bytes of a path, for the modules below.
fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
