//! Which slots are free.

use std::collections::VecDeque;

/// A bit for each slot; beyond the last, all are free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: Vec<u64>,
    /// Bits of `used` that are not set.
    free: usize,
    /// Where the search for a free one begins, so that what is written in order lies in order.
    cursor: u64,
    /// Free as soon as the next commit is durable: the last one still refers to them.
    pending: Vec<u64>,
    /// What commits set free while readers that began before may still read it: each batch with
    /// the number of readings' epoch from which on nobody knows of it.
    leaving: VecDeque<(u64, Vec<u64>)>,
}

impl Slots {
    /// All free but the first `reserved`.
    pub(crate) fn new(reserved: u64) -> Slots {
        let mut slots = Slots::default();
        (0..reserved).for_each(|slot| slots.mark(slot));
        slots
    }

    fn place(slot: u64) -> (usize, u64) {
        let word = usize::try_from(slot / 64).expect("within the store's length");
        (word, 1 << (slot % 64))
    }

    pub(crate) fn mark(&mut self, slot: u64) {
        let (word, bit) = Self::place(slot);
        if self.used.len() <= word {
            self.free += (word + 1 - self.used.len()) * 64;
            self.used.resize(word + 1, 0);
        }
        self.free -= usize::from(self.used[word] & bit == 0);
        self.used[word] |= bit;
    }

    /// Takes a free one.
    pub(crate) fn take(&mut self) -> u64 {
        let slot = self.next_free().unwrap_or(self.used.len() as u64 * 64);
        self.mark(slot);
        self.cursor = slot + 1;
        slot
    }

    /// The next after the cursor, then from the beginning on.
    fn next_free(&self) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let first = usize::try_from(self.cursor / 64).expect("within the store's length");
        let words = self.used.iter().enumerate();
        let from_cursor = words.clone().skip(first).find(|(_, word)| **word != u64::MAX);
        let found = from_cursor.or_else(|| words.take(first).find(|(_, w)| **w != u64::MAX));
        found.map(|(word, bits)| {
            // In the cursor's own word, go on behind it if there is room.
            let behind =
                if word == first { *bits | ((1 << (self.cursor % 64)) - 1) } else { *bits };
            let bits = if behind == u64::MAX { *bits } else { behind };
            word as u64 * 64 + u64::from((!bits).trailing_zeros())
        })
    }

    /// Gives back one that no commit refers to.
    pub(crate) fn give_back(&mut self, slot: u64) {
        let (word, bit) = Self::place(slot);
        self.free += usize::from(self.used[word] & bit != 0);
        self.used[word] &= !bit;
    }

    /// Gives back one that the last commit may refer to.
    pub(crate) fn release(&mut self, slot: u64) {
        if slot != 0 {
            self.pending.push(slot);
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// What a commit that begins now sets free once it is durable.
    pub(crate) fn take_pending(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.pending)
    }

    /// A commit is durable: nobody who begins to read in `epoch` or later learns of `released`.
    pub(crate) fn committed(&mut self, released: Vec<u64>, epoch: u64) {
        self.leaving.push_back((epoch, released));
    }

    /// Frees what no reader can know: the oldest began in `oldest`; `None` if there is none.
    pub(crate) fn reclaim(&mut self, oldest: Option<u64>) {
        while self.leaving.front().is_some_and(|(from, _)| oldest.is_none_or(|o| o >= *from)) {
            let (_, slots) = self.leaving.pop_front().expect("looked at above");
            slots.into_iter().for_each(|slot| self.give_back(slot));
        }
    }
}
