//! How far a user's privilege goes, and what mounts are made in.

use anyhow::Context;
use rustix::mount::MountPropagationFlags;

use crate::sys;

/// How far this user's privilege goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Privilege {
    /// May mount in the user namespace it was started in.
    Mounter,
    /// May mount only in a user namespace of its own.
    User,
}

/// Takes the process, which has one thread, into a mount namespace in which it may mount; without
/// privilege, into a user namespace first.
///
/// # Errors
/// When that is not allowed here.
pub(super) fn enter_mount_namespace() -> anyhow::Result<Privilege> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let privilege = match sys::unshare(libc::CLONE_NEWNS) {
        Ok(()) => Privilege::Mounter,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).context(
                "no privilege to mount, and user namespaces are not allowed here; run as root, or \
                 allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
                 kernel.apparmor_restrict_unprivileged_userns)",
            )?;
            let own = |file: &str, text: String| {
                std::fs::write(file, text).with_context(|| format!("cannot write {file}"))
            };
            own("/proc/self/setgroups", "deny".to_owned())?;
            own("/proc/self/uid_map", format!("{uid} {uid} 1", uid = uid.as_raw()))?;
            own("/proc/self/gid_map", format!("{gid} {gid} 1", gid = gid.as_raw()))?;
            Privilege::User
        }
        Err(error) => return Err(error).context("cannot enter a mount namespace"),
    };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).context("cannot make mounts private")?;
    Ok(privilege)
}
