//! `tollgate explain`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tollgate_policy::{Explanation, Facts, HEAD_LEN, Kind, Operation, Policy, Rule, Verdict};

use crate::cli::{ExplainArgs, OperationArg};
use crate::escape::{escaped, shown, without_controls};
use crate::git::Repository;
use crate::messages;
use crate::policy_choice::IN_DIR;
use crate::why::plain;
use crate::{nearest, policy_choice, policy_file, policy_views, tree};

/// Refused by choice of the policy, with `--exit-code`.
const REFUSED: u8 = 3;

/// Prints which rule decides over each path, and why.
///
/// # Errors
/// When the policy is wrong, a PATH is not in DIR, or a file cannot be opened; the other paths are
/// explained all the same.
pub(crate) fn run(args: &ExplainArgs, verbose: bool) -> anyhow::Result<ExitCode> {
    let here = std::env::current_dir().context("the working directory cannot be named")?;
    let top = match &args.dir {
        Some(dir) => tree::open(dir)?.0.path,
        None => Repository::top_of(&here).unwrap_or_else(|| here.clone()),
    };
    let origin = policy_choice::find(args.policy.as_deref(), &top, None)?;
    let origin = policy_views::of_directory(origin, &top)?;
    let policy = origin.in_force(&top)?;
    let place = Place {
        dir: args.dir.as_deref().unwrap_or(&top),
        top: &top,
        // Relative paths are meant from here, if here is inside.
        within: here.strip_prefix(&top).ok(),
        was_named: args.dir.is_some(),
    };
    let mut explanations = Vec::new();
    let mut imagined = Vec::new();
    let mut failed = 0;
    for path in &args.paths {
        let (explanation, is_there) = match explain(args, &policy, path, &place) {
            Err(error) if args.paths.len() > 1 => {
                messages::say(&format!("explain: {}", messages::in_words(&error)));
                failed += 1;
                continue;
            }
            answer => answer?,
        };
        explanations.push(explanation);
        imagined.extend((!is_there).then(|| format!("`{}`", escaped(&path.to_string_lossy()))));
    }
    if let Some(own) = origin.tightened_by() {
        let own = policy_file::parse(own)?;
        explanations.iter_mut().for_each(|one| name_file_of_rules(one, &own));
    }
    if args.json {
        print_json(&explanations, args.paths.len() > 1)?;
    } else {
        for one in &explanations {
            let text = if verbose { format!("{one:#}") } else { one.to_string() };
            println!("{}", without_controls(&text));
        }
        if !imagined.is_empty() && !policy.rules().is_empty() {
            let shown = shown(place.dir);
            messages::note(&format!(
                "not in `{shown}`, so taken for an empty file: {}",
                imagined.join(", ")
            ));
        }
    }
    ensure!(failed == 0, "{failed} of {} paths have no answer", args.paths.len());
    let refused = explanations
        .iter()
        .flat_map(|one| &one.operations)
        .any(|answer| answer.verdict != Verdict::Allow);
    Ok(if args.exit_code && refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

/// Lines of rules are those of a file: with two policies, the rules of DIR's say so.
fn name_file_of_rules(explanation: &mut Explanation, own: &Policy) {
    let file = format!(" ({IN_DIR})");
    let complete = |name: &mut String, line: Option<usize>| {
        let is_own = |rule: &Rule| rule.name() == name && line.is_none_or(|it| it == rule.line());
        if own.rules().iter().any(is_own) {
            name.push_str(&file);
        }
    };
    for rule in &mut explanation.rules {
        complete(&mut rule.name, Some(rule.line));
    }
    for answer in &mut explanation.operations {
        if let Some(rule) = &mut answer.rule {
            complete(rule, answer.line);
        }
    }
}

/// One path as an object, several as a list.
fn print_json(explanations: &[Explanation], several: bool) -> anyhow::Result<()> {
    let text = match explanations {
        [one] if !several => serde_json::to_string_pretty(one)?,
        list => serde_json::to_string_pretty(list)?,
    };
    println!("{text}");
    Ok(())
}

/// The directory whose files are looked at.
struct Place<'a> {
    dir: &'a Path,
    /// The same, absolute and without links.
    top: &'a Path,
    /// The working directory in it.
    within: Option<&'a Path>,
    /// By the user: then a path that is not there is a mistake.
    was_named: bool,
}

impl Place<'_> {
    /// `path` as it is named in DIR; it may be absolute, or lead up from the working directory.
    fn path_in_dir(&self, path: &OsStr) -> anyhow::Result<PathBuf> {
        let whole = plain(&self.top.join(self.within.unwrap_or(Path::new(""))).join(path));
        if let Ok(inside) = whole.strip_prefix(self.top) {
            return Ok(inside.to_owned());
        }
        // By another name of a directory above it.
        let real = whole.parent().and_then(|parent| parent.canonicalize().ok());
        let real = real.zip(whole.file_name()).map(|(parent, name)| parent.join(name));
        let inside = real.as_ref().and_then(|real| real.strip_prefix(self.top).ok());
        inside.map(Path::to_owned).with_context(|| {
            format!(
                "PATH `{}` is not in DIR `{}`",
                escaped(&path.to_string_lossy()),
                shown(self.top)
            )
        })
    }

    /// The real file at `path`; else one that could be made there, of the kind that `given` says.
    /// And whether it is there.
    fn look(&self, path: &OsStr, given: &OsStr) -> anyhow::Result<(Found, bool)> {
        match look(self.dir, path) {
            Err(error) if !self.was_named && is_missing(&error) => {
                Ok((Found::imagined(given), false))
            }
            found => found.map(|found| (found, true)),
        }
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<Errno>();
    cause.is_some_and(|errno| matches!(*errno, Errno::NOENT | Errno::NOTDIR))
}

fn explain(
    args: &ExplainArgs,
    policy: &Policy,
    path: &OsStr,
    place: &Place<'_>,
) -> anyhow::Result<(Explanation, bool)> {
    ensure!(!path.is_empty(), "PATH is empty; `.` is the working directory");
    let path_in_dir = place.path_in_dir(path)?;
    let path_in_dir = path_in_dir.as_os_str();
    let (found, is_there) = place.look(path_in_dir, path)?;
    let asker = args.caller.clone().unwrap_or_default();
    let head = found.head.as_deref();
    let facts = Facts { path: path_in_dir.as_bytes(), kind: found.kind, size: found.size, head };
    Ok((policy.explain(&facts, args.operation.map(operation), &asker.facts()), is_there))
}

pub(crate) fn operation(argument: OperationArg) -> Operation {
    match argument {
        OperationArg::Read => Operation::Read,
        OperationArg::Write => Operation::Write,
        OperationArg::Create => Operation::Create,
        OperationArg::List => Operation::List,
    }
}

/// Checks that PATH is relative and stays inside; takes slashes at its end off.
pub(crate) fn relative(path: &OsStr) -> anyhow::Result<&OsStr> {
    let shown = escaped(&path.to_string_lossy());
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
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    pub(crate) head: Option<Vec<u8>>,
}

impl Found {
    /// A regular file, or a directory when the path ends like one.
    pub(crate) fn imagined(path: &OsStr) -> Self {
        let bytes = path.as_bytes();
        let directory = bytes.ends_with(b"/") || matches!(bytes, b"" | b".");
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
            let similar = nearest::path(&dir.join(path));
            let place =
                format!("PATH `{}` in DIR `{}`", escaped(&path.to_string_lossy()), shown(dir));
            anyhow::Error::from(error).context(format!("{place}: {error}{similar}"))
        })?;
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
