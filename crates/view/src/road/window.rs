//! Bytes that are made before they are asked for: handed from who makes them to who asks, or given up
//! for somebody who needs their room.

use std::sync::Arc;

use rustix::io::Errno;

use super::gather::{Answer, Slot};
use crate::sync::Mutex;

/// The state of what is made ahead: `P` are the bytes, `W` the ones of them that a request wants.
pub(super) struct Window<P, W, A: Answer<Piece = (Arc<P>, W)>>(Mutex<State<P, W, A>>);

enum State<P, W, A: Answer> {
    /// Who waits, each with what it wants.
    Pending(Vec<(Slot<A>, W)>),
    Ready(Arc<P>),
    /// It failed, or somebody needed the room.
    Gone,
}

impl<P, W, A: Answer<Piece = (Arc<P>, W)>> Default for Window<P, W, A> {
    fn default() -> Self {
        Self(Mutex::new(State::Pending(Vec::new())))
    }
}

impl<P, W, A: Answer<Piece = (Arc<P>, W)>> Window<P, W, A> {
    pub(super) fn is_gone(&self) -> bool {
        matches!(*self.0.lock(), State::Gone)
    }

    /// Brings the bytes `wanted` to `slot`, now or when they are made. If they are gone, `slot` gets
    /// an error, and `false` is returned: who asks has another way.
    pub(super) fn wait(&self, slot: Slot<A>, wanted: W) -> bool {
        let mut state = self.0.lock();
        let part = match &mut *state {
            State::Pending(waiting) => {
                waiting.push((slot, wanted));
                return true;
            }
            State::Ready(part) => Some(Arc::clone(part)),
            State::Gone => None,
        };
        drop(state);
        let is_there = part.is_some();
        slot.bring(part.map(|part| (part, wanted)).ok_or(Errno::IO));
        is_there
    }

    /// It is made, or failed: those who wait get it.
    fn done(&self, part: Result<P, Errno>) {
        let part = part.map(Arc::new);
        let now = part.clone().map_or(State::Gone, State::Ready);
        let before = std::mem::replace(&mut *self.0.lock(), now);
        if let State::Pending(waiting) = before {
            for (slot, wanted) in waiting {
                slot.bring(part.clone().map(|part| (part, wanted)));
            }
        }
    }

    /// What is made, if it is: nobody gets it from here any more. To be dropped without a lock that
    /// its room takes.
    pub(super) fn give_up(&self) -> Option<Arc<P>> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Ready(part) => Some(part),
            other => {
                *state = other;
                None
            }
        }
    }
}

/// A window that is being made: if that panics, or is never begun, those who wait get `EIO`.
pub(super) struct Making<P, W, A: Answer<Piece = (Arc<P>, W)>>(Option<Arc<Window<P, W, A>>>);

impl<P, W, A: Answer<Piece = (Arc<P>, W)>> Making<P, W, A> {
    pub(super) fn new(window: &Arc<Window<P, W, A>>) -> Self {
        Self(Some(Arc::clone(window)))
    }

    pub(super) fn done(mut self, part: Result<P, Errno>) {
        if let Some(window) = self.0.take() {
            window.done(part);
        }
    }
}

impl<P, W, A: Answer<Piece = (Arc<P>, W)>> Drop for Making<P, W, A> {
    fn drop(&mut self) {
        if let Some(window) = self.0.take() {
            window.done(Err(Errno::IO));
        }
    }
}
