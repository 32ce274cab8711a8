//! Writing, from any number of threads.

use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

use crate::cipher::NONCE_LEN;
use crate::counting::{Count, Counts};
use crate::error::SealError;
use crate::file::{RUN_MAX, SealedFile, State};
use crate::header::{Entry, HEADER_SPACE, Header, LEVELS_MAX};
use crate::slots::Slots;
use crate::store::Store;

impl<S: Store> SealedFile<S> {
    /// Writes `bytes` at `offset`; the file grows as needed. Durable after [`SealedFile::commit`].
    /// If it fails, each block is as before or as written, and what the last commit made durable is
    /// untouched.
    ///
    /// # Errors
    /// What the store says, or what reading says of a block that is written in part.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), SealError> {
        self.write_in_place(&mut bytes.to_vec(), offset)
    }

    /// As [`SealedFile::write_at`], without a copy: `bytes` are encrypted where they are, and hold
    /// nothing to be used afterwards.
    ///
    /// # Errors
    /// As [`SealedFile::write_at`].
    pub fn write_in_place(&self, bytes: &mut [u8], offset: u64) -> Result<(), SealError> {
        let write = |first, run: &mut [u8], size| (0, self.write_blocks(first, run, size));
        self.write_runs(bytes, offset, RUN_MAX, write).1
    }

    /// Writes with `write`, which gets whole blocks, at most `most` of them, with the number of the
    /// first and the size that the file has at least when they are written; it says how many of
    /// their bytes were written if not all were. How many of `bytes` were written, which are all
    /// unless something failed.
    pub(crate) fn write_runs(
        &self,
        bytes: &mut [u8],
        offset: u64,
        most: usize,
        write: impl FnMut(u64, &mut [u8], u64) -> (usize, Result<(), SealError>),
    ) -> (usize, Result<(), SealError>) {
        let mut done = 0;
        let result = self.write_each(bytes, offset, most, write, &mut done);
        (done, result)
    }

    fn write_each(
        &self,
        bytes: &mut [u8],
        offset: u64,
        most: usize,
        mut write: impl FnMut(u64, &mut [u8], u64) -> (usize, Result<(), SealError>),
        done: &mut usize,
    ) -> Result<(), SealError> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(SealError::TooLarge(offset))?;
        let size = self.block_size;
        let blocks = self.place(offset).0..end.div_ceil(size as u64);
        let _turn = self.claim(blocks.clone());
        self.prepare(blocks.end)?;
        while *done < bytes.len() {
            let at = offset + *done as u64;
            let (block, within) = self.place(at);
            let rest = &mut bytes[*done..];
            let whole = (rest.len() / size).min(most);
            let part = if within == 0 && whole > 0 {
                let part = whole * size;
                let (written, result) = write(block, &mut rest[..part], at + part as u64);
                if result.is_err() {
                    *done += written;
                    return result;
                }
                part
            } else {
                let part = rest.len().min(size - within);
                let mut whole = self.read_block(block)?;
                whole[within..within + part].copy_from_slice(&rest[..part]);
                write(block, &mut whole, at + part as u64).1?;
                part
            };
            *done += part;
        }
        Ok(())
    }

    /// Waits until nobody else writes any of `blocks`.
    pub(crate) fn claim(&self, blocks: Range<u64>) -> Turn<'_, S> {
        let mut state = self.state();
        while !state.sharing.claim(&blocks) {
            state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { file: self, blocks }
    }

    /// What must be known before something is changed.
    pub(crate) fn prepare(&self, blocks: u64) -> Result<(), SealError> {
        let state = &mut *self.state();
        if state.failed {
            return Err(SealError::Failed);
        }
        let on = self.context();
        if state.slots.is_none() {
            self.make_sure(state)?;
            let mut slots = Slots::new(self.reserved());
            state.map.mark(&on, &mut slots)?;
            slots.are_marked(self.store.len()?.div_ceil(self.block_size as u64));
            state.slots = Some(slots);
            state.header.count_what_a_crash_forgets();
            state.counts = Counts::of(&state.header);
        }
        state.map.grow(&on, blocks)
    }

    /// Makes the header durable that was found, before slots are taken that it does not name: after a
    /// power failure the one before could hold, which names them. Who wrote it may have been killed
    /// before the sync, or the sync may have failed; then a further one alone would not write it.
    fn make_sure(&self, state: &mut State) -> Result<(), SealError> {
        let Some(copy) = state.unsure else { return Ok(()) };
        let header = state.header.encode(&self.keys, &self.domain);
        self.store.write_at(&header, copy * HEADER_SPACE)?;
        self.store.sync()?;
        state.unsure = None;
        Ok(())
    }

    /// Seals whole blocks into free slots. The map names them, and the file has `size` at least,
    /// only when all of them are written.
    pub(crate) fn write_blocks(
        &self,
        first: u64,
        bytes: &mut [u8],
        size: u64,
    ) -> Result<(), SealError> {
        let mut entries = self.take_slots(bytes.len() / self.block_size)?;
        let written = self.seal_blocks(first, bytes, &mut entries);
        let state = &mut *self.state();
        if let Err(error) = written {
            let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
            entries.iter().for_each(|entry| slots.give_back(entry.slot));
            return Err(error);
        }
        state.changes += 1;
        self.name(state, first, &entries)?;
        state.header.size = state.header.size.max(size);
        Ok(())
    }

    pub(crate) fn take_slots(&self, count: usize) -> Result<Vec<Entry>, SealError> {
        if self.state().commit_must_come(count) {
            self.make_room(count)?;
        }
        let mut guard = self.state();
        loop {
            if guard.is_beyond_count(count) {
                drop(guard);
                self.make_room(count)?;
                guard = self.state();
                continue;
            }
            let state = &mut *guard;
            let Some(slots) = &mut state.slots else { return Err(SealError::Failed) };
            slots.settle(&mut state.sharing);
            if slots.has(count) {
                break;
            }
            guard = self.written.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        let state = &mut *guard;
        let slots = state.slots.as_mut().filter(|_| !state.failed).ok_or(SealError::Failed)?;
        state.header.count(count as u64)?;
        Ok((0..count).map(|_| Entry { slot: slots.take(), ..Entry::default() }).collect())
    }

    /// Whether so much was changed since the last commit that another should follow. Who writes on
    /// and on without one makes it at twice as much.
    #[must_use]
    pub fn is_commit_due(&self) -> bool {
        self.state().commit_is_due()
    }

    /// Encrypts blocks where they are and writes them to their slots.
    pub(crate) fn seal_blocks(
        &self,
        first: u64,
        bytes: &mut [u8],
        entries: &mut [Entry],
    ) -> Result<(), SealError> {
        let size = self.block_size;
        let mut nonces = [[0; NONCE_LEN]; RUN_MAX];
        let nonces = &mut nonces[..entries.len()];
        self.keys.aead.nonces(nonces)?;
        let blocks = bytes.chunks_exact_mut(size).zip(nonces.iter());
        for ((number, entry), (block, nonce)) in (first..).zip(entries.iter_mut()).zip(blocks) {
            entry.nonce = *nonce;
            entry.tag = self.keys.aead.seal(nonce, &self.aad.block(number), block);
        }
        let mut done = 0;
        for run in entries.chunk_by(|left, right| right.slot == left.slot + 1) {
            let part = &bytes[done * size..(done + run.len()) * size];
            self.store.write_at(part, run[0].slot * size as u64)?;
            done += run.len();
        }
        Ok(())
    }

    /// Enters what was written in the map. If it fails half-way, slots that it did not name stay
    /// taken until the file is opened again.
    ///
    /// # Errors
    /// Also if a commit failed meanwhile: what is not committed then is lost, and no write may succeed.
    pub(crate) fn name(
        &self,
        state: &mut State,
        first: u64,
        entries: &[Entry],
    ) -> Result<(), SealError> {
        let on = self.context();
        let slots = state.slots.as_mut().filter(|_| !state.failed).ok_or(SealError::Failed)?;
        state.changed = true;
        for (number, entry) in (first..).zip(entries) {
            let before = state.map.set(&on, number, *entry)?;
            slots.release(before.slot);
        }
        Ok(())
    }

    /// Makes everything written durable. After a crash the file is as one of its commits left it:
    /// the last one that returned, or the one that was under way. Others may read and write
    /// meanwhile; what they write is in this commit or in the next. Space that is not needed for what may be
    /// written soon goes back to the store.
    ///
    /// # Errors
    /// What the store says. What was not committed may then be lost: the file must be opened again
    /// to be written, and is as its last commit left it.
    pub fn commit(&self) -> Result<(), SealError> {
        let mut durable_copy = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        self.commit_alone(&mut durable_copy).map(|_| ())
    }

    /// The same beside no other; whether anything was to be committed.
    fn commit_alone(&self, durable_copy: &mut u64) -> Result<bool, SealError> {
        let Prepared { header, released } = loop {
            match self.write_map()? {
                Next::Nothing => return Ok(false),
                Next::Count => self.count_ahead(durable_copy)?,
                Next::Header(prepared) => break prepared,
            }
        };
        {
            let state = &mut *self.make_durable(header, durable_copy)?;
            let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
            slots.committed(released, &mut state.sharing);
        }
        self.trim(false)?;
        Ok(true)
    }

    /// Has a durable header account for `blocks` more.
    fn make_room(&self, blocks: usize) -> Result<(), SealError> {
        let mut durable_copy = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        // Not where who had the lock before did that.
        let is_needed = self.state().commit_must_come(blocks);
        // What others have counted may not be in the map yet, or never come there.
        if is_needed && !self.commit_alone(&mut durable_copy)? {
            self.count_ahead(&mut durable_copy)?;
        }
        Ok(())
    }

    /// Makes a header durable that counts what was written, and has the map as the last one had it.
    fn count_ahead(&self, durable_copy: &mut u64) -> Result<(), SealError> {
        let header = {
            let state = &mut *self.state();
            if state.failed {
                return Err(SealError::Failed);
            }
            let writes = state.header.writes;
            // Half of it is for blocks.
            let ahead = state.counts.next_ahead(writes, state.map.nodes_to_write() * 4);
            state.header.generation += 1;
            let generation = state.header.generation;
            let header = Header { writes, ahead, generation, ..state.durable.clone() };
            state.counts.newest = Count::of(&header);
            header
        };
        self.make_durable(header, durable_copy).map(|_| ())
    }

    /// Writes both copies of a header. What it counts is accounted for then.
    fn make_durable(
        &self,
        header: Header,
        durable_copy: &mut u64,
    ) -> Result<MutexGuard<'_, State>, SealError> {
        let first = 1 - *durable_copy;
        let written =
            self.write_found_again(*durable_copy).and_then(|()| self.write_header(&header, first));
        let mut state = self.state();
        state.failed |= written.is_err();
        written?;
        *durable_copy = first;
        state.counts.durable = Count::of(&header);
        state.durable = header;
        Ok(state)
    }

    /// Writes what was changed of the map; the header for it, and the slots that it sets free.
    fn write_map(&self) -> Result<Next, SealError> {
        let state = &mut *self.state();
        if state.failed {
            return Err(SealError::Failed);
        }
        if !state.changed {
            return Ok(Next::Nothing);
        }
        let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
        let header = &mut state.header;
        if state.counts.are_exceeded(header.writes + state.map.nodes_to_write(), 4) {
            return Ok(Next::Count);
        }
        header.root = state.map.write(&self.context(), slots, &mut header.writes)?;
        header.levels = state.map.levels.min(LEVELS_MAX);
        header.generation += 1;
        header.ahead = state.counts.next_ahead(header.writes, 0);
        state.counts.newest = Count::of(header);
        state.changed = false;
        let (header, released) = (header.clone(), slots.commit_begins());
        Ok(Next::Header(Prepared { header, released }))
    }

    /// With the first header since opening, where both copies were found the same. The sync of one of
    /// them may have failed: then the page cache has it, the disk has the header before, and no further
    /// sync would write it. The next sync makes it durable now, before the other copy is overwritten.
    fn write_found_again(&self, copy: u64) -> Result<(), SealError> {
        let found = {
            let state = &mut *self.state();
            if !std::mem::take(&mut state.one_is_unsure) {
                return Ok(());
            }
            state.durable.encode(&self.keys, &self.domain)
        };
        Ok(self.store.write_at(&found, copy * HEADER_SPACE)?)
    }

    fn write_header(&self, header: &Header, first: u64) -> Result<(), SealError> {
        let header = &header.encode(&self.keys, &self.domain);
        // Everything that the new header refers to must be there before it, and so must the copy
        // that the last commit wrote second.
        self.store.sync()?;
        self.store.write_at(header, first * HEADER_SPACE)?;
        self.store.sync()?;
        // Durable with the next commit. Until then the first copy is newer.
        self.store.write_at(header, (1 - first) * HEADER_SPACE)?;
        Ok(())
    }
}

/// What a commit has to do next.
enum Next {
    Nothing,
    /// The nodes of the map are more than the headers account for that a crash may leave.
    Count,
    Header(Prepared),
}

/// A commit of which only the header is missing.
struct Prepared {
    header: Header,
    /// Slots that it sets free once it is durable.
    released: Vec<u64>,
}

/// Blocks that nobody else writes while it lives.
pub(crate) struct Turn<'a, S: Store> {
    pub(crate) file: &'a SealedFile<S>,
    pub(crate) blocks: Range<u64>,
}

impl<S: Store> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        self.file.state().sharing.written(&self.blocks);
        self.file.written.notify_all();
    }
}
