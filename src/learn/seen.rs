//! What records show: the operations seen at each path.

use std::collections::{BTreeMap, BTreeSet};

use crate::audit::read::Line;

/// Operations of the policy language, in its order.
pub(super) const READ: u8 = 1;
pub(super) const WRITE: u8 = 2;
pub(super) const CREATE: u8 = 4;

/// The words for a set of operations.
pub(super) fn words(operations: u8) -> Vec<&'static str> {
    let all = [(READ, "read"), (WRITE, "write"), (CREATE, "create")];
    all.into_iter().filter(|(bit, _)| operations & bit != 0).map(|(_, word)| word).collect()
}

/// Stands for the paths of refusals that were counted together.
pub(super) const VARIOUS: &str = "(various)";

/// What was seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) records: u64,
    pub(super) runs: BTreeSet<String>,
    pub(super) dirs: BTreeSet<String>,
    /// Operations that were granted, by path.
    pub(super) granted: BTreeMap<String, u8>,
    /// How often refused, by path, operation and rule.
    pub(super) refused: BTreeMap<(String, String, String), u64>,
    /// Operations that would have been refused, by path: they were done all the same, and have a
    /// second record that says so.
    withheld: BTreeMap<String, u8>,
    /// Names that would have been hidden, with what is below them.
    hidden: BTreeSet<String>,
    /// Refusals whose records do not say of what.
    pub(super) refused_unnamed: u64,
    /// Those of them that only would have been.
    pub(super) withheld_unnamed: u64,
    /// Paths that a policy cannot name: not UTF-8, or cut.
    pub(super) unnamed: u64,
    /// Records that the server had to drop.
    pub(super) dropped: u64,
}

impl Seen {
    /// Takes one record of a run that is looked at.
    pub(super) fn take(&mut self, line: &Line) {
        // Of a further view (`[[view]]`): a policy is learned for DIR.
        if line.path.as_deref().is_some_and(|path| path.starts_with('/')) {
            return;
        }
        self.runs.extend(line.run.clone());
        self.dirs.extend(line.dir.clone());
        if line.event == "dropped" {
            self.dropped += line.count.unwrap_or(0);
        }
        if !line.is_about_files() {
            return;
        }
        self.records += line.events();
        if line.is_refusal() {
            self.withhold(line);
            let path = line.path.clone().unwrap_or_else(|| VARIOUS.to_owned());
            let rule = line.rule.clone().unwrap_or_else(|| "the default".to_owned());
            *self.refused.entry((path, line.operation.clone(), rule)).or_default() += line.events();
            return;
        }
        let (old, new) = operations(line);
        self.grant(
            line.path.as_deref(),
            line.path_hex.is_some() || line.path_length.is_some(),
            old,
        );
        if new != 0 {
            let cut = line.to_hex.is_some() || line.to_length.is_some();
            self.grant(line.to.as_deref(), cut, new);
        }
    }

    /// Remembers what is not to be allowed, whatever other records say.
    fn withhold(&mut self, line: &Line) {
        let would_be = line.outcome == "would-refuse";
        let Some(path) = &line.path else {
            self.refused_unnamed += line.events();
            // What has no UTF-8 name is never allowed.
            if would_be && line.path_hex.is_none() {
                self.withheld_unnamed += line.events();
            }
            return;
        };
        if !would_be {
            return;
        }
        if line.operation == "lookup" {
            self.hidden.insert(path.clone());
        }
        let (old, new) = operations(line);
        *self.withheld.entry(path.clone()).or_default() |= old;
        if let Some(to) = &line.to {
            *self.withheld.entry(to.clone()).or_default() |= new;
        }
    }

    /// Takes what would have been refused out of what was granted.
    pub(super) fn leave_out_withheld(&mut self) {
        let Self { granted, withheld, hidden, .. } = self;
        let is_hidden = |path: &str| {
            let above = path.match_indices('/').map(|(at, _)| &path[..at]);
            above.chain([path]).any(|part| hidden.contains(part))
        };
        granted.retain(|path, operations| {
            *operations &= !withheld.get(path).copied().unwrap_or(0);
            *operations != 0 && !is_hidden(path)
        });
    }

    /// The paths of refusals, each once or more often.
    pub(super) fn refused_paths(&self) -> impl Iterator<Item = &str> {
        self.refused.keys().map(|(path, ..)| path.as_str())
    }

    fn grant(&mut self, path: Option<&str>, unnamed: bool, operations: u8) {
        match path {
            // DIR itself has no glob of its own.
            Some(path) if !unnamed && !path.is_empty() => {
                *self.granted.entry(path.to_owned()).or_default() |= operations;
            }
            _ => self.unnamed += 1,
        }
    }
}

/// What a record needs to be allowed: on its path, and on its new name.
fn operations(line: &Line) -> (u8, u8) {
    let access = line.access.as_deref().unwrap_or_default();
    let has = |word: &str| access.split('+').any(|one| one == word);
    let opened = u8::from(has("read")) * READ + u8::from(has("write") || has("truncate")) * WRITE;
    match line.operation.as_str() {
        "open" => (opened, 0),
        "create" => (opened | CREATE, 0),
        "mkdir" | "mknod" | "symlink" => (CREATE, 0),
        "rename" => (WRITE, CREATE | WRITE),
        "link" => (0, CREATE),
        "read" | "readlink" | "getxattr" => (READ, 0),
        _ => (WRITE, 0),
    }
}
