//! What is wanted of an engine, in words that print and parse: `nt-avx512 forward whole`,
//! `hybrid forward whole window=64K`, `avx512 forward 64K prefetch=512`.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::{Clearer, Copier, Order, kernel};
use crate::error::Error;
use crate::machine::parse_size;

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
    /// The best non-temporal stores, then cached stores on a window round the target.
    Hybrid,
}

impl Store {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::Rep,
        Self::Avx2,
        Self::Avx512,
        Self::NtAvx2,
        Self::NtAvx512,
        Self::Clzero,
        Self::Hybrid,
    ];

    /// Whether this processor has it.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Hybrid => Self::best_non_temporal().is_ok(),
            store => kernel::kernels(store).is_ok(),
        }
    }

    /// The kinds that this processor has.
    pub fn supported() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|store| store.is_supported())
    }

    /// Whether its stores pass the caches.
    pub fn is_non_temporal(self) -> bool {
        matches!(self, Self::NtAvx2 | Self::NtAvx512 | Self::Clzero)
    }

    pub(super) fn best_non_temporal() -> Result<Self, Error> {
        let kinds = [Self::NtAvx512, Self::NtAvx2];
        kinds.into_iter().find(|store| kernel::kernels(*store).is_ok()).ok_or_else(|| {
            Error::Unsupported {
                what: "a non-temporal store".into(),
                on: "this processor".into(),
                way_out: "use `plain`, or a plan from ClearPlan::detected".into(),
            }
        })
    }

    pub(super) fn best_cached() -> Self {
        let kinds = [Self::Avx512, Self::Avx2];
        kinds.into_iter().find(|store| kernel::kernels(*store).is_ok()).unwrap_or(Self::Plain)
    }
}

/// How many bytes are handled before the next chunk of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chunk(usize);

impl Chunk {
    /// The buffer as one chunk.
    pub const WHOLE: Self = Self(usize::MAX);
    /// The least chunk in bytes.
    pub const LEAST_BYTES: usize = 4096;

    /// A chunk of `bytes`, a multiple of 4096.
    ///
    /// # Errors
    /// [`Error::Zero`] and [`Error::Unaligned`].
    pub fn of(bytes: usize) -> Result<Self, Error> {
        if bytes == 0 {
            return Err(Error::Zero { what: "a chunk", least_bytes: Self::LEAST_BYTES });
        }
        crate::region::check_multiple("a chunk", bytes, Self::LEAST_BYTES)?;
        Ok(Self(bytes))
    }

    /// A chunk of `KIB` KiB, checked when compiled: 4 to 1 048 576 and a multiple of 4.
    pub const fn kib<const KIB: usize>() -> Self {
        const { assert!(KIB >= 4 && KIB.is_multiple_of(4) && KIB <= 1 << 20) }
        Self(KIB * 1024)
    }

    /// The size in bytes, `usize::MAX` for the whole buffer.
    pub fn bytes(self) -> usize {
        self.0
    }
}

/// How to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClearSpec {
    /// Kind of store.
    pub store: Store,
    /// Order of the chunks.
    pub order: Order,
    /// Size of the chunks.
    pub chunk: Chunk,
    /// Bytes round the target that [`Store::Hybrid`] writes with cached stores; at most the buffer.
    pub window_bytes: usize,
}

impl ClearSpec {
    /// The window that the hybrid has unless told otherwise, in bytes.
    pub const WINDOW_BYTES: usize = 64 << 10;

    /// `store`, forward, in one chunk.
    pub const fn forward(store: Store) -> Self {
        let window_bytes = Self::WINDOW_BYTES;
        Self { store, order: Order::Forward, chunk: Chunk::WHOLE, window_bytes }
    }

    /// The same in another order.
    #[must_use]
    pub const fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The same with another chunk size.
    #[must_use]
    pub const fn chunk(self, chunk: Chunk) -> Self {
        Self { chunk, ..self }
    }

    /// The same with another window.
    #[must_use]
    pub const fn window(self, window_bytes: usize) -> Self {
        Self { window_bytes, ..self }
    }

    /// The engine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the processor lacks the instructions.
    pub fn check(self) -> Result<Clearer, Error> {
        Clearer::new(self)
    }

    /// `window_bytes` round the target, shifted where an end of the buffer is near.
    pub(super) fn window_of(self, len: usize, target: usize) -> Range<usize> {
        let width = self.window_bytes.min(len);
        let start = target.saturating_sub(width / 2).min(len - width);
        start..start + width
    }
}

/// How to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopySpec {
    /// Kind of store, order, chunk and window, as for clearing.
    pub clear: ClearSpec,
    /// How far ahead the source is prefetched, in bytes; 0 for not at all. The vector kinds heed it.
    pub prefetch_bytes: usize,
}

impl CopySpec {
    /// `store`, forward, in one chunk, without prefetch.
    pub const fn forward(store: Store) -> Self {
        Self { clear: ClearSpec::forward(store), prefetch_bytes: 0 }
    }

    /// The same with prefetch.
    #[must_use]
    pub const fn prefetch(self, prefetch_bytes: usize) -> Self {
        Self { prefetch_bytes, ..self }
    }

    /// The engine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the processor lacks the instructions, or the kind only clears.
    pub fn check(self) -> Result<Copier, Error> {
        Copier::new(self)
    }
}

const STORE_WORDS: [(&str, Store); 8] = [
    ("plain", Store::Plain),
    ("rep", Store::Rep),
    ("avx2", Store::Avx2),
    ("avx512", Store::Avx512),
    ("nt-avx2", Store::NtAvx2),
    ("nt-avx512", Store::NtAvx512),
    ("clzero", Store::Clzero),
    ("hybrid", Store::Hybrid),
];

const ORDER_WORDS: [(&str, Order); 5] = [
    ("forward", Order::Forward),
    ("reverse", Order::Reverse),
    ("target-last", Order::TargetLast),
    ("neighbourhood-last", Order::NeighbourhoodLast),
    ("descending", Order::Descending),
];

fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, each)| each == value).map_or("?", |(word, _)| word)
}

fn value_of<T: Copy>(words: &[(&str, T)], word: &str, what: &'static str) -> Result<T, Error> {
    let found = words.iter().find(|(each, _)| *each == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Error::BadWord { word: word.into(), what, allowed: allowed.join(", ") }
    })
}

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

impl fmt::Display for Order {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(word_of(&ORDER_WORDS, self))
    }
}

impl FromStr for Order {
    type Err = Error;
    fn from_str(word: &str) -> Result<Self, Error> {
        value_of(&ORDER_WORDS, word, "an order")
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WHOLE => out.pad("whole"),
            Self(bytes) => out.pad(&format!("{}K", bytes / 1024)),
        }
    }
}

impl FromStr for Chunk {
    type Err = Error;
    fn from_str(word: &str) -> Result<Self, Error> {
        if word == "whole" {
            return Ok(Self::WHOLE);
        }
        Self::of(size_of_word(word, "a chunk size", "whole, or a size such as 64K")?)
    }
}

fn size_of_word(word: &str, what: &'static str, allowed: &str) -> Result<usize, Error> {
    parse_size(word).ok_or_else(|| Error::BadWord {
        word: word.into(),
        what,
        allowed: allowed.into(),
    })
}

impl fmt::Display for ClearSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{} {} {}", self.store, self.order, self.chunk);
        if self.store == Store::Hybrid {
            text += &format!(" window={}", self.window_bytes);
        }
        out.pad(&text)
    }
}

impl fmt::Display for CopySpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefetch = match self.prefetch_bytes {
            0 => String::new(),
            bytes => format!(" prefetch={bytes}"),
        };
        out.pad(&format!("{}{prefetch}", self.clear))
    }
}

impl FromStr for ClearSpec {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let spec: CopySpec = text.parse()?;
        if spec.prefetch_bytes == 0 {
            return Ok(spec.clear);
        }
        let allowed = "a store kind, an order, a chunk size, window=SIZE".into();
        Err(Error::BadWord { word: text.into(), what: "a way to clear", allowed })
    }
}

impl FromStr for CopySpec {
    type Err = Error;
    /// A store kind, then in any order: an order, a chunk size, `window=SIZE`, `prefetch=SIZE`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut words = text.split_whitespace();
        let mut spec = Self::forward(words.next().unwrap_or_default().parse()?);
        for word in words {
            if let Some(size) = word.strip_prefix("window=") {
                spec.clear.window_bytes = size_of_word(size, "a window", "a size such as 64K")?;
            } else if let Some(size) = word.strip_prefix("prefetch=") {
                spec.prefetch_bytes = size_of_word(size, "a distance", "a size such as 512")?;
            } else if word.starts_with(|first: char| first.is_ascii_digit()) || word == "whole" {
                spec.clear.chunk = word.parse()?;
            } else {
                spec.clear.order = word.parse()?;
            }
        }
        Ok(spec)
    }
}
