//! `tollgate brief`: what an agent has to know about its fence.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;
use tollgate_policy::{Action, Operation, Policy};

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

fn of_git(dir: &Path) -> &'static str {
    if Repository::top_of(dir).is_some_and(|top| top != dir) {
        return "The repository begins above this directory, and `git` finds none here.";
    }
    if Repository::at(dir).is_some_and(|repository| repository.outside_of(dir).is_some()) {
        return "The repository lies outside of this directory: `git status`, `log` and `diff` work; \
                `git add`, `commit` and `fetch` work only if `tollgate run` was told to allow it.";
    }
    "`git` works: commit, fetch, branch, worktree. Its hooks and settings cannot be changed; use \
     `git checkout --no-track`, `git -c NAME=VALUE`. A tracked file that is read-only here stays as it is in \
     checkouts: look at `git status` before `git add -A`."
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
        of_git(dir),
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
