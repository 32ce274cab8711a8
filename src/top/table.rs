//! Rates as tables.

use std::fmt::Write;

use super::rates::{OperationRates, Rates, ThreadRates};
use crate::escape::escaped;
use crate::requests::Frequent;

/// Most paths and callers that are shown.
const BUSIEST: usize = 5;

/// Writing to a `String` cannot fail.
macro_rules! say {
    ($to:expr, $($what:tt)*) => { let _ = writeln!($to, $($what)*); };
}

/// One server: its requests, its threads, and what is busiest. Text of another process does not steer the
/// terminal: root may ask any.
pub(crate) fn text(rates: &Rates) -> String {
    let mut text = String::new();
    let (dir, at, kind) = (escaped(&rates.dir), escaped(&rates.mount_point), escaped(&rates.kind));
    say!(text, "{dir} at {at}  ({kind}, pid {})", pid(rates));
    let waiting = match rates.waiting {
        Some(waiting) => format!(", {waiting} waiting"),
        None => String::new(),
    };
    let (rate, seconds) = (shown(rates.requests_per_second), rates.seconds);
    say!(text, "  {rate} requests/s within {seconds:.1} s{waiting}");
    operations(&rates.operations, &mut text);
    threads(&rates.threads, &mut text);
    if let Some(busiest) = &rates.busiest {
        frequent("paths recorded most often", &busiest.paths, &mut text);
        frequent("callers recorded most often", &busiest.callers, &mut text);
    }
    text
}

fn pid(rates: &Rates) -> String {
    match rates.pid_here {
        Some(here) => here.to_string(),
        None => format!("{} in another pid namespace", rates.pid),
    }
}

fn operations(operations: &[OperationRates], to: &mut String) {
    if operations.is_empty() {
        return;
    }
    say!(
        to,
        "  {:<16} {:<12} {:>9} {:>12} {:>8} {:>8} {:>8} {:>8}",
        "operation",
        "decision",
        "per s",
        "total",
        "mean",
        "p50",
        "p99",
        "p99.9"
    );
    for one in operations {
        let latency = |of: fn(&super::rates::Latency) -> u64| {
            one.latency.as_ref().map_or_else(|| "-".to_owned(), |latency| duration(of(latency)))
        };
        say!(
            to,
            "  {:<16} {:<12} {:>9} {:>12} {:>8} {:>8} {:>8} {:>8}",
            escaped(&one.operation),
            escaped(&one.decision),
            shown(one.per_second),
            one.total,
            latency(|latency| latency.mean_ns),
            latency(|latency| latency.p50_ns),
            latency(|latency| latency.p99_ns),
            latency(|latency| latency.p999_ns)
        );
    }
}

fn threads(threads: &[ThreadRates], to: &mut String) {
    say!(to, "  {:<16} {:>8} {:>4} {:>5} {:>6}", "thread", "tid", "CPU", "state", "CPU%");
    for thread in threads {
        say!(
            to,
            "  {:<16} {:>8} {:>4} {:>5} {:>6.1}",
            escaped(&thread.name),
            thread.tid,
            thread.cpu,
            escaped(&thread.state),
            thread.cpu_percent
        );
    }
}

fn frequent(title: &str, all: &[Frequent], to: &mut String) {
    say!(to, "  {title}");
    for one in all.iter().take(BUSIEST) {
        let at_least = one.count - one.error;
        let count = if one.error == 0 { String::new() } else { format!("{at_least} to ") };
        say!(to, "    {count}{}  {}", one.count, escaped(&one.what));
    }
}

/// A rate; `0` is none at all.
fn shown(rate: f64) -> String {
    if rate == 0.0 || rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

/// A duration with three digits at most.
fn duration(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let ns = ns as f64;
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = usize::from(value < 9.95 && unit != "ns");
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::super::rates::{Span, tests};
    use super::*;
    use crate::requests::Busiest;

    #[test]
    fn a_server_is_shown_with_requests_threads_and_quantiles() {
        let before = tests::requests(0, Vec::new(), 0);
        let open = tests::operation("open", &[(1500, 99), (2_000_000, 2)]);
        let after = tests::requests(1_000_000_000, vec![open], 310_000_000);
        let text = text(&Rates::between(&before, &after, Some(7), Span::BetweenLooks));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        for line in [
            "/d at /m (mount, pid 7)",
            "101 requests/s within 1.0 s",
            "open done 101 101 41 us 1.5 us 2.0 ms 2.0 ms",
            "tollgate-fuse-0 8 1 S 31.0",
        ] {
            assert!(lines.iter().any(|one| one == line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn durations_have_few_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.0 us"),
            (12_345, "12 us"),
            (9_990_000, "10 ms"),
        ] {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(duration(70_000_000_000), "70 s");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let mut requests = tests::requests(1, vec![tests::operation("o\x1bp", &[])], 0);
        requests.dir = "/a\n\x1b[2Jb".to_owned();
        requests.threads[0].name = "\x1b]0;".to_owned();
        let what = Frequent { what: "p\u{9b}".to_owned(), count: 1, error: 0 };
        requests.busiest = Some(Busiest { paths: vec![what], callers: Vec::new() });
        let text = text(&Rates::between(&requests, &requests, None, Span::BetweenLooks));
        assert!(text.starts_with("/a\\n\\x1b[2Jb at /m"), "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text}");
    }
}
