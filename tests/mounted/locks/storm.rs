//! Random locks by processes in the view and beneath, against a model of what the kernel does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::agent::{Agent, Family, READ, UNLOCK, WRITE};
use super::{FAMILIES, View, can_mount};

const BYTES: usize = 12;
const SLOTS: usize = 2;
/// The agents: the last one works beneath the view.
const AGENTS: usize = 3;

/// Who owns locks: POSIX locks belong to the process, the others to the handle.
type Owner = (Family, usize, Option<usize>);

fn owner(family: Family, agent: usize, slot: usize) -> Owner {
    (family, agent, (family != Family::Posix).then_some(slot))
}

/// What each owner has locked, by bytes.
#[derive(Default)]
struct Model(BTreeMap<Owner, [Option<i32>; BYTES]>);

impl Model {
    /// The error that the kernel would return, or 0.
    fn set(&mut self, who: Owner, kind: i32, range: (usize, usize)) -> i32 {
        let flock = who.0 == Family::Flock;
        let bytes = if flock { 0..BYTES } else { range.0..range.0 + range.1 };
        if kind == UNLOCK {
            self.0.entry(who).or_default()[bytes].fill(None);
            return 0;
        }
        let excluded = self.0.iter().any(|(other, theirs)| {
            let same_space = (other.0 == Family::Flock) == flock;
            same_space
                && *other != who
                && theirs[bytes.clone()]
                    .iter()
                    .flatten()
                    .any(|their| *their == WRITE || kind == WRITE)
        });
        let own = self.0.entry(who).or_default();
        if !excluded {
            own[bytes].fill(Some(kind));
            return 0;
        }
        // flock(2) gives up what was there before it takes the new lock.
        if flock && own[0] != Some(kind) {
            own.fill(None);
        }
        libc::EAGAIN
    }

    fn close(&mut self, agent: usize, slot: usize) {
        self.0.remove(&(Family::Posix, agent, None));
        self.0.remove(&(Family::Ofd, agent, Some(slot)));
        self.0.remove(&(Family::Flock, agent, Some(slot)));
    }
}

/// xorshift64*: the same numbers for the same seed, everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(high).unwrap() % limit
    }
}

fn storm(policy: &str, seed: u64, steps: usize) {
    let view = View::with(policy, &[("f", "text")]);
    let mut random = Random(seed);
    let mut agents: Vec<Agent> = (0..AGENTS).map(|_| Agent::new()).collect();
    let path = |agent| if agent + 1 == AGENTS { view.below("f") } else { view.at("f") };
    for (number, agent) in agents.iter_mut().enumerate() {
        (0..SLOTS).for_each(|slot| agent.open(slot, &path(number), "rw"));
    }
    let mut model = Model::default();
    for step in 0..steps {
        let (number, slot) = (random.below(AGENTS), random.below(SLOTS));
        let agent = &mut agents[number];
        if random.below(20) == 0 {
            agent.close(slot);
            agent.open(slot, &path(number), "rw");
            model.close(number, slot);
            continue;
        }
        let family = FAMILIES[random.below(3)];
        let kind = [READ, WRITE, UNLOCK][random.below(3)];
        let start = random.below(BYTES);
        let range = (start, 1 + random.below(BYTES - start));
        let expected = model.set(owner(family, number, slot), kind, range);
        let bytes = (i64::try_from(range.0).unwrap(), i64::try_from(range.1).unwrap());
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut got = agent.set(slot, family, kind, bytes);
        // FUSE reports the last close of a handle after it returned: a lock of that handle may
        // be seen a little longer. A process's own locks end before.
        while got == libc::EAGAIN && expected == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            got = agent.set(slot, family, kind, bytes);
        }
        assert_eq!(
            got, expected,
            "seed {seed}, step {step}: agent {number}, handle {slot}, {family:?} {kind} {range:?}"
        );
    }
}

#[test]
fn a_storm_of_locks_ends_as_on_the_bare_directory() {
    if !can_mount() {
        return;
    }
    let seeds = match std::env::var("TOLLGATE_TEST_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => vec![1, 2, 3],
    };
    for seed in seeds {
        storm("", seed, 1500);
        storm("default = \"userspace\"", seed + 1000, 500);
    }
}
