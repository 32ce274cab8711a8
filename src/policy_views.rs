//! `[[view]]`: further directories that a policy decides over, each by rules of its own.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use tollgate_policy::{Policy, PolicyFile, ViewEntry};

use crate::escape::{escaped, shown};
use crate::policy_choice::{IN_DIR, Origin, is_same};
use crate::tree;

/// A further directory, and where its policy comes from.
#[derive(Debug)]
pub(crate) struct Further {
    /// As the policy has it, with the home directory in the place of `~`.
    pub(crate) dir: PathBuf,
    pub(crate) origin: Origin,
    /// The line and the column of its header.
    at: (usize, usize),
}

impl Further {
    /// Where it stands, for a message that goes on with what is wrong.
    pub(crate) fn place(&self) -> String {
        let file = self.origin.files().first().map(|file| shown(file)).unwrap_or_default();
        let (line, column) = self.at;
        format!("{file}:{line}:{column}: `[[view]]` of `{}`", shown(&self.dir))
    }
}

/// The further directories of a policy for DIR; `home` stands for `~`.
///
/// # Errors
/// When a file is wrong, there is no home directory, or a policy that was found in DIR, and that
/// nobody named, would open others.
pub(crate) fn of(
    origin: &Origin,
    was_named: bool,
    dir: &Path,
    home: Option<&Path>,
) -> anyhow::Result<Vec<Further>> {
    let mut all = Vec::new();
    for file in origin.files() {
        for view in tables(origin, file, was_named, dir)? {
            let dir = directory(&view, file, home)?;
            let origin = Origin::View { file: file.to_owned(), dir: view.dir, covered: None };
            all.push(Further { dir, origin, at: (view.line, view.column) });
        }
    }
    Ok(all)
}

/// The directory of `view`, of `file`, with `home` in the place of `~`.
fn directory(view: &ViewEntry, file: &Path, home: Option<&Path>) -> anyhow::Result<PathBuf> {
    let Some(rest) = view.dir.strip_prefix('~') else { return Ok(PathBuf::from(&view.dir)) };
    let home = home.with_context(|| {
        let (file, line, column) = (shown(file), view.line, view.column);
        format!("{file}:{line}:{column}: there is no home directory that `~` could mean")
    })?;
    Ok(home.join(rest.trim_start_matches('/')))
}

/// The `[[view]]` tables of `file`, of a policy for DIR that was named by somebody or found.
///
/// # Errors
/// As [`of`].
fn tables(
    origin: &Origin,
    file: &Path,
    was_named: bool,
    dir: &Path,
) -> anyhow::Result<Vec<ViewEntry>> {
    let views = origin.read(file, dir)?.views;
    let may_have_some = was_named || std::path::absolute(file)? != dir.join(IN_DIR);
    if let Some(first) = views.first().filter(|_| !may_have_some) {
        let (file, line, column) = (shown(file), first.line, first.column);
        bail!(
            "{file}:{line}:{column}: a policy that is found in DIR cannot have `[[view]]` tables, as who \
             writes in DIR would open other directories by them; name it, `--policy {file}`, if \
             you mean that"
        );
    }
    Ok(views)
}

/// The directories of `further`, as the policy has them.
pub(crate) fn named(further: &[Further]) -> Vec<String> {
    let named = further.iter().filter_map(|one| match &one.origin {
        Origin::View { dir, .. } => Some(dir.clone()),
        _ => None,
    });
    named.collect()
}

/// What of the `[[view]]` tables of `origin`, as they are now, does not hold where those of `before`
/// were there at the start: views begin and end with the server, which shows all of them or, as
/// `mount` does, `only_dir`.
///
/// # Errors
/// When a file is wrong, or was found in DIR and has such tables: no start would take it.
pub(crate) fn not_applied(
    origin: &Origin,
    was_named: bool,
    dir: &Path,
    before: &[String],
    only_dir: bool,
) -> anyhow::Result<Vec<String>> {
    // Of a further view, the server of DIR says it.
    if matches!(origin, Origin::View { .. }) {
        return Ok(Vec::new());
    }
    let mut texts = Vec::new();
    let mut now = Vec::new();
    for file in origin.files() {
        for view in tables(origin, file, was_named, dir)? {
            if !before.contains(&view.dir) {
                let how = how_to_show(file, &view.dir, only_dir);
                texts.push(format!("`[[view]]` of `{}` is new: {how}", escaped(&view.dir)));
            }
            now.push(view.dir);
        }
    }
    let dropped = before.iter().filter(|dir| !now.contains(dir) && !only_dir);
    texts.extend(dropped.map(|dir| {
        let dir = escaped(dir);
        format!("`[[view]]` of `{dir}` is gone: it is served until the end, by the rules it had")
    }));
    Ok(texts)
}

/// What puts a view that was added in force.
fn how_to_show(file: &Path, dir: &str, only_dir: bool) -> String {
    if !only_dir {
        return "it shows from the next start on; end the `run` and start it again".to_owned();
    }
    format!(
        "`mount` shows DIR alone; mount it itself, `tollgate mount --policy {} {} MNT`, or have \
         `tollgate run` show all of them",
        shown(file),
        escaped(dir)
    )
}

/// The policy that decides over `dir`: that of a `[[view]]` of this directory, else `origin`.
///
/// # Errors
/// When a file is wrong.
pub(crate) fn of_directory(origin: Origin, dir: &Path) -> anyhow::Result<Origin> {
    let home = std::env::home_dir();
    let mut all = of(&origin, true, dir, home.as_deref())?;
    Ok(position(&all, dir).map_or(origin, |at| all.swap_remove(at).origin))
}

/// The rules for `dir` in `whole`, which was read from `file`: those of a `[[view]]` of this directory,
/// else those of DIR.
///
/// # Errors
/// There is no home directory that `~` could mean.
pub(crate) fn rules_for(whole: PolicyFile, file: &Path, dir: &Path) -> anyhow::Result<Policy> {
    let home = std::env::home_dir();
    for view in whole.views {
        if is_same(&directory(&view, file, home.as_deref())?, dir) {
            return Ok(view.policy);
        }
    }
    Ok(whole.policy)
}

/// Whether `dir` is the directory of one of them.
pub(crate) fn is_among(all: &[Further], dir: &Path) -> bool {
    position(all, dir).is_some()
}

fn position(all: &[Further], dir: &Path) -> Option<usize> {
    all.iter().position(|one| is_same(&one.dir, dir))
}

/// The directories of `all`, as [`place_beside`] has them.
///
/// # Errors
/// When one of them is no directory, or cannot be shown beside `dir` and the others.
pub(crate) fn check_places(all: &[Further], dir: Option<&Path>) -> anyhow::Result<()> {
    let mut paths = Vec::new();
    for one in all {
        let (path, _) = place_beside(one, dir, &paths)?;
        let (_, source) = tree::open_as(&path, &one.place())?;
        tree::refuse_kernel_file_system(&one.place(), &source)?;
        paths.push(path);
    }
    Ok(())
}

/// The directory of `further`, absolute and without links, and whether DIR lies in it, where DIR is
/// known.
///
/// # Errors
/// When it cannot be shown beside `dir` and `others`.
pub(crate) fn place_beside(
    further: &Further,
    dir: Option<&Path>,
    others: &[PathBuf],
) -> anyhow::Result<(PathBuf, bool)> {
    let place = further.place();
    let path = match std::fs::canonicalize(&further.dir) {
        Ok(path) => path,
        Err(error) => bail!("{place} {}", tree::why(&error)),
    };
    ensure!(path.parent().is_some(), "{place} would cover `/`, the root of all paths");
    if let Some(dir) = dir {
        ensure!(path != dir, "{place} is DIR, whose rules stand outside of every `[[view]]`");
        ensure!(
            !path.starts_with(dir),
            "{place} lies in DIR `{}`, whose rules decide there; write them as `[[rule]]`",
            shown(dir)
        );
    }
    for other in others {
        ensure!(
            !path.starts_with(other) && !other.starts_with(&path),
            "{place} lies in `{0}`, or that in it, which is a `[[view]]`, too; write one with the \
             rules of both",
            shown(other)
        );
    }
    let holds_dir = dir.is_some_and(|dir| dir.starts_with(&path));
    Ok((path, holds_dir))
}
