//! Reading, from any number of threads.

use zeroize::Zeroizing;

use crate::error::SealError;
use crate::file::{RUN_MAX, SealedFile};
use crate::header::Entry;
use crate::map::read_slots;
use crate::store::Store;

/// How often a read begins again because the file was cut meanwhile.
const MAX_CUTS: u32 = 100;

impl<S: Store> SealedFile<S> {
    /// Reads what is at `offset`; how many bytes, fewer than asked for only at the end. Of blocks
    /// that are written at the same time, each is as before or as after. Beside who cuts the file a hundred
    /// times meanwhile, what was cut off may read as zero.
    ///
    /// # Errors
    /// If a block or a node of the map is not authentic; `buffer` then holds nothing of the file
    /// that was not.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, SealError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (length, was_cut) = self.read_unless_cut(buffer, offset)?;
            if !was_cut || tries == MAX_CUTS {
                return Ok(length);
            }
        }
    }

    /// The same once. Also returns whether the file was cut meanwhile: a block behind the new end is a hole in
    /// the map, also where the length that was known first is longer.
    fn read_unless_cut(&self, buffer: &mut [u8], offset: u64) -> Result<(usize, bool), SealError> {
        let (epoch, left, cuts) = {
            let mut state = self.state();
            let left = state.header.size.saturating_sub(offset);
            (state.sharing.enter(), left, state.cuts)
        };
        let reader = Reader { file: self, epoch };
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..length];
        let size = self.block_size;
        let mut done = 0;
        while done < length {
            let (block, within) = self.place(offset + done as u64);
            let rest = &mut buffer[done..];
            let whole = (rest.len() / size).min(RUN_MAX);
            if within == 0 && whole > 0 {
                self.read_blocks(block, &mut rest[..whole * size])?;
                done += whole * size;
            } else {
                let part = rest.len().min(size - within);
                let bytes = self.read_block(block)?;
                rest[..part].copy_from_slice(&bytes[within..within + part]);
                done += part;
            }
        }
        drop(reader);
        Ok((length, self.state().cuts != cuts))
    }

    /// A whole block. The caller is a reader, or the writer of this block.
    pub(crate) fn read_block(&self, block: u64) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let mut bytes = Zeroizing::new(vec![0; self.block_size]);
        self.read_blocks(block, &mut bytes)?;
        Ok(bytes)
    }

    /// Whole blocks from `first` on, those that lie side by side with one read.
    fn read_blocks(&self, first: u64, bytes: &mut [u8]) -> Result<(), SealError> {
        let size = self.block_size;
        let count = bytes.len() / size;
        let entries = {
            let map = &mut self.state().map;
            let on = self.context();
            let all = (first..first + count as u64).map(|block| map.get(&on, block));
            all.collect::<Result<Vec<_>, _>>()?
        };
        let mut done = 0;
        while done < count {
            let slot = entries[done].slot;
            let beside = |index: usize| match slot {
                0 => entries[index].slot == 0,
                slot => entries[index].slot == slot.wrapping_add((index - done) as u64),
            };
            let end = (done + 1..count).find(|index| !beside(*index)).unwrap_or(count);
            let run = &mut bytes[done * size..end * size];
            if slot == 0 {
                run.fill(0);
            } else if !read_slots(&self.store, run, slot, size)? {
                run.fill(0);
                return Err(SealError::BlockNotAuthentic(first + done as u64));
            } else {
                self.open_blocks(first + done as u64, &entries[done..end], run)?;
            }
            done = end;
        }
        Ok(())
    }

    pub(crate) fn open_blocks(
        &self,
        first: u64,
        entries: &[Entry],
        run: &mut [u8],
    ) -> Result<(), SealError> {
        let size = self.block_size;
        for (index, entry) in entries.iter().enumerate() {
            let number = first + index as u64;
            let bytes = &mut run[index * size..(index + 1) * size];
            if !self.keys.aead.open(&entry.nonce, &self.aad.block(number), bytes, entry.tag) {
                run[index * size..].fill(0);
                return Err(SealError::BlockNotAuthentic(number));
            }
        }
        Ok(())
    }
}

/// While it lives, no slot that the map named when it began is written.
pub(crate) struct Reader<'a, S: Store> {
    pub(crate) file: &'a SealedFile<S>,
    pub(crate) epoch: u64,
}

impl<S: Store> Drop for Reader<'_, S> {
    fn drop(&mut self) {
        let state = &mut *self.file.state();
        state.sharing.leave(self.epoch);
        if let Some(slots) = &mut state.slots {
            slots.reclaim(state.sharing.oldest());
        }
    }
}
