//! The road of requests that compute: they leave the transport's thread at once, and run on work
//! queues, near the CPU of the caller, in buffers of a bounded pool.
//!
//! ```text
//!  transport's thread             work queue (`redact`, `seal`)          any of them
//!  asks for room for  ──▶ a part of at most 1 MiB each, beside ──▶ the last part done replies,
//!  each part              each other, in a buffer each            in order, from the buffers
//! ```
//!
//! Where there is no room, a request to read waits without a thread. One to write keeps its thread,
//! which has the data ([`asked`]).
//!
//! A stream that reads on where the request before ended is read ahead ([`stream`]). The threads and
//! the buffers are there from the first such file on, or from the start if the policy has a rule
//! about such files; an idle view gives the memory of the buffers back.

mod asked;
mod cleaning;
mod gather;
mod killed;
pub(crate) mod lane;
pub(crate) mod memory;
#[cfg(all(test, loom))]
mod models;
mod rooms;
mod running;
mod stream;
mod window;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tollgate_fuse::args::Durable;
use tollgate_fuse::{Caller, Reply};
use tollgate_hugepage::wipe;
use tollgate_seal::Task;

use crate::appends::Appends;
use crate::content::asker::asked_by;
use crate::content::{Beside, Content};
use crate::creds::Powers;
use crate::mapped::{Reading, WriteReply};

use asked::{ToRead, ToWrite};
use lane::Lane;
use memory::Room;
pub(crate) use rooms::Asking;
use running::Running;
use stream::Stream;

/// Most parts that one request is cut into.
const PARTS_MAX: u64 = 4;
/// A part is not smaller than this: masking looks at 83 KiB around each.
const PART_MIN: u64 = 256 << 10;

/// Most bytes of a request that is answered on the transport's thread if that needs no wait.
const AT_ONCE_MAX: usize = 16 << 10;

/// An open file, as requests see it.
pub(crate) struct Made {
    pub(crate) content: Arc<dyn Content>,
    stream: Stream,
}

impl Made {
    pub(crate) fn new(content: Arc<dyn Content>) -> Self {
        Self { content, stream: Stream::default() }
    }
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Made")
    }
}

/// Where in a file a request writes.
pub(crate) enum WriteAt {
    Offset(u64),
    /// At its end, which the kernel takes to be at `offset`. A request holds at most `most` bytes.
    End {
        appends: Arc<Appends>,
        offset: u64,
        most: u64,
    },
}

impl WriteAt {
    /// As [`Content::write`].
    fn write(
        &self,
        content: &dyn Content,
        data: &mut [u8],
        beside: &Beside<'_>,
    ) -> Result<usize, Errno> {
        match self {
            WriteAt::Offset(offset) => content.write(data, *offset, beside),
            WriteAt::End { appends, offset, .. } => {
                let write = |end| content.write(data, end, beside);
                appends.append_now(|| content.size(), *offset, write)
            }
        }
    }

    /// Waits for what is to be written before, on the thread that received the request: those of a queue are
    /// few, and would wait for what is queued behind them.
    fn wait(&self, content: &dyn Content) {
        if let WriteAt::End { appends, offset, most } = self {
            // An error comes back from the write.
            let _ = appends.wait((*offset, *most), || content.size());
        }
    }

    /// As [`Content::write_at_once`].
    fn write_at_once(&self, content: &dyn Content, data: &[u8]) -> Option<usize> {
        match self {
            WriteAt::Offset(offset) => content.write_at_once(data, *offset),
            WriteAt::End { appends, offset, most } => {
                let write = |end| content.write_at_once(data, end);
                appends.append_at_once((*offset, *most), || content.size(), write)
            }
        }
    }
}

/// Work queues and buffers of one view.
pub(crate) struct Road {
    running: OnceLock<Option<Running>>,
    powers: Powers,
}

impl Road {
    pub(crate) fn new(powers: Powers) -> Self {
        Self { running: OnceLock::new(), powers }
    }

    /// The queues and buffers, started if they are not yet.
    ///
    /// # Errors
    /// `ENOMEM` if they could not be started.
    pub(crate) fn start(&self) -> Result<&Running, Errno> {
        let start = || match Running::start(self.powers.clone()) {
            Ok(running) => Some(running),
            Err(error) => {
                tracing::error!(%error, "no work queues: redacted and sealed files are refused");
                None
            }
        };
        self.running.get_or_init(start).as_ref().ok_or(Errno::NOMEM)
    }

    /// The same for a request, which gets the error if there are none.
    fn start_for<'r, T: ?Sized>(&self, reply: Reply<'r, T>) -> Option<(&Running, Reply<'r, T>)> {
        match self.start() {
            Ok(running) => Some((running, reply)),
            Err(errno) => {
                reply.error(errno);
                None
            }
        }
    }

    /// The same for a write.
    fn start_for_write<'r>(&self, reply: WriteReply<'r>) -> Option<(&Running, WriteReply<'r>)> {
        match self.start() {
            Ok(running) => Some((running, reply)),
            Err(errno) => {
                reply.error(errno);
                None
            }
        }
    }

    /// The work queues, if they run.
    pub(crate) fn runtime(&self) -> Option<&tollgate_workqueue::Runtime> {
        self.running.get()?.as_ref().map(Running::runtime)
    }

    /// The caller of request `unique` got a signal.
    pub(crate) fn interrupted(&self, unique: u64) {
        if let Some(Some(running)) = self.running.get() {
            running.memory().hall().interrupted(unique);
        }
    }

    /// Answers a request to read `range` of `file`. Pages for mappings are held as `reading` until they are made.
    pub(crate) fn read(
        &self,
        file: &Arc<Made>,
        range: Range<u64>,
        reading: Option<Reading>,
        (request, caller): (Asking, Caller),
        reply: Reply<'_, [u8]>,
    ) {
        let Some((running, reply)) = self.start_for(reply) else { return };
        let content = &file.content;
        let asked = |reply: Reply<'_, [u8]>, reading| ToRead {
            request,
            content: Arc::clone(content),
            parts: parts_of(&range, running.idle_cpus()),
            reading,
            caller,
            starter: running.starter(content.lane()),
            pool: running.memory().pool().clone(),
            reply: reply.detach(),
        };
        let reply = match &reading {
            // What was made ahead may be from before a write that they must show.
            Some(_) => Err(reply),
            None => {
                let alone = |reply| asked(reply, None);
                file.stream.read(running, content, (range.clone(), caller), (reply, alone))
            }
        };
        let Err(reply) = reply else { return };
        let Some(reply) = read_at_once(file, &range, reply) else { return };
        running.keep_trimmed();
        let asked = asked(reply, reading.map(Arc::new));
        running.memory().hall().enter(asked.parts.len(), asked);
    }

    /// Answers a request to write.
    pub(crate) fn write(
        &self,
        file: &Arc<Made>,
        (data, place, durable): (&[u8], WriteAt, Durable),
        (request, caller): (Asking, Caller),
        reply: WriteReply<'_>,
    ) {
        if data.len() <= AT_ONCE_MAX {
            let write = || place.write_at_once(&*file.content, data).ok_or(Errno::AGAIN);
            if let Ok(written) = self.powers.as_caller(caller, write) {
                return self.answer_written(file, (written, durable), caller, reply);
            }
        }
        let Some((running, reply)) = self.start_for_write(reply) else { return };
        running.keep_trimmed();
        place.wait(&*file.content);
        let Some((reply, room)) = ToWrite::wait(running.memory(), request, reply.detach()) else {
            return;
        };
        let mut buffer = match room.filled(data) {
            Ok(buffer) => buffer,
            Err(errno) => {
                reply.error(errno);
                return;
            }
        };
        let (content, powers) = (Arc::clone(&file.content), self.powers.clone());
        let (queue, io) = (running.queue(content.lane()).clone(), running.starter(Lane::Io));
        let ways = parts_of(&(0..data.len() as u64), running.idle_cpus()).len();
        running.run(content.lane(), move || {
            let as_caller = |task: &mut Task<'_>| {
                let done = powers.as_caller(caller, || {
                    task();
                    Ok(())
                });
                if let Err(error) = done {
                    tracing::debug!(%error, "a part of a write is not done");
                }
            };
            let run = |tasks: &mut [Task<'_>]| match tasks {
                [task] => as_caller(task),
                _ => queue.for_each_mut(tasks, 1, as_caller),
            };
            let beside = Beside { ways, run: &run };
            let written = asked_by(caller, || place.write(&*content, &mut buffer, &beside));
            drop((buffer, room));
            match (written, durable) {
                (Ok(written), Durable::Data | Durable::All) => {
                    let data_only = durable == Durable::Data;
                    io.run(move || {
                        reply.send(committed(&*content, data_only, caller, written));
                    });
                }
                (written, _) => {
                    reply.send(written.and_then(counted));
                }
            }
        });
    }

    /// Answers a write that was done on the transport's thread, when it is durable.
    fn answer_written(
        &self,
        file: &Made,
        (written, durable): (usize, Durable),
        caller: Caller,
        reply: WriteReply<'_>,
    ) {
        if durable == Durable::Later {
            reply.send(counted(written));
            return;
        }
        let Some((running, reply)) = self.start_for_write(reply) else { return };
        let (reply, content) = (reply.detach(), Arc::clone(&file.content));
        let data_only = durable == Durable::Data;
        running.run(Lane::Io, move || {
            reply.send(committed(&*content, data_only, caller, written));
        });
    }

    /// Answers a request for the next data or hole: what is there has to be looked at for that.
    pub(crate) fn seek(
        &self,
        file: &Arc<Made>,
        to: SeekFrom,
        caller: Caller,
        reply: Reply<'_, u64>,
    ) {
        let Some((running, reply)) = self.start_for(reply) else { return };
        let (reply, content) = (reply.detach(), Arc::clone(&file.content));
        running.run(content.lane(), move || {
            reply.send(asked_by(caller, || content.seek(to)));
        });
    }

    /// Answers a request to make a file durable.
    pub(crate) fn commit(
        &self,
        file: &Arc<Made>,
        data_only: bool,
        caller: Caller,
        reply: Reply<'_, ()>,
    ) {
        let Some((running, reply)) = self.start_for(reply) else { return };
        let (reply, content) = (reply.detach(), Arc::clone(&file.content));
        running.run(Lane::Io, move || {
            let commit = || asked_by(caller, || content.commit(data_only));
            reply.send(tollgate_workqueue::blocking(commit));
        });
    }
}

/// The answer to a write of which nothing is missing any more.
fn counted(written: usize) -> Result<u32, Errno> {
    u32::try_from(written).map_err(|_| Errno::IO)
}

/// Makes a write durable, on a worker: the answer to it. As write(2) has it, bytes that were written
/// and did not become durable are an error.
fn committed(
    content: &dyn Content,
    data_only: bool,
    caller: Caller,
    written: usize,
) -> Result<u32, Errno> {
    let commit = || asked_by(caller, || content.commit(data_only));
    tollgate_workqueue::blocking(commit)?;
    counted(written)
}

/// Answers a small read that needs no wait; else gives the reply back. A hand-over to a worker and
/// a buffer of the pool cost several times what decrypting a block does.
fn read_at_once<'q>(
    file: &Made,
    range: &Range<u64>,
    reply: Reply<'q, [u8]>,
) -> Option<Reply<'q, [u8]>> {
    thread_local!(static PLAIN: RefCell<Box<[u8; AT_ONCE_MAX]>> = RefCell::new(Box::new([0; _])));
    let length = usize::try_from(range.end - range.start).ok();
    let Some(length) = length.filter(|length| *length <= AT_ONCE_MAX) else { return Some(reply) };
    PLAIN.with_borrow_mut(|buffer| {
        let buffer = &mut buffer[..length];
        let reply = match file.content.read_at_once(buffer, range.start) {
            Some(read) => {
                reply.data(&buffer[..read]);
                None
            }
            None => Some(reply),
        };
        wipe(buffer);
        reply
    })
}

/// `range` in as many parts as `cpus` can work on, if each is worth it. Where many streams keep all
/// CPUs busy, parts cost more than they bring.
fn parts_of(range: &Range<u64>, cpus: u64) -> Vec<Range<u64>> {
    let length = range.end.saturating_sub(range.start);
    let count = (length / PART_MIN).clamp(1, PARTS_MAX.min(cpus)).max(length.div_ceil(Room::MOST));
    let step = length.div_ceil(count).next_multiple_of(4096);
    let starts = (0..count).map(|part| range.start.saturating_add(part * step));
    let parts = starts.map(|start| start..start.saturating_add(step).min(range.end));
    parts.filter(|part| part.start < part.end || length == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_and_none_is_too_large() {
        for length in [1, 4096, 300 << 10, 1 << 20, (1 << 20) + 1, 5 << 20] {
            for cpus in [1, 2, 64] {
                let range = 1000..1000 + length;
                let parts = parts_of(&range, cpus);
                assert_eq!((parts[0].start, parts.last().unwrap().end), (1000, range.end));
                assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
                assert!(parts.iter().all(|part| part.end - part.start <= Room::MOST));
            }
        }
        assert_eq!(parts_of(&(0..1 << 20), 1).len(), 1);
        assert_eq!(parts_of(&(0..1 << 20), 64).len(), 4);
        assert_eq!(parts_of(&(7..7), 2).len(), 1, "also of no bytes");
    }
}
