//! Buffers: all that is computed for requests, and read ahead for streams, lies in at most
//! [`BUFFERS`] of them. Who may have one has its [`Room`].

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tollgate_hugepage::state::Taken;
use tollgate_hugepage::{Buffer, Error, Filling, Pool, Prefault};

use super::killed::is_killed;
use super::rooms::{Hall, Rooms};

/// Buffers of a view.
pub(crate) const BUFFERS: usize = 28;
/// Bytes of each: the largest request, with what masking looks at around it. All together are
/// 31.5 MiB.
const BUFFER_BYTES: usize = (1 << 20) + (128 << 10);
/// Buffers that are left for requests when streams read ahead.
const FOR_REQUESTS: usize = 8;

/// The pool and who waits for it.
pub(crate) struct Memory {
    pool: Pool,
    hall: Arc<Hall>,
}

impl Memory {
    pub(super) fn new() -> Result<Self, Error> {
        let pool = Pool::builder()
            .class(BUFFER_BYTES, BUFFERS)
            .prefault(Prefault::Lazy)
            .backed_at_start(0)
            .build()?;
        Ok(Self { pool, hall: Hall::new(BUFFERS, FOR_REQUESTS, is_killed, end_killed_later) })
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Who has a room has a buffer.
    pub(super) fn hall(&self) -> &Arc<Hall> {
        &self.hall
    }

    /// Room for a buffer that is read ahead, or whose stream has another way if there is none.
    pub(super) fn room_ahead(&self) -> Option<Room> {
        self.hall.room_ahead().map(|right| Room::new(right, &self.pool))
    }

    /// Gives up all that was read ahead, and the memory of free buffers.
    pub(super) fn trim(&self) {
        self.hall.give_all_up();
        if let Err(error) = self.pool.trim(Duration::ZERO) {
            tracing::debug!(%error, "buffers keep their memory");
        }
    }
}

/// Looks on a thread of its own, which waits for nothing, as long as somebody who had a signal waits for
/// buffers: work queues may be full of what holds these.
fn end_killed_later(hall: &Arc<Hall>) {
    /// So long may somebody who is killed wait.
    const AGAIN: Duration = Duration::from_millis(50);
    let watched = Arc::clone(hall);
    let look = move || {
        std::thread::sleep(AGAIN);
        while watched.end_killed() {
            std::thread::sleep(AGAIN);
        }
    };
    let builder = std::thread::Builder::new().name("tollgate-killed".to_owned());
    if let Err(error) = builder.spawn(look) {
        tracing::warn!(%error, "no thread looks for who is killed while it waits for a buffer");
        hall.end_killed();
    }
}

/// The right to one buffer.
pub(crate) struct Room {
    pool: Pool,
    _right: Rooms,
}

impl Room {
    /// Most bytes of a file that a part shows.
    pub(crate) const MOST: u64 = 1 << 20;

    /// Of one room of the hall.
    pub(super) fn new(right: Rooms, pool: &Pool) -> Self {
        Self { pool: pool.clone(), _right: right }
    }

    /// A buffer of `bytes` bytes to fill from its start.
    pub(crate) fn to_fill(&self, bytes: usize) -> Result<Filling, Errno> {
        self.pool.take_to_fill(bytes).map_err(|error| errno_of(&error))
    }

    /// A buffer of `bytes` zeroes.
    pub(crate) fn zeroed(&self, bytes: usize) -> Result<Buffer<Taken>, Errno> {
        self.pool.take(bytes).map_err(|error| errno_of(&error))
    }

    /// A buffer with `data` in it.
    pub(super) fn filled(&self, data: &[u8]) -> Result<Buffer<Taken>, Errno> {
        if data.is_empty() {
            return self.zeroed(1);
        }
        self.pool.take_filled(data).map_err(|error| errno_of(&error))
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
    use parking_lot::Mutex;

    use super::*;
    use crate::road::rooms::Ahead;

    /// Something read ahead that is done.
    struct Done(Mutex<Option<Arc<Part>>>);

    impl Ahead for Done {
        fn give_up(&self) -> Option<Arc<dyn Send + Sync>> {
            self.0.lock().take().map(|part| part as Arc<dyn Send + Sync>)
        }
    }

    fn ahead(memory: &Memory) -> Option<Arc<dyn Ahead>> {
        let part = Part::end(memory.room_ahead()?);
        let done: Arc<dyn Ahead> = Arc::new(Done(Mutex::new(Some(Arc::new(part)))));
        memory.hall().may_be_given_up(&done);
        Some(done)
    }

    fn rooms(memory: &Memory) -> Vec<Room> {
        std::iter::from_fn(|| memory.room_ahead()).collect()
    }

    #[test]
    fn a_buffer_shows_nothing_of_who_had_it_before() {
        let memory = Memory::new().unwrap();
        for _ in 0..BUFFERS {
            let room = memory.room_ahead().unwrap();
            drop((room.filled(&[7; 100_000]).unwrap(), room));
        }
        let rooms = rooms(&memory);
        assert_eq!(rooms.len(), BUFFERS - FOR_REQUESTS);
        let buffers = rooms.iter().map(|room| room.zeroed(200_000).unwrap());
        assert!(buffers.into_iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn what_is_trimmed_can_be_had_again() {
        let memory = Memory::new().unwrap();
        let kept = ahead(&memory).unwrap();
        let room = memory.room_ahead().unwrap();
        drop(room.filled(&[7; 100]).unwrap());
        memory.trim();
        assert!(kept.give_up().is_none());
        assert_eq!(&room.filled(b"again").unwrap()[..], b"again");
    }
}
