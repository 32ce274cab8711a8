//! What records show: the operations seen at each path.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{self, MAX_COMPONENTS, Names};
use crate::audit::read::{Known, Line, Lost};

/// Operations of the policy language, in its order.
pub(super) const READ: u8 = 1;
pub(super) const WRITE: u8 = 2;
pub(super) const CREATE: u8 = 4;
/// Listings are not recorded.
pub(super) const ALL: u8 = READ | WRITE | CREATE;

/// The words for a set of operations.
pub(super) fn words(operations: u8) -> Vec<&'static str> {
    let all = [(READ, "read"), (WRITE, "write"), (CREATE, "create")];
    all.into_iter().filter(|(bit, _)| operations & bit != 0).map(|(_, word)| word).collect()
}

/// Stands for the paths of refusals that were counted together.
const VARIOUS: &str = "(various)";

/// What a record says of the kind of what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Anything but a directory.
    File,
    Directory,
    Either,
}

/// Operations that were granted at one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Granted {
    to_file: u8,
    to_directory: u8,
    to_either: u8,
}

/// The same by path, as a proposal has it.
#[derive(Debug, Default)]
pub(super) struct ByKind {
    /// Not restricted to a kind.
    pub(super) files: BTreeMap<String, u8>,
    pub(super) directories: BTreeMap<String, u8>,
}

/// What was seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) records: u64,
    pub(super) runs: BTreeSet<String>,
    pub(super) dirs: BTreeSet<String>,
    /// By path.
    pub(super) granted: BTreeMap<String, Granted>,
    /// Names that something had one after the other.
    pub(super) moved: Names,
    /// Names that a file had together.
    pub(super) linked: Names,
    /// How often refused, by path as it is shown, operation and rule.
    pub(super) refused: BTreeMap<(String, String, String), u64>,
    /// Where something was refused; as all paths of refusals, as [`names::of_refused`] has them.
    pub(super) refused_at: BTreeSet<String>,
    /// Operations that were refused, by path.
    pub(super) kept: BTreeMap<String, u8>,
    /// Directories whose listing was refused.
    pub(super) unlisted: BTreeSet<String>,
    /// What was refused.
    withheld: Withheld,
    /// What only would have been: it was done all the same, and has a second record that says so.
    tried: Withheld,
    /// Operations that were refused at one time and granted at another, by path.
    pub(super) both: BTreeMap<String, u8>,
    /// Refusals whose records do not say of what.
    pub(super) refused_unnamed: u64,
    /// Those of them that only would have been.
    pub(super) withheld_unnamed: u64,
    /// Paths that a policy cannot name: not UTF-8, cut, or of too many names.
    pub(super) unnamed: u64,
    /// Files that a rule has the server read and write.
    pub(super) watched: BTreeSet<String>,
    /// How often what is masked or sealed was opened, by path as it is shown, word and rule.
    pub(super) made: BTreeMap<(String, String, String), u64>,
    /// Where that was; as all paths of refusals.
    pub(super) made_at: BTreeSet<String>,
    /// Records that are in no log.
    pub(super) lost: Lost,
    /// Runs that have an end.
    pub(super) ended: BTreeSet<String>,
    /// Whether more than one policy was in force.
    pub(super) reloaded: bool,
}

/// What is not to be allowed, whatever else the records show.
#[derive(Debug, Default)]
struct Withheld {
    /// Operations by path.
    operations: BTreeMap<String, u8>,
    /// Names that are hidden, with what is below them.
    hidden: BTreeSet<String>,
}

impl Withheld {
    fn add(&mut self, path: &str, operations: u8) {
        *self.operations.entry(path.to_owned()).or_default() |= operations;
    }

    fn on(&self, path: &str) -> u8 {
        let above = path.match_indices('/').map(|(at, _)| &path[..at]);
        if above.chain([path]).any(|part| self.hidden.contains(part)) {
            return ALL;
        }
        self.operations.get(path).copied().unwrap_or(0)
    }
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
        self.lost.take(line);
        match line.event.as_str() {
            "stop" => self.ended.extend(line.run.clone()),
            "reload" => self.reloaded = true,
            _ => {}
        }
        if !line.is_about_files() {
            return;
        }
        self.records += line.events();
        if line.is_refusal() {
            self.withhold(line);
            let key = shown(line, &line.operation);
            *self.refused.entry(key).or_default() += line.events();
            return;
        }
        if let Some(word) = made(line) {
            self.made_at.extend(line.known_path().map(|path| names::of_refused(&path)));
            // What was masked in a file is recorded after it was opened.
            if line.operation != "masked" {
                *self.made.entry(shown(line, word)).or_default() += line.events();
            }
            return;
        }
        let (old, new, kind) = operations(line);
        let path = line.known_path().and_then(nameable);
        self.grant(path.as_deref(), old, kind);
        if line.content.as_deref() == Some("watched") {
            self.watched.extend(path.clone());
        }
        if new != 0 {
            let to = line.known_to().and_then(nameable);
            self.grant(to.as_deref(), new, kind);
            let names = path.zip(to).filter(|_| line.outcome == "done");
            let of_all = if line.operation == "link" { &mut self.linked } else { &mut self.moved };
            of_all.extend(names);
        }
    }

    /// Remembers what is not to be allowed, whatever other records say.
    fn withhold(&mut self, line: &Line) {
        let would_be = line.outcome == "would-refuse";
        let Some(path) = line.known_path() else {
            self.refused_unnamed += line.events();
            if would_be {
                self.withheld_unnamed += line.events();
            }
            return;
        };
        let path = names::of_refused(&path);
        self.refused_at.insert(path.clone());
        let (old, new, _) = operations(line);
        let old = if line.operation == "lookup" { ALL } else { old };
        let mut all = vec![(path.clone(), old)];
        all.extend(line.known_to().map(|to| (names::of_refused(&to), new)));
        let withheld = if would_be { &mut self.tried } else { &mut self.withheld };
        for (path, operations) in all {
            if would_be || !is_about_the_move(line) {
                withheld.add(&path, operations);
            }
            *self.kept.entry(path).or_default() |= operations;
        }
        match line.operation.as_str() {
            "lookup" => _ = withheld.hidden.insert(path),
            "opendir" => _ = self.unlisted.insert(path),
            _ => {}
        }
    }

    /// Takes what was masked or sealed out of what was granted, by `all` of its names: with `passthrough` the
    /// lower file would show. How it was made is not recorded.
    pub(super) fn leave_out_made(&mut self, all: BTreeSet<String>) {
        self.granted.retain(|path, _| !all.contains(path));
        for path in &all {
            *self.kept.entry(path.clone()).or_default() |= ALL;
        }
        self.made_at = all;
    }

    /// Takes what was refused at any time, or would have been, out of what was granted.
    pub(super) fn leave_out_withheld(&mut self) {
        let Self { granted, withheld, tried, both, .. } = self;
        granted.retain(|path, granted| {
            let (refused, tried) = (withheld.on(path), tried.on(path));
            let granted_too = granted.all() & refused & !tried;
            if granted_too != 0 {
                both.insert(path.clone(), granted_too);
            }
            let Granted { to_file, to_directory, to_either } = granted;
            for operations in [to_file, to_directory, to_either] {
                *operations &= !(refused | tried);
            }
            granted.all() != 0
        });
    }

    /// Names that were hidden, or would have been.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &str> {
        self.withheld.hidden.iter().chain(&self.tried.hidden).map(String::as_str)
    }

    /// What was granted, by what it was granted to. A glob of a directory covers what is below it:
    /// what was done to the directory alone is allowed for directories alone.
    pub(super) fn by_kind(&self) -> ByKind {
        let directories = self.directories();
        let mut sorted = ByKind::default();
        for (path, granted) in &self.granted {
            let Granted { to_file, to_directory, to_either } = *granted;
            let is_directory = to_file == 0 && directories.contains(path.as_str());
            let of_directory = to_directory | if is_directory { to_either } else { 0 };
            let of_file = to_file | if is_directory { 0 } else { to_either };
            let add = |to: &mut BTreeMap<String, u8>, operations| {
                if operations != 0 {
                    to.insert(path.clone(), operations);
                }
            };
            add(&mut sorted.files, of_file);
            add(&mut sorted.directories, of_directory);
        }
        sorted
    }

    /// Whether a name whose records say nothing of its kind is a directory's now, in DIR.
    fn is_directory_now(&self, path: &str) -> bool {
        let found = |dir: &String| std::path::Path::new(dir).join(path).symlink_metadata();
        self.dirs.iter().any(|dir| found(dir).is_ok_and(|found| found.is_dir()))
    }

    /// Files that have more names now, in DIR, than were granted anything.
    pub(super) fn with_further_names(&self) -> Vec<String> {
        use std::os::unix::fs::MetadataExt;
        let mut links = BTreeMap::<(u64, u64), (u64, Vec<&String>)>::new();
        for (path, dir) in
            self.granted.keys().flat_map(|path| self.dirs.iter().map(move |dir| (path, dir)))
        {
            let found = std::path::Path::new(dir).join(path).symlink_metadata();
            if let Some(found) = found.ok().filter(|found| found.nlink() > 1 && !found.is_dir()) {
                let of_file = links.entry((found.dev(), found.ino())).or_default();
                of_file.0 = found.nlink();
                of_file.1.push(path);
            }
        }
        let lacking = links.into_values().filter(|(names, known)| *names > known.len() as u64);
        lacking.flat_map(|(_, known)| known).cloned().collect()
    }

    /// Names that were those of directories, as far as is known.
    fn directories(&self) -> BTreeSet<&str> {
        let mut known = BTreeSet::new();
        let unsaid = self.granted.iter().filter(|(_, granted)| granted.to_either != 0);
        known.extend(
            unsaid.map(|(path, _)| path.as_str()).filter(|path| self.is_directory_now(path)),
        );
        for (path, granted) in &self.granted {
            known.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
            known.extend((granted.to_directory != 0).then_some(path.as_str()));
        }
        loop {
            let before = known.len();
            for (old, new) in &self.moved {
                if known.contains(old.as_str()) || known.contains(new.as_str()) {
                    known.extend([old.as_str(), new.as_str()]);
                }
            }
            if known.len() == before {
                return known;
            }
        }
    }

    /// What of `operations`, which were refused at `path`, was granted neither there nor below it; and what
    /// was granted below it alone.
    pub(super) fn kept_at(&self, path: &str, operations: u8) -> (u8, u8) {
        let at = self.granted.get(path).map_or(0, Granted::all);
        let below = self.granted.range(format!("{path}/")..format!("{path}0"));
        let below = below.fold(0, |one, (_, other)| one | other.all());
        (operations & !(at | below), operations & below & !at)
    }

    fn grant(&mut self, path: Option<&str>, operations: u8, kind: Kind) {
        // DIR itself has no glob of its own.
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            self.unnamed += 1;
            return;
        };
        let granted = self.granted.entry(path.to_owned()).or_default();
        match kind {
            Kind::File => granted.to_file |= operations,
            Kind::Directory => granted.to_directory |= operations,
            Kind::Either => granted.to_either |= operations,
        }
    }
}

/// A path, a word and a rule, as comments have them.
fn shown(line: &Line, word: &str) -> (String, String, String) {
    let path = line.known_path().map_or_else(|| VARIOUS.to_owned(), |path| names::shown(&path));
    let rule = line.rule.clone().unwrap_or_else(|| "the default".to_owned());
    (path, word.to_owned(), rule)
}

/// What was done to the bytes of a file that was opened or read.
fn made(line: &Line) -> Option<&'static str> {
    match (line.operation.as_str(), line.content.as_deref()) {
        ("masked", _) | (_, Some("redacted")) => Some("masked"),
        ("damaged", _) | (_, Some("sealed")) => Some("sealed"),
        _ => None,
    }
}

/// The path, if a glob can match it and no other.
fn nameable(path: Known) -> Option<String> {
    let path = String::from_utf8(path.bytes).ok().filter(|_| !path.is_cut)?;
    (path.split('/').count() <= MAX_COMPONENTS).then_some(path)
}

impl Granted {
    fn all(&self) -> u8 {
        self.to_file | self.to_directory | self.to_either
    }
}

/// Whether it was a move or a link that would have opened more: then it is copied, and nothing is said of
/// what else may be done at either name.
fn is_about_the_move(line: &Line) -> bool {
    let errno = line.errno.as_deref();
    matches!(
        (line.operation.as_str(), errno),
        ("rename", Some("EXDEV")) | ("link", Some("EPERM" | "EXDEV"))
    )
}

/// What a record needs to be allowed: on its path, and on its new name.
fn operations(line: &Line) -> (u8, u8, Kind) {
    let access = line.access.as_deref().unwrap_or_default();
    let has = |word: &str| access.split('+').any(|one| one == word);
    let opened = u8::from(has("read")) * READ + u8::from(has("write") || has("truncate")) * WRITE;
    match line.operation.as_str() {
        "open" => (opened, 0, Kind::File),
        "create" => (opened | CREATE, 0, Kind::File),
        // Recorded where it is refused.
        "opendir" => (0, 0, Kind::Directory),
        "mkdir" => (CREATE, 0, Kind::Directory),
        "rmdir" => (WRITE, 0, Kind::Directory),
        "mknod" | "symlink" => (CREATE, 0, Kind::File),
        "rename" => (WRITE, CREATE | WRITE, Kind::Either),
        "link" => (0, CREATE, Kind::File),
        "read" | "readlink" | "masked" => (READ, 0, Kind::File),
        "getxattr" => (READ, 0, Kind::Either),
        "unlink" | "truncate" | "write" => (WRITE, 0, Kind::File),
        _ => (WRITE, 0, Kind::Either),
    }
}
