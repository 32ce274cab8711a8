//! Finds the header that holds.

use crate::cipher::Cipher;
use crate::error::SealError;
use crate::header::{BLOCK_LOG2_MIN, HEADER_LEN, HEADER_SPACE, Header, MAGIC};
use crate::keys::{FileKeys, Keys, domain_digest};
use crate::store::Store;

/// What a header says, to those who have the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Of the plain file, in bytes.
    pub size: u64,
    /// One for the making of the file and one for each commit since.
    pub generation: u64,
    /// Of the key.
    pub epoch: u32,
    /// Of its content.
    pub cipher: Cipher,
    /// Whether both copies of the header are good and the same.
    pub copies_agree: bool,
    /// Whether both copies are good, though one may be of the commit before: as a commit that is under
    /// way has it, and a crash within one leaves it. An older one does not count as good.
    pub both_good: bool,
}

/// Reads the header of a sealed file and nothing else.
///
/// # Errors
/// If no copy of the header is authentic under these keys and this policy domain, or the two are of
/// different files.
pub fn stat<S: Store>(
    store: &S,
    keys: &(impl Keys + ?Sized),
    domain: &[u8],
) -> Result<Stat, SealError> {
    let found = FoundHeader::find(store, keys, &domain_digest(domain))?;
    let FoundHeader { header, copies_agree, both_good, .. } = found;
    let Header { size, generation, epoch, cipher, .. } = header;
    Ok(Stat { size, generation, epoch, cipher, copies_agree, both_good })
}

/// Whether a sealed file can have a length of so many bytes: it is whole blocks, or the header alone.
#[must_use]
pub fn may_be_sealed(length: u64) -> bool {
    let blocks = length.is_multiple_of(1 << BLOCK_LOG2_MIN) && length >= 2 * HEADER_SPACE;
    blocks || length == HEADER_SPACE + HEADER_LEN as u64
}

/// Whether these first bytes of a file are those of a sealed one.
#[must_use]
pub fn begins_sealed(head: &[u8]) -> bool {
    let has_magic = |at: usize| head.get(at..).is_some_and(Header::has_magic);
    has_magic(0) || usize::try_from(HEADER_SPACE).is_ok_and(has_magic)
}

/// Whether a file begins as sealed files do: said of either copy of the header, without a key.
///
/// # Errors
/// What the store says.
pub fn looks_sealed<S: Store>(store: &S) -> std::io::Result<bool> {
    let length = store.len()?;
    for copy in [0, HEADER_SPACE] {
        // A header that is cut tells as much: nothing is read of it here.
        let mut bytes = [0; MAGIC.len()];
        if copy + (bytes.len() as u64) <= length {
            store.read_at(&mut bytes, copy)?;
            if Header::has_magic(&bytes) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

pub(crate) struct FoundHeader {
    pub(crate) header: Header,
    pub(crate) keys: FileKeys,
    pub(crate) copy: u64,
    pub(crate) copies_agree: bool,
    pub(crate) both_good: bool,
}

impl FoundHeader {
    /// The newest authentic copy. One that is torn or older is what a crash leaves; one of another
    /// file is not.
    pub(crate) fn find<S: Store>(
        store: &S,
        keys: &(impl Keys + ?Sized),
        domain: &[u8; 32],
    ) -> Result<FoundHeader, SealError> {
        let read = |copy: u64| {
            let mut bytes = [0; HEADER_LEN];
            match store.read_at(&mut bytes, copy * HEADER_SPACE) {
                Ok(()) => Header::decode(&bytes, keys, domain),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    Err(SealError::NotSealed)
                }
                Err(error) => Err(error.into()),
            }
        };
        let (copy, found, copies_agree, both_good) = match (read(0), read(1)) {
            // Whichever is the newer one: the blocks belong to one of the two files at most, and an
            // empty file's header would not even miss them.
            (Ok(first), Ok(second)) if first.0.file_id != second.0.file_id => {
                return Err(SealError::HeadersOfTwoFiles);
            }
            (Ok(first), Ok(second)) => {
                let agree = first.0 == second.0;
                let both_good = first.0.generation.abs_diff(second.0.generation) <= 1;
                if second.0.generation > first.0.generation {
                    (1, second, agree, both_good)
                } else {
                    (0, first, agree, both_good)
                }
            }
            (Ok(first), Err(_)) => (0, first, false, false),
            (Err(_), Ok(second)) => (1, second, false, false),
            // What is wrong with the other copy says nothing of one that was not read.
            (_, Err(error @ SealError::Io(_)))
            | (Err(SealError::NotSealed), Err(error))
            | (Err(error), Err(_)) => return Err(error),
        };
        let (header, keys) = found;
        Ok(FoundHeader { header, keys, copy, copies_agree, both_good })
    }
}
