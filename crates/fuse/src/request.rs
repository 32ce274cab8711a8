//! What a handler learns about a request besides its arguments.

use std::cell::Cell;

use crate::abi::{self, InHeader};
use crate::interrupt::Interrupts;
use crate::types::{Caller, NodeId};

/// A request in a worker's hands.
#[derive(Debug)]
pub struct Request<'a> {
    pub(crate) header: &'a InHeader,
    pub(crate) group: Option<u32>,
    pub(crate) worker: usize,
    /// `None` for one that was kept.
    pub(crate) interrupts: Option<&'a Interrupts>,
    pub(crate) class: Cell<u8>,
}

impl Request<'_> {
    /// Who asks.
    #[must_use]
    pub fn caller(&self) -> Caller {
        Caller { uid: self.header.uid, gid: self.header.gid, pid: self.header.pid }
    }

    /// Names the request; the same when it is sent again ([`Request::resent`]).
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.header.unique & !abi::UNIQUE_RESEND
    }

    /// Operation code ([`crate::abi::opcode`]).
    #[must_use]
    pub fn opcode(&self) -> u32 {
        self.header.opcode
    }

    /// The inode that the request is about, for operations on a name its directory.
    #[must_use]
    pub fn node(&self) -> NodeId {
        NodeId(self.header.nodeid)
    }

    /// A supplementary group of the caller, sent when it is the parent directory's group
    /// ([`crate::InitFlags::CREATE_SUPP_GROUP`]); at most one.
    #[must_use]
    pub fn supplementary_group(&self) -> Option<u32> {
        self.group
    }

    /// An INTERRUPT for this request has arrived; with one worker it never has while the handler runs,
    /// see [`crate::Reply::interrupted`]. Ask [`crate::Reply::interrupted`] after the
    /// handler returned: of a request that was kept ([`Request::keep`]) this tells nothing.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.interrupts.is_some_and(|interrupts| interrupts.is_interrupted(self.worker))
    }

    /// What the request says of itself, for whoever serves it after the handler returned.
    #[must_use]
    pub fn keep(&self) -> KeptRequest {
        KeptRequest { header: *self.header, group: self.group, worker: self.worker }
    }

    /// The kernel sends this request a second time, because a server before this one may have died
    /// over it: it may have been carried out already.
    #[must_use]
    pub fn resent(&self) -> bool {
        self.header.unique & abi::UNIQUE_RESEND != 0
    }

    /// Puts the request into a class of the file system's own choice, for
    /// [`crate::Connection::latencies`]: what became of it, for example. The last call counts.
    ///
    /// # Panics
    /// If `class` is not below [`crate::CLASSES`].
    pub fn set_class(&self, class: u8) {
        assert!(usize::from(class) < crate::CLASSES, "class {class}");
        self.class.set(class);
    }

    /// Index of the worker (and queue), from 0.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }
}

/// A request whose handler has returned, with a reply that was detached.
#[derive(Clone, Copy, Debug)]
pub struct KeptRequest {
    header: InHeader,
    group: Option<u32>,
    worker: usize,
}

impl KeptRequest {
    /// The request once more, for what a handler would call. [`Request::worker`] is the one that
    /// received it; it serves others meanwhile.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        let Self { header, group, worker } = self;
        let (group, worker, class) = (*group, *worker, Cell::new(0));
        Request { header, group, worker, interrupts: None, class }
    }
}
