//! The parts of one reply, made by several threads: whoever brings the last one sends it.
//!
//! Each part has a [`Slot`], which brings exactly one result: what it is given, or `EIO` when it is
//! dropped without (the maker panicked). All is under one lock, so the last is known to be the last.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::Reply;

use super::memory::Part;

/// Bytes of a part, or why there are none.
type Piece = Result<(Arc<Part>, Range<usize>), Errno>;

type Pieces = SmallVec<[(Arc<Part>, Range<usize>); 4]>;

/// A reply that waits for its parts.
#[derive(Clone)]
pub(super) struct Gather(Arc<Mutex<Waiting>>);

struct Waiting {
    /// `None` once it was sent.
    reply: Option<Reply<'static, [u8]>>,
    pieces: SmallVec<[Option<Piece>; 4]>,
    missing: usize,
}

/// The place of one part.
pub(super) struct Slot {
    gather: Gather,
    index: usize,
    done: bool,
}

impl Gather {
    pub(super) fn new(reply: Reply<'static, [u8]>, parts: usize) -> Self {
        assert!(parts > 0, "a reply of no parts would never be sent");
        let pieces = (0..parts).map(|_| None).collect();
        Self(Arc::new(Mutex::new(Waiting { reply: Some(reply), pieces, missing: parts })))
    }

    /// The place of part `index`. Each is asked for once.
    pub(super) fn slot(&self, index: usize) -> Slot {
        Slot { gather: self.clone(), index, done: false }
    }

    fn bring(&self, index: usize, piece: Piece) {
        let mut waiting = self.0.lock();
        let before = waiting.pieces[index].replace(piece);
        assert!(before.is_none(), "part {index} was brought twice");
        waiting.missing -= 1;
        if waiting.missing > 0 {
            return;
        }
        let (reply, pieces) = (waiting.reply.take(), std::mem::take(&mut waiting.pieces));
        drop(waiting);
        if let Some(reply) = reply {
            send(reply, pieces.into_iter().flatten().collect());
        }
    }
}

/// The first error counts; a part that is shorter than its place is the end of the file.
fn send(reply: Reply<'static, [u8]>, pieces: Result<Pieces, Errno>) {
    let pieces = match pieces {
        Ok(pieces) => pieces,
        Err(errno) => {
            reply.error(errno);
            return;
        }
    };
    let mut slices: SmallVec<[IoSlice<'_>; 4]> = SmallVec::new();
    for (part, wanted) in &pieces {
        let bytes = part.bytes();
        let end = wanted.end.min(bytes.len());
        slices.push(IoSlice::new(bytes.get(wanted.start..end).unwrap_or_default()));
        if end < wanted.end {
            break;
        }
    }
    reply.vectored(&slices);
}

impl Slot {
    /// Brings the first `length` bytes of a part.
    pub(super) fn deliver(self, part: Result<Part, Errno>, length: usize) {
        self.bring(part.map(|part| (Arc::new(part), 0..length)));
    }

    /// Brings the bytes `wanted` of a part.
    pub(super) fn bring(mut self, piece: Piece) {
        self.done = true;
        self.gather.bring(self.index, piece);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.done {
            self.gather.bring(self.index, Err(Errno::IO));
        }
    }
}
