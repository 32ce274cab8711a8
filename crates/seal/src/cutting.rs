//! Taking bytes away: cutting, and making holes.

use std::ops::Range;

use crate::error::SealError;
use crate::file::SealedFile;
use crate::header::Entry;
use crate::store::Store;

impl<S: Store> SealedFile<S> {
    /// Cuts the file, or extends it by a hole.
    ///
    /// # Errors
    /// As [`SealedFile::write_at`].
    pub fn set_len(&self, length: u64) -> Result<(), SealError> {
        let (block, within) = self.place(length);
        let _turn = self.claim(0..u64::MAX);
        self.prepare(length.div_ceil(self.block_size as u64))?;
        // What lies behind the end reads as zero if the file is extended again.
        let (end, behind) = match length < self.size() {
            true if within > 0 => (Some((block, within..self.block_size)), block + 1..u64::MAX),
            true => (None, block..u64::MAX),
            false => (None, 0..0),
        };
        self.make_zero(end.as_slice(), behind, Some(length))
    }

    /// Makes `bytes` read as zero; whole blocks within become holes. The size stays. Blocks at both
    /// ends that are made zero in part are written anew: if the store has no room for that, nothing
    /// has changed.
    ///
    /// # Errors
    /// As [`SealedFile::write_at`].
    pub fn punch(&self, bytes: Range<u64>) -> Result<(), SealError> {
        let size = self.block_size as u64;
        let bytes = bytes.start..bytes.end.min(self.size());
        if bytes.is_empty() {
            return Ok(());
        }
        let ((first, from), (last, to)) = (self.place(bytes.start), self.place(bytes.end));
        let _turn = self.claim(first..bytes.end.div_ceil(size));
        self.prepare(0)?;
        if first == last {
            return self.make_zero(&[(first, from..to)], 0..0, None);
        }
        let ends = [(first, from..self.block_size), (last, 0..to)];
        let ends = &ends[usize::from(from == 0)..2 - usize::from(to == 0)];
        self.make_zero(ends, first + u64::from(from > 0)..last, None)
    }

    /// Makes parts of blocks zero, where those are no holes, and whole blocks holes. The file has `length`
    /// then: no commit comes between. What must be written is written before anything changes.
    fn make_zero(
        &self,
        parts: &[(u64, Range<usize>)],
        whole: Range<u64>,
        length: Option<u64>,
    ) -> Result<(), SealError> {
        let written = self.write_zeroed(parts)?;
        let state = &mut *self.state();
        if state.failed {
            return Err(SealError::Failed);
        }
        state.changes += 1;
        for (number, entry) in written {
            self.name(state, number, &[entry])?;
        }
        if !whole.is_empty() {
            state.changed = true;
            let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
            state.map.clear(&self.context(), &whole, slots)?;
        }
        if let Some(length) = length {
            state.changed |= length != state.header.size;
            state.cuts += u64::from(length < state.header.size);
            state.header.size = length;
        }
        Ok(())
    }

    /// Seals blocks, each with a part of it made zero, into free slots, which the map does not name
    /// yet. Holes are left out. If one cannot be written, no slot is taken.
    fn write_zeroed(&self, parts: &[(u64, Range<usize>)]) -> Result<Vec<(u64, Entry)>, SealError> {
        let mut blocks = Vec::new();
        for (number, within) in parts {
            let entry = self.state().map.get(&self.context(), *number)?;
            if entry.slot != 0 {
                let mut bytes = self.read_block(*number)?;
                bytes[within.clone()].fill(0);
                blocks.push((*number, bytes));
            }
        }
        if blocks.is_empty() {
            return Ok(Vec::new());
        }
        let mut entries = self.take_slots(blocks.len())?;
        let written =
            blocks.iter_mut().zip(&mut entries).try_for_each(|((number, bytes), entry)| {
                self.seal_blocks(*number, bytes, std::slice::from_mut(entry))
            });
        if let Err(error) = written {
            let state = &mut *self.state();
            let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
            entries.iter().for_each(|entry| slots.give_back(entry.slot));
            return Err(error);
        }
        Ok(blocks.iter().map(|(number, _)| *number).zip(entries).collect())
    }
}
