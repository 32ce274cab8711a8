//! When a file with one link was last seen to have it under the name that it is known by.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lower::Stat;

/// Two changes that are further apart have two times: the clock of change times stands still for 10 ms at
/// most, at 100 ticks a second.
const SETTLED: Duration = Duration::from_millis(20);

/// The change time at which a file had one link, and the name that it is known by; 0 if it was not seen so.
#[derive(Debug, Default)]
pub(crate) struct OnlyName(AtomicU64);

impl OnlyName {
    /// Whether it was seen to be so at this [change time](settled).
    pub(crate) fn was_seen(&self, settled: u64) -> bool {
        self.0.load(Ordering::Relaxed) == settled
    }

    /// It is seen to be so at this change time.
    pub(crate) fn seen(&self, settled: u64) {
        self.0.store(settled, Ordering::Relaxed);
    }
}

/// The change time in nanoseconds since 1970, if a further change gets another one.
pub(crate) fn settled(stat: &Stat) -> Option<u64> {
    let (seconds, nanoseconds) = stat.changed();
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    let at = seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds.into())?;
    let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_nanos(at));
    age.is_ok_and(|age| age > SETTLED).then_some(at)
}
