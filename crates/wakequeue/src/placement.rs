//! Which shard, whom to wake, whom to take from: pure decisions on plain data.
//!
//! Nothing here touches an atomic or a thread, so the queue that runs, its models and a simulator
//! all decide with this code.

use std::fmt;

use crate::ConfigError;

/// A shard of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u16);

impl ShardId {
    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

/// A pod of a queue: shards whose workers share their sleeping, searching and waking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodIndex(pub u16);

impl PodIndex {
    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// One shard: a FIFO and the workers at home there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// Workers that should be awake when there is enough work: the CPUs of the shard.
    pub workers: u16,
    /// The pod it belongs to. Pods are numbered from 0 without gaps.
    pub pod: PodIndex,
    /// This shard first, then the others of its pod, then every other one whose items its workers
    /// may take, nearest first. A shard of a strict pod lists its own pod only.
    pub near: Vec<ShardId>,
}

/// The shards of a queue, their pods, and who sees whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shards: Vec<ShardPlan>,
    /// By shard: how many entries of `near` are of its own pod.
    in_pod: Vec<u16>,
    pods: Vec<PodPlan>,
    groups: u16,
    by_distance: bool,
}

/// What follows from the shards for one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodPlan {
    shards: Vec<ShardId>,
    /// The other pods that see this one, nearest first.
    others: Vec<PodIndex>,
    /// Pods that see each other have the same number.
    group: u16,
}

/// The most shards of a queue.
pub const MAX_SHARDS: usize = 4096;

impl Layout {
    /// Checks a plan.
    ///
    /// # Errors
    /// No shard or more than [`MAX_SHARDS`]; a shard without workers; a pod without shards; a
    /// `near` list that does not start with its own shard and the rest of its pod, repeats or
    /// invents a shard, or is not mutual.
    pub fn new(shards: Vec<ShardPlan>) -> Result<Self, ConfigError> {
        if shards.is_empty() || shards.len() > MAX_SHARDS {
            return Err(ConfigError::Shards { count: shards.len(), max: MAX_SHARDS });
        }
        let sizes = pod_sizes(&shards)?;
        let visible = Visibility::of(&shards);
        for (index, shard) in shards.iter().enumerate() {
            check_shard(&shards, &visible, index, sizes[shard.pod.index()])?;
        }
        let (pods, groups) = plan_pods(&shards, sizes.len());
        let in_pod = shards.iter().map(|shard| sizes[shard.pod.index()]).collect();
        Ok(Self { shards, in_pod, pods, groups, by_distance: true })
    }

    /// One FIFO for everybody: what sharding is compared with.
    ///
    /// # Errors
    /// `workers` is zero.
    pub fn unsharded(workers: u16) -> Result<Self, ConfigError> {
        Self::uniform(1, workers)
    }

    /// One pod of equal shards, nearest meaning next in number.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn uniform(shards: u16, workers_per_shard: u16) -> Result<Self, ConfigError> {
        Self::pods_of(1, shards, workers_per_shard)
    }

    /// Equal pods of equal shards that all see each other, nearest meaning next in number.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn pods_of(
        pods: u16,
        shards_per_pod: u16,
        workers_per_shard: u16,
    ) -> Result<Self, ConfigError> {
        // Before any of them is numbered.
        let count = usize::from(pods) * usize::from(shards_per_pod);
        if count > MAX_SHARDS {
            return Err(ConfigError::Shards { count, max: MAX_SHARDS });
        }
        let shard = |pod, number: u16| ShardId(pod * shards_per_pod + number);
        let plan = |pod, number| {
            let turn = move |step| (number + step) % shards_per_pod;
            let near = (0..pods).flat_map(|away| {
                (0..shards_per_pod).map(move |step| shard((pod + away) % pods, turn(step)))
            });
            let near = near.collect();
            ShardPlan { workers: workers_per_shard, pod: PodIndex(pod), near }
        };
        let plans =
            (0..pods).flat_map(|pod| (0..shards_per_pod).map(move |number| plan(pod, number)));
        Self::new(plans.collect())
    }

    /// Inside a pod, wakes whoever slept last, wherever at home. Otherwise the sleeper nearest to
    /// the item is woken.
    #[must_use]
    pub fn without_order(mut self) -> Self {
        self.by_distance = false;
        self
    }

    pub(crate) fn is_by_distance(&self) -> bool {
        self.by_distance
    }

    /// The shards, by number.
    #[must_use]
    pub fn shards(&self) -> &[ShardPlan] {
        &self.shards
    }

    /// Which shards the workers of `shard` may take from, itself first, then its pod.
    #[must_use]
    pub fn near(&self, shard: ShardId) -> &[ShardId] {
        &self.shards[shard.index()].near
    }

    /// The shards of the same pod, `shard` first.
    #[must_use]
    #[inline]
    pub fn inside(&self, shard: ShardId) -> &[ShardId] {
        &self.near(shard)[..usize::from(self.in_pod[shard.index()])]
    }

    /// The shards of other pods that the workers of `shard` may take from, nearest first.
    #[must_use]
    #[inline]
    pub fn outside(&self, shard: ShardId) -> &[ShardId] {
        &self.near(shard)[usize::from(self.in_pod[shard.index()])..]
    }

    /// The pod of a shard.
    #[must_use]
    #[inline]
    pub fn pod_of(&self, shard: ShardId) -> PodIndex {
        self.shards[shard.index()].pod
    }

    /// How many pods there are.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    /// The shards of a pod.
    #[must_use]
    pub fn shards_of(&self, pod: PodIndex) -> &[ShardId] {
        &self.pods[pod.index()].shards
    }

    /// The other pods whose workers may take this one's items, nearest first; none when it is
    /// strict.
    #[must_use]
    pub fn others(&self, pod: PodIndex) -> &[PodIndex] {
        &self.pods[pod.index()].others
    }

    /// A number that pods have in common when they see each other.
    pub(crate) fn group_of(&self, pod: PodIndex) -> usize {
        usize::from(self.pods[pod.index()].group)
    }

    pub(crate) fn groups(&self) -> usize {
        usize::from(self.groups)
    }

    /// CPUs of a pod.
    pub(crate) fn workers_of(&self, pod: PodIndex) -> u16 {
        let workers = self.shards_of(pod).iter().map(|shard| self.shards[shard.index()].workers);
        workers.fold(0, u16::saturating_add)
    }
}

/// By pod: how many shards it has.
fn pod_sizes(shards: &[ShardPlan]) -> Result<Vec<u16>, ConfigError> {
    let pods = shards.iter().map(|shard| shard.pod.index() + 1).max().unwrap_or(0);
    // More pods than shards leave one of them empty.
    let mut sizes = vec![0_u16; pods.min(shards.len() + 1)];
    for shard in shards {
        if let Some(size) = sizes.get_mut(shard.pod.index()) {
            *size += 1;
        }
    }
    match sizes.iter().position(|&size| size == 0) {
        Some(pod) => Err(ConfigError::EmptyPod { pod }),
        None => Ok(sizes),
    }
}

/// Which shard lists which, so that checking each pair takes no search: with the most shards there
/// are 16 million pairs.
struct Visibility {
    lists: Vec<bool>,
    shards: usize,
}

impl Visibility {
    fn of(shards: &[ShardPlan]) -> Self {
        let mut lists = vec![false; shards.len() * shards.len()];
        for (row, shard) in lists.chunks_mut(shards.len()).zip(shards) {
            for other in &shard.near {
                if let Some(listed) = row.get_mut(other.index()) {
                    *listed = true;
                }
            }
        }
        Self { lists, shards: shards.len() }
    }

    fn lists(&self, shard: ShardId, other: usize) -> bool {
        self.lists[shard.index() * self.shards + other]
    }
}

fn check_shard(
    shards: &[ShardPlan],
    visible: &Visibility,
    index: usize,
    pod_size: u16,
) -> Result<(), ConfigError> {
    let shard = &shards[index];
    let bad = |why| Err(ConfigError::Near { shard: index, why });
    if shard.workers == 0 {
        return Err(ConfigError::NoWorkers { shard: index });
    }
    if shard.near.first().map(|s| s.index()) != Some(index) {
        return bad("it must start with the shard itself");
    }
    let mut seen = vec![false; shards.len()];
    for (place, other) in shard.near.iter().enumerate() {
        let Some(plan) = shards.get(other.index()) else {
            return bad("it names a shard that does not exist");
        };
        if (place < usize::from(pod_size)) != (plan.pod == shard.pod) {
            return bad("it must list all shards of its own pod before any other");
        }
        if !visible.lists(*other, index) {
            return bad("visibility must be mutual");
        }
        if plan.near.len() != shard.near.len() {
            return bad("shards that see each other must see the same shards");
        }
        if std::mem::replace(&mut seen[other.index()], true) {
            return bad("it names a shard twice");
        }
    }
    if shard.near.len() < usize::from(pod_size) {
        return bad("it must list all shards of its own pod before any other");
    }
    Ok(())
}

fn plan_pods(shards: &[ShardPlan], count: usize) -> (Vec<PodPlan>, u16) {
    let empty = PodPlan { shards: Vec::new(), others: Vec::new(), group: u16::MAX };
    let mut pods = vec![empty; count];
    for (index, shard) in (0_u16..).zip(shards) {
        pods[shard.pod.index()].shards.push(ShardId(index));
    }
    let mut groups = 0;
    for index in 0..count {
        let near = &shards[pods[index].shards[0].index()].near;
        let mut others = Vec::new();
        for pod in near.iter().map(|shard| shards[shard.index()].pod) {
            if pod.index() != index && !others.contains(&pod) {
                others.push(pod);
            }
        }
        if pods[index].group == u16::MAX {
            pods[index].group = groups;
            others.iter().for_each(|other| pods[other.index()].group = groups);
            groups += 1;
        }
        pods[index].others = others;
    }
    (pods, groups)
}

/// How many workers each pod may have when those that see each other share `max_workers`: in
/// proportion to their CPUs. A pod that is on its own has them all. With fewer workers than pods,
/// some pods have none, and others run their items.
pub(crate) fn share_workers(layout: &Layout, max_workers: u16) -> Vec<u16> {
    let pods = || (0_u16..).map(PodIndex).take(layout.pods());
    let mut rooms = vec![0; layout.pods()];
    for group in 0..layout.groups() {
        let members: Vec<_> = pods().filter(|&pod| layout.group_of(pod) == group).collect();
        let cpus: u64 = members.iter().map(|&pod| u64::from(layout.workers_of(pod))).sum();
        let (mut cpus_before, mut given) = (0, 0);
        for pod in members {
            cpus_before += u64::from(layout.workers_of(pod));
            // Up to this pod, rounded up: the first ones get what does not divide evenly.
            let upto = (u64::from(max_workers) * cpus_before).div_ceil(cpus);
            rooms[pod.index()] = u16::try_from(upto - given).unwrap_or(u16::MAX);
            given = upto;
        }
    }
    rooms
}

/// How busy a pod is: everything a push must know, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Workers looking for work (or just woken, or being started, to do so).
    pub searchers: u16,
    /// Workers neither asleep nor in a blocking section.
    pub awake: u16,
    /// Workers asleep.
    pub parked: u16,
    /// How many more workers may be started.
    pub room: u16,
}

impl Load {
    /// Whether a push must get one more worker going: nobody is searching, not every CPU has a
    /// worker awake, and there is somebody to wake or room to start one.
    #[must_use]
    #[inline]
    pub fn wants_wake(self, target: u16) -> bool {
        self.searchers == 0 && self.is_spare(target)
    }

    /// Whether the pod's items may wait though none of its workers is coming for them: every CPU
    /// has a worker awake, or nobody is left to wake or start. Other pods then help.
    #[must_use]
    #[inline]
    pub fn is_overloaded(self, target: u16) -> bool {
        self.searchers == 0 && !self.is_spare(target)
    }

    /// Whether one more worker could run: a CPU has none awake, and there is one to wake or start.
    #[must_use]
    #[inline]
    pub fn is_spare(self, target: u16) -> bool {
        self.awake < target && (self.parked > 0 || self.room > 0)
    }

    pub(crate) const fn pack(self) -> u64 {
        self.searchers as u64
            | (self.awake as u64) << 16
            | (self.parked as u64) << 32
            | (self.room as u64) << 48
    }

    #[inline]
    pub(crate) const fn unpack(word: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "each field is 16 bits of the word")]
        const fn field(word: u64, shift: u32) -> u16 {
            (word >> shift) as u16
        }
        Self {
            searchers: field(word, 0),
            awake: field(word, 16),
            parked: field(word, 32),
            room: field(word, 48),
        }
    }
}

/// Pulls between two looks at the other shards: the fewest, and the most.
///
/// A worker that takes elsewhere only when its own shard is empty leaves a shard whose workers are
/// swamped to itself: its items then get a fraction of the CPU time of the others'. A look costs
/// two cache lines per shard, so looks become rare while they find the load balanced, and while
/// they do not every second item comes from the shard in need.
pub const LOOK_EVERY: std::ops::RangeInclusive<u32> = 2..=1024;

/// Pulls until the next look, after one that did or did not find a shard in need.
#[must_use]
pub fn next_look(pulls: u32, found: bool) -> u32 {
    if found { *LOOK_EVERY.start() } else { (pulls * 2).min(*LOOK_EVERY.end()) }
}

/// How much longer a shard of another pod must be than one of the worker's own pod to be helped:
/// leaving the pod costs locality.
pub const OUTSIDE_FACTOR: usize = 4;

/// The shard to help, if `own` is so much shorter than the longest of the others that fairness
/// asks for it: more than twice the length and by more than one item per worker of the visitor.
#[must_use]
pub fn fair_victim(
    own: usize,
    workers: u16,
    others: impl Iterator<Item = (ShardId, usize)>,
) -> Option<ShardId> {
    let (shard, longest) = others.max_by_key(|&(_, len)| len)?;
    (longest > own.saturating_mul(2).saturating_add(usize::from(workers))).then_some(shard)
}

/// The shard at whose home a new worker starts: the nearest to `near[0]` that has fewer workers
/// than CPUs, or `near[0]` itself when all have enough (they are blocked).
#[must_use]
pub fn home_for_new(near: &[ShardId], workers: impl Fn(ShardId) -> (u16, u16)) -> ShardId {
    let lacks = |shard: &&ShardId| {
        let (have, want) = workers(**shard);
        have < want
    };
    near.iter().find(lacks).copied().unwrap_or(near[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_push_wakes_only_when_it_helps() {
        let idle = Load { searchers: 0, awake: 1, parked: 1, room: 0 };
        assert!(idle.wants_wake(2));
        assert!(!Load { searchers: 1, ..idle }.wants_wake(2), "a searcher will see it");
        assert!(!Load { awake: 2, ..idle }.wants_wake(2), "every CPU has a worker");
        assert!(!Load { parked: 0, ..idle }.wants_wake(2), "nobody left");
        assert!(Load { parked: 0, room: 1, ..idle }.wants_wake(2), "room to start one");
    }

    #[test]
    fn an_overloaded_pod_has_nobody_coming() {
        let busy = Load { searchers: 0, awake: 2, parked: 1, room: 3 };
        assert!(busy.is_overloaded(2));
        assert!(!Load { searchers: 1, ..busy }.is_overloaded(2), "a searcher is coming");
        assert!(!Load { awake: 1, ..busy }.is_overloaded(2), "a push wakes the sleeper");
        assert!(Load { awake: 1, parked: 0, room: 0, ..busy }.is_overloaded(2), "nobody is left");
    }

    #[test]
    fn layouts_are_checked() {
        let plan = |pod: u16, near: &[u16]| ShardPlan {
            workers: 1,
            pod: PodIndex(pod),
            near: near.iter().copied().map(ShardId).collect(),
        };
        assert!(Layout::new(vec![]).is_err());
        assert!(Layout::unsharded(0).is_err());
        assert!(Layout::new(vec![plan(0, &[0, 1]), plan(1, &[1])]).is_err(), "one-sided");
        assert!(Layout::new(vec![plan(0, &[1, 0]), plan(0, &[1, 0])]).is_err(), "not itself first");
        assert!(Layout::new(vec![plan(0, &[0, 0])]).is_err(), "twice");
        assert!(Layout::new(vec![plan(0, &[0, 7])]).is_err(), "unknown");
        assert!(Layout::new(vec![plan(1, &[0])]).is_err(), "pod 0 is empty");
        assert!(Layout::new(vec![plan(0, &[0]), plan(0, &[1])]).is_err(), "a pod is one whole");
        let mixed = [plan(0, &[0, 1, 2]), plan(1, &[1, 0, 2]), plan(0, &[2, 0, 1])];
        assert!(Layout::new(mixed.to_vec()).is_err(), "the own pod comes first");
        let strict = [plan(0, &[0]), plan(1, &[1, 2]), plan(1, &[2, 1])];
        let strict = Layout::new(strict.to_vec()).unwrap();
        assert_eq!((strict.pods(), strict.groups()), (2, 2));
        assert_eq!(strict.outside(ShardId(1)), []);
    }

    #[test]
    fn pods_see_each_other_nearest_first() {
        let layout = Layout::pods_of(3, 2, 1).unwrap();
        assert_eq!((layout.pods(), layout.groups()), (3, 1));
        assert_eq!(layout.inside(ShardId(3)), [ShardId(3), ShardId(2)]);
        assert_eq!(layout.outside(ShardId(3))[..2], [ShardId(5), ShardId(4)]);
        assert_eq!(layout.others(PodIndex(1)), [PodIndex(2), PodIndex(0)]);
        assert_eq!(layout.shards_of(PodIndex(2)), [ShardId(4), ShardId(5)]);
    }

    #[test]
    fn pods_that_see_each_other_share_the_workers() {
        let soft = Layout::pods_of(3, 1, 2).unwrap();
        assert_eq!(share_workers(&soft, 8), [3, 3, 2]);
        assert_eq!(share_workers(&soft, 1), [1, 0, 0], "the others' items are run by the first");
        let alone = |pod| ShardPlan { workers: 2, pod: PodIndex(pod), near: vec![ShardId(pod)] };
        let strict = Layout::new((0..3).map(alone).collect()).unwrap();
        assert_eq!(share_workers(&strict, 8), [8, 8, 8]);
    }

    /// The starved-LLC case: shard 0 is swamped, shard 1 always has one more item of its own.
    #[test]
    fn an_unbalanced_load_is_shared() {
        let (mut swamped, mut helped, mut every, mut pulls) = (1000_usize, 0, 1024, 0);
        for _ in 0..2000 {
            pulls += 1;
            if pulls >= every {
                pulls = 0;
                let victim = fair_victim(1, 1, [(ShardId(0), swamped)].into_iter());
                swamped -= usize::from(victim.is_some());
                helped += usize::from(victim.is_some());
                every = next_look(every, victim.is_some());
            }
        }
        assert!(helped >= 450, "half of the pulls after the first look: {helped}");
        assert_eq!(fair_victim(10, 1, [(ShardId(0), 12)].into_iter()), None, "balanced enough");
        assert_eq!(next_look(1024, false), 1024);
    }

    proptest! {
        #[test]
        fn load_survives_packing(searchers: u16, awake: u16, parked: u16, room: u16) {
            let load = Load { searchers, awake, parked, room };
            prop_assert_eq!(Load::unpack(load.pack()), load);
        }

        #[test]
        fn new_workers_go_where_they_lack(have in proptest::collection::vec(0_u16..4, 1..6)) {
            let near: Vec<_> = (0..u16::try_from(have.len()).unwrap()).map(ShardId).collect();
            let home = home_for_new(&near, |s| (have[s.index()], 2));
            let lacking = have.iter().position(|&h| h < 2).unwrap_or(0);
            prop_assert_eq!(home.index(), lacking);
        }
    }
}
