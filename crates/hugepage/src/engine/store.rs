//! The kinds of store.

use std::fmt;
use std::str::FromStr;

use super::words::{value_of, word_of};
use crate::error::Error;

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// The C library's memset and memcpy.
    Plain,
    /// `rep stosb` and `rep movsb`.
    Rep,
    /// 32-byte stores.
    Avx2,
    /// 64-byte stores.
    Avx512,
    /// 32-byte stores past the caches.
    NtAvx2,
    /// 64-byte stores past the caches.
    NtAvx512,
    /// AMD's instruction that clears a cache line in memory. Clears only.
    Clzero,
    /// AArch64's instruction that clears a block of memory. Clears only.
    Zva,
    /// AArch64's pairs of 16-byte stores that need not stay in the caches.
    Stnp,
    /// The best non-temporal stores, then cached stores on a window round the target.
    Hybrid,
}

impl Store {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Plain,
        Self::Rep,
        Self::Avx2,
        Self::Avx512,
        Self::NtAvx2,
        Self::NtAvx512,
        Self::Clzero,
        Self::Zva,
        Self::Stnp,
        Self::Hybrid,
    ];

    /// Whether its stores pass the caches.
    #[must_use]
    pub fn is_non_temporal(self) -> bool {
        matches!(self, Self::NtAvx2 | Self::NtAvx512 | Self::Clzero | Self::Stnp)
    }
}

const STORE_WORDS: [(&str, Store); 10] = [
    ("plain", Store::Plain),
    ("rep", Store::Rep),
    ("avx2", Store::Avx2),
    ("avx512", Store::Avx512),
    ("nt-avx2", Store::NtAvx2),
    ("nt-avx512", Store::NtAvx512),
    ("clzero", Store::Clzero),
    ("zva", Store::Zva),
    ("stnp", Store::Stnp),
    ("hybrid", Store::Hybrid),
];

impl fmt::Display for Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(word_of(&STORE_WORDS, self))
    }
}

impl FromStr for Store {
    type Err = Error;
    fn from_str(word: &str) -> Result<Self, Error> {
        value_of(&STORE_WORDS, word, "a store kind")
    }
}
