//! Whether one glob covers all that another one covers.
//!
//! The components of the other glob are read as if they were a path: one with wildcards stands for
//! all the names that fit it. Each must be let through by a component of the first glob that is as
//! wide or wider. `**` may stand for any number of components, and each number is followed, until
//! nothing new comes. The same is done with the characters within a component.

use super::automaton::{Glob, MAX_SEGMENTS, Segment};
use super::component::{self, Token};
use super::pairs::Pairs;

/// Most places that are followed for two globs. Hardly any two need a dozen.
const MAX_FOLLOWED: usize = 48;

/// A glob, for comparisons with many others.
#[derive(Clone, Copy)]
pub(crate) struct Compared<'g> {
    glob: &'g Glob,
    needed: Pairs,
}

impl<'g> Compared<'g> {
    pub(crate) fn new(glob: &'g Glob) -> Self {
        Self { glob, needed: Pairs::needed_by(&glob.segments) }
    }

    pub(crate) fn glob(&self) -> &'g Glob {
        self.glob
    }

    /// Whether it covers every path that `other` covers. Never wrongly `true`; `false` also where
    /// the wildcards within names are too many, or too different, to tell.
    pub(crate) fn includes(&self, other: &Self) -> bool {
        // What each path of this one has, the paths of the other have as well.
        other.needed.has_all(self.needed) && self.glob.includes(other.glob)
    }
}

impl Glob {
    fn includes(&self, other: &Self) -> bool {
        // What is below a match is covered, so that an end that is met once is enough.
        follow(&self.segments, &other.segments, true)
    }
}

/// An element of a pattern: it stands for one symbol out of a set, or for any number of any symbols.
trait Element: Sized {
    /// Stands for one symbol, whichever it is.
    const ANY: Self;

    /// Whether it stands for any number of symbols, also none.
    fn repeats(&self) -> bool;

    /// Whether it stands for every symbol that `other` stands for. Neither of them repeats.
    fn is_as_wide_as(&self, other: &Self) -> bool;
}

impl Element for Segment {
    const ANY: Self = Self::Any;

    fn repeats(&self) -> bool {
        *self == Self::Deep
    }

    fn is_as_wide_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Name(one), Self::Name(other)) => one == other,
            (Self::Wild(tokens), Self::Name(name)) => component::matches(tokens, name),
            (Self::Wild(one), Self::Wild(other)) => {
                one == other || follow(&characters(one), &characters(other), false)
            }
            _ => false,
        }
    }
}

/// An element of a component.
#[derive(Clone, Debug, PartialEq)]
enum Character<'t> {
    /// `*`
    Star,
    /// `?`
    Any,
    /// The character itself.
    This(char),
    /// `[...]`
    Class { negated: bool, ranges: &'t [(char, char)] },
}

impl Element for Character<'_> {
    const ANY: Self = Self::Any;

    fn repeats(&self) -> bool {
        *self == Self::Star
    }

    fn is_as_wide_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::This(one), Self::This(other)) => one == other,
            (Self::Class { negated, ranges }, Self::This(c)) => has(ranges, *c) != *negated,
            (
                Self::Class { negated: false, ranges },
                Self::Class { negated: false, ranges: others },
            ) => others.iter().all(|range| lies_in_one(range, ranges)),
            (
                Self::Class { negated: true, ranges },
                Self::Class { negated: false, ranges: others },
            ) => others
                .iter()
                .all(|(low, high)| ranges.iter().all(|(from, to)| high < from || to < low)),
            (
                Self::Class { negated: true, ranges },
                Self::Class { negated: true, ranges: others },
            ) => ranges.iter().all(|range| lies_in_one(range, others)),
            _ => false,
        }
    }
}

fn has(ranges: &[(char, char)], c: char) -> bool {
    ranges.iter().any(|(low, high)| (*low..=*high).contains(&c))
}

fn lies_in_one((low, high): &(char, char), ranges: &[(char, char)]) -> bool {
    ranges.iter().any(|(from, to)| from <= low && high <= to)
}

/// The characters of a component's tokens. Their text comes from that of a glob, which is UTF-8.
fn characters(tokens: &[Token]) -> Vec<Character<'_>> {
    let mut all = Vec::new();
    for token in tokens {
        match token {
            Token::Text(text) => {
                all.extend(String::from_utf8_lossy(text).chars().map(Character::This));
            }
            Token::One => all.push(Character::Any),
            Token::Star => all.push(Character::Star),
            Token::Class { negated, ranges } => {
                all.push(Character::Class { negated: *negated, ranges });
            }
        }
    }
    all
}

/// Whether `one` matches whatever `other` matches; with `early`, also what `one` matches the
/// beginning of.
fn follow<E: Element>(one: &[E], other: &[E], early: bool) -> bool {
    // The states of `one` are bits of a word.
    if one.len() > MAX_SEGMENTS {
        return false;
    }
    let end = 1_u64 << one.len();
    let mut followed = [(0, 0); MAX_FOLLOWED];
    let mut count = 0;
    let mut to_do = vec![(0, skipped(one, 1))];
    while let Some((at, states)) = to_do.pop() {
        if early && states & end != 0 || followed[..count].contains(&(at, states)) {
            continue;
        }
        // Whatever is still to come of `other` matches something, and `one` is lost or too slow.
        if states == 0 || count == MAX_FOLLOWED {
            return false;
        }
        followed[count] = (at, states);
        count += 1;
        match other.get(at) {
            None if states & end != 0 => {}
            None => return false,
            Some(element) if element.repeats() => {
                to_do.extend([(at + 1, states), (at, step(one, states, &E::ANY))]);
            }
            Some(element) => to_do.push((at + 1, step(one, states, element))),
        }
    }
    true
}

/// The states after a symbol of `element`, whichever of its symbols it is.
fn step<E: Element>(one: &[E], states: u64, element: &E) -> u64 {
    let mut next = 0;
    for at in bits(states) {
        match one.get(at) {
            Some(here) if here.repeats() => next |= 1 << at,
            Some(here) if here.is_as_wide_as(element) => next |= 1 << (at + 1),
            _ => {}
        }
    }
    skipped(one, next)
}

/// What repeats may stand for nothing: whoever is in front of it is also behind it.
fn skipped<E: Element>(one: &[E], states: u64) -> u64 {
    let mut all = states;
    for (at, element) in one.iter().enumerate() {
        if all & (1 << at) != 0 && element.repeats() {
            all |= 1 << (at + 1);
        }
    }
    all
}

fn bits(word: u64) -> impl Iterator<Item = usize> {
    let mut left = word;
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::syntax::compile_path;

    fn includes(one: &str, other: &str) -> bool {
        let globs = [one, other].map(|text| compile_path(text).expect("a glob"));
        let [one, other] = globs.each_ref().map(|globs| Compared::new(&globs[0]));
        one.includes(&other)
    }

    #[test]
    fn a_glob_that_is_as_wide_includes_the_other() {
        for (one, other) in [
            ("a", "a"),
            ("a", "a/b"),
            ("a/", "a/**"),
            ("docs/**", "docs/x"),
            ("docs/**", "docs/**/x"),
            ("docs/*", "docs/**/*.md"),
            ("**/.env", ".env"),
            ("**/.env", "sub/.env"),
            ("**/.env", "a/**/.env"),
            ("**/.env", "a/*/.env/b"),
            ("*", "a/b"),
            ("*", "**/x"),
            ("**", "**/*.pem"),
            ("**/*.pem", "**/x.pem"),
            ("**/*.pem", "certs/*.old.pem"),
            ("**/*.pem", "**/*.[pP].pem/x"),
            ("**/id_*", "**/id_?sa"),
            ("**/*_*", "a/x_*_y"),
            ("**/a/**/c", "x/a/b/c"),
            ("**/a/**/c", "**/a/x/**/b/c"),
            ("*/*", "*/a/**/b"),
            ("a?c", "a[xyz]c"),
            ("a[a-z]", "a[bk-m]"),
            ("a[!x]", "a[a-c]"),
            ("a[!x]", "a[!w-z]"),
            ("*[!x]", "*y"),
            ("**/*é*", "é/x"),
        ] {
            assert!(includes(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_glob_that_leaves_something_out_does_not() {
        for (one, other) in [
            ("a/b", "a"),
            ("docs/**", "docs"),
            ("docs/x", "docs/**"),
            ("*", "**"),
            ("**/.env", "**/.env*"),
            ("*/.env", "**/.env"),
            ("a/*/c", "a/**/c"),
            ("*/*", "**/b"),
            ("**/*.pem", "**/*.pe?"),
            ("**/*.pem", "**/*"),
            ("**/?", "**/*"),
            ("a[a-z]", "a?"),
            ("a[a-z]", "a[A-z]"),
            ("a[a-z]", "a[!a]"),
            ("a[!x]", "a[w-z]"),
            ("a[!w-z]", "a[!x]"),
            ("a*b", "ab*"),
            ("**/a/b", "**/a/**/b"),
            ("x*x", "x"),
        ] {
            assert!(!includes(one, other), "{one} {other}");
        }
    }

    #[test]
    fn many_wildcards_end_soon() {
        let stars = |letter: &str| format!("{}{letter}", "*a".repeat(100));
        assert!(!includes(&stars("b"), &stars("c")) && includes(&stars("b"), &stars("b")));
        let deep = |name: &str| {
            let text = format!("{}{name}", "**/a/".repeat(20));
            compile_path(&text).expect("a glob").remove(0)
        };
        assert!(!deep("b").includes(&deep("c")));
    }

    proptest::proptest! {
        /// Against the automaton that decides about paths.
        #[test]
        fn what_is_included_is_covered(
            one in "(a|b|\\*|\\*\\*|a\\*|\\?b|\\[a-b\\]|\\[!a\\]\\*)(/(a|b|\\*|\\*\\*|\\*b|\\*a\\*)){0,3}",
            other in "(a|b|\\*|\\*\\*|a\\*|\\?b|\\[a-b\\]|\\[!a\\]\\*)(/(a|b|\\*|\\*\\*|\\*b|ab\\*)){0,3}",
            paths in proptest::collection::vec("(a|b|ab|é|bab)(/(a|b|ab|bb|aba)){0,4}", 1..12),
        ) {
            let [wide, narrow] = [&one, &other].map(|text| compile_path(text).expect("a glob").remove(0));
            if Compared::new(&wide).includes(&Compared::new(&narrow)) {
                for path in &paths {
                    proptest::prop_assert!(
                        wide.covers(path.as_bytes()) || !narrow.covers(path.as_bytes()),
                        "{} {}: {}", one, other, path
                    );
                }
            }
        }

        /// A path that a glob covers is a glob itself.
        #[test]
        fn a_path_that_is_covered_is_included(
            glob in "(a|b|\\*|\\*\\*|a\\*|\\?b)(/(a|b|\\*|\\*\\*|\\*b|\\*a\\*)){0,3}",
            path in "(a|b|ab|bab)(/(a|b|ab|bb|aba)){0,4}",
        ) {
            let covers = compile_path(&glob).expect("a glob")[0].covers(path.as_bytes());
            proptest::prop_assert_eq!(includes(&glob, &path), covers);
        }
    }
}
