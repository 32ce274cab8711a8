//! Entries of a directory listing.

use std::time::Duration;

use zerocopy::IntoBytes;

use super::DirReply;
use crate::abi::{Dirent, EntryOut};
use crate::types::{Entry, Name};

const DIRENT_BYTES: usize = size_of::<Dirent>();
const PLUS_BYTES: usize = size_of::<EntryOut>() + DIRENT_BYTES;

impl DirReply<'_> {
    /// Whether an entry with a name of `name_len` bytes still fits, with attributes (`plus`) or
    /// without. In READDIRPLUS every entry has room for attributes.
    #[must_use]
    pub fn fits(&self, name_len: usize, plus: bool) -> bool {
        let head = if plus || self.plus { PLUS_BYTES } else { DIRENT_BYTES };
        name_len <= Name::MAX && self.len + (head + name_len).next_multiple_of(8) <= self.max
    }

    /// Adds an entry without attributes. `kind` is a `DT_*`, `next_offset` the cookie from which the
    /// listing goes on after this entry. In READDIRPLUS the kernel looks the name up when it needs
    /// more. `false`: the entry was not added, because the reply is full or the name
    /// [cannot be](DirReply).
    pub fn add(&mut self, ino: u64, kind: u32, next_offset: u64, name: &[u8]) -> bool {
        if self.plus {
            let mut unseen = Entry::negative(Duration::ZERO);
            unseen.attr.ino = ino;
            return self.add_plus(&unseen, kind, next_offset, name);
        }
        if !self.takes(name, false) {
            return false;
        }
        self.push(&[dirent(ino, kind, next_offset, name).as_bytes(), name]);
        true
    }

    /// Adds an entry of READDIRPLUS: each positive `entry` counts one lookup once it reaches the
    /// kernel. `.` and `..` carry [`Entry::negative`] (the kernel takes no lookup for them) with
    /// the inode number in `attr.ino`. `false`: the entry was not added, because the reply is full, the
    /// name [cannot be](DirReply), or this is READDIR, which takes no attributes and counts no lookups.
    pub fn add_plus(&mut self, entry: &Entry, kind: u32, next_offset: u64, name: &[u8]) -> bool {
        if !self.takes(name, true) {
            return false;
        }
        let head = dirent(entry.attr.ino, kind, next_offset, name);
        self.push(&[EntryOut::from(entry).as_bytes(), head.as_bytes(), name]);
        true
    }

    /// Whether an entry may be added, with attributes (`plus`) or without.
    fn takes(&mut self, name: &[u8], plus: bool) -> bool {
        let can_be = (1..=Name::MAX).contains(&name.len())
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
            && plus == self.plus;
        self.is_broken |= !can_be;
        !self.is_broken && self.fits(name.len(), plus)
    }

    /// Bytes used so far.
    #[must_use]
    pub fn used(&self) -> usize {
        self.len
    }

    fn push(&mut self, parts: &[&[u8]]) {
        let end = self.len + parts.iter().map(|p| p.len()).sum::<usize>().next_multiple_of(8);
        let Some(area) = self.raw.area.as_deref_mut() else { return };
        let mut free = &mut area.data(end)[self.len..];
        for part in parts {
            let (here, after) = free.split_at_mut(part.len());
            here.copy_from_slice(part);
            free = after;
        }
        free.fill(0);
        self.len = end;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a name has at most 1,024 bytes")]
fn dirent(ino: u64, kind: u32, off: u64, name: &[u8]) -> Dirent {
    Dirent { ino, off, namelen: name.len() as u32, kind }
}
