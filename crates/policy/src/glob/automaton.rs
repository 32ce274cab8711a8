//! One glob over paths.
//!
//! A glob is a list of segments, one per path component. It is run as a small automaton whose
//! states are positions in that list, kept as bits of one word: no backtracking over components, no
//! allocation.

use super::component::{self, Token};

/// Most segments in a glob, so that the positions and the end fit 64 bits.
pub(crate) const MAX_SEGMENTS: usize = 63;

/// What one component of a path has to look like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Segment {
    /// `**`: any number of components, also none.
    Deep,
    /// `*`: one component, whatever it is.
    Any,
    /// One component, these bytes.
    Name(Box<[u8]>),
    /// One component with wildcards in it.
    Wild(Box<[Token]>),
}

impl Segment {
    fn matches(&self, component: &[u8]) -> bool {
        match self {
            Self::Deep => false,
            Self::Any => true,
            Self::Name(name) => **name == *component,
            Self::Wild(tokens) => component::matches(tokens, component),
        }
    }
}

/// A glob with no two `**` in a row and none at the end. No segment at all is `**`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Glob {
    pub(super) segments: Box<[Segment]>,
}

impl Glob {
    /// A glob over paths in DIR, where whatever is below a match matches too. So a `**` at the end,
    /// or one with nothing but `*` behind it, asks for no more than its `*`s do.
    pub(super) fn covering(segments: Vec<Segment>) -> Self {
        let mut canonical = Self::exact(segments).segments.into_vec();
        while let Some(last_deep) = canonical.iter().rposition(|one| *one == Segment::Deep)
            && canonical[last_deep + 1..].iter().all(|one| *one == Segment::Any)
        {
            canonical.remove(last_deep);
        }
        Self { segments: canonical.into() }
    }

    /// A glob over whole paths. `**` at the end is one component or more.
    pub(super) fn exact(segments: Vec<Segment>) -> Self {
        let mut canonical = segments;
        canonical.dedup_by(|one, before| *one == Segment::Deep && *before == Segment::Deep);
        if canonical == [Segment::Deep] {
            canonical.clear();
        }
        if canonical.last() == Some(&Segment::Deep) {
            canonical.push(Segment::Any);
        }
        Self { segments: canonical.into() }
    }

    /// Whether the glob matches every path, the root too.
    pub(crate) fn is_everything(&self) -> bool {
        self.segments.is_empty()
    }

    /// What it takes, in characters and ranges of classes.
    pub(crate) fn weight(&self) -> usize {
        let tokens = |segment: &Segment| match segment {
            Segment::Deep | Segment::Any => 1,
            Segment::Name(name) => 1 + name.len(),
            Segment::Wild(tokens) => 1 + tokens.iter().map(Token::weight).sum::<usize>(),
        };
        self.segments.iter().map(tokens).sum()
    }

    /// Makes `**` mean everything in DIR, but not DIR itself.
    pub(crate) fn leave_out_root(&mut self) {
        if self.is_everything() {
            self.segments = [Segment::Any].into();
        }
    }

    /// Whether the glob matches `path` or a directory above it.
    pub(crate) fn covers(&self, path: &[u8]) -> bool {
        run(&self.segments, path) & self.end() != 0
    }

    /// Whether the glob matches `path` itself.
    pub(crate) fn matches_exactly(&self, path: &[u8]) -> bool {
        if self.is_everything() {
            return true;
        }
        let states = components(path).fold(start(&self.segments), |states, component| {
            step(&self.segments, states, component)
        });
        states & self.end() != 0
    }

    /// The automaton's states after each of two directories, with the end alone once it was reached.
    /// With the same states they have the same matches below them.
    pub(crate) fn states_below(&self, dirs: &TwoPaths<'_>) -> [u64; 2] {
        let above = run(&self.segments, dirs.above);
        dirs.rest.map(|rest| {
            let states = go_on(&self.segments, above, rest);
            if states & self.end() != 0 { self.end() } else { states }
        })
    }

    /// Whether these are the states of what the glob covers.
    pub(crate) fn is_end(&self, states: u64) -> bool {
        states == self.end()
    }

    /// Whether `dir` is on the way to what the glob covers, by names in the glob: as `.idea` is for
    /// `**/.idea/x`, and any other directory is not.
    pub(crate) fn leads_through(&self, dir: &[u8]) -> bool {
        // A path as long, of names that no glob has.
        let unnamed: Vec<u8> = components(dir).flat_map(|_| *b"/\x01\x01").collect();
        let states = run(&self.segments, dir);
        states & self.end() == 0 && states & !run(&self.segments, &unnamed) != 0
    }

    /// Whether the glob may match `dir` or something below it.
    pub(crate) fn reaches_into(&self, dir: &[u8]) -> bool {
        run(&self.segments, dir) != 0
    }

    /// Whether the glob begins with the names of `dir`, so that it matches nothing elsewhere.
    pub(crate) fn lies_within(&self, dir: &[u8]) -> bool {
        let mut segments = self.segments.iter();
        components(dir).all(
            |name| matches!(segments.next(), Some(Segment::Name(segment)) if **segment == *name),
        )
    }

    /// The only path that the glob matches, if it has no wildcards.
    pub(crate) fn literal(&self) -> Option<String> {
        let is_name = |segment: &Segment| matches!(segment, Segment::Name(_));
        if self.segments.iter().all(is_name) { self.paths_named().last() } else { None }
    }

    /// The directories above whatever the glob matches, as far as they are named in it, from the top
    /// down.
    pub(crate) fn directories_above(&self) -> impl Iterator<Item = String> + use<'_> {
        self.paths_named().take(self.segments.len().saturating_sub(1))
    }

    /// The paths that the names make with which the glob begins, the shortest first.
    fn paths_named(&self) -> impl Iterator<Item = String> + use<'_> {
        let names = self.segments.iter().map_while(|segment| match segment {
            Segment::Name(name) => Some(String::from_utf8_lossy(name)),
            _ => None,
        });
        names.scan(String::new(), |path, name| {
            *path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
            Some(path.clone())
        })
    }

    fn end(&self) -> u64 {
        1 << self.segments.len()
    }
}

/// Two paths, of which most share all but their last components: a rule is compared with what they
/// share once.
pub(crate) struct TwoPaths<'a> {
    above: &'a [u8],
    rest: [&'a [u8]; 2],
}

impl<'a> TwoPaths<'a> {
    pub(crate) fn new(one: &'a [u8], other: &'a [u8]) -> Self {
        let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        let slash = one[..same].iter().rposition(|byte| *byte == b'/');
        let at = slash.map_or(0, |slash| slash + 1);
        Self { above: &one[..at], rest: [&one[at..], &other[at..]] }
    }
}

/// The components of a path; empty ones are skipped.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty())
}

/// Runs `segments` over `path` until the end state is reached or the path is used up.
fn run(segments: &[Segment], path: &[u8]) -> u64 {
    go_on(segments, start(segments), path)
}

/// The same from the states `before` on, with what follows.
fn go_on(segments: &[Segment], before: u64, path: &[u8]) -> u64 {
    let end = 1 << segments.len();
    let mut states = before;
    for component in components(path) {
        if states & end != 0 || states == 0 {
            break;
        }
        states = step(segments, states, component);
    }
    states
}

fn start(segments: &[Segment]) -> u64 {
    with_skipped(segments, 1)
}

fn step(segments: &[Segment], states: u64, component: &[u8]) -> u64 {
    let mut next = 0;
    let mut left = states;
    while left != 0 {
        let at = left.trailing_zeros() as usize;
        left &= left - 1;
        match segments.get(at) {
            Some(Segment::Deep) => next |= 1 << at,
            Some(segment) if segment.matches(component) => next |= 1 << (at + 1),
            _ => {}
        }
    }
    with_skipped(segments, next)
}

/// A `**` may stand for nothing: whoever is in front of it is also behind it. Canonical globs have
/// no two in a row, so that one pass is enough.
fn with_skipped(segments: &[Segment], states: u64) -> u64 {
    let mut all = states;
    let mut left = states;
    while left != 0 {
        let at = left.trailing_zeros() as usize;
        left &= left - 1;
        if segments.get(at) == Some(&Segment::Deep) {
            all |= 1 << (at + 1);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::syntax::{compile_exe, compile_path};

    fn glob(text: &str) -> Glob {
        let mut globs = compile_path(text).unwrap();
        assert_eq!(globs.len(), 1);
        globs.remove(0)
    }

    #[test]
    fn stars_stop_at_slashes() {
        assert!(glob("src/*.c").covers(b"src/a.c"));
        assert!(!glob("src/*.c").covers(b"src/sub/a.c"));
        assert!(glob("src/**/*.c").covers(b"src/sub/deep/a.c"));
        assert!(glob("src/**/*.c").covers(b"src/a.c"));
    }

    #[test]
    fn a_glob_reaches_into_a_directory_or_lies_within_it() {
        let reaches = |text: &str| glob(text).reaches_into(b"a/b");
        for text in ["**", "a", "a/b", "a/b/c", "a/*", "*/b", "**/x", "a/b/**", "*/*/*"] {
            assert!(reaches(text), "{text}");
        }
        for text in ["b", "a/c", "*/c/b", "a/?c", "c/**"] {
            assert!(!reaches(text), "{text}");
        }
        let within = |text: &str| glob(text).lies_within(b"a/b");
        for text in ["a/b", "a/b/", "a/b/c", "a/b/**", "a/b/*/x"] {
            assert!(within(text), "{text}");
        }
        for text in ["a", "**", "a/*", "a/**/c", "*/b", "a/bc", "a/**"] {
            assert!(!within(text), "{text}");
        }
    }

    #[test]
    fn two_directories_are_compared_by_what_may_be_below() {
        let below = |text: &str, one: &[u8], other: &[u8]| {
            let glob = glob(text);
            let states = glob.states_below(&TwoPaths::new(one, other));
            assert_eq!(states.map(|s| glob.is_end(s)), [one, other].map(|dir| glob.covers(dir)));
            states[0] == states[1]
        };
        for (one, other) in
            [("a/b/c", "a/b/d"), ("a/b", "a/b/c"), ("a", "ab"), ("", "a"), ("d", "d")]
        {
            let (one, other) = (one.as_bytes(), other.as_bytes());
            assert!(below("**/*.pem", one, other) && below("**", one, other));
            assert!(below("x/y", one, other) || one.is_empty(), "neither is on the way");
        }
        assert!(!below("a/b/c/x", b"a/b/c", b"a/b/d") && !below("a/b/c/x", b"a/b/d", b"a/b/c"));
        assert!(!below("**/ab/*.c", b"a", b"ab") && below("**/ab/*.c", b"a", b"b"));
        assert!(!below("a", b"a/b", b"ab/b") && below("a", b"a/b", b"a/c/d"));
    }

    #[test]
    fn a_directory_covers_what_is_below() {
        assert!(glob("docs").covers(b"docs"));
        assert!(glob("docs").covers(b"docs/a/b"));
        assert!(glob("docs/").covers(b"docs/a/b"));
        assert!(!glob("docs").covers(b"docs2"));
        assert!(!glob("docs").covers(b"a/docs"));
        assert!(glob("**/*.pem").covers(b"a/x.pem/inner"));
    }

    #[test]
    fn everything_below_is_not_the_directory_itself() {
        assert!(!glob("docs/**").covers(b"docs"));
        assert!(glob("docs/**").covers(b"docs/a"));
        assert!(glob("**").covers(b""));
        assert!(glob("**").covers(b"a/b"));
        assert!(!glob("**/*").covers(b""));
        assert!(glob("**/*").covers(b"a"));
        assert_eq!(glob("docs/**"), glob("docs/*"));
        assert_eq!(glob("a/**/**/b"), glob("a/**/b"));
        assert_eq!(glob("a/**/*/**"), glob("a/*/*"));
        assert_eq!(glob("**/*"), glob("*"));
    }

    #[test]
    fn any_bytes_are_names() {
        assert!(glob("**/*.pem").covers(b"a\n/\xff\xfe.pem"));
        assert!(glob("a?b").covers(b"a\nb"));
        assert!(!glob("**/*.pem").covers(b"a.PEM"));
    }

    #[test]
    fn exact_matches_do_not_reach_below() {
        let node = compile_exe("/usr/bin/node").unwrap().remove(0);
        assert!(node.matches_exactly(b"/usr/bin/node"));
        assert!(!node.matches_exactly(b"/usr/bin/node/x"));
        let any = compile_exe("**/python3*").unwrap().remove(0);
        assert!(any.matches_exactly(b"/opt/x/python3.12"));
        assert!(!any.matches_exactly(b"/opt/python3.12/x"));
        let below = compile_exe("/opt/**").unwrap().remove(0);
        assert!(below.matches_exactly(b"/opt/a"));
        assert!(below.matches_exactly(b"/opt/a/b"));
        assert!(!below.matches_exactly(b"/opt"));
    }
}
