//! How many blocks and nodes are written under a file's key, and what a crash makes that count forget.
//!
//! A header holds the count, and the most that may be written beyond it before another header is
//! durable. Who opens the file takes all of that for written, as after a crash it may be. So a header
//! for few writes costs the key little, and who writes much needs a further header sooner.

use crate::cipher::Cipher;
use crate::error::SealError;
use crate::header::{AHEAD_MAX, AHEAD_NEW, Header};

/// AES-GCM with random nonces of 96 bits: after so many, two are the same with a chance of 2^-33.
const WRITES_MAX: u64 = 1 << 32;
/// The binary logarithm of what may be written beyond a header, at least.
const AHEAD_MIN: u8 = 10;
/// The next header allows for so many times of what was written since the one before, so that a
/// stream needs few, and what an opening costs is in proportion to what is written.
const AHEAD_TIMES: u64 = 8;

/// What a header says of the count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    writes: u64,
    ahead: u8,
}

impl Count {
    pub(crate) fn of(header: &Header) -> Count {
        Count { writes: header.writes, ahead: header.ahead }
    }

    fn is_exceeded(&self, writes: u64, quarters: u64) -> bool {
        writes.saturating_sub(self.writes) > (1 << self.ahead) / 4 * quarters
    }
}

/// What the headers account for that a crash may leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) durable: Count,
    /// Of the one that is being written, if there is one: a crash may leave it or the one before.
    pub(crate) newest: Count,
}

impl Counts {
    pub(crate) fn of(header: &Header) -> Counts {
        Counts { durable: Count::of(header), newest: Count::of(header) }
    }

    /// Whether a count of `writes` is more than so many quarters of what may be written beyond one of
    /// the headers. Blocks take two at most, so that the nodes of the map have the others.
    pub(crate) fn are_exceeded(&self, writes: u64, quarters: u64) -> bool {
        [self.durable, self.newest].iter().any(|count| count.is_exceeded(writes, quarters))
    }

    /// The logarithm for the next header, by what was written since the newest one; it has room for
    /// `least` at least.
    pub(crate) fn next_ahead(&self, writes: u64, least: u64) -> u8 {
        let written = writes.saturating_sub(self.newest.writes).saturating_mul(AHEAD_TIMES);
        let enough = |most| (AHEAD_MIN..AHEAD_MAX).find(|ahead| 1 << ahead >= most);
        let log2 = |most: u64| enough(most).unwrap_or(AHEAD_MAX);
        log2(written).min(AHEAD_NEW).max(log2(least))
    }
}

impl Header {
    /// All that may have been written under the key when this header is found, which it does not
    /// tell: a crash may have come after it.
    pub(crate) fn count_what_a_crash_forgets(&mut self) {
        self.writes = self.writes.saturating_add(1 << self.ahead);
    }

    /// Counts so many blocks, before they are sealed.
    ///
    /// # Errors
    /// If that is too much for the key.
    pub(crate) fn count(&mut self, blocks: u64) -> Result<(), SealError> {
        let writes = self.writes.saturating_add(blocks);
        if writes > WRITES_MAX && self.cipher == Cipher::Aes256Gcm {
            return Err(SealError::KeyUsedUp);
        }
        self.writes = writes;
        Ok(())
    }
}
