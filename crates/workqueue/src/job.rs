//! A closure on its way to a worker, in one cache line with its slot's sequence number.
//!
//! Closures of up to four words travel inside the job; larger ones are boxed.

#![expect(unsafe_code, reason = "closures are stored without their types")]

use std::mem::MaybeUninit;

use tollgate_wakequeue::ItemCell;

use crate::core::QueueCore;

const WORDS: usize = 4;
type Payload = [MaybeUninit<usize>; WORDS];

/// What to do with a payload. Either way it is used up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Run,
    Drop,
}

/// Something to run once for a queue.
///
/// In this order because moves go in pieces of 16 bytes and an `Option<Job>` is told apart by its
/// function pointer: at the end, it splits no piece. A piece that is stored in two parts and loaded
/// in one, or the other way round, costs 12 cycles.
#[repr(C)]
pub(crate) struct Job {
    payload: Payload,
    /// The queue that this job counts for.
    queue: *const QueueCore,
    pub(crate) tag: Tag,
    consume: unsafe fn(*mut Payload, Use),
}

/// What the queue noted on the job, in one word: with fields of their own, the spare values of the
/// smallest become the mark of an empty `Option<Job>`, and moving a job then splits the word in two
/// unaligned parts, which cost 12 cycles at every move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

const TOKEN: u64 = 1 << 8;
const NODE_SHIFT: u32 = 16;
const CPU_SHIFT: u32 = 32;

impl Tag {
    /// Of a job that runs as it is: the colour under which it was counted (see `tally`), and the
    /// node and CPU that it was issued on.
    #[inline]
    pub(crate) fn direct(colour: u8, node: u16, cpu: u32) -> Self {
        Self(u64::from(colour) | u64::from(node) << NODE_SHIFT | u64::from(cpu) << CPU_SHIFT)
    }

    #[inline]
    pub(crate) fn colour(self) -> u8 {
        u8::from(self.0 & 1 == 1)
    }

    /// Whether the job is the right to run the next one of its queue's gate, its payload empty.
    #[inline]
    pub(crate) fn is_token(self) -> bool {
        self.0 & TOKEN != 0
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the field is 16 bits wide")]
    pub(crate) fn node(self) -> u16 {
        (self.0 >> NODE_SHIFT) as u16
    }

    #[inline]
    pub(crate) fn cpu(self) -> u32 {
        (self.0 >> CPU_SHIFT) as u32
    }

    pub(crate) fn at_node(self, node: u16) -> Self {
        Self::direct(self.colour(), node, self.cpu())
    }
}

// SAFETY: `Job::new` takes only `Send` closures, and the queue pointer is to a `Sync` value that
// outlives every job (`QueueCore::as_ref`).
unsafe impl Send for Job {}

impl Job {
    #[inline]
    pub(crate) fn new<F>(queue: &QueueCore, tag: Tag, closure: F) -> Self
    where
        F: FnOnce() + Send + 'static,
    {
        let mut payload: Payload = [const { MaybeUninit::uninit() }; WORDS];
        let consume = if fits::<F>() {
            // SAFETY: `fits` checked size and alignment of the place; it is written once, and
            // `consume_inline::<F>` is what reads it.
            unsafe { (&raw mut payload).cast::<F>().write(closure) };
            consume_inline::<F> as unsafe fn(*mut Payload, Use)
        } else {
            let boxed = Box::into_raw(Box::new(closure));
            // SAFETY: a thin pointer fits and is aligned; `consume_boxed::<F>` is what reads it.
            unsafe { (&raw mut payload).cast::<*mut F>().write(boxed) };
            consume_boxed::<F>
        };
        Self { payload, consume, queue: std::ptr::from_ref(queue), tag }
    }

    /// A job that stands for the next one of a gate.
    pub(crate) fn token(queue: &QueueCore, node: u16, cpu: u32) -> Self {
        let tag = Tag(Tag::direct(0, node, cpu).0 | TOKEN);
        Self {
            payload: [const { MaybeUninit::uninit() }; WORDS],
            consume: consume_nothing,
            queue: std::ptr::from_ref(queue),
            tag,
        }
    }

    /// Runs the closure where it lies. A panic in it unwinds through here.
    ///
    /// # Panics
    /// If there is no job in the place.
    #[inline]
    pub(crate) fn run(place: &mut ItemCell<Self>) {
        let job = place.release();
        let job = job.expect("a job runs once").as_ptr();
        // SAFETY: the place gave the job up to us and is not touched meanwhile. `consume` belongs to
        // this payload (set together in `new`) and uses it up.
        unsafe { ((*job).consume)(&raw mut (*job).payload, Use::Run) }
    }

    pub(crate) fn queue(&self) -> *const QueueCore {
        self.queue
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // SAFETY: as in `run`; a job that was run is never dropped.
        unsafe { (self.consume)(&raw mut self.payload, Use::Drop) }
    }
}

const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Payload>() && align_of::<F>() <= align_of::<Payload>()
}

/// # Safety
/// `payload` holds an `F` that nobody else will use.
unsafe fn consume_inline<F: FnOnce()>(payload: *mut Payload, purpose: Use) {
    // SAFETY: by contract.
    let closure = unsafe { payload.cast::<F>().read() };
    if purpose == Use::Run {
        closure();
    }
}

/// # Safety
/// `payload` holds a pointer from `Box::<F>::into_raw` that nobody else will use.
unsafe fn consume_boxed<F: FnOnce()>(payload: *mut Payload, purpose: Use) {
    // SAFETY: by contract.
    let closure = unsafe { Box::from_raw(payload.cast::<*mut F>().read()) };
    if purpose == Use::Run {
        closure();
    }
}

/// # Safety
/// None needed: it has the type of its siblings.
unsafe fn consume_nothing(_: *mut Payload, _: Use) {}

const _: () = assert!(size_of::<Job>() <= 56, "a job and its slot's turn share a cache line");
