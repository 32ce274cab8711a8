//! Which slots are free.

use std::collections::VecDeque;
use std::ops::Range;

use crate::sharing::Sharing;

/// Free slots that keep their space, at least.
const RESERVE: usize = 16;
/// Most runs of slots that are given back together.
const HOLES_MAX: usize = 1024;

/// A bit for each slot; beyond the last, all are free.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: Vec<u64>,
    /// Bits of `used` that are not set.
    free: usize,
    /// Free ones that take no space in the store; as long as `used`.
    hollow: Vec<u64>,
    /// Bits of `hollow` that are set.
    hollows: usize,
    /// The store may end far behind the last of `used`.
    is_long: bool,
    /// What is behind the last of `used` is being cut off, and cannot be taken.
    is_cut: bool,
    /// Taken between the beginnings of the last two commits and since then, without those that served
    /// again.
    taken: [usize; 2],
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
            self.resize(word + 1, 0);
        }
        self.free -= usize::from(self.used[word] & bit == 0);
        self.used[word] |= bit;
        self.hollows -= usize::from(self.hollow[word] & bit != 0);
        self.hollow[word] &= !bit;
    }

    /// All that the map names is marked, and the store has room for so many: there may be more behind, as
    /// after a crash.
    pub(crate) fn are_marked(&mut self, length: u64) {
        self.is_long = length > self.used.len() as u64 * 64;
    }

    /// Has so many words; those that are added are free, and `hollow`.
    fn resize(&mut self, words: usize, hollow: u64) {
        let count = |bits: &[u64], ones: bool| -> usize {
            let of = |bits: &u64| if ones { bits.count_ones() } else { bits.count_zeros() };
            bits.iter().map(|bits| of(bits) as usize).sum()
        };
        let before = self.used.len();
        if words < before {
            self.free -= count(&self.used[words..], false);
            self.hollows -= count(&self.hollow[words..], true);
        } else {
            self.free += (words - before) * 64;
            self.hollows += (words - before) * hollow.count_ones() as usize;
        }
        self.used.resize(words, 0);
        self.hollow.resize(words, hollow);
    }

    /// Whether so many can be taken now.
    pub(crate) fn has(&self, count: usize) -> bool {
        !self.is_cut || self.free + self.spare.len() >= count
    }

    /// Takes a free one.
    pub(crate) fn take(&mut self) -> u64 {
        let slot = self.spare.pop_front().unwrap_or_else(|| {
            let slot = self.next_free().unwrap_or_else(|| {
                let words = self.used.len();
                // Nothing was written there yet, as far as is known.
                self.resize(words + 1, if self.is_long { 0 } else { u64::MAX });
                words as u64 * 64
            });
            self.mark(slot);
            self.cursor = slot + 1;
            self.taken[1] += 1;
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
        self.taken = [self.taken[1], 0];
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

    fn count_used(&self) -> usize {
        self.used.len() * 64 - self.free
    }

    /// Free ones that keep their space for what is written next: more in a file that is written than in
    /// one that `rests`. And how many there may be before some are given back: not each commit of a busy
    /// file does that.
    fn kept(&self, rests: bool) -> (usize, usize) {
        let written =
            if rests { 0 } else { self.taken[0].max(self.taken[1]).min(self.count_used()) };
        let kept = RESERVE + self.count_used() / 8 + written;
        (kept, kept + written)
    }

    /// Whether more of what is free takes space than should, or the store is longer than it should be.
    pub(crate) fn has_excess(&self, rests: bool) -> bool {
        let most = self.kept(rests).1;
        let behind = || self.used.iter().rev().take_while(|bits| **bits == 0).count() * 64;
        self.free + self.spare.len() - self.hollows > most || behind() > most || self.is_long
    }

    /// What is to be given back of a store with room for `length` slots, of which nobody takes
    /// anything until [`Slots::gave_back`]. The highest are given back.
    pub(crate) fn excess(&mut self, length: u64, with_holes: bool, rests: bool) -> Excess {
        let spare = std::mem::take(&mut self.spare);
        spare.into_iter().for_each(|slot| self.give_back(slot));
        let last = self.used.iter().rposition(|bits| *bits != 0);
        let end = last
            .map_or(0, |word| word as u64 * 64 + u64::from(64 - self.used[word].leading_zeros()));
        self.resize(last.map_or(0, |word| word + 1), 0);
        let behind = end..self.used.len() as u64 * 64;
        let behind = behind.filter(|slot| !self.is_hollow(*slot)).count();
        let middle = self.free - self.hollows - behind;
        let tail = length.saturating_sub(end);
        let most_kept = self.kept(rests).0;
        let kept = (most_kept.saturating_sub(middle) as u64).min(tail);
        let most = if with_holes { middle.saturating_sub(most_kept) } else { 0 };
        let excess =
            Excess { holes: self.highest(end, most), end: (kept < tail).then_some(end + kept) };
        (self.is_cut, self.is_long) = (excess.end.is_some(), false);
        // What is written next goes to the beginning, so that the end can be cut later.
        self.cursor = 0;
        self.resize(usize::try_from((end + kept).div_ceil(64)).expect("as before"), 0);
        let words = self.used.len();
        (end.max(length)..words as u64 * 64).for_each(|slot| self.empty(slot));
        excess.each(words).for_each(|slot| self.mark(slot));
        excess
    }

    /// A free one takes no space.
    fn empty(&mut self, slot: u64) {
        let (word, bit) = Self::place(slot);
        self.hollows += usize::from(self.hollow[word] & bit == 0);
        self.hollow[word] |= bit;
    }

    fn is_hollow(&self, slot: u64) -> bool {
        let (word, bit) = Self::place(slot);
        self.hollow[word] & bit != 0
    }

    /// The highest free ones before `end` that take space, `most` of them, in runs.
    fn highest(&self, end: u64, most: usize) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut left = most;
        for word in (0..self.used.len()).rev() {
            let with_space = !self.used[word] & !self.hollow[word];
            if with_space == 0 {
                continue;
            }
            for slot in (word as u64 * 64..word as u64 * 64 + 64).rev() {
                if with_space & Self::place(slot).1 == 0 || slot >= end {
                    continue;
                }
                let is_full = runs.len() == HOLES_MAX;
                match runs.last_mut().filter(|run| run.start == slot + 1) {
                    _ if left == 0 => return runs,
                    Some(run) => run.start = slot,
                    None if is_full => return runs,
                    None => runs.push(slot..slot + 1),
                }
                left -= 1;
            }
        }
        runs
    }

    /// What was to be given back can be taken again; of `holes` the first so many, and the end if it
    /// `is_cut`, take no space any more.
    pub(crate) fn gave_back(&mut self, excess: &Excess, holes: usize, is_cut: bool) {
        let words = self.used.len();
        excess.each(words).for_each(|slot| self.give_back(slot));
        let holes = excess.holes[..holes].to_vec();
        let gone = Excess { holes, end: excess.end.filter(|_| is_cut) };
        gone.each(words).for_each(|slot| self.empty(slot));
        self.is_cut = false;
    }
}

/// Slots whose space is given back.
#[derive(Debug)]
pub(crate) struct Excess {
    pub(crate) holes: Vec<Range<u64>>,
    /// All from this one on.
    pub(crate) end: Option<u64>,
}

impl Excess {
    pub(crate) fn is_empty(&self) -> bool {
        self.holes.is_empty() && self.end.is_none()
    }

    /// Those within so many words.
    fn each(&self, words: usize) -> impl Iterator<Item = u64> {
        let end = self.end.map(|end| end..words as u64 * 64);
        self.holes.iter().chain(end.as_ref()).cloned().collect::<Vec<_>>().into_iter().flatten()
    }
}
