//! What `run` takes away from CMD beside the raw tree, so that a CMD that runs as root does not
//! reach the tree through a device or make the kernel reach it.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::io::Errno;

use super::circular::is_in_circular;
use crate::escape::{shown, word};
use crate::mountinfo::MountInfo;
use crate::sys;

/// Most device nodes that are covered; a machine with more is refused.
const DEVICES_MAX: usize = 4096;
/// Deepest directory below /dev that is searched for devices.
const DEVICE_DEPTH_MAX: usize = 6;

/// File systems whose files steer the kernel.
pub(super) const KERNEL_FILE_SYSTEMS: &[&str] = &[
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "efivarfs",
    "fusectl",
    "pstore",
    "resctrl",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sysfs",
    "tracefs",
    "xenfs",
];

/// Directories of /proc in which nothing steers the kernel: who writes to `pressure` is told of the
/// machine's load, and `sysvipc` takes nothing.
const OPEN_IN_PROC: &[&str] = &["pressure", "sysvipc"];

/// Makes every kernel file system read-only. Parts of one can belong to an ordinary user, such as a cgroup.
pub(super) fn freeze_kernel_file_systems(mounts: &[MountInfo]) -> anyhow::Result<()> {
    for mount in mounts.iter().filter(|mount| KERNEL_FILE_SYSTEMS.contains(&mount.kind.as_str())) {
        if let Err(error) = read_only(&mount.point) {
            cannot_be_named(&error, mount, mounts)?;
        }
    }
    Ok(())
}

/// Makes kernel settings read-only: every kernel file system, and what of /proc is not about
/// processes, which drivers extend. A root CMD could otherwise name a program (`core_pattern`, `modprobe`, a cgroup's `release_agent`) that
/// the kernel starts outside of the view.
pub(super) fn freeze_kernel_settings(mounts: &[MountInfo]) -> anyhow::Result<()> {
    freeze_kernel_file_systems(mounts)?;
    for path in settings_in(Path::new("/proc")).context("cannot list /proc")? {
        let shown = shown(&path);
        rustix::mount::mount_bind(&path, &path)
            .with_context(|| format!("cannot bind `{shown}` to itself"))?;
        read_only(&path).with_context(|| format!("cannot make `{shown}` read-only"))?;
    }
    Ok(())
}

/// The directories that are not of processes, and the files beside them that can be written. Links
/// lead to processes.
fn settings_in(proc: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let is_process = name.as_bytes().first().is_some_and(u8::is_ascii_digit);
        let is_setting = match kind.is_dir() {
            true => !is_process && !OPEN_IN_PROC.iter().any(|open| name == *open),
            false => kind.is_file() && entry.metadata().is_ok_and(|meta| meta.mode() & 0o222 != 0),
        };
        if is_setting {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn read_only(path: &Path) -> std::io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    sys::make_read_only(&path)
}

/// Makes device nodes have no effect but in /dev.
pub(super) fn take_devices(mounts: &[MountInfo]) -> anyhow::Result<()> {
    for mount in mounts.iter().filter(|mount| !mount.point.starts_with("/dev")) {
        // Where /dev is no mount of its own, its nodes lie on this one.
        let holds_dev = mount.point == Path::new("/")
            && !mounts.iter().any(|mount| mount.point == Path::new("/dev"));
        let path = CString::new(mount.point.as_os_str().as_bytes())?;
        if !holds_dev && let Err(error) = sys::without_devices(&path) {
            cannot_be_named(&error, mount, mounts)?;
        }
    }
    Ok(())
}

/// Covers every other /proc with the one of CMD's pid namespace: they show the processes outside,
/// and their settings. A file of one, mounted by itself, is covered with /dev/null.
pub(super) fn cover_other_proc(mounts: &[MountInfo]) -> anyhow::Result<()> {
    let is_other = |mount: &&MountInfo| mount.kind == "proc" && !mount.point.starts_with("/proc");
    for mount in mounts.iter().filter(is_other) {
        let point = shown(&mount.point);
        let covered = match rustix::mount::mount_bind_recursive("/proc", &mount.point) {
            Err(Errno::NOTDIR) => rustix::mount::mount_bind("/dev/null", &mount.point),
            other => other,
        };
        match covered {
            // It is covered, or out of this user's reach.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
            Err(Errno::IO | Errno::LOOP) if is_in_circular(mounts, mount) => {}
            other => other.with_context(|| format!("cannot cover `{point}`"))?,
        }
    }
    Ok(())
}

/// A mount that another one hides cannot be named, nor used; nor can one in a view that does not
/// enter it, or that hides the way, and one that shows a directory of the view around it, or lies below
/// such a one.
fn cannot_be_named(
    error: &std::io::Error,
    mount: &MountInfo,
    mounts: &[MountInfo],
) -> anyhow::Result<()> {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOENT | libc::ENOTDIR | libc::EACCES) => Ok(()),
        Some(libc::EIO | libc::ELOOP) if is_in_circular(mounts, mount) => Ok(()),
        Some(libc::ENOTCONN) => bail!(
            "the server of the mount at `{}` is dead; unmount that: `umount -l {}`",
            shown(&mount.point),
            word(&mount.point)
        ),
        _ => bail!("cannot restrict the mount at `{}`: {error}", shown(&mount.point)),
    }
}

/// Covers the nodes of disks with /dev/null: they carry the raw tree's blocks.
pub(super) fn cover_disks() -> anyhow::Result<()> {
    for device in disks(Path::new("/dev"))? {
        rustix::mount::mount_bind("/dev/null", &device)
            .with_context(|| format!("cannot cover the device `{}`", shown(&device)))?;
    }
    Ok(())
}

/// Block devices, and the character devices that reach a disk or memory beside the block layer.
fn disks(dev: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut directories = vec![(dev.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < DEVICE_DEPTH_MAX {
                directories.push((entry.path(), depth + 1));
            } else if kind.is_block_device()
                || (kind.is_char_device() && reaches_disk(&entry.path(), &entry.file_name()))
            {
                found.push(entry.path());
            }
        }
        if found.len() > DEVICES_MAX {
            bail!("there are more than {DEVICES_MAX} device nodes of disks to cover in /dev");
        }
    }
    Ok(found)
}

fn reaches_disk(path: &Path, name: &OsStr) -> bool {
    let name = name.as_bytes();
    let numbered = |prefix: &[u8]| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit))
    };
    let directory = |name: &str| path.parent().is_some_and(|parent| parent.ends_with(name));
    matches!(name, b"mem" | b"kmem" | b"port" | b"loop-control" | b"uinput" | b"uhid" | b"kmsg")
        || ["bsg", "input", "vfio", "raw", "mapper"].into_iter().any(directory)
        || [&b"sg"[..], b"nvme", b"ng", b"st", b"nst", b"raw", b"mtd", b"dax", b"ubi", b"hidraw"]
            .into_iter()
            .any(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_raw_devices_are_known() {
        let is = |path: &str| {
            let path = Path::new(path);
            reaches_disk(path, path.file_name().unwrap())
        };
        for path in [
            "/dev/sg0",
            "/dev/nvme0",
            "/dev/ng0n1",
            "/dev/bsg/0:0:0:0",
            "/dev/mem",
            "/dev/mtd0ro",
            "/dev/dax0.0",
            "/dev/uinput",
            "/dev/input/event0",
        ] {
            assert!(is(path), "{path}");
        }
        for path in ["/dev/null", "/dev/stdin", "/dev/nginx", "/dev/tty1", "/dev/fuse", "/dev/sgx"]
        {
            assert!(!is(path), "{path}");
        }
    }

    #[test]
    fn settings_in_proc_are_told_from_processes() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let proc = home.path();
        for directory in ["1", "4321", "sys", "dynamic_debug", "asound", "pressure", "sysvipc"] {
            std::fs::create_dir(proc.join(directory)).unwrap();
        }
        for (file, mode) in [("meminfo", 0o444), ("sysrq-trigger", 0o200), ("mtrr", 0o644)] {
            std::fs::write(proc.join(file), "").unwrap();
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(proc.join(file), mode).unwrap();
        }
        std::os::unix::fs::symlink("1", proc.join("self")).unwrap();
        let mut found = settings_in(proc).unwrap();
        found.sort();
        let expected = ["asound", "dynamic_debug", "mtrr", "sys", "sysrq-trigger"];
        assert_eq!(found, expected.map(|name| proc.join(name)));
    }

    #[test]
    fn block_devices_are_found() {
        let blocks = || -> anyhow::Result<usize> {
            let entries = std::fs::read_dir("/dev")?.flatten();
            Ok(entries.filter(|e| e.file_type().is_ok_and(|k| k.is_block_device())).count())
        };
        let found = disks(Path::new("/dev")).unwrap();
        assert!(found.len() >= blocks().unwrap());
        assert!(!found.contains(&PathBuf::from("/dev/null")));
    }
}
