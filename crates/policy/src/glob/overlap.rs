//! Whether two globs can cover one path.

use super::automaton::{Glob, Segment};
use super::component::{self, Token};

impl Glob {
    /// Whether there may be a path that both cover. Said too often for two names with wildcards in
    /// both, and never too seldom.
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        let (one, other) = (&self.segments, &other.segments);
        // Both automata at once: which states of the other one each state was met with.
        let mut met = vec![0_u64; one.len() + 1];
        let mut to_do = vec![(0, 0)];
        while let Some((at, with)) = to_do.pop() {
            if met[at] & (1 << with) != 0 {
                continue;
            }
            met[at] |= 1 << with;
            // What is below a match is covered, too: the rest of the other one can follow.
            let (Some(here), Some(there)) = (one.get(at), other.get(with)) else { return true };
            match (here, there) {
                // It stands for nothing more, or for what the other one asks for here.
                (Segment::Deep, _) | (_, Segment::Deep) => {
                    to_do.extend([(at + 1, with), (at, with + 1)]);
                }
                _ if may_be_one(here, there) => to_do.push((at + 1, with + 1)),
                _ => {}
            }
        }
        false
    }
}

/// Whether one component may fit both.
fn may_be_one(one: &Segment, other: &Segment) -> bool {
    match (one, other) {
        (Segment::Any, _) | (_, Segment::Any) => true,
        (Segment::Name(one), Segment::Name(other)) => one == other,
        (Segment::Name(name), Segment::Wild(tokens))
        | (Segment::Wild(tokens), Segment::Name(name)) => component::matches(tokens, name),
        (Segment::Wild(one), Segment::Wild(other)) => begin_and_end_alike(one, other),
        (Segment::Deep, _) | (_, Segment::Deep) => true,
    }
}

/// Whether what both begin with, and what both end with, can be that of one name.
fn begin_and_end_alike(one: &[Token], other: &[Token]) -> bool {
    let text = |token: Option<&Token>| match token {
        Some(Token::Text(bytes)) => bytes.to_vec(),
        _ => Vec::new(),
    };
    let (begins, ends) =
        ([one, other].map(|it| text(it.first())), [one, other].map(|it| text(it.last())));
    let same = |[one, other]: &[Vec<u8>; 2]| one.iter().zip(other).all(|(one, other)| one == other);
    let backwards = ends.map(|mut end| {
        end.reverse();
        end
    });
    same(&begins) && same(&backwards)
}

#[cfg(test)]
mod tests {
    use crate::glob::syntax::compile_path;

    fn overlap(one: &str, other: &str) -> bool {
        let [one, other] = [one, other].map(|text| compile_path(text).expect("a glob").remove(0));
        let (there, back) = (one.may_overlap(&other), other.may_overlap(&one));
        assert_eq!(there, back);
        there
    }

    #[test]
    fn globs_overlap_where_a_path_fits_both() {
        for (one, other) in [
            ("**", "v/**"),
            ("v", "v/**"),
            ("v/a/b", "v/*"),
            ("**/*.pem", "v/**"),
            ("**/x", "v/**/y"),
            ("v/*/c", "v/b/**"),
            ("**/k/z", "**/a/**/z"),
            ("a*", "*b"),
        ] {
            assert!(overlap(one, other), "{one} {other}");
        }
    }

    #[test]
    fn globs_of_different_places_do_not_overlap() {
        for (one, other) in [
            ("docs/**", "v/**"),
            ("v/a", "v/b/**"),
            ("v/*.pem", "v/*.txt"),
            ("key-*", "log-*"),
            ("*.pem", "log"),
            ("a/**/x", "b/**/x"),
        ] {
            assert!(!overlap(one, other), "{one} {other}");
        }
    }

    proptest::proptest! {
        /// Against the automaton that decides about paths.
        #[test]
        fn a_path_that_both_cover_is_an_overlap(
            one in "(a|b|\\*|\\*\\*|a\\*)(/(a|b|\\*|\\*\\*|\\*b)){0,3}",
            other in "(a|b|\\*|\\*\\*|a\\*)(/(a|b|\\*|\\*\\*|\\*b)){0,3}",
            path in "(a|b|ab)(/(a|b|ab)){0,5}",
        ) {
            let covers = |text: &str| {
                let globs = compile_path(text).expect("a glob");
                globs.iter().any(|glob| glob.covers(path.as_bytes()))
            };
            proptest::prop_assert!(!(covers(&one) && covers(&other)) || overlap(&one, &other));
        }
    }
}
