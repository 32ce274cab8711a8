//! The free lists of one shelf: which buffers are zeroed, which are dirty, which have no memory.
//!
//! Five stacks of buffer numbers share one array of links, because a buffer is on one list at most.
//! Each head packs the number of the top buffer with a tag that every change counts up, so that a
//! compare-and-swap fails when the top was taken and given back in between (the ABA problem). The
//! tag has 32 bits: a thread would have to sleep in the middle of one pop through exactly a
//! multiple of 2^32 changes of the list to be deceived.
//!
//! Ordering: every change of a head is a read-modify-write, so the release of a push heads a
//! release sequence that goes through all later changes, and any later pop, which acquires, sees
//! what the giver did to the buffer before the push.
//!
//! Zeroed and dirty buffers have two stacks each, of which one is *fresh*. Buffers are given back
//! to the fresh stack and taken from it first, so that the next owner gets the one that is most
//! likely in the cache. Whoever works through all free buffers (the cleaner, the trimmer) takes
//! from the other stack, where nothing new arrives on top, and swaps their roles when that is
//! empty. So every free buffer has its turn, and none is ever out of sight of a taker except the
//! one worked on.

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// No buffer: the end of a list.
const NONE: u32 = u32::MAX;
/// Most buffers of a shelf.
pub(crate) const MOST_BUFFERS: usize = NONE as usize - 1;

/// The number of a buffer on its shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index(pub(crate) u32);

impl Index {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// All bytes are zero.
    Zeroed,
    /// Some bytes may be an earlier owner's.
    Dirty,
    /// The memory was given back to the kernel, or never asked for.
    Released,
}

/// The lists of a shelf.
#[derive(Debug)]
pub(crate) struct Lists {
    zeroed: Pair,
    dirty: Pair,
    released: Head,
    /// For each buffer on a list the number of the one below it.
    links: Box<[AtomicU32]>,
    /// Whether loads of a head that precede its change are exchanges under the model checker, see
    /// [`Lists::look`].
    #[cfg(loom)]
    pub(crate) observing: bool,
}

/// On a cache line pair of its own: two lists must not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Head(AtomicU64);

impl Head {
    fn new() -> Self {
        Self(AtomicU64::new(pack(0, NONE)))
    }
}

/// Two stacks of one kind.
#[derive(Debug)]
struct Pair {
    stacks: [Head; 2],
    /// The number of the fresh one. A stale value is harmless: both stacks are of one kind.
    fresh: AtomicU8,
}

impl Pair {
    fn new() -> Self {
        Self { stacks: [Head::new(), Head::new()], fresh: AtomicU8::new(0) }
    }

    fn fresh(&self) -> &Head {
        &self.stacks[usize::from(self.fresh.load(Ordering::Relaxed))]
    }

    fn aged(&self) -> &Head {
        &self.stacks[usize::from(self.fresh.load(Ordering::Relaxed) ^ 1)]
    }
}

impl Lists {
    /// Lists of `count` buffers, none of them on any.
    pub(crate) fn new(count: u32) -> Self {
        let links = (0..count).map(|_| AtomicU32::new(NONE)).collect();
        Self {
            zeroed: Pair::new(),
            dirty: Pair::new(),
            released: Head::new(),
            links,
            #[cfg(loom)]
            observing: false,
        }
    }

    /// Puts a buffer that is on no list on `list`, to be taken next.
    pub(crate) fn push(&self, list: List, index: Index) {
        let head = match list {
            List::Zeroed => self.zeroed.fresh(),
            List::Dirty => self.dirty.fresh(),
            List::Released => &self.released,
        };
        self.push_on(head, index);
    }

    /// Takes the buffer of `list` that was put there last, as far as the two stacks tell.
    pub(crate) fn pop(&self, list: List) -> Option<Index> {
        let Some(pair) = self.pair(list) else { return self.pop_from(&self.released) };
        // Both, whatever `fresh` says by now: a buffer on either must be found.
        let fresh = usize::from(pair.fresh.load(Ordering::Relaxed));
        self.pop_from(&pair.stacks[fresh]).or_else(|| self.pop_from(&pair.stacks[fresh ^ 1]))
    }

    /// Takes a buffer that lay on `list` since before the last [`Lists::turn`].
    pub(crate) fn pop_aged(&self, list: List) -> Option<Index> {
        self.pair(list).and_then(|pair| self.pop_from(pair.aged()))
    }

    /// Puts a buffer from [`Lists::pop_aged`] back where it was.
    pub(crate) fn push_aged(&self, list: List, index: Index) {
        match self.pair(list) {
            Some(pair) => self.push_on(pair.aged(), index),
            None => self.push_on(&self.released, index),
        }
    }

    /// The buffers on the fresh stack of `list` become the aged ones, and those that are aged still
    /// the fresh ones.
    pub(crate) fn turn(&self, list: List) {
        if let Some(pair) = self.pair(list) {
            pair.fresh.fetch_xor(1, Ordering::Relaxed);
        }
    }

    /// Whether `list` is empty at this moment.
    pub(crate) fn is_empty(&self, list: List) -> bool {
        let empty = |head: &Head| unpack(head.0.load(Ordering::Acquire)).1 == NONE;
        match self.pair(list) {
            Some(pair) => pair.stacks.iter().all(empty),
            None => empty(&self.released),
        }
    }

    fn pair(&self, list: List) -> Option<&Pair> {
        match list {
            List::Zeroed => Some(&self.zeroed),
            List::Dirty => Some(&self.dirty),
            List::Released => None,
        }
    }

    fn push_on(&self, head: &Head, Index(index): Index) {
        let mut seen = self.look(head, Ordering::Relaxed);
        loop {
            let (tag, top) = unpack(seen);
            debug_assert_ne!(top, index, "a buffer is on one list at most");
            self.links[index as usize].store(top, Ordering::Relaxed);
            let next = pack(tag.wrapping_add(1), index);
            match head.0.compare_exchange_weak(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn pop_from(&self, head: &Head) -> Option<Index> {
        let mut seen = self.look(head, Ordering::Acquire);
        loop {
            let (tag, top) = unpack(seen);
            if top == NONE {
                return None;
            }
            // Stale when another thread took the top meanwhile; then the tag has changed.
            let below = self.links[top as usize].load(Ordering::Relaxed);
            let next = pack(tag.wrapping_add(1), below);
            match head.0.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(Index(top)),
                Err(now) => seen = now,
            }
        }
    }

    /// A load of a head by a thread that is about to change it.
    ///
    /// loom 0.7 remembers only the latest access to a place when it looks for orders to try: a
    /// thread that loads a word and then changes it hides that another thread had loaded it before.
    /// Models of the lists alone therefore make this load an exchange, which counts as a change.
    /// Models of waiting do not: an exchange sees the latest value, so a missing fence would not
    /// show.
    fn look(&self, head: &Head, order: Ordering) -> u64 {
        #[cfg(loom)]
        if self.observing {
            return head.0.fetch_add(0, order);
        }
        head.0.load(order)
    }
}

fn pack(tag: u32, index: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(index)
}

#[expect(clippy::cast_possible_truncation, reason = "takes the two halves apart")]
fn unpack(head: u64) -> (u32, u32) {
    ((head >> 32) as u32, head as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn last_in_first_out_and_lists_apart() {
        let lists = Lists::new(4);
        let places = [List::Zeroed, List::Dirty, List::Zeroed, List::Released];
        for (index, list) in (0..).map(Index).zip(places) {
            lists.push(list, index);
        }
        assert_eq!(lists.pop(List::Zeroed), Some(Index(2)));
        assert_eq!(lists.pop(List::Zeroed), Some(Index(0)));
        assert_eq!(lists.pop(List::Zeroed), None);
        assert!(!lists.is_empty(List::Dirty));
        assert_eq!(lists.pop(List::Dirty), Some(Index(1)));
        assert!(lists.is_empty(List::Dirty));
        assert_eq!(lists.pop(List::Released), Some(Index(3)));
    }

    #[test]
    fn what_lay_there_before_a_turn_is_aged_and_found_by_all() {
        let lists = Lists::new(3);
        lists.push(List::Dirty, Index(0));
        assert_eq!(lists.pop_aged(List::Dirty), None, "fresh");
        lists.turn(List::Dirty);
        lists.push(List::Dirty, Index(1));
        lists.push(List::Dirty, Index(2));
        assert_eq!(lists.pop_aged(List::Dirty), Some(Index(0)));
        lists.push_aged(List::Dirty, Index(0));
        assert_eq!(lists.pop(List::Dirty), Some(Index(2)), "the one given back last comes first");
        assert_eq!(lists.pop(List::Dirty), Some(Index(1)));
        assert_eq!(lists.pop(List::Dirty), Some(Index(0)), "aged ones are found too");
        assert!(lists.is_empty(List::Dirty));
    }
}
