//! What the files of a git repository say, read without running git: a repository that is not
//! trusted can have git start programs.

mod below;
mod config;
mod deleted;
mod index;
mod programs;
mod starts;
mod syntax;
mod words;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files;

pub(crate) use below::below;
pub(crate) use config::Config;
pub(crate) use deleted::IndexBefore;
pub(crate) use index::{Tracked, tracked};
pub(crate) use programs::{left_behind, of as programs_of};
pub(crate) use syntax::Setting;
pub(crate) use words::{FILLED_IN, Role, Word, words};

/// A repository whose working tree is a given directory.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    /// The directory with `HEAD` and `index`.
    git_dir: PathBuf,
    /// The directory with `config` and `hooks`: that of the main working tree.
    common_dir: PathBuf,
    /// `.git` is a file that names another place (a linked working tree, a submodule).
    linked: bool,
}

/// Largest file that names a directory, in bytes.
const MAX_NAME_LEN: u64 = 64 << 10;

/// What is in a file that names a directory; such files may be CMD's.
fn text_of(file: &Path) -> std::io::Result<String> {
    let bytes = files::read_at_most(file, MAX_NAME_LEN)?;
    String::from_utf8(bytes).map_err(|_| std::io::ErrorKind::InvalidData.into())
}

impl Repository {
    /// The repository whose working tree `dir` is the top of.
    pub(crate) fn at(dir: &Path) -> Option<Self> {
        let dot_git = dir.join(".git");
        let linked = dot_git.is_file();
        let git_dir = if linked {
            let text = text_of(&dot_git).ok()?;
            dir.join(text.strip_prefix("gitdir:")?.trim())
        } else {
            dot_git
        };
        // A command that removes HEAD must not get rid of what its settings ask for.
        if !git_dir.join("HEAD").exists() && !git_dir.join("config").exists() {
            return None;
        }
        Some(Self { linked, ..Self::bare(&git_dir) })
    }

    /// The repository that is this directory itself.
    pub(crate) fn bare(git_dir: &Path) -> Self {
        let common_dir = match text_of(&git_dir.join("commondir")) {
            Ok(text) => git_dir.join(text.trim()),
            Err(_) => git_dir.to_owned(),
        };
        Self { git_dir: git_dir.to_owned(), common_dir, linked: false }
    }

    /// The top of the working tree that `directory` lies in.
    pub(crate) fn top_of(directory: &Path) -> Option<PathBuf> {
        directory.ancestors().find(|above| Self::at(above).is_some()).map(Path::to_owned)
    }

    pub(crate) fn kind(&self) -> &'static str {
        if self.linked { "git working tree (linked)" } else { "git repository" }
    }

    pub(crate) fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    pub(crate) fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    /// The directories of the repository, without symbolic links, where some of it lies outside of
    /// the working tree `dir`.
    pub(crate) fn outside_of(&self, dir: &Path) -> Option<[PathBuf; 2]> {
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let [git_dir, common_dir] = [real(&self.git_dir)?, real(&self.common_dir)?];
        let dir = real(dir)?;
        let inside = git_dir.starts_with(&dir) && common_dir.starts_with(&dir);
        (!inside).then_some([git_dir, common_dir])
    }

    /// The files in the index.
    ///
    /// # Errors
    /// When the index cannot be read; a repository without one has no tracked files.
    pub(crate) fn tracked(&self) -> anyhow::Result<Vec<Tracked>> {
        tracked(&self.git_dir.join("index"))
    }
}

/// Whether git would take it for deleted if it could not see this file. True also where that cannot
/// be told.
pub(crate) fn is_tracked(file: &Path) -> bool {
    let mut above = file.ancestors().skip(1);
    let found = above.find_map(|top| Some((file.strip_prefix(top).ok()?, Repository::at(top)?)));
    let Some((name, repository)) = found else { return false };
    let name = name.as_os_str().as_bytes();
    let is_it = |one: &Tracked| one.path == name && !one.skip_worktree;
    repository.tracked().map_or(true, |all| all.iter().any(is_it))
}
