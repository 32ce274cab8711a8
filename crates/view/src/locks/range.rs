//! Byte ranges of a file, and the ranges that one owner has locked. Pure.

/// The largest offset of a file: the end of a range that goes on to the end of the file.
pub(crate) const LAST: u64 = i64::MAX.unsigned_abs();

/// Bytes `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Range {
    /// All bytes that a file can have.
    pub(crate) const ALL: Self = Self { start: 0, end: LAST };

    /// `None` for a range that no file can have.
    pub(crate) fn new(start: u64, end: u64) -> Option<Self> {
        (start <= end && end <= LAST).then_some(Self { start, end })
    }

    pub(crate) fn meets(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// What a lock excludes: writers, or everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

impl Kind {
    pub(crate) fn excludes(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range,
    pub(crate) kind: Kind,
    /// The handle through which it was locked last.
    pub(crate) handle: u64,
}

/// The ranges that one owner has locked: in order, without overlap. As in the kernel, a new lock
/// replaces what it covers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Pieces of one owner, as many as its memory may cost the server.
    pub(crate) const MAX: usize = 65_536;

    /// Pieces are counted by as many. Fewer cost less than the descriptor that each owner has.
    pub(crate) const BLOCK: usize = 64;

    /// Blocks that are needed to lock once more.
    pub(crate) fn blocks_with_next(&self) -> usize {
        (self.0.len() + 2) / Self::BLOCK
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        // A lock inside another one makes three of it.
        self.0.len() + 2 > Self::MAX
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.0.iter()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// `piece` is locked.
    pub(crate) fn lock(&mut self, piece: Piece) {
        let at = self.cut(piece.range);
        self.0.insert(at, piece);
        self.join(at);
    }

    /// Nothing of `range` is locked.
    pub(crate) fn unlock(&mut self, range: Range) {
        self.cut(range);
    }

    /// A piece that a lock of another owner would have to wait for.
    pub(crate) fn conflict(&self, range: Range, kind: Kind) -> Option<&Piece> {
        self.0.iter().find(|piece| piece.range.meets(range) && piece.kind.excludes(kind))
    }

    /// `range` in parts, in order, each with how it is locked.
    pub(crate) fn over(&self, range: Range) -> impl Iterator<Item = (Range, Option<Kind>)> {
        let first = self.0.partition_point(|piece| piece.range.end < range.start);
        let mut pieces =
            self.0[first..].iter().take_while(move |piece| piece.range.start <= range.end);
        let (mut piece, mut start) = (pieces.next(), Some(range.start));
        std::iter::from_fn(move || {
            let from = start.filter(|start| *start <= range.end)?;
            let (end, kind) = match piece {
                Some(next) if next.range.start <= from => {
                    piece = pieces.next();
                    (next.range.end.min(range.end), Some(next.kind))
                }
                Some(next) => (next.range.start - 1, None),
                None => (range.end, None),
            };
            start = end.checked_add(1);
            Some((Range { start: from, end }, kind))
        })
    }

    /// Takes `range` out and returns the index at which it would be.
    fn cut(&mut self, range: Range) -> usize {
        let first = self.0.partition_point(|piece| piece.range.end < range.start);
        let after = self.0.partition_point(|piece| piece.range.start <= range.end);
        if first >= after {
            return first;
        }
        let (left, right) = (self.0[first], self.0[after - 1]);
        let before = (left.range.start < range.start).then(|| Piece {
            range: Range { start: left.range.start, end: range.start - 1 },
            ..left
        });
        let behind = (right.range.end > range.end).then(|| Piece {
            range: Range { start: range.end + 1, end: right.range.end },
            ..right
        });
        self.0.splice(first..after, before.into_iter().chain(behind));
        first + usize::from(before.is_some())
    }

    /// Joins the piece at `at` with its neighbours, if they are of one kind and touch.
    fn join(&mut self, at: usize) {
        for left in [at, at.wrapping_sub(1)] {
            let (Some(a), Some(b)) = (self.0.get(left), self.0.get(left.wrapping_add(1))) else {
                continue;
            };
            if a.kind == b.kind && a.handle == b.handle && a.range.end + 1 == b.range.start {
                let end = b.range.end;
                self.0[left].range.end = end;
                self.0.remove(left + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: usize = 24;

    /// The same by bytes.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Model([Option<(Kind, u64)>; BYTES]);

    fn shown(pieces: &Pieces) -> Model {
        let mut model = Model::default();
        for piece in pieces.iter() {
            for byte in piece.range.start..=piece.range.end {
                let slot = &mut model.0[usize::try_from(byte).unwrap()];
                assert_eq!(*slot, None, "byte {byte} is locked twice: {pieces:?}");
                *slot = Some((piece.kind, piece.handle));
            }
        }
        model
    }

    proptest! {
        #[test]
        fn locks_replace_what_they_cover(
            steps in prop::collection::vec((0..BYTES as u64, 0..BYTES as u64, 0..3_u8, 0..3_u64), 1..40)
        ) {
            let (mut pieces, mut model) = (Pieces::default(), Model::default());
            for (a, b, what, handle) in steps {
                let range = Range::new(a.min(b), a.max(b)).unwrap();
                let kind = [None, Some(Kind::Read), Some(Kind::Write)][usize::from(what)];
                match kind {
                    Some(kind) => pieces.lock(Piece { range, kind, handle }),
                    None => pieces.unlock(range),
                }
                for byte in range.start..=range.end {
                    model.0[usize::try_from(byte).unwrap()] = kind.map(|kind| (kind, handle));
                }
                prop_assert_eq!(&shown(&pieces), &model);
                let ordered = pieces.0.windows(2).all(|p| p[0].range.end < p[1].range.start);
                prop_assert!(ordered);
            }
            for start in 0..BYTES {
                let range = Range { start: start as u64, end: BYTES as u64 - 1 - start as u64 / 2 };
                let parts = pieces.over(range);
                let bytes = parts.flat_map(|(part, kind)| (part.start..=part.end).map(move |at| (at, kind)));
                let expected = (range.start..=range.end).map(|at| {
                    let slot = &model.0[usize::try_from(at).unwrap()];
                    (at, slot.map(|(kind, _)| kind))
                });
                prop_assert!(bytes.eq(expected), "{:?} of {:?}", range, pieces);
            }
            for (byte, there) in (0..).zip(model.0) {
                let range = Range::new(byte, byte).unwrap();
                prop_assert_eq!(pieces.conflict(range, Kind::Write).is_some(), there.is_some());
                let written = there.is_some_and(|(kind, _)| kind == Kind::Write);
                prop_assert_eq!(pieces.conflict(range, Kind::Read).is_some(), written);
            }
        }
    }

    #[test]
    fn a_range_that_no_file_can_have_is_none() {
        assert_eq!(Range::new(0, LAST), Some(Range::ALL));
        assert_eq!(Range::new(0, LAST + 1), None);
        assert_eq!(Range::new(2, 1), None);
    }
}
