//! What is recorded most often, in bounded memory: the Space-Saving algorithm (Metwally, Agrawal,
//! El Abbadi 2005). Whatever makes up more than one part in [`KEPT`] of all records is found; a
//! count is exact or too high by at most the error that stands beside it.

use std::collections::HashMap;

use crate::requests::Frequent;

/// How many candidates are kept.
const KEPT: usize = 256;
/// How many are reported.
const REPORTED: usize = 10;

/// Counts of texts.
#[derive(Debug, Default)]
pub(super) struct Busiest {
    counts: HashMap<Box<[u8]>, Counted>,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    count: u64,
    /// How much of it may belong to others.
    error: u64,
}

impl Busiest {
    /// Counts `what` once.
    pub(super) fn count(&mut self, what: &[u8]) {
        if let Some(known) = self.counts.get_mut(what) {
            known.count += 1;
            return;
        }
        let mut new = Counted { count: 1, error: 0 };
        if self.counts.len() == KEPT
            && let Some((rarest, count)) = self.rarest()
        {
            // It may have been seen as often before as the one that makes room.
            self.counts.remove(&rarest);
            new = Counted { count: count + 1, error: count };
        }
        self.counts.insert(what.into(), new);
        debug_assert!(self.counts.len() <= KEPT);
    }

    fn rarest(&self) -> Option<(Box<[u8]>, u64)> {
        let rarest = self.counts.iter().min_by_key(|(_, counted)| counted.count)?;
        Some((rarest.0.clone(), rarest.1.count))
    }

    /// The most frequent ones, the busiest first.
    pub(super) fn report(&self) -> Vec<Frequent> {
        let mut all: Vec<_> = self
            .counts
            .iter()
            .map(|(what, counted)| Frequent {
                what: String::from_utf8_lossy(what).into_owned(),
                count: counted.count,
                error: counted.error,
            })
            .collect();
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.what.cmp(&b.what)));
        all.truncate(REPORTED);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_is_found_among_more_than_are_kept() {
        let mut busiest = Busiest::default();
        for number in 0..10_000_u32 {
            busiest.count(format!("rare {number}").as_bytes());
            if number % 10 == 0 {
                busiest.count(b"busy");
            }
        }
        let first = &busiest.report()[0];
        assert_eq!(first.what, "busy");
        assert!(first.count >= 1000 && first.count - first.error <= 1000, "{first:?}");
        assert_eq!(busiest.counts.len(), KEPT);
        assert_eq!(busiest.report().len(), REPORTED);
    }
}
