//! What the files of a git repository say, read without running git: a repository that is not
//! trusted can have git start programs.

mod below;
mod config;
mod deleted;
mod index;
mod linked;
mod programs;
mod starts;
mod syntax;
mod words;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::files;

pub(crate) use below::below;
pub(crate) use config::Config;
pub(crate) use deleted::IndexesBefore;
pub(crate) use index::Tracked;
pub(crate) use programs::{begin, left_behind, of as programs_of};
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

/// Most that is read of a file that names a directory, in bytes; git takes no longer `.git`.
const MAX_NAME_LEN: u64 = 1 << 20;

/// The directory that `file` names behind `mark`, as git reads it: without the line ends behind all of
/// it, then to the first NUL, and of whatever bytes. Such files may be CMD's.
fn named_by(file: &Path, mark: &str) -> Option<PathBuf> {
    let bytes = files::read_head(file, MAX_NAME_LEN).ok()?;
    let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let end = bytes.iter().rposition(|byte| !is_end(byte)).map_or(0, |last| last + 1);
    let name = bytes[..end].strip_prefix(mark.as_bytes())?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

impl Repository {
    /// The repository whose working tree `dir` is the top of.
    pub(crate) fn at(dir: &Path) -> Option<Self> {
        let git_dir = Self::place_of(dir)?;
        // A command that removes HEAD must not get rid of what its settings ask for.
        let mut signs = ["HEAD", "config", "commondir"].iter();
        if !signs.any(|name| git_dir.join(name).exists()) {
            return None;
        }
        Some(Self { linked: dir.join(".git").is_file(), ..Self::bare(&git_dir) })
    }

    /// The directory that the `.git` of a working tree is, or leads to, there or not. None where it is a file that
    /// names none.
    pub(crate) fn place_of(dir: &Path) -> Option<PathBuf> {
        let dot_git = dir.join(".git");
        if !dot_git.is_file() {
            return Some(dot_git);
        }
        let named = named_by(&dot_git, "gitdir: ")?;
        (named != Path::new("")).then(|| dir.join(named))
    }

    /// The repository that is this directory itself.
    pub(crate) fn bare(git_dir: &Path) -> Self {
        let named = named_by(&git_dir.join("commondir"), "");
        let common_dir = named.map_or_else(|| git_dir.to_owned(), |name| git_dir.join(name));
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
        index::tracked(&self.git_dir.join("index"), self.name_len())
    }

    /// Bytes of the name of an object: SHA-1's 20, or SHA-256's 32 (`git init --object-format`).
    fn name_len(&self) -> usize {
        let config = Config::read(&self.common_dir.join("config"));
        let format = config.values("extensions.objectformat").last();
        if format == Some(OsStr::new("sha256")) { 32 } else { 20 }
    }
}

/// Whether git enters `inside`, a path in the index of the working tree `top`, as a submodule: not behind a
/// symbolic link, which could lead to the same one in ever more ways, and nowhere outside.
fn enters(top: &Path, inside: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // `top` itself may be reached by links.
    let Ok(top) = rustix::fs::open(top, flags, Mode::empty()) else { return false };
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(top, inside, flags, Mode::empty(), beneath).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// CMD can move HEAD away in one `run`, and there are no settings beside it.
    #[test]
    fn a_linked_working_tree_without_a_head_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join(".git/worktrees/w");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir(dir.path().join("w")).unwrap();
        std::fs::write(dir.path().join("w/.git"), "gitdir: ../.git/worktrees/w\n").unwrap();
        assert!(Repository::at(&dir.path().join("w")).is_none());
        std::fs::write(place.join("commondir"), "../..\n").unwrap();
        let found = Repository::at(&dir.path().join("w")).unwrap();
        assert!(found.linked && found.common_dir().ends_with(".git/worktrees/w/../.."));
    }

    #[test]
    fn names_of_directories_are_read_as_git_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".git");
        let named = |text: &[u8]| {
            std::fs::write(&file, text).unwrap();
            named_by(&file, "gitdir: ").map(|path| path.as_os_str().as_bytes().to_vec())
        };
        assert_eq!(named(b"gitdir: ../a\r\n\n").unwrap(), b"../a");
        assert_eq!(named(b"gitdir:  a \n").unwrap(), b" a ");
        assert_eq!(named(b"gitdir: a\0b\n").unwrap(), b"a");
        assert_eq!(named(b"gitdir: a\n\0b\n").unwrap(), b"a\n");
        assert_eq!(named(b"gitdir: \xff\n").unwrap(), b"\xff");
        let long = [b"gitdir: a".as_slice(), &[b'\n'; 2 << 20]].concat();
        assert_eq!(named(&long).unwrap(), b"a");
        assert_eq!(named(b"gitdir:\ta\n"), None);
        assert_eq!(named(b""), None);
    }
}
