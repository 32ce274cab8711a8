//! What is at a path, as a policy wants to know it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tollgate_policy::{HEAD_LEN, InodeFacts, Kind};

use crate::escape::{escaped, shown};
use crate::{nearest, tree};

/// Checks that PATH is relative and stays inside; leaves out `.` and slashes that say nothing. Rules
/// are about the path as a view has it.
pub(crate) fn relative(path: &OsStr) -> anyhow::Result<OsString> {
    let shown = escaped(&path.to_string_lossy());
    let bytes = path.as_bytes();
    if bytes.starts_with(b"/") {
        bail!("PATH `{shown}` is absolute; name it relative to DIR, as in `src/main.rs`");
    }
    if bytes.split(|byte| *byte == b'/').any(|part| part == b"..") {
        bail!("PATH `{shown}` contains `..`; name it relative to DIR, without");
    }
    let parts = bytes.split(|byte| *byte == b'/').filter(|part| !matches!(part, [] | [b'.']));
    Ok(OsString::from_vec(parts.collect::<Vec<_>>().join(&b'/')))
}

/// What the policy wants to know about a file.
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    pub(crate) head: Option<Vec<u8>>,
}

impl Found {
    /// As a policy has it.
    pub(super) fn inode(&self) -> InodeFacts<'_> {
        InodeFacts { kind: self.kind, size: self.size, head: self.head.as_deref() }
    }

    /// It is taken to hold nothing.
    pub(super) fn empty(self) -> Self {
        let head = (self.kind == Kind::File).then(Vec::new);
        Self { head, ..self }
    }

    /// One that is about to be made.
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, size: 0, head: Some(Vec::new()) }
    }

    /// A regular file, or a directory when the path ends like one.
    pub(crate) fn imagined(path: &OsStr) -> Self {
        let bytes = path.as_bytes();
        let is_directory = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
        let directory = is_directory || matches!(bytes, b"" | b".");
        let kind = if directory { Kind::Directory } else { Kind::File };
        Self { kind, size: 0, head: None }
    }
}

/// Looks at the file without following links or leaving DIR.
pub(crate) fn look(dir: &Path, path: &OsStr) -> anyhow::Result<Found> {
    let (_, source) = tree::open(dir)?;
    let path = if path.is_empty() { OsStr::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let fd =
        rustix::fs::openat2(&source, path, flags, Mode::empty(), beneath).map_err(|error| {
            let place =
                format!("PATH `{}` in DIR `{}`", escaped(&path.to_string_lossy()), shown(dir));
            let hint = match error {
                Errno::LOOP => behind_link(dir, path),
                _ if works_in(dir) => nearest::path(&dir.join(path)),
                _ if is_from_outside(dir, path) => "; PATH is named from DIR".to_owned(),
                _ => nearest::path_below(dir, Path::new(path)),
            };
            anyhow::Error::from(error).context(format!("{place}: {error}{hint}"))
        })?;
    let stat = rustix::fs::fstat(&fd).context("fstat")?;
    let kind = Kind::from_mode(stat.st_mode);
    let head = if kind == Kind::File { head(&fd) } else { None };
    Ok(Found { kind, size: u64::try_from(stat.st_size).unwrap_or(0), head })
}

/// Whether the working directory is in DIR: then PATH is named from there.
fn works_in(dir: &Path) -> bool {
    let top = dir.canonicalize();
    std::env::current_dir().is_ok_and(|here| top.is_ok_and(|top| here.starts_with(top)))
}

/// Whether `path` is that of a file in DIR, named from the working directory as DIR is.
fn is_from_outside(dir: &Path, path: &OsStr) -> bool {
    Path::new(path).starts_with(dir) && std::fs::symlink_metadata(path).is_ok()
}

/// What to name instead of a path that leads through a symbolic link: rules are about real paths.
fn behind_link(dir: &Path, path: &OsStr) -> String {
    let path = dir.join(path);
    let real = path.parent().and_then(|parent| parent.canonicalize().ok());
    let real = real.zip(path.file_name()).map(|(parent, name)| parent.join(name));
    let top = dir.canonicalize().ok();
    let inside =
        real.as_ref().zip(top.as_ref()).and_then(|(real, top)| real.strip_prefix(top).ok());
    match inside {
        Some(inside) => {
            format!("; a symbolic link is on the way, name what it leads to: `{}`", shown(inside))
        }
        None => "; a symbolic link is on the way, and leads out of DIR or nowhere".to_owned(),
    }
}

/// The first bytes of a regular file; `None` when it cannot be read, or is sealed: a view does not
/// know them either.
fn head(fd: &OwnedFd) -> Option<Vec<u8>> {
    let file = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).ok()?;
    let mut head = Vec::with_capacity(HEAD_LEN);
    file.take(HEAD_LEN as u64).read_to_end(&mut head).ok()?;
    (!tollgate_seal::begins_sealed(&head)).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_relative_or_refused() {
        let of = |text: &'static str| relative(OsStr::new(text)).map(OsString::into_vec);
        assert_eq!(of("./a/b//").unwrap(), b"a/b");
        assert_eq!(of(".").unwrap(), b"");
        assert_eq!(of("./").unwrap(), b"");
        assert_eq!(of("a/./b//c/.").unwrap(), b"a/b/c");
        assert_eq!(of("a..b").unwrap(), b"a..b");
        assert!(of("/a").unwrap_err().to_string().contains("is absolute"));
        assert!(of("a/../b").unwrap_err().to_string().contains("contains `..`"));
    }

    #[test]
    fn a_real_file_is_looked_at_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "content").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        let file = look(dir.path(), OsStr::new("file")).unwrap();
        assert_eq!((file.kind, file.size, file.head), (Kind::File, 7, Some(b"content".to_vec())));
        assert_eq!(look(dir.path(), OsStr::new("link")).unwrap().kind, Kind::Symlink);
        assert_eq!(look(dir.path(), OsStr::new("")).unwrap().kind, Kind::Directory);
        assert!(look(dir.path(), OsStr::new("out/passwd")).is_err());
        assert!(look(dir.path(), OsStr::new("missing")).is_err());
    }
}
