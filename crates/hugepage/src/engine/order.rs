//! The order in which the chunks of a buffer are visited: pure arithmetic, no memory.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::words::{value_of, word_of};
use crate::error::Error;

/// The order of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// From the first chunk to the last.
    Forward,
    /// From the last chunk to the first; ascending stores within each.
    Reverse,
    /// Towards the target from both sides, left and right in turn, the far side first. The order of
    /// the kernel's `process_huge_page` (Linux 4.14 to 6.18).
    TargetLast,
    /// Right of the target's neighbourhood, left of it, then the neighbourhood (two base pages on
    /// each side), each contiguously. The order of the kernel's `folio_zero_user` where it clears
    /// contiguous pages.
    NeighbourhoodLast,
    /// From the last byte to the first: chunks and the stores within them descend.
    Descending,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 5] =
        [Self::Forward, Self::Reverse, Self::TargetLast, Self::NeighbourhoodLast, Self::Descending];

    /// Whether the order depends on where the target is.
    #[must_use]
    pub fn has_target(self) -> bool {
        matches!(self, Self::TargetLast | Self::NeighbourhoodLast)
    }
}

const ORDER_WORDS: [(&str, Order); 5] = [
    ("forward", Order::Forward),
    ("reverse", Order::Reverse),
    ("target-last", Order::TargetLast),
    ("neighbourhood-last", Order::NeighbourhoodLast),
    ("descending", Order::Descending),
];

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

/// Radius of the neighbourhood in base pages, as in the kernel.
const RADIUS_PAGES: usize = 2;
/// The page that the neighbourhood is counted in, in bytes.
const PAGE: usize = 4096;

/// The chunks of `len` bytes in some order, by number.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    order: Order,
    chunk: usize,
    len: usize,
    /// Number of the chunk that holds the target.
    target_chunk: usize,
    /// The neighbourhood of the target in bytes; empty for orders without one.
    near: Range<usize>,
    count: usize,
}

impl Steps {
    /// `chunk` is at least 1; `target` lies in the buffer unless that is empty.
    pub(crate) fn new(order: Order, len: usize, chunk: usize, target: usize) -> Self {
        debug_assert!(chunk > 0 && (target < len || len == 0));
        let chunk = chunk.min(len.max(1));
        let near = match order {
            Order::NeighbourhoodLast => neighbourhood(len, target),
            _ => 0..0,
        };
        let count = if order == Order::NeighbourhoodLast {
            let parts = [len - near.end, near.start, near.len()];
            parts.iter().map(|part| part.div_ceil(chunk)).sum()
        } else {
            len.div_ceil(chunk)
        };
        Self { order, chunk, len, target_chunk: target / chunk, near, count }
    }

    /// The chunks in order. Together they cover every byte exactly once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.count).map(|step| self.get(step))
    }

    fn get(&self, step: usize) -> Range<usize> {
        let number = match self.order {
            Order::Forward => step,
            Order::Reverse | Order::Descending => self.count - 1 - step,
            Order::TargetLast => self.converging(step),
            Order::NeighbourhoodLast => return self.by_part(step),
        };
        self.nth_chunk(number, 0..self.len)
    }

    fn nth_chunk(&self, number: usize, part: Range<usize>) -> Range<usize> {
        let start = part.start + number * self.chunk;
        start..start.saturating_add(self.chunk).min(part.end)
    }

    /// First the chunks of the longer side that have no partner on the other, from the far end;
    /// then pairs, left and right, until the target is reached.
    fn converging(&self, step: usize) -> usize {
        let (count, target) = (self.count, self.target_chunk);
        let left_heavy = 2 * target > count;
        let (pairs, base) =
            if left_heavy { (count - target, 2 * target - count) } else { (target, 0) };
        let single = count - 2 * pairs;
        if step < single {
            return if left_heavy { step } else { count - 1 - step };
        }
        let (pair, right) = ((step - single) / 2, (step - single) % 2 == 1);
        if right { base + 2 * pairs - 1 - pair } else { base + pair }
    }

    fn by_part(&self, mut step: usize) -> Range<usize> {
        for part in [self.near.end..self.len, 0..self.near.start] {
            let count = part.len().div_ceil(self.chunk);
            if step < count {
                return self.nth_chunk(step, part);
            }
            step -= count;
        }
        self.nth_chunk(step, self.near.clone())
    }
}

/// The parts of `chunk` before and after `window`, without the empty ones.
pub(super) fn without(
    chunk: Range<usize>,
    window: &Range<usize>,
) -> impl Iterator<Item = Range<usize>> {
    let before = chunk.start..chunk.end.min(window.start.max(chunk.start));
    let after = chunk.start.max(window.end).min(chunk.end)..chunk.end;
    let whole = window.is_empty();
    let parts = if whole { [chunk, 0..0] } else { [before, after] };
    parts.into_iter().filter(|part| !part.is_empty())
}

fn neighbourhood(len: usize, target: usize) -> Range<usize> {
    let page = target / PAGE;
    let start = page.saturating_sub(RADIUS_PAGES) * PAGE;
    start..((page + RADIUS_PAGES + 1) * PAGE).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn visit(order: Order, len: usize, chunk: usize, target: usize) -> Vec<usize> {
        let steps = Steps::new(order, len, chunk, target);
        steps.iter().map(|range| range.start / chunk).collect()
    }

    #[test]
    fn small_cases_by_hand() {
        assert_eq!(visit(Order::Forward, 30, 10, 0), [0, 1, 2]);
        assert_eq!(visit(Order::Reverse, 25, 10, 0), [2, 1, 0]);
        // The kernel's order for 8 pages and a fault on page 2: 7 6 5 4, then 0 3 1 2.
        assert_eq!(visit(Order::TargetLast, 80, 10, 25), [7, 6, 5, 4, 0, 3, 1, 2]);
        // A fault on page 6: 0 1 2 3, then 4 7 5 6.
        assert_eq!(visit(Order::TargetLast, 80, 10, 69), [0, 1, 2, 3, 4, 7, 5, 6]);
        let pages: Vec<usize> = visit(Order::NeighbourhoodLast, 10 * PAGE, PAGE, 4 * PAGE);
        assert_eq!(pages, [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]);
    }

    /// The interpreter takes about a microsecond for each byte.
    const LONGEST: usize = if cfg!(miri) { 20_000 } else { 100_000 };

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 512 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn every_byte_once_and_the_target_last(
            order in proptest::sample::select(&Order::ALL[..]),
            len in 1..LONGEST,
            chunk in prop_oneof![1usize..64, Just(4096usize), 64usize..200_000],
            at in 0.0f64..1.0,
        ) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a fraction of a small length"
            )]
            let target = ((len as f64) * at) as usize;
            let chunk = chunk.max(len / 500);
            let steps = Steps::new(order, len, chunk, target);
            let mut seen = vec![0u8; len];
            let mut last = 0..0;
            for range in steps.iter() {
                prop_assert!(!range.is_empty() && range.end <= len && range.len() <= chunk);
                seen[range.clone()].iter_mut().for_each(|count| *count += 1);
                last = range;
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
            match order {
                Order::TargetLast => prop_assert!(last.contains(&target)),
                Order::NeighbourhoodLast => {
                    let near = last.start / PAGE <= target / PAGE + 2;
                    prop_assert!(near && target / PAGE <= last.end / PAGE + 4);
                }
                Order::Reverse | Order::Descending => prop_assert_eq!(last.start, 0),
                Order::Forward => prop_assert_eq!(last.end, len),
            }
        }
    }
}
