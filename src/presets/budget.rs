//! How much is looked at for one directory. What is looked at may be named by whoever writes in it, as
//! often as a file of settings has room for, and must not keep a start or a reload busy.

use std::cell::Cell;
use std::path::Path;

/// Looks at one directory: about 1 us each, a second or two in all. A thousand submodules take a third.
const MAX_LOOKS: usize = 1 << 20;
/// Bytes of a path for which the kernel takes as long as for a look at a short one.
const PATH_LEN: usize = 128;
/// Bytes of a file that take as long to be read into words.
const FILE_LEN: usize = 256;
/// Looks' worth of paths that are kept as they are named when no look is left.
const MAX_UNSEEN: usize = 1 << 16;

/// What is left of it.
#[derive(Debug)]
pub(crate) struct Budget {
    looks: Cell<usize>,
    unseen: Cell<usize>,
    has_missed: Cell<bool>,
}

impl Default for Budget {
    fn default() -> Self {
        let [looks, unseen] = [MAX_LOOKS, MAX_UNSEEN].map(Cell::new);
        Self { looks, unseen, has_missed: Cell::new(false) }
    }
}

impl Budget {
    /// Whether a path may be looked at.
    pub(super) fn look_at(&self, path: &Path) -> bool {
        take(&self.looks, 1 + path.as_os_str().len() / PATH_LEN)
    }

    /// Whether a path may be kept without a look, where none is left.
    pub(super) fn keeps_unseen(&self, path: &Path) -> bool {
        take(&self.unseen, 1 + path.as_os_str().len() / PATH_LEN)
    }

    /// Whether another name of a directory may be taken.
    pub(super) fn list(&self) -> bool {
        take(&self.looks, 1)
    }

    /// That a file of this length was read. It was, whatever is left.
    pub(super) fn has_read(&self, len: usize) {
        take(&self.looks, 1 + len / FILE_LEN);
    }

    /// Whether something was not looked at.
    pub(super) fn is_spent(&self) -> bool {
        self.looks.get() == 0
    }

    /// That something is there and could not be looked at.
    pub(super) fn misses(&self) {
        self.has_missed.set(true);
    }

    /// Whether that was so since this was asked last.
    pub(super) fn has_missed(&self) -> bool {
        self.has_missed.replace(false)
    }
}

/// Takes so much of what is left; whether there was more.
fn take(from: &Cell<usize>, looks: usize) -> bool {
    let left = from.get().saturating_sub(looks);
    from.set(left);
    left > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_and_files_take_more_of_it() {
        let looks = |looks: usize, path: &str| {
            let budget = Budget::default();
            (0..looks).all(|_| budget.look_at(Path::new(path)))
        };
        assert!(looks(MAX_LOOKS - 1, "a/b") && !looks(MAX_LOOKS, "a/b"));
        assert!(!looks(MAX_LOOKS / 30, &"a/".repeat(2000)));
        let budget = Budget::default();
        (0..255).for_each(|_| budget.has_read(1 << 20));
        assert!(!budget.is_spent());
        budget.has_read(1 << 20);
        assert!(budget.is_spent() && !budget.list());
        assert!((1..MAX_UNSEEN).all(|_| budget.keeps_unseen(Path::new("a/b"))));
        assert!(!budget.keeps_unseen(Path::new("a/b")));
    }
}
