//! Which workers of a pod are asleep, awake or searching, and whom a push wakes.
//!
//! The proof that no wake-up is lost is in this crate's `README.md`.

use crossbeam_utils::CachePadded;

use crate::placement::{Layout, Load, PodIndex, ShardId, home_for_new};
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Observe, Ordering};
use crate::worker::WorkerId;

const SEARCHER: u64 = Load { searchers: 1, awake: 0, parked: 0, room: 0 }.pack();
const AWAKE: u64 = Load { searchers: 0, awake: 1, parked: 0, room: 0 }.pack();
const PARKED: u64 = Load { searchers: 0, awake: 0, parked: 1, room: 0 }.pack();
const ROOM: u64 = Load { searchers: 0, awake: 0, parked: 0, room: 1 }.pack();

/// How many shards are looked through for the nearest sleeper. All of a pod's are near.
const NEAREST: usize = 8;

/// How many of the pods that see each other could run one more worker. A push to a pod that cannot
/// looks here before it looks at each of the others.
pub(crate) type SparePods = Arc<CachePadded<AtomicU32>>;

/// The workers of a pod.
///
/// Lock legend: (c) constant; (a) changed by atomic operations alone; (s) changed under `sleepers`,
/// read without; (i) has a lock of its own inside.
#[derive(Debug)]
pub(crate) struct Pod {
    /// [`Load`], packed: `searchers` and `awake` (a), `parked` and `room` (s).
    load: CachePadded<AtomicU64>,
    /// Workers wanted awake: the CPUs of the pod. (c)
    target: u16,
    /// (c)
    max_searchers: u16,
    /// Whether the sleeper nearest to the item is woken, not the latest one. (c)
    by_distance: bool,
    /// Shared with the pods that see this one; none when it is on its own. (a)
    spare: Option<SparePods>,
    /// (i)
    sleepers: Mutex<Sleepers>,
}

/// The slow side: every change here comes with a system call or a new thread, so a lock is cheap.
#[derive(Debug)]
struct Sleepers {
    /// The latest last: its caches are the warmest.
    parked: Vec<(WorkerId, ShardId)>,
    /// By position in the pod: workers at home in that shard.
    homes: Vec<u16>,
    /// The pod's shards, by position.
    shards: Vec<ShardId>,
    /// By worker number less `first`.
    states: Vec<State>,
    first: u32,
    vacant: Vec<WorkerId>,
    /// Numbers whose threads could not be started, and the rest of the room with them.
    withheld: Vec<WorkerId>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Vacant,
    /// Counted in `awake`.
    Awake,
    /// Running, but not counted: in a blocking section, or holding its CPU for too long.
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

impl Pod {
    /// A pod that may have `room` workers, numbered from `first`.
    pub(crate) fn new(
        layout: &Layout,
        pod: PodIndex,
        first: u32,
        room: u16,
        max_searchers: Option<u16>,
        spare: Option<SparePods>,
    ) -> Self {
        let cpus = layout.workers_of(pod);
        let shards = layout.shards_of(pod).to_vec();
        let ids = || (0..u32::from(room)).map(|number| WorkerId(first + number));
        let pod = Self {
            load: CachePadded::new(AtomicU64::new(Load { room, ..Load::default() }.pack())),
            target: cpus.min(room),
            max_searchers: max_searchers.unwrap_or((cpus / 2).max(1)),
            by_distance: layout.is_by_distance(),
            spare,
            sleepers: Mutex::new(Sleepers {
                parked: Vec::new(),
                homes: vec![0; shards.len()],
                shards,
                states: ids().map(|_| State::Vacant).collect(),
                first,
                // The lowest number is handed out first.
                vacant: ids().rev().collect(),
                withheld: Vec::new(),
                closed: false,
            }),
        };
        if let Some(spare) = &pod.spare
            && room > 0
        {
            spare.fetch_add(1, Ordering::SeqCst);
        }
        pod
    }

    #[inline]
    pub(crate) fn load(&self) -> Load {
        Load::unpack(self.load.load(Ordering::SeqCst))
    }

    /// Whether [`claim`](Self::claim) would find anything to do. One load, for the hot path.
    #[inline]
    pub(crate) fn wants_wake(&self) -> bool {
        self.load().wants_wake(self.target)
    }

    /// Whether other pods should run its items; see [`Load::is_overloaded`].
    #[inline]
    pub(crate) fn is_overloaded(&self) -> bool {
        self.load().is_overloaded(self.target)
    }

    /// Whether an item needs a [`claim`](Self::claim) here or, when this pod is overloaded,
    /// elsewhere.
    #[inline]
    pub(crate) fn wants_help(&self) -> bool {
        let load = self.load();
        load.searchers == 0 && (load.is_spare(self.target) || self.others_are_spare())
    }

    /// Whether any of the pods that see this one could run one more worker.
    #[inline]
    pub(crate) fn others_are_spare(&self) -> bool {
        self.spare.as_ref().is_some_and(|spare| spare.load(Ordering::SeqCst) > 0)
    }

    /// Changes the load by a wrapping difference. Returns what it was.
    fn change(&self, difference: u64) -> Load {
        let before = self.load.fetch_add(difference, Ordering::SeqCst);
        self.note_spare(before, before.wrapping_add(difference));
        Load::unpack(before)
    }

    /// After every change of `awake`, `parked` or `room`. The sum of all such notes is right, and
    /// who makes a pod spare looks at the shards afterwards, so a late note loses no wake-up.
    fn note_spare(&self, before: u64, after: u64) {
        let Some(spare) = &self.spare else { return };
        let is_spare = |word| Load::unpack(word).is_spare(self.target);
        match (is_spare(before), is_spare(after)) {
            (false, true) => _ = spare.fetch_add(1, Ordering::SeqCst),
            (true, false) => _ = spare.fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
    }

    /// Gets one more worker going for an item that is already in a shard, if that helps: `prefer`
    /// when it sleeps, else a sleeper (the nearest to `near[0]`, or the latest), else a new one.
    /// Whoever is claimed counts as an awake searcher from here on.
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
            self.note_spare(word, claimed);
            if let Some(who) = self.pick(layout, near, prefer) {
                return Some(who);
            }
            // Others may have left their wake-up to the searcher that we announced in vain; they
            // did so before this subtraction, so the next look at the load is for them too.
            self.change(0_u64.wrapping_sub(SEARCHER + AWAKE));
        }
    }

    fn pick(&self, layout: &Layout, near: &[ShardId], prefer: Option<WorkerId>) -> Option<Claimed> {
        let mut sleepers = self.sleepers.lock();
        let order = if self.by_distance { near } else { &[] };
        if let Some(worker) = sleepers.take_parked(order, prefer) {
            self.change(0_u64.wrapping_sub(PARKED));
            return Some(Claimed::Sleeper(worker));
        }
        let worker = sleepers.vacant.pop()?;
        let want = |shard: ShardId| {
            (sleepers.homes[sleepers.position(shard)], layout.shards()[shard.index()].workers)
        };
        let home = home_for_new(near, want);
        let position = sleepers.position(home);
        sleepers.homes[position] += 1;
        *sleepers.state(worker) = State::Awake;
        self.change(0_u64.wrapping_sub(ROOM));
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
        sleepers.parked.push((worker, home));
        let searcher = if searching { SEARCHER } else { 0 };
        self.change(PARKED.wrapping_sub(awake + searcher));
        Bed::Ready
    }

    /// Whether more workers are awake than there shall be: some came back from where they did not
    /// count.
    #[inline]
    pub(crate) fn has_surplus(&self) -> bool {
        self.load().awake > self.target
    }

    /// Goes on the list of sleepers if more workers are awake than there shall be. False when it
    /// must go on.
    ///
    /// As many as shall be are awake still, and the last of them looks at the shards before it lies
    /// down. So there is nothing to look for in this pod; but a searcher looks as after
    /// [`lie_down`](Self::lie_down), because pushes that relied on it asked no other pod.
    pub(crate) fn lie_down_if_surplus(
        &self,
        worker: WorkerId,
        home: ShardId,
        searching: bool,
    ) -> bool {
        if !self.has_surplus() {
            return false;
        }
        let mut sleepers = self.sleepers.lock();
        if sleepers.closed || *sleepers.state(worker) != State::Awake {
            return false;
        }
        let searcher = if searching { SEARCHER } else { 0 };
        let difference = PARKED.wrapping_sub(AWAKE + searcher);
        let mut word = self.load.observe(Ordering::SeqCst);
        // In one step: of two that are one too many, one goes on.
        while Load::unpack(word).awake > self.target {
            let asleep = word.wrapping_add(difference);
            match self.load.compare_exchange(word, asleep, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    self.note_spare(word, asleep);
                    *sleepers.state(worker) = State::Parked;
                    sleepers.parked.push((worker, home));
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// A sleeper whose time is up leaves for good, if its home keeps `keep` workers without it.
    /// False when it must go on sleeping (or its token is on the way).
    pub(crate) fn retire(&self, worker: WorkerId, home: ShardId, keep: u16) -> bool {
        let mut sleepers = self.sleepers.lock();
        let position = sleepers.position(home);
        if *sleepers.state(worker) != State::Parked || sleepers.homes[position] <= keep {
            return false;
        }
        sleepers.parked.retain(|&(sleeper, _)| sleeper != worker);
        sleepers.vacate(worker, home);
        self.change(ROOM.wrapping_sub(PARKED));
        true
    }

    /// An awake worker leaves for good: the queue is closed.
    pub(crate) fn leave(&self, worker: WorkerId, home: ShardId, searching: bool) {
        let mut sleepers = self.sleepers.lock();
        let counted = sleepers.counted(worker, searching);
        sleepers.vacate(worker, home);
        self.change(ROOM.wrapping_sub(counted));
    }

    /// The thread of a claimed worker could not be started. No other one is asked for until
    /// [`restore_room`](Self::restore_room): the next push would only fail again.
    pub(crate) fn withhold_room(&self, worker: WorkerId, home: ShardId) {
        let mut sleepers = self.sleepers.lock();
        let counted = sleepers.counted(worker, true);
        let room = sleepers.vacant.len() as u64 * ROOM;
        sleepers.vacate(worker, home);
        let vacant = std::mem::take(&mut sleepers.vacant);
        sleepers.withheld.extend(vacant);
        self.change(0_u64.wrapping_sub(counted + room));
    }

    /// Undoes [`withhold_room`](Self::withhold_room). True when there was anything to undo.
    pub(crate) fn restore_room(&self) -> bool {
        let mut sleepers = self.sleepers.lock();
        let withheld = std::mem::take(&mut sleepers.withheld);
        let any = !withheld.is_empty();
        self.change(withheld.len() as u64 * ROOM);
        sleepers.vacant.extend(withheld);
        any
    }

    /// Stops counting a running worker as awake. False when it is not running or already left out.
    pub(crate) fn discount(&self, worker: WorkerId) -> bool {
        let mut sleepers = self.sleepers.lock();
        if *sleepers.state(worker) != State::Awake {
            return false;
        }
        *sleepers.state(worker) = State::Discounted;
        self.change(0_u64.wrapping_sub(AWAKE));
        true
    }

    /// Counts a running worker as awake again. False when it was all the time.
    pub(crate) fn recount(&self, worker: WorkerId) -> bool {
        let mut sleepers = self.sleepers.lock();
        if *sleepers.state(worker) != State::Discounted {
            return false;
        }
        *sleepers.state(worker) = State::Awake;
        self.change(AWAKE);
        true
    }

    /// Nobody lies down any more. Returns the sleepers, claimed: give each its token.
    pub(crate) fn close(&self) -> Vec<WorkerId> {
        self.sleepers.lock().closed = true;
        self.claim_all()
    }

    /// Claims all sleepers: give each its token.
    pub(crate) fn claim_all(&self) -> Vec<WorkerId> {
        let mut sleepers = self.sleepers.lock();
        let woken: Vec<_> = sleepers.parked.drain(..).map(|(worker, _)| worker).collect();
        for &worker in &woken {
            *sleepers.state(worker) = State::Awake;
            self.change((SEARCHER + AWAKE).wrapping_sub(PARKED));
        }
        woken
    }

    /// Workers that are running but not counted as awake.
    pub(crate) fn discounted(&self) -> usize {
        let sleepers = self.sleepers.lock();
        sleepers.states.iter().filter(|&&state| state == State::Discounted).count()
    }
}

impl Sleepers {
    fn state(&mut self, worker: WorkerId) -> &mut State {
        &mut self.states[(worker.0 - self.first) as usize]
    }

    /// Where in the pod this shard is.
    fn position(&self, shard: ShardId) -> usize {
        // Sorted, as `Layout` collects them in order of number.
        let position = self.shards.binary_search(&shard);
        position.expect("a worker's home is a shard of its pod")
    }

    /// The latest sleeper at home in one of the first shards of `order`, else the latest of all.
    fn take_parked(&mut self, order: &[ShardId], prefer: Option<WorkerId>) -> Option<WorkerId> {
        let preferred = prefer.filter(|&worker| *self.state(worker) == State::Parked);
        let at =
            |wanted: &dyn Fn(&(WorkerId, ShardId)) -> bool| self.parked.iter().rposition(wanted);
        let position = match preferred {
            Some(worker) => at(&|&(sleeper, _)| sleeper == worker),
            None => (order.iter().take(NEAREST))
                .find_map(|&shard| at(&|&(_, home)| home == shard))
                .or_else(|| self.parked.len().checked_sub(1)),
        }?;
        let (worker, _) = self.parked.remove(position);
        *self.state(worker) = State::Awake;
        Some(worker)
    }

    /// What a running worker adds to the load.
    fn counted(&mut self, worker: WorkerId, searching: bool) -> u64 {
        let awake = if *self.state(worker) == State::Awake { AWAKE } else { 0 };
        awake + if searching { SEARCHER } else { 0 }
    }

    fn vacate(&mut self, worker: WorkerId, home: ShardId) {
        *self.state(worker) = State::Vacant;
        let position = self.position(home);
        self.homes[position] -= 1;
        self.vacant.push(worker);
    }
}
