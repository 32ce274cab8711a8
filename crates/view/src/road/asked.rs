//! Requests that need buffers, and may have to wait for them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use rustix::io::Errno;
use tollgate_fuse::Caller;
use tollgate_hugepage::Pool;

use super::gather::{Answer, Gather, Pieces, Reading};
use super::memory::{Memory, Part, Room};
use super::rooms::{Asking, Hall, Rooms, Wait};
use super::running::Starter;
use crate::content::Content;
use crate::content::asker::asked_by;
use crate::mapped::{Reading as PagesReading, WriteReply};

/// A read, with all that it takes to go on without the thread that received it.
pub(super) struct ToRead {
    pub(super) request: Asking,
    pub(super) content: Arc<dyn Content>,
    /// A room for each is needed.
    pub(super) parts: Vec<Range<u64>>,
    /// Held until they are made.
    pub(super) reading: Option<Arc<PagesReading>>,
    pub(super) caller: Caller,
    pub(super) starter: Starter,
    pub(super) pool: Pool,
    pub(super) reply: Reading,
}

impl Wait for ToRead {
    fn request(&self) -> Asking {
        self.request
    }

    fn is_interrupted(&self) -> bool {
        self.reply.interrupted()
    }

    fn go_on(self, rooms: Rooms) {
        let Self { content, parts, reading, caller, starter, pool, reply, .. } = self;
        let gather = Gather::new(reply, parts.len());
        for (index, (part, right)) in parts.into_iter().zip(rooms).enumerate() {
            let (content, slot) = (Arc::clone(&content), gather.slot(index));
            let room = Room::new(right, &pool);
            let length = usize::try_from(part.end - part.start).unwrap_or(usize::MAX);
            let read = move || asked_by(caller, || content.read(part, room));
            let reading = reading.clone();
            starter.run(move || {
                let made = read();
                drop(reading);
                slot.deliver(made, length);
            });
        }
    }

    fn end(self) {
        self.reply.error(Errno::INTR);
    }
}

/// A read that is answered from what was made ahead of it. Where that fails, it is made by itself: what
/// cannot be made may be behind what was asked for.
pub(super) struct ToShow {
    pub(super) asked: ToRead,
    pub(super) hall: Arc<Hall>,
}

impl Answer for ToShow {
    type Piece = (Arc<Part>, Range<usize>);

    fn answer(self, pieces: Result<Pieces<Self::Piece>, Errno>) {
        match pieces {
            Ok(pieces) => self.asked.reply.answer(Ok(pieces)),
            Err(_) => self.hall.enter(self.asked.parts.len(), self.asked),
        }
    }
}

/// A write: its thread has the data, and waits.
pub(super) struct ToWrite {
    request: Asking,
    reply: Writing,
    give: SyncSender<(Writing, Rooms)>,
}

type Writing = WriteReply<'static>;

impl ToWrite {
    /// Waits for a buffer. `None`: the caller is killed, and the request answered.
    pub(super) fn wait(
        memory: &Memory,
        request: Asking,
        reply: Writing,
    ) -> Option<(Writing, Room)> {
        let (give, take) = sync_channel(1);
        memory.hall().enter(1, Self { request, reply, give });
        let (reply, right) = take.recv().ok()?;
        Some((reply, Room::new(right, memory.pool())))
    }
}

impl Wait for ToWrite {
    fn request(&self) -> Asking {
        self.request
    }

    fn is_interrupted(&self) -> bool {
        self.reply.interrupted()
    }

    fn go_on(self, rooms: Rooms) {
        // Who asked waits for it, above.
        let _ = self.give.send((self.reply, rooms));
    }

    fn end(self) {
        self.reply.error(Errno::INTR);
    }
}
