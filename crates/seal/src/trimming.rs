//! Giving space back that nothing refers to any more.
//!
//! Only after a commit, when both copies of the header are durable and the same: no crash finds an
//! older map that names what is given back. Nobody takes a slot while its space goes.

use std::sync::PoisonError;

use crate::error::SealError;
use crate::file::SealedFile;
use crate::slots::Excess;
use crate::store::Store;

impl<S: Store> SealedFile<S> {
    /// Whether the store has more room for what may be written than a file needs that is not written for
    /// a while: [`SealedFile::rest`] gives it back.
    #[must_use]
    pub fn has_excess(&self) -> bool {
        self.is_excessive(true)
    }

    /// Nobody writes for a while: what a file needs only while it is written is given back. Does nothing
    /// if something is to be committed.
    ///
    /// # Errors
    /// As [`SealedFile::commit`].
    pub fn rest(&self) -> Result<(), SealError> {
        let _alone = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_changed() { Ok(()) } else { self.trim(true) }
    }

    fn is_excessive(&self, rests: bool) -> bool {
        let state = self.state();
        !state.failed && state.slots.as_ref().is_some_and(|slots| slots.has_excess(rests))
    }

    /// A commit is durable, of whose header both copies are written, and no other one begins: gives back
    /// what the file should not have. If the store does not do that, the space stays.
    pub(crate) fn trim(&self, rests: bool) -> Result<(), SealError> {
        if !self.is_excessive(rests) {
            return Ok(());
        }
        let size = self.block_size as u64;
        let Ok(length) = self.store.len() else { return Ok(()) };
        let excess = {
            let state = &mut *self.state();
            let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
            slots.settle(&mut state.sharing);
            slots.excess(length.div_ceil(size), !state.has_no_holes, rests)
        };
        let synced = if excess.is_empty() { Ok(()) } else { self.store.sync() };
        let gone = match &synced {
            Ok(()) => self.give_back_slots(&excess, size),
            Err(_) => Gone::default(),
        };
        let state = &mut *self.state();
        state.failed |= synced.is_err();
        state.has_no_holes |= gone.has_no_holes;
        if let Some(slots) = &mut state.slots {
            slots.gave_back(&excess, gone.holes, gone.is_cut);
        }
        self.written.notify_all();
        Ok(synced?)
    }

    fn give_back_slots(&self, excess: &Excess, size: u64) -> Gone {
        let mut gone = Gone::default();
        for run in &excess.holes {
            match self.store.give_back(run.start * size..run.end * size) {
                Ok(()) => gone.holes += 1,
                Err(error) => {
                    gone.has_no_holes = error.kind() == std::io::ErrorKind::Unsupported;
                    break;
                }
            }
        }
        gone.is_cut = excess.end.is_some_and(|end| self.store.truncate(end * size).is_ok());
        gone
    }
}

/// What a store has given back.
#[derive(Default)]
struct Gone {
    /// So many of the holes.
    holes: usize,
    is_cut: bool,
    /// It makes none.
    has_no_holes: bool,
}
