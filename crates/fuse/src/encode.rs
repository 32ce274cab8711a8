//! Values of [`crate::types`] as the kernel's structures.

use std::time::Duration;

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    AttrOut, EntryOut, FuseAttr, FuseStatx, OpenOut, SizeOut, StatfsOut, StatxOut, SxTime, U64Out,
    WireFileLock,
};
use crate::types::{Attr, Attributes, Created, Entry, FileLock, Opened, StatFs, Statx};

/// Longest reply body of a fixed size in bytes (STATX).
pub const MAX_ANSWER_BYTES: usize = size_of::<StatxOut>();

/// A value that can be the body of a reply.
pub trait Answer {
    /// Writes the wire form to the start of `out` and returns its length in bytes.
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize;
}

fn put<T: IntoBytes + Immutable>(value: &T, out: &mut [u8]) -> usize {
    let bytes = value.as_bytes();
    out[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

impl Answer for () {
    fn encode(&self, _out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        0
    }
}

/// Bytes written.
impl Answer for u32 {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        put(&SizeOut { size: *self, padding: 0 }, out)
    }
}

/// An offset, or bytes copied. In little-endian order this is also the reply to the older, 32-bit
/// form of COPY_FILE_RANGE, whose length the kernel keeps below 4 GiB.
impl Answer for u64 {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        put(&U64Out { value: *self }, out)
    }
}

impl Answer for Entry {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        put(&EntryOut::from(self), out)
    }
}

impl Answer for Attributes {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        let wire = AttrOut {
            attr_valid: self.valid.as_secs(),
            attr_valid_nsec: self.valid.subsec_nanos(),
            dummy: 0,
            attr: FuseAttr::from(&self.attr),
        };
        put(&wire, out)
    }
}

impl Answer for Statx {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        let wire = StatxOut {
            attr_valid: self.valid.as_secs(),
            attr_valid_nsec: self.valid.subsec_nanos(),
            stat: FuseStatx::from(self),
            ..StatxOut::default()
        };
        put(&wire, out)
    }
}

impl Answer for Opened {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        put(&OpenOut::from(self), out)
    }
}

impl Answer for Created {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        let len = put(&EntryOut::from(&self.entry), out);
        len + put(&OpenOut::from(&self.opened), &mut out[len..])
    }
}

impl Answer for StatFs {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        let wire = StatfsOut {
            blocks: self.blocks,
            bfree: self.bfree,
            bavail: self.bavail,
            files: self.files,
            ffree: self.ffree,
            bsize: self.bsize,
            namelen: self.namelen,
            frsize: self.frsize,
            ..StatfsOut::default()
        };
        put(&wire, out)
    }
}

impl Answer for FileLock {
    fn encode(&self, out: &mut [u8; MAX_ANSWER_BYTES]) -> usize {
        let Self { start, end, kind, pid } = *self;
        put(&WireFileLock { start, end, kind, pid }, out)
    }
}

#[expect(clippy::cast_sign_loss, reason = "the wire has signed seconds in unsigned fields")]
impl From<&Attr> for FuseAttr {
    fn from(attr: &Attr) -> Self {
        Self {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.0 as u64,
            mtime: attr.mtime.0 as u64,
            ctime: attr.ctime.0 as u64,
            atimensec: attr.atime.1,
            mtimensec: attr.mtime.1,
            ctimensec: attr.ctime.1,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: 0,
        }
    }
}

impl From<&Entry> for EntryOut {
    fn from(entry: &Entry) -> Self {
        let (secs, nanos) = split(entry.entry_valid);
        let (attr_secs, attr_nanos) = split(entry.attr_valid);
        Self {
            nodeid: entry.node.0,
            generation: entry.generation,
            entry_valid: secs,
            attr_valid: attr_secs,
            entry_valid_nsec: nanos,
            attr_valid_nsec: attr_nanos,
            attr: FuseAttr::from(&entry.attr),
        }
    }
}

impl From<&Opened> for OpenOut {
    fn from(opened: &Opened) -> Self {
        Self {
            fh: opened.handle.0,
            open_flags: opened.flags.bits(),
            backing_id: opened.backing.map_or(0, |id| id.0),
        }
    }
}

impl From<&Statx> for FuseStatx {
    fn from(statx: &Statx) -> Self {
        let attr = &statx.attr;
        let time = |(tv_sec, tv_nsec)| SxTime { tv_sec, tv_nsec, reserved: 0 };
        Self {
            mask: statx.mask,
            blksize: attr.blksize,
            attributes: statx.attributes,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            // File types and permissions are 16 bits wide.
            mode: u16::try_from(attr.mode & 0xffff).unwrap_or(0),
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: statx.attributes_mask,
            atime: time(attr.atime),
            btime: time(statx.btime),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major: (attr.rdev & 0xf_ff00) >> 8,
            rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00),
            ..Self::default()
        }
    }
}

fn split(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}
