//! Which directories are the home of CMD's user, and of who called `run`.

use std::path::{Path, PathBuf};

use super::user::User;
use crate::accounts;

/// Homes of services that are the machine's, or nothing, with what lies in them.
const OF_MACHINE: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run",
    "/sbin", "/sys", "/usr",
];
/// The same, and what lies in them may be somebody's.
const WITH_HOMES: &[&str] =
    &["/", "/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/lib", "/var/tmp"];

/// Home directories, without symbolic links.
#[derive(Clone, Debug, Default)]
pub(super) struct HomesOfUser {
    /// Where CMD's programs look for settings and caches: `HOME`, and where that is none, what the
    /// user's entry says.
    pub(super) own: Option<PathBuf>,
    /// Further ones, of the same person by another name.
    pub(super) others: Vec<PathBuf>,
}

impl HomesOfUser {
    /// Those of who calls `run`, and of the user who CMD is to be.
    pub(super) fn of(user: Option<&User>) -> Self {
        let variable = std::env::var_os("HOME").map(PathBuf::from);
        let entry = accounts::home(rustix::process::getuid().as_raw());
        match user {
            Some(user) => Self::choose(user.home().as_deref(), None, &[variable, entry]),
            None => Self::choose(variable.as_deref(), entry.as_deref(), &[]),
        }
    }

    /// `first`, or else `second`, is CMD's own; the others are no less somebody's.
    fn choose(first: Option<&Path>, second: Option<&Path>, more: &[Option<PathBuf>]) -> Self {
        let first = first.and_then(real).filter(|home| home.parent().is_some());
        let others = || more.iter().flatten().map(PathBuf::as_path).chain(second);
        let mut others: Vec<_> = others().filter_map(real).filter(|home| is_home(home)).collect();
        let own = first.or_else(|| second.and_then(real).filter(|home| is_home(home)));
        others.retain(|other| own.as_ref().is_none_or(|own| !other.starts_with(own)));
        others.sort();
        // What lies in another one is hidden with that.
        others.dedup_by(|later, earlier| later.starts_with(earlier));
        Self { own, others }
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Path> {
        self.own.iter().chain(&self.others).map(PathBuf::as_path)
    }
}

/// A relative path names a place of the working directory's, no home.
fn real(path: &Path) -> Option<PathBuf> {
    let path = Some(path).filter(|path| path.is_absolute())?;
    std::fs::canonicalize(path).ok().filter(|path| path.is_dir())
}

/// Whether `path` is a part of the machine itself, or holds one.
pub(super) fn holds_of_machine(path: &Path) -> bool {
    OF_MACHINE.iter().any(|place| Path::new(place).starts_with(path))
}

/// Whether `path` lies in a part of the machine itself.
pub(super) fn is_of_machine(path: &Path) -> bool {
    OF_MACHINE.iter().any(|place| path.starts_with(place))
}

fn is_home(path: &Path) -> bool {
    !is_of_machine(path) && !WITH_HOMES.iter().any(|place| path == Path::new(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_counts_beside_the_variable_and_in_its_place() {
        let place = tempfile::tempdir().unwrap();
        let place = std::fs::canonicalize(place.path()).unwrap();
        for name in ["a/in", "b"] {
            std::fs::create_dir_all(place.join(name)).unwrap();
        }
        let (a, inside, b) = (place.join("a"), place.join("a/in"), place.join("b"));
        let chosen = |first: &Path, second: &Path| {
            let homes = HomesOfUser::choose(Some(first), Some(second), &[]);
            (homes.own, homes.others)
        };
        assert_eq!(chosen(&a, &b), (Some(a.clone()), vec![b.clone()]));
        assert_eq!(chosen(&a, &a), (Some(a.clone()), vec![]));
        assert_eq!(chosen(&a, &inside), (Some(a.clone()), vec![]));
        assert_eq!(chosen(&inside, &a), (Some(inside.clone()), vec![a.clone()]));
        for none in ["/", "relative", "", "/no/such/directory"] {
            assert_eq!(chosen(Path::new(none), &b), (Some(b.clone()), vec![]));
        }
        for machines in ["/", "/usr/sbin", "/var", "/nonexistent"] {
            assert_eq!(chosen(&a, Path::new(machines)), (Some(a.clone()), vec![]));
        }
    }
}
