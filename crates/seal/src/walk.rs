//! Walks over the map that look only at what is there: a hole of any length takes no time.

use std::ops::Range;

use crate::error::SealError;
use crate::header::Entry;
use crate::map::{Context, Map};
use crate::slots::Slots;
use crate::store::Store;

impl Map {
    /// How many blocks an entry of a node of this level stands for.
    fn span(&self, level: u8) -> u64 {
        self.capacity(level)
    }

    /// The first block behind those that a node names.
    pub(crate) fn end_of_node(&self, level: u8, number: u64) -> u64 {
        (number + 1).saturating_mul(self.span(level + 1))
    }

    /// Whether there may be anything below an entry. What is above a changed node is changed too.
    fn is_there(&self, level: u8, child: u64, entry: &Entry) -> bool {
        let unwritten = || self.nodes.get(&(level - 1, child)).is_some_and(|node| node.dirty);
        entry.slot != 0 || (level > 0 && unwritten())
    }

    fn root_is_there(&self) -> bool {
        self.levels > 0 && self.is_there(self.levels, 0, &self.root)
    }

    /// The next run of blocks that are not holes, from `from` on: within one node.
    pub(crate) fn next_run<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        from: u64,
    ) -> Result<Option<Range<u64>>, SealError> {
        if !self.root_is_there() || from >= self.capacity(self.levels) {
            return Ok(None);
        }
        let Some(start) = self.next_below(on, self.levels - 1, 0, from)? else { return Ok(None) };
        let (number, index) = self.split(start);
        let entries = &self.node(on, 0, number)?.entries[index..];
        let length = entries.iter().take_while(|entry| entry.slot != 0).count();
        Ok(Some(start..start + length as u64))
    }

    fn next_below<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
        from: u64,
    ) -> Result<Option<u64>, SealError> {
        let first = number * self.fanout as u64;
        let skipped = (from / self.span(level)).saturating_sub(first);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let entries = self.node(on, level, number)?.entries.clone();
        for (child, entry) in (first..).zip(&entries).skip(skipped) {
            if level == 0 {
                if entry.slot != 0 {
                    return Ok(Some(child));
                }
            } else if self.is_there(level, child, entry)
                && let Some(found) = self.next_below(on, level - 1, child, from)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Makes `blocks` a hole. If it fails, some of them are one already and the others as before.
    pub(crate) fn clear<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        blocks: &Range<u64>,
        slots: &mut Slots,
    ) -> Result<(), SealError> {
        if !self.root_is_there() || blocks.is_empty() {
            return Ok(());
        }
        self.clear_below(on, self.levels - 1, 0, blocks, slots)
    }

    fn clear_below<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
        blocks: &Range<u64>,
        slots: &mut Slots,
    ) -> Result<(), SealError> {
        let (first, span) = (number * self.fanout as u64, self.span(level));
        let entries = self.node(on, level, number)?.entries.clone();
        for (index, (child, entry)) in (first..).zip(&entries).enumerate() {
            let (start, end) = (child * span, (child + 1) * span);
            if end <= blocks.start || !self.is_there(level, child, entry) {
                continue;
            }
            if start >= blocks.end {
                break;
            }
            if blocks.start <= start && end <= blocks.end {
                self.cut_off(on, (level, number, index), child, entry, slots)?;
            } else {
                self.clear_below(on, level - 1, child, blocks, slots)?;
            }
        }
        Ok(())
    }

    /// Takes off what an entry names, with everything below. Nothing is released before all of it
    /// is known: what the map still names must not be used again.
    fn cut_off<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        (level, number, index): (u8, u64, usize),
        child: u64,
        entry: &Entry,
        slots: &mut Slots,
    ) -> Result<(), SealError> {
        let (mut named, mut nodes) = (vec![entry.slot], Vec::new());
        if level > 0 {
            self.gather(on, level - 1, child, &mut named, &mut nodes)?;
        }
        if entry.slot != 0 {
            self.put(on, level, number, index, Entry::default())?;
        }
        for place in nodes {
            let dropped = self.nodes.remove(&place);
            self.dirty -= usize::from(dropped.is_some_and(|node| node.dirty));
        }
        named.into_iter().for_each(|slot| slots.release(slot));
        Ok(())
    }

    /// The slots that a node names, directly or not, and the nodes.
    fn gather<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
        named: &mut Vec<u64>,
        nodes: &mut Vec<(u8, u64)>,
    ) -> Result<(), SealError> {
        let entries = self.node(on, level, number)?.entries.clone();
        nodes.push((level, number));
        for (child, entry) in (number * self.fanout as u64..).zip(&entries) {
            if self.is_there(level, child, entry) {
                named.push(entry.slot);
                if level > 0 {
                    self.gather(on, level - 1, child, named, nodes)?;
                }
            }
        }
        Ok(())
    }

    /// Marks the slots of everything that the map names. Where it names nothing, nothing is read.
    pub(crate) fn mark<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        slots: &mut Slots,
    ) -> Result<(), SealError> {
        if self.root.slot == 0 {
            return Ok(());
        }
        slots.mark(self.root.slot);
        self.mark_below(on, self.levels - 1, 0, slots)
    }

    fn mark_below<S: Store>(
        &mut self,
        on: &Context<'_, S>,
        level: u8,
        number: u64,
        slots: &mut Slots,
    ) -> Result<(), SealError> {
        let entries = self.node(on, level, number)?.entries.clone();
        let first = number * self.fanout as u64;
        for (below, entry) in (first..).zip(&entries).filter(|(_, entry)| entry.slot != 0) {
            slots.mark(entry.slot);
            if level > 0 {
                self.mark_below(on, level - 1, below, slots)?;
            }
        }
        Ok(())
    }
}
