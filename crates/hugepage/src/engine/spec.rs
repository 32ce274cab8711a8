//! What is wanted of an engine, in words that print and parse: `nt-avx512 forward whole`,
//! `hybrid forward whole window=64K`, `avx512 forward 64K prefetch=512`.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::order::Order;
use super::store::Store;
use crate::error::Error;
use crate::machine::parse_size;

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
        crate::check::check_multiple("a chunk", bytes, Self::LEAST_BYTES)?;
        Ok(Self(bytes))
    }

    /// A chunk of `KIB` KiB, checked when compiled: 4 to 1 048 576 and a multiple of 4.
    pub const fn kib<const KIB: usize>() -> Self {
        const { assert!(KIB >= 4 && KIB.is_multiple_of(4) && KIB <= 1 << 20) }
        Self(KIB * 1024)
    }

    /// The size in bytes, `usize::MAX` for the whole buffer.
    #[must_use]
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
    /// How far ahead the source is prefetched, in bytes; 0 for not at all. The vector kinds heed
    /// it.
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
