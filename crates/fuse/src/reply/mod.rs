//! Replies. Each request gets exactly one, from any thread; a reply object that is dropped unsent
//! sends `EIO`, so that no caller hangs.

mod entries;
mod raw;

use std::io::IoSlice;
use std::marker::PhantomData;

use rustix::io::Errno;

use crate::encode::Answer;

pub(crate) use raw::{Expected, QueueState, RawReply};

impl<'q> RawReply<'q> {
    pub(crate) fn typed<T: ?Sized>(self) -> Reply<'q, T> {
        Reply { raw: self, answer: PhantomData }
    }

    /// A reply with bytes.
    pub(crate) fn bytes(mut self, expected: Expected) -> Reply<'q, [u8]> {
        self.expected = expected;
        self.typed()
    }

    pub(crate) fn ioctl(mut self, output_size: u32) -> Reply<'q, [u8]> {
        self.ioctl = true;
        self.bytes(Expected::Data(output_size))
    }

    /// A reply to READDIRPLUS (`plus`) or READDIR.
    pub(crate) fn directory(self, size: u32, plus: bool) -> DirReply<'q> {
        let capacity = self.area.as_ref().map_or(0, |area| area.capacity());
        let max = (size as usize).min(capacity);
        DirReply { raw: self, max, len: 0, plus, is_broken: false }
    }
}

/// The reply to one request: a `T`, or an error. A sending method returns `true` if the kernel took
/// the reply, and `false` if the request was over already or the reply cannot be sent, so that what
/// the reply handed out (a lookup, a handle) must be taken back. A reply that cannot be sent becomes
/// `EIO` to the caller: one with more bytes than the request asked for, above all. Either is counted
/// in [`RequestCounts::undelivered`](crate::RequestCounts::undelivered).
#[derive(Debug)]
pub struct Reply<'q, T: ?Sized> {
    raw: RawReply<'q>,
    answer: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Reply<'_, T> {
    /// Replies with an error.
    pub fn error(mut self, errno: Errno) -> bool {
        self.raw.error(errno)
    }

    /// Unbinds the reply from the worker, so that another thread can send it later. Allocates
    /// nothing.
    #[must_use]
    pub fn detach(self) -> Reply<'static, T> {
        self.raw.detach().typed()
    }

    /// An INTERRUPT for this request has arrived: its caller got a signal and would rather have
    /// `EINTR` than wait.
    ///
    /// An INTERRUPT is received by a worker, as a request is. With one
    /// ([`SessionConfig::threads`](crate::SessionConfig::threads)), it is not received before the handler
    /// that this worker is in has returned: within that handler this stays `false`. Detach the reply,
    /// or have two workers.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.raw.interrupted()
    }
}

impl<T: Answer> Reply<'_, T> {
    /// Replies with a value.
    pub fn ok(mut self, value: &T) -> bool {
        self.raw.answer(value)
    }

    /// Replies with what `result` holds.
    pub fn send(self, result: Result<T, Errno>) -> bool {
        match result {
            Ok(value) => self.ok(&value),
            Err(errno) => self.error(errno),
        }
    }
}

impl Reply<'_, [u8]> {
    /// Replies with bytes: data, the target of a link (at most 4,095), the value of an attribute.
    pub fn data(mut self, data: &[u8]) -> bool {
        self.raw.slices(&[IoSlice::new(data)])
    }

    /// Replies with the concatenation of `data`. Allocates from 16 slices on. The system takes 1,023;
    /// what the further ones hold is copied into one.
    pub fn vectored(mut self, data: &[IoSlice<'_>]) -> bool {
        self.raw.slices(data)
    }

    /// Replies to a request that asked for a length (`getxattr` and `listxattr` with `size` 0), which
    /// takes nothing else. Every other request gets `EIO` by this.
    pub fn size(mut self, size: u32) -> bool {
        self.raw.length(size)
    }

    /// Lends `f` at most `max` bytes (less if the worker's reply area is smaller, which holds
    /// `max_write` bytes and at least 128 KiB) of zeroed, page-aligned memory and replies with the
    /// first `n` of them, for the `Ok(n)` that `f` returns. An `n` of more than were lent is `EIO` to the
    /// caller, who would take what was not filled for data. The memory is the worker's own: nothing
    /// is allocated, and it is wiped after the request. A detached reply allocates as much, within
    /// the same bound; where there is no memory it replies `ENOMEM` and does not call `f`.
    pub fn fill(mut self, max: usize, f: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> bool {
        self.raw.fill(max, f)
    }
}

/// The reply to READDIR and READDIRPLUS, built in the worker's reply area.
///
/// An entry that no listing can have breaks the whole reply: one whose name is empty, has a `/` or a
/// NUL, or is longer than [`Name::MAX`](crate::Name::MAX), and one with attributes in READDIR. It is not
/// added, nothing is after it, and [`DirReply::send`] replies `EIO`: to leave it out would show a
/// directory that lacks it, to take it as "full" one that ends there.
#[derive(Debug)]
pub struct DirReply<'q> {
    raw: RawReply<'q>,
    max: usize,
    len: usize,
    /// Entries have attributes: this is READDIRPLUS.
    plus: bool,
    /// An entry was refused.
    is_broken: bool,
}

impl DirReply<'_> {
    /// Replies with the entries added so far; none means the end of the directory. If an entry was
    /// refused, replies `EIO` and returns `false`.
    pub fn send(mut self) -> bool {
        if self.is_broken {
            return self.raw.refused();
        }
        match self.raw.area.take() {
            Some(area) => self.raw.send_area(area, self.len),
            None => self.raw.slices(&[]),
        }
    }

    /// Replies with an error; entries added so far are not sent.
    pub fn error(mut self, errno: Errno) -> bool {
        self.raw.error(errno)
    }
}
