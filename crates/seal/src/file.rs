//! A sealed file: read, written, committed.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cipher::{Cipher, random};
use crate::error::SealError;
use crate::header::{
    BLOCK_LOG2_MAX, BLOCK_LOG2_MIN, Entry, HEADER_LEN, HEADER_SPACE, Header, LEVELS_MAX,
};
use crate::keys::{FileKeys, MasterKey, domain_digest};
use crate::map::{Aad, Context, Map, read_slots};
use crate::slots::Slots;
use crate::store::Store;

/// Blocks that are read or written with one call to the store.
const RUN_MAX: usize = 64;
/// Written between two commits, at most: what a crash can make the count of writes forget.
const WRITES_PER_COMMIT: u64 = 1 << 17;
/// AES-GCM with random nonces of 96 bits: after so many, two are the same with a chance of 2^-33.
const WRITES_MAX: u64 = 1 << 32;

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

/// What a header says, to those who have the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Of the plain file, in bytes.
    pub size: u64,
    /// Commits so far.
    pub generation: u64,
    /// Of the key.
    pub epoch: u32,
    /// Of its content.
    pub cipher: Cipher,
    /// Whether both copies of the header are good and the same.
    pub copies_agree: bool,
}

/// Reads the header of a sealed file and nothing else.
///
/// # Errors
/// If no copy of the header is authentic under this key and policy domain.
pub fn stat<S: Store>(store: &S, key: &MasterKey, domain: &[u8]) -> Result<Stat, SealError> {
    let found = find_header(store, key, &domain_digest(domain))?;
    let Header { size, generation, epoch, cipher, .. } = found.header;
    Ok(Stat { size, generation, epoch, cipher, copies_agree: found.copies_agree })
}

struct FoundHeader {
    header: Header,
    keys: FileKeys,
    copy: u64,
    copies_agree: bool,
}

/// The newest authentic copy.
fn find_header<S: Store>(
    store: &S,
    key: &MasterKey,
    domain: &[u8; 32],
) -> Result<FoundHeader, SealError> {
    let read = |copy: u64| {
        let mut bytes = [0; HEADER_LEN];
        match store.read_at(&mut bytes, copy * HEADER_SPACE) {
            Ok(()) => Header::decode(&bytes, key, domain),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(SealError::NotSealed)
            }
            Err(error) => Err(error.into()),
        }
    };
    let (copy, found, copies_agree) = match (read(0), read(1)) {
        (Ok(first), Ok(second)) => {
            let agree = first.0 == second.0;
            if second.0.generation > first.0.generation {
                (1, second, agree)
            } else {
                (0, first, agree)
            }
        }
        (Ok(first), Err(_)) => (0, first, false),
        (Err(_), Ok(second)) => (1, second, false),
        (Err(SealError::NotSealed), Err(error)) | (Err(error), Err(_)) => return Err(error),
    };
    Ok(FoundHeader { header: found.0, keys: found.1, copy, copies_agree })
}

/// A sealed file that is open. Reading takes `&self`, so that several threads may.
pub struct SealedFile<S> {
    store: S,
    header: Header,
    keys: FileKeys,
    aad: Aad,
    domain: [u8; 32],
    /// The copy of the header that the last commit made durable.
    durable_copy: u64,
    map: Mutex<Map>,
    /// Known from the first write on.
    slots: Option<Slots>,
    /// Something was changed since the last commit.
    changed: bool,
    failed: bool,
}

impl<S: Store> fmt::Debug for SealedFile<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedFile").field("header", &self.header).finish_non_exhaustive()
    }
}

impl<S: Store> SealedFile<S> {
    /// Makes an empty sealed file in an empty store, and commits it.
    ///
    /// # Errors
    /// What the store says; [`SealError::BadHeader`] for a block size that is not possible.
    pub fn create(
        store: S,
        key: &MasterKey,
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
        let header = Header {
            cipher: options.cipher,
            block_log2,
            epoch: key.epoch(),
            file_id,
            generation: 0,
            size: 0,
            writes: 0,
            levels: 0,
            root: Entry::default(),
        };
        let keys = FileKeys::new(key, header.cipher, &file_id);
        let found = FoundHeader { header, keys, copy: 1, copies_agree: false };
        let mut file = SealedFile::from_header(store, found, domain_digest(domain));
        file.changed = true;
        file.slots = Some(Slots::new(file.reserved()));
        file.commit()?;
        Ok(file)
    }

    /// Opens a sealed file.
    ///
    /// # Errors
    /// If it is none, or is not authentic under this key and policy domain.
    pub fn open(store: S, key: &MasterKey, domain: &[u8]) -> Result<SealedFile<S>, SealError> {
        let domain = domain_digest(domain);
        let found = find_header(&store, key, &domain)?;
        Ok(SealedFile::from_header(store, found, domain))
    }

    fn from_header(store: S, found: FoundHeader, domain: [u8; 32]) -> SealedFile<S> {
        let FoundHeader { header, keys, copy, .. } = found;
        SealedFile {
            store,
            aad: Aad::new(&header.file_id, &domain),
            map: Mutex::new(Map::new(&header)),
            header,
            keys,
            domain,
            durable_copy: copy,
            slots: None,
            changed: false,
            failed: false,
        }
    }

    /// Of the plain file, in bytes, with what is not committed yet.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.header.size
    }

    /// The store, for its own operations.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    fn block_size(&self) -> usize {
        1 << self.header.block_log2
    }

    /// Slots that the copies of the header take.
    fn reserved(&self) -> u64 {
        (2 * HEADER_SPACE).div_ceil(self.block_size() as u64)
    }

    fn blocks(&self) -> u64 {
        self.header.size.div_ceil(self.block_size() as u64)
    }

    fn context(&self) -> Context<'_, S> {
        Context {
            store: &self.store,
            keys: &self.keys,
            aad: self.aad.clone(),
            block_size: self.block_size(),
        }
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        // A panic within leaves a map that says no wrong thing: every node is checked when read.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is at `offset`; how many bytes, fewer than asked for only at the end.
    ///
    /// # Errors
    /// If a block or a node of the map is not authentic; `buffer` then holds nothing of the file
    /// that was not.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, SealError> {
        let left = self.header.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..length];
        let size = self.block_size();
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let (block, within) = (at / size as u64, place(at % size as u64));
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
        Ok(length)
    }

    fn read_block(&self, block: u64) -> Result<Vec<u8>, SealError> {
        let mut bytes = vec![0; self.block_size()];
        self.read_blocks(block, &mut bytes)?;
        Ok(bytes)
    }

    /// Whole blocks from `first` on, those that lie side by side with one read.
    fn read_blocks(&self, first: u64, bytes: &mut [u8]) -> Result<(), SealError> {
        let size = self.block_size();
        let count = bytes.len() / size;
        let entries = {
            let mut map = self.map();
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

    fn open_blocks(&self, first: u64, entries: &[Entry], run: &mut [u8]) -> Result<(), SealError> {
        let size = self.block_size();
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

    /// Writes `bytes` at `offset`; the file grows as needed. Durable after [`SealedFile::commit`].
    /// If it fails, each block is as before or as written, and what the last commit made durable is
    /// untouched.
    ///
    /// # Errors
    /// What the store says, or what reading says of a block that is written in part.
    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), SealError> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(SealError::TooLarge(offset))?;
        self.prepare(end)?;
        let size = self.block_size();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (block, within) = (at / size as u64, place(at % size as u64));
            let rest = &bytes[done..];
            let whole = (rest.len() / size).min(RUN_MAX);
            if within == 0 && whole > 0 {
                self.write_blocks(block, rest[..whole * size].to_vec())?;
                done += whole * size;
            } else {
                let part = rest.len().min(size - within);
                let mut whole = self.read_block(block)?;
                whole[within..within + part].copy_from_slice(&rest[..part]);
                self.write_blocks(block, whole)?;
                done += part;
            }
            self.header.size = self.header.size.max(offset + done as u64);
        }
        Ok(())
    }

    /// What must be known before something is changed.
    fn prepare(&mut self, end: u64) -> Result<(), SealError> {
        if self.failed {
            return Err(SealError::Failed);
        }
        let blocks = end.div_ceil(self.block_size() as u64);
        if self.slots.is_none() {
            let mut slots = Slots::new(self.reserved());
            let on = self.context();
            self.map().mark(&on, &mut slots)?;
            self.slots = Some(slots);
            // What was written before a crash is not in the header.
            self.header.writes = self.header.writes.saturating_add(WRITES_PER_COMMIT);
        }
        let on = self.context();
        self.map().grow(&on, blocks)
    }

    /// Seals whole blocks into free slots. The map names them only when all of a run are written.
    fn write_blocks(&mut self, first: u64, mut bytes: Vec<u8>) -> Result<(), SealError> {
        if self.header.writes + RUN_MAX as u64 > WRITES_MAX
            && self.header.cipher == Cipher::Aes256Gcm
        {
            return Err(SealError::KeyUsedUp);
        }
        let size = self.block_size();
        let slots = self.slots.as_mut().ok_or(SealError::Failed)?;
        let mut entries = Vec::with_capacity(bytes.len() / size);
        for (number, block) in (first..).zip(bytes.chunks_exact_mut(size)) {
            let nonce = self.keys.aead.nonce()?;
            let tag = self.keys.aead.seal(&nonce, &self.aad.block(number), block);
            entries.push(Entry { slot: slots.take(), nonce, tag });
        }
        let mut done = 0;
        for run in entries.chunk_by(|left, right| right.slot == left.slot + 1) {
            let part = &bytes[done * size..(done + run.len()) * size];
            if let Err(error) = self.store.write_at(part, run[0].slot * size as u64) {
                entries.iter().for_each(|entry| slots.give_back(entry.slot));
                return Err(error.into());
            }
            done += run.len();
        }
        self.header.writes += entries.len() as u64;
        self.changed = true;
        self.name(first, &entries)?;
        let due = self.slots.as_ref().is_some_and(|slots| self.map().commit_due(slots));
        if due { self.commit() } else { Ok(()) }
    }

    /// Enters what was written in the map.
    fn name(&mut self, first: u64, entries: &[Entry]) -> Result<(), SealError> {
        let on = Context {
            store: &self.store,
            keys: &self.keys,
            aad: self.aad.clone(),
            block_size: self.block_size(),
        };
        let map = self.map.get_mut().unwrap_or_else(PoisonError::into_inner);
        let slots = self.slots.as_mut().ok_or(SealError::Failed)?;
        for (number, entry) in (first..).zip(entries) {
            let before = map.set(&on, number, *entry)?;
            slots.release(before.slot);
        }
        Ok(())
    }

    /// Cuts the file, or extends it by a hole.
    ///
    /// # Errors
    /// As [`SealedFile::write_at`].
    pub fn set_len(&mut self, length: u64) -> Result<(), SealError> {
        self.prepare(length)?;
        let size = self.block_size() as u64;
        if length < self.header.size {
            // What lies behind the end reads as zero if the file is extended again.
            if !length.is_multiple_of(size) {
                let mut last = self.read_block(length / size)?;
                last[place(length % size)..].fill(0);
                self.write_blocks(length / size, last)?;
            }
            for block in length.div_ceil(size)..self.blocks() {
                self.name(block, &[Entry::default()])?;
            }
        }
        self.changed |= length != self.header.size;
        self.header.size = length;
        Ok(())
    }

    /// Makes everything written durable. After a crash the file is as one of its commits left it:
    /// the last one that returned, or the one that was under way.
    ///
    /// # Errors
    /// What the store says. If the header may be half-written, the file must be opened again.
    pub fn commit(&mut self) -> Result<(), SealError> {
        if self.failed {
            return Err(SealError::Failed);
        }
        if !self.changed {
            return Ok(());
        }
        let block_size = self.block_size();
        let map = self.map.get_mut().unwrap_or_else(PoisonError::into_inner);
        let slots = self.slots.as_mut().ok_or(SealError::Failed)?;
        let (root, nodes) = map.write(&mut self.store, &self.keys, &self.aad, block_size, slots)?;
        self.header.levels = map.levels.min(LEVELS_MAX);
        self.header.root = root;
        self.header.writes += nodes;
        // Everything that the new header refers to must be there before it, and so must the copy
        // that the last commit wrote second.
        self.store.sync()?;
        self.header.generation += 1;
        let bytes = self.header.encode(&self.keys, &self.domain);
        let first = 1 - self.durable_copy;
        self.failed = true;
        self.store.write_at(&bytes, first * HEADER_SPACE)?;
        self.store.sync()?;
        self.durable_copy = first;
        if let Some(slots) = &mut self.slots {
            slots.committed();
        }
        // Durable with the next commit. Until then the first copy is newer.
        self.store.write_at(&bytes, (1 - first) * HEADER_SPACE)?;
        self.failed = false;
        self.changed = false;
        Ok(())
    }

    /// Reads every block. `each` learns of every one that is not authentic, and how far it is.
    ///
    /// # Errors
    /// What the store says.
    pub fn check(&self, mut each: impl FnMut(u64, Option<SealError>)) -> Result<(), SealError> {
        for block in 0..self.blocks() {
            match self.read_block(block) {
                Ok(_) => each(block, None),
                Err(SealError::Io(error)) => return Err(error.into()),
                Err(error) => each(block, Some(error)),
            }
        }
        Ok(())
    }
}

fn place(within: u64) -> usize {
    usize::try_from(within).expect("less than a block")
}
