//! How many files are read before they are opened.

use std::time::{Duration, Instant};

/// Files opened one after the other, in the order of their directories, until some are read ahead.
const IN_ORDER: u32 = 2;
/// Files read ahead at first.
const FIRST: usize = 4;
/// And at most. At 64 KiB each, 2 MiB.
const MOST: usize = 32;
/// Files that were read and not opened, where the program is so close that it may be there first.
const CLOSE: usize = 3;
/// Files opened in no order that the thread is told of one after the other, so that it notices when
/// an order begins. Then some are passed over, twice as many each time.
const TOLD: u32 = 4;
/// And at most so many.
const MOST_PASSED_OVER: u32 = 1 << 10;
/// Files in order after which none could be read: nobody listed them with their attributes, so that
/// the kernel does not know them before they are opened.
const FRUITLESS: u32 = 16;
/// Files that nobody opened in this time are not being waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// How far ahead the reader may be. Follows what it is told of opens.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Missed files that followed each other.
    in_order: u32,
    /// Missed files in turn that did not.
    strayed: u32,
    /// Missed files in order since one was read.
    fruitless: u32,
    /// Files that may be read and not yet opened.
    window: usize,
    /// Files read since the window grew.
    read: usize,
    last: Option<Instant>,
}

impl Pace {
    /// Something was opened at `now`. Returns whether what was read before is still waited for.
    pub(super) fn goes_on(&mut self, now: Instant) -> bool {
        let before = self.last.replace(now);
        let goes_on = before.is_some_and(|before| now.duration_since(before) < SILENCE);
        if !goes_on {
            (self.in_order, self.window) = (0, 0);
        }
        goes_on
    }

    /// A missed file is one of the next. Returns how many missed files are of no interest after it.
    pub(super) fn in_order(&mut self) -> u32 {
        self.fruitless += 1;
        if self.fruitless > FRUITLESS {
            return self.strays();
        }
        self.in_order = self.in_order.saturating_add(1);
        if self.window == 0 && self.in_order >= IN_ORDER {
            (self.window, self.read) = (FIRST, 0);
        }
        0
    }

    /// A missed file is somewhere else. Returns the same.
    pub(super) fn strays(&mut self) -> u32 {
        (self.in_order, self.fruitless, self.window) = (0, 0, 0);
        self.strayed = self.strayed.saturating_add(1);
        if !self.strayed.is_multiple_of(TOLD) {
            return 0;
        }
        let doublings = self.strayed / TOLD;
        1_u32.checked_shl(doublings).unwrap_or(u32::MAX).min(MOST_PASSED_OVER)
    }

    /// A file was read. After as many as the window has, most of those before must have been opened.
    pub(super) fn read(&mut self) {
        (self.strayed, self.fruitless) = (0, 0);
        self.read += 1;
        if self.read > 2 * self.window {
            (self.window, self.read) = ((2 * self.window).min(MOST), 0);
        }
    }

    /// Whether one more may be read.
    pub(super) fn may_read(&self, outstanding: usize) -> bool {
        outstanding < self.window
    }

    /// As soon as so few are outstanding the reader goes on; `None` while it reads nothing.
    pub(super) fn low(&self) -> Option<usize> {
        (self.window > 0).then_some(self.window / 2)
    }
}

/// Whether the program would wait for the next file if that were read now: it is close, with so many
/// `outstanding`, and is coming closer. There were as many `before` the last file was read, if one was.
pub(super) fn overtakes(before: Option<usize>, outstanding: usize) -> bool {
    outstanding <= CLOSE && before.is_some_and(|before| outstanding <= before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_to_a_program_that_is_close_and_comes_closer() {
        assert!(!overtakes(None, 0), "none was read just before");
        assert!(!overtakes(Some(0), 1), "nothing was opened while one was read");
        assert!(overtakes(Some(0), 0) && overtakes(Some(CLOSE), CLOSE));
        assert!(!overtakes(Some(MOST), CLOSE + 1), "it is far behind");
    }

    fn in_order(pace: &mut Pace, count: u32) {
        assert_eq!((0..count).map(|_| pace.in_order()).sum::<u32>(), 0);
    }

    #[test]
    fn the_window_opens_after_files_in_order_and_grows() {
        let mut pace = Pace::default();
        assert!(!pace.may_read(0) && pace.low().is_none());
        in_order(&mut pace, IN_ORDER);
        assert!(pace.may_read(FIRST - 1) && !pace.may_read(FIRST));
        (0..10 * MOST).for_each(|_| pace.read());
        assert!(pace.may_read(MOST - 1) && !pace.may_read(MOST));
        assert_eq!(pace.low(), Some(MOST / 2));
    }

    #[test]
    fn who_opens_in_no_order_is_heard_ever_more_rarely_but_several_times_in_turn() {
        let mut pace = Pace::default();
        in_order(&mut pace, IN_ORDER);
        let passed: Vec<_> = (0..20 * TOLD).map(|_| pace.strays()).collect();
        assert_eq!(passed[..8], [0, 0, 0, 2, 0, 0, 0, 4]);
        assert_eq!(passed.last(), Some(&MOST_PASSED_OVER));
        assert!(!pace.may_read(0));
        // Those that are told one after the other suffice to begin anew.
        assert_eq!(pace.strays(), 0);
        in_order(&mut pace, TOLD - 1);
        assert!(pace.may_read(0));
        pace.read();
        assert_eq!((0..TOLD).map(|_| pace.strays()).sum::<u32>(), 2, "as at the beginning");
    }

    #[test]
    fn files_that_cannot_be_read_ahead_are_given_up() {
        let mut pace = Pace::default();
        in_order(&mut pace, FRUITLESS);
        assert!(pace.may_read(0));
        pace.in_order();
        assert!(!pace.may_read(0));
        assert!((0..10 * TOLD * FRUITLESS).map(|_| pace.in_order()).any(|passed| passed > 0));
        in_order(&mut pace, 1);
        pace.read();
        in_order(&mut pace, FRUITLESS);
        assert!(pace.may_read(0), "it counts from the last one that was read");
    }

    #[test]
    fn what_was_read_long_ago_is_not_waited_for() {
        let mut pace = Pace::default();
        let begin = Instant::now();
        assert!(!pace.goes_on(begin), "nothing was opened before");
        in_order(&mut pace, IN_ORDER);
        assert!(pace.goes_on(begin + SILENCE / 2) && pace.may_read(0));
        assert!(!pace.goes_on(begin + 2 * SILENCE) && !pace.may_read(0));
    }
}
