//! What long backlogs took is given back when they are gone.

#![cfg(not(miri))]
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_workqueue::{Queue, Runtime, blocking};

/// The system's allocator, and how many bytes are allocated.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator and counts beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ITEMS: usize = 60_000;
/// At least, for each item that waits in a list.
const BYTES_PER_ITEM: usize = 48;
/// What workers, their stacks' bookkeeping and short lists may keep.
const SMALL: usize = 1 << 20;

/// Who fills a queue while its first item waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filler {
    Outside,
    /// The item itself: what it queues without room goes to a list beside the FIFO.
    Inside,
}

/// One after the other, because all count together.
#[test]
fn lists_of_every_kind_are_given_back() {
    let runtime = Runtime::builder().shard_capacity(16).max_workers(1).build().unwrap();
    grows_and_shrinks(&runtime.queue("plain").build().unwrap(), Filler::Inside);
    let runtime = Runtime::builder().shard_capacity(16).build().unwrap();
    let backlog = |name| runtime.queue(name).backlog(3 * ITEMS);
    grows_and_shrinks(&backlog("ordered").ordered().build().unwrap(), Filler::Outside);
    grows_and_shrinks(&backlog("limited").max_active(1).build().unwrap(), Filler::Outside);
}

/// Fills a queue, whose backlog takes memory, and empties it, which gives that back.
fn grows_and_shrinks(queue: &Queue, filler: Filler) {
    // Workers and lanes are made once.
    queue.spawn(|| blocking(|| ())).unwrap().wait().unwrap();
    for _ in 0..3 {
        let before = BYTES.load(Ordering::Relaxed);
        let first = Gate::post(queue, filler);
        if filler == Filler::Outside {
            // Whoever runs an ordered queue takes its list as a whole, and hands the room of the
            // list before back: so there is a second list.
            fill(queue);
            let second = Gate::queue(queue, filler);
            first.open();
            second.wait_for_it();
            fill(queue);
            is_full(queue, before);
            second.open();
        } else {
            is_full(queue, before);
            first.open();
        }
        queue.flush().unwrap();
        // The worker ends its turn after the last item.
        let start = Instant::now();
        while BYTES.load(Ordering::Relaxed) > before + SMALL {
            let (kept, name) = (BYTES.load(Ordering::Relaxed) - before, queue.name());
            assert!(start.elapsed() < Duration::from_secs(60), "{name} keeps {kept} bytes");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_full(queue: &Queue, before: usize) {
    let (full, name) = (BYTES.load(Ordering::Relaxed), queue.name());
    assert!(full > before + ITEMS * BYTES_PER_ITEM, "{name}: {before}, {full} in a list?");
}

/// An item that waits until it is told to go on.
struct Gate {
    open: mpsc::Sender<()>,
    begun: mpsc::Receiver<()>,
}

impl Gate {
    /// Queues it.
    fn queue(queue: &Queue, filler: Filler) -> Self {
        let (open, closed) = mpsc::channel::<()>();
        let (tell, begun) = mpsc::channel();
        let inner = queue.clone();
        let item = move || {
            if filler == Filler::Inside {
                fill(&inner);
            }
            tell.send(()).unwrap();
            let _ = blocking(|| closed.recv());
        };
        queue.post(item).unwrap();
        Self { open, begun }
    }

    /// Queues it, and waits until it runs.
    fn post(queue: &Queue, filler: Filler) -> Self {
        let gate = Self::queue(queue, filler);
        gate.wait_for_it();
        gate
    }

    fn wait_for_it(&self) {
        self.begun.recv().unwrap();
    }

    fn open(self) {
        drop(self.open);
    }
}

fn fill(queue: &Queue) {
    (0..ITEMS).for_each(|_| queue.post(|| ()).unwrap());
}
