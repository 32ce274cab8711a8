//! `max_active` on one NUMA node: a counter, and the jobs that wait for it to fall.
//!
//! A job goes through the FIFO of its pod as any other. Only when a worker takes it out to run it
//! is it counted; above the limit it waits here, and whoever ends a job takes over the first that
//! waits. So a limit applies to what is queued already, and a limited queue shares no line with
//! others until its limit is reached.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;
use tollgate_wakequeue::sync::{
    AtomicBool, AtomicU64, Futex, Mutex, MutexGuard, Observe, Ordering,
};

use crate::maxima::KEPT_ROOM;

/// No limit: more than there can be workers.
pub(crate) const NO_LIMIT: u32 = (1 << 18) - 1;

/// A limit on how many jobs run at once.
///
/// Lock legend: (a) changed by atomic operations alone; (w) changed under `waiting`, read without;
/// (i) has a lock of its own inside.
pub(crate) struct ConcurrencyLimit<J> {
    /// [`Word`], packed: `active` (a), `limit` and `waiting` (w).
    word: CachePadded<AtomicU64>,
    /// More jobs wait than the queue may hold. Apart from `word`, because every submitter reads it.
    /// (w)
    full: CachePadded<AtomicBool>,
    /// (i)
    waiting: Mutex<Waiting<J>>,
    /// Bumped for producers when a job stops waiting, or nobody may wait any more. (a)
    room: Futex,
}

struct Waiting<J> {
    jobs: VecDeque<J>,
    capacity: usize,
    /// Threads that wait for room.
    producers: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    /// Jobs that run, or have the right to.
    active: u32,
    limit: u32,
    /// Length of the list.
    waiting: u32,
}

impl Word {
    fn pack(self) -> u64 {
        u64::from(self.active) | u64::from(self.limit) << 18 | u64::from(self.waiting) << 36
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "each field is masked")]
    fn unpack(word: u64) -> Self {
        let field = |shift: u32, bits: u32| (word >> shift) as u32 & ((1 << bits) - 1);
        Self { active: field(0, 18), limit: field(18, 18), waiting: field(36, 28) }
    }
}

impl<J> ConcurrencyLimit<J> {
    pub(crate) fn new(capacity: usize) -> Self {
        let word = Word { active: 0, limit: NO_LIMIT, waiting: 0 };
        let waiting = Waiting { jobs: VecDeque::new(), capacity, producers: 0 };
        Self {
            word: CachePadded::new(AtomicU64::new(word.pack())),
            full: CachePadded::new(AtomicBool::new(false)),
            waiting: Mutex::new(waiting),
            room: Futex::new(0),
        }
    }

    /// Changes the word by `step`, which says `None` to leave it alone.
    fn change(&self, step: impl Fn(Word) -> Option<Word>) -> bool {
        let mut word = self.word.observe(Ordering::SeqCst);
        while let Some(new) = step(Word::unpack(word)) {
            let new = new.pack();
            match self.word.compare_exchange(word, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Counts a job that is about to run. False when the limit is reached or others wait: see
    /// [`start_or_wait`](Self::start_or_wait).
    #[inline]
    pub(crate) fn try_start(&self) -> bool {
        self.change(|word| {
            let free = word.active < word.limit && word.waiting == 0;
            free.then(|| Word { active: word.active + 1, ..word })
        })
    }

    /// Counts the job and gives it back, to be run; or keeps it until somebody ends one.
    pub(crate) fn start_or_wait(&self, job: J) -> Option<J> {
        let mut waiting = self.waiting.lock();
        loop {
            if self.try_start() {
                return Some(job);
            }
            // Nobody else changes `waiting` meanwhile, so this fails only when a place became free.
            let waits = self.change(|word| {
                let full = word.active >= word.limit || word.waiting > 0;
                full.then(|| Word { waiting: word.waiting + 1, ..word })
            });
            if waits {
                waiting.jobs.push_back(job);
                self.note_full(&waiting);
                return None;
            }
        }
    }

    /// Whether a worker that ended a job may run another one under the same count: nobody waits,
    /// and the limit was not lowered.
    #[inline]
    pub(crate) fn may_go_on(&self) -> bool {
        let word = Word::unpack(self.word.load(Ordering::Acquire));
        word.waiting == 0 && word.active <= word.limit
    }

    /// A counted job has ended. The first job that waits takes over its count: the caller runs it,
    /// or hands it to a worker that may, and it is counted already.
    #[must_use = "the job has waited long enough"]
    pub(crate) fn end(&self) -> Option<J> {
        loop {
            let ended = self.change(|word| {
                let last = word.waiting == 0 || word.active > word.limit;
                last.then(|| Word { active: word.active - 1, ..word })
            });
            if ended {
                return None;
            }
            let mut waiting = self.waiting.lock();
            let taken = self.change(|word| {
                let next = word.waiting > 0 && word.active <= word.limit;
                next.then(|| Word { waiting: word.waiting - 1, ..word })
            });
            if taken {
                return self.take_first(&mut waiting);
            }
        }
    }

    /// Whether a job that was counted some time ago may still run. If the limit was lowered below
    /// it, it waits again, as the first, and the caller has nothing to run.
    pub(crate) fn confirm(&self, job: J) -> Option<J> {
        let word = Word::unpack(self.word.load(Ordering::SeqCst));
        if word.active <= word.limit {
            return Some(job);
        }
        let mut waiting = self.waiting.lock();
        let waits = self.change(|word| {
            let over = word.active > word.limit;
            over.then(|| Word { active: word.active - 1, waiting: word.waiting + 1, ..word })
        });
        if !waits {
            return Some(job);
        }
        waiting.jobs.push_front(job);
        self.note_full(&waiting);
        None
    }

    /// Changes the limit. Returns the jobs that may now run; they are counted.
    #[must_use = "the jobs have waited long enough"]
    pub(crate) fn set_limit(&self, limit: u32) -> Vec<J> {
        let mut waiting = self.waiting.lock();
        self.change(|word| Some(Word { limit, ..word }));
        let mut released = Vec::new();
        while self.change(|word| {
            let next = word.waiting > 0 && word.active < word.limit;
            next.then(|| Word { active: word.active + 1, waiting: word.waiting - 1, ..word })
        }) {
            released.extend(self.take_first(&mut waiting));
        }
        released
    }

    /// Counts a job that began before there was a limit. It ends by [`end`](Self::end).
    pub(crate) fn adopt(&self) {
        self.change(|word| Some(Word { active: word.active + 1, ..word }));
    }

    /// Whether more jobs wait than the queue may hold.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Sleeps while the list is full. May return early. Whoever sleeps here is woken by a job that
    /// leaves the list: there is one as long as the list is full, and the last one wakes all.
    pub(crate) fn wait_for_room(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.jobs.len() < waiting.capacity {
            return;
        }
        waiting.producers += 1;
        let epoch = self.room.word().load(Ordering::SeqCst);
        drop(waiting);
        self.room.wait(epoch, None);
        self.waiting.lock().producers -= 1;
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        let mut waiting = self.waiting.lock();
        waiting.capacity = capacity;
        self.note_full(&waiting);
        self.room.word().fetch_add(1, Ordering::SeqCst);
        self.room.wake(i32::MAX);
    }

    /// Jobs that run, the most that may (none: no limit), and jobs that wait.
    pub(crate) fn counts(&self) -> (u32, Option<u32>, u32) {
        let word = Word::unpack(self.word.load(Ordering::SeqCst));
        (word.active, Some(word.limit).filter(|&limit| limit != NO_LIMIT), word.waiting)
    }

    /// After `waiting` was counted down.
    fn take_first(&self, waiting: &mut MutexGuard<'_, Waiting<J>>) -> Option<J> {
        let first = waiting.jobs.pop_front();
        debug_assert!(first.is_some(), "the list is as long as its count says");
        if waiting.jobs.is_empty() && waiting.jobs.capacity() > KEPT_ROOM {
            waiting.jobs = VecDeque::new();
        }
        self.note_full(waiting);
        if waiting.producers > 0 {
            // One place, one producer: its job comes here, and makes room for the next one when it
            // leaves. But where nobody waits any more it may run at once, and would never leave.
            let woken = if waiting.jobs.is_empty() { i32::MAX } else { 1 };
            self.room.word().fetch_add(1, Ordering::SeqCst);
            self.room.wake(woken);
        }
        first
    }

    fn note_full(&self, waiting: &MutexGuard<'_, Waiting<J>>) {
        self.full.store(waiting.jobs.len() >= waiting.capacity, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Arrive,
        End,
        GoOn,
        Confirm,
        Limit(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Arrive),
            3 => Just(Step::End),
            1 => Just(Step::GoOn),
            1 => Just(Step::Confirm),
            1 => (1_u32..5).prop_map(Step::Limit),
        ]
    }

    /// The caller's side, done by the book: jobs that run, and jobs counted but not begun.
    #[derive(Default)]
    struct World {
        arrived: u32,
        running: u32,
        released: VecDeque<u32>,
        started: Vec<u32>,
    }

    impl World {
        fn run(&mut self, job: Option<u32>) {
            if let Some(job) = job {
                self.running += 1;
                self.started.push(job);
            }
        }

        fn arrive(&mut self, limit: &ConcurrencyLimit<u32>) {
            let job = self.arrived;
            self.arrived += 1;
            let started = if limit.try_start() { Some(job) } else { limit.start_or_wait(job) };
            self.run(started);
        }

        fn end(&mut self, limit: &ConcurrencyLimit<u32>) {
            self.running -= 1;
            self.released.extend(limit.end());
        }

        fn confirm(&mut self, limit: &ConcurrencyLimit<u32>) {
            if let Some(job) = self.released.pop_front() {
                let confirmed = limit.confirm(job);
                self.run(confirmed);
            }
        }
    }

    proptest! {
        #[test]
        fn within_the_limit_and_nothing_left(
            steps in proptest::collection::vec(step(), 1..200), first in 1_u32..4,
        ) {
            let limit = ConcurrencyLimit::new(1000);
            prop_assert!(limit.set_limit(first).is_empty());
            let (mut world, mut now, mut ceiling) = (World::default(), first, first);
            for step in steps {
                match step {
                    Step::Arrive => world.arrive(&limit),
                    Step::End if world.running > 0 => world.end(&limit),
                    Step::GoOn if world.running > 0 && limit.may_go_on() => {
                        prop_assert_eq!(limit.counts().2, 0);
                        world.started.push(world.arrived);
                        world.arrived += 1;
                    }
                    Step::Confirm => world.confirm(&limit),
                    Step::Limit(new) => {
                        now = new;
                        world.released.extend(limit.set_limit(new));
                    }
                    _ => {}
                }
                // What ran before the limit was lowered may go on; nothing new starts above it.
                ceiling = now.max(ceiling.min(world.running));
                prop_assert!(world.running <= ceiling, "{} > {}", world.running, ceiling);
            }
            while world.running > 0 || !world.released.is_empty() {
                if world.running > 0 { world.end(&limit) } else { world.confirm(&limit) }
            }
            prop_assert_eq!(limit.counts(), (0, Some(now), 0));
            world.started.sort_unstable();
            prop_assert_eq!(world.started, (0..world.arrived).collect::<Vec<_>>());
        }
    }

    /// One place, one producer, while jobs wait: the others sleep on. A producer may come back early for reasons of
    /// its own (it had not gone to sleep yet), so one round of several in which just one came back
    /// is enough; if all were woken, all would come back each time.
    #[test]
    #[cfg_attr(miri, ignore = "looks at a clock")]
    fn a_free_place_wakes_one_producer() {
        use std::sync::atomic::AtomicU32;
        use std::time::{Duration, Instant};
        const PRODUCERS: u32 = 4;
        let one_came_back = || {
            let limit = ConcurrencyLimit::new(2);
            assert!(limit.set_limit(1).is_empty());
            assert!(limit.try_start());
            assert_eq!((limit.start_or_wait(1), limit.start_or_wait(2)), (None, None));
            let back = AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..PRODUCERS {
                    scope.spawn(|| {
                        limit.wait_for_room();
                        back.fetch_add(1, Ordering::SeqCst);
                    });
                }
                let until = |done: &dyn Fn() -> bool| {
                    let start = Instant::now();
                    while !done() {
                        assert!(start.elapsed() < Duration::from_secs(30), "nobody comes back");
                        std::thread::sleep(Duration::from_millis(1));
                    }
                };
                until(&|| limit.waiting.lock().producers == PRODUCERS);
                // They sleep as soon as they have let go of the lock.
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(limit.end(), Some(1));
                until(&|| back.load(Ordering::SeqCst) > 0);
                std::thread::sleep(Duration::from_millis(50));
                let came = back.load(Ordering::SeqCst);
                limit.set_capacity(3);
                came == 1
            })
        };
        assert!((0..10).any(|_| one_came_back()), "a free place wakes more than one producer");
    }

    #[test]
    fn a_full_list_says_so() {
        let limit = ConcurrencyLimit::new(1);
        assert!(limit.set_limit(1).is_empty());
        assert!(limit.try_start() && !limit.is_full());
        assert_eq!(limit.start_or_wait('a'), None);
        assert!(limit.is_full());
        assert_eq!(limit.end(), Some('a'));
        assert!(!limit.is_full());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::{Arc, AtomicU32};

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(body);
    }

    struct World {
        limit: ConcurrencyLimit<u32>,
        running: AtomicU32,
        most: AtomicU32,
        ran: AtomicU32,
    }

    impl World {
        fn new(limit: u32) -> Arc<Self> {
            let world = Self {
                limit: ConcurrencyLimit::new(8),
                running: AtomicU32::new(0),
                most: AtomicU32::new(limit),
                ran: AtomicU32::new(0),
            };
            assert!(world.limit.set_limit(limit).is_empty());
            Arc::new(world)
        }

        /// A worker that took this job out of a shard.
        fn work(&self, job: u32) {
            let mut next =
                if self.limit.try_start() { Some(job) } else { self.limit.start_or_wait(job) };
            while let Some(job) = next {
                self.run(job);
                next = self.limit.end().and_then(|job| self.limit.confirm(job));
            }
        }

        fn run(&self, job: u32) {
            let before = self.running.fetch_add(1, Ordering::SeqCst);
            assert!(before < self.most.load(Ordering::SeqCst), "over the limit");
            self.ran.fetch_add(job, Ordering::SeqCst);
            self.running.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn on_a_thread(
        world: &Arc<World>,
        body: impl FnOnce(&World) + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let world = Arc::clone(world);
        thread::spawn(move || body(&world))
    }

    /// Two workers, one job each: never two at once, and both run.
    #[test]
    fn the_limit_holds_and_nothing_is_left() {
        model(|| {
            let world = World::new(1);
            let other = on_a_thread(&world, |world| world.work(1));
            world.work(10);
            other.join().unwrap();
            assert_eq!(world.ran.load(Ordering::SeqCst), 11);
            assert_eq!(world.limit.counts(), (0, Some(1), 0));
        });
    }

    /// The limit is raised while jobs wait: whoever raises it runs what is released.
    #[test]
    fn a_raised_limit_releases_what_waits() {
        model(|| {
            let world = World::new(1);
            world.most.store(2, Ordering::SeqCst);
            let other = on_a_thread(&world, |world| world.work(1));
            let changer = on_a_thread(&world, |world| {
                for job in world.limit.set_limit(2) {
                    let mut next = world.limit.confirm(job);
                    while let Some(job) = next {
                        world.run(job);
                        next = world.limit.end();
                    }
                }
            });
            world.work(10);
            other.join().unwrap();
            changer.join().unwrap();
            assert_eq!(world.ran.load(Ordering::SeqCst), 11);
            assert_eq!(world.limit.counts(), (0, Some(2), 0));
        });
    }

    /// The limit is lowered while two jobs run or begin: all run, and then one at a time may.
    #[test]
    fn a_lowered_limit_strands_nothing() {
        model(|| {
            let world = World::new(2);
            let first = on_a_thread(&world, |world| world.work(1));
            let second = on_a_thread(&world, |world| world.work(10));
            assert!(world.limit.set_limit(1).is_empty());
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(world.ran.load(Ordering::SeqCst), 11);
            assert_eq!(world.limit.counts(), (0, Some(1), 0));
        });
    }

    /// Two jobs are counted, and the limit is lowered before the second one begins: it waits, and
    /// begins when the first one ends.
    #[test]
    fn a_lowered_limit_holds_for_a_job_that_was_counted_before() {
        model(|| {
            let world = World::new(2);
            assert!(world.limit.try_start());
            assert!(world.limit.try_start());
            let changer = on_a_thread(&world, |world| {
                assert!(world.limit.set_limit(1).is_empty());
                world.most.store(1, Ordering::SeqCst);
            });
            // The order of these two: what was lowered before the look must hold.
            let most = world.most.load(Ordering::SeqCst);
            match world.limit.confirm(10) {
                Some(_) => {
                    assert_eq!(most, 2, "it was counted before the limit was lowered");
                    assert_eq!(world.limit.end(), None);
                    assert_eq!(world.limit.end(), None);
                }
                None => {
                    assert_eq!(world.limit.end(), Some(10));
                    assert_eq!(world.limit.end(), None);
                }
            }
            changer.join().unwrap();
            assert_eq!(world.limit.counts(), (0, Some(1), 0));
        });
    }

    /// A producer that waits for room is woken by the job that makes it.
    #[test]
    fn room_is_announced() {
        model(|| {
            let world = World::new(1);
            world.limit.set_capacity(1);
            assert!(world.limit.try_start());
            assert_eq!(world.limit.start_or_wait(1), None);
            let producer = on_a_thread(&world, |world| {
                while world.limit.is_full() {
                    world.limit.wait_for_room();
                }
            });
            assert_eq!(world.limit.end(), Some(1));
            assert_eq!(world.limit.end(), None);
            producer.join().unwrap();
        });
    }

    /// More producers wait than there are places, and the first of them does not take one, because
    /// its job runs at once: the others learn of the place all the same.
    #[test]
    fn room_is_announced_to_all_when_nobody_waits_any_more() {
        model(|| {
            let world = World::new(1);
            world.limit.set_capacity(1);
            assert!(world.limit.try_start());
            assert_eq!(world.limit.start_or_wait(1), None);
            let producers = [10, 100].map(|job| {
                on_a_thread(&world, move |world| {
                    while world.limit.is_full() {
                        world.limit.wait_for_room();
                    }
                    world.work(job);
                })
            });
            let mut next = world.limit.end();
            while let Some(job) = next {
                world.run(job);
                next = world.limit.end();
            }
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            assert_eq!(world.ran.load(Ordering::SeqCst), 111);
            assert_eq!(world.limit.counts(), (0, Some(1), 0));
        });
    }
}
