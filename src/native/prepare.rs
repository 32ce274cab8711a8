//! Which native directories can be mounted, found out before anything is.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::Errno;
use tollgate_policy::{Kind, NativeDirectory, Policy};
use tollgate_view::Unavailable;

use super::links::{self, Beside};
use super::mounts;
use crate::escape::{escaped, shown};
use crate::{messages, mountinfo, tree};

/// What is native, and what is not although the policy asks for it.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// Paths, relative to DIR, of the directories to mount.
    pub(crate) to_mount: Vec<PathBuf>,
    /// The others, which the view serves like everything else, each with the reason.
    pub(crate) not_native: Vec<Unavailable>,
}

impl Prepared {
    fn leave_out(&mut self, directory: &Path, reason: String) {
        let feature = format!("native directory `{}`", directory.display());
        self.not_native.push(Unavailable { feature, reason });
    }
}

/// Checks the native directories of a policy and makes those that it asks for. Those that are not
/// native are named with a message.
///
/// # Errors
/// A directory is a symbolic link, lies behind one, is no directory, or cannot be made.
pub(crate) fn prepare(policy: &Policy, source: &OwnedFd) -> anyhow::Result<Prepared> {
    let mut prepared = Prepared::default();
    // Also those that lie in another one: its mount shows them.
    let outermost = policy.native();
    for native in policy.native_to_make() {
        let is_inner = !outermost.iter().any(|other| other.path == native.path);
        if !is_there(&native, source)? && is_inner {
            prepared.leave_out(Path::new(&native.path), say_missing(&native));
        }
    }
    // What is only recorded hides nothing.
    let enforced = policy.enforced();
    let enforced = enforced.as_ref().unwrap_or(policy);
    for native in outermost {
        let path = PathBuf::from(&native.path);
        if let Some(hidden) = hidden_above(enforced, &path) {
            let reason = format!("the policy hides `{}`, so nobody can reach it", hidden.display());
            let left_out = format!("native directory `{}`: {reason}", path.display());
            messages::note(&escaped(&left_out));
            prepared.leave_out(&path, reason);
        } else if is_there(&native, source)? {
            prepared.to_mount.push(path);
        } else {
            prepared.leave_out(&path, say_missing(&native));
        }
    }
    for link in links::find(policy, source, &prepared.to_mount) {
        messages::warn(&escaped(&link.to_string()));
        prepared.to_mount.retain(|directory| *directory != link.directory);
        prepared.leave_out(&link.directory, link.to_string());
    }
    Ok(prepared)
}

/// Leaves out of `native`, paths relative to `dir`, the directories with mounts that show files of
/// one of `directories`; each with the reason.
pub(crate) fn leave_out_mounted(
    dir: &Path,
    native: &mut Vec<PathBuf>,
    directories: &[&Path],
) -> Vec<Unavailable> {
    let mut prepared = Prepared::default();
    if native.is_empty() {
        return Vec::new();
    }
    let mounts = match mountinfo::read() {
        Ok(mounts) => mounts,
        Err(error) => {
            let reason = format!("what is mounted in it is not known: {error:#}");
            native.drain(..).for_each(|directory| prepared.leave_out(&directory, reason.clone()));
            return prepared.not_native;
        }
    };
    native.retain(|directory| {
        let Some(point) = mounts::showing(&mounts, &dir.join(directory), directories) else {
            return true;
        };
        let reason = format!(
            "what is mounted at `{}` shows files that rules decide over; unmount it",
            point.display()
        );
        messages::warn(&escaped(&format!(
            "`{}` is not native but served by tollgate: {reason}",
            directory.display()
        )));
        prepared.leave_out(directory, reason);
        false
    });
    prepared.not_native
}

/// Leaves out of `native` the directories with files that rules of other views protect; each with
/// the reason.
pub(crate) fn leave_out_linked(
    source: &OwnedFd,
    native: &mut Vec<PathBuf>,
    others: &[Beside<'_>],
) -> Vec<Unavailable> {
    let mut prepared = Prepared::default();
    for link in links::find_beside(source, native, others) {
        if native.contains(&link.directory) {
            messages::warn(&escaped(&link.to_string()));
            native.retain(|directory| *directory != link.directory);
            prepared.leave_out(&link.directory, link.to_string());
        }
    }
    prepared.not_native
}

/// The directory, `path` or one above it, that callers do not see.
fn hidden_above<'p>(policy: &Policy, path: &'p Path) -> Option<&'p Path> {
    let is_hidden = |path: &&Path| {
        !path.as_os_str().is_empty()
            && policy.hidden(path.as_os_str().as_bytes(), Kind::Directory).is_some()
    };
    path.ancestors().find(is_hidden)
}

fn is_there(native: &NativeDirectory, source: &OwnedFd) -> anyhow::Result<bool> {
    let path = Path::new(&native.path);
    let shown = shown(path);
    match tree::open_beneath(source.as_fd(), path) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) if native.create => match make(source, path) {
            // Nobody can make it, so nobody waits for it.
            Err(error) if error.downcast_ref::<Errno>() == Some(&Errno::ROFS) => Ok(false),
            made => made
                .map(|()| true)
                .with_context(|| format!("native directory `{shown}` cannot be made")),
        },
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::LOOP) => bail!(
            "native directory `{shown}`: it or a directory above it is a symbolic link, which can \
             lead anywhere; name the directory that is meant"
        ),
        Err(Errno::NOTDIR) => bail!("native directory `{shown}` is not a directory"),
        Err(error) => Err(error).with_context(|| format!("native directory `{shown}`")),
    }
}

/// Says that a directory is not there, and returns that as a reason.
fn say_missing(native: &NativeDirectory) -> String {
    let (missing, hint) = if native.create {
        ("does not exist, and cannot be made: the file system is read-only", "")
    } else {
        (
            "does not exist",
            "; what is made there is served by tollgate (`create = true` makes it at the start)",
        )
    };
    messages::note(&format!(
        "native directory `{}` {missing}{hint}",
        shown(Path::new(&native.path))
    ));
    format!("it {missing}")
}

/// Makes the directory and those above it that are missing, as `mkdir -p` does. What root makes
/// belongs to the owner of the directory that it lies in.
fn make(source: &OwnedFd, path: &Path) -> anyhow::Result<()> {
    let mut above = source.try_clone()?;
    for name in path {
        let made = match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let directory = tree::open_beneath(above.as_fd(), Path::new(name))?;
        if made && rustix::process::geteuid().is_root() {
            let owner = rustix::fs::fstat(&above)?;
            let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
            rustix::fs::chownat(&directory, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        above = directory;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn prepared(home: &Path, rules: &str) -> anyhow::Result<Vec<PathBuf>> {
        let policy = Policy::parse(rules, "p.toml").unwrap();
        prepare(&policy, &tree::open(home).unwrap().1).map(|prepared| prepared.to_mount)
    }

    fn native(path: &str, rest: &str) -> String {
        format!("[[rule]]\npath = '{path}'\naction = 'native'\n{rest}\n")
    }

    #[test]
    fn a_missing_directory_is_left_to_the_view_or_made() {
        let home = tempfile::tempdir().unwrap();
        assert!(prepared(home.path(), &native("a/b", "")).unwrap().is_empty());
        let made = prepared(home.path(), &native("a/b", "create = true")).unwrap();
        assert_eq!(made, [Path::new("a/b")]);
        let found = std::fs::metadata(home.path().join("a/b")).unwrap();
        assert_eq!(found.uid(), std::fs::metadata(home.path()).unwrap().uid());
    }

    #[test]
    fn a_directory_in_another_native_one_is_made_as_well() {
        let home = tempfile::tempdir().unwrap();
        let rules = native("a/b", "create = true") + &native("a", "create = true");
        assert_eq!(prepared(home.path(), &rules).unwrap(), [Path::new("a")]);
        assert!(home.path().join("a/b").is_dir());
    }

    #[test]
    fn a_directory_in_a_hidden_one_is_left_out() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("a/b")).unwrap();
        let rules = native("a/b", "") + "[[rule]]\npath = 'a'\naction = 'hide'\n";
        let policy = Policy::parse(&rules, "p.toml").unwrap();
        let prepared = prepare(&policy, &tree::open(home.path()).unwrap().1).unwrap();
        assert!(prepared.to_mount.is_empty());
        assert_eq!(prepared.not_native[0].feature, "native directory `a/b`");
    }

    #[test]
    fn a_directory_in_one_that_is_only_recorded_to_be_hidden_is_native() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("a/b")).unwrap();
        let rules = native("a/b", "") + "[[rule]]\npath = 'a'\naction = 'hide'\nmode = 'audit'\n";
        assert_eq!(prepared(home.path(), &rules).unwrap(), [Path::new("a/b")]);
    }

    #[test]
    fn what_root_makes_belongs_to_the_owner_of_the_tree() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: not root");
            return;
        }
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(home.path(), Some(1234), Some(4321)).unwrap();
        prepared(home.path(), &native("a/b", "create = true")).unwrap();
        for path in ["a", "a/b"] {
            let found = std::fs::metadata(home.path().join(path)).unwrap();
            assert_eq!((found.uid(), found.gid()), (1234, 4321));
        }
    }

    #[test]
    fn links_and_files_are_refused() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("real/sub")).unwrap();
        std::os::unix::fs::symlink("real", home.path().join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", home.path().join("dangling")).unwrap();
        std::fs::write(home.path().join("file"), "").unwrap();
        let message =
            |path| prepared(home.path(), &native(path, "create = true")).unwrap_err().to_string();
        for path in ["link", "link/sub", "link/new", "dangling"] {
            assert!(message(path).contains("is a symbolic link"), "{path}: {}", message(path));
        }
        assert!(message("file").contains("is not a directory"));
        assert!(message("file/new").contains("is not a directory"));
    }
}
