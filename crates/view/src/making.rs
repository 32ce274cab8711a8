//! Names that are being made, and directories that are about to be moved.
//!
//! Whether a name may be made depends on where its directory is. A rename of the view that moves the
//! directory, or one above it, looks whether all that lies below may be there. A name that is judged
//! before and made afterwards would be seen by neither. So who makes a name is noted from before it is
//! judged until it is made, and who moves a directory to where other rules hold waits for those that
//! are noted below it, and keeps others off until it is moved. Who makes names elsewhere goes on: a file
//! system that hangs holds nobody up but who has to look at the same directories.
//!
//! Who makes names writes to no cache line that other workers write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use tollgate_fuse::NodeId;

use crate::lower::Key;
use crate::table::Node;

const SHARDS: usize = 16;

/// Directories above one that are looked at. More than a path can have: the names go in a circle.
const MAX_ABOVE: usize = 32 << 10;

#[derive(Debug, Default)]
pub(crate) struct Making {
    /// Directories in which a name is being made, by worker.
    shards: [CachePadded<Mutex<Vec<NodeId>>>; SHARDS],
    /// How many are in `moves`: those that make a name look at this one only, as a rule. The locks of
    /// the shards put it in order with what is noted there.
    moving: AtomicUsize,
    /// Directories that are about to be moved.
    moves: Mutex<Vec<Key>>,
    changed: Condvar,
}

impl Making {
    /// A name is about to be made in `dir`, until the guard is dropped: to be called before it is
    /// judged. Waits while a directory is moved that it `lies_in`. Not to be held when a lock of
    /// [`crate::moving::Moving`] is taken, nor twice.
    pub(crate) fn begin(
        &self,
        worker: usize,
        dir: NodeId,
        lies_in: impl Fn(&Key) -> bool,
    ) -> BeingMade<'_> {
        loop {
            let made = self.note(worker, dir);
            if !self.is_held_off(&lies_in) {
                return made;
            }
            // Whoever moves the directory waits for this one.
            drop(made);
            let mut moves = self.moves.lock();
            while moves.iter().any(&lies_in) {
                self.changed.wait(&mut moves);
            }
        }
    }

    fn note(&self, worker: usize, dir: NodeId) -> BeingMade<'_> {
        let shard = worker % SHARDS;
        self.shards[shard].lock().push(dir);
        BeingMade { making: self, shard, dir }
    }

    /// Whether a directory is about to be moved that somebody who is noted `lies_in`.
    fn is_held_off(&self, lies_in: impl Fn(&Key) -> bool) -> bool {
        self.moving.load(Ordering::Relaxed) > 0 && self.moves.lock().iter().any(lies_in)
    }

    /// Nothing is made below the directory `moved` as long as the guard lives: to be called before what
    /// lies below is looked at. Waits for those who make a name in a directory that `lies_below`.
    pub(crate) fn hold_off(&self, moved: Key, lies_below: impl Fn(NodeId) -> bool) -> HeldOff<'_> {
        let held = self.announce(moved);
        let mut moves = self.moves.lock();
        while self.is_being_made(&lies_below) {
            self.changed.wait(&mut moves);
        }
        held
    }

    fn announce(&self, moved: Key) -> HeldOff<'_> {
        self.moves.lock().push(moved);
        self.moving.fetch_add(1, Ordering::Relaxed);
        HeldOff { making: self, moved }
    }

    fn is_being_made(&self, lies_below: impl Fn(NodeId) -> bool) -> bool {
        self.shards.iter().any(|shard| {
            let noted: SmallVec<[NodeId; 8]> = shard.lock().iter().copied().collect();
            noted.into_iter().any(&lies_below)
        })
    }
}

/// A name is being made.
#[derive(Debug)]
#[must_use]
pub(crate) struct BeingMade<'a> {
    making: &'a Making,
    shard: usize,
    dir: NodeId,
}

impl Drop for BeingMade<'_> {
    fn drop(&mut self) {
        {
            let mut noted = self.making.shards[self.shard].lock();
            if let Some(at) = noted.iter().position(|dir| *dir == self.dir) {
                noted.swap_remove(at);
            }
        }
        if self.making.moving.load(Ordering::Relaxed) > 0 {
            // Under the lock: who has just seen the note does not miss this.
            let _moves = self.making.moves.lock();
            self.making.changed.notify_all();
        }
    }
}

/// Nobody makes names below a directory.
#[derive(Debug)]
#[must_use]
pub(crate) struct HeldOff<'a> {
    making: &'a Making,
    moved: Key,
}

impl Drop for HeldOff<'_> {
    fn drop(&mut self) {
        let mut moves = self.making.moves.lock();
        if let Some(at) = moves.iter().position(|moved| *moved == self.moved) {
            moves.swap_remove(at);
        }
        self.making.moving.fetch_sub(1, Ordering::Relaxed);
        self.making.changed.notify_all();
    }
}

/// Whether `dir` is the directory `top` or lies below it, as far as is known: also true of one that
/// has no place.
pub(crate) fn lies_in(dir: &Arc<Node>, top: &Key) -> bool {
    let mut here = Arc::clone(dir);
    for _ in 0..MAX_ABOVE {
        if here.is(top) {
            return true;
        }
        if here.is_root() {
            return false;
        }
        let Some(parent) = here.parent() else { return true };
        here = parent;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DIR: NodeId = NodeId(2);

    fn key() -> Key {
        Key::of_node(DIR.0)
    }

    #[test]
    fn who_makes_names_elsewhere_does_not_wait() {
        let making = Making::default();
        let elsewhere = making.begin(0, NodeId(3), |moved| *moved == Key::of_node(3));
        let held = making.hold_off(key(), |dir| dir == DIR);
        let other = making.begin(0, NodeId(3), |moved| *moved == Key::of_node(3));
        drop((elsewhere, held, other));
        assert_eq!(making.moving.load(Ordering::Relaxed), 0);
        assert!(making.shards.iter().all(|shard| shard.lock().is_empty()));
    }

    #[test]
    fn each_waits_for_the_other() {
        let making = Making::default();
        let made = making.begin(0, DIR, |moved| *moved == key());
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| drop(making.hold_off(key(), |dir| dir == DIR)));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!mover.is_finished());
            drop(made);
            mover.join().unwrap();
            let held = making.hold_off(key(), |dir| dir == DIR);
            let maker = scope.spawn(|| drop(making.begin(0, DIR, |moved| *moved == key())));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!maker.is_finished());
            drop(held);
            maker.join().unwrap();
        });
    }

    /// Every order in which the steps of making a name and of moving its directory can follow each other.
    /// What a step asks of [`Making`] is asked for real; the lower file system is two variables.
    mod orders {
        use super::*;

        /// The protocol, or one that leaves a rule out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Kind {
            AsItIs,
            /// The name is judged before that is noted.
            JudgesTooEarly,
            /// Who makes the name looks before that is noted whether the directory is moved.
            AsksTooEarly,
            /// Who moves the directory does not wait for those who are noted.
            WaitsForNobody,
            /// Who moves the directory waits before that is announced.
            WaitsTooEarly,
            /// What lies below is looked at before all have been waited for.
            LooksTooEarly,
        }

        impl Kind {
            fn waits_in_time(self) -> bool {
                matches!(self, Self::AsItIs | Self::JudgesTooEarly | Self::AsksTooEarly)
            }
        }

        struct World<'m> {
            making: &'m Making,
            kind: Kind,
            /// The directory has the name under which the other may not be made.
            is_moved: bool,
            is_made: bool,
        }

        /// A thread: its next step, and what it holds.
        enum Thread<'m> {
            Maker { step: u32, noted: Option<BeingMade<'m>>, may_go_on: bool },
            Mover { step: u32, held: Option<HeldOff<'m>>, finds: bool },
        }

        const DONE: u32 = 99;

        impl<'m> Thread<'m> {
            fn is_done(&self) -> bool {
                matches!(self, Self::Maker { step: DONE, .. } | Self::Mover { step: DONE, .. })
            }

            /// Whether the next step has not to wait for another thread.
            fn can_go(&self, world: &World<'m>) -> bool {
                let is_being_made = || world.making.is_being_made(|dir| dir == DIR);
                match self {
                    Self::Maker { step: 10, .. } => {
                        !world.making.is_held_off(|moved| *moved == key())
                    }
                    Self::Mover { step: 0, .. } if world.kind == Kind::WaitsTooEarly => {
                        !is_being_made()
                    }
                    Self::Mover { step: 2, .. } if world.kind.waits_in_time() => !is_being_made(),
                    Self::Mover { step: 3, .. } if world.kind == Kind::LooksTooEarly => {
                        !is_being_made()
                    }
                    other => !other.is_done(),
                }
            }

            fn go(&mut self, world: &mut World<'m>) {
                let making = world.making;
                match self {
                    Self::Maker { step, noted, may_go_on } => {
                        let held_off = || making.is_held_off(|moved| *moved == key());
                        let note = || Some(making.note(0, DIR));
                        *step = match (*step, world.kind) {
                            (0, Kind::JudgesTooEarly) if !*may_go_on => {
                                *may_go_on = true;
                                if world.is_moved { DONE } else { 0 }
                            }
                            (0, Kind::AsksTooEarly) => {
                                if held_off() {
                                    10
                                } else {
                                    1
                                }
                            }
                            (0, _) => {
                                *noted = note();
                                1
                            }
                            (1, Kind::AsksTooEarly) => {
                                *noted = note();
                                2
                            }
                            (1, _) if held_off() => {
                                *noted = None;
                                10
                            }
                            (1, Kind::JudgesTooEarly) => 3,
                            (1, _) => 2,
                            (2, _) if world.is_moved => {
                                *noted = None;
                                DONE
                            }
                            (2, _) => 3,
                            (3, _) => {
                                world.is_made = true;
                                4
                            }
                            (4, _) => {
                                *noted = None;
                                DONE
                            }
                            // It has been waited for: once more.
                            (10, _) => 0,
                            other => unreachable!("step {other:?}"),
                        };
                    }
                    Self::Mover { step, held, finds } => {
                        let looks_at = if world.kind == Kind::LooksTooEarly { 2 } else { 3 };
                        match *step {
                            0 if world.kind == Kind::WaitsTooEarly => {}
                            1 if world.kind != Kind::WaitsTooEarly => {}
                            0 | 1 => *held = Some(making.announce(key())),
                            at if at == looks_at => *finds = world.is_made,
                            4 => world.is_moved = !*finds,
                            5 => *held = None,
                            _ => {}
                        }
                        *step = if *step == 5 { DONE } else { *step + 1 };
                    }
                }
            }
        }

        /// Plays one order: `choices` says which of the threads that can go on does so, the first
        /// where it ends. Returns how many could at each step, and whether the name may be there.
        fn play(kind: Kind, makers: usize, choices: &[usize]) -> (Vec<usize>, bool) {
            let making = Making::default();
            let mut world = World { making: &making, kind, is_moved: false, is_made: false };
            let maker = || Thread::Maker { step: 0, noted: None, may_go_on: false };
            let mut threads: Vec<_> = (0..makers).map(|_| maker()).collect();
            threads.push(Thread::Mover { step: 0, held: None, finds: false });
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
            (widths, !(world.is_moved && world.is_made))
        }

        /// Plays all orders; returns how many there are, and one that leaves the name where it may not
        /// be.
        fn play_all(kind: Kind, makers: usize) -> (usize, Option<Vec<usize>>) {
            let (mut choices, mut count) = (Vec::<usize>::new(), 0);
            loop {
                let (widths, is_right) = play(kind, makers, &choices);
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
        fn no_order_leaves_a_name_where_it_may_not_be_made() {
            for makers in [1, 2] {
                let (count, wrong) = play_all(Kind::AsItIs, makers);
                assert_eq!(wrong, None, "of {count} orders");
                assert!(count > 20, "{count} orders");
            }
        }

        #[test]
        fn the_orders_show_what_each_rule_is_for() {
            use Kind::{
                AsksTooEarly, JudgesTooEarly, LooksTooEarly, WaitsForNobody, WaitsTooEarly,
            };
            for kind in [JudgesTooEarly, AsksTooEarly, WaitsForNobody, WaitsTooEarly, LooksTooEarly]
            {
                assert!(play_all(kind, 1).1.is_some(), "{kind:?} does no harm");
            }
        }
    }
}
