//! Buffers, and the right to have one: all that is computed for requests, and read ahead for
//! streams, lies in at most [`BUFFERS`] buffers.
//!
//! Who needs several gets all of them at once, and holds none while it waits. What was read ahead
//! and is not asked for yet is given up for those who wait.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use tollgate_hugepage::state::Taken;
use tollgate_hugepage::{Buffer, Error, Filling, Pool, Prefault};

/// Buffers of a view.
pub(crate) const BUFFERS: usize = 28;
/// Bytes of each: the largest request, with what masking looks at around it. All together are
/// 31.5 MiB.
const BUFFER_BYTES: usize = (1 << 20) + (128 << 10);
/// Buffers that are left for requests when streams read ahead.
const FOR_REQUESTS: usize = 8;

/// What was made before anybody asked for it.
pub(super) trait Ahead: Send + Sync {
    /// Gives up what is made, if it is. Who replies from it has it still.
    fn give_up(&self) -> Option<Arc<Part>>;
}

/// The pool and who waits for it.
pub(crate) struct Memory {
    pool: Pool,
    state: Mutex<State>,
    /// Room became free, or may be taken from a stream.
    changed: Condvar,
}

struct State {
    free: usize,
    /// Counts what those who wait may have missed.
    changes: u64,
    /// What was read ahead, the oldest first. Never more than there are buffers.
    ahead: VecDeque<Weak<dyn Ahead>>,
}

impl Memory {
    pub(super) fn new() -> Result<Arc<Self>, Error> {
        let pool = Pool::builder()
            .class(BUFFER_BYTES, BUFFERS)
            .prefault(Prefault::Lazy)
            .backed_at_start(0)
            .build()?;
        let state = State { free: BUFFERS, changes: 0, ahead: VecDeque::new() };
        Ok(Arc::new(Self { pool, state: Mutex::new(state), changed: Condvar::new() }))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Room for `count` buffers. Waits until so many are free.
    pub(super) fn rooms(self: &Arc<Self>, count: usize) -> Vec<Room> {
        assert!(count <= FOR_REQUESTS, "{count} of {BUFFERS} buffers");
        let mut state = self.state.lock();
        while state.free < count {
            let seen = state.changes;
            let ahead = state.ahead();
            MutexGuard::unlocked(&mut state, || give_up_oldest(ahead));
            // What changed while nobody looked counts, too.
            if state.free < count && state.changes == seen {
                self.changed.wait(&mut state);
            }
        }
        state.free -= count;
        (0..count).map(|_| Room { memory: Arc::clone(self) }).collect()
    }

    pub(super) fn room(self: &Arc<Self>) -> Room {
        self.rooms(1).pop().expect("one was asked for")
    }

    /// Room for a buffer that is read ahead, or whose stream has another way if there is none.
    pub(super) fn room_ahead(self: &Arc<Self>) -> Option<Room> {
        let mut state = self.state.lock();
        if state.free <= FOR_REQUESTS {
            return None;
        }
        state.free -= 1;
        Some(Room { memory: Arc::clone(self) })
    }

    /// `window` may be given up when somebody needs its room.
    pub(super) fn may_be_given_up(&self, window: &Arc<dyn Ahead>) {
        let mut state = self.state.lock();
        state.ahead.retain(|one| one.strong_count() > 0);
        state.ahead.push_back(Arc::downgrade(window));
    }

    /// A window was made: who waits may take its room.
    pub(super) fn window_is_done(&self) {
        self.change(|_| ());
    }

    /// Gives up all that was read ahead, and the memory of free buffers.
    pub(super) fn trim(&self) {
        let ahead = self.state.lock().ahead();
        ahead.iter().for_each(|window| drop(window.give_up()));
        drop(ahead);
        if let Err(error) = self.pool.trim(Duration::ZERO) {
            tracing::debug!(%error, "buffers keep their memory");
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.changes = state.changes.wrapping_add(1);
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// What is read ahead and still there, the oldest first.
    fn ahead(&mut self) -> Vec<Arc<dyn Ahead>> {
        let all: Vec<_> = self.ahead.iter().filter_map(Weak::upgrade).collect();
        self.ahead.retain(|one| one.strong_count() > 0);
        all
    }
}

/// Gives up the oldest that is done. Its room comes back when the last who replies from it is
/// through. To be called, and to drop the windows, without the lock: their rooms take it.
fn give_up_oldest(ahead: Vec<Arc<dyn Ahead>>) {
    let given = ahead.iter().find_map(|window| window.give_up());
    drop((given, ahead));
}

/// The right to one buffer.
pub(crate) struct Room {
    memory: Arc<Memory>,
}

impl Room {
    /// Most bytes of a file that a part shows.
    pub(crate) const MOST: u64 = 1 << 20;

    /// A buffer of `bytes` bytes to fill from its start.
    pub(crate) fn to_fill(&self, bytes: usize) -> Result<Filling, Errno> {
        self.memory.pool.take_to_fill(bytes).map_err(|error| errno_of(&error))
    }

    /// A buffer of `bytes` zeroes.
    pub(crate) fn zeroed(&self, bytes: usize) -> Result<Buffer<Taken>, Errno> {
        self.memory.pool.take(bytes).map_err(|error| errno_of(&error))
    }

    /// A buffer with `data` in it.
    pub(super) fn filled(&self, data: &[u8]) -> Result<Buffer<Taken>, Errno> {
        if data.is_empty() {
            return self.zeroed(1);
        }
        self.memory.pool.take_filled(data).map_err(|error| errno_of(&error))
    }

    /// Reads at most `most` bytes of `fd` from `offset` behind those that are in `filling`.
    pub(crate) fn read_at(
        &self,
        filling: &mut Filling,
        fd: impl AsFd,
        offset: u64,
        most: usize,
    ) -> Result<usize, Errno> {
        read_into(filling, fd, offset, most)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.memory.change(|state| state.free += 1);
    }
}

/// Bytes of a file, in a buffer.
pub(crate) struct Part {
    /// `None` for no bytes.
    buffer: Option<Buffer<Taken>>,
    shown: Range<usize>,
    /// Given back after the buffer.
    _room: Room,
}

impl Part {
    /// The bytes `shown` of `buffer`.
    pub(crate) fn new(buffer: Buffer<Taken>, shown: Range<usize>, room: Room) -> Self {
        assert!(shown.start <= shown.end && shown.end <= buffer.len(), "{shown:?}");
        Self { buffer: Some(buffer), shown, _room: room }
    }

    /// The file has no bytes there.
    pub(crate) fn end(room: Room) -> Self {
        Self { buffer: None, shown: 0..0, _room: room }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.shown.clone()])
    }
}

/// `EIO` for what the pool says.
fn errno_of(error: &Error) -> Errno {
    match error {
        Error::System { errno, .. } => Errno::from_raw_os_error(errno.0),
        Error::OutOfMemory { .. } => Errno::NOMEM,
        _ => Errno::IO,
    }
}

fn read_into(
    filling: &mut Filling,
    fd: impl AsFd,
    offset: u64,
    most: usize,
) -> Result<usize, Errno> {
    loop {
        match filling.read_at(fd.as_fd(), offset, most) {
            Ok(read) => return Ok(read),
            Err(error) => match errno_of(&error) {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something read ahead that is done.
    struct Done(Mutex<Option<Arc<Part>>>);

    impl Ahead for Done {
        fn give_up(&self) -> Option<Arc<Part>> {
            self.0.lock().take()
        }
    }

    fn ahead(memory: &Arc<Memory>) -> Option<Arc<dyn Ahead>> {
        let part = Part::end(memory.room_ahead()?);
        let done: Arc<dyn Ahead> = Arc::new(Done(Mutex::new(Some(Arc::new(part)))));
        memory.may_be_given_up(&done);
        Some(done)
    }

    #[test]
    fn reading_ahead_leaves_room_for_requests_and_gives_way_to_them() {
        let memory = Memory::new().unwrap();
        let made: Vec<_> = std::iter::from_fn(|| ahead(&memory)).collect();
        assert_eq!(made.len(), BUFFERS - FOR_REQUESTS);
        let mut rooms = Vec::new();
        (0..BUFFERS / 4).for_each(|_| rooms.extend(memory.rooms(4)));
        assert_eq!(rooms.len(), BUFFERS);
        assert!(made.iter().all(|one| one.give_up().is_none()), "all had to go");
    }

    /// Each gets several at a time; a deadlock would hang.
    #[test]
    fn those_who_wait_get_all_at_once() {
        let memory = Memory::new().unwrap();
        let taken = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for count in [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4] {
                let (memory, taken) = (&memory, &taken);
                scope.spawn(move || {
                    for _ in 0..300 {
                        let rooms = memory.rooms(count);
                        let all = taken.fetch_add(count, std::sync::atomic::Ordering::SeqCst);
                        assert!(all + count <= BUFFERS, "{all} and {count}");
                        drop(ahead(memory));
                        taken.fetch_sub(count, std::sync::atomic::Ordering::SeqCst);
                        drop(rooms);
                    }
                });
            }
        });
        assert_eq!(memory.state.lock().free, BUFFERS);
    }

    #[test]
    fn a_buffer_shows_nothing_of_who_had_it_before() {
        let memory = Memory::new().unwrap();
        for _ in 0..BUFFERS {
            let room = memory.room();
            drop((room.filled(&[7; 100_000]).unwrap(), room));
        }
        let rooms: Vec<_> = (0..BUFFERS).map(|_| memory.room()).collect();
        let buffers = rooms.iter().map(|room| room.zeroed(200_000).unwrap());
        assert!(buffers.into_iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn what_is_trimmed_can_be_had_again() {
        let memory = Memory::new().unwrap();
        let kept = ahead(&memory).unwrap();
        let room = memory.room();
        drop(room.filled(&[7; 100]).unwrap());
        memory.trim();
        assert!(kept.give_up().is_none());
        assert_eq!(&room.filled(b"again").unwrap()[..], b"again");
    }
}
