//! What the threads that serve requests tell the one that reads ahead.
//!
//! No report is lost between the look and the sleep of the reader: all of it happens under one lock.

use std::sync::Arc;

use crate::sync::{Condvar, Mutex};

/// What there is to do. `F` is a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News<F> {
    Stop,
    /// A file was opened before it was read.
    Missed(Arc<F>),
    /// So many of the files that were read have been opened that further ones may be read.
    Room,
}

/// A missed file, and how many of those that were read have not been opened.
pub(super) struct Mail<F> {
    state: Mutex<State<F>>,
    changed: Condvar,
}

struct State<F> {
    stop: bool,
    missed: Option<Arc<F>>,
    /// Missed files of which nobody is told.
    pass_over: u32,
    outstanding: usize,
    /// The reader is to be woken once no more than these are outstanding.
    room_at: Option<usize>,
}

impl<F> Default for Mail<F> {
    fn default() -> Self {
        let (missed, room_at) = (None, None);
        let state = State { stop: false, missed, pass_over: 0, outstanding: 0, room_at };
        Self { state: Mutex::new(state), changed: Condvar::default() }
    }
}

impl<F> Mail<F> {
    /// A file was opened that was not read ahead. Only the latest is told.
    pub(super) fn missed(&self, file: &Arc<F>) {
        let before = {
            let mut state = self.state.lock();
            if state.pass_over > 0 {
                state.pass_over -= 1;
                return;
            }
            state.missed.replace(Arc::clone(file))
        };
        self.changed.notify_one();
        // Whose end may take long, outside the lock.
        drop(before);
    }

    /// One of the files that were read is opened.
    pub(super) fn used(&self) {
        let mut state = self.state.lock();
        state.outstanding = state.outstanding.saturating_sub(1);
        let wakes = state.has_room();
        drop(state);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// A file was read.
    pub(super) fn is_read(&self) {
        self.state.lock().outstanding += 1;
    }

    /// How many files that were read have not been opened; `None` if something is to be done before
    /// more are read.
    pub(super) fn outstanding(&self) -> Option<usize> {
        let state = self.state.lock();
        (!state.stop && state.missed.is_none()).then_some(state.outstanding)
    }

    /// Nobody will open those that are left.
    pub(super) fn give_up(&self) {
        self.state.lock().outstanding = 0;
    }

    /// The next `count` missed files are not told.
    pub(super) fn pass_over(&self, count: u32) {
        self.state.lock().pass_over = count;
    }

    /// Waits for news; with `room_at`, also until no more than these are outstanding.
    pub(super) fn wait(&self, room_at: Option<usize>) -> News<F> {
        let mut state = self.state.lock();
        state.room_at = room_at;
        loop {
            if state.stop {
                return News::Stop;
            }
            if let Some(file) = state.missed.take() {
                return News::Missed(file);
            }
            if state.has_room() {
                return News::Room;
            }
            self.changed.wait(&mut state);
        }
    }

    /// No more is read.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }
}

impl<F> State<F> {
    fn has_room(&self) -> bool {
        self.room_at.is_some_and(|most| self.outstanding <= most)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_latest_missed_file_is_told_and_some_are_passed_over() {
        let mail = Mail::default();
        mail.missed(&Arc::new(1));
        mail.missed(&Arc::new(2));
        assert_eq!(mail.outstanding(), None, "there is news");
        assert_eq!(mail.wait(None), News::Missed(Arc::new(2)));
        mail.pass_over(2);
        (3..=5).for_each(|file| mail.missed(&Arc::new(file)));
        assert_eq!(mail.wait(None), News::Missed(Arc::new(5)));
        mail.stop();
        assert_eq!(mail.wait(Some(0)), News::Stop);
    }

    #[test]
    fn there_is_room_once_files_were_opened() {
        let mail = Mail::<()>::default();
        (0..3).for_each(|_| mail.is_read());
        mail.used();
        mail.used();
        assert_eq!((mail.outstanding(), mail.wait(Some(1))), (Some(1), News::Room));
        mail.give_up();
        mail.used();
        assert_eq!(mail.outstanding(), Some(0));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;

    /// Opens that come while the reader looks, or falls asleep, wake it.
    #[test]
    fn who_waits_for_room_or_a_missed_file_is_woken() {
        for missed in [false, true] {
            loom::model(move || {
                let mail = Arc::new(Mail::default());
                mail.is_read();
                mail.is_read();
                let opener = {
                    let mail = Arc::clone(&mail);
                    loom::thread::spawn(move || {
                        mail.used();
                        if missed { mail.missed(&Arc::new(())) } else { mail.used() }
                    })
                };
                let news = mail.wait(Some(0));
                let expected = if missed { News::Missed(Arc::new(())) } else { News::Room };
                assert_eq!(news, expected);
                opener.join().unwrap();
            });
        }
    }

    /// The thread ends, whatever comes at the same time.
    #[test]
    fn a_stop_is_seen() {
        loom::model(|| {
            let mail = Arc::new(Mail::<()>::default());
            let opener = {
                let mail = Arc::clone(&mail);
                loom::thread::spawn(move || mail.missed(&Arc::new(())))
            };
            let reader = {
                let mail = Arc::clone(&mail);
                loom::thread::spawn(move || while mail.wait(None) != News::Stop {})
            };
            mail.stop();
            opener.join().unwrap();
            reader.join().unwrap();
        });
    }
}
