//! What needs no wait: small reads and writes of what is in memory, for callers that must not be held
//! up.

use std::ops::Range;
use std::sync::{MutexGuard, TryLockError};

use zeroize::Zeroizing;

use crate::error::SealError;
use crate::file::{SealedFile, State};
use crate::header::Entry;
use crate::map::offset_of;
use crate::reading::Reader;
use crate::store::Store;
use crate::writing::Turn;

/// Most blocks that are read at once: 16 KiB at any offset, with small blocks.
const BLOCKS_MAX: usize = 5;

impl<S: Store> SealedFile<S> {
    /// As [`SealedFile::read_at`], if nobody is to be waited for, neither a device nor who has the
    /// file locked; `None` if so, and for ranges of many blocks.
    ///
    /// # Errors
    /// As [`SealedFile::read_at`].
    pub fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> Result<Option<usize>, SealError> {
        let Some(mut state) = self.try_state() else { return Ok(None) };
        let left = state.header.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let blocks = self.blocks_of(offset, length);
        let mut entries = [Entry::default(); BLOCKS_MAX];
        let count = usize::try_from(blocks.end - blocks.start).unwrap_or(usize::MAX);
        if count > BLOCKS_MAX || blocks.end > state.map.room() {
            return Ok(None);
        }
        for (block, entry) in blocks.clone().zip(&mut entries) {
            let found = state.map.get_at_once(&self.context(), block)?;
            let Some(found) = found else { return Ok(None) };
            *entry = found;
        }
        let epoch = state.sharing.enter();
        drop(state);
        let _reader = Reader { file: self, epoch };
        let mut done = 0;
        for (block, entry) in blocks.zip(&entries) {
            let within = self.place(offset + done as u64).1;
            let part = (self.block_size - within).min(length - done);
            if !self.read_known(block, entry, within, &mut buffer[done..done + part])? {
                return Ok(None);
            }
            done += part;
        }
        Ok(Some(length))
    }

    /// The bytes of a block from `within` on; whether they are there without a wait.
    fn read_known(
        &self,
        block: u64,
        entry: &Entry,
        within: usize,
        to: &mut [u8],
    ) -> Result<bool, SealError> {
        if entry.slot == 0 {
            to.fill(0);
            return Ok(true);
        }
        let Some(at) = offset_of(entry.slot, self.block_size) else { return Ok(false) };
        if to.len() == self.block_size {
            if !self.store.read_at_once(to, at)? {
                return Ok(false);
            }
            self.open_blocks(block, std::slice::from_ref(entry), to)?;
            return Ok(true);
        }
        let mut whole = Zeroizing::new(vec![0; self.block_size]);
        if !self.store.read_at_once(&mut whole, at)? {
            return Ok(false);
        }
        self.open_blocks(block, std::slice::from_ref(entry), &mut whole)?;
        to.copy_from_slice(&whole[within..within + to.len()]);
        Ok(true)
    }

    /// As [`SealedFile::write_in_place`], if nobody is to be waited for; whether it was written. If
    /// not, `bytes` are as they were. Only whole blocks are written so, and few of them. The write to
    /// the store may wait, as any write to a file may.
    ///
    /// # Errors
    /// As [`SealedFile::write_at`].
    pub fn write_at_once(&self, bytes: &mut [u8], offset: u64) -> Result<bool, SealError> {
        let blocks = self.blocks_of(offset, bytes.len());
        let size = self.block_size as u64;
        let whole = offset.is_multiple_of(size) && bytes.len().is_multiple_of(self.block_size);
        if !whole || blocks.is_empty() || bytes.len() / self.block_size > BLOCKS_MAX {
            return Ok(false);
        }
        let Some(_turn) = self.claim_at_once(&blocks) else { return Ok(false) };
        self.write_blocks(blocks.start, bytes, blocks.end * size)?;
        Ok(true)
    }

    /// The turn to write `blocks`, if it can be had and what they need is known.
    fn claim_at_once(&self, blocks: &Range<u64>) -> Option<Turn<'_, S>> {
        let mut state = self.try_state()?;
        let has_slots = state.slots.as_ref().is_some_and(|slots| slots.has(BLOCKS_MAX));
        let count = usize::try_from(blocks.end - blocks.start).ok()?;
        let ready = !state.failed && has_slots && !state.commit_must_come(count);
        if !ready || blocks.end > state.map.room() {
            return None;
        }
        let on = self.context();
        let mut known = |block| matches!(state.map.get_at_once(&on, block), Ok(Some(_)));
        if !blocks.clone().all(&mut known) {
            return None;
        }
        let mine = state.sharing.claim(blocks);
        mine.then(|| Turn { file: self, blocks: blocks.clone() })
    }

    fn blocks_of(&self, offset: u64, length: usize) -> Range<u64> {
        let end = offset.saturating_add(length as u64);
        self.place(offset).0..end.div_ceil(self.block_size as u64)
    }

    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
