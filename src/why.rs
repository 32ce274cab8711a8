//! `tollgate why`: in a `run`, what holds for a path, and which rule or option would change it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use tollgate_policy::{Facts, Kind, Operation, Policy, Verdict};

use crate::cli::{CallerArg, WhyArgs};
use crate::control::{self, About, Request, Warnings};
use crate::escape::without_controls;

/// Set by `run`: the directory of the view.
const IN_RUN: &str = "TOLLGATE_RUN";

/// Asks the server of the view that this process is in.
///
/// # Errors
/// Outside of every `run`, and when its server does not answer.
pub(crate) fn run(args: &WhyArgs) -> anyhow::Result<()> {
    let dir = std::env::var_os(IN_RUN).map(PathBuf::from).context(
        "this is not inside of `tollgate run`; outside, `tollgate explain PATH` says what a policy \
         does",
    )?;
    let path = plain(&std::path::absolute(&args.path).context("PATH")?);
    let directory = path.is_dir() || args.path.as_os_str().as_bytes().ends_with(b"/");
    let about = About { path: path.clone(), write: args.write, directory };
    let replies = control::ask_all(&Request::Why(about), Warnings::Left)?;
    let of_dir = replies.iter().rev().find(|reply| reply.report["dir"].as_str() == dir.to_str());
    let Some(answer) = of_dir.and_then(|reply| reply.report["why"].as_str()) else {
        bail!("the server of `{}` does not answer", dir.display());
    };
    println!("{}", without_controls(&format!("{}: {answer}", path.display())));
    Ok(())
}

/// Without `.` and `..`, as they are written.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// What the policy says of `path` in DIR, by its name.
pub(crate) fn in_dir(policy: &Policy, path: &Path, about: &About) -> String {
    let kind = if about.directory { Kind::Directory } else { Kind::File };
    let facts = Facts { path: path.as_os_str().as_bytes(), kind, size: 0, head: Some(&[]) };
    let operation = match (about.write, about.directory) {
        (true, true) => Operation::Create,
        (true, false) => Operation::Write,
        (false, true) => Operation::List,
        (false, false) => Operation::Read,
    };
    let explanation = policy.explain(&facts, Some(operation), &CallerArg::default().facts());
    let Some(answer) = explanation.operations.first() else { return "no answer".to_owned() };
    let by = match &answer.rule {
        Some(rule) => format!("rule `{rule}`"),
        None => "the default".to_owned(),
    };
    let caller = "conditions on contents and callers aside";
    match answer.verdict {
        Verdict::Allow => format!("yes, by {by} ({caller})"),
        _ => {
            let errno = answer.errno.unwrap_or("refused");
            format!(
                "no ({errno}), by {by} ({caller}); a rule before it in the policy would allow it, \
                 which is changed outside"
            )
        }
    }
}
