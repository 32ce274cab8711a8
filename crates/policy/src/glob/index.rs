//! Many globs at once: which rules have a glob that covers a path.
//!
//! Most globs in a policy are plain: a path, a directory with everything below it, a name anywhere,
//! the start or the end of a name anywhere. Those are found by a hash lookup for each component of
//! the path, however many there are. Of what lies below a name anywhere (`**/.git/hooks`) the name
//! is found in the same way, and the rest tried where it is met. The others are kept by the
//! directory that they begin with and tried one by one, so that their cost is that of the globs
//! beginning with a directory above the path (or with `**` and wildcards), and of these of the ones
//! alone that need no two bytes side by side which the path does not have.
//!
//! While a path is looked up nothing is allocated, but for the set of rules that are found if the
//! policy has more than 256. The hash needs no key: only the author of the policy puts keys into
//! the tables.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::automaton::{Glob, Segment, components};
use super::component::{self, Token};
use super::pairs::Pairs;

/// Words of 64 rules that a set has in place.
const WORDS: usize = 4;

/// A set of rules, by index. Few policies have so many that it is large: it is copied with each answer.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RuleSet(SmallVec<[u64; WORDS]>);

impl RuleSet {
    /// Of a policy with so many rules.
    pub(crate) fn of(rules: usize) -> Self {
        Self(SmallVec::from_elem(0, rules.div_ceil(64)))
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }

    fn insert(&mut self, rule: u16) {
        self.0[usize::from(rule) / 64] |= 1 << (rule % 64);
    }

    fn insert_all(&mut self, rules: &[u16]) {
        for rule in rules {
            self.insert(*rule);
        }
    }

    pub(crate) fn has(&self, rule: u16) -> bool {
        self.0[usize::from(rule) / 64] & (1 << (rule % 64)) != 0
    }

    /// The rules in rising order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

type Table = FxHashMap<Box<[u8]>, Vec<u16>>;

/// The globs of all rules.
#[derive(Default)]
pub(crate) struct PathIndex {
    /// `**`
    everything: Vec<u16>,
    /// By a path without wildcards.
    dirs: FxHashMap<Box<[u8]>, Dir>,
    /// `**/name`
    names: Table,
    /// `**/name/rest`: the rest, by the name.
    below_names: FxHashMap<Box<[u8]>, Vec<Tried>>,
    /// `**/start*`, `**/start*more`
    starts: Affixes,
    /// `**/*end`, `**/?more*end`
    ends: Affixes,
}

/// The globs that begin with the components of one path.
#[derive(Default)]
struct Dir {
    /// The path itself.
    at: Vec<u16>,
    /// `path/*`
    below: Vec<u16>,
    /// The rest of each other glob, to be tried on the rest of the path.
    others: Vec<Tried>,
}

/// A glob that has to be tried.
struct Tried {
    rule: u16,
    needed: Pairs,
    glob: Glob,
}

impl Tried {
    fn new(rule: u16, segments: &[Segment]) -> Self {
        Self { rule, needed: Pairs::needed_by(segments), glob: Glob { segments: segments.into() } }
    }
}

impl Dir {
    /// `rest` is a path below it, the end of one with these `pairs`.
    fn enter(&self, rest: &[u8], pairs: Pairs, set: &mut RuleSet) {
        set.insert_all(&self.below);
        cover(&self.others, rest, pairs, set);
    }
}

/// Name patterns by the text that they start or end with.
#[derive(Default)]
struct Affixes {
    table: FxHashMap<Box<[u8]>, Vec<Affixed>>,
    lengths: Vec<Length>,
}

/// A length of such texts, and with which bytes those of this length begin.
struct Length {
    length: usize,
    first: [u64; 4],
}

impl Length {
    fn begins(&self, byte: u8) -> bool {
        self.first[usize::from(byte / 64)] & (1 << (byte % 64)) != 0
    }
}

/// A pattern of one table entry; the tokens are left out if the start or end says it all.
struct Affixed {
    rule: u16,
    tokens: Option<Box<[Token]>>,
}

impl Affixes {
    fn insert(&mut self, text: &[u8], rule: u16, tokens: &[Token]) {
        let tokens = (tokens.len() > 2).then(|| tokens.into());
        self.table.entry(text.into()).or_default().push(Affixed { rule, tokens });
        let at = match self.lengths.binary_search_by_key(&text.len(), |one| one.length) {
            Ok(at) => at,
            Err(at) => {
                self.lengths.insert(at, Length { length: text.len(), first: [0; 4] });
                at
            }
        };
        if let Some(first) = text.first() {
            self.lengths[at].first[usize::from(first / 64)] |= 1 << (first % 64);
        }
    }

    /// `part` cuts a start or an end of a length off a name.
    fn find(&self, name: &[u8], set: &mut RuleSet, part: fn(&[u8], usize) -> &[u8]) {
        for known in self.lengths.iter().take_while(|known| known.length <= name.len()) {
            let text = part(name, known.length);
            if !text.first().is_some_and(|first| known.begins(*first)) {
                continue;
            }
            for one in self.table.get(text).into_iter().flatten() {
                if one.tokens.as_ref().is_none_or(|tokens| component::matches(tokens, name)) {
                    set.insert(one.rule);
                }
            }
        }
    }
}

/// Adds a rule that may be there already. Rules come in rising order.
fn add(rules: &mut Vec<u16>, rule: u16) {
    if rules.last() != Some(&rule) {
        rules.push(rule);
    }
}

impl PathIndex {
    /// Adds a glob of `rule`. Rules are added in rising order.
    pub(crate) fn insert(&mut self, rule: u16, glob: &Glob) {
        match &*glob.segments {
            [] => add(&mut self.everything, rule),
            [Segment::Deep, Segment::Name(name)] => {
                add(self.names.entry(name.clone()).or_default(), rule);
            }
            [Segment::Deep, Segment::Name(name), rest @ ..] => {
                let below = self.below_names.entry(name.clone()).or_default();
                below.push(Tried::new(rule, rest));
            }
            [Segment::Deep, Segment::Wild(tokens)] => match &**tokens {
                [Token::Text(start), Token::Star, ..] => self.starts.insert(start, rule, tokens),
                [.., Token::Star, Token::Text(end)] => self.ends.insert(end, rule, tokens),
                _ => self.insert_below(rule, glob),
            },
            _ => self.insert_below(rule, glob),
        }
    }

    /// Puts a glob to the directory that it begins with.
    fn insert_below(&mut self, rule: u16, glob: &Glob) {
        let mut path = Vec::new();
        let mut fixed = 0;
        for segment in &glob.segments {
            let Segment::Name(name) = segment else { break };
            if fixed > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            fixed += 1;
        }
        let dir = self.dirs.entry(path.into()).or_default();
        match &glob.segments[fixed..] {
            [] => add(&mut dir.at, rule),
            [Segment::Any] => add(&mut dir.below, rule),
            rest => dir.others.push(Tried::new(rule, rest)),
        }
    }

    /// The rules with a glob that covers `path`. Slashes too many are looked past (at the price of
    /// an allocation), so that no spelling of a path goes by a rule.
    ///
    /// `set` must be empty, and of a policy with these rules.
    pub(crate) fn find(&self, path: &[u8], set: &mut RuleSet) {
        set.insert_all(&self.everything);
        if path.is_empty() {
            return;
        }
        let pairs = Pairs::of_path(path);
        if let Some(root) = self.dirs.get(&b""[..]) {
            root.enter(path, pairs, set);
        }
        let mut start = 0;
        while start < path.len() {
            let end =
                path[start..].iter().position(|b| *b == b'/').map_or(path.len(), |n| start + n);
            if start == end || end + 1 == path.len() {
                set.clear();
                return self.find(&components(path).collect::<Vec<_>>().join(&b'/'), set);
            }
            self.find_name(&path[start..end], set);
            let dir = self.dirs.get(&path[..end]);
            if let Some(dir) = dir {
                set.insert_all(&dir.at);
            }
            if end < path.len() {
                let rest = &path[end + 1..];
                if let Some(dir) = dir {
                    dir.enter(rest, pairs, set);
                }
                let below = self.below_names.get(&path[start..end]);
                cover(below.into_iter().flatten(), rest, pairs, set);
            }
            start = end + 1;
        }
    }

    fn find_name(&self, name: &[u8], set: &mut RuleSet) {
        if let Some(rules) = self.names.get(name) {
            set.insert_all(rules);
        }
        self.starts.find(name, set, |name, length| &name[..length]);
        self.ends.find(name, set, |name, length| &name[name.len() - length..]);
    }
}

/// Adds the rules whose glob covers `path`, which has no other `pairs`.
fn cover<'g>(
    globs: impl IntoIterator<Item = &'g Tried>,
    path: &[u8],
    pairs: Pairs,
    set: &mut RuleSet,
) {
    for one in globs {
        if pairs.has_all(one.needed) && !set.has(one.rule) && one.glob.covers(path) {
            set.insert(one.rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::syntax::compile_path;

    fn index(globs: &[&str]) -> PathIndex {
        let mut index = PathIndex::default();
        for (rule, text) in globs.iter().enumerate() {
            for glob in compile_path(text).unwrap() {
                index.insert(u16::try_from(rule).unwrap(), &glob);
            }
        }
        index
    }

    fn found(globs: &[&str], path: &[u8]) -> Vec<usize> {
        let mut set = RuleSet::of(globs.len());
        index(globs).find(path, &mut set);
        set.iter().collect()
    }

    const GLOBS: [&str; 10] = [
        "**",
        "docs",
        "docs/**",
        "**/.env",
        "**/id_*",
        "**/*.pem",
        "src/**/*.c",
        "*",
        "a/b/*x*",
        "**/*k*",
    ];

    #[test]
    fn each_class_of_globs_is_found() {
        assert_eq!(found(&GLOBS, b""), [0]);
        assert_eq!(found(&GLOBS, b"docs"), [0, 1, 7]);
        assert_eq!(found(&GLOBS, b"docs/x/y"), [0, 1, 2, 7]);
        assert_eq!(found(&GLOBS, b"z/.env"), [0, 3, 7]);
        assert_eq!(found(&GLOBS, b"z/.env/below"), [0, 3, 7]);
        assert_eq!(found(&GLOBS, b"id_rsa"), [0, 4, 7]);
        assert_eq!(found(&GLOBS, b"q/.pem"), [0, 5, 7]);
        assert_eq!(found(&GLOBS, b"src/main.c"), [0, 6, 7]);
        assert_eq!(found(&GLOBS, b"a/b/1x2"), [0, 7, 8]);
        assert_eq!(found(&GLOBS, b"p/akb/c"), [0, 7, 9]);
        for spelling in [&b"/docs"[..], b"docs/", b"//docs//"] {
            assert_eq!(found(&GLOBS, spelling), [0, 1, 7], "{spelling:?}");
        }
        assert_eq!(found(&GLOBS, b"/"), [0]);
    }

    #[test]
    fn what_lies_below_a_name_anywhere_is_found() {
        let globs = ["**/a/b", "**/a/**/c", "**/a/*/d", "**/a/a/x"];
        let of = |path: &[u8]| found(&globs, path);
        assert_eq!(of(b"a"), []);
        assert_eq!(of(b"a/b"), [0]);
        assert_eq!(of(b"q/a/b/z"), [0]);
        assert_eq!(of(b"a/c"), [1]);
        assert_eq!(of(b"a/q/q/c/z"), [1]);
        assert_eq!(of(b"a/q/d"), [2]);
        assert_eq!(of(b"a/d"), []);
        assert_eq!(of(b"a/a/a/x"), [3], "the second of three");
        assert_eq!(of(b"a/a/d/b"), [2]);
        assert_eq!(of(b"x/aa/b"), []);
    }

    #[test]
    fn a_set_counts_upwards_over_words() {
        for rules in [65, 256, 257, 4160] {
            let mut set = RuleSet::of(rules);
            let last = u16::try_from(rules - 1).unwrap();
            for rule in [last, 0, 63, 64] {
                set.insert(rule);
            }
            let mut expected = vec![0, 63, 64, rules - 1];
            expected.dedup();
            assert_eq!(set.iter().collect::<Vec<_>>(), expected);
            set.clear();
            assert_eq!(set.iter().next(), None);
        }
    }
}
