//! Reading ahead: who reads a file from one place on gets what comes next made before it is asked
//! for, by as many threads as there are.
//!
//! What was read ahead is shown only while the lower file has the version that it had before, and
//! for [`AGE_MAX`] at most: what somebody writes through a mapping below changes no time at first.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tollgate_fuse::{Caller, Reply};

use super::asked::{ToRead, ToShow};
use super::gather::Gather;
use super::memory::{Part, Room};
use super::rooms::Ahead;
use super::running::Running;
use super::window::{self, Making};
use crate::content::Content;
use crate::content::asker::asked_by;
use crate::lower::Version;

/// Bytes that are made ahead of a stream.
const AHEAD: u64 = 2 << 20;
/// Bytes that are made at a time, from the beginning of a stream and later on.
const FIRST: u64 = 256 << 10;
const AGE_MAX: Duration = Duration::from_millis(500);

/// Where one open file was read last, and what was made of what follows.
#[derive(Default)]
pub(crate) struct Stream(Mutex<State>);

#[derive(Default)]
struct State {
    /// Where the request before ended.
    next: u64,
    /// Requests that went on there, since the last that did not.
    streak: u32,
    /// Without gaps, in order.
    windows: VecDeque<Arc<Window>>,
    /// Bytes of the next window.
    step: u64,
}

/// Bytes made ahead.
struct Window {
    range: Range<u64>,
    /// Of the lower file before they were made.
    version: Version,
    begun: Instant,
    made: Arc<window::Window<Part, Range<usize>, ToShow>>,
}

impl Stream {
    /// Answers a request from what is read ahead, if it belongs to a stream and there is room; else
    /// gives the reply back. `alone` has it made by itself, if what is read ahead cannot be.
    pub(super) fn read<'q>(
        &self,
        running: &Running,
        content: &Arc<dyn Content>,
        (range, caller): (Range<u64>, Caller),
        (reply, alone): (Reply<'q, [u8]>, impl FnOnce(Reply<'q, [u8]>) -> ToRead),
    ) -> Result<(), Reply<'q, [u8]>> {
        let mut state = self.0.lock();
        if !state.goes_on(&range) {
            return Err(reply);
        }
        let (Ok(Some(version)), Ok(size)) = (content.version(), content.size()) else {
            state.windows.clear();
            return Err(reply);
        };
        state.keep(&range, version);
        state.extend(running, (content, caller), (&range, size), version);
        let Some(pieces) = state.covering(range.start..range.end.min(size)) else {
            return Err(reply);
        };
        let gather = Gather::to_answer(pieces.len());
        for (index, (window, wanted)) in pieces.into_iter().enumerate() {
            // Somebody may have needed its room by now. What was gathered is dropped then: nobody
            // waits for the room of others with a room in hand.
            if !window.made.wait(gather.slot(index), wanted) {
                return Err(reply);
            }
        }
        gather.answer(ToShow { asked: alone(reply), hall: Arc::clone(running.memory().hall()) });
        Ok(())
    }
}

impl State {
    /// Whether `range` goes on where the request before ended, and that did so as well.
    fn goes_on(&mut self, range: &Range<u64>) -> bool {
        self.streak = if range.start == self.next { self.streak.saturating_add(1) } else { 0 };
        self.next = range.end;
        if self.streak < 2 {
            self.windows.clear();
            self.step = FIRST;
        }
        self.streak >= 2
    }

    /// Keeps the windows that go on from `range` without a gap.
    fn keep(&mut self, range: &Range<u64>, version: Version) {
        self.windows.retain(|window| window.range.end > range.start);
        let mut at = range.start;
        let fits = |window: &Arc<Window>, at: &mut u64| {
            let fits = window.range.start <= *at && window.serves(version);
            *at = window.range.end;
            fits
        };
        let count = self.windows.iter().take_while(|window| fits(window, &mut at)).count();
        self.windows.truncate(count);
    }

    /// Has what follows made, as far as there is room and CPUs would else be idle. Where many
    /// streams keep them busy, what one reads ahead would be given up for the others and made again.
    fn extend(
        &mut self,
        running: &Running,
        (content, caller): (&Arc<dyn Content>, Caller),
        (range, size): (&Range<u64>, u64),
        version: Version,
    ) {
        let until = range.end.saturating_add(AHEAD).min(size);
        let mut at = self.windows.back().map_or(range.start, |window| window.range.end);
        while at < until {
            if !running.may_read_ahead() {
                return;
            }
            let Some(room) = running.memory().room_ahead() else { return };
            let end = at.saturating_add(self.step).min(size);
            self.step = (self.step * 2).min(Room::MOST);
            let window = Window::new(at..end, version);
            let given_up: Arc<dyn Ahead> = Arc::clone(&window.made) as _;
            running.memory().hall().may_be_given_up(&given_up);
            self.windows.push_back(Arc::clone(&window));
            let (content, hall) = (Arc::clone(content), Arc::clone(running.memory().hall()));
            // Made here: if nobody ever runs this, those who wait learn of it.
            let making = Making::new(&window.made);
            running.run(content.lane(), move || {
                let range = window.range.clone();
                making.done(asked_by(caller, || content.read(range, room)));
                hall.window_is_done();
            });
            at = end;
        }
    }

    /// The windows that cover `range`, with the part of each that it wants.
    fn covering(&self, range: Range<u64>) -> Option<Vec<(&Arc<Window>, Range<usize>)>> {
        let covered = self.windows.back().is_some_and(|window| window.range.end >= range.end);
        if !covered || range.is_empty() {
            return None;
        }
        let overlapping = self.windows.iter().filter(|window| window.range.start < range.end);
        let pieces = overlapping.map(|window| {
            let from = range.start.max(window.range.start) - window.range.start;
            let to = range.end.min(window.range.end) - window.range.start;
            Some((window, usize::try_from(from).ok()?..usize::try_from(to).ok()?))
        });
        pieces.collect()
    }
}

impl Window {
    fn new(range: Range<u64>, version: Version) -> Arc<Self> {
        Arc::new(Self { range, version, begun: Instant::now(), made: Arc::default() })
    }

    /// Whether it may be shown of a file of this version.
    fn serves(&self, version: Version) -> bool {
        self.version == version && self.begun.elapsed() < AGE_MAX && !self.made.is_gone()
    }
}

impl Ahead for window::Window<Part, Range<usize>, ToShow> {
    fn give_up(&self) -> Option<Arc<dyn Send + Sync>> {
        Self::give_up(self).map(|part| part as Arc<dyn Send + Sync>)
    }
}
