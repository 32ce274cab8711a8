//! Linked working trees that CMD added to a repository that was there before: git runs in them what
//! it runs in the others.

use std::collections::HashSet;
use std::fs::canonicalize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Repository;
use super::config::Config;

/// Repositories whose hooks and settings are as they were: the directory with these, without symbolic
/// links, and the top of a working tree.
pub(super) struct Unchanged(Vec<(PathBuf, PathBuf)>);

impl Unchanged {
    /// Those of the working trees `tops`.
    pub(super) fn among(
        tops: impl Iterator<Item = PathBuf>,
        is_changed: impl Fn(&Path, &Repository) -> bool,
    ) -> Self {
        let unchanged = tops.filter_map(|top| {
            let repository = Repository::at(&top)?;
            let common_dir = canonicalize(repository.common_dir()).ok()?;
            (!is_changed(&top, &repository)).then_some((common_dir, top))
        });
        Self(unchanged.collect())
    }

    /// Whether the working tree `top` of `repository` was added to one of these, and git runs in it only what
    /// it runs in that one. `files_run` tells which files git runs in a working tree, there or not;
    /// none where these are too many.
    pub(super) fn has_added(
        &self,
        top: &Path,
        repository: &Repository,
        files_run: impl Fn(&Path, &Repository) -> Option<Vec<PathBuf>>,
    ) -> bool {
        let Some(common_dir) = added_to(repository) else { return false };
        let Some((_, other)) = self.0.iter().find(|one| one.0 == common_dir) else { return false };
        let Some(of_other) = files_run(other, repository) else { return false };
        let Some(own) = files_run(top, repository) else { return false };
        let of_other: HashSet<_> = of_other.into_iter().collect();
        own.iter().all(|file| of_other.contains(file) || is_missing(file))
    }
}

/// The directory with hooks and settings of the repository, where the working tree has none besides
/// and git has it in its list.
fn added_to(repository: &Repository) -> Option<PathBuf> {
    let common_dir = canonicalize(repository.common_dir()).ok()?;
    let git_dir = canonicalize(repository.git_dir()).ok()?;
    let has_own = git_dir.join("config.worktree").symlink_metadata().is_ok();
    let is_read = !Config::is_too_large(&common_dir.join("config"));
    let is_listed = git_dir.parent() == Some(&common_dir.join("worktrees"));
    (repository.linked && is_listed && is_read && !has_own).then_some(common_dir)
}

fn is_missing(file: &Path) -> bool {
    let missing = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    file.symlink_metadata().is_err_and(|error| missing.contains(&error.kind()))
}
