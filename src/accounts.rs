//! Users and groups by name, and executables by path, as the machine knows them.

use crate::files;

/// Looks names up where the C library does: /etc/passwd, /etc/group, and what nsswitch.conf says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accounts;

impl tollgate_policy::Names for Accounts {
    fn user(&self, name: &str) -> Option<u32> {
        files::elsewhere().map_or_else(|| user(name), |elsewhere| elsewhere.user(name))
    }

    fn group(&self, name: &str) -> Option<u32> {
        files::elsewhere().map_or_else(|| group(name), |elsewhere| elsewhere.group(name))
    }

    fn executable(&self, path: &str) -> Option<String> {
        // A server that is confined to DIR sees no programs. It is not worth a question to another
        // process: who reads the policy before a start is told.
        if files::elsewhere().is_some() { None } else { executable(path) }
    }
}

/// The id of the user of this name, looked up by this process.
pub(crate) fn user(name: &str) -> Option<u32> {
    uzers::get_user_by_name(name).map(|user| user.uid())
}

/// The id of the group of this name, looked up by this process.
pub(crate) fn group(name: &str) -> Option<u32> {
    uzers::get_group_by_name(name).map(|group| group.gid())
}

/// The path without symbolic links of what is at `path`, where that is another one.
pub(crate) fn executable(path: &str) -> Option<String> {
    let real = std::fs::canonicalize(path).ok()?.into_os_string().into_string().ok()?;
    (real != path).then_some(real)
}

/// The name of the user of this id.
pub(crate) fn name_of_user(uid: u32) -> Option<String> {
    uzers::get_user_by_uid(uid).map(|user| user.name().to_string_lossy().into_owned())
}

/// The home directory that the entry of this user has.
pub(crate) fn home(uid: u32) -> Option<std::path::PathBuf> {
    use uzers::os::unix::UserExt;
    uzers::get_user_by_uid(uid).map(|user| user.home_dir().to_owned())
}

/// The name of the group of this id, and the names of those that are listed as its members.
pub(crate) fn members(gid: u32) -> Option<(String, Vec<String>)> {
    use uzers::os::unix::GroupExt;
    let text = |name: &std::ffi::OsStr| name.to_string_lossy().into_owned();
    let group = uzers::get_group_by_gid(gid)?;
    Some((text(group.name()), group.members().iter().map(|name| text(name)).collect()))
}

#[cfg(test)]
mod tests {
    use tollgate_policy::Names;

    use super::*;

    #[test]
    fn root_is_known_and_nobody_else_is_made_up() {
        assert_eq!((Accounts.user("root"), Accounts.group("root")), (Some(0), Some(0)));
        assert_eq!(Accounts.user("no such user"), None);
        assert_eq!(Accounts.group(""), None);
    }

    #[test]
    fn an_executable_behind_a_link_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        std::fs::write(path("program"), "").unwrap();
        std::os::unix::fs::symlink("program", path("link")).unwrap();
        std::os::unix::fs::symlink(".", path("bin")).unwrap();
        assert_eq!(Accounts.executable(&path("program")), None);
        assert_eq!(Accounts.executable(&path("missing")), None);
        assert_eq!(Accounts.executable(&path("link")), Some(path("program")));
        assert_eq!(Accounts.executable(&path("bin/program")), Some(path("program")));
    }
}
