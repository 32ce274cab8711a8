//! Names that are being moved by the view itself.
//!
//! A lookup asks the lower file system where an inode is and then notes the place. If a rename of
//! the view happens between the two, the note would put the inode back to its old place, where
//! other rules may hold. Renames therefore announce themselves, and a lookup that was overtaken is
//! made again while no rename can be under way. Lookups share nothing that anybody writes unless
//! names are moved.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// Renames and links compare decisions under old and new paths. Moving a directory changes the
    /// paths of everything below it, so it excludes them: write for directories, read for the rest.
    turn: RwLock<()>,
    /// Taken before a turn: to write by who was overtaken too often, to read by renames.
    gate: RwLock<()>,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Moving {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.turn.read()
    }

    /// No name is moved by the view as long as the guard lives.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.turn.write()
    }

    /// No rename begins until the guard is dropped; who has passed the gate goes on. For who was overtaken
    /// again and again. To be asked for without a turn, and one may be taken afterwards.
    pub(crate) fn hold_off(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }

    /// Waits while renames are held off. To be called without a turn.
    pub(crate) fn pass(&self) {
        drop(self.gate.read());
    }

    /// Names are about to be moved, until the guard is dropped: after the places are noted. The
    /// nodes that are moved are to be looked for after this.
    pub(crate) fn begin(&self) -> InMotion<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        InMotion(self)
    }

    /// A moment at which nothing is being moved; `None` if something is.
    pub(crate) fn moment(&self) -> Option<Moment> {
        // In this order: equal numbers mean that nothing was under way at the second look.
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(Moment(ended))
    }

    /// Whether no move has begun since. What was noted before this is seen by those that begin
    /// later.
    pub(crate) fn is_still(&self, moment: &Moment) -> bool {
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::SeqCst) == moment.0
    }
}

/// Whether a lock of [`Moving`] is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// None: names that are not confirmed are searched for.
    Free,
    /// One is, by a request that looked at the names at this moment: those that were not confirmed
    /// then are taken to be incomplete. However long it waited for its turn, they are not stale.
    Held(Instant),
}

#[derive(Debug)]
pub(crate) struct Moment(u64);

#[derive(Debug)]
pub(crate) struct InMotion<'a>(&'a Moving);

impl Drop for InMotion<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_noticed_while_it_runs_and_afterwards() {
        let moving = Moving::default();
        let before = moving.moment().unwrap();
        assert!(moving.is_still(&before));
        let first = moving.begin();
        assert!(moving.moment().is_none() && !moving.is_still(&before));
        let second = moving.begin();
        drop(first);
        assert!(moving.moment().is_none());
        drop(second);
        assert!(!moving.is_still(&before));
        assert!(moving.is_still(&moving.moment().unwrap()));
    }

    /// Every order in which the steps of a lookup and of renames can follow each other. What a step
    /// asks of [`Moving`] is asked for real; the lower file system and the table are two variables.
    mod orders {
        use super::*;

        /// Directories that the inode can be in. A lookup looks into the first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Place {
            Old,
            New,
        }

        /// The protocol, or one that leaves a rule out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Kind {
            AsItIs,
            /// A lookup does not ask whether a rename has begun since its moment.
            NeverAsks,
            /// A rename looks for the node before it announces itself.
            FindsTooEarly,
        }

        struct World<'m> {
            moving: &'m Moving,
            kind: Kind,
            lower: Place,
            /// Where the table says that the inode is, once it has a node.
            noted: Option<Place>,
            /// The kernel lets one rename at a time move a name.
            renaming: bool,
        }

        /// A thread: its next step, and what it holds.
        enum Thread<'m> {
            Lookup {
                step: u32,
                moment: Option<Moment>,
                sees: bool,
                still: Option<RwLockWriteGuard<'m, ()>>,
                suspect: bool,
            },
            Rename {
                step: u32,
                to: Place,
                turn: Option<RwLockReadGuard<'m, ()>>,
                motion: Option<InMotion<'m>>,
                found: bool,
            },
        }

        const DONE: u32 = 99;

        impl<'m> Thread<'m> {
            fn lookup() -> Self {
                let (moment, sees, still, suspect) = (None, false, None, false);
                Self::Lookup { step: 0, moment, sees, still, suspect }
            }

            fn rename(to: Place) -> Self {
                Self::Rename { step: 0, to, turn: None, motion: None, found: false }
            }

            fn is_done(&self) -> bool {
                matches!(self, Self::Lookup { step: DONE, .. } | Self::Rename { step: DONE, .. })
            }

            /// Whether the next step has not to wait for another thread.
            fn can_go(&self, world: &World<'m>) -> bool {
                match self {
                    Self::Lookup { step: 4, .. } => world.moving.turn.try_write().is_some(),
                    Self::Rename { step: 0, .. } => {
                        !world.renaming && world.moving.turn.try_read().is_some()
                    }
                    other => !other.is_done(),
                }
            }

            fn go(&mut self, world: &mut World<'m>) {
                match self {
                    Self::Lookup { step, moment, sees, still, suspect } => {
                        *step = match *step {
                            0 => {
                                *moment = world.moving.moment();
                                if moment.is_some() { 1 } else { 4 }
                            }
                            1 => {
                                *sees = world.lower == Place::Old;
                                if *sees { 2 } else { DONE }
                            }
                            2 => {
                                *suspect = world.noted.is_none();
                                world.noted.get_or_insert(Place::Old);
                                // Known elsewhere: it is looked at again, noted only then.
                                if *suspect || world.noted == Some(Place::Old) { 3 } else { 4 }
                            }
                            3 => {
                                let moment = moment.as_ref().expect("it was taken");
                                let asks = *suspect && world.kind != Kind::NeverAsks;
                                if asks && !world.moving.is_still(moment) { 4 } else { DONE }
                            }
                            4 => {
                                *still = Some(world.moving.write());
                                5
                            }
                            5 => {
                                if world.lower == Place::Old {
                                    world.noted = Some(Place::Old);
                                } else if *suspect && world.noted == Some(Place::Old) {
                                    world.noted = None;
                                }
                                *still = None;
                                DONE
                            }
                            other => unreachable!("step {other}"),
                        };
                    }
                    Self::Rename { step, to, turn, motion, found } => {
                        let finds_now = if world.kind == Kind::FindsTooEarly { 1 } else { 2 };
                        match *step {
                            0 => {
                                *turn = Some(world.moving.read());
                                world.renaming = true;
                            }
                            one if one == finds_now => *found = world.noted.is_some(),
                            1 | 2 => *motion = Some(world.moving.begin()),
                            3 => world.lower = *to,
                            4 if *found => world.noted = Some(*to),
                            4 => {}
                            5 => *motion = None,
                            _ => {
                                *turn = None;
                                world.renaming = false;
                            }
                        }
                        *step = if *step == 6 { DONE } else { *step + 1 };
                    }
                }
            }
        }

        /// Plays one order: `choices` says which of the threads that can go on does so, the first
        /// where it ends. Returns how many could at each step, and whether the table was right.
        fn play(kind: Kind, renames: &[Place], choices: &[usize]) -> (Vec<usize>, bool) {
            let moving = Moving::default();
            let mut world =
                World { moving: &moving, kind, lower: Place::Old, noted: None, renaming: false };
            let mut threads = vec![Thread::lookup()];
            threads.extend(renames.iter().map(|to| Thread::rename(*to)));
            let mut widths = Vec::new();
            loop {
                let open: Vec<_> =
                    (0..threads.len()).filter(|at| threads[*at].can_go(&world)).collect();
                let Some(first) = open.first() else { break };
                let choice = choices.get(widths.len()).copied().unwrap_or(0);
                let at = open.get(choice).unwrap_or(first);
                widths.push(open.len());
                threads[*at].go(&mut world);
            }
            assert!(threads.iter().all(Thread::is_done), "each waits for another: {choices:?}");
            (widths, world.noted.is_none_or(|noted| noted == world.lower))
        }

        /// Plays all orders; returns how many there are, and one that leaves the table wrong.
        fn play_all(kind: Kind, renames: &[Place]) -> (usize, Option<Vec<usize>>) {
            let (mut choices, mut count) = (Vec::<usize>::new(), 0);
            loop {
                let (widths, is_right) = play(kind, renames, &choices);
                count += 1;
                choices.resize(widths.len(), 0);
                if !is_right {
                    return (count, Some(choices));
                }
                // The next one: the last choice that can still be another.
                while choices.last().is_some_and(|last| last + 1 == widths[choices.len() - 1]) {
                    choices.pop();
                }
                match choices.last_mut() {
                    Some(last) => *last += 1,
                    None => return (count, None),
                }
            }
        }

        #[test]
        fn no_order_leaves_an_inode_at_a_place_where_it_is_not() {
            for renames in [&[Place::New][..], &[Place::New, Place::Old]] {
                let (count, wrong) = play_all(Kind::AsItIs, renames);
                assert_eq!(wrong, None, "of {count} orders");
                assert!(count > 20, "{count} orders");
            }
        }

        #[test]
        fn the_orders_show_what_each_rule_is_for() {
            for kind in [Kind::NeverAsks, Kind::FindsTooEarly] {
                assert!(play_all(kind, &[Place::New]).1.is_some(), "{kind:?} does no harm");
            }
        }
    }
}
