//! `tollgate explain`.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tollgate_policy::{CallerFacts, Facts, HEAD_LEN, Kind, Operation, Policy};

use crate::cli::{ExplainArgs, OperationArg};
use crate::messages;
use crate::{policy_file, tree};

/// Prints which rule decides over a path, and why.
///
/// # Errors
/// When the policy is wrong, PATH is not relative, or the file cannot be opened.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let policy = match &args.policy {
        Some(file) => policy_file::parse(file)?,
        None => Policy::allow_all(),
    };
    let path = relative(&args.path)?;
    let found = match &args.dir {
        Some(dir) => look(dir, path)?,
        None => Found::imagined(&args.path),
    };
    let asker = args.caller.clone().unwrap_or_default();
    let caller = CallerFacts {
        uid: asker.uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
        gid: asker.gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
        exe: asker.exe.as_deref().map(str::as_bytes),
    };
    let head = found.head.as_deref();
    let facts = Facts { path: path.as_bytes(), kind: found.kind, size: found.size, head };
    let explanation = policy.explain(&facts, args.operation.map(operation), &caller);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&explanation)?);
    } else {
        println!("{explanation}");
        if args.dir.is_none() && std::io::stderr().is_terminal() {
            messages::note(&format!(
                "taken for a {} of {} bytes; with --dir the real file is looked at",
                found.kind, found.size
            ));
        }
    }
    Ok(())
}

fn operation(argument: OperationArg) -> Operation {
    match argument {
        OperationArg::Read => Operation::Read,
        OperationArg::Write => Operation::Write,
        OperationArg::Create => Operation::Create,
        OperationArg::List => Operation::List,
    }
}

/// Checks that PATH is relative and stays inside; takes slashes at its end off.
fn relative(path: &OsStr) -> anyhow::Result<&OsStr> {
    let shown = path.display();
    let bytes = path.as_bytes();
    if bytes.starts_with(b"/") {
        bail!("PATH `{shown}` is absolute; name it relative to DIR, as in `src/main.rs`");
    }
    if bytes.split(|byte| *byte == b'/').any(|part| part == b"..") {
        bail!("PATH `{shown}` contains `..`; name it relative to DIR, without");
    }
    let mut rest = bytes;
    while let Some(shorter) = rest.strip_prefix(b"./") {
        rest = shorter;
    }
    while let Some(shorter) = rest.strip_suffix(b"/") {
        rest = shorter;
    }
    Ok(OsStr::from_bytes(if rest == b"." { b"" } else { rest }))
}

/// What the policy wants to know about a file.
struct Found {
    kind: Kind,
    size: u64,
    head: Option<Vec<u8>>,
}

impl Found {
    /// A regular file, or a directory when the path ends like one.
    fn imagined(path: &OsStr) -> Self {
        let bytes = path.as_bytes();
        let directory = bytes.ends_with(b"/") || matches!(bytes, b"" | b".");
        let kind = if directory { Kind::Directory } else { Kind::File };
        Self { kind, size: 0, head: None }
    }
}

/// Looks at the file without following links or leaving DIR.
fn look(dir: &Path, path: &OsStr) -> anyhow::Result<Found> {
    let (_, source) = tree::open(dir)?;
    let path = if path.is_empty() { OsStr::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let fd = rustix::fs::openat2(&source, path, flags, Mode::empty(), beneath)
        .with_context(|| format!("PATH `{}` in DIR `{}`", path.display(), dir.display()))?;
    let stat = rustix::fs::fstat(&fd).context("fstat")?;
    let kind = Kind::from_mode(stat.st_mode);
    let head = if kind == Kind::File { head(&fd) } else { None };
    Ok(Found { kind, size: u64::try_from(stat.st_size).unwrap_or(0), head })
}

/// The first bytes of a regular file; `None` when it cannot be read.
fn head(fd: &OwnedFd) -> Option<Vec<u8>> {
    let file = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).ok()?;
    let mut head = Vec::with_capacity(HEAD_LEN);
    file.take(HEAD_LEN as u64).read_to_end(&mut head).ok()?;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_relative_or_refused() {
        let of = |text: &'static str| relative(OsStr::new(text)).map(OsStr::as_bytes);
        assert_eq!(of("./a/b//").unwrap(), b"a/b");
        assert_eq!(of(".").unwrap(), b"");
        assert_eq!(of("./").unwrap(), b"");
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
