//! The header: 4 KiB each of two copies, of which the first bytes have a meaning.
//!
//! | offset | bytes | |
//! |---:|---:|---|
//! | 0 | 8 | magic `TGSEALED` |
//! | 8 | 2 | version, 1 |
//! | 10 | 1 | cipher: 1 AES-256-GCM, 2 XChaCha20-Poly1305 |
//! | 11 | 1 | binary logarithm of the block size, 12 to 16 |
//! | 12 | 4 | key epoch |
//! | 16 | 32 | file id, random |
//! | 48 | 8 | generation: counts commits |
//! | 56 | 8 | size of the plain file |
//! | 64 | 8 | blocks and nodes ever written under this file's key |
//! | 72 | 1 | levels of the map |
//! | 73 | 1 | binary logarithm of how many more may be written before another header is durable; 0 is 18 |
//! | 74 | 6 | zero |
//! | 80 | 48 | the map's root: slot, nonce, tag |
//! | 128 | 32 | HMAC-SHA-256 of bytes 0 to 127 and the digest of the policy domain |
//!
//! Numbers are little-endian.

use crate::cipher::{Cipher, NONCE_LEN, TAG_LEN};
use crate::error::SealError;
use crate::keys::{FileKeys, Keys};

/// A copy's place on disk.
pub(crate) const HEADER_SPACE: u64 = 4096;
/// The bytes of a copy that have a meaning.
pub(crate) const HEADER_LEN: usize = 160;
const SIGNED_LEN: usize = 128;
pub(crate) const MAGIC: &[u8; 8] = b"TGSEALED";
const VERSION: u16 = 1;
pub(crate) const BLOCK_LOG2_MIN: u8 = 12;
pub(crate) const BLOCK_LOG2_MAX: u8 = 16;
pub(crate) const LEVELS_MAX: u8 = 6;
/// The binary logarithm of what may be written beyond the header of a new file, which is written
/// often and much; and what 0 means, which older programs wrote.
pub(crate) const AHEAD_NEW: u8 = 18;
/// The most. More than that of a new file is needed only where very many nodes were changed.
pub(crate) const AHEAD_MAX: u8 = 32;

/// Where a block or a node is, and what it must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its place in slots of a block's size; 0 for a hole.
    pub(crate) slot: u64,
    pub(crate) nonce: [u8; NONCE_LEN],
    pub(crate) tag: [u8; TAG_LEN],
}

impl Entry {
    pub(crate) const LEN: usize = 8 + NONCE_LEN + TAG_LEN;

    pub(crate) fn read(bytes: &[u8]) -> Entry {
        Entry {
            slot: u64::from_le_bytes(array(&bytes[..8])),
            nonce: array(&bytes[8..8 + NONCE_LEN]),
            tag: array(&bytes[8 + NONCE_LEN..Self::LEN]),
        }
    }

    pub(crate) fn write(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..8 + NONCE_LEN].copy_from_slice(&self.nonce);
        bytes[8 + NONCE_LEN..Self::LEN].copy_from_slice(&self.tag);
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("as many bytes as were cut out")
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cipher: Cipher,
    pub(crate) block_log2: u8,
    pub(crate) epoch: u32,
    pub(crate) file_id: [u8; 32],
    pub(crate) generation: u64,
    pub(crate) size: u64,
    pub(crate) writes: u64,
    /// The binary logarithm of how many more may be written before another header is durable.
    pub(crate) ahead: u8,
    pub(crate) levels: u8,
    pub(crate) root: Entry,
}

impl Header {
    pub(crate) fn encode(&self, keys: &FileKeys, domain: &[u8; 32]) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.cipher.id();
        bytes[11] = self.block_log2;
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.file_id);
        bytes[48..56].copy_from_slice(&self.generation.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.size.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.writes.to_le_bytes());
        bytes[72] = self.levels;
        bytes[73] = self.ahead;
        self.root.write(&mut bytes[80..SIGNED_LEN]);
        let tag = keys.sign(&bytes[..SIGNED_LEN], domain);
        bytes[SIGNED_LEN..].copy_from_slice(&tag);
        bytes
    }

    pub(crate) fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads one copy; nothing of it is used before it is authentic but what chooses the key.
    pub(crate) fn decode(
        bytes: &[u8; HEADER_LEN],
        keys: &(impl Keys + ?Sized),
        domain: &[u8; 32],
    ) -> Result<(Header, FileKeys), SealError> {
        if &bytes[..8] != MAGIC {
            return Err(SealError::NotSealed);
        }
        let version = u16::from_le_bytes(array(&bytes[8..10]));
        if version != VERSION {
            return Err(SealError::UnknownVersion(version));
        }
        let bad = |what, value| SealError::BadHeader { what, value };
        let cipher = Cipher::from_id(bytes[10]).ok_or(bad("the cipher", bytes[10].into()))?;
        let epoch = u32::from_le_bytes(array(&bytes[12..16]));
        let wrong = SealError::WrongEpoch { found: epoch, given: keys.newest().epoch() };
        let master = keys.of_epoch(epoch).ok_or(wrong)?;
        let file_id = array(&bytes[16..48]);
        let keys = FileKeys::new(master, cipher, &file_id);
        if !keys.verify(&bytes[..SIGNED_LEN], domain, &bytes[SIGNED_LEN..]) {
            return Err(SealError::HeaderNotAuthentic);
        }
        let header = Header {
            cipher,
            block_log2: bytes[11],
            epoch,
            file_id,
            generation: u64::from_le_bytes(array(&bytes[48..56])),
            size: u64::from_le_bytes(array(&bytes[56..64])),
            writes: u64::from_le_bytes(array(&bytes[64..72])),
            ahead: if bytes[73] == 0 { AHEAD_NEW } else { bytes[73] },
            levels: bytes[72],
            root: Entry::read(&bytes[80..SIGNED_LEN]),
        };
        if !(BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&header.block_log2) {
            return Err(bad("the block size's logarithm", header.block_log2.into()));
        }
        if header.levels > LEVELS_MAX {
            return Err(bad("the number of levels", header.levels.into()));
        }
        if header.ahead > AHEAD_MAX {
            return Err(bad("the logarithm of writes to come", header.ahead.into()));
        }
        Ok((header, keys))
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::keys::MasterKey;

    /// As older programs wrote it, with zero there, and as none writes it.
    #[test]
    fn the_logarithm_of_writes_to_come_is_read() {
        let master = MasterKey::from_bytes(1, Zeroizing::new([7; 32]));
        let (cipher, file_id, domain) = (Cipher::Aes256Gcm, [5; 32], [6; 32]);
        let keys = FileKeys::new(&master, cipher, &file_id);
        let read = |ahead| {
            let header = Header {
                cipher,
                block_log2: 12,
                epoch: 1,
                file_id,
                generation: 1,
                size: 0,
                writes: 5,
                ahead,
                levels: 0,
                root: Entry::default(),
            };
            let bytes = header.encode(&keys, &domain);
            Header::decode(&bytes, &master, &domain).map(|(header, _)| header.ahead)
        };
        assert_eq!(read(0).expect("an older one"), 18);
        assert_eq!(read(10).expect("one of today"), 10);
        let error = read(33).expect_err("more than the key can serve");
        assert!(matches!(error, SealError::BadHeader { value: 33, .. }), "{error}");
    }
}
