//! Two looks at a server's requests make rates.

use serde::Serialize;

use crate::requests::{Bucket, Busiest, Operation, Requests, Thread};

/// What a server did between two looks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rates {
    pub(crate) pid: u32,
    /// In the pid namespace of the reader; `None` if the server is not in it.
    pub(crate) pid_here: Option<u32>,
    pub(crate) kind: String,
    pub(crate) dir: String,
    /// Its bytes, if they are not UTF-8; so for the mount point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir_hex: Option<String>,
    pub(crate) mount_point: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mount_point_hex: Option<String>,
    /// Between the looks.
    pub(crate) seconds: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) waiting: Option<u64>,
    /// Those that happened since the start, the most frequent of now first.
    pub(crate) operations: Vec<OperationRates>,
    pub(crate) threads: Vec<ThreadRates>,
    pub(crate) busiest: Option<Busiest>,
}

/// One operation with one decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct OperationRates {
    pub(crate) operation: String,
    pub(crate) decision: String,
    pub(crate) per_second: f64,
    /// Since the start of the server.
    pub(crate) total: u64,
    pub(crate) latency: Option<Latency>,
}

/// Latencies in nanoseconds; quantiles are bounds of buckets, up to 25 % too high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Latency {
    pub(crate) mean_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ThreadRates {
    pub(crate) tid: u32,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) cpu: u32,
    /// Of one CPU.
    pub(crate) cpu_percent: f64,
}

/// Which requests the latencies are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// Those between the two looks.
    BetweenLooks,
    /// Those since the start of the server.
    SinceStart,
}

impl Rates {
    /// What happened between `before` and `after`, two looks at the same server.
    pub(crate) fn between(
        before: &Requests,
        after: &Requests,
        pid_here: Option<u32>,
        span: Span,
    ) -> Self {
        let elapsed_ns = after.uptime_ns.saturating_sub(before.uptime_ns).max(1);
        #[expect(clippy::cast_precision_loss, reason = "rates are shown with few digits")]
        let seconds = elapsed_ns as f64 / 1e9;
        let mut operations: Vec<_> = after
            .operations
            .iter()
            .map(|one| {
                let same = |old: &&Operation| {
                    old.operation == one.operation && old.decision == one.decision
                };
                let old = before.operations.iter().find(same);
                operation_rates(old, one, seconds, span)
            })
            .collect();
        operations
            .sort_by(|a, b| b.per_second.total_cmp(&a.per_second).then(b.total.cmp(&a.total)));
        let thread = |one: &Thread| {
            let old = before.threads.iter().find(|old| old.tid == one.tid);
            thread_rates(old, one, seconds)
        };
        Self {
            pid: after.pid,
            pid_here,
            kind: after.kind.clone(),
            dir: after.dir.clone(),
            dir_hex: after.dir_hex.clone(),
            mount_point: after.mount_point.clone(),
            mount_point_hex: after.mount_point_hex.clone(),
            seconds,
            // The sum of none is -0.
            requests_per_second: operations.iter().map(|one| one.per_second).sum::<f64>() + 0.0,
            waiting: after.waiting,
            operations,
            threads: after.threads.iter().map(thread).collect(),
            busiest: after.busiest.clone(),
        }
    }
}

fn operation_rates(
    before: Option<&Operation>,
    after: &Operation,
    seconds: f64,
    span: Span,
) -> OperationRates {
    let new = since(before, after);
    OperationRates {
        operation: after.operation.clone(),
        decision: after.decision.clone(),
        per_second: per_second(new.count(), seconds),
        total: after.count(),
        latency: latency(if span == Span::SinceStart { after } else { &new }),
    }
}

/// What was counted since `before`.
fn since(before: Option<&Operation>, after: &Operation) -> Operation {
    let mut new = after.clone();
    let Some(before) = before else { return new };
    new.total_ns = after.total_ns.saturating_sub(before.total_ns);
    for bucket in &mut new.buckets {
        let old = before.buckets.iter().find(|old| old.below_ns == bucket.below_ns);
        bucket.count = bucket.count.saturating_sub(old.map_or(0, |old| old.count));
    }
    new
}

fn latency(operation: &Operation) -> Option<Latency> {
    let count = operation.count();
    let mean_ns = operation.total_ns.checked_div(count)?;
    let quantile = |per_mille| quantile(&operation.buckets, count, per_mille);
    Some(Latency { mean_ns, p50_ns: quantile(500), p99_ns: quantile(990), p999_ns: quantile(999) })
}

/// The bound below which at least `per_mille` of a thousand lie; the bound before it for the last,
/// open bucket.
fn quantile(buckets: &[Bucket], count: u64, per_mille: u64) -> u64 {
    // Rounded up: of three, the median is the second.
    let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000).max(1);
    let (mut seen, mut last) = (0_u128, 0);
    for bucket in buckets {
        seen += u128::from(bucket.count);
        last = bucket.below_ns.unwrap_or(last);
        if seen >= rank {
            break;
        }
    }
    last
}

fn thread_rates(before: Option<&Thread>, after: &Thread, seconds: f64) -> ThreadRates {
    let used_ns = after.cpu_ns.saturating_sub(before.map_or(0, |before| before.cpu_ns));
    ThreadRates {
        tid: after.tid,
        name: after.name.clone(),
        state: after.state.clone(),
        cpu: after.cpu,
        cpu_percent: per_second(used_ns, seconds) / 1e7,
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown with few digits")]
fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn operation(name: &str, buckets: &[(u64, u64)]) -> Operation {
        let bucket = |&(below, count): &(u64, u64)| Bucket {
            below_ns: Some(below).filter(|n| *n > 0),
            count,
        };
        Operation {
            operation: name.to_owned(),
            decision: "done".to_owned(),
            total_ns: buckets.iter().map(|(below, count)| below * count).sum(),
            buckets: buckets.iter().map(bucket).collect(),
        }
    }

    pub(crate) fn requests(uptime_ns: u64, operations: Vec<Operation>, cpu_ns: u64) -> Requests {
        let (name, state) = ("tollgate-fuse-0".to_owned(), "S".to_owned());
        Requests {
            version: crate::requests::VERSION,
            pid: 7,
            kind: "mount".to_owned(),
            dir: "/d".to_owned(),
            dir_hex: None,
            mount_point: "/m".to_owned(),
            mount_point_hex: None,
            uptime_ns,
            waiting: None,
            operations,
            threads: vec![Thread { tid: 8, name, state, cpu: 1, cpu_ns }],
            busiest: None,
        }
    }

    #[test]
    fn rates_are_differences_over_the_servers_own_clock() {
        let before = requests(1_000_000_000, vec![operation("open", &[(1000, 10)])], 0);
        let open = operation("open", &[(1000, 10), (2000, 30)]);
        let after =
            requests(3_000_000_000, vec![operation("read", &[(500, 1)]), open], 500_000_000);
        let rates = Rates::between(&before, &after, None, Span::BetweenLooks);
        assert_eq!(rates.operations[0].operation, "open", "the most frequent first");
        assert!((rates.operations[0].per_second - 15.0).abs() < 1e-9);
        assert_eq!(rates.operations[0].total, 40);
        let latency = rates.operations[0].latency.unwrap();
        assert_eq!((latency.p50_ns, latency.mean_ns), (2000, 2000), "of the new ones");
        assert!((rates.threads[0].cpu_percent - 25.0).abs() < 1e-9);
        let all = Rates::between(&before, &after, None, Span::SinceStart);
        assert_eq!(all.operations[0].latency.unwrap().mean_ns, 1750);
    }

    #[test]
    fn quantiles_are_bounds_of_the_bucket_that_holds_the_rank() {
        let of = |buckets: &[(u64, u64)], per_mille| {
            let one = operation("x", buckets);
            quantile(&one.buckets, one.count(), per_mille)
        };
        assert_eq!(of(&[(10, 1), (20, 1), (30, 1)], 500), 20);
        assert_eq!(of(&[(10, 99), (20, 1)], 990), 10);
        assert_eq!(of(&[(10, 98), (20, 2)], 990), 20);
        assert_eq!(of(&[(10, 999), (20, 1)], 999), 10);
        assert_eq!(of(&[(10, 1), (0, 5)], 990), 10, "the last bucket has no bound");
    }

    #[test]
    fn nothing_happened_is_no_latency() {
        let same = requests(1, vec![operation("open", &[(1000, 10)])], 0);
        let rates = Rates::between(&same, &same, None, Span::BetweenLooks);
        assert_eq!(rates.operations[0].latency, None);
        let none = requests(1, Vec::new(), 0);
        let rates = Rates::between(&none, &none, None, Span::BetweenLooks);
        assert!(rates.requests_per_second.is_sign_positive(), "it would be shown as -0");
    }
}
