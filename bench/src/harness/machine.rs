//! What was measured, on what, and what else ran there.

use std::process::Command;
use std::time::Instant;

use serde::Serialize;

/// The machine that a report comes from.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    /// Model name of the first CPU.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
}

impl Machine {
    /// Looks at /proc/cpuinfo and uname(2); what cannot be had reads `unknown`.
    pub(super) fn detect() -> Machine {
        Machine {
            cpu: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

/// Clock ticks per second in /proc/stat: `USER_HZ`, which is 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time of the machine and of this process from a point in time on.
#[derive(Debug)]
pub(super) struct Quiet {
    start: Instant,
    before: Option<Ticks>,
}

/// CPUs that were taken from a measurement, on average over it.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Disturbance {
    /// By processes that are neither this one nor its children.
    pub(super) others_cpus: f64,
    /// By the hypervisor.
    pub(super) stolen_cpus: f64,
    /// How long the measurement took.
    pub(super) elapsed_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Ticks {
    busy: u64,
    stolen: u64,
    own: u64,
}

impl Quiet {
    /// Starts counting.
    pub(super) fn start() -> Quiet {
        Quiet { start: Instant::now(), before: Ticks::now() }
    }

    /// What was taken since the start. Children count as own ones once they were waited for.
    pub(super) fn disturbance(&self) -> Option<Disturbance> {
        let (before, now) = (self.before?, Ticks::now()?);
        let elapsed_s = self.start.elapsed().as_secs_f64();
        let cpus = |ticks: u64| ticks as f64 / TICKS_PER_SECOND / elapsed_s;
        let busy = now.busy.saturating_sub(before.busy);
        let own = now.own.saturating_sub(before.own);
        Some(Disturbance {
            others_cpus: cpus(busy.saturating_sub(own)),
            stolen_cpus: cpus(now.stolen.saturating_sub(before.stolen)),
            elapsed_s,
        })
    }
}

impl Ticks {
    fn now() -> Option<Ticks> {
        let machine = std::fs::read_to_string("/proc/stat").ok()?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        Ticks::parse(&machine, &own)
    }

    fn parse(machine: &str, own: &str) -> Option<Ticks> {
        let first = machine.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal
        let all = numbers(first);
        let [user, nice, system, _, _, irq, softirq, stolen] = *all.first_chunk()?;
        // The name in parentheses may hold spaces; utime stime cutime cstime are fields 14 to 17.
        let own: u64 = numbers(own.rsplit_once(") ")?.1).get(11..15)?.iter().sum();
        Some(Ticks { busy: user + nice + system + irq + softirq, stolen, own })
    }
}

/// The numbers of a line; what is none counts as 0.
fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
}

/// The commit of the working directory's repository, with `-dirty` when there are uncommitted
/// changes; `unknown` without git or repository.
pub(super) fn commit() -> String {
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
        .output()
        .ok()
        .filter(|output| output.status.success());
    match described {
        Some(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        None => "unknown".to_owned(),
    }
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_from_the_right_fields() {
        let machine = "cpu  1 2 3 100 200 4 5 6 0 0\ncpu0 9 9 9\n";
        let own = "77 (a) name) R 1 2 3 4 5 6 7 8 9 10 1000 200 30 4 20 0 1 0";
        let ticks = Ticks::parse(machine, own);
        assert_eq!(ticks, Some(Ticks { busy: 15, stolen: 6, own: 1234 }));
        assert_eq!(Ticks::parse("cpu  1 2", own), None);
        assert_eq!(Ticks::parse(machine, "no parenthesis"), None);
    }

    #[test]
    fn own_work_counts_as_own() {
        let before = Ticks::now().expect("a Linux machine has /proc/stat");
        let deadline = Instant::now() + std::time::Duration::from_secs(30);
        let seen = |now: &Ticks| {
            // The kernel samples what the machine does at its ticks, and may see time that the host
            // took where this process worked: each figure gets there by itself.
            let machine = now.busy + now.stolen - before.busy - before.stolen;
            now.own >= before.own + 5 && machine >= 5
        };
        let mut now = before;
        while !seen(&now) && Instant::now() < deadline {
            now = Ticks::now().expect("as before");
        }
        assert!(seen(&now), "30 s of work are not seen: {before:?} {now:?}");
    }
}
