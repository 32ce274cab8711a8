//! A sealed file: opened, made, asked.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::cipher::{Cipher, random};
use crate::counting::Counts;
use crate::error::SealError;
use crate::found::FoundHeader;
use crate::header::{
    AHEAD_NEW, BLOCK_LOG2_MAX, BLOCK_LOG2_MIN, Entry, HEADER_LEN, HEADER_SPACE, Header,
};
use crate::keys::{FileKeys, Keys, domain_digest};
use crate::map::{Aad, Context, Map};
use crate::sharing::Sharing;
use crate::slots::Slots;
use crate::store::Store;

/// Blocks that are read or written with one call to the store.
pub(crate) const RUN_MAX: usize = 64;

/// How a new file is sealed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// By which cipher.
    pub cipher: Cipher,
    /// The block size's binary logarithm, 12 to 16. Small blocks suit small random writes.
    pub block_log2: u8,
}

/// AES-256-GCM, blocks of 4 KiB.
impl Default for Options {
    fn default() -> Options {
        Options { cipher: Cipher::Aes256Gcm, block_log2: BLOCK_LOG2_MIN }
    }
}

/// A sealed file that is open. Several threads may read, write and commit it at once: the state is
/// locked for looks into the map alone, not for encryption or for what the store does with blocks.
/// Writers of the same block take turns.
///
/// Order of locks: `committing`, then `state`.
pub struct SealedFile<S> {
    pub(crate) store: S,
    pub(crate) keys: FileKeys,
    pub(crate) aad: Aad,
    pub(crate) domain: [u8; 32],
    pub(crate) block_size: usize,
    pub(crate) state: Mutex<State>,
    /// A writer is done with its blocks, or the end of the store is cut.
    pub(crate) written: Condvar,
    /// Held during a commit: the copy of the header that the last one made durable, or that was found.
    pub(crate) committing: Mutex<u64>,
}

/// What is known of a file besides its blocks.
pub(crate) struct State {
    pub(crate) header: Header,
    pub(crate) map: Map,
    /// Known from the first write on.
    pub(crate) slots: Option<Slots>,
    /// The copy of the header that was found, if it may not be durable: the other one differs.
    pub(crate) unsure: Option<u64>,
    /// Both copies were found the same, and only one of them may be durable, whichever it is.
    pub(crate) one_is_unsure: bool,
    pub(crate) sharing: Sharing,
    /// Something was changed since the last commit.
    pub(crate) changed: bool,
    /// As it is durable, with the map that the last commit left.
    pub(crate) durable: Header,
    pub(crate) counts: Counts,
    /// Counts changes of what is read.
    pub(crate) changes: u64,
    /// Counts cuts of the end.
    pub(crate) cuts: u64,
    pub(crate) failed: bool,
    /// The store gives back its end alone.
    pub(crate) has_no_holes: bool,
}

impl State {
    /// Whether enough has changed that it should be committed.
    pub(crate) fn commit_is_due(&self) -> bool {
        self.has_changed(0, 1)
    }

    /// Whether so much has changed that no further `blocks` may be written before a commit.
    pub(crate) fn commit_must_come(&self, blocks: usize) -> bool {
        self.has_changed(blocks, 2)
    }

    /// Whether `blocks` are more than the headers account for that a crash may leave.
    pub(crate) fn is_beyond_count(&self, blocks: usize) -> bool {
        self.counts.are_exceeded(self.header.writes + blocks as u64, 2)
    }

    fn has_changed(&self, blocks: usize, times: usize) -> bool {
        let writes = self.header.writes + blocks as u64;
        let counted = self.counts.are_exceeded(writes, times as u64);
        self.slots.as_ref().is_some_and(|slots| counted || self.map.has_changed(slots, times))
    }
}

impl<S: Store> fmt::Debug for SealedFile<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedFile").field("header", &self.state().header).finish_non_exhaustive()
    }
}

impl<S: Store> SealedFile<S> {
    /// Makes an empty sealed file in an empty store. It can be opened from then on, and is durable
    /// after the first [`SealedFile::commit`].
    ///
    /// # Errors
    /// What the store says; [`SealError::BadHeader`] for a block size that is not possible.
    pub fn create(
        store: S,
        keys: &(impl Keys + ?Sized),
        domain: &[u8],
        options: Options,
    ) -> Result<SealedFile<S>, SealError> {
        let block_log2 = options.block_log2;
        if !(BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&block_log2) {
            let value = block_log2.into();
            return Err(SealError::BadHeader { what: "the block size's logarithm", value });
        }
        let mut file_id = [0; 32];
        random(&mut file_id)?;
        let key = keys.newest();
        let header = Header {
            cipher: options.cipher,
            block_log2,
            epoch: key.epoch(),
            file_id,
            generation: 1,
            size: 0,
            writes: 0,
            ahead: AHEAD_NEW,
            levels: 0,
            root: Entry::default(),
        };
        let keys = FileKeys::new(key, header.cipher, &file_id);
        let found = FoundHeader { header, keys, copy: 1, copies_agree: true, both_good: true };
        let file = SealedFile::from_header(store, found, domain_digest(domain));
        let bytes = file.state().header.encode(&file.keys, &file.domain);
        for copy in [0, 1] {
            file.store.write_at(&bytes, copy * HEADER_SPACE)?;
        }
        {
            let mut state = file.state();
            state.slots = Some(Slots::new(file.reserved()));
            state.changed = true;
            // The first sync of a commit is that of both.
            state.one_is_unsure = false;
        }
        Ok(file)
    }

    /// Opens a sealed file.
    ///
    /// # Errors
    /// If it is none, is not authentic under these keys and this policy domain, or has headers of two
    /// files.
    pub fn open(
        store: S,
        keys: &(impl Keys + ?Sized),
        domain: &[u8],
    ) -> Result<SealedFile<S>, SealError> {
        let domain = domain_digest(domain);
        let found = FoundHeader::find(&store, keys, &domain)?;
        Ok(SealedFile::from_header(store, found, domain))
    }

    fn from_header(store: S, found: FoundHeader, domain: [u8; 32]) -> SealedFile<S> {
        let FoundHeader { header, keys, copy, copies_agree, .. } = found;
        SealedFile {
            store,
            keys,
            aad: Aad::new(&header.file_id, &domain),
            domain,
            block_size: 1 << header.block_log2,
            state: Mutex::new(State {
                map: Map::new(&header),
                counts: Counts::of(&header),
                durable: header.clone(),
                header,
                slots: None,
                unsure: (!copies_agree).then_some(copy),
                one_is_unsure: copies_agree,
                sharing: Sharing::default(),
                changed: false,
                changes: 0,
                cuts: 0,
                failed: false,
                has_no_holes: false,
            }),
            written: Condvar::new(),
            committing: Mutex::new(copy),
        }
    }

    /// Of the plain file, in bytes, with what is not committed yet.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.state().header.size
    }

    /// The epoch of the key that the file is sealed with.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.state().header.epoch
    }

    /// One for the making of the file and one for each commit since, those of this handle among them.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.state().header.generation
    }

    /// Whether something was changed that no commit made durable.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.state().changed
    }

    /// Counts changes of what reading gives: as long as it is the same, so are the bytes.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Whether a commit failed: what was written since the one before is lost, and the file must be
    /// opened again to be written.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state().failed
    }

    /// In bytes. Whole blocks are read and written without those around them.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The store, for its own operations.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The next bytes from `offset` on that are not in a hole, in whole blocks; `None` if none
    /// follow. What follows the range may be no hole either.
    ///
    /// # Errors
    /// If a node of the map is not authentic.
    pub fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, SealError> {
        let size = self.block_size as u64;
        let mut state = self.state();
        let run = state.map.next_run(&self.context(), offset / size)?;
        let end = state.header.size;
        let bytes = run.map(|run| (run.start * size).max(offset)..(run.end * size).min(end));
        Ok(bytes.filter(|bytes| bytes.start < bytes.end))
    }

    /// Where the next hole begins, from `offset` on; the end of the file if there is none, and `offset`
    /// itself beyond that. Takes time in proportion to the data before it.
    ///
    /// # Errors
    /// If a node of the map is not authentic.
    pub fn next_hole(&self, offset: u64) -> Result<u64, SealError> {
        let mut at = offset;
        while let Some(data) = self.next_data(at)?.filter(|data| data.start == at) {
            at = data.end;
        }
        Ok(at)
    }

    /// Reads every block from `from` on that is not in a hole, until `each` breaks off. It learns of
    /// every range of blocks that was read, with what is wrong there: where a node of the map is
    /// damaged, of all blocks of the file that it may name, as nobody knows which of them are holes.
    ///
    /// # Errors
    /// What the store says.
    pub fn check(
        &self,
        from: u64,
        mut each: impl FnMut(Range<u64>, Option<SealError>) -> ControlFlow<()>,
    ) -> Result<(), SealError> {
        let mut bytes = vec![0; self.block_size];
        let mut block = from;
        loop {
            let run = self.state().map.next_run(&self.context(), block);
            match run {
                Ok(None) => return Ok(()),
                Ok(Some(run)) => {
                    for number in run.clone() {
                        let read = self.read_at(&mut bytes, number * self.block_size as u64);
                        let wrong = match read {
                            Err(SealError::Io(error)) => return Err(error.into()),
                            read => read.err(),
                        };
                        if each(number..number + 1, wrong).is_break() {
                            return Ok(());
                        }
                    }
                    block = run.end;
                }
                Err(SealError::MapNotAuthentic { level, number }) => {
                    let (end, of_file) = {
                        let state = self.state();
                        let blocks = state.header.size.div_ceil(self.block_size as u64);
                        (state.map.end_of_node(level, number), blocks)
                    };
                    let error = SealError::MapNotAuthentic { level, number };
                    // A node has room for more than a small file has.
                    if each(block..end.min(of_file.max(block + 1)), Some(error)).is_break() {
                        return Ok(());
                    }
                    block = end;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the store behind its last whole block, which belong to nothing. A header without blocks
    /// ends before the end of a block.
    ///
    /// # Errors
    /// What the store says.
    pub fn bytes_behind(&self) -> Result<u64, SealError> {
        let length = self.store.len()?;
        let headers = HEADER_SPACE + HEADER_LEN as u64;
        let reserved = self.reserved() * self.block_size as u64;
        Ok(match length < reserved {
            true => length.saturating_sub(headers),
            false => length % self.block_size as u64,
        })
    }

    /// Slots that the copies of the header take.
    pub(crate) fn reserved(&self) -> u64 {
        (2 * HEADER_SPACE).div_ceil(self.block_size as u64)
    }

    pub(crate) fn context(&self) -> Context<'_, S> {
        Context {
            store: &self.store,
            keys: &self.keys,
            aad: self.aad.clone(),
            block_size: self.block_size,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A panic within leaves a map that says no wrong thing: every node is checked when read.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block of an offset, and the place within it.
    pub(crate) fn place(&self, at: u64) -> (u64, usize) {
        let size = self.block_size as u64;
        (at / size, usize::try_from(at % size).expect("less than a block"))
    }
}
