//! `--user`: who CMD runs as.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use rustix::fs::{Gid, Uid};
use uzers::os::unix::UserExt;

/// A user with groups and, if the user has an entry, name, home and shell.
#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) uid: u32,
    gid: u32,
    groups: Vec<u32>,
    entry: Option<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: OsString,
    home: PathBuf,
    shell: PathBuf,
}

impl User {
    /// Finds the user that `text`, `NAME` or `UID[:GID]`, means.
    ///
    /// # Errors
    /// When there is no such user, or this process may not become it.
    pub(super) fn find(text: &str) -> anyhow::Result<Self> {
        let user = Self::parse(text)?;
        let own = rustix::process::geteuid();
        if !own.is_root() {
            let advice =
                if user.uid == own.as_raw() { ", and CMD is this one's; leave it out" } else { "" };
            bail!("--user `{text}`: only root may run CMD as another user{advice}");
        }
        Ok(user)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
        let expected = || anyhow!("--user `{text}`: expected NAME or UID[:GID]");
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(number(group).ok_or_else(expected)?)),
            None => (text, None),
        };
        let entry = match number(user) {
            Some(uid) => uzers::get_user_by_uid(uid),
            None if group.is_some() || user.is_empty() => return Err(expected()),
            None => Some(
                uzers::get_user_by_name(user)
                    .with_context(|| format!("--user `{text}`: there is no such user"))?,
            ),
        };
        let uid = entry.as_ref().map(uzers::User::uid).or(number(user)).ok_or_else(expected)?;
        let gid = group.or(entry.as_ref().map(uzers::User::primary_group_id)).unwrap_or(uid);
        // A group that was named is the only one.
        let of_entry = entry.as_ref().filter(|_| group.is_none()).and_then(uzers::User::groups);
        let groups = of_entry.unwrap_or_default().iter().map(uzers::Group::gid).collect();
        let entry = entry.map(|entry| Entry {
            name: entry.name().to_owned(),
            home: entry.home_dir().to_owned(),
            shell: entry.shell().to_owned(),
        });
        Ok(Self { uid, gid, groups, entry })
    }

    pub(super) fn home(&self) -> Option<PathBuf> {
        self.entry.as_ref().map(|entry| entry.home.clone())
    }

    /// The variables of the environment that tell who one is.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let Some(entry) = &self.entry else { return Vec::new() };
        let text = |path: &PathBuf| OsString::from(path);
        vec![
            ("HOME", text(&entry.home)),
            ("SHELL", text(&entry.shell)),
            ("USER", entry.name.clone()),
            ("LOGNAME", entry.name.clone()),
        ]
    }

    /// Makes the calling process this user's, for ever. The process must have one thread.
    pub(super) fn become_it(&self) -> anyhow::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let mut groups: Vec<_> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        if groups.is_empty() {
            groups.push(gid);
        }
        let named = || {
            let name = self.entry.as_ref().map(|entry| entry.name.as_bytes().escape_ascii());
            name.map_or_else(|| self.uid.to_string(), |name| name.to_string())
        };
        // Groups first: they need the privilege that the user id gives up.
        rustix::thread::set_thread_groups(&groups)
            .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
            .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid))
            .with_context(|| format!("cannot become user {}", named()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_need_no_entry() {
        let user = User::parse("4321:4322").unwrap();
        assert_eq!((user.uid, user.gid, user.groups.len()), (4321, 4322, 0));
        let root = User::parse("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(root.home(), User::parse("0").unwrap().home());
    }

    #[test]
    fn what_is_no_user_is_refused() {
        for text in ["", "no-such-user", "root:0", "1:x", "1:", "4294967295", "-1", "0x1"] {
            assert!(User::parse(text).is_err(), "{text}");
        }
    }
}
