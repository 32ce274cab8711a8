//! Whether others fill all CPUs although pollers get their turns.
//!
//! Two compilers on two CPUs leave gaps: one ends, the next is started. A poller fills such a gap,
//! and then that CPU does not look idle to the kernel: what waits on the other one is fetched some
//! milliseconds later, where a CPU that runs out of work fetches it at once. So compilers take
//! longer beside pollers, and do not crowd them out either. A program that waits for its server is
//! different: of the two, one sleeps.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::conditions::Roots;

/// Looks that are judged together: 6.4 ms of a burst.
const LOOKS: u32 = 16;
/// So many of them with a thread of others for each CPU: there is no CPU to keep awake.
const FULL: u32 = 12;

/// What looks at the machine saw within one burst. The default sees nothing.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    machine: Option<(Runnable, usize)>,
    looks: u32,
    full: u32,
}

impl Occupancy {
    /// Of a machine with `cpus` CPUs.
    pub(crate) fn of_machine(roots: &Roots, cpus: usize) -> Self {
        Self { machine: Runnable::open(roots).map(|runnable| (runnable, cpus)), looks: 0, full: 0 }
    }

    /// A burst ends: the next one is judged by itself.
    pub(crate) fn forget(&mut self) {
        (self.looks, self.full) = (0, 0);
    }

    /// A look, at a moment when `pollers` spin. True after a row of looks at most of which others
    /// had a thread for each CPU.
    pub(crate) fn is_full(&mut self, pollers: usize) -> bool {
        let Some((runnable, cpus)) = &self.machine else { return false };
        let Some(runnable) = runnable.count() else { return false };
        // The thread that asks is one of them.
        self.looks += 1;
        self.full += u32::from(runnable > cpus + pollers);
        let full = self.full >= FULL;
        // Enough of one kind: the looks that are left would not change it.
        if full || self.looks - self.full > LOOKS - FULL {
            self.forget();
        }
        full
    }
}

/// How many threads of the machine run or want to, read often.
#[derive(Debug)]
pub struct Runnable(File);

impl Runnable {
    /// `None` where `/proc/loadavg` is out of reach.
    #[must_use]
    pub fn open(roots: &Roots) -> Option<Self> {
        roots.loadavg().ok().map(Self)
    }

    /// At this moment, the thread that asks and pollers that spin among them; `None` if it cannot be
    /// read. Some microseconds.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        let mut text = [0; 128];
        let len = self.0.read_at(&mut text, 0).ok()?;
        parse(&text[..len])
    }
}

/// As in `0.50 0.40 0.30 3/456 789`.
fn parse(loadavg: &[u8]) -> Option<usize> {
    let fields = std::str::from_utf8(loadavg).ok()?;
    fields.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::fs;

    /// What `looks` at a machine of two CPUs say, of which each has so many threads of others.
    fn says(looks: impl IntoIterator<Item = usize>) -> Vec<bool> {
        const POLLERS: usize = 2;
        let proc = tempfile::tempdir().unwrap();
        let file = proc.path().join("loadavg");
        fs::write(&file, "").unwrap();
        let roots = Roots { proc: proc.path().into(), ..Roots::default() };
        let mut occupancy = Occupancy::of_machine(&roots, 2);
        let look = |others| {
            fs::write(&file, format!("0.50 0.40 0.30 {}/456 789\n", others + POLLERS + 1)).unwrap();
            occupancy.is_full(POLLERS)
        };
        looks.into_iter().map(look).collect()
    }

    fn first_full(looks: impl IntoIterator<Item = usize>) -> Option<usize> {
        says(looks).iter().position(|&full| full)
    }

    #[test]
    fn compilers_fill_the_machine_and_a_program_that_waits_for_its_server_does_not() {
        assert_eq!(first_full([2; 100]), Some(11));
        assert_eq!(first_full([3, 2, 2, 1].repeat(10)), Some(14), "with gaps");
        assert_eq!(first_full([1; 100]), None);
        assert_eq!(first_full([1, 2].repeat(50)), None, "they meet now and then");
        assert_eq!(first_full([0; 100]), None);
    }

    #[test]
    fn each_row_of_looks_is_judged_by_itself() {
        let row = [vec![1; 5], vec![2; 11], vec![1; 5], vec![2; 11]].concat();
        assert_eq!(first_full(row.repeat(3)), None);
        assert_eq!(says([2; 24]).iter().filter(|&&full| full).count(), 2);
    }

    #[test]
    fn what_cannot_be_read_is_not_full() {
        assert!(!Occupancy::default().is_full(0));
        let nowhere = Roots { proc: "/nonexistent".into(), ..Roots::default() };
        assert!(Runnable::open(&nowhere).is_none());
        assert_eq!(parse(b"0.50 0.40\n"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"0.50 0.40 0.30 3/456 789\n"), Some(3));
        let here = Runnable::open(&Roots::default()).unwrap();
        assert!((0..2).all(|_| here.count().unwrap() >= 1), "read again and again");
    }
}
