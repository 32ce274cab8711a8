//! The thread that watches the clock: it delivers delayed items, calls the watchdog, asks again for
//! threads that could not be started, and starts workers for threads of a higher nice level.
//!
//! While no item is delayed and no worker has anything to do it sleeps without a timeout, so that
//! an idle runtime costs nothing. A worker that wakes up arms it; it then ticks until a tick finds
//! everything idle. It runs nobody else's code and waits for nobody, because everybody may wait for
//! it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_wakequeue::sync::Ordering;

use crate::core::QueueCore;
use crate::pool::Pool;
use crate::shared::Shared;
use crate::timer::Due;
use crate::watchdog::Patience;

/// Time between two attempts to start a thread that could not be started: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_secs(1);

/// Time between two looks while there is work: the shortest, whatever may make them frequent, and the
/// longest, however long items may compute. CPUs that come and go are looked for as often.
const TICK_SHORTEST: Duration = Duration::from_millis(1);
const TICK_LONGEST: Duration = Duration::from_secs(1);

/// The body of the thread. Ends when [`Alarm::stop`](crate::alarm::Alarm::stop) was called.
pub(crate) fn serve(shared: &Arc<Shared>) {
    let mut last_tick = Instant::now();
    let mut last_look = false;
    let (mut last_retry, mut retry_after) = (Instant::now(), RETRY_FIRST);
    loop {
        let rings = shared.alarm.rings();
        if shared.alarm.is_stopped() {
            return;
        }
        shared.starts.take().into_iter().for_each(|(pool, claim)| pool.start(claim));
        let next_timer = expire(shared);
        let tick = tick(shared);
        if (shared.alarm.is_armed() || last_look) && last_tick.elapsed() >= tick {
            last_tick = Instant::now();
            // One more look, a tick later, gives the queues what workers used before they slept.
            last_look = look(shared);
            shared.look_at_cpus();
            if last_retry.elapsed() >= retry_after {
                last_retry = Instant::now();
                retry_after = retry_growth(shared, retry_after);
            }
        }
        let ticking = shared.alarm.is_armed() || last_look;
        let next_tick = ticking.then(|| last_tick + tick);
        let next = [next_timer, next_tick].into_iter().flatten().min();
        let sleep = next.map(|next| next.saturating_duration_since(Instant::now()));
        if sleep != Some(Duration::ZERO) {
            shared.alarm.wait(rings, sleep);
        }
    }
}

/// Items that compute for too long are looked for as often as that takes, and pools that stand still
/// as often as rescuers want to know.
fn tick(shared: &Shared) -> Duration {
    let Patience { cpu_intensive, mayday, .. } = shared.settings.patience;
    let wanted = if shared.has_rescuers() { cpu_intensive.min(mayday) } else { cpu_intensive };
    wanted.clamp(TICK_SHORTEST, TICK_LONGEST)
}

/// Queues what is due. Returns when the next one will be.
fn expire(shared: &Shared) -> Option<Instant> {
    loop {
        match shared.timer.take_due() {
            Due::Now(entry) => {
                if let Some(leftover) = entry.item.due(entry.ticket, entry.near, entry.seen) {
                    shared.timer.keep(leftover);
                }
            }
            Due::At(when) => return Some(when),
            Due::Never => return None,
        }
    }
}

/// One look at the workers. True when this look disarmed the alarm.
///
/// It disarms before it looks. A worker counts as active from its claim on, and looks at the alarm
/// after that; so either it sees the alarm disarmed and arms it, or it is seen here.
fn look(shared: &Shared) -> bool {
    let was_armed = shared.alarm.disarm();
    let pools = shared.pools();
    let found = shared.watchdog.look(&pools, &shared.settings.patience);
    for number in found.stalled {
        call_rescuers(shared, &pools[number]);
    }
    shared.end_unused_rescuers();
    if found.busy {
        shared.alarm.rearm();
    }
    was_armed && !found.busy
}

fn call_rescuers(shared: &Shared, pool: &Arc<Pool>) {
    let waits = |queue: &QueueCore| queue.may_be_in(pool) && queue.in_flight.totals().0 > 0;
    for (queue, rescuer) in shared.rescuers() {
        if waits(&queue) {
            queue.stats.mayday.fetch_add(1, Ordering::Relaxed);
            rescuer.call();
        }
    }
}

/// Returns how long to wait before the next attempt.
fn retry_growth(shared: &Shared, after: Duration) -> Duration {
    // Each one counts, also when the first had success.
    let tried = shared.pools().iter().filter(|pool| pool.retry_growth()).count();
    if tried > 0 { (after * 2).min(RETRY_LAST) } else { RETRY_FIRST }
}
