//! The names of one inode that has several.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use tollgate_policy::Policy;

use crate::lower::Stat;

/// With up to so many names each is judged; of more, one for each set of rules that cover any.
const JUDGED_ONE_BY_ONE: usize = 16;

/// What changes with an inode's names: its change time, and how many it has. Writing changes the
/// time too, so that the names are looked at again; that costs time and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    changed: (i64, u32),
    links: u32,
}

impl State {
    pub(super) fn of(stat: &Stat) -> Self {
        Self { changed: stat.changed(), links: stat.nlink() }
    }

    pub(super) fn changed(self) -> (i64, u32) {
        self.changed
    }

    pub(super) fn links(self) -> u32 {
        self.links
    }
}

#[derive(Debug, Default)]
pub(super) struct Record {
    names: FxHashSet<Box<[u8]>>,
    /// Names that a search did not find: they lie outside of what is shown.
    elsewhere: u32,
    /// All names were seen to be there, in this state and at this moment.
    confirmed: Option<(State, Instant)>,
    /// The file had changed right before that: a further change may have left the state the same.
    just_now: bool,
    /// The state in which a search that is under way met the inode.
    seen: Option<State>,
    /// Names that were removed through the view and were stricter than those that are left: they
    /// go on counting.
    removed: Vec<Box<[u8]>>,
    /// One name for each set of rules; kept for a record of many names.
    examples: Option<Box<Examples>>,
}

#[derive(Debug)]
struct Examples {
    policy: Weak<Policy>,
    names: Vec<Box<[u8]>>,
}

impl Record {
    /// Of an inode that was seen to have no name here.
    pub(super) fn absent(state: State, at: Instant) -> Self {
        Self { elsewhere: state.links, confirmed: Some((state, at)), ..Self::default() }
    }

    pub(super) fn is_elsewhere(&self) -> bool {
        self.elsewhere > 0
    }

    pub(super) fn elsewhere(&self) -> u32 {
        self.elsewhere
    }

    /// In which state it was seen to have names elsewhere, and when; `None` if it has none.
    pub(super) fn known_elsewhere(&self) -> Option<(State, Instant)> {
        self.confirmed.filter(|_| self.is_elsewhere())
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn has_no_names(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn has_name(&self, path: &[u8]) -> bool {
        self.names.contains(path)
    }

    /// Whether it is judged by more than one name, of those that it has here or had.
    pub(super) fn has_several_names(&self) -> bool {
        self.names.len() + self.removed.len() > 1
    }

    /// Nothing is known that a further search would not find.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.elsewhere == 0 && self.removed.is_empty()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.names.iter().map(AsRef::as_ref)
    }

    /// Adds a name; returns whether it is new. What was confirmed is not any more.
    pub(super) fn add(&mut self, path: &[u8]) -> bool {
        if self.names.contains(path) {
            return false;
        }
        self.names.insert(path.into());
        self.confirmed = None;
        if let Some(examples) = &mut self.examples {
            examples.add(path);
        }
        true
    }

    pub(super) fn remove(&mut self, path: &[u8]) -> bool {
        let removed = self.names.remove(path);
        if removed {
            self.confirmed = None;
            // Another name may stand for the same rules.
            if self.examples.as_ref().is_some_and(|some| some.names.iter().any(|n| **n == *path)) {
                self.examples = None;
            }
        }
        removed
    }

    /// A search found a name. Returns whether it is new.
    pub(super) fn find(&mut self, path: &[u8], state: State) -> bool {
        let new = self.add(path);
        self.seen = Some(state);
        new
    }

    /// `path` is no name any more, but judged as if it were.
    pub(super) fn keep_removed(&mut self, path: &[u8]) -> bool {
        let new = !self.removed.iter().any(|known| **known == *path);
        if new {
            self.removed.push(path.into());
        }
        new
    }

    pub(super) fn removed(&self) -> &[Box<[u8]>] {
        &self.removed
    }

    /// All names are known, as a search of the whole tree found them; unless `none_moved` past it, only
    /// where it found as many as there are.
    pub(super) fn conclude_as_seen(&mut self, at: Instant, none_moved: bool) {
        let found = count(self.names.len());
        if let Some(state) = self.seen.take().filter(|state| none_moved || found >= state.links) {
            self.conclude(state, at, found);
        }
    }

    /// All names are known, in the state that a search found, with so many links `here`: the others
    /// are elsewhere.
    pub(super) fn conclude(&mut self, state: State, at: Instant, here: u32) {
        self.elsewhere = state.links.saturating_sub(here);
        (self.confirmed, self.just_now) = (Some((state, at)), false);
    }

    /// Whether the links that were met `here`, and those known to be elsewhere, are as many as the inode has in
    /// `state`; they are confirmed then. Where there are more, fewer lie elsewhere by now.
    pub(super) fn confirm_if_complete(
        &mut self,
        state: State,
        at: Instant,
        here: u32,
        just_now: bool,
    ) -> bool {
        let complete = here.saturating_add(self.elsewhere) >= state.links;
        if complete {
            self.elsewhere = state.links.saturating_sub(here);
            (self.confirmed, self.just_now) = (Some((state, at)), just_now);
        }
        complete
    }

    /// A name that was counted as elsewhere is not there any more: it may be here.
    pub(super) fn doubt(&mut self) {
        self.elsewhere = 0;
        self.confirmed = None;
    }

    /// The view made or removed a name. If the names were confirmed before (since `confirmed`),
    /// they are in the state `after` too, unless somebody else changed their number.
    pub(super) fn follow(&mut self, after: State, confirmed: Option<Instant>) {
        let expected = count(self.names.len()).saturating_add(self.elsewhere);
        if let Some(at) = confirmed.filter(|_| after.links == expected) {
            (self.confirmed, self.just_now) = (Some((after, at)), false);
        }
    }

    /// Since when the names are confirmed in `state`.
    pub(super) fn confirmed_at(&self, state: State) -> Option<Instant> {
        self.confirmed.filter(|(known, _)| *known == state).map(|(_, at)| at)
    }

    /// Whether the names were confirmed in `state`, recently: a directory above one of them can be
    /// renamed behind the view without any change of the inode. Many names are looked at less
    /// often, so that an open costs the same. They count as of the moment at which the request `looked`, however
    /// long it has waited since. Names of a file that had changed just then count for the request that looked at them.
    pub(super) fn is_confirmed(&self, state: State, fresh: Duration, looked: Instant) -> bool {
        let scale = 1 + count(self.names.len() / JUDGED_ONE_BY_ONE);
        let fresh = if self.just_now { Duration::ZERO } else { fresh.saturating_mul(scale) };
        let age = |at| looked.saturating_duration_since(at);
        self.confirmed_at(state).is_some_and(|at| age(at) <= fresh)
    }

    /// The names that are to be judged: all, or one for each set of rules.
    pub(super) fn judged(&mut self, policy: &Arc<Policy>) -> Vec<Vec<u8>> {
        if self.names.len() <= JUDGED_ONE_BY_ONE {
            return self.names.iter().chain(&self.removed).map(|name| name.to_vec()).collect();
        }
        let is_current = |some: &Examples| std::ptr::eq(some.policy.as_ptr(), Arc::as_ptr(policy));
        if !self.examples.as_ref().is_some_and(|some| is_current(some)) {
            let mut examples = Examples { policy: Arc::downgrade(policy), names: Vec::new() };
            self.names.iter().for_each(|name| examples.add(name));
            self.examples = Some(Box::new(examples));
        }
        let examples = self.examples.iter().flat_map(|some| &some.names);
        examples.chain(&self.removed).map(|name| name.to_vec()).collect()
    }

    /// `f` gives a name another path, if it has one for it. Calls `gone` with each name that is
    /// dropped and `made` with each that is new.
    pub(super) fn rename(
        &mut self,
        f: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
        gone: impl Fn(&[u8]),
        made: impl Fn(&[u8]),
    ) {
        let moved: Vec<_> =
            self.names.iter().filter_map(|name| Some((name.clone(), f(name)?))).collect();
        if moved.is_empty() {
            return;
        }
        self.examples = None;
        for (old, _) in &moved {
            self.names.remove(old);
            gone(old);
        }
        for (_, new) in moved {
            // Another one may have been met there already.
            if self.names.insert(new.clone().into_boxed_slice()) {
                made(&new);
            }
        }
    }
}

impl Examples {
    fn add(&mut self, path: &[u8]) {
        let Some(policy) = self.policy.upgrade() else { return };
        let rules = policy.at(path);
        if !self.names.iter().any(|known| policy.at(known).is_like(&rules)) {
            self.names.push(path.into());
        }
    }
}

fn count(names: usize) -> u32 {
    u32::try_from(names).unwrap_or(u32::MAX)
}
