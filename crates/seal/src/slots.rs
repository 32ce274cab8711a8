//! Which slots are free.

use std::collections::VecDeque;

use crate::sharing::Sharing;

/// A bit for each slot; beyond the last, all are free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: Vec<u64>,
    /// Bits of `used` that are not set.
    free: usize,
    /// Where the search for a free one begins, so that what is written in order lies in order.
    cursor: u64,
    /// Taken since the last commit began: neither what it made durable nor what was durable before
    /// refers to them.
    fresh: Fresh,
    /// Fresh ones that the map names no more. Who reads now may know them.
    dropped: Vec<u64>,
    /// The same, each with the epoch of readings from which on nobody knows of it.
    forgotten: VecDeque<(u64, u64)>,
    /// The same, known to no reader: taken again before others, in the order in which they were
    /// dropped, so that what was written in order is so again. Marked as used.
    spare: VecDeque<u64>,
    /// Free as soon as the next commit is durable: the last one still refers to them.
    pending: Vec<u64>,
    /// What commits set free while readers that began before may still read it: each batch with
    /// the number of readings' epoch from which on nobody knows of it.
    leaving: VecDeque<(u64, Vec<u64>)>,
}

/// A set of slots that is often emptied, which takes no longer than filling it did.
#[derive(Debug, Default)]
struct Fresh {
    bits: Vec<u64>,
    /// Those that are not 0.
    words: Vec<usize>,
}

impl Fresh {
    fn insert(&mut self, slot: u64) {
        let (word, bit) = Slots::place(slot);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        if self.bits[word] == 0 {
            self.words.push(word);
        }
        self.bits[word] |= bit;
    }

    fn contains(&self, slot: u64) -> bool {
        let (word, bit) = Slots::place(slot);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn clear(&mut self) {
        self.words.drain(..).for_each(|word| self.bits[word] = 0);
    }
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
        let slot = self.spare.pop_front().unwrap_or_else(|| {
            let slot = self.next_free().unwrap_or(self.used.len() as u64 * 64);
            self.mark(slot);
            self.cursor = slot + 1;
            slot
        });
        self.fresh.insert(slot);
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

    /// Gives back one that neither a commit nor a reader knows.
    pub(crate) fn give_back(&mut self, slot: u64) {
        let (word, bit) = Self::place(slot);
        self.free += usize::from(self.used[word] & bit != 0);
        self.used[word] &= !bit;
    }

    /// Gives back one that the map names no more, and readers may know.
    pub(crate) fn release(&mut self, slot: u64) {
        if self.fresh.contains(slot) {
            self.dropped.push(slot);
        } else if slot != 0 {
            self.pending.push(slot);
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// A commit begins, and the map is written as it is: what it names stays until a later one. What it
    /// sets free once it is durable.
    pub(crate) fn commit_begins(&mut self) -> Vec<u64> {
        self.fresh.clear();
        std::mem::take(&mut self.pending)
    }

    /// A commit is durable: nobody who begins to read now learns of `released`.
    pub(crate) fn committed(&mut self, released: Vec<u64>, sharing: &mut Sharing) {
        self.leaving.push_back((sharing.learned(), released));
        self.settle(sharing);
    }

    /// What was released and no commit knows can be taken again, as soon as all who read now are done.
    pub(crate) fn settle(&mut self, sharing: &mut Sharing) {
        if !self.dropped.is_empty() {
            let epoch = sharing.learned();
            self.forgotten.extend(self.dropped.drain(..).map(|slot| (epoch, slot)));
        }
        self.reclaim(sharing.oldest());
    }

    /// Frees what no reader can know: the oldest began in `oldest`; `None` if there is none.
    pub(crate) fn reclaim(&mut self, oldest: Option<u64>) {
        let is_past = |from: u64| oldest.is_none_or(|oldest| oldest >= from);
        while self.forgotten.front().is_some_and(|(from, _)| is_past(*from)) {
            let (_, slot) = self.forgotten.pop_front().expect("looked at above");
            self.spare.push_back(slot);
        }
        while self.leaving.front().is_some_and(|(from, _)| is_past(*from)) {
            let (_, slots) = self.leaving.pop_front().expect("looked at above");
            slots.into_iter().for_each(|slot| self.give_back(slot));
        }
    }
}
