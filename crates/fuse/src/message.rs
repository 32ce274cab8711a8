//! A request as it lies in a buffer: header, arguments, extensions. Nothing is copied but
//! fixed-size structures, and nothing that the peer says about lengths is believed before it was
//! checked.

use std::ffi::CStr;

use rustix::io::Errno;
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{self, ExtHeader, InHeader, opcode};
use crate::transport::RawRequest;
use crate::types::Name;

/// Why a request could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// There are fewer bytes than the operation needs.
    #[error("{}: {needed} more bytes needed, {have} there", opcode::name(*.opcode))]
    Truncated {
        /// Operation code, 0 if the header itself is short.
        opcode: u32,
        /// Bytes that the next field needs.
        needed: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// The header's length is not what was received.
    #[error("{}: the header says {said} bytes, {received} were received", opcode::name(*.opcode))]
    Length {
        /// Operation code.
        opcode: u32,
        /// Length in the header.
        said: u32,
        /// Length received.
        received: usize,
    },
    /// A name or string without its NUL.
    #[error("{}: a string is not terminated", opcode::name(*.opcode))]
    Unterminated {
        /// Operation code.
        opcode: u32,
    },
    /// A name that is no path component.
    #[error("{}: not the name of a directory entry: {errno}", opcode::name(*.opcode))]
    Name {
        /// Operation code.
        opcode: u32,
        /// What the caller gets.
        errno: Errno,
    },
    /// An extension that does not fit its own length.
    #[error("{}: a malformed extension", opcode::name(*.opcode))]
    Extension {
        /// Operation code.
        opcode: u32,
    },
}

impl DecodeError {
    /// What the caller gets.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Name { errno, .. } => *errno,
            _ => Errno::IO,
        }
    }
}

/// One request, split into its parts.
///
/// `/dev/fuse` delivers all parts in one piece ([`Message::contiguous`]); io_uring delivers the
/// operation's fixed arguments apart from the rest ([`Message::split`]).
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    header: InHeader,
    fixed: Option<&'a [u8]>,
    rest: &'a [u8],
    extensions: &'a [u8],
}

impl<'a> Message<'a> {
    /// A request as a transport received it.
    ///
    /// # Errors
    /// See [`Message::contiguous`] and [`Message::split`].
    pub fn parse(raw: RawRequest<'a>) -> Result<Self, DecodeError> {
        match raw {
            RawRequest::Contiguous(bytes) => Self::contiguous(bytes),
            RawRequest::Split { header, fixed, rest } => Self::split(header, fixed, rest),
        }
    }

    /// A request in one piece.
    ///
    /// # Errors
    /// A short header, a length that is not the buffer's, or extensions longer than the request.
    pub fn contiguous(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| short(bytes.len()))?;
        if header.len as usize != bytes.len() {
            let (said, received) = (header.len, bytes.len());
            return Err(DecodeError::Length { opcode: header.opcode, said, received });
        }
        Self::with_extensions(header, None, body)
    }

    /// A request whose fixed arguments `fixed` lie apart from the `rest`. Padding after the fixed
    /// arguments is allowed.
    ///
    /// # Errors
    /// A short header, or extensions longer than the rest.
    pub fn split(header: &[u8], fixed: &'a [u8], rest: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, _) = InHeader::read_from_prefix(header).map_err(|_| short(header.len()))?;
        Self::with_extensions(header, Some(fixed), rest)
    }

    /// Whether the request lies in an entry of a ring. The kernel ends such a request when the entry is
    /// submitted, with a reply for every operation: over /dev/fuse a FORGET, a BATCH_FORGET and an
    /// INTERRUPT end when they are read. Linux (6.14 to 6.18) sends them there, but the FORGET of a node
    /// that it was told of in a listing and cannot use comes here, and its caller waits for it.
    pub(crate) fn is_in_entry(&self) -> bool {
        self.fixed.is_some()
    }

    fn with_extensions(
        header: InHeader,
        fixed: Option<&'a [u8]>,
        body: &'a [u8],
    ) -> Result<Self, DecodeError> {
        let len = usize::from(header.total_extlen) * 8;
        let Some(at) = body.len().checked_sub(len) else {
            return Err(DecodeError::Extension { opcode: header.opcode });
        };
        let (rest, extensions) = body.split_at(at);
        Ok(Self { header, fixed, rest, extensions })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &InHeader {
        &self.header
    }

    /// A cursor over the arguments.
    pub(crate) fn arguments(&self) -> Arguments<'a> {
        Arguments { opcode: self.header.opcode, fixed: self.fixed, rest: self.rest }
    }

    /// The supplementary group that comes with what makes inodes, if the parent directory has it
    /// (`FUSE_CREATE_SUPP_GROUP`). The kernel sends at most one; of several the first counts.
    ///
    /// # Errors
    /// Extensions that do not fit their own lengths.
    pub fn supplementary_group(&self) -> Result<Option<u32>, DecodeError> {
        let bad = DecodeError::Extension { opcode: self.header.opcode };
        let mut left = self.extensions;
        while !left.is_empty() {
            let (head, _) = ExtHeader::read_from_prefix(left).map_err(|_| bad)?;
            let size = head.size as usize;
            if size < size_of::<ExtHeader>() || size > left.len() {
                return Err(bad);
            }
            if head.kind == abi::EXT_GROUPS {
                return first_group(&left[size_of::<ExtHeader>()..size]).ok_or(bad).map(Some);
            }
            let next = size.next_multiple_of(8).min(left.len());
            left = &left[next..];
        }
        Ok(None)
    }
}

fn first_group(body: &[u8]) -> Option<u32> {
    let (count, groups) = u32::read_from_prefix(body).ok()?;
    if count == 0 || groups.len() / 4 < count as usize {
        return None;
    }
    u32::read_from_prefix(groups).ok().map(|(gid, _)| gid)
}

fn short(have: usize) -> DecodeError {
    DecodeError::Truncated { opcode: 0, needed: size_of::<InHeader>(), have }
}

/// Takes a request's arguments one after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    opcode: u32,
    fixed: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// The operation's structure. Called at most once, first.
    pub(crate) fn fixed<T>(&mut self) -> Result<T, DecodeError>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let Some(apart) = self.fixed.take() else { return self.next() };
        T::read_from_prefix(apart)
            .map(|(value, _)| value)
            .map_err(|_| self.truncated(size_of::<T>(), apart.len()))
    }

    /// A structure after the fixed one.
    pub(crate) fn next<T>(&mut self) -> Result<T, DecodeError>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let (value, left) = T::read_from_prefix(self.rest)
            .map_err(|_| self.truncated(size_of::<T>(), self.rest.len()))?;
        self.rest = left;
        Ok(value)
    }

    /// A string with its NUL.
    pub(crate) fn string(&mut self) -> Result<&'a CStr, DecodeError> {
        let string = CStr::from_bytes_until_nul(self.rest)
            .map_err(|_| DecodeError::Unterminated { opcode: self.opcode })?;
        self.rest = &self.rest[string.count_bytes() + 1..];
        Ok(string)
    }

    /// A path component.
    pub(crate) fn name(&mut self) -> Result<Name<'a>, DecodeError> {
        let opcode = self.opcode;
        Name::new(self.string()?).map_err(|errno| DecodeError::Name { opcode, errno })
    }

    /// `len` bytes of data, which must be there.
    pub(crate) fn data(&mut self, len: u32) -> Result<&'a [u8], DecodeError> {
        let len = len as usize;
        let Some((data, left)) = self.rest.split_at_checked(len) else {
            return Err(self.truncated(len, self.rest.len()));
        };
        self.rest = left;
        Ok(data)
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    fn truncated(&self, needed: usize, have: usize) -> DecodeError {
        DecodeError::Truncated { opcode: self.opcode, needed, have }
    }
}
