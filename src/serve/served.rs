//! The directories that a process serves. A view is on its directory and goes with it, so what is read
//! again is looked for in there, and not at the path that the directory had at the start.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use tollgate_view::View;

use crate::escape::shown;

/// Where each directory was at the start, and its view.
#[derive(Default)]
pub(super) struct Served(Mutex<Vec<(PathBuf, Arc<View>)>>);

impl Served {
    pub(super) fn add(&self, dir: &Path, view: &Arc<View>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((dir.to_owned(), Arc::clone(view)));
    }

    /// A path of the directory that was at `dir` at the start, or of a file that was in one of them.
    ///
    /// # Errors
    /// When no path leads to the directory any more.
    pub(super) fn now(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let around = all.iter().filter(|(dir, _)| path.starts_with(dir));
        let Some((dir, view)) = around.max_by_key(|(dir, _)| dir.components().count()) else {
            return Ok(path.to_owned());
        };
        let now = view.path_now(dir).with_context(|| {
            format!(
                "no path leads to the directory any more that was `{}` at the start: it was removed, \
                 or something is mounted over it, or one above it may not be entered; end the view \
                 and start it again",
                shown(dir)
            )
        })?;
        let inside = path.strip_prefix(dir).unwrap_or(Path::new(""));
        Ok(if inside == Path::new("") { now } else { now.join(inside) })
    }
}
