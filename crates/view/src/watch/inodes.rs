//! Marks on single files, for a server that may not mark the file system: without privilege.
//!
//! A mark on an inode reports what one on the file system reports of that inode, by whatever name it
//! is changed. It keeps the inode in memory, and counts towards `fs.fanotify.max_user_marks` of the
//! user, which directories need more; so they are limited. One that nobody finds any more (others
//! moved the file out of sight) stays until all are taken away together.
//!
//! Not `FAN_MARK_EVICTABLE`: the kernel takes those away without a word, and a change by another
//! name would bring the inode back without its mark.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::fanotify::Group;
use crate::watched::Kept;

/// Most files that are marked; those beyond it have the timeouts of the configuration. The kernel
/// keeps the inode of each in memory, about 1 KiB.
const MAX_FILES: usize = 1 << 16;
/// What the kernel allows at least, where it does not tell.
const LEAST_ALLOWED: usize = 8192;

/// The marks of one group.
pub(super) struct Marks {
    max: usize,
    /// Those that were made since it was increased last stand; never 0.
    generation: AtomicU32,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    marks: usize,
    /// Of these, marks of files that could not be found again.
    strays: usize,
}

impl Marks {
    /// None yet; at most half of what the user may have, so that directories get theirs.
    pub(super) fn new() -> Self {
        let allowed = std::fs::read_to_string("/proc/sys/fs/fanotify/max_user_marks");
        let allowed = allowed.ok().and_then(|text| text.trim().parse().ok());
        Self::at_most(MAX_FILES.min(allowed.unwrap_or(LEAST_ALLOWED) / 2))
    }

    fn at_most(max: usize) -> Self {
        Self { max, generation: AtomicU32::new(1), counts: Mutex::default() }
    }

    /// Whether the file is marked.
    pub(super) fn cover(&self, file: &Kept) -> bool {
        file.mark() == self.generation.load(Ordering::SeqCst)
    }

    /// Marks `file`, which is `name` in `dir` if `still_there` confirms that afterwards. Nothing
    /// happens beyond the limit; `directories` have marks, too.
    pub(super) fn add(
        &self,
        group: &Group,
        file: &Kept,
        (dir, name): (BorrowedFd<'_>, &CStr),
        directories: usize,
        still_there: impl FnOnce() -> bool,
    ) {
        let mut counts = self.counts.lock();
        if counts.marks + directories >= self.max {
            return;
        }
        match group.mark_inode(dir, name) {
            Ok(()) => counts.marks += 1,
            // About this file: the user may not read it, or it has gone.
            Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::LOOP) => return,
            // The user has no more, or the file system cannot name inodes.
            Err(_) => {
                counts.marks = self.max;
                return;
            }
        }
        // Marks are taken away under the lock, so that this one is of the generation.
        let generation = self.generation.load(Ordering::SeqCst);
        drop(counts);
        if still_there() {
            file.set_mark(generation);
        } else {
            self.counts.lock().strays += 1;
        }
    }

    /// The kernel forgot the file. Its mark is taken away through `path`, which names it; without
    /// one it has no name left, and its mark goes with it. If it was `met_again` since, it has the mark.
    /// Returns whether there are too many marks that nobody finds.
    pub(super) fn forgotten(
        &self,
        group: &Group,
        file: &Kept,
        path: Option<Result<BorrowedFd<'_>, Errno>>,
        met_again: impl FnOnce() -> bool,
    ) -> bool {
        let mut counts = self.counts.lock();
        if !self.cover(file) {
            return false;
        }
        // Asked under the lock, under which it is marked.
        let path = if met_again() { Some(Err(Errno::EXIST)) } else { path };
        match path.map(|path| path.and_then(|path| group.unmark_inode(path))) {
            None | Some(Ok(())) => counts.marks = counts.marks.saturating_sub(1),
            Some(Err(_)) => counts.strays += 1,
        }
        counts.strays > self.max / 8
    }

    /// Whether [`Marks::forgotten`] said so since all were taken away.
    pub(super) fn has_strays(&self) -> bool {
        self.counts.lock().strays > self.max / 8
    }

    /// Takes all away. Nobody may be told that they stand meanwhile.
    pub(super) fn remove_all(&self, group: &Group) {
        let mut counts = self.counts.lock();
        let _ = group.unmark_all();
        let next = self.generation.load(Ordering::SeqCst).wrapping_add(1).max(1);
        self.generation.store(next, Ordering::SeqCst);
        *counts = Counts::default();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    /// A directory with the files `a`, `b` and `c`, and a group.
    fn site() -> Option<(tempfile::TempDir, File, Group)> {
        let Ok(group) = Group::of_inodes() else {
            println!("not shown: fanotify is not available");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), "text").unwrap();
        }
        let fd = File::open(dir.path()).unwrap();
        Some((dir, fd, group))
    }

    #[test]
    fn at_most_so_many_are_marked_until_some_are_forgotten() {
        let Some((dir, fd, group)) = site() else { return };
        let (marks, files) = (Marks::at_most(3), [const { Kept::new() }; 3]);
        for (file, name) in files.iter().zip([c"a", c"b", c"c"]) {
            // One is of a directory.
            marks.add(&group, file, (fd.as_fd(), name), 1, || true);
        }
        assert_eq!(files.each_ref().map(|file| marks.cover(file)), [true, true, false]);
        let a = File::open(dir.path().join("a")).unwrap();
        assert!(!marks.forgotten(&group, &files[0], Some(Ok(a.as_fd())), || false));
        marks.add(&group, &files[2], (fd.as_fd(), c"c"), 1, || true);
        assert!(marks.cover(&files[2]));
    }

    #[test]
    fn a_name_that_is_another_files_by_then_covers_nothing() {
        let Some((_dir, fd, group)) = site() else { return };
        let (marks, file) = (Marks::at_most(100), Kept::new());
        marks.add(&group, &file, (fd.as_fd(), c"a"), 0, || false);
        assert!(!marks.cover(&file) && !marks.has_strays());
        marks.add(&group, &file, (fd.as_fd(), c"missing"), 0, || true);
        assert!(!marks.cover(&file));
    }

    #[test]
    fn marks_that_nobody_finds_are_taken_away_with_all_others() {
        let Some((dir, fd, group)) = site() else { return };
        let (marks, [a, b]) = (Marks::at_most(8), [const { Kept::new() }; 2]);
        marks.add(&group, &a, (fd.as_fd(), c"a"), 0, || true);
        assert!(!marks.forgotten(&group, &a, Some(Err(Errno::NOENT)), || false));
        marks.add(&group, &b, (fd.as_fd(), c"b"), 0, || true);
        assert!(
            marks.forgotten(&group, &b, Some(Err(Errno::NOENT)), || false) && marks.has_strays()
        );
        marks.remove_all(&group);
        assert!(!marks.cover(&a) && !marks.cover(&b) && !marks.has_strays());
        std::fs::hard_link(dir.path().join("a"), dir.path().join("d")).unwrap();
        assert!(group.read(&mut [0; 4096]).unwrap().is_empty());
    }

    /// Another node of it has been marked before the first one was forgotten.
    #[test]
    fn a_file_that_was_met_again_keeps_its_mark() {
        let Some((dir, fd, group)) = site() else { return };
        for met_again in [true, false] {
            let (marks, nodes) = (Marks::at_most(100), [const { Kept::new() }; 2]);
            for node in &nodes {
                marks.add(&group, node, (fd.as_fd(), c"b"), 0, || true);
            }
            let b = File::open(dir.path().join("b")).unwrap();
            marks.forgotten(&group, &nodes[0], Some(Ok(b.as_fd())), || met_again);
            let link = dir.path().join(met_again.to_string());
            std::fs::hard_link(dir.path().join("b"), link).unwrap();
            assert_eq!(group.read(&mut [0; 4096]).unwrap().is_empty(), !met_again);
        }
    }
}
