//! `monitor`: what queues did, ever and per second.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tollgate_wakequeue::sync::{AtomicU64, Ordering};

use crate::core::QueueCore;
use crate::latency::Latency;
use crate::pool::WorkerSlot;
use crate::queue_ref::QueueRef;
use crate::shared::Shared;

/// Counters of all queues at one moment. Two of them make [`Rates`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Monitor {
    /// Seconds since 1970.
    pub time_s: f64,
    /// Seconds since the runtime was built, by a clock that nobody sets.
    pub uptime_s: f64,
    /// Stalls that the watchdog reported, ever.
    pub stalls: u64,
    /// Items waiting for their time.
    pub delayed: usize,
    /// By queue, in order of name.
    pub queues: Vec<QueueMonitor>,
}

/// Counters of a queue since it was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueMonitor {
    /// Its name.
    pub name: String,
    /// Items started; what was aborted or cancelled before is none.
    pub started: u64,
    /// Items queued or running now.
    pub in_flight: u64,
    /// CPU time of its items in milliseconds, sampled while they run.
    pub cpu_time_ms: f64,
    /// Items that ran for too long to count against concurrency.
    pub cpu_intensive: u64,
    /// Workers woken or started because another one blocked or hogged.
    pub cm_wakeups: u64,
    /// Workers brought back to their pod.
    pub repatriated: u64,
    /// Times the rescuer was called.
    pub mayday: u64,
    /// Items that the rescuer ran.
    pub rescued: u64,
    /// Items that panicked.
    pub panics: u64,
    /// Items that were not run, because the queue was drained by the time that their delay was over, or by
    /// whoever queued them first, which nobody hears of who was told that they are pending.
    #[serde(default)]
    pub refused: u64,
    /// Items that ran on the caller's thread for want of room.
    pub inlined: u64,
    /// How long items were queued, where that is measured.
    #[serde(default)]
    pub queued: Option<Latency>,
    /// How long items ran, where that is measured.
    #[serde(default)]
    pub run: Option<Latency>,
}

/// What happened between two moments, per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// The later moment, in seconds since 1970.
    pub time_s: f64,
    /// How far apart the moments are.
    pub seconds: f64,
    /// Stalls that the watchdog reported, ever.
    pub stalls: u64,
    /// Items waiting for their time now.
    pub delayed: usize,
    /// By queue, in order of name.
    pub queues: Vec<QueueRates>,
}

/// A line of `monitor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueRates {
    /// The queue.
    pub name: String,
    /// Items started, ever.
    pub total: u64,
    /// Items queued or running now.
    pub in_flight: u64,
    /// Items started per second.
    pub started_per_s: f64,
    /// CPU time per second, in percent of one CPU.
    pub cpu_percent: f64,
    /// Items per second that turned out to run for too long to count against concurrency.
    pub cpu_intensive_per_s: f64,
    /// Workers per second that were woken or started because another one blocked or hogged.
    pub cm_wakeups_per_s: f64,
    /// Workers per second that were brought back to their pod.
    pub repatriated_per_s: f64,
    /// Calls for the rescuer per second.
    pub mayday_per_s: f64,
    /// Items per second that the rescuer ran.
    pub rescued_per_s: f64,
    /// Items per second that panicked.
    pub panics_per_s: f64,
    /// Items per second that ran on the caller's thread for want of room.
    pub inlined_per_s: f64,
    /// How long items were queued, ever, where that is measured.
    #[serde(default)]
    pub queued: Option<Latency>,
    /// How long items ran, ever, where that is measured.
    #[serde(default)]
    pub run: Option<Latency>,
}

fn monitor_queue(queue: &QueueCore, shared: &Shared) -> QueueMonitor {
    let (in_flight, finished) = queue.in_flight.totals();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let stats = &queue.stats;
    let latencies = queue.observed.latencies();
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let cpu_time_ms = read(&stats.cpu_ns) as f64 / 1e6;
    QueueMonitor {
        name: queue.name(),
        started: queue.were_started(finished) + running(queue, shared).min(in_flight),
        in_flight,
        cpu_time_ms,
        cpu_intensive: read(&stats.cpu_intensive),
        cm_wakeups: read(&stats.concurrency_wakes),
        repatriated: read(&stats.repatriated),
        mayday: read(&stats.mayday),
        rescued: read(&stats.rescued),
        panics: read(&stats.panics),
        refused: read(&stats.refused),
        inlined: read(&stats.inlined),
        queued: latencies.map(|(queued, _)| queued),
        run: latencies.map(|(_, run)| run),
    }
}

/// Workers that run an item of this queue now.
fn running(queue: &QueueCore, shared: &Shared) -> u64 {
    let me = QueueRef::of(queue).address().as_ptr();
    let mine = |worker_slot: &&crossbeam_utils::CachePadded<WorkerSlot>| {
        worker_slot.turn.load(Ordering::Acquire) & 1 == 1
            && worker_slot.queue.load(Ordering::Relaxed) == me
    };
    let pools = shared.pools();
    pools.iter().map(|pool| pool.worker_slots.iter().filter(mine).count() as u64).sum()
}

impl Monitor {
    pub(crate) fn of(shared: &Shared) -> Self {
        shared.watchdog.account(&shared.pools(), &shared.settings.patience);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            time_s: time.as_secs_f64(),
            uptime_s: shared.started.elapsed().as_secs_f64(),
            stalls: shared.watchdog.stalls.load(Ordering::Relaxed),
            delayed: shared.timer.len(),
            queues: shared.live_queues().iter().map(|queue| monitor_queue(queue, shared)).collect(),
        }
    }

    /// What happened since `earlier`, per second. Queues that are new count from zero.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Rates {
        let seconds = (self.uptime_s - earlier.uptime_s).max(1e-9);
        let none = QueueMonitor::default();
        let rates = |now: &QueueMonitor| {
            let then = earlier.queues.iter().find(|then| then.name == now.name);
            // A queue that counted more before is another one of the same name.
            rates(now, then.filter(|then| then.started <= now.started).unwrap_or(&none), seconds)
        };
        Rates {
            time_s: self.time_s,
            seconds,
            stalls: self.stalls,
            delayed: self.delayed,
            queues: self.queues.iter().map(rates).collect(),
        }
    }
}

fn rates(now: &QueueMonitor, then: &QueueMonitor, seconds: f64) -> QueueRates {
    let per_s = |count: fn(&QueueMonitor) -> u64| {
        #[expect(clippy::cast_precision_loss, reason = "for people to read")]
        let difference = count(now).saturating_sub(count(then)) as f64;
        difference / seconds
    };
    QueueRates {
        name: now.name.clone(),
        total: now.started,
        in_flight: now.in_flight,
        started_per_s: per_s(|queue| queue.started),
        cpu_percent: (now.cpu_time_ms - then.cpu_time_ms).max(0.0) / seconds / 10.0,
        cpu_intensive_per_s: per_s(|queue| queue.cpu_intensive),
        cm_wakeups_per_s: per_s(|queue| queue.cm_wakeups),
        repatriated_per_s: per_s(|queue| queue.repatriated),
        mayday_per_s: per_s(|queue| queue.mayday),
        rescued_per_s: per_s(|queue| queue.rescued),
        panics_per_s: per_s(|queue| queue.panics),
        inlined_per_s: per_s(|queue| queue.inlined),
        queued: now.queued,
        run: now.run,
    }
}

/// One line per queue; all but the first two columns per second.
impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.queues.iter().map(|queue| queue.name.len()).max().unwrap_or(0).max(12);
        write!(
            f,
            "{:<width$} {:>12} {:>8} {:>12} {:>7}",
            "queue", "total", "infl", "start/s", "CPU%"
        )?;
        for heading in ["CPUint", "CMwake", "repat", "mayday", "rescued", "panics"] {
            write!(f, " {heading:>7}")?;
        }
        writeln!(f)?;
        for queue in &self.queues {
            write!(
                f,
                "{:<width$} {:>12} {:>8} {:>12} {:>7.1}",
                queue.name,
                queue.total,
                queue.in_flight,
                Rate(queue.started_per_s),
                queue.cpu_percent
            )?;
            for rate in [
                queue.cpu_intensive_per_s,
                queue.cm_wakeups_per_s,
                queue.repatriated_per_s,
                queue.mayday_per_s,
                queue.rescued_per_s,
                queue.panics_per_s,
            ] {
                write!(f, " {:>7}", Rate(rate))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Whole numbers where they say enough; what happened at all is never shown as zero.
struct Rate(f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0.0 => "0".to_owned(),
            rate if rate < 0.01 => "<0.01".to_owned(),
            rate if rate < 0.995 => format!("{rate:.2}"),
            rate if rate < 9.95 => format!("{rate:.1}"),
            rate => format!("{rate:.0}"),
        };
        f.pad(&text)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(uptime_s: f64, queues: &[(&str, u64, u64)]) -> Monitor {
        let queue = |&(name, started, mayday): &(&str, u64, u64)| QueueMonitor {
            name: name.to_owned(),
            started,
            mayday,
            cpu_time_ms: 10.0 * uptime_s,
            ..QueueMonitor::default()
        };
        let queues = queues.iter().map(queue).collect();
        Monitor { time_s: 1e9 + uptime_s, uptime_s, stalls: 0, delayed: 0, queues }
    }

    #[test]
    fn every_rate_is_per_second() {
        let rates = at(3.0, &[("a", 30, 9)]).since(&at(1.0, &[("a", 10, 5)]));
        let queue = &rates.queues[0];
        assert_eq!((rates.seconds, queue.total), (2.0, 30));
        assert_eq!((queue.started_per_s, queue.mayday_per_s, queue.cpu_percent), (10.0, 2.0, 1.0));
    }

    #[test]
    fn new_queues_and_new_ones_of_an_old_name_count_from_zero() {
        let rates = at(2.0, &[("new", 8, 0), ("old", 6, 1)]).since(&at(1.0, &[("old", 600, 9)]));
        let started: Vec<_> = rates.queues.iter().map(|queue| queue.started_per_s).collect();
        assert_eq!(started, [8.0, 6.0]);
    }

    #[test]
    fn rare_events_are_seen_after_long_intervals() {
        let shown =
            [0.0, 1.0 / 3600.0, 1.0 / 60.0, 0.999, 9.94, 9.99, 1234.5].map(|r| Rate(r).to_string());
        assert_eq!(shown, ["0", "<0.01", "0.02", "1.0", "9.9", "10", "1234"]);
    }

    #[test]
    fn the_table_has_a_column_for_each_heading() {
        let name = "a-name-that-is-longer-than-the-column";
        let text = at(1.5, &[(name, 3, 100)]).since(&at(1.0, &[])).to_string();
        let lines: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].len(), lines[1].len(), "{text}");
        assert_eq!(lines[1][..2], [name, "3"]);
        assert_eq!((lines[0][3], lines[1][3]), ("start/s", "6.0"));
        assert_eq!((lines[0][8], lines[1][8]), ("mayday", "200"));
    }
}
