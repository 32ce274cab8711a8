//! Which bytes stand side by side in a path, and which must for a glob to cover it.
//!
//! Most globs that have to be tried on a path do not cover it, and most of those name something
//! that is nowhere in it. A path is looked at once; each glob that needs two bytes side by side
//! which the path does not have is then left out by one comparison.

use super::automaton::Segment;
use super::component::Token;

/// A set of pairs of adjacent bytes, each by a hash of 7 bits: a pair that is not in the set is not
/// in the path, but not the other way round. A slash stands before and behind each component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pairs(u128);

impl Pairs {
    /// Those of a path, and so of each part of it that begins and ends with whole components.
    pub(super) fn of_path(path: &[u8]) -> Self {
        let mut all = Self::default();
        all.add_component(path);
        all
    }

    /// Those of every path that `segments` cover.
    pub(super) fn needed_by(segments: &[Segment]) -> Self {
        let mut needed = Self::default();
        for segment in segments {
            match segment {
                Segment::Deep | Segment::Any => {}
                Segment::Name(name) => needed.add_component(name),
                Segment::Wild(tokens) => needed.add_tokens(tokens),
            }
        }
        needed
    }

    pub(super) fn has_all(self, needed: Self) -> bool {
        needed.0 & !self.0 == 0
    }

    fn add_component(&mut self, name: &[u8]) {
        let mut before = b'/';
        for &byte in name.iter().chain(b"/") {
            self.add(before, byte);
            before = byte;
        }
    }

    fn add_tokens(&mut self, tokens: &[Token]) {
        for (at, token) in tokens.iter().enumerate() {
            let Token::Text(text) = token else { continue };
            text.windows(2).for_each(|pair| self.add(pair[0], pair[1]));
            if let (0, Some(first)) = (at, text.first()) {
                self.add(b'/', *first);
            }
            if let (true, Some(last)) = (at + 1 == tokens.len(), text.last()) {
                self.add(*last, b'/');
            }
        }
    }

    fn add(&mut self, one: u8, next: u8) {
        let hash = u32::from_be_bytes([0, 0, one, next]).wrapping_mul(0x9e37_79b1) >> 25;
        self.0 |= 1 << hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::syntax::compile_path;

    fn may_cover(glob: &str, path: &[u8]) -> bool {
        let globs = compile_path(glob).unwrap();
        globs.iter().any(|one| Pairs::of_path(path).has_all(Pairs::needed_by(&one.segments)))
    }

    #[test]
    fn a_glob_that_covers_a_path_is_tried_on_it() {
        for (glob, path) in [
            ("**/*secret*", &b"a/my-secrets/b"[..]),
            ("**/[sS]ecret*.json", b"Secret.json"),
            ("a/*/c?e/*.x", b"a/b/cde/f.x/g"),
            ("**/x", b"x"),
            ("**/x*y", b"xy"),
            ("**/*é", "é".as_bytes()),
            ("a/**/b", b"a/b"),
        ] {
            assert!(may_cover(glob, path), "{glob}");
        }
    }

    #[test]
    fn a_glob_that_needs_what_a_path_does_not_have_is_left_out() {
        let path = b"src/tree/file.c";
        for glob in ["**/*secret*", "**/[sS]ecret*.json", "**/*filet", "**/ree*c", "src/rx?"] {
            assert!(!may_cover(glob, path), "{glob}");
        }
    }
}
