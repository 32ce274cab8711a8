//! What runs later outside, by the repositories in a directory: their hooks and settings, the
//! programs that those name, and the links that say where they are.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::budget::Budget;
use super::gathered::Gathered;
use super::named;
use super::places::{beneath, names_in, places};
use super::quote::{glob, toml_string};
use crate::files;
use crate::git::{self, Config, Repository, Setting};

/// Names in the directory of a repository by which git starts programs.
const OF_REPOSITORY: &str = "{hooks,config,config.worktree,commondir,info/attributes}";
/// The same of its submodules, of its linked working trees, and of the submodules of those.
const OF_SUBMODULES: &str = "modules/**/{hooks,config,config.worktree,commondir,info/attributes}";
const OF_WORK_TREES: &str = "worktrees/*/config.worktree";
const OF_THEIR_SUBMODULES: &str =
    "worktrees/*/modules/**/{hooks,config,config.worktree,commondir,info/attributes}";
/// How deep settings include others; git gives up behind that.
const MAX_DEPTH: usize = 10;
/// Files that are looked at in a directory of hooks; git has names for about 30.
const MAX_HOOKS: usize = 256;
/// What is read of a file of settings that is too large, in bytes.
const MAX_READ: usize = 1 << 20;
/// Submodules that are kept of one list.
const MAX_MODULES: usize = 4096;

/// What a command must not change, as paths relative to the directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunLater {
    /// Hooks outside of repositories, programs that git starts, settings that others include,
    /// links to repositories.
    pub(crate) paths: Vec<PathBuf>,
    /// Directories of repositories, but for that of the top.
    pub(crate) repositories: Vec<PathBuf>,
    /// What repositories keep of each of their linked working trees: directories.
    pub(super) work_trees: Vec<PathBuf>,
    /// Whether every directory was looked at, and all that was found is here.
    pub(crate) whole: bool,
}

/// Looks at the repository of `dir`, at the one that it is in, and at those below it.
pub(super) fn look(dir: &Path) -> RunLater {
    let Ok(dir) = std::fs::canonicalize(dir) else { return RunLater::default() };
    let budget = Budget::default();
    let mut found = Search::of(&dir, &budget);
    let of_user = Config::files_of_user();
    of_user
        .iter()
        .filter_map(|file| std::path::absolute(file).ok())
        .for_each(|file| found.keep(&file));
    found.of_user = found.settings(of_user, Config::try_read_own);
    let below = git::below(&dir);
    found.work_tree(Path::new(""));
    // The repository that `dir` is a part of names files in it, too.
    let above = dir.ancestors().skip(1).find_map(|top| Some((top, Repository::at(top)?)));
    if let Some((top, repository)) = above {
        found.repository(top, &repository);
    }
    below.work_trees.iter().for_each(|inside| found.work_tree(inside));
    for inside in &below.bare {
        found.repository(&dir.join(inside), &Repository::bare(&dir.join(inside)));
    }
    let whole = below.whole && found.whole && !budget.has_missed() && !budget.is_spent();
    RunLater::from(found.found, whole)
}

/// The files that git runs in the working tree `top`, by the hooks and settings of its repository and
/// by those of the user, and the directories of hooks; there or not, as they are named. None where they
/// are too many. The budget is for all of whom it is asked.
pub(crate) fn files_run(
    top: &Path,
    repository: &Repository,
    budget: &Budget,
) -> Option<Vec<PathBuf>> {
    let common = repository.common_dir();
    let mut search = Search::of(top, budget);
    let of_user = search.settings(Config::files_of_user(), Config::try_read_own);
    let own = search.settings(vec![common.join("config")], Config::try_read);
    let named = [own, of_user];
    let hooks = named.iter().flat_map(|all| all.hooks.iter().map(|path| top.join(path)));
    let mut files: Vec<_> = hooks.chain([common.join("hooks")]).collect();
    let hooks = files.iter().flat_map(|path| names_in(path, top, budget));
    let hooks: Vec<_> = hooks.take(MAX_HOOKS + 1).collect();
    if hooks.len() > MAX_HOOKS {
        return None;
    }
    let by_hooks = hooks.iter().map(|hook| named::by_hook(hook, top, top, budget));
    let programs = named.iter().flat_map(|all| &all.programs);
    for found in by_hooks.chain(programs.map(|one| named::by_setting(one, top, budget))) {
        files.extend(found.whole.then_some(found.paths)?);
    }
    (!budget.has_missed() && !budget.is_spent()).then_some(files)
}

/// How a file of settings is read: [`Config::try_read`], or [`Config::try_read_own`].
type Reader = fn(&Path) -> std::io::Result<Config>;

struct Search<'d> {
    dir: &'d Path,
    budget: &'d Budget,
    /// What the user has set for every repository.
    of_user: Named,
    found: Gathered,
    /// Whether nothing was too long to be looked at to its end.
    whole: bool,
}

/// What settings name, relative to the directory that git starts programs in.
#[derive(Clone, Debug, Default)]
struct Named {
    /// Directories of hooks.
    hooks: Vec<PathBuf>,
    /// Directories that new repositories get their hooks from.
    templates: Vec<PathBuf>,
    programs: Vec<Setting>,
}

/// What settings have named so far: a file may name the same one in each of its lines, and so may others.
#[derive(Default)]
struct Seen {
    paths: HashSet<(Kind, PathBuf)>,
    programs: HashSet<(bool, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Hooks,
    Template,
}

impl Seen {
    /// Adds what a file of settings names that is new, as much as the budget has room for.
    fn add(&mut self, config: &Config, to: &mut Named, budget: &Budget) {
        let mut new = |kind: Kind, path: PathBuf| {
            let is_new = budget.look_at(&path) && self.paths.insert((kind, path.clone()));
            is_new.then_some(path)
        };
        to.hooks.extend(config.hooks().filter_map(|path| new(Kind::Hooks, path)));
        to.templates.extend(config.templates().filter_map(|path| new(Kind::Template, path)));
        for one in config.settings() {
            if let Some(command) = one.command()
                && budget.list()
                && self.programs.insert((one.is_alias(), command.to_vec()))
            {
                to.programs.push(one.clone());
            }
        }
    }
}

impl<'d> Search<'d> {
    fn of(dir: &'d Path, budget: &'d Budget) -> Self {
        let (of_user, found) = (Named::default(), Gathered::default());
        Self { dir, budget, of_user, found, whole: true }
    }

    /// A directory with a `.git`, which is a repository or leads to one.
    fn work_tree(&mut self, inside: &Path) {
        let top = self.dir.join(inside);
        // First what git runs now: a list may be as long as its writer likes.
        if let Some(repository) = Repository::at(&top) {
            if !top.join(".git").symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                self.keep(&top.join(".git"));
            }
            self.repository(&top, &repository);
        } else {
            self.unseen(&top);
        }
        let modules = self.config(&top.join(".gitmodules"), Config::try_read);
        let mut modules = modules.values_of_any("submodule", "path");
        for module in modules.by_ref().take(MAX_MODULES) {
            self.keep(&top.join(module).join(".git"));
        }
        self.whole &= modules.next().is_none();
    }

    /// A `.git` by which no repository is seen: CMD can have closed what it leads to, and open it later.
    fn unseen(&mut self, top: &Path) {
        let dot_git = top.join(".git");
        // Of one that is a file, and cannot be read, nothing is known; nor of one that cannot be entered.
        self.is_read(&dot_git);
        let Some(place) = Repository::place_of(top) else { return };
        let head = place.join("HEAD");
        let Err(error) = std::fs::metadata(&head) else { return };
        self.is_missed(&head, &error);
        let is_directory = dot_git.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        // One that leads nowhere may be written anew.
        if !is_directory && (files::is_unread(&error) || place.is_dir()) {
            self.keep(&dot_git);
            self.keep_repository(places(&place, self.budget).pop());
        }
    }

    /// Keeps the directory of a repository, without links, if it lies in DIR.
    fn keep_repository(&mut self, real: Option<PathBuf>) {
        // The rules of every preset name these.
        let is_known = |path: &Path| path == Path::new(".git") || path.starts_with(".git/modules");
        let inside = real.and_then(|real| beneath(self.dir, &real));
        if let Some(inside) = inside.filter(|path| !is_known(path)) {
            self.found.repository(&inside);
        }
    }

    /// The settings of a file. One that is too large, or cannot be read, has none here, and that is said.
    fn config(&mut self, file: &Path, read: Reader) -> Config {
        if !self.budget.look_at(file) {
            return Config::default();
        }
        let config = read(file);
        let is_unread = config.as_ref().is_err_and(files::is_unread);
        self.whole &= !is_unread;
        let config = config.unwrap_or_default();
        // One that is too large was read before that was known.
        self.budget.has_read(if is_unread { MAX_READ } else { config.len() });
        config
    }

    /// Looks whether a file that says where a repository is can be read.
    fn is_read(&mut self, file: &Path) {
        if let Err(error) = files::read_head(file, 1) {
            self.is_missed(file, &error);
        }
    }

    /// What is there, and is not read, is said: but for what another user has closed.
    fn is_missed(&mut self, path: &Path, error: &std::io::Error) {
        let is_denied = error.kind() == std::io::ErrorKind::PermissionDenied;
        let is_others = || is_denied && !files::is_closed_by_own(path);
        self.whole &= !files::is_unread(error) || is_others();
    }

    /// A repository whose hooks run in `top`.
    fn repository(&mut self, top: &Path, repository: &Repository) {
        self.is_read(&repository.git_dir().join("commondir"));
        for place in [repository.git_dir(), repository.common_dir()] {
            self.keep_repository(std::fs::canonicalize(place).ok());
        }
        let common = repository.common_dir();
        let settings = vec![common.join("config"), repository.git_dir().join("config.worktree")];
        let own = self.settings(settings, Config::try_read);
        self.hooks(&common.join("hooks"), top, common);
        for all in [own, self.of_user.clone()] {
            all.hooks.iter().for_each(|path| self.hooks(&top.join(path), top, common));
            all.templates.iter().for_each(|path| self.keep(&top.join(path)));
            for program in &all.programs {
                self.named(|budget| named::by_setting(program, top, budget));
            }
        }
        for name in names_in(&common.join("worktrees"), self.dir, self.budget) {
            self.keep(&name.join("commondir"));
            // Without it git takes the working tree for removed, and forgets its HEAD.
            let place = name.join("gitdir");
            let looked_at = place.symlink_metadata();
            if let Err(error) = &looked_at {
                self.is_missed(&place, error);
            }
            if looked_at.is_ok() || looked_at.is_err_and(|error| files::is_unread(&error)) {
                self.keep(&place);
                let real = std::fs::canonicalize(&name).ok();
                if let Some(inside) = real.and_then(|real| beneath(self.dir, &real)) {
                    self.found.work_tree(&inside);
                }
            }
        }
    }

    /// Keeps what these settings link to and include, and returns what all of them name.
    fn settings(&mut self, files: Vec<PathBuf>, read: Reader) -> Named {
        files.iter().for_each(|file| self.keep_target(file));
        let (mut all, mut files) = (Named::default(), files);
        let (mut asked_for, mut seen) = (HashSet::new(), HashSet::new());
        let mut named = Seen::default();
        for _ in 0..=MAX_DEPTH {
            for file in std::mem::take(&mut files) {
                // git takes a relative path from where the file is named, not from where a link
                // in its place leads.
                let Some((directory, name)) = file.parent().zip(file.file_name()) else { continue };
                // Before links are followed: it may be named many times.
                if !asked_for.insert(file.clone()) || !self.budget.look_at(&file) {
                    continue;
                }
                let Ok(directory) = std::fs::canonicalize(directory) else { continue };
                let file = directory.join(name);
                if !seen.insert(file.clone()) {
                    continue;
                }
                let own = self.config(&file, read);
                named.add(&own, &mut all, self.budget);
                // Once each, before its directory is put in front, which can be long.
                let mut once = HashSet::new();
                for path in own.included().filter(|path| once.insert(path.clone())) {
                    let path = directory.join(path);
                    if !self.budget.look_at(&path) {
                        break;
                    }
                    files.push(path);
                }
            }
            let mut once = HashSet::new();
            files.retain(|file| once.insert(file.clone()));
            files.iter().for_each(|file| self.keep(file));
        }
        all
    }

    /// A directory of hooks, which may be links, and what they run.
    fn hooks(&mut self, directory: &Path, top: &Path, common: &Path) {
        let budget = self.budget;
        let real = |path: &Path| places(path, budget).pop();
        // Not one of them where the budget is spent, and more than spent.
        let Some((own, common_own)) = real(directory).zip(real(common)) else { return };
        let is_default = directory == common.join("hooks") || own == common_own.join("hooks");
        if own == self.dir || own == common_own {
            // All of DIR, or of the repository, cannot be kept.
            let hooks = named::HOOKS.map(|hook| directory.join(hook));
            hooks.iter().for_each(|hook| self.keep(hook));
            return self.named_by_hooks(hooks.into(), top);
        }
        if own.file_name() == Some(OsStr::new("_")) {
            // Husky's; the hooks in it run those of the same name beside it.
            let beside = own.parent().unwrap_or(&own);
            self.keep(beside);
            self.named_by_hooks(names_in(beside, self.dir, budget).collect(), top);
        }
        if is_default {
            self.keep_target(directory);
        } else {
            self.keep(directory);
        }
        self.named_by_hooks(names_in(directory, self.dir, budget).collect(), top);
    }

    /// What is in one directory: first those that git starts, as others may be many, and are what hooks may start.
    fn named_by_hooks(&mut self, mut hooks: Vec<PathBuf>, top: &Path) {
        let is_hook = |name: &OsStr| named::HOOKS.iter().any(|hook| name == *hook);
        hooks.sort_unstable_by(|one, other| one.file_name().cmp(&other.file_name()));
        hooks.sort_by_cached_key(|path| !path.file_name().is_some_and(is_hook));
        self.whole &= hooks.len() <= MAX_HOOKS;
        for hook in hooks.iter().take(MAX_HOOKS) {
            self.keep_target(hook);
            let dir = self.dir;
            self.named(|budget| named::by_hook(hook, top, dir, budget));
        }
    }

    /// Keeps the files that a command line names. It is not read any more where there is no room left.
    fn named(&mut self, files: impl FnOnce(&Budget) -> named::Files) {
        if !self.found.is_full() && !self.budget.is_spent() {
            let files = files(self.budget);
            self.whole &= files.whole;
            files.paths.iter().for_each(|file| self.keep(file));
        }
    }

    /// Keeps a path, and the links on the way to it.
    fn keep(&mut self, path: &Path) {
        if !self.found.is_full() {
            places(path, self.budget).iter().for_each(|place| self.place(place));
        }
    }

    fn place(&mut self, place: &Path) {
        // The rules of every preset name these.
        let is_known =
            |path: &Path| path.starts_with(".git/hooks") || path.ends_with(".git/config");
        if let Some(inside) = beneath(self.dir, place).filter(|path| !is_known(path)) {
            self.found.path(&inside);
        }
    }

    /// Keeps what a symbolic link leads to.
    fn keep_target(&mut self, path: &Path) {
        if path.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
            let own = beneath(self.dir, path);
            let places = places(path, self.budget);
            let others = places.iter().filter(|place| beneath(self.dir, place) != own);
            others.for_each(|place| self.place(place));
        }
    }
}

impl RunLater {
    fn from(gathered: Gathered, whole: bool) -> Self {
        let whole = whole && !gathered.is_full();
        let [mut paths, repositories, work_trees] =
            [gathered.paths, gathered.repositories, gathered.work_trees].map(Vec::from_iter);
        // A rule about one covers what is below it, which comes right behind.
        paths.dedup_by(|path, above| path.starts_with(above));
        Self { paths, repositories, work_trees, whole }
    }

    /// What was found `before`, and this as far as there is room.
    pub(super) fn behind(self, before: &Self) -> Self {
        let mut all = Gathered::default();
        for one in [before, &self] {
            one.paths.iter().for_each(|path| all.path(path));
            one.repositories.iter().for_each(|path| all.repository(path));
            one.work_trees.iter().for_each(|path| all.work_tree(path));
        }
        Self::from(all, self.whole)
    }

    /// The rules for what was found, as text; empty when there is nothing to add.
    pub(super) fn rules(&self) -> String {
        let paths = self.paths.iter().map(|path| glob(path));
        let repositories = self.repositories.iter().flat_map(|path| {
            let all = [OF_REPOSITORY, OF_SUBMODULES, OF_WORK_TREES, OF_THEIR_SUBMODULES];
            all.map(|names| glob(path) + "/" + names)
        });
        rule(
            "Found in this directory: hooks, programs that git's settings and hooks name, settings that git\n\
             # includes, links to repositories.",
            "hooks and links found here",
            &paths.collect::<Vec<_>>(),
        ) + &rule(
            "Found in this directory: repositories below its top. git runs what they say as soon as\n\
             # it is used in them.",
            "repositories found here",
            &repositories.collect::<Vec<_>>(),
        ) + &self.rules_of_work_trees()
    }

    /// git removes such a directory by its list, and in the order of that: `HEAD` and the log may be
    /// gone when it meets the first file that is kept. Where it cannot list, it removes nothing.
    fn rules_of_work_trees(&self) -> String {
        let lines = |end: &str| -> Vec<String> {
            self.work_trees.iter().map(|path| glob(path) + end).collect()
        };
        rule_that(
            "Found in this directory: linked working trees, by what their repository keeps of them. git\n\
             # lists that only to remove it (`git worktree remove`, `prune`), but lists what lies in it.",
            "inside of working trees found here",
            &lines("/*"),
            "operation = \"list\"\naction = \"passthrough\"",
        ) + &rule_that(
            "The same: git removes none of it.",
            "removal of working trees found here",
            &lines(""),
            "operation = \"list\"\nkind = \"directory\"\nexe = \"/**/git\"\naction = \"deny\"",
        )
    }
}

/// A rule that keeps what `globs` cover.
fn rule(comment: &str, name: &str, globs: &[String]) -> String {
    let end = "operation = [\"write\", \"create\"]\naction = \"read-only\"";
    rule_that(comment, name, globs, end)
}

/// A rule that ends so.
fn rule_that(comment: &str, name: &str, globs: &[String], end: &str) -> String {
    if globs.is_empty() {
        return String::new();
    }
    let lines: String = globs.iter().map(|glob| format!("  {},\n", toml_string(glob))).collect();
    format!("# {comment}\n\n[[rule]]\nname = \"{name}\"\npath = [\n{lines}]\n{end}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn repository(&self, name: &str) {
            self.write(&format!("{name}/HEAD"), "ref: refs/heads/main\n");
            self.write(&format!("{name}/config"), "[core]\n\tbare = false\n");
            self.write(&format!("{name}/objects/x"), "");
            self.write(&format!("{name}/refs/x"), "");
        }

        fn link(&self, target: &str, name: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        }

        /// Paths, and repositories.
        fn found(&self) -> (Vec<String>, Vec<String>) {
            let found = look(self.0.path());
            assert!(found.whole);
            let texts = |paths: Vec<PathBuf>| {
                paths.into_iter().map(|path| path.to_str().unwrap().to_owned()).collect()
            };
            (texts(found.paths), texts(found.repositories))
        }
    }

    #[test]
    fn what_runs_later_is_found_where_the_repository_says() {
        let tree = Tree::new();
        tree.write(".git/HEAD", "ref: refs/heads/main\n");
        tree.write(
            ".git/config",
            "[core]\n\thooksPath = \"tools/my hooks\" ; here\n[include]\npath = ../shared.conf\n\
             [includeIf \"gitdir:x\"]\npath = ../other.conf\n",
        );
        tree.write(".gitmodules", "[submodule \"a b\"]\n\tpath = libs/a\n\turl = ../a\n");
        let (paths, repositories) = tree.found();
        assert_eq!(paths, ["libs/a/.git", "other.conf", "shared.conf", "tools/my hooks"]);
        assert!(repositories.is_empty(), "{repositories:?}");
    }

    #[test]
    fn what_hooks_and_settings_link_to_is_found() {
        let tree = Tree::new();
        tree.repository(".git");
        tree.write("tools/pre-commit", "");
        tree.write("tools/more/x", "");
        tree.link("../../tools/pre-commit", ".git/hooks/pre-commit");
        tree.link("/etc/hostname", ".git/hooks/post-commit");
        tree.repository("sub/.git");
        tree.link("../../tools/more", "sub/.git/hooks");
        assert_eq!(tree.found().0, ["tools/more", "tools/pre-commit"]);
    }

    #[test]
    fn repositories_below_are_found_with_what_leads_to_them() {
        let tree = Tree::new();
        tree.repository("a/.git");
        tree.write("a/.git/config", "[core]\n\thooksPath = .hooks\n");
        tree.repository("store.git");
        tree.repository("elsewhere/git-dir");
        tree.write("linked/.git", "gitdir: ../elsewhere/git-dir\n");
        tree.write("a/.git/worktrees/w/commondir", "../..\n");
        tree.write("a/.git/worktrees/w/HEAD", "x\n");
        tree.write("a/.git/worktrees/w/gitdir", "/elsewhere/w/.git\n");
        tree.write("w/.git", "gitdir: ../a/.git/worktrees/w\n");
        tree.repository("node_modules/x/.git");
        let (paths, repositories) = tree.found();
        let names = ["commondir", "gitdir"].map(|name| format!("a/.git/worktrees/w/{name}"));
        let [commondir, gitdir] = names.each_ref().map(String::as_str);
        assert_eq!(paths, [commondir, gitdir, "a/.hooks", "linked/.git", "w/.git", "w/.hooks"]);
        let expected = ["a/.git", "a/.git/worktrees/w", "elsewhere/git-dir", "store.git"];
        assert_eq!(repositories, expected);
    }

    #[test]
    fn a_file_that_leads_to_a_directory_is_kept_whatever_that_has() {
        let tree = Tree::new();
        tree.write("w/.git", "gitdir: ../.cache/g\n");
        // git needs it to be written anew.
        assert_eq!(tree.found(), (vec![], vec![]));
        tree.write(".cache/g/x", "");
        assert_eq!(tree.found(), (vec!["w/.git".to_owned()], vec![".cache/g".to_owned()]));
    }

    #[test]
    fn what_hooks_would_run_is_found_there_or_not() {
        let tree = Tree::new();
        tree.repository(".git");
        tree.write(".git/config", "[core]\nhooksPath = .hooks\n");
        tree.write("scripts/check.sh", "");
        tree.write(
            ".hooks/pre-commit",
            "cd \"$(git rev-parse --show-toplevel)\"; ./scripts/check.sh\n\
             [ -f scripts/local.sh ] && . scripts/local.sh\ncd below && sh inner --all\n\
             npm run lint; make -C tools; vendor/bin/lint; cat <notes.txt\n",
        );
        let (mut paths, _) = tree.found();
        paths.retain(|path| !path.starts_with("below/"));
        assert_eq!(paths, [".hooks", "inner", "scripts/check.sh", "scripts/local.sh"]);
        assert!(tree.found().0.contains(&"below/inner".to_owned()));
    }

    #[test]
    fn a_hook_of_a_mebibyte_is_looked_into_and_a_longer_one_is_said() {
        let tree = Tree::new();
        let script = |times| "./tools/lint.sh\n".to_owned() + &"# more\n".repeat(times);
        tree.repository(".git");
        tree.write(".git/hooks/pre-commit", &script(140_000));
        assert_eq!(tree.found().0, ["tools/lint.sh"]);
        tree.write(".git/hooks/pre-commit", &script(160_000));
        assert!(!look(tree.0.path()).whole);
        // No shell reads these, whatever their length.
        tree.write(
            ".git/hooks/pre-commit",
            &("#!/usr/bin/python3\n".to_owned() + &script(160_000)),
        );
        tree.write(".git/hooks/pre-push", &"\0".repeat(2 << 20));
        tree.write(".git/hooks/update.sample", &script(160_000));
        assert!(tree.found().0.is_empty());
    }

    #[test]
    fn many_files_beside_hooks_do_not_hide_them() {
        let tree = Tree::new();
        tree.repository(".git");
        tree.write(".git/config", "[core]\nhooksPath = scripts\n");
        let write = |number: usize| tree.write(&format!("scripts/{number}.txt"), "#!/bin/cat\n");
        (0..1000).for_each(write);
        let names = ["commit-msg", "post-checkout", "pre-commit", "pre-push"];
        for name in names {
            tree.write(&format!("scripts/{name}"), &format!("sh tools/{name}.sh\n"));
        }
        (1000..2000).for_each(write);
        let found = look(tree.0.path());
        let tools = names.map(|name| PathBuf::from(format!("tools/{name}.sh")));
        assert_eq!(found.paths[1..], tools);
        // Others may be what the hooks start.
        assert!(!found.whole);
        let repository = Repository::at(tree.0.path()).unwrap();
        assert!(files_run(tree.0.path(), &repository, &Budget::default()).is_none());
    }

    /// Each may lead to another directory.
    #[test]
    fn more_changes_of_directory_than_are_looked_at_are_said() {
        let tree = Tree::new();
        tree.repository(".git");
        tree.write("f", "");
        tree.write(".git/hooks/pre-commit", &"cd f\n".repeat(1000));
        assert!(look(tree.0.path()).whole);
        tree.write(".git/hooks/pre-commit", &"cd f\n".repeat(200_000));
        assert!(!look(tree.0.path()).whole);
    }

    /// A file may name one directory of hooks in each of its lines, and so may another file.
    #[test]
    fn what_is_named_again_is_looked_into_once() {
        let tree = Tree::new();
        tree.repository(".git");
        let lines = "hooksPath = hooks\nfsmonitor = ./run a=b\n".repeat(20_000);
        tree.write(".git/config", &format!("[core]\n{lines}"));
        tree.write("hooks/pre-commit", &"sh tools/lint.sh a=b\n".repeat(500));
        assert_eq!(tree.found().0, ["hooks", "run", "tools/lint.sh"]);
    }

    /// Whoever writes in the directory must not hold up who looks at it.
    #[test]
    fn all_that_is_looked_into_has_a_limit_and_that_is_said() {
        let tree = Tree::new();
        tree.repository("a/.git");
        let hook = (0..1024).map(|number| format!("cd x=c{number}\n")).collect::<String>();
        let mut config = "[core]\n".to_owned();
        for number in 0..24 {
            tree.write(&format!("a/h{number}/pre-commit"), &hook);
            config += &format!("hooksPath = h{number}\n");
        }
        tree.write("a/.git/config", &config);
        tree.repository("b/.git");
        let found = look(tree.0.path());
        assert!(!found.whole);
        // What takes no look is found all the same.
        assert_eq!(found.repositories, [Path::new("a/.git"), Path::new("b/.git")]);
        let repository = Repository::at(&tree.0.path().join("a")).unwrap();
        let budget = Budget::default();
        assert!(files_run(&tree.0.path().join("a"), &repository, &budget).is_none());
    }

    /// As git reads them: from the directory of each file, in any depth.
    #[test]
    fn what_included_settings_name_is_found() {
        let tree = Tree::new();
        for top in ["", "below/"] {
            tree.repository(&format!("{top}.git"));
            tree.write(&format!("{top}.git/config"), "[include]\npath = ../conf/one.inc\n");
            tree.write(
                &format!("{top}conf/one.inc"),
                "[core]\nhooksPath = hooks1\n[include]\npath = two.inc\npath = one.inc\n",
            );
            tree.write(
                &format!("{top}conf/two.inc"),
                "[includeIf \"onbranch:x\"]\npath = ../three.inc\n[include]\npath = one.inc\n",
            );
            tree.write(&format!("{top}three.inc"), "[core]\nhooksPath = ./a/../hooks3\n");
        }
        let names = ["conf/one.inc", "conf/two.inc", "hooks1", "hooks3", "three.inc"];
        let expected = names.iter().map(|name| format!("below/{name}"));
        let expected: Vec<_> = expected.chain(names.map(str::to_owned)).collect();
        assert_eq!(tree.found().0, expected);
    }

    #[test]
    fn links_on_the_way_to_what_settings_name_are_found() {
        let tree = Tree::new();
        tree.repository(".git");
        tree.write(".git/config", "[core]\nhooksPath = first/hooks\n[include]\npath = loop\n");
        tree.write("real/tools/hooks/pre-commit", "");
        tree.link("second", "first");
        tree.link("real/tools", "second");
        tree.link("loop", ".git/loop");
        let (paths, _) = tree.found();
        assert_eq!(paths, [".git/loop", "first", "real/tools/hooks", "second"]);
    }
}
