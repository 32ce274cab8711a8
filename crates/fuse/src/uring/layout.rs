//! Which thread serves the queue of which CPU.

use std::ops::Range;

/// The queues of all possible CPUs, folded onto threads. Pure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// For each thread, its queues. A queue's number is its CPU's.
    pub(crate) queues: Vec<Vec<u16>>,
    /// For each thread, the CPUs to run on.
    pub(crate) cpus: Vec<Vec<usize>>,
}

impl Layout {
    /// Queues of `possible` CPUs on at most `max_threads` threads. The threads run on the CPUs of
    /// `allowed`, in ascending order; neighbours share a thread where there are more CPUs than
    /// threads, because neighbours often share a cache. The queues of CPUs that the process may not
    /// use, or that are offline, are spread over the threads.
    pub(crate) fn new(possible: u16, allowed: &[usize], max_threads: usize) -> Self {
        let allowed: Vec<usize> =
            allowed.iter().copied().filter(|&cpu| cpu < usize::from(possible)).collect();
        let threads = allowed.len().min(max_threads).max(1);
        let mut layout =
            Self { queues: vec![Vec::new(); threads], cpus: vec![Vec::new(); threads] };
        for cpu in 0..possible {
            let thread = match allowed.binary_search(&usize::from(cpu)) {
                Ok(rank) => {
                    let thread = rank * threads / allowed.len();
                    layout.cpus[thread].push(usize::from(cpu));
                    thread
                }
                Err(_) => usize::from(cpu) % threads,
            };
            layout.queues[thread].push(cpu);
        }
        layout
    }

    pub(crate) fn threads(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn queues_total(&self) -> usize {
        self.queues.iter().map(Vec::len).sum()
    }
}

/// The number of CPUs in a list such as `0-7` or `0,2-3`: one more than the highest.
pub(crate) fn parse_possible(list: &str) -> Option<u16> {
    let ends = list.trim().split(',').map(|range| parse_range(range).map(|range| range.end));
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn parse_range(range: &str) -> Option<Range<u16>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some(first..last.checked_add(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_thread_for_each_cpu_where_they_are_few() {
        let layout = Layout::new(2, &[0, 1], 16);
        assert_eq!(layout.queues, [[0], [1]]);
        assert_eq!(layout.cpus, [[0], [1]]);
    }

    #[test]
    fn neighbours_share_a_thread_where_cpus_are_many() {
        let layout = Layout::new(8, &[0, 1, 2, 3, 4, 5, 6, 7], 2);
        assert_eq!(layout.queues, [[0, 1, 2, 3], [4, 5, 6, 7]]);
    }

    #[test]
    fn queues_of_cpus_that_are_offline_are_served_too() {
        let layout = Layout::new(6, &[1, 2], 16);
        assert_eq!(layout.cpus, [[1], [2]]);
        assert_eq!(layout.queues, [vec![0, 1, 4], vec![2, 3, 5]]);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_possible("0-1\n"), Some(2));
        assert_eq!(parse_possible("0"), Some(1));
        assert_eq!(parse_possible("0,4-7"), Some(8));
        for bad in ["", "x", "3-1", "0-65535", "-1"] {
            assert_eq!(parse_possible(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_queue_has_exactly_one_thread(
            possible in 1u16..300,
            allowed in proptest::collection::btree_set(0usize..300, 0..40),
            max_threads in 1usize..20,
        ) {
            let allowed: Vec<usize> = allowed.into_iter().collect();
            let layout = Layout::new(possible, &allowed, max_threads);
            prop_assert!(layout.threads() <= max_threads);
            let mut all = layout.queues.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..possible).collect::<Vec<_>>());
            for cpus in &layout.cpus {
                prop_assert!(cpus.iter().all(|cpu| allowed.contains(cpu)));
            }
        }
    }
}
