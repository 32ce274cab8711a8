//! What can be wrong with a sealed file or a key.

use std::io;

/// Why a sealed file is not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// It does not begin as a sealed file does: a plain file, or something else.
    #[error("not a sealed file: it does not begin with the magic number")]
    NotSealed,
    /// Of a version that this program does not know.
    #[error("sealed with version {0} of the format; only version 1 is known")]
    UnknownVersion(u16),
    /// Sealed with a key of an epoch that is not among those given.
    #[error("sealed with the key of epoch {found}, which is not at hand; the newest is {given}")]
    WrongEpoch {
        /// In the header.
        found: u32,
        /// Of the newest key given.
        given: u32,
    },
    /// A header that says what no header can.
    #[error("bad header: {what} is {value}")]
    BadHeader {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// No header is authentic: another key or policy domain, or changed bytes.
    #[error("no header is authentic: wrong key, wrong policy domain, or changed bytes")]
    HeaderNotAuthentic,
    /// Both copies of the header are authentic, and they are of different files. Nothing that is
    /// written here leaves that, a crash neither.
    #[error("has the headers of two files: one was put there, and the blocks are not of both")]
    HeadersOfTwoFiles,
    /// A block is not what was written there.
    #[error("block {0} is not authentic: changed, moved or cut off")]
    BlockNotAuthentic(u64),
    /// A node of the map of blocks is not what was written there.
    #[error("the map node of level {level}, number {number}, is not authentic")]
    MapNotAuthentic {
        /// 0 for nodes that name blocks.
        level: u8,
        /// Its number in its level.
        number: u64,
    },
    /// More than a sealed file can hold.
    #[error("{0} bytes are more than a sealed file can have")]
    TooLarge(u64),
    /// So many blocks were written that nonces could repeat.
    #[error("the file's key is used up after 2^32 blocks written; seal the file anew")]
    KeyUsedUp,
    /// An earlier write failed half-way; the file must be opened again.
    #[error("an earlier write to this file failed; open it again")]
    Failed,
    /// There are no random numbers to be had.
    #[error("the system gives no random numbers")]
    NoRandom,
    /// What the store says.
    #[error(transparent)]
    Io(#[from] io::Error),
}
