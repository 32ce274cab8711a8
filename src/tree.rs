//! The directories that a user names: DIR, whose files are shown, and MNT, where they are shown.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// DIR, checked.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Absolute, without symbolic links.
    pub(crate) path: PathBuf,
    /// Device and inode number.
    pub(crate) identity: (u64, u64),
}

/// Opens DIR, before anything is mounted over it.
///
/// # Errors
/// When DIR does not exist, is no directory, or cannot be read.
pub(crate) fn open(dir: &Path) -> anyhow::Result<(Tree, OwnedFd)> {
    open_as(dir, &format!("DIR `{}`", crate::escape::shown(dir)))
}

/// Opens a directory that messages call `name`.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_as(dir: &Path, name: &str) -> anyhow::Result<(Tree, OwnedFd)> {
    let path = match std::fs::canonicalize(dir) {
        Ok(path) => path,
        Err(error) => {
            return Err(anyhow!("{name} {}{}", why(&error), crate::nearest::path(dir)));
        }
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let source = match rustix::fs::openat(CWD, &path, flags, Mode::empty()) {
        Err(Errno::NOTDIR) => bail!("{name} is not a directory"),
        Err(error) => return Err(anyhow!("{name} {}", why(&error.into()))),
        Ok(source) => source,
    };
    if tollgate_fuse::stale(&path) {
        bail!("{name} is a view whose server is dead; clean it up with `tollgate umount`");
    }
    let access = Access::READ_OK | Access::EXEC_OK;
    if let Err(error) = rustix::fs::accessat(CWD, &path, access, AtFlags::EACCESS) {
        return Err(anyhow!("{name} {}", why(&error.into())));
    }
    let identity = identity(&source)?;
    Ok((Tree { path, identity }, source))
}

/// Refuses what a view refuses, but only once it is mounted: over /proc, nothing goes on from there.
///
/// # Errors
/// Where the files of `source`, called `name`, steer the kernel.
pub(crate) fn refuse_kernel_file_system(name: &str, source: &OwnedFd) -> anyhow::Result<()> {
    if tollgate_view::is_kernel_file_system(source.as_fd()) {
        bail!(
            "{name} cannot be viewed: it is of a file system whose files steer the kernel (proc, \
             sysfs and the like)"
        );
    }
    Ok(())
}

/// Opens a directory below `top`, through no symbolic link.
///
/// # Errors
/// The error of openat2(2): `ELOOP` for a symbolic link, `ENOTDIR` for a file.
pub(crate) fn open_beneath(top: BorrowedFd<'_>, directory: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(top, directory, flags, Mode::empty(), resolve)
}

/// Device and inode number of what `fd` refers to.
///
/// # Errors
/// The error of fstat(2).
pub(crate) fn identity(fd: impl AsFd) -> anyhow::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd).context("fstat")?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether `fd` refers to a directory.
pub(crate) fn is_directory(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Checks MNT: an empty directory outside of DIR. Answers its path without symbolic links.
///
/// # Errors
/// With the reason why nothing can be mounted there.
pub(crate) fn check_mount_point(mnt: &Path, tree: &Tree) -> anyhow::Result<PathBuf> {
    let shown = crate::escape::shown(mnt);
    let path = std::fs::canonicalize(mnt).map_err(|error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        if missing && mnt.is_symlink() {
            return anyhow!(
                "MNT `{shown}` is a symbolic link that leads nowhere; name a directory"
            );
        }
        let make = || format!("; make it: `mkdir {}`", crate::escape::word(mnt));
        let remedy = if missing { make() } else { String::new() };
        anyhow!("MNT `{shown}` {}{remedy}", why(&error))
    })?;
    refuse_around(mnt, &path, tree)?;
    // Before MNT itself is asked for: whose server hangs, nobody gets an answer.
    let mounts = crate::mountinfo::read()?;
    if let Some(mount) = crate::mountinfo::at(&mounts, &path) {
        bail!("MNT `{shown}` is already a mount point (of type {}); unmount it first", mount.kind);
    }
    let stat =
        rustix::fs::stat(&path).map_err(|error| anyhow!("MNT `{shown}` {}", why(&error.into())))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        bail!("MNT `{shown}` is not a directory");
    }
    let mut entries =
        std::fs::read_dir(&path).map_err(|error| anyhow!("MNT `{shown}` {}", why(&error)))?;
    if entries.next().is_some() {
        bail!("MNT `{shown}` is not empty; name an empty directory");
    }
    Ok(path)
}

/// Refuses an MNT, at `path`, that is DIR, lies in it, or contains it.
///
/// # Errors
/// When it does.
pub(crate) fn refuse_around(mnt: &Path, path: &Path, tree: &Tree) -> anyhow::Result<()> {
    let shown = crate::escape::shown(mnt);
    let dir = crate::escape::shown(&tree.path);
    if path == tree.path {
        bail!("MNT `{shown}` is DIR itself; to cover DIR for one command use `tollgate run`");
    }
    if path.starts_with(&tree.path) {
        bail!(
            "MNT `{shown}` lies inside DIR `{dir}`, so the view would contain itself; name a directory beside DIR"
        );
    }
    if tree.path.starts_with(path) {
        bail!("MNT `{shown}` contains DIR `{dir}`, which would vanish beneath the view");
    }
    // By another path: a mount inside a bind mount of DIR can show in DIR itself.
    if path.ancestors().skip(1).any(|above| is_tree(above, tree)) {
        bail!(
            "MNT `{shown}` lies inside DIR `{dir}` by another path, so the view would contain \
             itself"
        );
    }
    Ok(())
}

fn is_tree(path: &Path, tree: &Tree) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == tree.identity)
}

/// Continues a sentence that begins with the path.
pub(crate) fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "does not exist".to_owned(),
        Some(libc::ENOTDIR) => {
            "cannot be reached: a part of the path is not a directory".to_owned()
        }
        Some(libc::EACCES) => {
            "cannot be read: permission denied; it has to be readable and searchable by this user"
                .to_owned()
        }
        Some(libc::ELOOP) => {
            "cannot be reached: symbolic links lead in a circle; name the directory itself"
                .to_owned()
        }
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) => {
            "is a view whose server is dead; clean it up with `tollgate umount`".to_owned()
        }
        Some(libc::ENAMETOOLONG) => {
            "cannot be used: the path, or a name in it, is too long (4,095 and 255 bytes at most)"
                .to_owned()
        }
        _ => format!("cannot be used: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> (tempfile::TempDir, Tree) {
        let root = tempfile::tempdir().unwrap();
        for name in ["dir/sub", "empty", "full/x"] {
            std::fs::create_dir_all(root.path().join(name)).unwrap();
        }
        std::fs::write(root.path().join("file"), "").unwrap();
        let (tree, _) = open(&root.path().join("dir")).unwrap();
        (root, tree)
    }

    #[test]
    fn mount_points_are_refused_with_the_reason() {
        let (root, tree) = fixture();
        let message =
            |name: &str| check_mount_point(&root.path().join(name), &tree).unwrap_err().to_string();
        assert!(message("missing").contains("does not exist; make it: `mkdir "));
        assert!(message("file").ends_with("is not a directory"));
        assert!(message("full").contains("is not empty"));
        assert!(message("dir").contains("`tollgate run`"));
        assert!(message("dir/sub").contains("lies inside DIR"));
        assert!(message("").contains("contains DIR"));
        assert!(message("empty/../dir/sub").contains("lies inside DIR"));
        let error = check_mount_point(Path::new("/proc"), &tree).unwrap_err().to_string();
        assert!(error.contains("already a mount point (of type proc)"), "{error}");
    }

    #[test]
    fn an_empty_directory_outside_is_taken_through_links() {
        let (root, tree) = fixture();
        let link = root.path().join("link");
        std::os::unix::fs::symlink("empty", &link).unwrap();
        let path = check_mount_point(&link, &tree).unwrap();
        assert_eq!(path, std::fs::canonicalize(root.path().join("empty")).unwrap());
    }

    #[test]
    fn a_missing_tree_and_a_file_are_refused() {
        let (root, _) = fixture();
        let message = |name: &str| open(&root.path().join(name)).unwrap_err().to_string();
        assert!(message("missing").ends_with("does not exist"));
        assert!(message("file").ends_with("is not a directory"));
        assert!(message("file/x").contains("not a directory"));
    }
}
