//! The leak check: a canary in every page of a buffer that is given back, and a look at every byte
//! of one that is taken.
#![expect(unsafe_code, reason = "writes to a buffer that its owner has just let go")]

use std::ptr::NonNull;

use crate::error::Error;

/// What is planted. Long and odd enough not to be an owner's own bytes.
const CANARY: [u8; 16] = *b"\xC5toll-canary\xA3\x5F\xE1\x07";
/// Distance in bytes between two canaries.
const STRIDE: usize = 4096;

/// Plants canaries in the buffer that is being given back.
pub(super) fn plant(start: NonNull<u8>, len: usize) {
    for offset in (0..len.saturating_sub(CANARY.len() - 1)).step_by(STRIDE) {
        // SAFETY: `offset + 16 <= len`, and the caller holds the buffer until it pushes it on a
        // list.
        unsafe { start.add(offset).cast::<[u8; 16]>().write_unaligned(CANARY) }
    }
}

/// The first byte that is not zero.
pub(super) fn scan(bytes: &[u8]) -> Option<Error> {
    let offset = bytes.iter().position(|byte| *byte != 0)?;
    let canary = bytes[offset..].starts_with(&CANARY);
    Some(Error::Leak { offset, byte: bytes[offset], canary })
}
