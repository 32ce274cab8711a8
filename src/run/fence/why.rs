//! What the fence does with a path outside of DIR, and which option would change that.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::allow::Allowed;
use super::homes;
use super::listed;
use super::places;
use super::shape::Fence;

/// What is needed of a fence to answer.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    allowed: Vec<Allowed>,
    further: Vec<PathBuf>,
    home: Option<PathBuf>,
    further_homes: Vec<PathBuf>,
    shown: Vec<PathBuf>,
    /// What of private places is shown, read-only.
    kept: Vec<PathBuf>,
    /// Further paths, by other mounts, to what is hidden.
    elsewhere: Vec<PathBuf>,
}

impl Outside {
    /// Of DIR `dir`, CMD starting in `cwd`.
    pub(crate) fn of(fence: &Fence, dir: &Path, cwd: &Path) -> Self {
        let mut shown = listed::by_environment();
        if let Some(home) = &fence.home {
            shown.extend(listed::of_home(home, fence.command.as_deref()));
        }
        shown.extend(fence.programs.iter().cloned());
        let (allowed, further) = (fence.allowed.clone(), fence.further.clone());
        let kept = places::surroundings_of(fence, dir, cwd);
        // Where they are not known, no fence is built.
        let elsewhere = homes::elsewhere(fence, dir).unwrap_or_default();
        let (home, further_homes) = (fence.home.clone(), fence.further_homes.clone());
        Self { allowed, further, home, further_homes, shown, kept, elsewhere }
    }

    /// What the fence makes of `path`, absolute and without `.` and `..`. What the kernel says inside
    /// is not known here.
    pub(crate) fn place(&self, path: &Path) -> Place {
        let shown = path.display();
        let to_read = Some(format!("`--allow {shown}` shows the one outside"));
        let to_write = Some(format!("`--allow {shown}:rw` lets CMD change the one outside"));
        if let Some(allowed) = self.allowed.iter().rev().find(|one| path.starts_with(&one.path)) {
            let named = allowed.path.display();
            let rights = if allowed.writable { ":rw" } else { "" };
            let what = format!("`--allow {named}{rights}` was given");
            let to_write = to_write.filter(|_| !allowed.writable);
            return Place { what, to_read: None, to_write };
        }
        if let Some(view) = self.further.iter().find(|view| path.starts_with(view)) {
            let what = format!("the rules of the `[[view]]` of `{}` decide", view.display());
            return Place { what, to_read: None, to_write: None };
        }
        let (what, to_read, to_write) = if path.parent().is_none() {
            let all = Some("`--fence off` opens all but DIR".to_owned());
            ("outside of DIR all is read-only", None, all)
        } else if self.elsewhere.iter().any(|one| path.starts_with(one)) && !self.is_shown(path) {
            ("another mount of a hidden place, and hidden too", to_read, to_write)
        } else if self.kept.iter().any(|kept| path.starts_with(kept)) {
            ("what lies around DIR in a private place is shown, read-only", to_read, to_write)
        } else if path.starts_with("/dev/shm") || places::is_private(path) {
            ("a private place, empty at the start and gone when CMD ends", to_read, to_write)
        } else if path.starts_with("/dev") {
            (
                "CMD uses devices, as far as they are shown, and does not change their nodes",
                to_read,
                None,
            )
        } else if ["/proc", "/sys"].iter().any(|place| path.starts_with(place)) {
            ("what steers the kernel is read-only, and no option opens it", None, None)
        } else if self.is_in_a_home(path) {
            let what = match (self.is_shown(path), self.is_in_own_home(path)) {
                (true, true) => {
                    "tool chains, caches and settings are shown, as a private copy that \
                                 is gone when CMD ends"
                }
                (true, false) => "tool chains, caches and settings are shown",
                (false, true) => {
                    "home directories are hidden; what CMD makes in its own is gone \
                                  when it ends"
                }
                (false, false) => "home directories are hidden",
            };
            (what, to_read, to_write)
        } else {
            ("outside of DIR all is read-only", None, to_write)
        };
        Place { what: what.to_owned(), to_read, to_write }
    }

    fn is_shown(&self, path: &Path) -> bool {
        self.shown.iter().any(|shown| path.starts_with(shown))
    }

    fn is_in_own_home(&self, path: &Path) -> bool {
        self.home.as_deref().is_some_and(|home| path.starts_with(home))
    }

    fn is_in_a_home(&self, path: &Path) -> bool {
        let of_others = ["/home", "/root"].map(Path::new);
        let mut homes = self.further_homes.iter().map(PathBuf::as_path).chain(of_others);
        self.is_in_own_home(path) || homes.any(|home| path.starts_with(home))
    }
}

/// A path outside of DIR.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Place {
    /// What holds there.
    what: String,
    /// The option that would show it, and the one that would let CMD change it, if there are any.
    to_read: Option<String>,
    to_write: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_that_would_help_is_named() {
        let outside = Outside {
            allowed: vec![Allowed { path: "/srv/data".into(), writable: false }],
            further: vec!["/home/me/notes".into()],
            home: Some("/home/me".into()),
            further_homes: vec!["/var/lib/me".into()],
            shown: vec!["/home/me/.cargo/bin".into()],
            kept: vec!["/tmp/me".into()],
            elsewhere: vec!["/mnt/homes".into()],
        };
        for (path, what, to_read, to_write) in [
            (
                "/srv/data/x",
                "`--allow /srv/data` was given",
                None,
                Some("`--allow /srv/data/x:rw`"),
            ),
            ("/tmp/x", "a private place", Some("`--allow /tmp/x`"), Some("`--allow /tmp/x:rw`")),
            (
                "/tmp/me/x",
                "around DIR",
                Some("`--allow /tmp/me/x`"),
                Some("`--allow /tmp/me/x:rw`"),
            ),
            (
                "/home/me/.ssh/key",
                "are hidden",
                Some("`--allow /home/me/.ssh/key`"),
                Some("key:rw`"),
            ),
            ("/mnt/homes/me/x", "another mount of a hidden place", Some("x`"), Some("x:rw`")),
            ("/home/me/.cargo/bin/x", "private copy", Some("bin/x`"), Some("bin/x:rw`")),
            ("/home/me/notes/x", "the `[[view]]` of `/home/me/notes` decide", None, None),
            ("/home/other/x", "home directories are hidden", Some("x`"), Some("x:rw`")),
            ("/var/lib/me/x", "home directories are hidden", Some("x`"), Some("x:rw`")),
            ("/etc/passwd", "all is read-only", None, Some("`--allow /etc/passwd:rw`")),
            ("/dev/sda", "devices", Some("`--allow /dev/sda`"), None),
            ("/dev/shm/x", "a private place", Some("x`"), Some("x:rw`")),
            ("/proc/sys/kernel/x", "steers the kernel", None, None),
            ("/", "all is read-only", None, Some("`--fence off`")),
        ] {
            let place = outside.place(Path::new(path));
            assert!(place.what.contains(what), "{path}: {place:?}");
            for (option, expected) in [(place.to_read, to_read), (place.to_write, to_write)] {
                let names = |part: &str| option.as_ref().is_some_and(|text| text.contains(part));
                assert!(expected.map_or(option.is_none(), names), "{path}: {option:?}");
            }
        }
    }
}
