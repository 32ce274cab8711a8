//! Who of a group of shards is asleep, awake or searching, and whom a push wakes.
//!
//! The proof that no wake-up is lost is in this crate's `README.md`.

use crossbeam_utils::CachePadded;

use crate::placement::{Layout, Load, ShardId, home_for_new};
use crate::sync::{AtomicU64, Mutex, Observe, Ordering};
use crate::worker::WorkerId;

const SEARCHER: u64 = Load { searchers: 1, awake: 0, parked: 0, room: 0 }.pack();
const AWAKE: u64 = Load { searchers: 0, awake: 1, parked: 0, room: 0 }.pack();
const PARKED: u64 = Load { searchers: 0, awake: 0, parked: 1, room: 0 }.pack();
const ROOM: u64 = Load { searchers: 0, awake: 0, parked: 0, room: 1 }.pack();

/// Shards whose workers see each other's items.
///
/// Lock legend: (a) changed by atomic operations alone; (s) changed under `sleepers`, read without.
#[derive(Debug)]
pub(crate) struct Group {
    /// [`Load`], packed: `searchers` and `awake` (a), `parked` and `room` (s).
    load: CachePadded<AtomicU64>,
    /// Workers wanted awake: the CPUs of the group.
    target: u16,
    max_searchers: u16,
    sleepers: Mutex<Sleepers>,
}

/// The slow side: every change here comes with a system call or a new thread, so a lock is cheap.
#[derive(Debug)]
struct Sleepers {
    /// By shard number: who sleeps at home there, the latest last. Its caches are the warmest.
    parked: Vec<Vec<WorkerId>>,
    /// By shard number: workers at home there.
    homes: Vec<u16>,
    /// By worker number less `first`.
    states: Vec<State>,
    first: u32,
    vacant: Vec<WorkerId>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Vacant,
    /// Counted in `awake`.
    Awake,
    /// Running, but not counted: in a blocking section, or hogging its CPU.
    Discounted,
    Parked,
}

/// Whom a claim got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// This sleeper: give it its token.
    Sleeper(WorkerId),
    /// Nobody sleeps: start this worker.
    New { worker: WorkerId, home: ShardId },
}

/// What became of an attempt to sleep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Bed {
    Ready,
    Closed,
}

impl Group {
    pub(crate) fn new(layout: &Layout, group: usize, first: u32, config: &crate::Config) -> Self {
        let in_group = |(index, _): &(usize, _)| {
            u16::try_from(*index).is_ok_and(|shard| layout.group_of(ShardId(shard)) == group)
        };
        let target = (layout.shards().iter().enumerate().filter(in_group))
            .fold(0_u16, |sum, (_, shard)| sum.saturating_add(shard.workers));
        let room = config.max_workers;
        let ids = || (0..u32::from(room)).map(|i| WorkerId(first + i));
        Self {
            load: CachePadded::new(AtomicU64::new(Load { room, ..Load::default() }.pack())),
            target: target.min(room),
            max_searchers: config.max_searchers.map_or((target / 2).max(1), std::num::NonZero::get),
            sleepers: Mutex::new(Sleepers {
                parked: layout.shards().iter().map(|_| Vec::new()).collect(),
                homes: vec![0; layout.shards().len()],
                states: ids().map(|_| State::Vacant).collect(),
                first,
                // The lowest number is handed out first.
                vacant: ids().rev().collect(),
                closed: false,
            }),
        }
    }

    pub(crate) fn load(&self) -> Load {
        Load::unpack(self.load.load(Ordering::SeqCst))
    }

    /// Whether [`claim`](Self::claim) would find anything to do. One load, for the hot path.
    #[inline]
    pub(crate) fn wants_wake(&self) -> bool {
        self.load().wants_wake(self.target)
    }

    /// Gets one more worker going for an item that is already in a shard, if that helps: `prefer`
    /// when it sleeps, else the latest sleeper nearest to `near[0]`, else a new one. Whoever is
    /// claimed counts as an awake searcher from here on.
    #[cold]
    pub(crate) fn claim(
        &self,
        layout: &Layout,
        near: &[ShardId],
        prefer: Option<WorkerId>,
    ) -> Option<Claimed> {
        loop {
            let word = self.load.observe(Ordering::SeqCst);
            if !Load::unpack(word).wants_wake(self.target) {
                return None;
            }
            let claimed = word + SEARCHER + AWAKE;
            if (self.load)
                .compare_exchange(word, claimed, Ordering::SeqCst, Ordering::SeqCst)
                .is_err()
            {
                continue;
            }
            if let Some(who) = self.pick(layout, near, prefer) {
                return Some(who);
            }
            // Others may have left their wake-up to the searcher that we announced in vain; they
            // did so before this subtraction, so the next look at the load is for them too.
            self.load.fetch_sub(SEARCHER + AWAKE, Ordering::SeqCst);
        }
    }

    fn pick(&self, layout: &Layout, near: &[ShardId], prefer: Option<WorkerId>) -> Option<Claimed> {
        let mut sleepers = self.sleepers.lock();
        if let Some(worker) = sleepers.take_parked(near, prefer) {
            self.load.fetch_sub(PARKED, Ordering::SeqCst);
            return Some(Claimed::Sleeper(worker));
        }
        let worker = if sleepers.closed { None } else { sleepers.vacant.pop() }?;
        let want = |shard: ShardId| {
            (sleepers.homes[shard.index()], layout.shards()[shard.index()].workers)
        };
        let home = home_for_new(near, want);
        sleepers.homes[home.index()] += 1;
        *sleepers.state(worker) = State::Awake;
        self.load.fetch_sub(ROOM, Ordering::SeqCst);
        Some(Claimed::New { worker, home })
    }

    /// Becomes a searcher, unless there are enough.
    pub(crate) fn start_search(&self) -> bool {
        let mut word = self.load.observe(Ordering::SeqCst);
        while Load::unpack(word).searchers < self.max_searchers {
            match self.load.compare_exchange_weak(
                word,
                word + SEARCHER,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Stops being a searcher because it found an item. True for the last one: it must look
    /// whether there is more, because pushes relied on it.
    pub(crate) fn stop_search(&self) -> bool {
        Load::unpack(self.load.fetch_sub(SEARCHER, Ordering::SeqCst)).searchers == 1
    }

    /// Goes on the list of sleepers. Afterwards the worker must look at the shards once more and
    /// [`claim`](Self::claim) for what it finds, then sleep on its parker.
    pub(crate) fn lie_down(&self, worker: WorkerId, home: ShardId, searching: bool) -> Bed {
        let mut sleepers = self.sleepers.lock();
        if sleepers.closed {
            return Bed::Closed;
        }
        let awake = if *sleepers.state(worker) == State::Awake { AWAKE } else { 0 };
        *sleepers.state(worker) = State::Parked;
        sleepers.parked[home.index()].push(worker);
        let searcher = if searching { SEARCHER } else { 0 };
        self.load.fetch_add(PARKED.wrapping_sub(awake + searcher), Ordering::SeqCst);
        Bed::Ready
    }

    /// A sleeper whose time is up leaves for good, if its home keeps `keep` workers without it.
    /// False when it must go on sleeping (or its token is on the way).
    pub(crate) fn retire(&self, worker: WorkerId, home: ShardId, keep: u16) -> bool {
        let mut sleepers = self.sleepers.lock();
        if *sleepers.state(worker) != State::Parked || sleepers.homes[home.index()] <= keep {
            return false;
        }
        sleepers.parked[home.index()].retain(|&sleeper| sleeper != worker);
        sleepers.vacate(worker, home);
        self.load.fetch_add(ROOM.wrapping_sub(PARKED), Ordering::SeqCst);
        true
    }

    /// An awake worker leaves for good: the queue is closed, or its thread could not be started.
    pub(crate) fn leave(&self, worker: WorkerId, home: ShardId, searching: bool) {
        let mut sleepers = self.sleepers.lock();
        let awake = if *sleepers.state(worker) == State::Awake { AWAKE } else { 0 };
        sleepers.vacate(worker, home);
        let searcher = if searching { SEARCHER } else { 0 };
        self.load.fetch_add(ROOM.wrapping_sub(awake + searcher), Ordering::SeqCst);
    }

    /// Stops counting a running worker as awake. False when it is not running or already left out.
    pub(crate) fn discount(&self, worker: WorkerId) -> bool {
        let mut sleepers = self.sleepers.lock();
        if *sleepers.state(worker) != State::Awake {
            return false;
        }
        *sleepers.state(worker) = State::Discounted;
        self.load.fetch_sub(AWAKE, Ordering::SeqCst);
        true
    }

    /// Counts a running worker as awake again.
    pub(crate) fn recount(&self, worker: WorkerId) {
        let mut sleepers = self.sleepers.lock();
        if *sleepers.state(worker) == State::Discounted {
            *sleepers.state(worker) = State::Awake;
            self.load.fetch_add(AWAKE, Ordering::SeqCst);
        }
    }

    /// Nobody lies down any more. Returns the sleepers, claimed: give each its token.
    pub(crate) fn close(&self) -> Vec<WorkerId> {
        let mut sleepers = self.sleepers.lock();
        sleepers.closed = true;
        let woken: Vec<_> = sleepers.parked.iter_mut().flat_map(|shard| shard.drain(..)).collect();
        for &worker in &woken {
            *sleepers.state(worker) = State::Awake;
            self.load.fetch_add((SEARCHER + AWAKE).wrapping_sub(PARKED), Ordering::SeqCst);
        }
        woken
    }
}

impl Sleepers {
    fn state(&mut self, worker: WorkerId) -> &mut State {
        &mut self.states[(worker.0 - self.first) as usize]
    }

    fn take_parked(&mut self, near: &[ShardId], prefer: Option<WorkerId>) -> Option<WorkerId> {
        let preferred = prefer.filter(|&worker| *self.state(worker) == State::Parked);
        let worker = match preferred {
            Some(worker) => {
                self.parked.iter_mut().for_each(|shard| shard.retain(|&s| s != worker));
                Some(worker)
            }
            None => near.iter().find_map(|shard| self.parked[shard.index()].pop()),
        }?;
        *self.state(worker) = State::Awake;
        Some(worker)
    }

    fn vacate(&mut self, worker: WorkerId, home: ShardId) {
        *self.state(worker) = State::Vacant;
        self.homes[home.index()] -= 1;
        self.vacant.push(worker);
    }
}
