//! The policy of a directory, as CMD sees it: not at all, unless git has it or a rule shows it.

use std::path::Path;

use anyhow::Context;
use tollgate_policy::{Operation, Policy};

use crate::git;
use crate::policy_places;

/// The name of the rule that is built in.
pub(crate) const RULE: &str = "policy of this directory";

/// The policy with a rule that hides `file`, the policy file of the directory `dir`, and what leads
/// to it.
///
/// What git has in its index stays as it is: hidden it would look deleted, so that `git add -A`
/// commits its deletion; with other bytes it would look changed; and git's objects have it anyway.
///
/// # Errors
/// When it lies in a native directory.
pub(crate) fn mask(policy: Policy, file: &Path, dir: &Path) -> anyhow::Result<Policy> {
    if std::fs::symlink_metadata(file).is_err() || is_shown(&policy, file) {
        return Ok(policy);
    }
    let mut globs = Vec::new();
    for place in policy_places::inside(file, dir) {
        if !git::is_tracked(&place) {
            globs.push(policy_places::glob(&place, dir)?);
        }
    }
    if globs.is_empty() {
        return Ok(policy);
    }
    let text = format!(
        "[[rule]]\nname = \"{RULE}\"\npath = [{}]\nkind = [\"file\", \"symlink\"]\naction = \"hide\"\n",
        globs.join(", ")
    );
    policy.preceded_by(Policy::parse(&text, "built-in")?).with_context(|| {
        let shown = crate::escape::shown(file);
        format!("`{shown}` leads into a native directory, where nothing hides it")
    })
}

/// Whether a rule names the file and is about reading: then that decides. One about files of that name in
/// other directories does not name it, and one that is only recorded decides nothing.
fn is_shown(policy: &Policy, file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_named = |glob: &String| {
        let above = glob.strip_suffix(name);
        above.is_some_and(|above| above.split_inclusive('/').all(|part| part == "**/"))
    };
    let mut rules = policy.rules().iter().filter(|rule| !rule.is_audit_only());
    rules.any(|rule| {
        rule.operations().has(Operation::Read) && rule.glob_texts().iter().any(is_named)
    })
}
