//! The map from blocks to slots: a tree of nodes, each of a block's size, each encrypted, each
//! named with nonce and tag by the node above it.

use std::collections::HashMap;
use std::io::ErrorKind;

use crate::error::SealError;
use crate::header::{Entry, Header, LEVELS_MAX};
use crate::keys::FileKeys;
use crate::slots::Slots;
use crate::store::Store;

/// Nodes that are kept; beyond it, those that were not changed are dropped.
const NODES_MAX: usize = 2048;
/// Changed nodes, and released slots, that make a commit due: somebody should make one beside what
/// goes on. At twice as many, who writes makes it.
const DIRTY_DUE: usize = 1024;
const PENDING_DUE: usize = 1 << 14;

/// What is the same for every block and node of a file.
pub(crate) struct Context<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) keys: &'a FileKeys,
    pub(crate) aad: Aad,
    pub(crate) block_size: usize,
}

/// The associated data: kind, version, level, number, file id, digest of the policy domain.
#[derive(Clone)]
pub(crate) struct Aad([u8; 76]);

impl Aad {
    pub(crate) fn new(file_id: &[u8; 32], domain: &[u8; 32]) -> Aad {
        let mut bytes = [0; 76];
        bytes[1] = 1;
        bytes[12..44].copy_from_slice(file_id);
        bytes[44..].copy_from_slice(domain);
        Aad(bytes)
    }

    pub(crate) fn block(&self, number: u64) -> [u8; 76] {
        self.of(b'B', 0, number)
    }

    fn node(&self, level: u8, number: u64) -> [u8; 76] {
        self.of(b'N', level, number)
    }

    fn of(&self, kind: u8, level: u8, number: u64) -> [u8; 76] {
        let mut bytes = self.0;
        bytes[0] = kind;
        bytes[2] = level;
        bytes[4..12].copy_from_slice(&number.to_le_bytes());
        bytes
    }
}

pub(crate) struct Node {
    pub(crate) entries: Vec<Entry>,
    pub(crate) dirty: bool,
}

/// The nodes that are in memory.
pub(crate) struct Map {
    pub(crate) fanout: usize,
    pub(crate) levels: u8,
    pub(crate) root: Entry,
    pub(crate) nodes: HashMap<(u8, u64), Node>,
    pub(crate) dirty: usize,
}

impl Map {
    pub(crate) fn new(header: &Header) -> Map {
        let fanout = (1 << header.block_log2) / Entry::LEN;
        let (levels, root) = (header.levels, header.root);
        Map { fanout, levels, root, nodes: HashMap::new(), dirty: 0 }
    }

    /// How many blocks a map of so many levels can name.
    pub(crate) fn capacity(&self, levels: u8) -> u64 {
        (self.fanout as u64).pow(levels.into())
    }

    /// How many levels so many blocks need; `None` if more than there can be.
    pub(crate) fn levels_for(&self, blocks: u64) -> Option<u8> {
        (0..=LEVELS_MAX)
            .find(|levels| *levels > 0 && self.capacity(*levels) >= blocks || blocks == 0)
    }

    /// Whether `times` as much has changed as makes a commit due.
    pub(crate) fn has_changed(&self, slots: &Slots, times: usize) -> bool {
        self.dirty > times * DIRTY_DUE || slots.pending() > times * PENDING_DUE
    }

    /// How many blocks the map can name as it is.
    pub(crate) fn room(&self) -> u64 {
        if self.levels == 0 { 0 } else { self.capacity(self.levels) }
    }

    /// The entry of a block that the map has room for; `None` if a device must be waited for.
    pub(crate) fn get_at_once<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        block: u64,
    ) -> Result<Option<Entry>, SealError> {
        let (number, index) = self.split(block);
        let node = self.node_by(on, 0, number, S::read_at_once)?;
        Ok(node.map(|node| node.entries[index]))
    }

    /// The entry of a block.
    pub(crate) fn get<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        block: u64,
    ) -> Result<Entry, SealError> {
        if block >= self.capacity(self.levels) || self.levels == 0 {
            return Ok(Entry::default());
        }
        let (number, index) = self.split(block);
        Ok(self.node(on, 0, number)?.entries[index])
    }

    /// Sets the entry of a block; the one before.
    pub(crate) fn set<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        block: u64,
        entry: Entry,
    ) -> Result<Entry, SealError> {
        let (number, index) = self.split(block);
        self.put(on, 0, number, index, entry)
    }

    /// Makes room for `blocks`: what was the root becomes the first below a new one.
    pub(crate) fn grow<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        blocks: u64,
    ) -> Result<(), SealError> {
        let needed = self
            .levels_for(blocks)
            .ok_or_else(|| SealError::TooLarge(blocks.saturating_mul(on.block_size as u64)))?;
        while self.levels < needed {
            let below = std::mem::take(&mut self.root);
            self.levels += 1;
            if below != Entry::default() {
                self.put(on, self.levels - 1, 0, 0, below)?;
            } else if self.levels > 1 {
                // The root below may be changed and not written yet: then it is named when it is.
                self.touch(on, self.levels - 1, 0)?;
            }
        }
        Ok(())
    }

    pub(crate) fn split(&self, number: u64) -> (u64, usize) {
        let fanout = self.fanout as u64;
        (number / fanout, usize::try_from(number % fanout).expect("less than the fanout"))
    }

    pub(crate) fn put<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
        index: usize,
        entry: Entry,
    ) -> Result<Entry, SealError> {
        self.touch(on, level, number)?;
        let node = self.node(on, level, number)?;
        Ok(std::mem::replace(&mut node.entries[index], entry))
    }

    /// A node will be changed, and with the next commit all above it: walks rely on that.
    fn touch<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
    ) -> Result<(), SealError> {
        if self.nodes.get(&(level, number)).is_some_and(|node| node.dirty) {
            return Ok(());
        }
        if level + 1 < self.levels {
            self.touch(on, level + 1, self.split(number).0)?;
        }
        self.node(on, level, number)?.dirty = true;
        self.dirty += 1;
        Ok(())
    }

    /// A node, read if need be.
    pub(crate) fn node<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
    ) -> Result<&mut Node, SealError> {
        let wait = |store: &S, bytes: &mut [u8], at| store.read_at(bytes, at).map(|()| true);
        let node = self.node_by(on, level, number, wait)?;
        Ok(node.expect("it was waited for"))
    }

    /// As [`Map::node`], with `read` to read the store by; `None` if that says `false`.
    fn node_by<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
        read: impl Fn(&S, &mut [u8], u64) -> std::io::Result<bool> + Copy,
    ) -> Result<Option<&mut Node>, SealError> {
        if !self.nodes.contains_key(&(level, number)) {
            let entry = if level + 1 == self.levels {
                self.root
            } else {
                let (above, index) = self.split(number);
                let Some(above) = self.node_by(on, level + 1, above, read)? else {
                    return Ok(None);
                };
                above.entries[index]
            };
            if self.nodes.len() >= NODES_MAX {
                self.nodes.retain(|_, node| node.dirty);
            }
            let Some(entries) = self.read(on, (level, number), &entry, read)? else {
                return Ok(None);
            };
            self.nodes.insert((level, number), Node { entries, dirty: false });
        }
        Ok(self.nodes.get_mut(&(level, number)))
    }

    fn read<S: Store>(
        &self,
        on: &Context<'_, S>,
        (level, number): (u8, u64),
        entry: &Entry,
        read: impl Fn(&S, &mut [u8], u64) -> std::io::Result<bool>,
    ) -> Result<Option<Vec<Entry>>, SealError> {
        if entry.slot == 0 {
            return Ok(Some(vec![Entry::default(); self.fanout]));
        }
        let mut bytes = vec![0; on.block_size];
        let not_authentic = || SealError::MapNotAuthentic { level, number };
        let at = offset_of(entry.slot, on.block_size).ok_or_else(not_authentic)?;
        match read(on.store, &mut bytes, at) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(not_authentic()),
            Err(error) => return Err(error.into()),
        }
        let aad = on.aad.node(level, number);
        if !on.keys.aead.open(&entry.nonce, &aad, &mut bytes, entry.tag) {
            return Err(not_authentic());
        }
        Ok(Some(bytes.chunks_exact(Entry::LEN).map(Entry::read).collect()))
    }

    /// As many nodes as [`Map::write`] would write now, or more: those that were changed, and those
    /// above them, of which the highest level has one, and each other one what the level above can name.
    pub(crate) fn nodes_to_write(&self) -> u64 {
        let of_level = |below_root| self.capacity(below_root).min(self.dirty as u64);
        (0..self.levels).map(of_level).sum()
    }

    /// Writes what was changed to free slots, from the leaves up; the new root. Nodes are counted in
    /// `writes` before they are sealed, also where writing them fails.
    pub(crate) fn write<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        slots: &mut Slots,
        writes: &mut u64,
    ) -> Result<Entry, SealError> {
        for level in 0..self.levels {
            let changed = self.nodes.iter().filter(|((at, _), node)| *at == level && node.dirty);
            let mut numbers: Vec<u64> = changed.map(|((_, number), _)| *number).collect();
            numbers.sort_unstable();
            for number in numbers {
                let entries = &self.nodes[&(level, number)].entries;
                let mut entry = Entry::default();
                if entries.iter().any(|entry| entry.slot != 0) {
                    let mut bytes = vec![0; on.block_size];
                    for (entry, place) in entries.iter().zip(bytes.chunks_exact_mut(Entry::LEN)) {
                        entry.write(place);
                    }
                    *writes += 1;
                    entry.nonce = on.keys.aead.nonce()?;
                    let aad = on.aad.node(level, number);
                    entry.tag = on.keys.aead.seal(&entry.nonce, &aad, &mut bytes);
                    entry.slot = slots.take();
                    let offset = entry.slot * on.block_size as u64;
                    if let Err(error) = on.store.write_at(&bytes, offset) {
                        slots.give_back(entry.slot);
                        return Err(error.into());
                    }
                }
                let before = if level + 1 == self.levels {
                    std::mem::replace(&mut self.root, entry)
                } else {
                    let (above, index) = self.split(number);
                    self.put(on, level + 1, above, index, entry)?
                };
                slots.release(before.slot);
                self.nodes.get_mut(&(level, number)).expect("it is dirty").dirty = false;
                self.dirty -= 1;
            }
        }
        Ok(self.root)
    }
}

/// Where a slot begins; `None` for what no file has.
pub(crate) fn offset_of(slot: u64, block_size: usize) -> Option<u64> {
    let offset = slot.checked_mul(block_size as u64);
    offset.filter(|offset| i64::try_from(*offset).is_ok())
}

/// Fills `bytes` from `slot` on; `false` if the store ends before.
pub(crate) fn read_slots<S: Store>(
    store: &S,
    bytes: &mut [u8],
    slot: u64,
    block_size: usize,
) -> Result<bool, SealError> {
    let Some(offset) = offset_of(slot, block_size) else { return Ok(false) };
    match store.read_at(bytes, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}
