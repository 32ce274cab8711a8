//! The free lists of one shelf: which buffers are zeroed, which are dirty.
//!
//! Two stacks of buffer numbers share one array of links, because a buffer is on one list at most.
//! Each head packs the number of the top buffer with a tag that every change counts up, so that a
//! compare-and-swap fails when the top was taken and given back in between (the ABA problem). The
//! tag has 32 bits: a thread would have to sleep in the middle of one pop through exactly a
//! multiple of 2^32 changes of the list to be deceived.
//!
//! Ordering: every change of a head is a read-modify-write, so the release of a push heads a
//! release sequence that goes through all later changes, and any later pop, which acquires, sees
//! what the giver did to the buffer before the push.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// No buffer: the end of a list.
const NONE: u32 = u32::MAX;
/// Most buffers of a shelf.
pub(crate) const MOST_BUFFERS: usize = NONE as usize - 1;

/// The number of a buffer on its shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index(pub(crate) u32);

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Zeroed,
    Dirty,
}

/// Both lists of a shelf.
#[derive(Debug)]
pub(crate) struct Lists {
    zeroed: Head,
    dirty: Head,
    /// For each buffer on a list the number of the one below it.
    links: Box<[AtomicU32]>,
}

/// On a cache line pair of its own: two lists must not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Head(AtomicU64);

impl Lists {
    /// Lists of `count` buffers, none of them on any.
    pub(crate) fn new(count: u32) -> Self {
        let head = || Head(AtomicU64::new(pack(0, NONE)));
        let links = (0..count).map(|_| AtomicU32::new(NONE)).collect();
        Self { zeroed: head(), dirty: head(), links }
    }

    /// Puts a buffer that is on no list on `list`.
    pub(crate) fn push(&self, list: List, Index(index): Index) {
        let head = &self.head(list).0;
        let mut seen = head.load(Ordering::Relaxed);
        loop {
            let (tag, top) = unpack(seen);
            self.links[index as usize].store(top, Ordering::Relaxed);
            let next = pack(tag.wrapping_add(1), index);
            match head.compare_exchange_weak(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes the buffer that was put on `list` last.
    pub(crate) fn pop(&self, list: List) -> Option<Index> {
        let head = &self.head(list).0;
        let mut seen = head.load(Ordering::Acquire);
        loop {
            let (tag, top) = unpack(seen);
            if top == NONE {
                return None;
            }
            // Stale when another thread took the top meanwhile; then the tag has changed.
            let below = self.links[top as usize].load(Ordering::Relaxed);
            let next = pack(tag.wrapping_add(1), below);
            match head.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(Index(top)),
                Err(now) => seen = now,
            }
        }
    }

    /// Whether `list` is empty at this moment.
    pub(crate) fn is_empty(&self, list: List) -> bool {
        unpack(self.head(list).0.load(Ordering::Acquire)).1 == NONE
    }

    fn head(&self, list: List) -> &Head {
        match list {
            List::Zeroed => &self.zeroed,
            List::Dirty => &self.dirty,
        }
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
        let lists = Lists::new(3);
        for index in 0..3 {
            lists.push(if index == 1 { List::Dirty } else { List::Zeroed }, Index(index));
        }
        assert_eq!(lists.pop(List::Zeroed), Some(Index(2)));
        assert_eq!(lists.pop(List::Zeroed), Some(Index(0)));
        assert_eq!(lists.pop(List::Zeroed), None);
        assert!(!lists.is_empty(List::Dirty));
        assert_eq!(lists.pop(List::Dirty), Some(Index(1)));
        assert!(lists.is_empty(List::Dirty));
    }
}
