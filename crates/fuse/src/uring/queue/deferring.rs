//! RELEASEs that wait in the kernel until the next file is opened: see `deferral.rs`.
#![expect(unsafe_code, reason = "ring entries are shared with the kernel and between threads")]

use std::time::Instant;

use super::RingQueue;
use crate::abi::opcode;
use crate::uring::deferral::Deferral;

impl RingQueue {
    /// The request in entry `index` is to be served next.
    pub(super) fn defer(&mut self, index: usize) {
        let slept = std::mem::take(&mut self.slept);
        let Some(deferral) = &mut self.deferral else { return };
        let entry = self.shared.entry(index);
        // SAFETY: this is the owner, and the entry has just been received.
        match unsafe { entry.operation() } {
            opcode::RELEASE => deferral.release(entry.queue, slept.then(Instant::now)),
            // Of two in a row the first one was not answered yet.
            opcode::OPEN | opcode::CREATE if self.beside_open.is_none() => {
                self.beside_open = deferral.open(entry.queue);
            }
            _ => {}
        }
    }

    /// Whether the finished reply in entry `index` is withheld.
    pub(super) fn withholds(&mut self, index: usize) -> bool {
        let Some(deferral) = self.deferral.as_mut().filter(|_| !self.passes) else { return false };
        let entry = self.shared.entry(index);
        // SAFETY: this is the owner, and the entry comes from the commit queue.
        let is_release = unsafe { entry.operation() } == opcode::RELEASE;
        is_release && deferral.withholds(entry.queue, index)
    }

    /// Asks for a tick if a reply is withheld.
    pub(super) fn arm_tick(&mut self) {
        if !self.tick_armed && self.deferral.as_ref().is_some_and(Deferral::is_pending) {
            self.ring.push_tick();
            self.tick_armed = true;
        }
    }

    /// Submits replies that were withheld for long, if a tick has come.
    pub(super) fn tick(&mut self) {
        if std::mem::take(&mut self.ticked) {
            self.let_out(|deferral, submit| deferral.tick(submit));
        }
    }

    /// Submits all replies that are withheld.
    pub(super) fn let_all_out(&mut self) {
        self.let_out(|deferral, submit| deferral.let_all_out(submit));
        self.queue_commits();
    }

    fn let_out(&mut self, which: impl FnOnce(&mut Deferral, &mut dyn FnMut(usize))) {
        let Some(deferral) = &mut self.deferral else { return };
        let mut entries = Vec::new();
        which(deferral, &mut |entry| entries.push(entry));
        for index in entries {
            // A pass of the commit queue looks for room.
            self.shared.commits.push(index);
        }
    }
}
