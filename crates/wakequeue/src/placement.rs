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

/// One shard: a FIFO and the workers at home there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// Workers that should be awake when there is enough work: the CPUs of the shard.
    pub workers: u16,
    /// This shard first, then every other one whose items its workers may take, nearest first.
    /// Shards that see each other form a group; strict pods are groups of their own.
    pub near: Vec<ShardId>,
}

/// The shards of a queue and who sees whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shards: Vec<ShardPlan>,
    group_of: Vec<u16>,
    groups: u16,
}

/// The most shards of a queue.
pub const MAX_SHARDS: usize = 4096;

impl Layout {
    /// Checks a plan.
    ///
    /// # Errors
    /// No shard or more than [`MAX_SHARDS`]; a shard without workers; a `near` list that does not
    /// start with its own shard, repeats or invents one, or is not mutual.
    pub fn new(shards: Vec<ShardPlan>) -> Result<Self, ConfigError> {
        if shards.is_empty() || shards.len() > MAX_SHARDS {
            return Err(ConfigError::Shards { count: shards.len(), max: MAX_SHARDS });
        }
        for (index, shard) in shards.iter().enumerate() {
            check_shard(&shards, index, shard)?;
        }
        let (group_of, groups) = groups(&shards);
        Ok(Self { shards, group_of, groups })
    }

    /// One FIFO for everybody: what sharding is compared with.
    ///
    /// # Errors
    /// `workers` is zero.
    pub fn unsharded(workers: u16) -> Result<Self, ConfigError> {
        Self::new(vec![ShardPlan { workers, near: vec![ShardId(0)] }])
    }

    /// Equal shards that all see each other, nearest meaning next in number.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn uniform(shards: u16, workers_per_shard: u16) -> Result<Self, ConfigError> {
        let near = |first| (0..shards).map(|i| ShardId((first + i) % shards)).collect();
        Self::new(
            (0..shards).map(|s| ShardPlan { workers: workers_per_shard, near: near(s) }).collect(),
        )
    }

    /// The shards, by number.
    #[must_use]
    pub fn shards(&self) -> &[ShardPlan] {
        &self.shards
    }

    /// Which shards `shard` may take from, itself first.
    #[must_use]
    pub fn near(&self, shard: ShardId) -> &[ShardId] {
        &self.shards[shard.index()].near
    }

    /// The group of mutually visible shards that `shard` belongs to.
    #[must_use]
    pub fn group_of(&self, shard: ShardId) -> usize {
        usize::from(self.group_of[shard.index()])
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> usize {
        usize::from(self.groups)
    }
}

fn check_shard(shards: &[ShardPlan], index: usize, shard: &ShardPlan) -> Result<(), ConfigError> {
    let bad = |why| Err(ConfigError::Near { shard: index, why });
    if shard.workers == 0 {
        return Err(ConfigError::NoWorkers { shard: index });
    }
    if shard.near.first().map(|s| s.index()) != Some(index) {
        return bad("it must start with the shard itself");
    }
    let mut seen = vec![false; shards.len()];
    for other in &shard.near {
        match shards.get(other.index()) {
            None => return bad("it names a shard that does not exist"),
            Some(plan) if !plan.near.iter().any(|back| back.index() == index) => {
                return bad("visibility must be mutual");
            }
            Some(plan) if plan.near.len() != shard.near.len() => {
                return bad("shards that see each other must see the same shards");
            }
            Some(_) if seen[other.index()] => return bad("it names a shard twice"),
            Some(_) => seen[other.index()] = true,
        }
    }
    Ok(())
}

fn groups(shards: &[ShardPlan]) -> (Vec<u16>, u16) {
    let mut group_of = vec![u16::MAX; shards.len()];
    let mut next = 0;
    for (index, shard) in shards.iter().enumerate() {
        if group_of[index] == u16::MAX {
            for member in &shard.near {
                group_of[member.index()] = next;
            }
            next += 1;
        }
    }
    (group_of, next)
}

/// How busy a group is: everything a push must know, in one word.
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
        self.searchers == 0 && self.awake < target && (self.parked > 0 || self.room > 0)
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

/// Pulls between two looks at the other shards: the most, and the fewest.
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

/// The shard to help, if `own` is so much shorter than the longest of the others that fairness
/// asks for it: more than twice the length and by more than one item per worker of the visitor.
#[must_use]
pub fn fair_victim(
    own: usize,
    workers: u16,
    others: impl Iterator<Item = (ShardId, usize)>,
) -> Option<ShardId> {
    let (shard, longest) = others.max_by_key(|&(_, len)| len)?;
    (longest > own * 2 + usize::from(workers)).then_some(shard)
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
    fn layouts_are_checked() {
        let plan = |near: &[u16]| ShardPlan {
            workers: 1,
            near: near.iter().copied().map(ShardId).collect(),
        };
        assert!(Layout::new(vec![]).is_err());
        assert!(Layout::unsharded(0).is_err());
        assert!(Layout::new(vec![plan(&[0, 1]), plan(&[1])]).is_err(), "one-sided");
        assert!(Layout::new(vec![plan(&[1, 0]), plan(&[1, 0])]).is_err(), "not itself first");
        assert!(Layout::new(vec![plan(&[0, 0])]).is_err(), "twice");
        assert!(Layout::new(vec![plan(&[0, 7])]).is_err(), "unknown");
        let strict = Layout::new(vec![plan(&[0]), plan(&[1, 2]), plan(&[2, 1])]).unwrap();
        assert_eq!(strict.groups(), 2);
        assert_eq!(strict.group_of(ShardId(2)), strict.group_of(ShardId(1)));
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
