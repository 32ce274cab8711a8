//! A closure on its way to a worker, in one cache line with its slot's sequence number.
//!
//! Closures of up to four words travel inside the job; larger ones are boxed.

#![expect(unsafe_code, reason = "closures are stored without their types")]

use std::mem::MaybeUninit;

use tollgate_topology::CpuId;
use tollgate_wakequeue::{ItemCell, ShardId};

use crate::queue_ref::QueueRef;

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
    queue: QueueRef,
    pub(crate) tag: Tag,
    consume: unsafe fn(*mut Payload, Use),
}

/// What the queue noted on the job, in one word: with fields of their own, the spare values of the
/// smallest become the mark of an empty `Option<Job>`, and moving a job then splits the word in two
/// unaligned parts, which cost 12 cycles at every move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

const TURN: u64 = 1 << 8;
const COUNTED: u64 = 1 << 9;
const SHARD_SHIFT: u32 = 16;
const CPU_SHIFT: u32 = 32;
const NODE_SHIFT: u32 = 48;

impl Tag {
    /// The phase under which the job was counted in (see `in_flight`), the shard it was placed in,
    /// the CPU that it was issued on, and the index of the node whose limit it counts against.
    #[inline]
    pub(crate) fn new(phase: u8, shard: ShardId, cpu: CpuId, node: u16) -> Self {
        // CPU numbers stay below `MAX_CPUS`.
        let cpu = u64::from(cpu.0 & 0xffff);
        Self(
            u64::from(phase)
                | u64::from(shard.0) << SHARD_SHIFT
                | cpu << CPU_SHIFT
                | u64::from(node) << NODE_SHIFT,
        )
    }

    /// Of something that is no job of a queue.
    pub(crate) fn none() -> Self {
        Self(0)
    }

    #[inline]
    pub(crate) fn phase(self) -> u8 {
        u8::from(self.0 & 1 == 1)
    }

    /// Whether the job is the turn of its queue's sequence, its payload empty.
    #[inline]
    pub(crate) fn is_turn(self) -> bool {
        self.0 & TURN != 0
    }

    /// Whether the job waited for its queue's limit and is counted as running already.
    #[inline]
    pub(crate) fn is_counted(self) -> bool {
        self.0 & COUNTED != 0
    }

    pub(crate) fn counted(self) -> Self {
        Self(self.0 | COUNTED)
    }

    pub(crate) fn not_counted(self) -> Self {
        Self(self.0 & !COUNTED)
    }

    #[inline]
    pub(crate) fn shard(self) -> ShardId {
        ShardId(field(self.0, SHARD_SHIFT))
    }

    #[inline]
    pub(crate) fn cpu(self) -> CpuId {
        CpuId(field(self.0, CPU_SHIFT).into())
    }

    #[inline]
    pub(crate) fn node(self) -> u16 {
        field(self.0, NODE_SHIFT)
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each field is 16 bits wide")]
fn field(word: u64, shift: u32) -> u16 {
    (word >> shift) as u16
}

// SAFETY: `Job::new` takes only `Send` closures, and a `QueueRef` is to a `Sync` value that
// outlives every job.
unsafe impl Send for Job {}

impl Job {
    #[inline]
    pub(crate) fn new<F>(queue: QueueRef, tag: Tag, closure: F) -> Self
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
        Self { payload, consume, queue, tag }
    }

    /// The right to run the next jobs of a sequence.
    pub(crate) fn turn(queue: QueueRef, shard: ShardId, cpu: CpuId) -> Self {
        let tag = Tag(Tag::new(0, shard, cpu, 0).0 | TURN);
        let payload = [const { MaybeUninit::uninit() }; WORDS];
        Self { payload, consume: consume_nothing, queue, tag }
    }

    /// Runs the closure where it lies. A panic in it unwinds through here.
    ///
    /// # Panics
    /// If there is no job in the cell.
    #[inline]
    pub(crate) fn run(cell: &mut ItemCell<Self>) {
        let job = cell.release();
        let job = job.expect("a job runs once").as_ptr();
        // SAFETY: the cell gave the job up to us and is not touched meanwhile. `consume` belongs to
        // this payload (set together in `new`) and uses it up.
        unsafe { ((*job).consume)(&raw mut (*job).payload, Use::Run) }
    }

    #[inline]
    pub(crate) fn queue(&self) -> QueueRef {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_tag_keeps_what_it_is_given() {
        let tag = Tag::new(1, ShardId(4095), CpuId(8191), 63).counted();
        assert_eq!((tag.phase(), tag.shard(), tag.cpu()), (1, ShardId(4095), CpuId(8191)));
        assert_eq!((tag.node(), tag.is_turn(), tag.is_counted()), (63, false, true));
        assert!(!tag.not_counted().is_counted());
    }
}
