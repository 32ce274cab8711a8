//! What the fence does with a path outside of DIR, and which option would change that.

use std::path::{Path, PathBuf};

use super::allow::Allowed;
use super::listed;
use super::places;
use super::shape::Fence;

/// What is needed of a fence to answer.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    allowed: Vec<Allowed>,
    home: Option<PathBuf>,
    shown: Vec<PathBuf>,
}

impl Outside {
    pub(crate) fn of(fence: &Fence) -> Self {
        let mut shown = listed::by_environment();
        if let Some(home) = &fence.home {
            shown.extend(listed::of_home(home, fence.command.as_deref()));
        }
        shown.extend(fence.programs.iter().cloned());
        Self { allowed: fence.allowed.clone(), home: fence.home.clone(), shown }
    }

    /// In a sentence or two. `path` is absolute, without `.` and `..`.
    pub(crate) fn why(&self, path: &Path, write: bool) -> String {
        let shown = path.display();
        let to_read = format!("`--allow {shown}` shows it");
        let to_write = format!("`--allow {shown}:rw` lets CMD change it");
        if let Some(allowed) = self.allowed.iter().find(|one| path.starts_with(&one.path)) {
            let named = allowed.path.display();
            return match (allowed.writable, write) {
                (true, _) => format!("yes: `--allow {named}:rw` was given"),
                (false, false) => format!("yes, to read: `--allow {named}` was given"),
                (false, true) => {
                    format!("no: `--allow {named}` was given, which is read-only; {to_write}")
                }
            };
        }
        if places::is_private(path) {
            return format!(
                "a private place, empty at the start and gone when CMD ends; {to_read}, {to_write}"
            );
        }
        let in_own = self.home.as_deref().is_some_and(|home| path.starts_with(home));
        if in_own || path.starts_with("/home") || path.starts_with("/root") {
            return self.why_in_home(path, write, in_own, &to_read, &to_write);
        }
        if write {
            format!("no: outside of DIR all is read-only (EROFS); {to_write}")
        } else {
            "yes, to read, as far as its permissions go".to_owned()
        }
    }

    fn why_in_home(
        &self,
        path: &Path,
        write: bool,
        in_own: bool,
        to_read: &str,
        to_write: &str,
    ) -> String {
        let is_shown = self.shown.iter().any(|shown| path.starts_with(shown));
        match (is_shown, in_own, write) {
            (true, true, true) | (false, true, true) => {
                format!("yes, in a private copy that is gone when CMD ends; {to_write}")
            }
            (true, _, false) => "yes, to read: tool chains, caches and settings are shown".into(),
            (true, false, true) => format!("no: it is read-only (EROFS); {to_write}"),
            (false, ..) => format!("no: home directories are hidden (ENOENT); {to_read}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_that_would_help_is_named() {
        let outside = Outside {
            allowed: vec![Allowed { path: "/srv/data".into(), writable: false }],
            home: Some("/home/me".into()),
            shown: vec!["/home/me/.cargo/bin".into()],
        };
        for (path, write, expected) in [
            ("/srv/data/x", false, "yes, to read: `--allow /srv/data`"),
            ("/srv/data/x", true, "`--allow /srv/data/x:rw`"),
            ("/tmp/x", false, "private place"),
            (
                "/home/me/.ssh/key",
                false,
                "no: home directories are hidden (ENOENT); `--allow /home/me/.ssh/key`",
            ),
            ("/home/me/new", true, "private copy"),
            ("/home/me/.cargo/bin/x", false, "yes, to read"),
            ("/home/other/x", true, "no: home directories are hidden"),
            ("/etc/passwd", false, "yes, to read"),
            ("/etc/passwd", true, "EROFS); `--allow /etc/passwd:rw`"),
        ] {
            let answer = outside.why(Path::new(path), write);
            assert!(answer.contains(expected), "{path}: {answer}");
        }
    }
}
