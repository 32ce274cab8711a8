//! Whether there is a CPU to keep awake at all. Pure.
//!
//! While all CPUs compute, none halts, and a burst gains nothing from the monitor's looks, which
//! cost 1 to 3 % of a CPU. A build is like that for minutes.

use crate::conditions::CpuTimes;

/// From this share of idle time on, there is something to keep awake.
const IDLE_PERMILLE: u64 = 50;
/// Time is judged in stretches of at least this length: `/proc/stat` counts in steps of 10 ms.
const STRETCH_NS: u64 = 200_000_000;
/// A stretch longer than this says nothing about now.
const STRETCH_MAX_NS: u64 = 2_000_000_000;
/// How long nothing is done when no CPU was idle, and twice as long each time again.
const REST_NS: u64 = 200_000_000;
const REST_MAX_NS: u64 = 800_000_000;

/// What was seen of the CPUs' idle time.
#[derive(Debug, Default)]
pub(crate) struct Idleness {
    since: Option<(u64, CpuTimes)>,
    rest_ns: u64,
}

impl Idleness {
    /// In a burst, or at its begin: until when nothing is to be done, if no CPU was idle lately.
    /// `times` is asked once for each stretch.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        times: impl FnOnce() -> Option<CpuTimes>,
    ) -> Option<u64> {
        let known = self.since.filter(|(at_ns, _)| now_ns - at_ns < STRETCH_MAX_NS);
        if known.is_some_and(|(at_ns, _)| now_ns - at_ns < STRETCH_NS) {
            return None;
        }
        let now = times()?;
        self.since = Some((now_ns, now));
        let idle = known.and_then(|(_, before)| now.idle_permille_since(before));
        let busy = idle.is_some_and(|permille| permille < IDLE_PERMILLE);
        self.rest_ns = match busy {
            true => (2 * self.rest_ns).clamp(REST_NS, REST_MAX_NS),
            false => 0,
        };
        busy.then(|| now_ns + self.rest_ns)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The machine's time so far, of which `idle` of 1,000 parts since the last call were idle.
    struct Machine(CpuTimes);

    impl Machine {
        fn after(&mut self, ns: u64, idle: u64) -> Option<CpuTimes> {
            // Two CPUs, in ticks of 10 ms.
            let ticks = 2 * ns / 10_000_000;
            self.0.total += ticks;
            self.0.idle += ticks * idle / 1_000;
            Some(self.0)
        }
    }

    #[test]
    fn while_no_cpu_is_idle_rests_grow_and_one_idle_stretch_ends_them() {
        let mut machine = Machine(CpuTimes { total: 0, steal: 0, idle: 0 });
        let (mut idleness, mut now) = (Idleness::default(), 0);
        assert_eq!(idleness.look(now, || machine.after(0, 0)), None, "nothing is known at first");
        assert_eq!(idleness.look(now + STRETCH_NS - 1, || panic!("too early")), None);
        now += STRETCH_NS;
        let rests: Vec<_> = (0..4)
            .map(|_| {
                let stretch = STRETCH_NS;
                let until = idleness.look(now, || machine.after(stretch, 0)).expect("all busy");
                let rest = until - now;
                now = until.max(now + STRETCH_NS);
                rest
            })
            .collect();
        assert_eq!(rests, [REST_NS, 2 * REST_NS, REST_MAX_NS, REST_MAX_NS]);
        assert_eq!(idleness.look(now, || machine.after(REST_MAX_NS, 100)), None);
        now += STRETCH_NS;
        assert_eq!(idleness.look(now, || machine.after(STRETCH_NS, 0)), Some(now + REST_NS));
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut machine = Machine(CpuTimes { total: 0, steal: 0, idle: 0 });
        let mut idleness = Idleness::default();
        assert_eq!(idleness.look(0, || machine.after(0, 0)), None);
        assert_eq!(idleness.look(STRETCH_MAX_NS, || machine.after(STRETCH_MAX_NS, 0)), None);
        assert_eq!(idleness.look(STRETCH_MAX_NS + STRETCH_NS, || None), None, "cannot be read");
    }
}
