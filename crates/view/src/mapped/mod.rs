//! Pages that the kernel keeps of a file in direct I/O, for mappings, and writes beside them.
//!
//! Before the kernel sends a write(2) of such a file it drops the pages of the range. Nothing keeps a program
//! from touching its mapping before the write is done here, which brings a page back as it was before. Once
//! the program stores into that page, the kernel writes it back as a whole, over what was written: up to a
//! tenth of writes of 512 bytes beside a program that stores without a pause (Linux 6.18, two CPUs). So
//!
//! * a page is not read while a write to it is under way, nor the reverse: each page that the kernel got is
//!   wholly from before a write, or wholly from after it;
//! * a write whose pages the kernel may have from before drops them when it is done, and is answered after that;
//! * where one of these pages comes back meanwhile, what the write wrote stays.
//!
//! A hole that is under way waits for nobody, so none of this goes round in a circle:
//!
//! ```text
//! a page that is written back   waits for holes in it that are under way
//! a page that is read           waits for writes to it that are under way
//! a write                       waits, before it begins, for pages that are read or written back
//! a write's answer              waits for the kernel, which reads and writes back pages
//! ```
//!
//! The models are in [`models`].

mod dropper;
#[cfg(all(test, loom))]
mod models;
mod reply;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tollgate_hugepage::wipe;

use crate::sync::{Condvar, Mutex};

pub(crate) use dropper::Dropper;
pub(crate) use reply::{Holds, WriteReply};

const PAGE: u64 = 4096;

/// Most pages that are known one by one, of each file: 256 MiB of it. Beyond that the kernel may have any page,
/// from before any write.
const MOST_KNOWN: usize = 1 << 16;

/// The pages of one file that somebody may write.
#[derive(Debug, Default)]
pub(crate) struct MappedPages {
    state: Mutex<State>,
    /// Something ended that others wait for.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Counts what happens.
    clock: u64,
    /// When the kernel began to read each page that it may still have.
    kept: FxHashMap<u64, u64>,
    /// There are more.
    has_more: bool,
    in_place: bool,
    reading: Vec<Span>,
    written_back: Vec<Span>,
    writes: Vec<Under>,
}

/// Pages of a request, which is known by when it began.
#[derive(Clone, Debug)]
struct Span {
    began: u64,
    pages: Range<u64>,
}

/// A write that is not answered yet.
#[derive(Debug)]
struct Under {
    span: Span,
    offset: u64,
    /// When it was done. What is read from then on is not older.
    done: Option<u64>,
    /// Kept where the kernel may have a page from before.
    data: Option<Kept>,
}

/// What somebody writes past the kernel's pages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'d> {
    Bytes(&'d [u8]),
    /// So many zeroes, as a hole.
    Zeroes(u64),
}

/// The same, kept.
#[derive(Debug)]
enum Kept {
    Bytes(Box<[u8]>),
    Zeroes(u64),
}

/// As long as pages are read.
#[derive(Debug)]
pub(crate) struct Reading {
    pages: Arc<MappedPages>,
    began: u64,
}

/// As long as pages are written back.
#[derive(Debug)]
pub(crate) struct WrittenBack {
    pages: Arc<MappedPages>,
    began: u64,
}

/// As long as a write is not answered.
#[derive(Debug)]
pub(crate) struct Writing {
    pages: Arc<MappedPages>,
    began: u64,
}

impl MappedPages {
    /// Somebody opened the file for reading and writing, as who stores into a mapping has to.
    pub(crate) fn opened_in_place(&self) {
        self.state.lock().in_place = true;
    }

    /// Whether somebody may store into a mapping, or could while the file was open.
    pub(crate) fn may_be_stored_into(&self) -> bool {
        self.state.lock().in_place
    }

    /// Whether the kernel may have pages that somebody stored into.
    pub(crate) fn may_have_stores(&self) -> bool {
        let state = self.state.lock();
        state.in_place && (state.has_more || !state.kept.is_empty())
    }

    /// The kernel reads `bytes` into pages. Waits for writes to them.
    pub(crate) fn read(self: &Arc<Self>, bytes: Range<u64>) -> Reading {
        let pages = pages_of(&bytes);
        let mut state = self.state.lock();
        while state
            .writes
            .iter()
            .any(|write| write.done.is_none() && meet(&write.span.pages, &pages))
        {
            self.ended.wait(&mut state);
        }
        let began = state.tick();
        state.keep(&pages, began);
        state.reading.push(Span { began, pages });
        Reading { pages: Arc::clone(self), began }
    }

    /// Somebody makes `change` at `offset`, not through the kernel's pages. Waits for those.
    pub(crate) fn write(self: &Arc<Self>, offset: u64, change: Change<'_>) -> Writing {
        let pages = pages_of(&(offset..offset.saturating_add(change.length())));
        let mut state = self.state.lock();
        let waits = |spans: &[Span]| spans.iter().any(|span| meet(&span.pages, &pages));
        while waits(&state.reading) || waits(&state.written_back) {
            self.ended.wait(&mut state);
        }
        let began = state.tick();
        let data = state.has_any(&pages).then(|| Kept::from(change));
        state.writes.push(Under { span: Span { began, pages }, offset, done: None, data });
        Writing { pages: Arc::clone(self), began }
    }

    /// The kernel writes back `data` at `offset`, whole pages but for the last one of the file. Returns what is
    /// to be written.
    pub(crate) fn write_back<'d>(
        self: &Arc<Self>,
        offset: u64,
        data: &'d [u8],
    ) -> (WrittenBack, Cow<'d, [u8]>) {
        let pages = pages_of(&(offset..offset.saturating_add(data.len() as u64)));
        let mut state = self.state.lock();
        // A hole may fail, and then the page stays as it is.
        while state.writes.iter().any(|write| write.is_uncertain(&pages)) {
            self.ended.wait(&mut state);
        }
        let began = state.tick();
        let mut data = Cow::Borrowed(data);
        for write in state.writes.iter().filter(|write| meet(&write.span.pages, &pages)) {
            let (first, end) = (write.span.pages.start, write.span.pages.end);
            let older = (first.max(pages.start)..end.min(pages.end))
                .filter(|page| state.is_older(*page, write));
            older.for_each(|page| put(write, page, offset, &mut data));
        }
        state.written_back.push(Span { began, pages });
        (WrittenBack { pages: Arc::clone(self), began }, data)
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn keep(&mut self, pages: &Range<u64>, now: u64) {
        for page in pages.clone() {
            if self.kept.len() < MOST_KNOWN || self.kept.contains_key(&page) {
                self.kept.insert(page, now);
            } else {
                self.has_more = true;
            }
        }
    }

    /// Whether the kernel may have one of `pages`.
    fn has_any(&self, pages: &Range<u64>) -> bool {
        self.has_more || self.has_any_known(pages)
    }

    /// A hole may be of more pages than are known.
    fn has_any_known(&self, pages: &Range<u64>) -> bool {
        if pages.end.saturating_sub(pages.start) > self.kept.len() as u64 {
            return self.kept.keys().any(|page| pages.contains(page));
        }
        pages.clone().any(|page| self.kept.contains_key(&page))
    }

    /// Whether `page` may be from before `write`.
    fn is_older(&self, page: u64, write: &Under) -> bool {
        let read = self.kept.get(&page).copied().unwrap_or(0);
        write.data.is_some() && write.done.is_none_or(|done| read < done)
    }
}

impl Under {
    /// Whether it is a hole among `pages` that is not made yet.
    fn is_uncertain(&self, pages: &Range<u64>) -> bool {
        let is_hole = matches!(self.data, Some(Kept::Zeroes(_)));
        is_hole && self.done.is_none() && meet(&self.span.pages, pages)
    }
}

/// What `write` wrote to `page` replaces what is in `data`, which begins at `offset`.
fn put(write: &Under, page: u64, offset: u64, data: &mut Cow<'_, [u8]>) {
    let Some(kept) = &write.data else { return };
    let from = (page * PAGE).max(write.offset).max(offset);
    let to = (page.saturating_add(1).saturating_mul(PAGE))
        .min(write.offset.saturating_add(kept.length()))
        .min(offset.saturating_add(data.len() as u64));
    let within = |start: u64| {
        let at = |place: u64| usize::try_from(place - start).ok();
        at(from).zip(at(to)).map(|(from, to)| from..to)
    };
    if from >= to {
        return;
    }
    let Some(target) = within(offset) else { return };
    match kept {
        Kept::Bytes(bytes) => {
            if let Some(source) = within(write.offset) {
                data.to_mut()[target].copy_from_slice(&bytes[source]);
            }
        }
        Kept::Zeroes(_) => data.to_mut()[target].fill(0),
    }
}

impl Change<'_> {
    fn length(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeroes(count) => count,
        }
    }
}

impl From<Change<'_>> for Kept {
    fn from(change: Change<'_>) -> Self {
        match change {
            Change::Bytes(bytes) => Self::Bytes(bytes.into()),
            Change::Zeroes(count) => Self::Zeroes(count),
        }
    }
}

impl Kept {
    fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeroes(count) => *count,
        }
    }
}

impl Writing {
    /// The write is done, or failed, in part perhaps. Returns the bytes whose pages must be dropped before it is
    /// answered: those that the kernel may have from before.
    pub(crate) fn done(&self, failed: bool) -> Option<Range<u64>> {
        let mut state = self.pages.state.lock();
        let now = state.tick();
        let write = state.writes.iter_mut().find(|write| write.span.began == self.began)?;
        if failed && matches!(write.data, Some(Kept::Zeroes(_))) {
            return None;
        }
        write.done = Some(now);
        let pages = write.span.pages.clone();
        let must_drop = write.data.is_some();
        self.pages.ended.notify_all();
        must_drop.then(|| pages.start * PAGE..pages.end.saturating_mul(PAGE))
    }

    /// The kernel has dropped them.
    pub(crate) fn dropped(self) {
        let mut state = self.pages.state.lock();
        let state = &mut *state;
        let write = state.writes.iter().find(|write| write.span.began == self.began);
        let Some(Under { span, done: Some(done), .. }) = write else { return };
        // What was read since then is there again.
        if span.pages.end - span.pages.start > state.kept.len() as u64 {
            state.kept.retain(|page, read| !span.pages.contains(page) || *read >= *done);
            return;
        }
        for page in span.pages.clone() {
            if state.kept.get(&page).is_some_and(|read| read < done) {
                state.kept.remove(&page);
            }
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.pages.state.lock().writes.retain(|write| write.span.began != self.began);
        self.pages.ended.notify_all();
    }
}

/// It may be of a sealed file.
impl Drop for Under {
    fn drop(&mut self) {
        if let Some(Kept::Bytes(bytes)) = &mut self.data {
            wipe(bytes);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.pages.state.lock().reading.retain(|span| span.began != self.began);
        self.pages.ended.notify_all();
    }
}

impl Drop for WrittenBack {
    fn drop(&mut self) {
        self.pages.state.lock().written_back.retain(|span| span.began != self.began);
        self.pages.ended.notify_all();
    }
}

/// The pages that have some of `bytes`.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn pages() -> Arc<MappedPages> {
        Arc::default()
    }

    const LENGTH: usize = 2 * 4096;

    #[test]
    fn what_a_write_wrote_stays_where_an_older_page_comes_back() {
        let pages = pages();
        drop(pages.read(0..LENGTH as u64));
        let write = pages.write(4_090, Change::Bytes(b"written here"));
        for done in [false, true] {
            if done {
                assert_eq!(write.done(false), Some(0..LENGTH as u64));
            }
            let (back, data) = pages.write_back(0, &[b'a'; LENGTH]);
            assert_eq!(&data[4_088..4_104], b"aawritten hereaa", "done: {done}");
            drop(back);
            // One page of it, and the file ends there.
            let (_back, data) = pages.write_back(PAGE, &[b'a'; 3]);
            assert_eq!(&*data, b"n h");
        }
        write.dropped();
        assert_eq!(&*pages.write_back(0, &[b'a'; LENGTH]).1, &[b'a'; LENGTH]);
    }

    #[test]
    fn a_page_that_was_read_after_a_write_comes_back_as_it_is() {
        let pages = pages();
        drop(pages.read(0..PAGE));
        let write = pages.write(0, Change::Bytes(b"written"));
        assert!(write.done(false).is_some());
        drop(pages.read(0..PAGE));
        assert_eq!(&*pages.write_back(0, &[b'a'; 4_096]).1, &[b'a'; 4_096]);
        // It is kept, so the next write drops it.
        write.dropped();
        assert!(pages.write(0, Change::Bytes(b"written")).done(false).is_some());
    }

    #[test]
    fn nothing_is_dropped_that_was_not_read() {
        let pages = pages();
        assert_eq!(pages.write(0, Change::Bytes(b"x")).done(false), None);
        drop(pages.read(PAGE..2 * PAGE));
        assert_eq!(pages.write(0, Change::Bytes(b"x")).done(false), None);
        let write = pages.write(PAGE, Change::Bytes(b"x"));
        assert_eq!(write.done(false), Some(PAGE..2 * PAGE));
        write.dropped();
        assert_eq!(pages.write(PAGE, Change::Bytes(b"x")).done(false), None);
    }

    /// Two writes at once: the first one's pages are dropped while the second one is under way.
    #[test]
    fn each_write_drops_what_it_found() {
        let pages = pages();
        drop(pages.read(0..PAGE));
        let (first, second) =
            (pages.write(0, Change::Bytes(b"one")), pages.write(8, Change::Bytes(b"two")));
        assert!(first.done(false).is_some());
        first.dropped();
        let (_back, data) = pages.write_back(0, &[b'a'; 12]);
        assert_eq!(&*data, b"aaaaaaaatwoa");
        drop(_back);
        assert!(second.done(false).is_some());
    }

    #[test]
    fn beyond_what_is_known_every_page_counts_as_older() {
        let pages = pages();
        let all = MOST_KNOWN as u64 * PAGE;
        drop(pages.read(0..all));
        assert_eq!(pages.write(all, Change::Bytes(b"x")).done(false), None);
        drop(pages.read(all..all + PAGE));
        for offset in [all, 0, 3 * all] {
            let write = pages.write(offset, Change::Bytes(b"x"));
            assert!(write.done(false).is_some());
            assert_eq!(pages.write_back(offset, b"ab").1[0], b'x');
            write.dropped();
        }
        assert!(pages.state.lock().kept.len() <= MOST_KNOWN);
    }

    #[test]
    fn a_hole_stays_where_an_older_page_comes_back_and_one_that_fails_is_none() {
        let pages = pages();
        drop(pages.read(0..LENGTH as u64));
        for failed in [false, true] {
            let hole = pages.write(4_000, Change::Zeroes(u64::MAX / 2));
            let dropped = hole.done(failed);
            assert_eq!(dropped.is_some(), !failed);
            // What failed is over; the other one waits for the kernel.
            let _hole = Some(hole).filter(|_| !failed);
            let (_back, data) = pages.write_back(0, &[b'a'; LENGTH]);
            assert_eq!(data.iter().position(|byte| *byte == 0), (!failed).then_some(4_000));
        }
    }

    /// A request may be of no byte, or end where numbers do.
    #[test]
    fn odd_ranges_do_no_harm() {
        let pages = pages();
        drop(pages.read(0..0));
        drop(pages.read(u64::MAX - 1..u64::MAX));
        assert_eq!(pages.write(7, Change::Bytes(b"")).done(false), None);
        assert!(pages.write(u64::MAX - 1, Change::Bytes(b"xyz")).done(false).is_some());
        assert_eq!(&*pages.write_back(7, b"").1, b"");
    }
}
