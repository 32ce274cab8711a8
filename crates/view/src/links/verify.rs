//! Whether all names of a file are known: those that are kept are looked at, and counted.

use std::os::fd::BorrowedFd;
use std::time::{Instant, SystemTime};

use rustc_hash::FxHashSet;

use super::look::{Look, Together, together_at};
use super::record::State;
use super::{Links, Looked};
use crate::lower::{Key, Stat};

/// How often one look begins again because others changed the links meanwhile.
const MAX_TRIES: usize = 4;

impl Links {
    /// Looks whether the known names of the inode, and those of `own`, lead to it beneath `root`,
    /// and forgets those that do not. `searched`: a complete search has just been made, during which it had
    /// so many links, so that those that are missing lie elsewhere, unless one that it found has gone
    /// since, or one was made.
    ///
    /// No rename of the view may be under way.
    pub(crate) fn verify(
        &self,
        root: BorrowedFd<'_>,
        stat: &Stat,
        own: &[Vec<u8>],
        searched: Option<u32>,
    ) -> Looked {
        let (key, at) = (stat.key(), Instant::now());
        let (names, elsewhere) = self.names_and_elsewhere(&key);
        let mut paths: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
        let mut known: FxHashSet<_> = paths.iter().copied().collect();
        paths.extend(own.iter().map(Vec::as_slice).filter(|path| known.insert(path)));
        let is_enough = |met: u32, links: u32| {
            searched == Some(links) || met.saturating_add(elsewhere) >= links
        };
        let mut tries = 0;
        let (there, together) = loop {
            tries += 1;
            let begun = SystemTime::now();
            let mut look = Look::new(&self.watch, root, key);
            let there = look.at(&paths, |path| self.looked_at(path));
            let Some(state) = there.state() else {
                break (there, Some(together_at(State::of(stat), begun)));
            };
            if !is_enough(there.links, state.links()) {
                break (there, None);
            }
            let together = look.together(&there, begun);
            if together != Together::Unsure || tries == MAX_TRIES {
                break (there, Some(together));
            }
        };
        let mut shard = self.shard(&key).lock();
        let record = shard.entry(key).or_default();
        let mut lost = false;
        for path in there.gone.iter().filter(|path| record.remove(path)) {
            self.count_out(path);
            lost = true;
        }
        let met = there.met.iter().map(|met| met.path);
        met.filter(|path| record.add(path)).for_each(|path| self.count(path));
        if lost {
            // It may be one of those that were counted as elsewhere that is gone, and this one was moved.
            record.doubt();
        }
        let proven = match together {
            Some(Together::Settled(state)) => Some((state, false)),
            Some(Together::JustNow(state)) => Some((state, true)),
            Some(Together::Unsure) | None => None,
        };
        let mut all_known = false;
        if let Some((state, just_now)) = proven {
            if searched == Some(state.links()) && !lost {
                record.conclude(state, at, there.links);
            }
            all_known = record.confirm_if_complete(state, at, there.links, just_now);
        }
        if record.is_empty() {
            shard.remove(&key);
        }
        Looked { all_known, lost, unsure: together == Some(Together::Unsure) }
    }

    /// For tests, which change something then.
    fn looked_at(&self, path: &[u8]) {
        #[cfg(test)]
        self.on_look.lock().iter_mut().for_each(|on_look| on_look(path));
        #[cfg(not(test))]
        let _ = (self, path);
    }

    fn names_and_elsewhere(&self, key: &Key) -> (Vec<Box<[u8]>>, u32) {
        let shard = self.shard(key).lock();
        let Some(record) = shard.get(key) else { return (Vec::new(), 0) };
        (record.names().map(Into::into).collect(), record.elsewhere())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::links::look::Watch;
    use crate::links::tests::Tree;
    use crate::links::walk::TICK;

    /// A look at `a/one` and `a/two`, or `c/one`, with `change` made between them, of a file whose name
    /// `b/secret` others have moved to where nobody knows it.
    fn look_while(change: fn(&std::path::Path)) -> (Tree, Looked) {
        let tree = Tree::new(&["a/one", "b/secret"]);
        let path = tree.dir.path().to_owned();
        std::fs::rename(path.join("b/secret"), path.join("b/other")).unwrap();
        let stat = tree.stat("a/one");
        let mut is_due = true;
        *tree.links.on_look.lock() = Some(Box::new(move |name| {
            if name == b"a/one" && std::mem::take(&mut is_due) {
                change(&path);
            }
        }));
        let own = [b"a/two".to_vec(), b"c/one".to_vec()];
        let looked = tree.links.verify(tree.root.as_fd(), &stat, &own, None);
        (tree, looked)
    }

    /// By the name that it had, and by the one that it has got: it would stand for the one that is missing.
    #[test]
    fn a_link_that_is_met_twice_counts_once() {
        let changes: [fn(&std::path::Path); 3] = [
            |dir| std::fs::rename(dir.join("a/one"), dir.join("a/two")).unwrap(),
            |dir| std::fs::rename(dir.join("a"), dir.join("c")).unwrap(),
            |dir| {
                std::fs::remove_file(dir.join("a/one")).unwrap();
                std::fs::hard_link(dir.join("b/other"), dir.join("a/two")).unwrap();
            },
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let (tree, looked) = look_while(change);
            assert!(!looked.all_known, "`b/other` is missing, case {n}");
            std::fs::rename(tree.dir.path().join("b/other"), tree.dir.path().join("b/secret"))
                .unwrap();
            let here = if n == 1 { "c/one" } else { "a/two" };
            let stat = tree.stat(here);
            let own = [here.as_bytes().to_vec(), b"b/secret".to_vec()];
            assert!(tree.links.verify(tree.root.as_fd(), &stat, &own, None).all_known, "case {n}");
        }
    }

    fn verify(tree: &Tree) -> Looked {
        tree.links.verify(tree.root.as_fd(), &tree.stat("a/one"), &[], None)
    }

    /// Its time changes with each look, and nothing happens to its names. Their directories have changed just now, or
    /// nobody can be asked to watch.
    #[test]
    fn a_file_that_is_written_all_the_time_is_known() {
        for is_watched in [true, false] {
            let mut tree = Tree::new(&["a/one", "b/two"]);
            if !is_watched {
                tree.links.watch = Watch::default();
                std::thread::sleep(2 * TICK);
            }
            let path = tree.dir.path().join("a/one");
            *tree.links.on_look.lock() = Some(Box::new(move |_| {
                let mut file = std::fs::File::options().append(true).open(&path).unwrap();
                std::io::Write::write_all(&mut file, b"more").unwrap();
            }));
            for _ in 0..100 {
                assert_eq!(verify(&tree), Looked { all_known: true, lost: false, unsure: false });
            }
        }
    }

    /// Where the kernel cannot be asked to watch.
    #[test]
    fn without_a_watch_a_file_that_changed_just_now_is_known_a_little_later() {
        let begun = Instant::now();
        let mut tree = Tree::new(&["a/one", "b/two"]);
        tree.links.watch = Watch::default();
        std::fs::write(tree.dir.path().join("a/one"), "new").unwrap();
        let mut looked = verify(&tree);
        assert!(looked.unsure != looked.all_known);
        while !looked.all_known {
            assert!(looked.unsure && begun.elapsed() < Duration::from_secs(60));
            looked = verify(&tree);
        }
        assert!(begun.elapsed() >= TICK);
    }

    /// A further change may have the same time.
    #[test]
    fn what_is_known_of_a_file_that_changed_just_now_is_not_kept() {
        let tree = Tree::new(&["a/one", "b/two"]);
        let hour = Duration::from_secs(3600);
        let known = |looked| {
            tree.links.confirmed(&tree.stat("a/one"), hour, looked, &tree.policy).is_some()
        };
        loop {
            let (begun, looked) = (SystemTime::now(), Instant::now());
            std::fs::write(tree.dir.path().join("a/one"), "new").unwrap();
            assert!(verify(&tree).all_known && known(looked));
            let is_kept = known(Instant::now());
            // On a machine that stood still in between it is old enough.
            if begun.elapsed().is_ok_and(|past| past < TICK) {
                assert!(!is_kept);
                break;
            }
        }
        std::thread::sleep(2 * TICK);
        assert!(verify(&tree).all_known && known(Instant::now()));
    }
}
