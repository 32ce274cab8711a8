//! What a worker's item runs inside itself, because it waits for that. It is shown as the item
//! itself is, so that whoever sets a limit for its queue finds it.

use std::sync::OnceLock;

use tollgate_wakequeue::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::queue_ref::QueueRef;

/// How much deeper a worker's items may nest with each allocation.
const LEN: usize = 16;

/// The nested items of one worker. Written by the worker with plain stores.
#[derive(Default)]
pub(crate) struct NestedItems {
    /// How many run now. For the worker alone.
    depth: AtomicUsize,
    first: OnceLock<Box<Part>>,
}

/// Places for items that deep. Once made it stays: there are as many as the stack had room for.
#[derive(Default)]
struct Part {
    places: [Nested; LEN],
    next: OnceLock<Box<Part>>,
}

/// What runs at one depth: as in the slot of the worker.
#[derive(Default)]
pub(crate) struct Nested {
    /// Odd while an item runs; grows with every item.
    pub(crate) turn: AtomicU64,
    /// Address of the queue of the current or latest item.
    pub(crate) queue: AtomicPtr<()>,
    /// Whose limit it counts against.
    pub(crate) node: AtomicU32,
}

impl NestedItems {
    /// Shows that one more runs.
    pub(crate) fn begin(&self, queue: QueueRef, node: u16) {
        let depth = self.depth.load(Ordering::Relaxed);
        let place = self.place(depth);
        place.queue.store(queue.address().as_ptr(), Ordering::Relaxed);
        place.node.store(node.into(), Ordering::Relaxed);
        place.turn.store(place.turn.load(Ordering::Relaxed) + 1, Ordering::Release);
        self.depth.store(depth + 1, Ordering::Relaxed);
    }

    /// Shows that the innermost one has ended.
    pub(crate) fn end(&self) {
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        let place = self.place(depth);
        place.turn.store(place.turn.load(Ordering::Relaxed) + 1, Ordering::Release);
        self.depth.store(depth, Ordering::Relaxed);
    }

    fn place(&self, depth: usize) -> &Nested {
        let first = self.first.get_or_init(Box::default);
        let part = (0..depth / LEN).fold(first, |part, _| part.next.get_or_init(Box::default));
        &part.places[depth % LEN]
    }

    /// Those that run, and places where one ran.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Nested> {
        let parts = std::iter::successors(self.first.get(), |part| part.next.get());
        parts.flat_map(|part| &part.places)
    }
}
