//! A set of CPUs, and the kernel's list notation for it (`0-3,8`).

use std::fmt;
use std::str::FromStr;

use crate::ids::CpuId;

/// CPU numbers are below this: the largest `CONFIG_NR_CPUS` of the kernel. It bounds what a list
/// such as `0-4294967295` can make us allocate.
pub const MAX_CPUS: u32 = 8192;

const WORD_BITS: usize = 64;

/// A set of CPUs: a bitset that is as long as its highest CPU needs.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// No trailing zero word, so that equal sets are equal vectors.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// The CPUs `0..count`.
    ///
    /// # Panics
    /// When `count` is above [`MAX_CPUS`].
    #[must_use]
    pub fn first(count: u32) -> Self {
        (0..count).map(CpuId).collect()
    }

    /// Adds a CPU; says whether it was absent.
    ///
    /// # Panics
    /// When the CPU is not below [`MAX_CPUS`].
    pub fn insert(&mut self, cpu: CpuId) -> bool {
        assert!(cpu.0 < MAX_CPUS, "CPU {cpu} is not below {MAX_CPUS}");
        let (word, bit) = place(cpu);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let absent = self.words[word] & bit == 0;
        self.words[word] |= bit;
        absent
    }

    /// Takes a CPU out; says whether it was there.
    pub fn remove(&mut self, cpu: CpuId) -> bool {
        let there = self.contains(cpu);
        if there {
            let (word, bit) = place(cpu);
            self.words[word] &= !bit;
            self.trim();
        }
        there
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest CPU.
    #[must_use]
    pub fn lowest(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The CPUs, in rising order.
    #[must_use]
    pub fn iter(&self) -> CpuIter<'_> {
        CpuIter { words: &self.words, word: 0, bits: self.words.first().copied().unwrap_or(0) }
    }

    /// The CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::trimmed(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// The CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) =
            if self.words.len() < other.words.len() { (other, self) } else { (self, other) };
        let mut words = long.words.clone();
        for (word, bits) in words.iter_mut().zip(&short.words) {
            *word |= bits;
        }
        Self { words }
    }

    /// The CPUs of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut words = self.words.clone();
        for (word, bits) in words.iter_mut().zip(&other.words) {
            *word &= !bits;
        }
        Self::trimmed(words)
    }

    /// Whether every CPU of this set is in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Whether the sets have a CPU in common.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    fn trimmed(words: Vec<u64>) -> Self {
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

fn place(cpu: CpuId) -> (usize, u64) {
    (cpu.index() / WORD_BITS, 1 << (cpu.index() % WORD_BITS))
}

/// The CPUs of a [`CpuSet`], in rising order.
#[derive(Clone, Debug)]
pub struct CpuIter<'a> {
    words: &'a [u64],
    word: usize,
    bits: u64,
}

impl Iterator for CpuIter<'_> {
    type Item = CpuId;

    fn next(&mut self) -> Option<CpuId> {
        while self.bits == 0 {
            self.word += 1;
            self.bits = *self.words.get(self.word)?;
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(CpuId::from_index(self.word * WORD_BITS + bit))
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = CpuId;
    type IntoIter = CpuIter<'a>;

    fn into_iter(self) -> CpuIter<'a> {
        self.iter()
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

/// The kernel's list notation: `0-3,8`; nothing at all for the empty set.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().map(|cpu| cpu.0).peekable();
        let mut separator = "";
        while let Some(low) = cpus.next() {
            let mut high = low;
            while let Some(next) = cpus.next_if_eq(&(high + 1)) {
                high = next;
            }
            write!(f, "{separator}{low}")?;
            if high > low {
                write!(f, "-{high}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// A CPU list that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "CPU list {list:?}: {part:?} {why}; \
     right would be numbers below {MAX_CPUS} and rising ranges, such as \"0-3,8\""
)]
pub struct CpuListError {
    /// The whole list.
    pub list: String,
    /// The part that is wrong.
    pub part: String,
    why: &'static str,
}

/// Reads `0-3,8`. Spaces around parts and the empty list are allowed, as the kernel writes them.
impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(list: &str) -> Result<Self, CpuListError> {
        let mut set = Self::new();
        if list.trim().is_empty() {
            return Ok(set);
        }
        for part in list.split(',').map(str::trim) {
            let (low, high) = range(part).map_err(|why| CpuListError {
                list: list.to_owned(),
                part: part.to_owned(),
                why,
            })?;
            set.extend((low..=high).map(CpuId));
        }
        Ok(set)
    }
}

fn range(part: &str) -> Result<(u32, u32), &'static str> {
    let (low, high) = part.split_once('-').unwrap_or((part, part));
    let (low, high) = (number(low)?, number(high)?);
    if low > high { Err("falls instead of rising") } else { Ok((low, high)) }
}

fn number(text: &str) -> Result<u32, &'static str> {
    // `parse` alone would take "+3".
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a number or a range");
    }
    match text.parse() {
        Ok(number) if number < MAX_CPUS => Ok(number),
        _ => Err("has a number that is too large"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn lists_are_read_and_written() {
        for list in ["", "0", "0-3,8", "63-64", "1,3,5", "0-127,8191"] {
            assert_eq!(set(list).to_string(), list);
        }
        assert_eq!(set(" 4 , 0-2\n").to_string(), "0-2,4");
        assert_eq!(set("0-2,1-5").to_string(), "0-5");
    }

    #[test]
    fn bad_lists_name_the_part() {
        for (list, part) in
            [("0,x", "x"), ("3-1", "3-1"), ("0-8192", "0-8192"), ("1,,2", ""), ("+1", "+1")]
        {
            let error = list.parse::<CpuSet>().unwrap_err();
            assert_eq!(error.part, part);
            assert!(error.to_string().contains("0-3,8"), "{error}");
        }
        assert!("-1".parse::<CpuSet>().is_err());
        assert!("99999999999999999999".parse::<CpuSet>().is_err());
    }

    #[test]
    fn emptied_sets_equal_the_empty_set() {
        let mut one = set("100");
        assert!(one.remove(CpuId(100)) && !one.remove(CpuId(100)));
        assert_eq!(one, CpuSet::new());
        assert_eq!(set("0,100").intersection(&set("0")), set("0"));
        assert_eq!(set("0,100").difference(&set("100")), set("0"));
    }

    fn model() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(0..300u32, 0..40)
    }

    fn from_model(model: &BTreeSet<u32>) -> CpuSet {
        model.iter().copied().map(CpuId).collect()
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(a in model(), b in model()) {
            let (x, y) = (from_model(&a), from_model(&b));
            prop_assert_eq!(x.intersection(&y), from_model(&(&a & &b)));
            prop_assert_eq!(x.union(&y), from_model(&(&a | &b)));
            prop_assert_eq!(x.difference(&y), from_model(&(&a - &b)));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert_eq!(x.iter().map(|cpu| cpu.0).collect::<BTreeSet<_>>(), a);
            prop_assert_eq!(x.to_string().parse::<CpuSet>().unwrap(), x);
        }

        #[test]
        fn any_text_is_a_set_or_an_error(text in "[0-9,\\- x]{0,12}") {
            if let Ok(set) = text.parse::<CpuSet>() {
                prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
            }
        }
    }
}
