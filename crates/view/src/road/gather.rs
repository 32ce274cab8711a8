//! The parts of one reply, made by several threads: whoever brings the last one sends it.
//!
//! Each part has a [`Slot`], which brings exactly one result: what it is given, or `EIO` when it is
//! dropped without (the maker panicked). The reply is brought like a part, so that it can be kept
//! back until all parts are asked for. All is under one lock, so the last is known to be the last.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::Reply;

use super::memory::Part;
use crate::sync::Mutex;

/// Who gets the parts, in order, or the first error.
pub(super) trait Answer: Send + 'static {
    type Piece: Send + 'static;

    fn answer(self, pieces: Result<Pieces<Self::Piece>, Errno>);
}

pub(super) type Pieces<P> = SmallVec<[P; 4]>;

/// A piece, or why there is none.
type Brought<A> = Result<<A as Answer>::Piece, Errno>;

/// A request to read.
pub(super) type Reading = Reply<'static, [u8]>;

/// A reply that waits for its parts.
pub(super) struct Gather<A: Answer = Reading>(Arc<Mutex<Waiting<A>>>);

struct Waiting<A: Answer> {
    /// `None` before it is brought, and once it was sent.
    reply: Option<A>,
    pieces: SmallVec<[Option<Brought<A>>; 4]>,
    /// The reply counts as one.
    missing: usize,
}

/// The place of one part.
pub(super) struct Slot<A: Answer = Reading> {
    gather: Gather<A>,
    index: usize,
    done: bool,
}

impl<A: Answer> Clone for Gather<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: Answer> Gather<A> {
    /// Sent by `reply` when all parts are there.
    pub(super) fn new(reply: A, parts: usize) -> Self {
        let gather = Self::to_answer(parts);
        gather.answer(reply);
        gather
    }

    /// Parts for [`Gather::answer`]. If that is not called they are dropped.
    pub(super) fn to_answer(parts: usize) -> Self {
        assert!(parts > 0, "a reply of no parts would never be sent");
        let pieces = (0..parts).map(|_| None).collect();
        Self(Arc::new(Mutex::new(Waiting { reply: None, pieces, missing: parts + 1 })))
    }

    /// The place of part `index`. Each is asked for once.
    pub(super) fn slot(&self, index: usize) -> Slot<A> {
        Slot { gather: self.clone(), index, done: false }
    }

    /// The reply that the parts are for.
    pub(super) fn answer(&self, reply: A) {
        self.bring(|waiting| waiting.reply = Some(reply));
    }

    fn bring(&self, bring: impl FnOnce(&mut Waiting<A>)) {
        let mut waiting = self.0.lock();
        bring(&mut waiting);
        waiting.missing -= 1;
        if waiting.missing > 0 {
            return;
        }
        let (reply, pieces) = (waiting.reply.take(), std::mem::take(&mut waiting.pieces));
        drop(waiting);
        if let Some(reply) = reply {
            reply.answer(pieces.into_iter().flatten().collect());
        }
    }
}

impl<A: Answer> Slot<A> {
    /// Brings the part, or why there is none.
    pub(super) fn bring(mut self, piece: Brought<A>) {
        self.done = true;
        self.put(piece);
    }

    fn put(&self, piece: Brought<A>) {
        self.gather.bring(|waiting| {
            let before = waiting.pieces[self.index].replace(piece);
            assert!(before.is_none(), "part {} was brought twice", self.index);
        });
    }
}

impl<A: Answer> Drop for Slot<A> {
    fn drop(&mut self) {
        if !self.done {
            self.put(Err(Errno::IO));
        }
    }
}

impl Slot {
    /// Brings the first `length` bytes of a part.
    pub(super) fn deliver(self, part: Result<Part, Errno>, length: usize) {
        self.bring(part.map(|part| (Arc::new(part), 0..length)));
    }
}

/// A piece is the bytes of a part; one that is shorter than its place is the end of the file.
impl Answer for Reading {
    type Piece = (Arc<Part>, Range<usize>);

    fn answer(self, pieces: Result<Pieces<Self::Piece>, Errno>) {
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(errno) => {
                self.error(errno);
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
        self.vectored(&slices);
    }
}
