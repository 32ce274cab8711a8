//! The set-user-id helper `fusermount3`: mounts for users who may not, and hands over the
//! descriptor through a socket that it finds by number in `_FUSE_COMMFD`.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::error::MountError;
use super::options::MountOptions;
use crate::device::Device;

const HELPER: &str = "fusermount3";

pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    options.check()?;
    let system = |source| MountError::System { path: path.into(), source };
    let (ours, theirs) = UnixStream::pair().map_err(system)?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(option_string(options)).arg("--").arg(path);
    // The socket is the helper's standard input, so that no descriptor needs to be made
    // inheritable.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    run(command, path)?;
    receive(&ours).map_err(system)
}

pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    command.arg("--").arg(path).stdin(Stdio::null());
    run(command, path).map_err(|error| match error {
        MountError::NotPermitted { path, why } => MountError::UnmountNotPermitted { path, why },
        other => other,
    })
}

fn run(mut command: Command, path: &Path) -> Result<(), MountError> {
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let Output { status, stderr, .. } = output.map_err(|source| not_run(source, path))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stderr);
    let message = if said.trim().is_empty() { status.to_string() } else { said.trim().into() };
    Err(MountError::Helper { path: path.into(), message })
}

/// `PermissionDenied` comes from a file without the right to execute it (distributions can give
/// that to a group alone), and from directories in PATH that may not be searched.
fn not_run(source: io::Error, path: &Path) -> MountError {
    let why = match source.kind() {
        io::ErrorKind::NotFound => "no privilege, and no fusermount3 in PATH",
        io::ErrorKind::PermissionDenied => "no privilege, and fusermount3 may not be executed",
        _ => return MountError::System { path: path.into(), source },
    };
    MountError::NotPermitted { path: path.into(), why }
}

/// The helper insists on `nosuid` and `nodev` for unprivileged users and adds them itself.
fn option_string(options: &MountOptions) -> OsString {
    let mut all = options.kernel_options();
    let mut flag = |on, name: &str| {
        if on {
            all.push(name.into());
        }
    };
    flag(options.read_only, "ro");
    flag(options.nosuid, "nosuid");
    flag(options.nodev, "nodev");
    flag(options.noexec, "noexec");
    flag(options.noatime, "noatime");
    all.push(format!("subtype={}", options.subtype));
    let mut text = OsString::from(all.join(","));
    text.push(",fsname=");
    text.push(escape(OsStr::new(&options.source)));
    text
}

/// A comma ends an option and a backslash escapes.
fn escape(value: &OsStr) -> OsString {
    let mut out = Vec::new();
    for &byte in value.as_bytes() {
        if byte == b',' || byte == b'\\' {
            out.push(b'\\');
        }
        out.push(byte);
    }
    OsString::from_vec(out)
}

/// Receives the one descriptor that the helper sends.
fn receive(socket: &UnixStream) -> io::Result<Device> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let missing = || io::Error::new(io::ErrorKind::UnexpectedEof, "fusermount3 sent no descriptor");
    fd.map(Device::from_fd).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_cannot_smuggle_options_in() {
        let options = MountOptions { source: "/a,allow_other\\".into(), ..MountOptions::default() };
        assert_eq!(
            option_string(&options),
            "default_permissions,nosuid,nodev,subtype=tollgate,fsname=/a\\,allow_other\\\\"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_helper_that_cannot_be_started_says_why() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(HELPER);
        let said = || run(Command::new(&file), dir.path()).unwrap_err().to_string();
        assert!(said().contains("no fusermount3 in PATH"), "{}", said());
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        // Not even root executes what nobody may.
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(said().contains("fusermount3 may not be executed"), "{}", said());
        assert!(said().contains("install fusermount3"), "{}", said());
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn who_may_not_unmount_is_told_of_unmounting() {
        let error = unmount(Path::new("/proc"), false).unwrap_err();
        let said = error.to_string();
        match error {
            MountError::Helper { .. } => {}
            _ => assert!(said.starts_with("unmounting /proc is not permitted (no priv"), "{said}"),
        }
    }

    /// With the real helper, where it is installed.
    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn the_helper_mounts_and_unmounts() {
        let (dir, options) = (tempfile::tempdir().unwrap(), MountOptions::default());
        let device = match mount(dir.path(), &options) {
            Ok(device) => device,
            Err(MountError::NotPermitted { why, .. }) => return eprintln!("SKIPPED: {why}"),
            Err(error) => panic!("{error}"),
        };
        assert!(crate::mount::table::is_ours(&dir.path().canonicalize().unwrap(), "tollgate"));
        drop(device);
        assert!(crate::stale(dir.path()));
        unmount(dir.path(), false).unwrap();
        let error = unmount(dir.path(), false).unwrap_err();
        assert!(matches!(error, MountError::Helper { .. }), "{error}");
    }
}
