//! Where one worker sleeps: a token that is given at most once per sleep.

use std::time::{Duration, Instant};

use crate::sync::{Futex, Ordering};

const EMPTY: u32 = 0;
const ASLEEP: u32 = 1;
const TOKEN: u32 = 2;

/// The sleeping place of one worker.
#[derive(Debug)]
pub(crate) struct Parker {
    state: Futex,
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self { state: Futex::new(EMPTY) }
    }

    /// Sleeps until the token is given, or for `timeout`. True when the token was taken. What the
    /// giver wrote before [`unpark`](Self::unpark) is visible afterwards.
    pub(crate) fn park(&self, timeout: Option<Duration>) -> bool {
        let word = self.state.word();
        if word.compare_exchange(EMPTY, ASLEEP, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            word.store(EMPTY, Ordering::SeqCst);
            return true;
        }
        // Too far away to be a time is for ever.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                // The token may have come just now; it must not be lost.
                return word.swap(EMPTY, Ordering::SeqCst) == TOKEN;
            }
            self.state.wait(ASLEEP, left);
            if word.compare_exchange(TOKEN, EMPTY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return true;
            }
        }
    }

    /// Gives the token. The system call is made only for a worker that really sleeps.
    pub(crate) fn unpark(&self) {
        if self.state.word().swap(TOKEN, Ordering::SeqCst) == ASLEEP {
            self.state.wake(1);
        }
    }
}
