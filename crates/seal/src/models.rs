//! Readers, writers and commits of one block under the model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p tollgate-seal --release --lib models`.
//!
//! Slots are cells of the model, which reports each access that nothing orders: a slot that is used
//! again while somebody may still read what was there before.
#![expect(unsafe_code, reason = "the model's cells lend raw pointers")]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use crate::sharing::Sharing;
use crate::slots::Slots;

/// All slots before this one are taken, so that the three behind it soon come again.
const FIRST: u64 = 61;

struct State {
    sharing: Sharing,
    slots: Slots,
    /// Where the block is: the map.
    slot: u64,
    /// Where the last durable commit has it.
    durable: u64,
}

/// What a sealed file does, with one block of one byte.
struct File {
    state: Mutex<State>,
    written: Condvar,
    /// Held during a commit.
    committing: Mutex<()>,
    store: [UnsafeCell<u8>; 8],
}

impl File {
    fn new() -> Arc<File> {
        let mut slots = Slots::new(FIRST);
        let slot = slots.take();
        slots.commit_begins();
        let sharing = Sharing::default();
        let state = Mutex::new(State { sharing, slots, slot, durable: slot });
        let store = [(); 8].map(|()| UnsafeCell::new(0));
        Arc::new(File { state, written: Condvar::new(), committing: Mutex::new(()), store })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn cell(&self, slot: u64) -> &UnsafeCell<u8> {
        &self.store[usize::try_from(slot - FIRST).unwrap()]
    }

    fn read(&self) -> u8 {
        let (epoch, slot) = {
            let mut state = self.state();
            (state.sharing.enter(), state.slot)
        };
        // SAFETY: nobody writes a slot that a reader may know; the model checks it.
        let value = self.cell(slot).with(|byte| unsafe { *byte });
        let state = &mut *self.state();
        state.sharing.leave(epoch);
        state.slots.reclaim(state.sharing.oldest());
        value
    }

    /// Writes what `change` makes of the block.
    fn write(&self, change: impl Fn(u8) -> u8) {
        let mut state = self.state();
        while !state.sharing.claim(&(0..1)) {
            state = self.written.wait(state).unwrap();
        }
        let at = &mut *state;
        at.slots.settle(&mut at.sharing);
        let (from, to) = (at.slot, at.slots.take());
        drop(state);
        // SAFETY: the writer has its turn, and the slot that it took is its own.
        let before = self.cell(from).with(|byte| unsafe { *byte });
        // SAFETY: as above.
        self.cell(to).with_mut(|byte| unsafe { *byte = change(before) });
        let mut state = self.state();
        state.slots.release(from);
        state.slot = to;
        state.sharing.written(&(0..1));
        drop(state);
        self.written.notify_all();
    }

    fn commit(&self) {
        let _alone = self.committing.lock().unwrap();
        let (before, named, released) = {
            let mut state = self.state();
            (state.durable, state.slot, state.slots.commit_begins())
        };
        // A crash now finds the one or the other.
        self.is_there(before);
        self.is_there(named);
        let state = &mut *self.state();
        state.durable = named;
        state.slots.committed(released, &mut state.sharing);
    }

    /// Nobody writes this slot; the model checks it.
    fn is_there(&self, slot: u64) {
        // SAFETY: who would write it fails the model.
        self.cell(slot).with(|byte| unsafe { *byte });
    }

    /// What is durable is there, whoever still writes.
    fn crash(&self) -> u8 {
        let _alone = self.committing.lock().unwrap();
        let durable = self.state().durable;
        // SAFETY: nobody writes what a commit refers to; the model checks it.
        self.cell(durable).with(|byte| unsafe { *byte })
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn a_slot_is_used_again_only_when_no_reader_knows_it() {
    model(|| {
        let file = File::new();
        let readers = [(), ()].map(|()| {
            let file = Arc::clone(&file);
            thread::spawn(move || assert!(file.read() <= 4))
        });
        for value in 1..=4 {
            file.write(|_| value);
            file.commit();
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(file.read(), 4);
        // With no reader left, every slot but one is free again.
        let mut state = file.state();
        let free: Vec<u64> = (0..2).map(|_| state.slots.take()).collect();
        assert!(free.iter().all(|slot| *slot != state.slot), "{free:?}");
    });
}

#[test]
fn writers_of_one_block_lose_nothing() {
    model(|| {
        let file = File::new();
        let others = [(), ()].map(|()| {
            let file = Arc::clone(&file);
            thread::spawn(move || file.write(|value| value + 1))
        });
        file.write(|value| value + 1);
        file.commit();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(file.read(), 3);
    });
}

/// Overwritten between two commits, a slot serves again without one, but never beside a reader who
/// knows it.
#[test]
fn a_dropped_slot_is_used_again_only_when_no_reader_knows_it() {
    model(|| {
        let file = File::new();
        let readers = [(), ()].map(|()| {
            let file = Arc::clone(&file);
            thread::spawn(move || assert!(file.read() <= 4))
        });
        (1..=4).for_each(|value| file.write(|_| value));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(file.read(), 4);
        file.write(|_| 5);
        file.write(|_| 6);
        // With no reader left, one is in the map, one in the last commit, and one serves again.
        let mut state = file.state();
        let at = &mut *state;
        at.slots.settle(&mut at.sharing);
        assert!(at.slots.take() <= FIRST + 4, "one for each reader more than without");
    });
}

/// A commit names slots as they were when it began: they are not used again before the next one is
/// durable, whatever is written meanwhile.
#[test]
fn a_slot_that_a_commit_names_is_not_used_again_beside_it() {
    model(|| {
        let file = File::new();
        let writer = thread::spawn({
            let file = Arc::clone(&file);
            move || (1..=4).for_each(|value| file.write(|_| value))
        });
        let reader = thread::spawn({
            let file = Arc::clone(&file);
            move || assert!(file.read() <= 4)
        });
        file.commit();
        assert!(file.crash() <= 4);
        writer.join().unwrap();
        file.commit();
        assert_eq!(file.crash(), 4);
        reader.join().unwrap();
    });
}
