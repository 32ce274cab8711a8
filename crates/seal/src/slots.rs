//! Which slots are free.

/// A bit for each slot; beyond the last, all are free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: Vec<u64>,
    /// Where the search for a free one begins, so that what is written in order lies in order.
    cursor: u64,
    /// Free as soon as the next commit is durable: the last one still refers to them.
    pending: Vec<u64>,
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
            self.used.resize(word + 1, 0);
        }
        self.used[word] |= bit;
    }

    /// Takes a free one.
    pub(crate) fn take(&mut self) -> u64 {
        let first = usize::try_from(self.cursor / 64).expect("within the store's length");
        let words = self.used.iter().enumerate();
        let from_cursor = words.clone().skip(first).find(|(_, word)| **word != u64::MAX);
        let found =
            from_cursor.or_else(|| words.clone().take(first).find(|(_, w)| **w != u64::MAX));
        let slot = match found {
            Some((word, bits)) => {
                let next = self.cursor % 64;
                // In the cursor's own word, go on behind it if there is room.
                let behind = if word == first { *bits | ((1 << next) - 1) } else { *bits };
                let bits = if behind == u64::MAX { *bits } else { behind };
                word as u64 * 64 + u64::from((!bits).trailing_zeros())
            }
            None => self.used.len() as u64 * 64,
        };
        self.mark(slot);
        self.cursor = slot + 1;
        slot
    }

    /// Gives back one that no commit refers to.
    pub(crate) fn give_back(&mut self, slot: u64) {
        let (word, bit) = Self::place(slot);
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

    /// A commit is durable: nothing refers to what was released before it.
    pub(crate) fn committed(&mut self) {
        for slot in std::mem::take(&mut self.pending) {
            self.give_back(slot);
        }
    }
}
