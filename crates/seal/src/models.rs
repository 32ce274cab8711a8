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
}

/// What a sealed file does, with one block of one byte.
struct File {
    state: Mutex<State>,
    written: Condvar,
    store: [UnsafeCell<u8>; 8],
}

impl File {
    fn new() -> Arc<File> {
        let mut slots = Slots::new(FIRST);
        let slot = slots.take();
        let state = Mutex::new(State { sharing: Sharing::default(), slots, slot });
        let store = [(); 8].map(|()| UnsafeCell::new(0));
        Arc::new(File { state, written: Condvar::new(), store })
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
        let (from, to) = (state.slot, state.slots.take());
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
        let released = self.state().slots.take_pending();
        let state = &mut *self.state();
        let epoch = state.sharing.next_epoch();
        state.slots.committed(released, epoch);
        state.slots.reclaim(state.sharing.oldest());
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
