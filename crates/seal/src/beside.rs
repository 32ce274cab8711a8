//! One write on several threads, which the caller supplies.
//!
//! Blocks are encrypted and written to free slots beside each other; the map names them afterwards,
//! in order. So readers, and the file after a crash, see what one thread would have made: nothing of
//! the write, or its beginning.

use crate::error::SealError;
use crate::file::{RUN_MAX, SealedFile};
use crate::header::Entry;
use crate::store::Store;

/// Most runs of blocks that are handed out together.
const RUNS_MAX: usize = 8;

/// A part of a write. It is done once, whoever calls it.
pub type Task<'t> = &'t mut (dyn FnMut() + Send);

/// Some blocks on their way to the store.
struct Run<'b> {
    first: u64,
    bytes: &'b mut [u8],
    entries: Vec<Entry>,
    /// `None` until it was tried.
    written: Option<Result<(), SealError>>,
}

impl<S: Store + Sync> SealedFile<S> {
    /// As [`SealedFile::write_in_place`], in parts of at most 64 blocks. `run` calls each of the
    /// tasks that it is given, on any threads, and returns when all are done; everything that is
    /// written to the store is written within one. A task that it did not call has failed.
    ///
    /// How many bytes were written: all, or those before the part that failed. The others, and the
    /// size, are as before.
    ///
    /// # Errors
    /// As [`SealedFile::write_at`], if nothing was written.
    pub fn write_beside(
        &self,
        bytes: &mut [u8],
        offset: u64,
        run: &dyn Fn(&mut [Task<'_>]),
    ) -> Result<usize, SealError> {
        let write = |first, blocks: &mut [u8], size| self.write_together(first, blocks, size, run);
        match self.write_runs(bytes, offset, RUN_MAX * RUNS_MAX, write) {
            (0, Err(error)) => Err(error),
            (written, _) => Ok(written),
        }
    }

    fn write_together(
        &self,
        first: u64,
        bytes: &mut [u8],
        size: u64,
        run: &dyn Fn(&mut [Task<'_>]),
    ) -> (usize, Result<(), SealError>) {
        let mut runs = match self.runs_of(first, bytes) {
            Ok(runs) => runs,
            Err(error) => return (0, Err(error)),
        };
        {
            let seal = |run: &mut Run<'_>| {
                if run.written.is_none() {
                    run.written = Some(self.seal_blocks(run.first, run.bytes, &mut run.entries));
                }
            };
            let mut tasks: Vec<_> = runs.iter_mut().map(|run| move || seal(run)).collect();
            let mut tasks: Vec<Task<'_>> = tasks.iter_mut().map(|task| task as Task<'_>).collect();
            run(&mut tasks);
        }
        let mut named = 0;
        let result = self.name_runs(runs, size, &mut named);
        (named * self.block_size, result)
    }

    /// With slots for each.
    fn runs_of<'b>(&self, first: u64, bytes: &'b mut [u8]) -> Result<Vec<Run<'b>>, SealError> {
        let mut runs = Vec::new();
        let firsts = (first..).step_by(RUN_MAX);
        for (first, bytes) in firsts.zip(bytes.chunks_mut(RUN_MAX * self.block_size)) {
            match self.take_slots(bytes.len() / self.block_size) {
                Ok(entries) => runs.push(Run { first, bytes, entries, written: None }),
                Err(error) => {
                    self.give_back(&runs)?;
                    return Err(error);
                }
            }
        }
        Ok(runs)
    }

    /// Names what was written up to the first failure, and counts those blocks in `named`.
    fn name_runs(&self, runs: Vec<Run<'_>>, size: u64, named: &mut usize) -> Result<(), SealError> {
        let failed = runs.iter().position(|run| !matches!(run.written, Some(Ok(()))));
        let mut runs = runs;
        let mut rest = runs.split_off(failed.unwrap_or(runs.len()));
        let state = &mut *self.state();
        state.changes += u64::from(!runs.is_empty());
        let blocks = self.block_size as u64;
        for run in &runs {
            self.name(state, run.first, &run.entries)?;
            let end = (run.first + run.entries.len() as u64) * blocks;
            state.header.size = state.header.size.max(end.min(size));
            *named += run.entries.len();
        }
        if let Some(first) = rest.first_mut() {
            let error = first.written.take().and_then(Result::err);
            let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
            rest.iter().flat_map(|run| &run.entries).for_each(|entry| slots.give_back(entry.slot));
            let not_run = || std::io::Error::other("a part of a write was not done");
            return Err(error.unwrap_or_else(|| SealError::Io(not_run())));
        }
        Ok(())
    }

    fn give_back(&self, runs: &[Run<'_>]) -> Result<(), SealError> {
        let state = &mut *self.state();
        let slots = state.slots.as_mut().ok_or(SealError::Failed)?;
        runs.iter().flat_map(|run| &run.entries).for_each(|entry| slots.give_back(entry.slot));
        Ok(())
    }
}
