//! `tollgate brief`: what an agent has to know about its fence.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;
use tollgate_policy::{Action, CallerFacts, Facts, Kind, Operation, Policy, Verdict};

use crate::cli::BriefArgs;
use crate::escape::{escaped, json_text};
use crate::git::Repository;
use crate::{policy_choice, policy_views, tree};

/// Rules that are listed; an agent's memory is short.
const MAX_RULES: usize = 32;
/// Globs that are listed of one rule.
const MAX_GLOBS: usize = 6;

/// Prints a short text for an agent's memory file.
///
/// # Errors
/// When DIR or its policy cannot be read.
pub(crate) fn run(args: &BriefArgs) -> anyhow::Result<()> {
    let dir = directory(args)?;
    let origin = policy_choice::find(args.policy.as_deref(), &dir, None)?;
    let was_named = args.policy.is_some();
    let further = policy_views::of(&origin, was_named, &dir, std::env::home_dir().as_deref())?;
    let (origin, further) = match policy_views::is_among(&further, &dir) {
        // What is shown beside DIR is not beside one of these directories.
        true => (policy_views::of_directory(origin, &dir)?, Vec::new()),
        false => (origin, policy_views::named(&further)),
    };
    let policy = origin.parse(&dir)?;
    let fenced: Vec<String> = policy
        .rules()
        .iter()
        .filter(|rule| {
            !rule.is_audit_only()
                && !matches!(
                    rule.action(),
                    // What is sealed can be read and written: it is plain in the view.
                    Action::Passthrough | Action::Native | Action::Userspace | Action::Seal
                )
        })
        .map(line)
        .collect();
    if args.json {
        let enforced = policy.enforced();
        let default = enforced.as_ref().unwrap_or(&policy).default_action();
        let dir = dir.to_string_lossy();
        let report = json!({"dir": dir, "default": default, "fenced": fenced, "views": further});
        println!("{}", json_text(&format!("{report:#}")));
    } else {
        let are_kept = policy_choice::are_files_kept(&policy, &origin, &dir)?;
        print!("{}", text(&dir, (&policy, are_kept), &fenced, &further));
    }
    Ok(())
}

fn directory(args: &BriefArgs) -> anyhow::Result<PathBuf> {
    if let Some(dir) = &args.dir {
        return Ok(tree::open(dir)?.0.path);
    }
    if let Some(dir) = std::env::var_os("TOLLGATE_RUN") {
        return Ok(PathBuf::from(dir));
    }
    let here = std::env::current_dir().context("the working directory cannot be named")?;
    Ok(Repository::top_of(&here).unwrap_or(here))
}

fn line(rule: &tollgate_policy::Rule) -> String {
    let globs = rule.glob_texts();
    let shown: Vec<String> = globs.iter().take(MAX_GLOBS).map(|one| format!("`{one}`")).collect();
    let more = if globs.len() > MAX_GLOBS { ", ..." } else { "" };
    // A condition narrows it down; a name alone says nothing of what the file holds.
    let which = match (rule.looks_at_content(), rule.has_further_conditions()) {
        (true, _) => " of a certain content",
        (false, true) => ", under further conditions",
        (false, false) => "",
    };
    let what = match rule.action() {
        Action::Hide => "do not exist for you and cannot be made",
        Action::Deny if !rule.operations().has(Operation::Write) => "cannot be read",
        Action::Deny => "cannot be used",
        Action::Redact => {
            "can be read, with `*` in place of what looks like a secret; not changed, moved or removed. \
             Do not commit them: git would take the masked text"
        }
        _ => "can be read, not changed",
    };
    format!("{} ({}{more}{which}): {what}", rule.name(), shown.join(", "))
}

/// A program that has the most say in a repository, for rules that name one.
const GIT: &[u8] = b"/usr/bin/git";

fn of_git(dir: &Path, policy: &Policy, has_fenced: bool) -> String {
    where_it_is(dir).map_or_else(|| by_policy(dir, policy, has_fenced), str::to_owned)
}

/// What is said of a repository of which not all lies in this directory.
fn where_it_is(dir: &Path) -> Option<&'static str> {
    if Repository::top_of(dir).is_some_and(|top| top != dir) {
        return Some("The repository begins above this directory, and `git` finds none here.");
    }
    let is_outside = |repository: Repository| repository.outside_of(dir).is_some();
    Repository::at(dir).is_some_and(is_outside).then_some(
        "The repository lies outside of this directory: `git status`, `log` and `diff` work; \
         `git add`, `commit` and `fetch` work only if `tollgate run` was told to allow it.",
    )
}

/// What the policy lets git do with the files of the repository.
fn by_policy(dir: &Path, policy: &Policy, has_fenced: bool) -> String {
    let inside = |path: &Path| {
        let (dir, path) = (dir.canonicalize().ok()?, path.canonicalize().ok()?);
        path.strip_prefix(&dir).ok().map(Path::to_owned)
    };
    let found = Repository::at(dir);
    let place = |of: fn(&Repository) -> &Path| {
        let there = found.as_ref().and_then(|repository| inside(of(repository)));
        there.unwrap_or_else(|| PathBuf::from(".git"))
    };
    let (git_dir, common_dir) = (place(Repository::git_dir), place(Repository::common_dir));
    let may = |path: PathBuf, operation| allows(policy, &path, operation);
    if !may(git_dir.join("HEAD"), Operation::Read) {
        return "`git` does not work here: the policy keeps the repository from you.".to_owned();
    }
    // As git writes its index: a new one, which then takes the place of the old one.
    if !may(git_dir.join("index"), Operation::Write)
        || !may(git_dir.join("index.lock"), Operation::Create)
    {
        return "The repository can only be read here: `git status`, `log` and `diff` work; `git add`, \
                `commit`, `fetch` and `checkout` do not."
            .to_owned();
    }
    let keeps_settings = !may(common_dir.join("config"), Operation::Write);
    let keeps_hooks = !may(common_dir.join("hooks/pre-commit"), Operation::Create);
    let kept = match (keeps_hooks, keeps_settings) {
        (true, true) => " Its hooks and settings cannot be changed;",
        (true, false) => " Its hooks cannot be changed.",
        (false, true) => " Its settings cannot be changed;",
        (false, false) => "",
    };
    let instead =
        if keeps_settings { " use `git checkout --no-track`, `git -c NAME=VALUE`." } else { "" };
    let of_checkouts = if has_fenced {
        " A tracked file that is read-only here stays as it is in checkouts: look at `git status` before \
         `git add -A`."
    } else {
        ""
    };
    format!("`git` works: commit, fetch, branch, worktree.{kept}{instead}{of_checkouts}")
}

/// Whether the policy allows it to git, run by who asks.
fn allows(policy: &Policy, path: &Path, operation: Operation) -> bool {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let caller = CallerFacts { uid, gid, exe: Some(GIT) };
    let path = path.as_os_str().as_bytes();
    let facts = Facts { path, kind: Kind::File, size: 0, head: Some(&[]) };
    let explained = policy.explain(&facts, Some(operation), &caller);
    explained.operations.iter().all(|answer| answer.verdict == Verdict::Allow)
}

/// Whether what no rule is about cannot be changed.
fn keeps_the_rest(policy: &Policy) -> bool {
    let enforced = policy.enforced();
    let default = enforced.as_ref().unwrap_or(policy).default_action();
    matches!(default, Action::Deny | Action::Hide | Action::ReadOnly)
}

/// What holds where nothing is listed. Rules that allow are not.
fn of_the_rest(policy: &Policy) -> &'static str {
    let enforced = policy.enforced();
    match enforced.as_ref().unwrap_or(policy).default_action() {
        Action::Deny | Action::Hide => {
            "Nothing can be used but what the policy allows: `tollgate why PATH` tells."
        }
        Action::ReadOnly => {
            "What is not listed here can be read, and changed only where the policy allows it."
        }
        _ => {
            "What is not listed here can be read and changed, and so can exceptions to what is listed: \
             `tollgate why PATH` tells."
        }
    }
}

/// Under a policy that keeps nobody from anything, policy files are files like any other.
fn of_policy_files(are_kept: bool) -> &'static str {
    match are_kept {
        false => "",
        true => {
            "* Policy files (`.tollgate.toml`) are the user's: you find them read-only or not at all, \
             and make none.\n"
        }
    }
}

fn text(
    dir: &Path,
    (policy, are_files_kept): (&Policy, bool),
    fenced: &[String],
    further: &[String],
) -> String {
    let mut text = format!(
        "## This directory is fenced by Tollgate\n\n\
         Commands that are started with `tollgate run` (`TOLLGATE_RUN` is set in their environment) \
         see `{}` through a policy.\n\n\
         * `Permission denied` (EACCES), `Read-only file system` (EROFS) or a missing file that you \
         expected is the policy's decision. It is not a defect: do not retry, do not change \
         permissions, do not look for another way to the file. Say what you needed and go on without.\n\
         * {}\n\
         * {}\n{}",
        escaped(&dir.to_string_lossy()),
        of_git(dir, policy, !fenced.is_empty() || keeps_the_rest(policy)),
        of_the_rest(policy),
        of_policy_files(are_files_kept),
    );
    if !further.is_empty() {
        let all: Vec<_> = further.iter().map(|dir| format!("`{}`", escaped(dir))).collect();
        text += &format!(
            "* Rules of their own, not listed here, hold in {}: `tollgate why PATH` tells.\n",
            all.join(", ")
        );
    }
    if !fenced.is_empty() {
        text += "\nFenced:\n\n";
    }
    for line in fenced.iter().take(MAX_RULES) {
        text += &format!("* {}\n", escaped(line));
    }
    if fenced.len() > MAX_RULES {
        text += &format!("* and {} further rules\n", fenced.len() - MAX_RULES);
    }
    text + "\n`tollgate why PATH` says which rule decides over a path, and why.\n"
}
