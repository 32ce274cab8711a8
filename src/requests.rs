//! What a server tells of its requests and threads: counted since its start, to be compared by the
//! reader.

use serde::{Deserialize, Serialize};
use tollgate_fuse::{Histogram, OperationLatency};

/// Version of [`Requests`]; a field is added without a new number, never changed or removed.
pub(crate) const VERSION: u32 = 1;

/// The requests of a view and the threads of its server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Requests {
    pub(crate) version: u32,
    pub(crate) pid: u32,
    pub(crate) kind: String,
    pub(crate) dir: String,
    /// Its bytes, if they are not UTF-8; so for the mount point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dir_hex: Option<String>,
    pub(crate) mount_point: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mount_point_hex: Option<String>,
    /// Time since the start of the server, by a clock that does not jump.
    pub(crate) uptime_ns: u64,
    /// Requests that the kernel has sent or is about to send, and that have no reply yet; `None`
    /// where the kernel's count cannot be read.
    pub(crate) waiting: Option<u64>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) threads: Vec<Thread>,
    /// The names and programs that the audit log recorded most often; `None` without an audit log,
    /// and for readers of another pid namespace.
    pub(crate) busiest: Option<Busiest>,
}

/// The requests of one operation with one decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// In lower case.
    pub(crate) operation: String,
    pub(crate) decision: String,
    /// The sum of all latencies.
    pub(crate) total_ns: u64,
    pub(crate) buckets: Vec<Bucket>,
}

/// Latencies up to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    /// The first latency above the bucket; `None` for the last one, which is open.
    pub(crate) below_ns: Option<u64>,
    /// Those above the bucket before.
    pub(crate) count: u64,
}

/// A thread of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) name: String,
    /// As proc(5) has it: R runs or is ready, S sleeps.
    pub(crate) state: String,
    /// Where it runs, or ran last.
    pub(crate) cpu: u32,
    /// CPU time since its start.
    pub(crate) cpu_ns: u64,
}

/// What was recorded most often since the start; counts are exact or up to `error` too high.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Busiest {
    pub(crate) paths: Vec<Frequent>,
    pub(crate) callers: Vec<Frequent>,
}

/// How often something was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Frequent {
    pub(crate) what: String,
    pub(crate) count: u64,
    pub(crate) error: u64,
}

impl Operation {
    /// What the transport measured, with the view's names of its classes.
    pub(crate) fn of(latency: &OperationLatency) -> Self {
        let bucket = |(bound, count): (u64, u64)| Bucket {
            below_ns: Some(bound).filter(|bound| *bound != u64::MAX),
            count,
        };
        Self {
            operation: latency.operation.to_lowercase(),
            decision: tollgate_view::DECISIONS[usize::from(latency.class)].to_owned(),
            total_ns: total_ns(&latency.histogram),
            buckets: latency.histogram.buckets().map(bucket).collect(),
        }
    }

    /// How many requests there were.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }
}

fn total_ns(histogram: &Histogram) -> u64 {
    u64::try_from(histogram.total().as_nanos()).unwrap_or(u64::MAX)
}

/// The threads of this process.
pub(crate) fn threads() -> Vec<Thread> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let mut threads: Vec<_> = tasks
        .flatten()
        .filter_map(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
            let schedstat = std::fs::read_to_string(task.path().join("schedstat")).ok();
            thread(&stat, schedstat.as_deref())
        })
        .collect();
    threads.sort_by_key(|thread| thread.tid);
    threads
}

/// A thread from its `stat` and `schedstat`: the latter counts nanoseconds, where the kernel has
/// it.
fn thread(stat: &str, schedstat: Option<&str>) -> Option<Thread> {
    // The name may hold spaces and parentheses itself.
    let (before, after) = stat.rsplit_once(") ")?;
    let (tid, name) = before.split_once(" (")?;
    let words: Vec<_> = after.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let ticks_ns = (number(11)? + number(12)?) * (1_000_000_000 / TICKS_PER_SECOND);
    let exact_ns = schedstat.and_then(|text| text.split(' ').next()?.parse().ok());
    Some(Thread {
        tid: tid.parse().ok()?,
        name: name.to_owned(),
        state: words.first()?.to_string(),
        cpu: u32::try_from(number(36)?).ok()?,
        cpu_ns: exact_ns.unwrap_or(ticks_ns),
    })
}

/// The unit of CPU time in proc(5) on every architecture of Linux that Rust has.
const TICKS_PER_SECOND: u64 = 100;

/// The requests of the connection `device` (the minor device number of the mount) that wait for a
/// reply, as the kernel counts them.
pub(crate) fn waiting(device: u32) -> Option<u64> {
    let path = format!("/sys/fs/fuse/connections/{device}/waiting");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_read_whatever_its_name_is() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 \
                    29 30 31 32 33 34 35 7 37";
        let read = |schedstat| thread(&format!("42 (a) b (c) {rest}"), schedstat).unwrap();
        let found = read(None);
        assert_eq!((found.tid, &*found.name, &*found.state), (42, "a) b (c", "S"));
        assert_eq!((found.cpu, found.cpu_ns), (7, 2_000_000_000));
        assert_eq!(read(Some("123 4 5\n")).cpu_ns, 123);
        assert_eq!(thread("nonsense", None), None);
    }

    #[test]
    fn this_process_has_threads() {
        let own = threads();
        assert!(own.iter().any(|thread| thread.tid == std::process::id()), "{own:?}");
        assert!(own.iter().any(|thread| thread.cpu_ns > 0));
    }
}
