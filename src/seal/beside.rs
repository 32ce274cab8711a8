//! Reading a sealed file beside a server that writes it.
//!
//! What is read first is the header, and the map and the blocks that it leads to. A commit that comes
//! meanwhile has others, and what was replaced is written over or given back: then a block is not what
//! the older header says, and nothing is wrong with the file.

use std::fs::File;
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use tollgate_seal::{SealError, SealedFile};

use crate::seal::job::Job;

/// How often a file is looked at again for one part of it.
const TRIES: usize = 5;

const BUSY: &str = "is being written: each time what was read of it had been replaced; end who writes it, or read \
     it by the view";

/// Whether a commit came since `sealed` was opened, so that what is not authentic in it may be as it
/// should.
fn has_moved(sealed: &SealedFile<&File>, job: &Job<'_>) -> bool {
    // A copy of the header may be under way. The other one is the older one then.
    let mut looks = (0..3).map(|_| tollgate_seal::stat(sealed.store(), job.keys, job.domain));
    let is_newer = |generation| generation != sealed.generation();
    looks.any(|found| found.is_ok_and(|found| is_newer(found.generation)))
}

/// Reads all blocks of a file, each as the header has it then.
///
/// # Errors
/// What is wrong first, and in how many blocks.
pub(super) fn check<'f>(file: &'f File, job: &Job<'_>) -> Result<SealedFile<&'f File>> {
    let open = || SealedFile::open(file, job.keys, job.domain);
    let mut sealed = open()?;
    let (mut first, mut damaged) = (None, 0);
    let (mut from, mut tries) = (0, 0);
    loop {
        let mut again = None;
        sealed.check(from, |blocks, error| {
            if let Some(error) = error {
                if has_moved(&sealed, job) {
                    again = Some(blocks.start);
                    return ControlFlow::Break(());
                }
                damaged += blocks.end - blocks.start;
                first.get_or_insert(error);
            } else {
                tries = 0;
            }
            job.progress.bytes(sealed.block_size());
            ControlFlow::Continue(())
        })?;
        let Some(block) = again else { break };
        if tries == TRIES {
            bail!(BUSY);
        }
        (from, tries) = (block, tries + 1);
        sealed = open()?;
    }
    match first {
        None => Ok(sealed),
        Some(error) if damaged == 1 => Err(error.into()),
        Some(error) => Err(error).with_context(|| format!("{damaged} blocks; the first")),
    }
}

/// Has `read` read a file as one commit left it; from the beginning again, if another one comes
/// between.
///
/// # Errors
/// Those of `read`.
pub(super) fn whole(
    file: &File,
    job: &Job<'_>,
    mut read: impl FnMut(&SealedFile<&File>) -> Result<()>,
) -> Result<()> {
    for _ in 0..TRIES {
        let sealed = SealedFile::open(file, job.keys, job.domain)?;
        match read(&sealed) {
            Err(error) if is_replaced(&error) && has_moved(&sealed, job) => {}
            done => return done,
        }
    }
    bail!(BUSY)
}

/// Whether that may be as it is since a commit used the place for something else.
fn is_replaced(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(SealError::BlockNotAuthentic(_) | SealError::MapNotAuthentic { .. })
    )
}
