//! RELEASEs that wait in the kernel until the next file is opened. Pure.
//!
//! Nobody waits for a RELEASE, but each one wakes the owner of its ring, which takes the CPU from the
//! program that closed the file: two switches between threads. A program that opens file after file
//! wakes the owner by the next OPEN anyway.
//!
//! The kernel sends a request that nobody waits for to a queue only while fewer than `max_background`
//! of them are under way, or none of this queue (`fuse_uring_flush_bg`, Linux 6.14 to 6.18). With a
//! `max_background` of 1, one RELEASE that was served and whose reply is *withheld* keeps those that
//! follow in the kernel, and these wake nobody. When the reply is submitted, the kernel delivers the
//! next one in the same call.
//!
//! So while closes wake the owner often, the reply to a RELEASE is withheld. It is submitted with the
//! reply to an OPEN, and the reply to the RELEASE that this brings is withheld in its place. A reply that
//! is withheld during the first OPEN after it stays so: the file of that OPEN is still to be closed.
//! Each such round lets out one RELEASE. In case there are more closes than opens, all that wait are let
//! out every so many rounds; and when no file is opened, at the second tick. Then no reply is withheld until a
//! RELEASE wakes the owner: it was sent when it was made, so none waits before it.
//!
//! An OPEN may so be served before a RELEASE of the same CPU that was made before it, as over /dev/fuse,
//! where workers serve both at the same time. Who needs to know that all closes before were served asks
//! for it (`passage.rs`), which lets all out.

use std::time::{Duration, Instant};

/// Closes that wake the owner at most so far apart are often.
const OFTEN: Duration = Duration::from_millis(2);
/// Rounds after which all that waits is let out.
const ROUNDS: u32 = 16;

/// Of one ring.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    queues: Vec<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    number: u16,
    /// The entry whose reply is withheld.
    withheld: Option<usize>,
    /// A file was opened since, so that its RELEASE may wait.
    opened: bool,
    /// It was withheld before the last tick.
    is_old: bool,
    /// When a RELEASE woke the owner.
    woken: Option<Instant>,
    /// That happened often.
    defers: bool,
    /// All that waits is let out, until a RELEASE comes by itself.
    lets_out: bool,
    rounds: u32,
    /// The reply that was withheld was submitted beside the reply to an OPEN.
    beside_open: bool,
}

impl Deferral {
    /// For a ring with these queues.
    pub(crate) fn new(queues: &[u16]) -> Self {
        let queue = |&number: &u16| Queue { number, ..Queue::default() };
        Self { queues: queues.iter().map(queue).collect() }
    }

    fn queue(&mut self, number: u16) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.number == number)
    }

    /// A RELEASE of `queue` is to be served. It alone `woke` the owner at this time, if it did.
    pub(crate) fn release(&mut self, queue: u16, woke: Option<Instant>) {
        let Some(queue) = self.queue(queue) else { return };
        if let Some(now) = woke {
            queue.lets_out = false;
            let before = queue.woken.replace(now);
            queue.defers = before.is_some_and(|before| now.duration_since(before) < OFTEN);
            queue.beside_open = false;
        }
    }

    /// The RELEASE in `entry` was served. Returns whether its reply is withheld.
    pub(crate) fn withholds(&mut self, queue: u16, entry: usize) -> bool {
        let Some(queue) = self.queue(queue) else { return false };
        if !queue.defers || queue.lets_out || queue.withheld.is_some() {
            return false;
        }
        queue.withheld = Some(entry);
        queue.opened = queue.beside_open;
        queue.is_old = false;
        true
    }

    /// A file is to be opened. Returns the entry whose reply is to be submitted together with the
    /// reply to this.
    pub(crate) fn open(&mut self, queue: u16) -> Option<usize> {
        let queue = self.queue(queue)?;
        queue.beside_open = false;
        if !std::mem::replace(&mut queue.opened, true) {
            return None;
        }
        let entry = queue.withheld.take()?;
        queue.rounds += 1;
        queue.lets_out |= queue.rounds.is_multiple_of(ROUNDS);
        queue.beside_open = true;
        Some(entry)
    }

    /// Whether a reply is withheld.
    pub(crate) fn is_pending(&self) -> bool {
        self.queues.iter().any(|queue| queue.withheld.is_some())
    }

    /// Some milliseconds have passed. Gives the replies to submit to `submit`.
    pub(crate) fn tick(&mut self, mut submit: impl FnMut(usize)) {
        for queue in &mut self.queues {
            if queue.is_old {
                queue.let_out(&mut submit);
            } else if queue.withheld.is_some() {
                queue.is_old = true;
            }
        }
    }

    /// Gives all replies that are withheld to `submit`. Nothing is withheld until closes wake the owner
    /// often again.
    pub(crate) fn let_all_out(&mut self, mut submit: impl FnMut(usize)) {
        for queue in &mut self.queues {
            queue.let_out(&mut submit);
        }
    }
}

impl Queue {
    fn let_out(&mut self, submit: &mut impl FnMut(usize)) {
        if let Some(entry) = self.withheld.take() {
            submit(entry);
        }
        (self.defers, self.is_old, self.woken) = (false, false, None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// One queue of the kernel, and its owner, who serves what it is sent at once. RELEASEs are
    /// numbered as they are made.
    struct World {
        deferral: Deferral,
        now: Instant,
        made: usize,
        /// In the kernel.
        waiting: VecDeque<usize>,
        /// With the owner, or its reply withheld: no other is sent meanwhile.
        is_under_way: bool,
        withheld: Option<usize>,
        /// Between two events the owner gets to serve so many; the reply to the last is submitted later.
        most: usize,
        reply_is_due: bool,
        served: Vec<usize>,
        wakes: usize,
    }

    const QUEUE: u16 = 3;
    const ENTRY: usize = 7;

    impl World {
        fn new() -> Self {
            Self {
                deferral: Deferral::new(&[1, QUEUE]),
                now: Instant::now(),
                made: 0,
                waiting: VecDeque::new(),
                is_under_way: false,
                withheld: None,
                most: usize::MAX,
                reply_is_due: false,
                served: Vec::new(),
                wakes: 0,
            }
        }

        /// The owner submits the reply that it had not come to.
        fn go_on(&mut self) {
            if std::mem::take(&mut self.reply_is_due) {
                self.is_under_way = false;
                self.send(None);
            }
        }

        fn close(&mut self) {
            self.go_on();
            self.waiting.push_back(self.made);
            self.made += 1;
            if !self.is_under_way {
                self.wakes += 1;
                self.send(Some(self.now));
            }
        }

        /// The kernel sends those that wait, until a reply is withheld.
        fn send(&mut self, mut woke: Option<Instant>) {
            let mut left = self.most;
            while !self.is_under_way
                && let Some(release) = self.waiting.pop_front()
            {
                self.deferral.release(QUEUE, woke.take());
                self.served.push(release);
                self.is_under_way = self.deferral.withholds(QUEUE, ENTRY);
                self.withheld = self.is_under_way.then_some(release);
                left -= 1;
                if !self.is_under_way && left == 0 {
                    (self.is_under_way, self.reply_is_due) = (true, true);
                }
            }
        }

        fn submitted(&mut self, entry: usize) {
            assert_eq!(entry, ENTRY);
            assert!(self.withheld.take().is_some(), "submitted twice");
            self.is_under_way = false;
            self.send(None);
        }

        /// Returns whether a reply was submitted with the reply to this.
        fn open(&mut self) -> bool {
            self.go_on();
            let entry = self.deferral.open(QUEUE);
            if let Some(entry) = entry {
                self.submitted(entry);
            }
            entry.is_some()
        }

        fn tick(&mut self) {
            self.go_on();
            self.now += Duration::from_millis(2);
            let mut entries = Vec::new();
            self.deferral.tick(|entry| entries.push(entry));
            entries.into_iter().for_each(|entry| self.submitted(entry));
        }

        /// Opens and closes a file, some microseconds after the one before.
        fn pair(&mut self) {
            self.now += Duration::from_micros(50);
            self.open();
            self.close();
        }
    }

    #[test]
    fn a_program_that_opens_file_after_file_wakes_the_owner_by_its_opens_alone() {
        let mut world = World::new();
        (0..1000).for_each(|_| world.pair());
        // At first, and after all that waited was let out.
        assert!(world.wakes <= 2 + 1000 / ROUNDS as usize * 2, "{}", world.wakes);
        assert!(world.waiting.len() <= 2, "{}", world.waiting.len());
    }

    #[test]
    fn who_closes_now_and_then_is_served_at_once() {
        let mut world = World::new();
        for _ in 0..10 {
            world.now += OFTEN;
            world.open();
            world.close();
        }
        assert_eq!((world.wakes, world.served.len()), (10, 10));
        assert!(!world.deferral.is_pending());
    }

    #[test]
    fn after_the_last_open_all_is_served_within_two_ticks() {
        let mut world = World::new();
        (0..100).for_each(|_| world.pair());
        (0..50).for_each(|_| world.close());
        world.tick();
        world.tick();
        assert_eq!(world.served.len(), 150);
        assert!(!world.deferral.is_pending());
    }

    #[test]
    fn more_closes_than_opens_do_not_pile_up() {
        let mut world = World::new();
        for _ in 0..1000 {
            world.pair();
            world.close();
            assert!(world.waiting.len() <= 2 * ROUNDS as usize + 2, "{}", world.waiting.len());
        }
    }

    /// The next OPEN comes before the owner has served all that was let out.
    #[test]
    fn what_is_let_out_goes_on_being_let_out_beside_opens() {
        let mut world = World::new();
        world.most = 1;
        (0..10).for_each(|_| world.pair());
        (0..500).for_each(|_| world.close());
        for _ in 0..600 {
            world.pair();
        }
        assert!(world.waiting.len() <= 2, "{} of 500 wait", world.waiting.len());
    }

    #[test]
    fn what_a_tick_has_begun_to_let_out_needs_no_further_tick() {
        let mut world = World::new();
        world.most = 1;
        (0..10).for_each(|_| world.pair());
        (0..500).for_each(|_| world.close());
        world.tick();
        world.tick();
        for left in (0..world.waiting.len()).rev() {
            assert!(!world.deferral.is_pending());
            world.go_on();
            assert_eq!(world.waiting.len(), left);
        }
    }

    #[test]
    fn all_is_let_out_on_demand() {
        let mut world = World::new();
        (0..10).for_each(|_| world.pair());
        assert!(world.deferral.is_pending());
        let mut entries = Vec::new();
        world.deferral.let_all_out(|entry| entries.push(entry));
        entries.into_iter().for_each(|entry| world.submitted(entry));
        assert_eq!(world.served.len(), 10);
    }

    proptest! {
        #[test]
        fn each_release_is_served_once_and_in_turn(
            steps in proptest::collection::vec(0_u8..8, 0..300)
        ) {
            let mut world = World::new();
            for step in steps {
                match step {
                    0..=2 => world.pair(),
                    3 => world.close(),
                    4 => drop(world.open()),
                    5 => world.tick(),
                    6 => world.now += OFTEN * 2,
                    _ => {
                        let mut entries = Vec::new();
                        world.deferral.let_all_out(|entry| entries.push(entry));
                        entries.into_iter().for_each(|entry| world.submitted(entry));
                        prop_assert!(world.waiting.is_empty());
                    }
                }
            }
            world.tick();
            world.tick();
            prop_assert_eq!(world.served, (0..world.made).collect::<Vec<_>>());
        }
    }
}
