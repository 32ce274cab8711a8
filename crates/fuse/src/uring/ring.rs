//! io_uring, as far as FUSE needs it.
#![expect(unsafe_code, reason = "submission queue entries carry pointers")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use zerocopy::{Immutable, IntoBytes};

use crate::uring::entry::Entry;
use crate::uring::unavailable::UringUnavailable;

/// `FUSE_IO_URING_CMD_REGISTER`.
const CMD_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const CMD_COMMIT_AND_FETCH: u32 = 2;
/// Marks the completion of the eventfd's poll.
const WAKE: u64 = u64::MAX;
/// Marks the completion of a tick.
const TICK: u64 = u64::MAX - 1;
/// After how long a tick completes.
static TICK_AFTER: types::Timespec = types::Timespec::new().nsec(2_000_000);

/// `struct fuse_uring_cmd_req`, at the start of a submission's command area.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct CmdReq {
    flags: u64,
    commit_id: u64,
    qid: u16,
    padding: [u8; 6],
}

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The eventfd was written.
    Wake,
    /// Two milliseconds have passed.
    Tick,
    /// The entry holds a request, or its last command failed.
    Entry(usize, Result<(), i32>),
}

/// One ring. Made by one thread, and used by the thread that calls [`Ring::enable`].
pub(crate) struct Ring {
    ring: IoUring<Entry128>,
    eventfd: RawFd,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("fd", &self.ring.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for `entries` entries, more of which may be added, which `eventfd` wakes; disabled until [`Ring::enable`].
    pub(crate) fn new(entries: usize, eventfd: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::<Entry128>::builder()
            .dontfork()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(Self::size(entries))?;
        Ok(Self { ring, eventfd: eventfd.as_raw_fd() })
    }

    /// Submission queue entries: one for each ring entry that there is from the start, one for the
    /// eventfd, one for a tick, and one for a spare entry.
    fn size(entries: usize) -> u32 {
        u32::try_from(entries + 3).unwrap_or(u32::MAX).next_power_of_two()
    }

    /// Memory that the kernel counts as locked for a ring of `entries` entries: 128 bytes for each
    /// submission, two completions of 16 bytes and one index of 4 for each, and the ring's head,
    /// each of the two areas in whole pages.
    pub(crate) fn locked_bytes(entries: usize) -> u64 {
        const HEAD_BYTES: u64 = 320;
        let size = u64::from(Self::size(entries));
        (size * 128).next_multiple_of(4096) + (size * 36 + HEAD_BYTES).next_multiple_of(4096)
    }

    /// Binds the ring to the calling thread and to `device`.
    pub(crate) fn enable(&mut self, device: RawFd) -> Result<(), UringUnavailable> {
        let failed = |call| move |error| UringUnavailable::system(call, &error);
        let submitter = self.ring.submitter();
        submitter.register_enable_rings().map_err(failed("IORING_REGISTER_ENABLE_RINGS"))?;
        submitter.register_files(&[device]).map_err(failed("IORING_REGISTER_FILES"))
    }

    /// Queues the registration of `entry`, which is number `index`. `vectors` must live until the
    /// next [`Ring::submit`] has returned.
    ///
    /// # Safety
    /// `vectors` are the entry's, and the entry outlives the ring's use.
    pub(crate) unsafe fn push_register(
        &mut self,
        index: usize,
        entry: &Entry,
        vectors: &[libc::iovec],
    ) {
        let command = CmdReq { flags: 0, commit_id: 0, qid: entry.queue, padding: [0; 6] };
        let mut sqe = command_entry(CMD_REGISTER, &command, index);
        set_vectors(&mut sqe, vectors);
        // SAFETY: the caller keeps the vectors alive for the submission and the entry for the ring.
        unsafe { self.push(&sqe) };
    }

    /// Queues a registration without memory, which the kernel refuses. It names the device by its
    /// descriptor, because registering that with the ring may be what failed.
    pub(crate) fn push_refusal(&mut self, device: RawFd, queue: u16) {
        let command = CmdReq { flags: 0, commit_id: 0, qid: queue, padding: [0; 6] };
        let sqe = opcode::UringCmd80::new(types::Fd(device), CMD_REGISTER).cmd(area(&command));
        // SAFETY: it points to nothing.
        unsafe { self.push(&sqe.build()) };
    }

    /// Queues the reply in `entry`, whose memory must hold it, and asks for the next request.
    ///
    /// # Safety
    /// The entry was registered with this ring and outlives its use.
    pub(crate) unsafe fn push_commit(&mut self, index: usize, entry: &Entry, commit_id: u64) {
        let command = CmdReq { flags: 0, commit_id, qid: entry.queue, padding: [0; 6] };
        // SAFETY: the memory was registered and lives, by the caller's promise.
        unsafe { self.push(&command_entry(CMD_COMMIT_AND_FETCH, &command, index)) };
    }

    /// Asks for a completion when the eventfd is written.
    pub(crate) fn push_wake(&mut self) {
        let poll =
            opcode::PollAdd::new(types::Fd(self.eventfd), libc::POLLIN.cast_unsigned().into());
        let sqe = Entry128::from(poll.build()).user_data(WAKE);
        // SAFETY: it points to nothing.
        unsafe { self.push(&sqe) };
    }

    /// Asks for a completion after two milliseconds.
    pub(crate) fn push_tick(&mut self) {
        let sqe = Entry128::from(opcode::Timeout::new(&TICK_AFTER).build()).user_data(TICK);
        // SAFETY: the time that it points to lives for ever.
        unsafe { self.push(&sqe) };
    }

    /// # Safety
    /// What the entry points to is valid until the kernel is done with it.
    unsafe fn push(&mut self, sqe: &Entry128) {
        // SAFETY: by the caller's promise.
        let pushed = unsafe { self.ring.submission().push(sqe) };
        assert!(pushed.is_ok(), "pushed without asking whether there is room");
    }

    /// How much can be queued before the next submission, places for the eventfd and a tick apart.
    pub(crate) fn room(&mut self) -> usize {
        let submission = self.ring.submission();
        (submission.capacity() - submission.len()).saturating_sub(2)
    }

    /// Submits all that is queued. After an error a part of it may have been submitted.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.enter_until_all_is_taken(|ring, _| ring.submit())
    }

    /// As [`submit`](Self::submit), and lets the kernel deliver what has completed.
    pub(crate) fn submit_and_look(&mut self) -> io::Result<()> {
        let flags = io_uring::EnterFlags::GETEVENTS.bits();
        self.enter_until_all_is_taken(|ring, queued| {
            // SAFETY: no argument is passed along.
            unsafe { ring.submitter().enter::<libc::sigset_t>(queued, 0, flags, None) }
        })
    }

    /// As [`submit`](Self::submit), and waits for a completion.
    pub(crate) fn submit_and_wait(&mut self) -> io::Result<()> {
        self.enter_until_all_is_taken(|ring, _| ring.submit_and_wait(1))
    }

    /// Enters the kernel once, and again while that leaves something queued: it stops behind what it
    /// cannot begin, and where it has no memory for the next one. Only the last call looks or waits.
    fn enter_until_all_is_taken(
        &mut self,
        enter: impl Fn(&IoUring<Entry128>, u32) -> io::Result<usize>,
    ) -> io::Result<()> {
        loop {
            let queued = self.ring.submission().len();
            let taken = enter(&self.ring, u32::try_from(queued).unwrap_or(u32::MAX))?;
            if taken >= queued {
                return Ok(());
            }
            if taken == 0 {
                return Err(rustix::io::Errno::AGAIN.into());
            }
        }
    }

    /// Whether the kernel keeps completions for which the queue had no room. It fills the queue with them
    /// when it is entered.
    pub(crate) fn has_overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// The next completion that has arrived.
    pub(crate) fn completion(&mut self) -> Option<Completion> {
        let cqe = self.ring.completion().next()?;
        match cqe.user_data() {
            WAKE => return Some(Completion::Wake),
            TICK => return Some(Completion::Tick),
            _ => {}
        }
        let index = usize::try_from(cqe.user_data()).unwrap_or(usize::MAX);
        let result = if cqe.result() < 0 { Err(-cqe.result()) } else { Ok(()) };
        Some(Completion::Entry(index, result))
    }
}

fn command_entry(op: u32, command: &CmdReq, index: usize) -> Entry128 {
    // The device is file 0 of the ring's table.
    let sqe = opcode::UringCmd80::new(types::Fixed(0), op).cmd(area(command)).build();
    sqe.user_data(index as u64)
}

/// The command area of a submission.
fn area(command: &CmdReq) -> [u8; 80] {
    let mut area = [0; 80];
    area[..size_of::<CmdReq>()].copy_from_slice(command.as_bytes());
    area
}

/// Sets `addr` and `len` of a submission, for which the builder of commands has no room.
fn set_vectors(sqe: &mut Entry128, vectors: &[libc::iovec]) {
    /// Offsets in `struct io_uring_sqe`.
    const ADDR: usize = 16;
    const LEN: usize = 24;
    const { assert!(size_of::<Entry128>() == 128) };
    let base = std::ptr::from_mut(sqe).cast::<u8>();
    let len = u32::try_from(vectors.len()).unwrap_or(u32::MAX);
    // SAFETY: an entry has the layout of the kernel's structure (`repr(C)`, 128 bytes, checked
    // above), and both fields are plain integers at aligned offsets within it.
    unsafe {
        base.add(ADDR).cast::<u64>().write(vectors.as_ptr() as u64);
        base.add(LEN).cast::<u32>().write(len);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use io_uring::squeue::Flags;

    use super::*;

    /// The kernel begins nothing behind what it refuses, until it is entered again.
    #[test]
    fn all_is_submitted_behind_what_the_kernel_refuses() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut ring = match Ring::new(5, eventfd.as_fd()) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("skipped: no io_uring: {error}"),
        };
        ring.ring.submitter().register_enable_rings().unwrap();
        let ways: [fn(&mut Ring) -> io::Result<()>; 3] =
            [Ring::submit, Ring::submit_and_look, Ring::submit_and_wait];
        for way in ways {
            for (number, refused) in [true, false, true, false].into_iter().enumerate() {
                let nop = Entry128::from(opcode::Nop::new().build()).user_data(number as u64);
                // There is no buffer that it could be given.
                let flags = if refused { Flags::BUFFER_SELECT } else { Flags::empty() };
                // SAFETY: it points to nothing.
                unsafe { ring.push(&nop.flags(flags)) };
            }
            way(&mut ring).unwrap();
            assert_eq!(ring.ring.submission().len(), 0);
            ring.submit_and_look().unwrap();
            let completed: Vec<_> = std::iter::from_fn(|| ring.completion()).collect();
            let is_right = |(number, completion): (usize, &Completion)| match completion {
                Completion::Entry(index, result) => {
                    *index == number && result.is_err() == (number % 2 == 0)
                }
                _ => false,
            };
            assert!(completed.iter().enumerate().all(is_right), "{completed:?}");
            assert_eq!(completed.len(), 4);
        }
    }
}
