//! A walk over a directory: what each rule decides over, and what no rule covers.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use tollgate_policy::{
    CallerFacts, Decision, Facts, HEAD_LEN, Kind, Made, Mode, Operation, Policy, Redaction, RuleId,
    Verdict,
};

use tollgate_redact::Detector;

use crate::counting::Counting;
use crate::escape::{escaped, shell_word, shown};
use crate::git::{self, Repository};
use crate::presets::{Findings, Preset};

/// Most entries that are looked at.
const MAX_ENTRIES: u64 = 2_000_000;
/// What is listed of one kind, in text and as JSON.
pub(crate) const MAX_LISTED: usize = 1000;
/// Tracked files that are named in warnings.
const MAX_ADVISED: usize = 20;
/// Longest file that is searched for a key behind its first bytes, in bytes.
const MAX_SEARCHED: u64 = 16 << 20;
/// Longest form of a key or a token that is recognised, in bytes, generously.
const OVERLAP: usize = 1 << 10;
/// Said of a file that is masked and looks like a secret all the same.
const IS_MASKED: &str = "; what looks like a secret in it is masked";
/// Rules of the preset `agent` about packages of others, which ship test keys.
const PACKAGES: [&str; 2] = ["packages", "vendored packages"];
/// Directories of git that hold nothing but compressed objects.
const OBJECTS: [&str; 2] = [".git/objects", ".git/lfs"];

/// What a walk found.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) entries: u64,
    /// For each rule, entries for which it decides over an operation.
    pub(crate) decided: Vec<u64>,
    /// Files that look like secrets and can be read, by all of their names in DIR: path, and why they look so.
    pub(crate) uncovered: Listed,
    /// Files whose reading is refused, or that are hidden: path and rule.
    pub(crate) covered: Listed,
    /// Tracked by git, although hidden, not readable or masked.
    pub(crate) tracked: Vec<TrackedSecret>,
    /// Repositories but that of the working tree that start programs: path, and by which settings or
    /// hooks. `.` is the directory itself.
    pub(crate) repositories: Vec<(PathBuf, String)>,
    /// Directories that could not be read, and an index that could not.
    pub(crate) problems: Vec<String>,
}

/// Files, and what is said of each. The list is kept short where a policy refuses everything; all are
/// counted.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) files: Vec<(PathBuf, String)>,
    pub(crate) count: usize,
}

impl Listed {
    fn push(&mut self, path: PathBuf, what: String) {
        self.count += 1;
        if self.files.len() < MAX_LISTED {
            self.files.push((path, what));
        }
    }
}

/// A file that git tracks and the policy keeps from being read as it is.
#[derive(Debug)]
pub(crate) struct TrackedSecret {
    /// Relative to DIR.
    pub(crate) path: PathBuf,
    /// The command that has git leave it alone.
    pub(crate) command: String,
    pub(crate) verdict: Verdict,
    /// It can be read, masked.
    pub(crate) is_masked: bool,
    pub(crate) rule: String,
    pub(crate) skip_worktree: bool,
}

/// The policies that say what looks like a secret.
struct Detectors([Policy; 2]);

impl Detectors {
    fn new() -> anyhow::Result<Self> {
        let likely = include_str!("../presets/parts/likely.toml");
        Ok(Self([
            Policy::parse(&Preset::Agent.text(&Findings::default()), "preset agent")?,
            Policy::parse(likely, "likely.toml")?,
        ]))
    }
}

struct Walk<'p> {
    policy: &'p Policy,
    /// The same without rules that are only recorded: what really refuses.
    enforced: Option<Policy>,
    detectors: Detectors,
    /// Of whom nothing but the ids is known.
    caller: CallerFacts<'static>,
    /// A program that no rule names: what it can read can be read.
    any_program: CallerFacts<'static>,
    found: Survey,
    /// Files that look like secrets, and can be read by this name.
    uncovered: Vec<Uncovered>,
    /// Inodes with several names, one of which is not to be read as it is, and by which rule.
    kept: HashMap<Inode, Kept>,
    /// Directories with a `.git`, but the top.
    work_trees: Vec<PathBuf>,
}

/// Device and number.
type Inode = (u64, u64);

struct Uncovered {
    path: PathBuf,
    why: String,
    by_name: bool,
    /// Of one with several names.
    inode: Option<Inode>,
}

/// How an inode is kept by one of its names.
struct Kept {
    rule: String,
    /// Its keys and tokens are masked; else it is not to be read.
    is_masked: bool,
}

/// Walks over `dir`, not following links, and looks at git's indexes. Says how far it is on a terminal.
///
/// # Errors
/// When there are more than 2,000,000 entries.
pub(crate) fn survey(policy: &Policy, dir: &Path) -> anyhow::Result<Survey> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let found = Survey { decided: vec![0; policy.rules().len()], ..Survey::default() };
    let caller = CallerFacts { uid, gid, exe: None };
    let any_program = CallerFacts { exe: Some(b"/"), ..caller };
    let (detectors, enforced) = (Detectors::new()?, policy.enforced());
    let mut walk = Walk {
        policy,
        enforced,
        detectors,
        caller,
        any_program,
        found,
        uncovered: Vec::new(),
        kept: HashMap::new(),
        work_trees: Vec::new(),
    };
    walk.directory(dir)?;
    walk.judge_by_all_names();
    let around = Repository::top_of(dir);
    for work_tree in around.into_iter().chain(std::mem::take(&mut walk.work_trees)) {
        walk.index(&work_tree, dir);
    }
    Ok(walk.found)
}

impl Walk<'_> {
    fn directory(&mut self, top: &Path) -> anyhow::Result<()> {
        let counting = Counting::new();
        let mut waiting = vec![(top.to_owned(), None)];
        while let Some((directory, hidden)) = waiting.pop() {
            let entries = match std::fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) => {
                    let named = shown(&directory);
                    self.found.problems.push(format!("`{named}` cannot be listed: {error}"));
                    continue;
                }
            };
            for entry in entries.flatten() {
                let path = entry.path();
                let Ok(meta) = entry.metadata() else { continue };
                let Ok(inside) = path.strip_prefix(top) else { continue };
                self.entry(&path, inside, &meta, hidden);
                if entry.file_name() == ".git"
                    && directory != top
                    && self.work_trees.len() < MAX_LISTED
                {
                    self.work_trees.push(directory.clone());
                }
                // A link may be one, as git had it long ago.
                if entry.file_name() == "HEAD" && !meta.is_dir() {
                    self.repository(&directory, top);
                }
                if meta.is_dir() && !OBJECTS.iter().any(|skipped| inside.ends_with(skipped)) {
                    let bytes = inside.as_os_str().as_bytes();
                    let hidden = hidden.or_else(|| self.enforced().hidden(bytes, Kind::Directory));
                    waiting.push((path, hidden));
                }
                self.found.entries += 1;
                counting.so_far(self.found.entries);
                if self.found.entries > MAX_ENTRIES {
                    bail!("DIR has more than {MAX_ENTRIES} entries");
                }
            }
        }
        Ok(())
    }

    /// The strictest name of a file decides.
    fn judge_by_all_names(&mut self) {
        for Uncovered { path, mut why, by_name, inode } in std::mem::take(&mut self.uncovered) {
            let kept = inode.and_then(|inode| self.kept.get(&inode));
            match kept {
                Some(Kept { rule, is_masked }) if !is_masked || !by_name => {
                    self.found.covered.push(path, rule.clone());
                }
                _ => {
                    if kept.is_some() && !why.ends_with(IS_MASKED) {
                        why.push_str(IS_MASKED);
                    }
                    self.found.uncovered.push(path, why);
                }
            }
        }
        // By all bytes: names that begin alike are listed together.
        for list in [&mut self.found.uncovered, &mut self.found.covered] {
            list.files.sort_by(|(one, _), (other, _)| one.as_os_str().cmp(other.as_os_str()));
        }
    }

    /// An inode with several names is kept by this one.
    fn keep(&mut self, inode: Option<Inode>, rule: &str, is_masked: bool) {
        let Some(inode) = inode else { return };
        let kept = self.kept.entry(inode).or_insert(Kept { rule: rule.to_owned(), is_masked });
        if kept.is_masked && !is_masked {
            *kept = Kept { rule: rule.to_owned(), is_masked };
        }
    }

    /// A directory with a HEAD that is not `.git`: settings that are not the user's own.
    fn repository(&mut self, directory: &Path, top: &Path) {
        let own = directory.starts_with(top.join(".git"));
        let is_one = ["objects", "commondir"].iter().any(|name| directory.join(name).exists());
        if own || !is_one || self.found.repositories.len() >= MAX_LISTED {
            return;
        }
        let programs = git::programs_of(&Repository::bare(directory));
        let Ok(inside) = directory.strip_prefix(top) else { return };
        if !programs.is_empty() {
            let inside = if inside == Path::new("") { Path::new(".") } else { inside };
            self.found.repositories.push((inside.to_owned(), programs.join(", ")));
        }
    }

    fn enforced(&self) -> &Policy {
        self.enforced.as_ref().unwrap_or(self.policy)
    }

    /// Whether a file can be read, and by which rule; `hidden`: a rule that hides a directory above it.
    fn read(&self, facts: &Facts<'_>, hidden: Option<RuleId>) -> Decision {
        match hidden {
            Some(rule) => Decision { verdict: Verdict::Hide, rule: Some(rule) },
            None => self.enforced().decide(facts, Operation::Read, &self.any_program),
        }
    }

    fn entry(
        &mut self,
        real: &Path,
        inside: &Path,
        meta: &std::fs::Metadata,
        hidden: Option<RuleId>,
    ) {
        let path = inside.as_os_str().as_bytes();
        let (kind, size) = (Kind::from_mode(meta.mode()), meta.size());
        let asks = |policy: &Policy| policy.needs_head(path, kind, size);
        let head =
            if asks(self.policy) || self.detectors.0.iter().any(asks) { head(real) } else { None };
        // What looks like a secret is told by the bytes that are there, of a sealed file by its name.
        let as_it_is = Facts { path, kind, size, head: head.as_deref() };
        let facts = Facts { head: known(head.as_deref()), ..as_it_is };
        let rules = self.deciding(&facts);
        rules.iter().for_each(|rule| self.found.decided[rule.index()] += 1);
        if kind != Kind::File {
            return;
        }
        let read = self.read(&facts, hidden);
        let path = inside.to_owned();
        let inode = (meta.nlink() > 1).then(|| (meta.dev(), meta.ino()));
        match (read.verdict, read.rule) {
            (Verdict::Allow | Verdict::ReadOnly, _) => {
                let (mode, rule) = self.enforced().mode(&facts);
                let by_name = self.named_like_a_secret(&as_it_is).map(|why| (why, true));
                let is_masked = mode == Mode::Redacted && self.masks_keys_and_tokens(&facts);
                let by_content = || {
                    self.holds_a_secret(&as_it_is)
                        .or_else(|| self.looks_secret_later(real, &as_it_is))
                };
                let why = by_name.or_else(|| by_content().map(|why| (why, false)));
                let rule = self.rule_name(rule);
                if is_masked {
                    self.keep(inode, &rule, true);
                }
                match why {
                    // The same forms are masked.
                    Some((_, false)) if is_masked => self.found.covered.push(path, rule),
                    Some((mut why, by_name)) => {
                        if is_masked {
                            why.push_str(IS_MASKED);
                        }
                        self.uncovered.push(Uncovered { path, why, by_name, inode });
                    }
                    None => {}
                }
            }
            (_, rule) => {
                let rule = self.rule_name(rule);
                self.keep(inode, &rule, false);
                self.found.covered.push(path, rule);
            }
        }
    }

    /// The rules that decide over some operation, each once.
    fn deciding(&self, facts: &Facts<'_>) -> Vec<RuleId> {
        let about =
            |operation: &Operation| *operation != Operation::List || facts.kind == Kind::Directory;
        let mut rules: Vec<RuleId> = Operation::ALL
            .into_iter()
            .filter(about)
            .filter_map(|operation| self.policy.decide(facts, operation, &self.caller).rule)
            .chain(self.policy.mode(facts).1)
            .collect();
        rules.sort();
        rules.dedup();
        rules
    }

    fn named_like_a_secret(&self, facts: &Facts<'_>) -> Option<String> {
        let [names, _] = &self.detectors.0;
        let decision = names.decide(facts, Operation::Read, &self.caller);
        let by_name = (decision.verdict > Verdict::ReadOnly).then_some(decision.rule).flatten();
        by_name.map(|rule| format!("preset `agent`: {}", names.rule(rule).name()))
    }

    fn holds_a_secret(&self, facts: &Facts<'_>) -> Option<String> {
        // Packages of others ship test keys.
        let [names, likely] = &self.detectors.0;
        let decision = names.decide(facts, Operation::Read, &self.caller);
        let package = decision.rule.is_some_and(|rule| PACKAGES.contains(&names.rule(rule).name()));
        let judged = likely.decide(facts, Operation::Read, &self.caller);
        (facts.head.is_some() && !package && judged.verdict == Verdict::Deny)
            .then(|| "it holds what looks like a key or a token".to_owned())
    }

    /// Whether there is a key behind the bytes that a policy looks at, in a file of a kind that may
    /// hold one.
    fn looks_secret_later(&self, real: &Path, facts: &Facts<'_>) -> Option<String> {
        let [names, _] = &self.detectors.0;
        let long = facts.size > HEAD_LEN as u64 && facts.size <= MAX_SEARCHED;
        if !long || !names.needs_head(facts.path, facts.kind, facts.size) {
            return None;
        }
        let content = read_up_to(real, MAX_SEARCHED)?;
        let starts = (0..content.len()).step_by(HEAD_LEN - OVERLAP);
        let found = starts.map(|at| &content[at..content.len().min(at + HEAD_LEN)]).any(|part| {
            let facts = Facts { head: Some(part), ..*facts };
            names.decide(&facts, Operation::Read, &self.caller).verdict > Verdict::ReadOnly
        });
        let kib = HEAD_LEN >> 10;
        found.then(|| {
            format!("it holds a key or a token after its first {kib} KiB, where no rule looks")
        })
    }

    /// How the bytes of a file are made.
    fn made(&self, facts: &Facts<'_>) -> Made {
        let mut made = Made::default();
        self.enforced().at(facts.path).made(&facts.inode(), &mut made);
        made
    }

    /// Whether what [`Self::holds_a_secret`] looks for would be masked.
    fn masks_keys_and_tokens(&self, facts: &Facts<'_>) -> bool {
        let made = self.made(facts);
        let masks = |what: Detector| {
            made.redactions.iter().any(|redaction| redaction.detectors().contains(&what))
        };
        masks(Detector::PrivateKey) && masks(Detector::Token)
    }

    /// Whether something would be masked in a file, as far as it is read.
    fn masks_some(&self, real: &Path, facts: &Facts<'_>) -> bool {
        let made = self.made(facts);
        let redactor = Redaction::redactor_of(made.redactions.iter().map(|one| &**one));
        let mut found = false;
        if let Some(mut bytes) = read_up_to(real, MAX_SEARCHED) {
            redactor.mask_all(&mut bytes, |_| found = true);
        }
        found
    }

    fn rule_name(&self, rule: Option<RuleId>) -> String {
        rule.map_or("the default", |rule| self.enforced().rule(rule).name()).to_owned()
    }

    /// Files in `dir` that the git repository of `work_tree` tracks and nobody may read as they are.
    fn index(&mut self, work_tree: &Path, dir: &Path) {
        let Some(repository) = Repository::at(work_tree) else { return };
        let below = work_tree.strip_prefix(dir).ok().filter(|below| *below != Path::new(""));
        let tracked = match repository.tracked() {
            Ok(tracked) => tracked,
            Err(error) => {
                self.found.problems.push(crate::messages::in_words(&error));
                return;
            }
        };
        for file in tracked {
            let real = work_tree.join(OsStr::from_bytes(&file.path));
            let Ok(inside) = real.strip_prefix(dir) else { continue };
            let path = inside.as_os_str().as_bytes();
            let meta = std::fs::symlink_metadata(&real).ok();
            let kind = meta.as_ref().map_or(Kind::File, |meta| Kind::from_mode(meta.mode()));
            let size = meta.as_ref().map_or(1, MetadataExt::size);
            let looked = self.policy.needs_head(path, kind, size);
            let head = if looked { head(&real) } else { None };
            let head = head.or_else(|| meta.is_none().then(Vec::new));
            let facts = Facts { path, kind, size, head: known(head.as_deref()) };
            let above = self.enforced().hidden_above(path).map(|(_, rule)| rule);
            let decision = self.read(&facts, above);
            let (mode, rule) = self.enforced().mode(&facts);
            let is_masked = mode == Mode::Redacted
                && decision.verdict <= Verdict::ReadOnly
                && self.masks_some(&real, &facts);
            if decision.verdict > Verdict::ReadOnly || is_masked {
                self.found.tracked.push(TrackedSecret {
                    path: inside.to_owned(),
                    command: match below {
                        Some(below) => {
                            let there = Path::new(OsStr::from_bytes(&file.path));
                            let (below, there) = (shell_word(below), shell_word(there));
                            format!("git -C {below} update-index --skip-worktree {there}")
                        }
                        None => format!("git update-index --skip-worktree {}", shell_word(inside)),
                    },
                    verdict: decision.verdict,
                    is_masked,
                    rule: self.rule_name(if is_masked { rule } else { decision.rule }),
                    skip_worktree: file.skip_worktree,
                });
            }
        }
    }
}

fn head(file: &Path) -> Option<Vec<u8>> {
    read_up_to(file, HEAD_LEN as u64)
}

/// What a policy knows of a file by its first bytes: nothing of a sealed one, as in a view.
fn known(head: Option<&[u8]>) -> Option<&[u8]> {
    head.filter(|head| !tollgate_seal::begins_sealed(head))
}

fn read_up_to(file: &Path, len: u64) -> Option<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    // The file may have become a FIFO or a link meanwhile.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let opened = std::fs::File::options().read(true).custom_flags(flags).open(file).ok()?;
    let mut head = Vec::new();
    opened.take(len).read_to_end(&mut head).ok()?;
    Some(head)
}

impl Survey {
    /// What to say about secrets that git tracks, with the way out.
    pub(crate) fn advice_on_tracked(&self) -> Vec<String> {
        let mut lines = Vec::new();
        // What is still to be done comes first: those commands may be followed, and the next check
        // names the rest.
        let mut tracked: Vec<_> = self.tracked.iter().collect();
        tracked.sort_by_key(|one| one.skip_worktree);
        for one in tracked.iter().take(MAX_ADVISED) {
            let (path, rule) = (shown(&one.path), escaped(&one.rule));
            let (what, then) = match one.verdict {
                _ if one.is_masked => {
                    ("masks secrets in", "`git commit -a` may commit the masked text")
                }
                Verdict::Hide => ("hides", "`git add -A` would commit its deletion"),
                _ => ("refuses to read", "`git add` and `git reset --hard` end at it"),
            };
            lines.push(if one.skip_worktree {
                format!("`{path}` is tracked by git (skip-worktree), and rule `{rule}` {what} it")
            } else {
                let command = &one.command;
                format!(
                    "`{path}` is tracked by git, and rule `{rule}` {what} it: in the view {then}; \
                     `{command}` prevents that"
                )
            });
        }
        if let Some(more) = tracked.len().checked_sub(MAX_ADVISED).filter(|more| *more > 0) {
            lines.push(format!(
                "and {more} more that rules keep and git tracks (`tollgate check --dir DIR --json` \
                 lists them)"
            ));
        }
        if !lines.is_empty() {
            lines.push(
                "the history holds tracked secrets: `git show HEAD:FILE` prints them in the view \
                 too. Work in a clone whose history is without them (git filter-repo), and \
                 replace them"
                    .to_owned(),
            );
        }
        lines
    }
}
