//! What a proposal allows, by paths; and what it has to allow so that things can change their names.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;

use super::names::{MAX_COMPONENTS, Names, literal};
use super::seen::{ALL, CREATE};

/// Most paths. Moves can join names in endless circles; a policy has no more globs than these.
const MAX_PATHS: usize = if cfg!(test) { 4_096 } else { 65_536 };

/// Which paths operations are allowed on, beginning at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// It, and all below it: so globs are.
    All,
    /// All below it.
    Below,
    /// It and what is below it, where those are directories.
    Directories,
}

impl Reach {
    const EACH: [Self; 3] = [Self::All, Self::Below, Self::Directories];

    /// What it is from `path` on, but for the kind.
    pub(super) fn glob(self, path: &str) -> String {
        literal(path) + if self == Self::Below { "/**" } else { "" }
    }
}

/// Operations by reach.
type Sets = [u8; Reach::EACH.len()];

/// Operations by path and reach.
#[derive(Debug, Default)]
pub(super) struct Allowed(BTreeMap<String, Sets>);

impl Allowed {
    pub(super) fn add(&mut self, path: &str, reach: Reach, operations: u8) {
        if operations == 0 {
            return;
        }
        match self.0.get_mut(path) {
            Some(sets) => sets[reach as usize] |= operations,
            None => {
                let mut sets = Sets::default();
                sets[reach as usize] = operations;
                self.0.insert(path.to_owned(), sets);
            }
        }
    }

    /// Globs by operations, and whether they are about directories alone.
    pub(super) fn globs(&self) -> BTreeMap<(bool, u8), Vec<String>> {
        let mut globs = BTreeMap::<_, Vec<_>>::new();
        for (path, sets) in &self.0 {
            for reach in Reach::EACH {
                let operations = sets[reach as usize];
                let is_about = (reach == Reach::Directories, operations);
                if operations != 0 {
                    globs.entry(is_about).or_default().push(reach.glob(path));
                }
            }
        }
        globs
    }

    /// What is allowed on `path`, where it is a `directory`, or anything else.
    pub(super) fn on(&self, path: &str, directory: bool) -> u8 {
        let sets = |path: &str| self.0.get(path).copied().unwrap_or_default();
        let of_all = |[all, _, directories]: Sets| all | if directory { directories } else { 0 };
        let above = path.match_indices('/').map(|(at, _)| sets(&path[..at]));
        let by_above = above.map(|sets| of_all(sets) | sets[Reach::Below as usize]);
        by_above.fold(of_all(sets(path)), |one, other| one | other)
    }

    /// What is allowed below `path`, as globs.
    pub(super) fn below(&self, path: &str) -> impl Iterator<Item = (&str, Reach, u8)> {
        // `0` follows `/`.
        let inside = self.0.range(format!("{path}/")..format!("{path}0"));
        inside.flat_map(|(path, sets)| {
            Reach::EACH.map(|reach| (path.as_str(), reach, sets[reach as usize]))
        })
    }

    /// What is allowed on all that `reach` has from `path`.
    fn on_all(&self, path: &str, reach: Reach) -> u8 {
        let below = self.0.get(path).map_or(0, |sets| sets[Reach::Below as usize]);
        let below = if reach == Reach::Below { below } else { 0 };
        below | self.on(path, reach == Reach::Directories)
    }

    /// Has all names of one thing allowed alike, as far as a move and a link ask for it: a new name
    /// must give nothing that the old one does not, and what could be made in a directory must be
    /// such that it could be made there under the new name. Of a file with several names the
    /// strictest counts.
    ///
    /// # Errors
    /// When that takes too many paths.
    pub(super) fn join(&mut self, moved: &Names, linked: &Names) -> anyhow::Result<()> {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for (old, new) in moved {
                goes_on |= self.carry(new, old, ALL) | self.carry(old, new, CREATE);
            }
            for (old, new) in linked {
                goes_on |= self.carry(new, old, ALL) | self.carry(old, new, ALL);
            }
            if self.0.len() > MAX_PATHS {
                bail!(
                    "the moves in the logs join more than {MAX_PATHS} names; name fewer runs at a \
                     time"
                );
            }
        }
        Ok(())
    }

    /// Allows those of `operations` on `to`, and below it, that are allowed on `from`, and below it.
    /// Whether that was anything new.
    fn carry(&mut self, from: &str, to: &str, operations: u8) -> bool {
        let at_below = self.0.get(from).map_or(0, |sets| sets[Reach::Below as usize]);
        let at = [self.on(from, false), at_below, self.on(from, true)];
        // `0` follows `/`.
        let inside = self.0.range(format!("{from}/")..format!("{from}0"));
        let below = inside.map(|(path, sets)| (to.to_owned() + &path[from.len()..], *sets));
        let wanted: Vec<_> = std::iter::once((to.to_owned(), at)).chain(below).collect();
        let mut is_new = false;
        for (path, sets) in wanted.iter().filter(|(path, _)| can_be_named(path)) {
            for reach in Reach::EACH {
                let missing = sets[reach as usize] & operations & !self.on_all(path, reach);
                is_new |= missing != 0;
                self.add(path, reach, missing);
            }
        }
        is_new
    }
}

fn can_be_named(path: &str) -> bool {
    path.split('/').count() <= MAX_COMPONENTS
}

/// `paths` under all names that they had: where a directory is moved, what is below it is, too.
///
/// # Errors
/// When those are too many.
pub(super) fn under_all_names<'p>(
    paths: impl Iterator<Item = &'p str>,
    names: &[&Names],
) -> anyhow::Result<BTreeSet<String>> {
    let mut pending: Vec<String> = paths.map(str::to_owned).collect();
    let mut all = BTreeSet::new();
    while let Some(path) = pending.pop() {
        if all.contains(&path) {
            continue;
        }
        for (one, other) in names.iter().copied().flatten() {
            for (from, to) in [(one, other), (other, one)] {
                let rest = path.strip_prefix(from.as_str());
                let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('/'));
                let further = rest.map(|rest| to.clone() + rest);
                pending.extend(further.filter(|path| can_be_named(path) && !all.contains(path)));
            }
        }
        all.insert(path);
        if all.len() > MAX_PATHS {
            bail!("the refused names in the logs were moved too often; name fewer runs at a time");
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::seen::{READ, WRITE};

    fn names(all: &[(&str, &str)]) -> Names {
        all.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned())).collect()
    }

    #[test]
    fn a_moved_directory_is_allowed_the_same_under_both_names() {
        let mut allowed = Allowed::default();
        allowed.add("stage", Reach::Directories, CREATE | WRITE);
        allowed.add("stage/made", Reach::All, CREATE);
        allowed.add("out/final", Reach::Directories, CREATE | WRITE);
        allowed.add("out/final/sub/x", Reach::All, READ);
        allowed.add("out", Reach::Below, WRITE);
        allowed.join(&names(&[("stage", "out/final")]), &Names::new()).unwrap();
        assert_eq!(allowed.on("stage/sub/x", false), READ | WRITE);
        assert_eq!(allowed.on("out/final/made", false), CREATE | WRITE);
        assert_eq!(allowed.on("stage/other", false), WRITE);
        assert_eq!(allowed.on("out/other", false), WRITE);
    }

    #[test]
    fn circles_of_names_end() {
        let mut allowed = Allowed::default();
        allowed.add("a", Reach::All, CREATE);
        let circle = names(&[("a", "b"), ("b", "c"), ("c", "a")]);
        allowed.join(&circle, &Names::new()).unwrap();
        assert_eq!(allowed.on("c", false), CREATE);
        allowed.add("a/x", Reach::All, READ);
        let growing = names(&[("a", "b/a"), ("b", "a/b"), ("b", "c/b"), ("c", "a/c")]);
        assert!(allowed.join(&growing, &growing).is_err());
        assert!(under_all_names(["a/x"].into_iter(), &[&growing]).is_err());
    }
}
