//! How long somebody waits for closes that have returned and may not have been served.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tollgate_fuse::Passing;

/// For how long something is tried that a file stands in the way of which may be closed already.
pub(crate) struct Patience {
    /// At least until then,
    least: Instant,
    /// at most until then,
    most: Instant,
    /// and in between until closes that returned before have been served.
    closes: Mutex<Option<Passing>>,
}

impl Patience {
    /// From now on; `closes` as it is now.
    pub(crate) fn begin(least: Duration, most: Duration, closes: Option<Passing>) -> Self {
        let now = Instant::now();
        Self { least: now + least, most: now + most, closes: Mutex::new(closes) }
    }

    /// Whether trying once more is enough.
    pub(crate) fn is_over(&self) -> bool {
        let now = Instant::now();
        let served = || self.closes.lock().as_mut().is_none_or(Passing::is_over);
        now >= self.most || (now >= self.least && served())
    }
}
