//! What a repository has git start: by its settings, and by its hooks.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::iter::once;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::config::Config;
use super::linked::Unchanged;
use super::starts::starts_program;
use super::syntax::Setting;
use super::{Repository, below, enters};
use crate::escape::{escaped, shown};
use crate::files;

/// Largest index that is read when CMD has ended, in bytes.
const MAX_INDEX_LEN: u64 = 64 << 20;
/// Programs that are named of one repository.
const MAX_NAMED: usize = 4;
/// The kernel's clock for files is a few milliseconds behind.
const CLOCKS_APART: Duration = Duration::from_millis(20);
/// Repositories outside of the index that are told of.
const MAX_TOLD: usize = 8;

/// The settings that name a program, and the hooks, of a repository. Empty for one as git makes it.
pub(crate) fn of(repository: &Repository) -> Vec<String> {
    let common_dir = repository.common_dir();
    let mut found = Vec::new();
    for file in settings_of(repository) {
        if Config::is_too_large(&file) {
            // git reads it, whatever its size.
            found.push(format!("settings of more than 1 MiB in {}", file.display()));
        }
        let config = Config::read(&file);
        found.extend(config.settings().filter(|one| starts_program(one)).map(Setting::name));
    }
    found.extend(hooks(common_dir).map(|(name, _)| format!("hook {name}")));
    found.sort();
    found.dedup();
    if found.len() > MAX_NAMED {
        let more = found.len() - MAX_NAMED;
        found.truncate(MAX_NAMED);
        found.push(format!("{more} more"));
    }
    found
}

/// The files with the settings of a repository, there or not.
fn settings_of(repository: &Repository) -> [PathBuf; 3] {
    let (common_dir, git_dir) = (repository.common_dir(), repository.git_dir());
    let of_work_tree = "config.worktree";
    [common_dir.join("config"), common_dir.join(of_work_tree), git_dir.join(of_work_tree)]
}

/// Hooks that git would run, with their files.
fn hooks(common_dir: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = std::fs::read_dir(common_dir.join("hooks")).ok().into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let runs = std::fs::metadata(entry.path())
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        (runs && !name.ends_with(".sample")).then(|| (name, entry.path()))
    })
}

/// Repositories in `dir` that start programs by what was written after `since`: a line for each.
/// `git status` outside would enter the one at the top and those in the index; into others somebody
/// changes. `files_run` tells which files git runs in a working tree, there or not.
pub(crate) fn left_behind(
    dir: &Path,
    since: SystemTime,
    files_run: impl Fn(&Path, &Repository) -> Option<Vec<PathBuf>>,
) -> Vec<String> {
    let tracked = tracked_repositories(dir);
    let below = below(dir);
    let others = below.work_trees.iter().filter(|one| !tracked.contains(*one));
    let others = others.filter_map(|one| Some((one, Repository::at(&dir.join(one))?)));
    let bare = below.bare.iter().map(|one| (one, Repository::bare(&dir.join(one))));
    let others = others.chain(bare);
    let unchanged = LazyCell::new(|| {
        let tops = once(dir.to_owned()).chain(below.work_trees.iter().map(|one| dir.join(one)));
        Unchanged::among(tops, |top, found| changed_after(top, found, since, false))
    });
    let others = others.filter_map(|(one, found)| {
        let changed = changed(dir, one, &found, since, false)?;
        (!unchanged.has_added(&dir.join(one), &found, &files_run)).then_some(changed)
    });
    let others: Vec<_> = others.collect();
    let tracked = tracked.iter().filter_map(|one| {
        let repository = Repository::at(&dir.join(one))?;
        let (shown, programs) = changed(dir, one, &repository, since, true)?;
        Some(format!(
            "`{shown}` is a git repository in the index, and starts programs: {programs}. \
             `git status` outside enters it: look at its settings first, or use \
             `git status --ignore-submodules=all` and `git rm --cached {shown}`"
        ))
    });
    let mut lines = at_the_top(dir, below.top_is_bare, since);
    let closed = closed(dir, &below, since);
    let more = closed.len().saturating_sub(MAX_TOLD);
    lines.extend(closed.into_iter().take(MAX_TOLD));
    if more > 0 {
        lines.push(format!("{more} more directories were closed so"));
    }
    lines.extend(tracked);
    lines.extend(others.iter().take(MAX_TOLD).map(|(shown, programs)| {
        format!(
            "`{shown}` is a git repository whose hooks or settings changed, and starts programs: \
             {programs}. Look at them before you use git there"
        )
    }));
    if others.len() > MAX_TOLD {
        let more = others.len() - MAX_TOLD;
        lines.push(format!("{more} more such repositories are listed by `tollgate check --dir`"));
    }
    lines
}

/// What was closed after `since`, so that no repository is seen there: a line for each.
fn closed(dir: &Path, below: &below::Below, since: SystemTime) -> Vec<String> {
    let tops = once(Path::new("")).chain(below.work_trees.iter().map(PathBuf::as_path));
    let tops = tops.filter(|one| is_closed(&dir.join(one), since)).map(|one| {
        format!(
            "`{}`, or what it leads to, was closed (chmod): that may be a git repository whose hooks \
             or settings changed. Look at them before you use git there",
            shown(&one.join(".git"))
        )
    });
    let around = closed_in(dir, &below.closed, since).into_iter().map(|one| {
        format!(
            "`{}` was closed (chmod): there may be a git repository in it whose hooks or settings \
             changed. Look at them before you use git there, or where it is in the index",
            shown(&one)
        )
    });
    tops.chain(around).collect()
}

/// Whether no repository is seen by the `.git` of `top`, as it cannot be read, or what it leads to, which somebody of
/// this user closed, or made it lead to, after `since`. It could be opened later.
fn is_closed(top: &Path, since: SystemTime) -> bool {
    let dot_git = top.join(".git");
    let (place, looked_at) = match Repository::place_of(top) {
        _ if Repository::at(top).is_some() => return false,
        Some(place) => (place.join("HEAD"), std::fs::metadata(place.join("HEAD")).map(drop)),
        None => (dot_git.clone(), files::read_head(&dot_git, 1).map(drop)),
    };
    let is_denied = looked_at.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    // What keeps it from being looked at.
    let mut closed = place.ancestors().filter_map(|path| std::fs::metadata(path).ok());
    is_denied
        && files::is_closed_by_own(&place)
        && (std::fs::symlink_metadata(&dot_git).is_ok_and(|meta| is_after(&meta, since))
            || closed.next().is_some_and(|meta| is_after(&meta, since)))
}

/// The directories, relative to `dir`, that keep these from being read, and that were closed after `since`.
fn closed_in(dir: &Path, unread: &[PathBuf], since: SystemTime) -> BTreeSet<PathBuf> {
    let by = |one: &PathBuf| {
        let seen = |path: &&Path| std::fs::symlink_metadata(dir.join(path)).ok();
        let (path, meta) = one.ancestors().find_map(|path| Some((path, seen(&path)?)))?;
        is_after(&meta, since).then(|| path.to_owned())
    };
    unread.iter().filter_map(by).collect()
}

/// The same of those at the top: the one of the working tree, and the one that is `dir` itself,
/// which git takes where no `.git` is there, or a broken one.
fn at_the_top(dir: &Path, is_bare: bool, since: SystemTime) -> Vec<String> {
    let changed = |repository: &Repository| {
        changed(dir, Path::new(""), repository, since, false).map(|(_, programs)| programs)
    };
    let of_work_tree = Repository::at(dir).and_then(|found| changed(&found)).map(|programs| {
        format!(
            "the hooks or settings of the git repository of DIR changed, and it starts programs: \
             {programs}. Look at them before you use git there"
        )
    });
    let itself = is_bare.then(|| changed(&Repository::bare(dir))).flatten().map(|programs| {
        format!(
            "DIR itself is a bare git repository whose hooks or settings changed, and starts \
             programs: {programs}. `git status` outside uses it where `.git` is missing or broken: \
             look at `HEAD`, `config` and `hooks` in DIR before you use git there"
        )
    });
    of_work_tree.into_iter().chain(itself).collect()
}

/// The repositories in the index of the one at `dir` that git enters.
fn tracked_repositories(dir: &Path) -> BTreeSet<PathBuf> {
    let Some(top) = Repository::at(dir) else { return BTreeSet::new() };
    let index = top.git_dir().join("index");
    if std::fs::metadata(&index).map_or(true, |meta| meta.len() > MAX_INDEX_LEN) {
        return BTreeSet::new();
    }
    let tracked = top.tracked().unwrap_or_default();
    let linked = tracked.into_iter().filter(|one| one.is_repository);
    let paths: BTreeSet<_> =
        linked.map(|one| PathBuf::from(OsString::from_vec(one.path))).collect();
    paths.into_iter().filter(|one| enters(dir, one)).collect()
}

/// The name of a repository that starts programs by what was written after `since`, and those.
/// Its directories count where `moved`: one that was there before may have taken another's place.
/// Every command of git changes them.
fn changed(
    dir: &Path,
    inside: &Path,
    repository: &Repository,
    since: SystemTime,
    moved: bool,
) -> Option<(String, String)> {
    let programs = of(repository);
    let is_new = || {
        changed_after(&dir.join(inside), repository, since, moved)
            || moved && is_placed(dir, inside, since)
    };
    if programs.is_empty() || !is_new() {
        return None;
    }
    Some((shown(inside), escaped(&programs.join(", "))))
}

/// Whether `inside`, or a directory above it in `dir`, was moved there or opened (chmod) after `since`, or got or lost
/// something: nothing in it needs to be new then.
fn is_placed(dir: &Path, inside: &Path, since: SystemTime) -> bool {
    let mut places = inside.ancestors().filter(|one| *one != Path::new(""));
    places.any(|one| {
        std::fs::symlink_metadata(dir.join(one)).is_ok_and(|meta| is_after(&meta, since))
    })
}

/// The moment from which on changes are CMD's: [`left_behind`] is to be asked for what came after it. Somebody else may
/// have changed the repository in `dir` just now, which must be long enough before it to be told apart.
pub(crate) fn begin(dir: &Path) -> SystemTime {
    let mut now = SystemTime::now();
    // Not for ever: others may go on changing it.
    for _ in 0..20 {
        let is_new =
            Repository::at(dir).is_some_and(|found| changed_after(dir, &found, now, false));
        if !is_new {
            break;
        }
        std::thread::sleep(CLOCKS_APART / 4);
        now = SystemTime::now();
    }
    now
}

/// Whether a file was changed, or put in its place, after `since`.
fn is_after(meta: &std::fs::Metadata, since: SystemTime) -> bool {
    let since = since.checked_sub(CLOCKS_APART).unwrap_or(since);
    let seconds = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let begin = (seconds.as_secs(), i64::from(seconds.subsec_nanos()));
    (u64::try_from(meta.ctime()).unwrap_or(0), meta.ctime_nsec()) >= begin
}

/// Whether what names programs was written, or put in its place, after `since`.
fn changed_after(top: &Path, repository: &Repository, since: SystemTime, moved: bool) -> bool {
    let common_dir = repository.common_dir.as_path();
    let git_dir = repository.git_dir();
    let is_new = |meta: std::fs::Metadata| is_after(&meta, since);
    let is_placed = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(is_new);
    let directories = [common_dir.to_owned(), git_dir.to_owned(), top.join(".git")];
    let mut leading = directories
        .into_iter()
        .filter(|path| moved || path.is_file() || path.is_symlink())
        // And what says which directory that is.
        .chain([git_dir.join("commondir")]);
    let mut named = settings_of(repository)
        .into_iter()
        .chain([common_dir.join("hooks")])
        .chain(hooks(common_dir).map(|(_, file)| file));
    // Hooks and settings may be links.
    leading.any(|path| is_placed(&path))
        || named.any(|path| is_placed(&path) || std::fs::metadata(&path).is_ok_and(is_new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::index::tests::of_repositories;

    fn repository(config: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("hooks")).unwrap();
        std::fs::write(dir.path().join("hooks/pre-commit.sample"), "").unwrap();
        std::fs::write(dir.path().join("config"), config).unwrap();
        dir
    }

    #[test]
    fn settings_that_start_programs_are_found_however_they_are_written() {
        let found = |config: &str| of(&Repository::bare(repository(config).path()));
        let plain = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tfsmonitor = true\n\
                     [remote \"origin\"]\n\turl = x\n\tfetch = +refs/heads/*\n[alias]\nst = status\n";
        assert_eq!(found(plain), Vec::<String>::new());
        assert_eq!(found("[core] fsmonitor = ./x\n"), ["core.fsmonitor"]);
        assert_eq!(found("[CORE]\nFSMonitor=x"), ["core.fsmonitor"]);
        assert_eq!(found("[filter \"a]b\"]\nclean = x\n"), ["filter.a]b.clean"]);
        assert_eq!(found("[core]\nfsmonitor = \\\n ./x\n"), ["core.fsmonitor"]);
        assert_eq!(found("[alias]\nst = !sh\n[include]\npath = x\n"), ["alias.st", "include.path"]);
        assert_eq!(found("[filter.lfs]\nsmudge = x\n"), ["filter.lfs.smudge"]);
    }

    /// git reads a file of any size.
    #[test]
    fn settings_that_are_too_long_to_be_read_are_named() {
        let dir = repository(&format!("[core]\nfsmonitor = x\n{}", "#\n".repeat(1 << 19)));
        let found = of(&Repository::bare(dir.path()));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("settings of more than 1 MiB in "), "{found:?}");
    }

    /// `commondir` leads to other settings than those that are there.
    #[test]
    fn a_common_directory_that_is_named_later_counts() {
        let other = repository("[core]\nfsmonitor = x\n");
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".git")).unwrap();
        std::fs::write(dir.path().join(".git/HEAD"), "").unwrap();
        let wait = || std::thread::sleep(Duration::from_millis(100));
        wait();
        let since = SystemTime::now();
        wait();
        let changed = || {
            let repository = Repository::at(dir.path()).unwrap();
            changed_after(dir.path(), &repository, since, false)
        };
        assert!(!changed());
        let text = other.path().to_str().unwrap();
        std::fs::write(dir.path().join(".git/commondir"), text).unwrap();
        assert!(changed());
    }

    /// It is opened again in the next `run`, and nothing in it is new then.
    #[test]
    fn what_a_file_leads_to_and_was_closed_is_said() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: root alone can become another user");
        }
        // The user of this thread alone.
        let as_another = || {
            let user = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            let set = |mode| {
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(path("a/evil"), mode).unwrap();
            };
            std::fs::create_dir_all(path("a/evil")).unwrap();
            std::fs::create_dir(path("w")).unwrap();
            std::fs::write(path("a/evil/HEAD"), "x").unwrap();
            std::fs::write(path("a/evil/config"), "[core]\nfsmonitor = x\n").unwrap();
            let wait = || std::thread::sleep(Duration::from_millis(100));
            let said = |since| left_behind(dir.path(), since, |_, _| None);
            let since = SystemTime::now();
            wait();
            std::fs::write(path("w/.git"), "gitdir: ../a/evil\n").unwrap();
            assert!(said(since)[0].starts_with("`w` is a git repository"));
            set(0);
            assert!(said(since)[0].starts_with("`w/.git`, or what it leads to, was closed"));
            let closed = std::fs::Permissions::from_mode(0o000);
            std::fs::set_permissions(path("w"), closed).unwrap();
            assert!(said(since)[0].starts_with("`a/evil` was closed"), "{:?}", said(since));
            assert!(said(since)[1].starts_with("`w` was closed"), "{:?}", said(since));
            std::fs::set_permissions(path("w"), std::fs::Permissions::from_mode(0o755)).unwrap();
            wait();
            // Nor was it a command that closed it before.
            assert!(said(SystemTime::now() + CLOCKS_APART).is_empty());
            set(0o755);
            std::fs::remove_dir_all(path("a/evil")).unwrap();
            assert!(said(since).is_empty(), "it leads nowhere");
        };
        std::thread::spawn(as_another).join().unwrap();
    }

    /// As what is in `node_modules` is not looked for, and what was closed cannot be.
    #[test]
    fn a_repository_in_the_index_that_was_moved_or_opened_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path(".git")).unwrap();
        std::fs::write(path(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(path(".git/index"), of_repositories(&["w", "a/v"])).unwrap();
        for git_dir in ["node_modules/x/.git", "b/v/.git"] {
            std::fs::create_dir_all(path(git_dir)).unwrap();
            std::fs::write(path(git_dir).join("HEAD"), "ref: refs/heads/main\n").unwrap();
            std::fs::write(path(git_dir).join("config"), "[core]\nfsmonitor = x\n").unwrap();
        }
        std::thread::sleep(2 * CLOCKS_APART);
        let since = SystemTime::now();
        std::thread::sleep(2 * CLOCKS_APART);
        let said = || left_behind(dir.path(), since, |_, _| None);
        assert!(said().is_empty(), "{:?}", said());
        std::fs::rename(path("node_modules/x"), path("w")).unwrap();
        std::fs::rename(path("b"), path("a")).unwrap();
        let said = said();
        let starts = |name: &str| format!("`{name}` is a git repository in the index, and starts");
        assert!(said.len() == 2, "{said:?}");
        for name in ["a/v", "w"] {
            assert!(said.iter().any(|one| one.starts_with(&starts(name))), "{said:?}");
        }
    }

    /// By a script that sets something and starts CMD.
    #[test]
    fn what_was_changed_right_before_is_not_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join(".git");
        std::fs::create_dir_all(git.join("hooks")).unwrap();
        std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(git.join("config"), "[core]\nfsmonitor = x\n").unwrap();
        let repository = Repository::at(dir.path()).unwrap();
        let changed = |since| changed_after(dir.path(), &repository, since, false);
        assert!(!changed(begin(dir.path())));
        let since = begin(dir.path());
        std::fs::write(git.join("config"), "[core]\nfsmonitor = y\n").unwrap();
        assert!(changed(since));
    }

    #[test]
    fn hooks_that_would_run_are_found() {
        let dir = repository("");
        let hook = dir.path().join("hooks/post-index-change");
        std::fs::write(&hook, "").unwrap();
        assert_eq!(of(&Repository::bare(dir.path())), Vec::<String>::new());
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(of(&Repository::bare(dir.path())), ["hook post-index-change"]);
    }

    #[test]
    fn repositories_in_the_index_are_found_once_and_behind_no_link() {
        let dir = tempfile::tempdir().unwrap();
        for top in ["", "c"] {
            let git_dir = dir.path().join(top).join(".git");
            std::fs::create_dir_all(&git_dir).unwrap();
            std::fs::write(git_dir.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        }
        let index = of_repositories(&["a", "a/c", "c", "c", "missing"]);
        std::fs::write(dir.path().join(".git/index"), index).unwrap();
        std::os::unix::fs::symlink(".", dir.path().join("a")).unwrap();
        assert_eq!(Vec::from_iter(tracked_repositories(dir.path())), [PathBuf::from("c")]);
    }
}
