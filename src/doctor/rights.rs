//! What this user may do: namespaces, mounts, control groups.

use std::path::{Path, PathBuf};

use rustix::process::WaitOptions;
use tollgate_broker::RegisterError;

use super::check::{Check, line_of};
use crate::sys::{self, Forked};
use crate::{chroot, control};

pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![namespaces()];
    checks.extend([mount_helper(), groups(), sockets(), broker()]);
    checks
}

/// What unshare(2) says to a child that ends at once.
fn try_namespaces(flags: libc::c_int) -> std::io::Result<()> {
    match sys::fork()? {
        Forked::Child => {
            let errno = sys::unshare(flags).err().and_then(|error| error.raw_os_error());
            sys::exit_now(errno.unwrap_or(0).clamp(0, 255));
        }
        Forked::Parent(child) => {
            let status = rustix::process::waitpid(Some(child), WaitOptions::empty())?;
            match status.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(()),
                Some(errno) => Err(std::io::Error::from_raw_os_error(errno)),
                None => Err(std::io::Error::other("the child was ended by a signal")),
            }
        }
    }
}

/// What `run` makes for CMD: mount and pid namespaces, and user namespaces for whoever is not
/// root, and for the second one that locks the mounts.
fn namespaces() -> Check {
    const NAME: &str = "namespaces";
    let privileged = try_namespaces(libc::CLONE_NEWNS | libc::CLONE_NEWPID).is_ok();
    if chroot::is_around() {
        return Check::broken(NAME, chroot::FOUND).mended_by(chroot::REMEDY);
    }
    match try_namespaces(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID) {
        Ok(()) if privileged => Check::ok(NAME, "mount, pid and user namespaces, with privilege"),
        Ok(()) => Check::ok(NAME, "user namespaces, and mount and pid namespaces in them"),
        Err(error) => {
            let why = limit(&error);
            let found = format!("a user namespace cannot be made: {error}");
            Check::broken(NAME, found).mended_by(why)
        }
    }
}

/// The setting that forbids user namespaces, with the command that changes it.
fn limit(error: &std::io::Error) -> String {
    let is = |file: &str, value: &str| line_of(file).as_deref() == Some(value);
    if is("/proc/sys/user/max_user_namespaces", "0") || error.raw_os_error() == Some(libc::ENOSPC) {
        return "sysctl -w user.max_user_namespaces=15000 (as root)".to_owned();
    }
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return "sysctl -w kernel.unprivileged_userns_clone=1 (as root)".to_owned();
    }
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (as root), or an AppArmor \
                profile for tollgate that contains `userns,`"
            .to_owned();
    }
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return "a container's system call filter or missing CAP_SYS_ADMIN: start it with \
                `--security-opt seccomp=unconfined`, or run tollgate outside of it"
            .to_owned();
    }
    "see what the error says".to_owned()
}

/// Whoever is not root mounts with its help; `run` does not need it.
fn mount_helper() -> Check {
    const NAME: &str = "fusermount3";
    let found = ["fusermount3", "fusermount"].into_iter().find_map(in_path);
    let user = rustix::process::geteuid();
    match found {
        Some(path) if !user.is_root() && crate::accounts::name_of_user(user.as_raw()).is_none() => {
            Check::without(
                NAME,
                format!(
                    "{} does not mount for user {}, who has no name",
                    path.display(),
                    user.as_raw()
                ),
                "`tollgate mount` does not work for this user; `tollgate run` does",
            )
            .mended_by("an entry for this user in /etc/passwd")
        }
        Some(path) => Check::ok(NAME, path.display().to_string()),
        None if user.is_root() => Check::note(NAME, "not installed; root does not need it"),
        None => Check::without(
            NAME,
            "not installed",
            "`tollgate mount` does not work for this user; `tollgate run` does",
        )
        .mended_by("apt install fuse3 (or dnf, pacman: fuse3)"),
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Whether a control group can be made below our own: for limits on what CMD uses.
fn groups() -> Check {
    const NAME: &str = "control group";
    const EFFECT: &str = "tollgate cannot limit memory and processes of CMD by itself";
    const REMEDY: &str = "systemd-run --user --scope -p Delegate=yes -- tollgate run ...";
    let own = line_of("/proc/self/cgroup").unwrap_or_default();
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Check::without(NAME, "no unified hierarchy (cgroup v2)", EFFECT);
    };
    let directory = Path::new("/sys/fs/cgroup").join(own.trim_start_matches('/'));
    let probe = directory.join(format!("tollgate-doctor-{}", std::process::id()));
    match std::fs::create_dir(&probe) {
        Ok(()) => {
            let removed = std::fs::remove_dir(&probe);
            let controllers = line_of(directory.join("cgroup.controllers")).unwrap_or_default();
            let left =
                removed.err().map(|error| format!(", and `{}` stays: {error}", probe.display()));
            let text = format!("groups can be made below `{own}` (controllers: {controllers})");
            Check::ok(NAME, text + &left.unwrap_or_default())
        }
        Err(error) => {
            let found = format!("no group can be made below `{own}`: {error}");
            Check::without(NAME, found, EFFECT).mended_by(REMEDY)
        }
    }
}

/// Where servers and `status` meet.
fn sockets() -> Check {
    const NAME: &str = "control sockets";
    let directory = control::directory();
    let shown = directory.path().display().to_string();
    match directory.servers("view") {
        Ok(found) => {
            let servers = crate::messages::count(found.found.len(), "server");
            Check::ok(NAME, format!("`{shown}`, {servers}"))
        }
        Err(error) => {
            let effect = "`tollgate status` and `reload` do not find servers";
            let found = crate::messages::in_words(&error.into());
            Check::without(NAME, found, effect).mended_by(format!(
                "give `{shown}` to this user with mode 700, or set XDG_RUNTIME_DIR to a directory \
                     of this user's"
            ))
        }
    }
}

/// The privileged helper that registers files for those who may not.
fn broker() -> Check {
    let found: Vec<_> = crate::broker::usual_places()
        .map(|place| {
            let answer = tollgate_broker::look(&place);
            (place, answer)
        })
        .collect();
    let is_unit = |directory: &&str| Path::new(directory).join(BROKER_UNIT).exists();
    broker_of(
        found,
        rustix::process::geteuid().is_root(),
        Path::new("/run/systemd/system").is_dir(),
        UNIT_DIRECTORIES.iter().any(is_unit),
    )
}

const BROKER_UNIT: &str = "tollgate-broker.socket";
const UNIT_DIRECTORIES: [&str; 3] =
    ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// Where a broker may listen, with what a look there found; whether systemd runs, and has the unit.
fn broker_of(
    found: Vec<(PathBuf, Result<(), RegisterError>)>,
    is_root: bool,
    has_systemd: bool,
    has_unit: bool,
) -> Check {
    const NAME: &str = "broker";
    const EFFECT: &str = "no passthrough for this user: files are read and written by tollgate, \
                          slower";
    let (mut missed, mut strange) = (Vec::new(), String::new());
    for (place, answer) in found {
        match answer {
            Ok(()) => {
                return Check::ok(NAME, format!("listens at `{}`", place.display()) + &strange);
            }
            Err(RegisterError::Unreachable(error)) => {
                missed.push(format!("none at `{}` ({error})", place.display()));
            }
            Err(error) => {
                let text = format!("`{}` is not used ({error})", place.display());
                strange += &format!("; {text}");
                missed.push(text);
            }
        }
    }
    if is_root {
        return Check::note(NAME, "none; root does not need one");
    }
    let remedy = match (has_systemd, has_unit) {
        (true, true) => format!("systemctl enable --now {BROKER_UNIT} (as root)"),
        (true, false) => format!(
            "install the package, which brings {BROKER_UNIT} (docs/install.md), or start \
             `tollgate broker` as root"
        ),
        (false, _) => "start `tollgate broker` as root; it stays until it is ended".to_owned(),
    };
    Check::without(NAME, missed.join(", "), EFFECT).mended_by(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(errno: i32) -> Result<(), RegisterError> {
        Err(std::io::Error::from_raw_os_error(errno).into())
    }

    fn told(errno: Option<i32>, is_root: bool, systemd: bool, unit: bool) -> Check {
        let answer = errno.map_or(Ok(()), failed);
        let own = (PathBuf::from("/own"), failed(libc::ENOENT));
        broker_of(vec![own, ("/usual".into(), answer)], is_root, systemd, unit)
    }

    #[test]
    fn a_broker_that_listens_needs_no_remedy() {
        let check = told(None, false, true, true);
        assert_eq!((check.found.as_str(), check.remedy), ("listens at `/usual`", None));
    }

    #[test]
    fn one_of_another_user_is_named_and_not_used() {
        let strange = || ("/own".into(), Err(RegisterError::NotOfRoot(1002)));
        let told = |usual| broker_of(vec![strange(), ("/usual".into(), usual)], false, true, true);
        let check = told(failed(libc::ENOENT));
        assert!(check.found.starts_with("`/own` is not used (a process of user 1002"), "{check:?}");
        assert!(check.remedy.is_some());
        let check = told(Ok(()));
        assert!(check.found.starts_with("listens at `/usual`; `/own` is not used"), "{check:?}");
        assert!(check.remedy.is_none());
    }

    #[test]
    fn a_user_without_a_broker_is_told_how_root_starts_one_here() {
        let remedy = |systemd, unit| {
            let check = told(Some(libc::ECONNREFUSED), false, systemd, unit);
            assert!(
                check.found.contains("`/own`") && check.found.contains("`/usual`"),
                "{check:?}"
            );
            assert!(check.effect.is_some_and(|effect| effect.contains("no passthrough")));
            check.remedy.unwrap()
        };
        let enable = "systemctl enable --now tollgate-broker.socket (as root)";
        assert_eq!(remedy(true, true), enable);
        assert!(remedy(true, false).starts_with("install the package"));
        assert!(remedy(false, false).starts_with("start `tollgate broker` as root"));
    }

    #[test]
    fn root_is_told_that_it_needs_none() {
        let check = told(Some(libc::ENOENT), true, true, true);
        assert_eq!((check.found.as_str(), check.effect), ("none; root does not need one", None));
    }
}
