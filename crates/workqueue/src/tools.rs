//! What `dump` and `monitor` show, as plain data that serialises.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tollgate_wakequeue::ShardId;
use tollgate_wakequeue::sync::Ordering;

use crate::core::QueueCore;
use crate::pool::Pool;
use crate::{Attributes, Runtime, WhenFull};

/// Scopes, pods, pools, queues and their attributes at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Dump {
    /// The scope of queues that did not choose.
    pub default_scope: String,
    /// By scope name: the CPUs of each pod, as lists such as `0-3,8`.
    pub scopes: BTreeMap<String, Vec<String>>,
    /// The pools made so far.
    pub pools: Vec<PoolDump>,
    /// The queues, by name.
    pub queues: Vec<QueueDump>,
}

/// Workers shared by queues of equal attributes.
#[derive(Clone, Debug, Serialize)]
pub struct PoolDump {
    /// Its number.
    pub number: usize,
    /// Its affinity scope.
    pub affinity_scope: String,
    /// Whether workers stay in their pod.
    pub affinity_strict: bool,
    /// Whether workers move to the issuing CPU.
    pub localize: bool,
    /// The CPUs it may use.
    pub cpumask: String,
    /// The nice level of its workers.
    pub nice: i32,
    /// Its pods.
    pub pods: Vec<PodDump>,
    /// By CPU number: the pod that items issued there go to.
    pub cpu_to_pod: BTreeMap<u32, usize>,
    /// Threads that could not be started.
    pub start_failures: u64,
    /// Sleeping workers that were woken for an item.
    pub wakes: u64,
    /// Workers that were started.
    pub started_workers: u64,
    /// Items (or tokens) that workers took from their own shard.
    pub taken_at_home: u64,
    /// Items (or tokens) that workers took from another shard.
    pub taken_elsewhere: u64,
    /// Items that a worker found by searching, without having slept.
    pub found_searching: u64,
    /// Times a worker went to sleep.
    pub sleeps: u64,
}

/// A pod of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct PodDump {
    /// Its CPUs.
    pub cpus: String,
    /// Its FIFOs.
    pub shards: Vec<ShardDump>,
}

/// A FIFO of a pod.
#[derive(Clone, Debug, Serialize)]
pub struct ShardDump {
    /// Its CPUs.
    pub cpus: String,
    /// Items waiting.
    pub waiting: usize,
    /// The most items.
    pub capacity: usize,
    /// Workers awake, of all shards that see each other.
    pub awake: u16,
    /// Of these, looking for work.
    pub searching: u16,
    /// Workers asleep.
    pub asleep: u16,
}

/// A queue and its attributes.
#[derive(Clone, Debug, Serialize)]
pub struct QueueDump {
    /// Its name.
    pub name: String,
    /// The scope, or `default (cache)` when it did not choose.
    pub affinity_scope: String,
    /// Whether workers stay in their pod.
    pub affinity_strict: bool,
    /// Whether workers move to the issuing CPU.
    pub localize: bool,
    /// The CPUs it may use, or `default (0-3)`.
    pub cpumask: String,
    /// The nice level of its workers.
    pub nice: i32,
    /// The limit, if there is one.
    pub max_active: Option<u32>,
    /// One item at a time, in order.
    pub ordered: bool,
    /// Pools of its own.
    pub high_priority: bool,
    /// A worker in reserve.
    pub rescuer: bool,
    /// What happens when it is full.
    pub when_full: WhenFull,
    /// Closed to new items.
    pub drained: bool,
    /// Which pool serves it.
    pub pool: usize,
}

/// Counters of all queues at one moment. Two of them make [`Rates`].
#[derive(Clone, Debug, Serialize)]
pub struct Monitor {
    /// Seconds since 1970.
    pub time_s: f64,
    /// Stalls that the watchdog reported, ever.
    pub stalls: u64,
    /// Items waiting for their time.
    pub delayed: usize,
    /// By queue, in order of name.
    pub queues: Vec<QueueMonitor>,
    #[serde(skip)]
    at: Option<Instant>,
}

/// Counters of a queue since it was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct QueueMonitor {
    /// Its name.
    pub name: String,
    /// Items started.
    pub started: u64,
    /// Items queued or running now.
    pub in_flight: u64,
    /// CPU time of its items in milliseconds, sampled while they run.
    pub cpu_time_ms: f64,
    /// Items that ran for too long to count against concurrency.
    pub cpu_intensive: u64,
    /// Workers woken or started because another one blocked or hogged.
    pub cm_wakeups: u64,
    /// Workers brought back to their pod.
    pub repatriated: u64,
    /// Times the rescuer was called.
    pub mayday: u64,
    /// Items that the rescuer ran.
    pub rescued: u64,
    /// Items that panicked.
    pub panics: u64,
    /// Items that ran on the caller's thread for want of room.
    pub inlined: u64,
}

/// What happened between two moments, per second.
#[derive(Clone, Debug, Serialize)]
pub struct Rates {
    /// How far apart the moments are.
    pub seconds: f64,
    /// By queue.
    pub queues: Vec<QueueRates>,
}

/// A line of `monitor`.
#[derive(Clone, Debug, Serialize)]
pub struct QueueRates {
    /// The queue.
    pub name: String,
    /// Items started, ever.
    pub total: u64,
    /// Items queued or running now.
    pub in_flight: u64,
    /// Items started per second.
    pub started_per_s: f64,
    /// CPU time per second, in percent of one CPU.
    pub cpu_percent: f64,
    /// Items per second that ran for too long to count.
    pub cpu_intensive: u64,
    /// Concurrency-managed wake-ups.
    pub cm_wakeups: u64,
    /// Workers brought back to their pod.
    pub repatriated: u64,
    /// Calls for the rescuer.
    pub mayday: u64,
    /// Items that the rescuer ran.
    pub rescued: u64,
}

impl Runtime {
    /// Scopes, pods, pools, queues and attributes as they are now.
    #[must_use]
    pub fn dump(&self) -> Dump {
        let shared = self.shared();
        let pods = |scope| {
            let pods = shared.topology.pods(scope);
            pods.iter().map(|pod| pod.cpus.to_string()).collect()
        };
        Dump {
            default_scope: shared.settings.default_scope.to_string(),
            scopes: crate::Scope::ALL.iter().map(|&s| (s.to_string(), pods(s))).collect(),
            pools: shared.pools().iter().map(|pool| dump_pool(pool, self)).collect(),
            queues: shared.live_queues().iter().map(|queue| dump_queue(queue, self)).collect(),
        }
    }

    /// Counters as they are now.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        let shared = self.shared();
        shared.keeper.account(shared);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Monitor {
            time_s: time.as_secs_f64(),
            stalls: shared.keeper.stalls.load(Ordering::Relaxed),
            delayed: shared.keeper.delayed(),
            queues: shared.live_queues().iter().map(|queue| monitor_queue(queue, self)).collect(),
            at: Some(Instant::now()),
        }
    }
}

fn dump_pool(pool: &Pool, runtime: &Runtime) -> PoolDump {
    let placement = &pool.key.placement;
    let shard = |index: usize| {
        let id = ShardId(u16::try_from(index).unwrap_or(0));
        let load = pool.queue.load(id);
        ShardDump {
            cpus: pool.plan.shards[index].cpus.to_string(),
            waiting: pool.queue.len(id),
            capacity: pool.queue.capacity(),
            awake: load.awake,
            searching: load.searchers,
            asleep: load.parked,
        }
    };
    let pod = |(index, cpus): (usize, &crate::CpuSet)| PodDump {
        cpus: cpus.to_string(),
        shards: (0..pool.plan.shards.len())
            .filter(|&s| pool.plan.shards[s].pod.index() == index)
            .map(shard)
            .collect(),
    };
    let pod_of = |cpu| pool.plan.shards[pool.plan.shard_of(cpu).index()].pod.index();
    let counters = pool.queue.counters();
    PoolDump {
        number: pool.number,
        affinity_scope: placement.scope.to_string(),
        affinity_strict: placement.strict,
        localize: pool.key.localize,
        cpumask: placement.cpumask.to_string(),
        nice: pool.key.nice,
        pods: pool.plan.pods.iter().enumerate().map(pod).collect(),
        cpu_to_pod: runtime.topology().cpus().iter().map(|cpu| (cpu.0, pod_of(cpu))).collect(),
        start_failures: pool.start_failures.load(Ordering::Relaxed),
        wakes: counters.wakes,
        started_workers: counters.grown,
        taken_at_home: counters.own,
        taken_elsewhere: counters.taken,
        found_searching: counters.spun,
        sleeps: counters.parks,
    }
}

fn dump_queue(queue: &QueueCore, runtime: &Runtime) -> QueueDump {
    let shared = runtime.shared();
    let identity = queue.identity.lock().clone();
    let attributes: Attributes = queue.attributes.lock().clone();
    let rescuer = queue.rescuer.lock().is_some();
    let or_default = |chosen: Option<String>, default: String| {
        chosen.unwrap_or_else(|| format!("default ({default})"))
    };
    let scope = attributes.affinity_scope.map(|scope| scope.to_string());
    let mask = attributes.cpumask.as_ref().map(ToString::to_string);
    QueueDump {
        affinity_scope: or_default(scope, shared.settings.default_scope.to_string()),
        cpumask: or_default(mask, shared.topology.allowed().to_string()),
        affinity_strict: attributes.affinity_strict,
        localize: attributes.localize,
        nice: attributes.nice,
        max_active: if identity.ordered { Some(1) } else { attributes.max_active },
        ordered: identity.ordered,
        high_priority: identity.high_priority,
        rescuer,
        when_full: identity.when_full,
        drained: queue.is_drained(),
        pool: queue.pool().number,
        name: identity.name,
    }
}

fn monitor_queue(queue: &QueueCore, runtime: &Runtime) -> QueueMonitor {
    let (in_flight, finished) = queue.tally.totals();
    let read = |counter: &tollgate_wakequeue::sync::AtomicU64| counter.load(Ordering::Relaxed);
    let stats = &queue.stats;
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let cpu_time_ms = read(&stats.cpu_ns) as f64 / 1e6;
    QueueMonitor {
        name: queue.name(),
        started: finished + running(queue, runtime).min(in_flight),
        in_flight,
        cpu_time_ms,
        cpu_intensive: read(&stats.cpu_intensive),
        cm_wakeups: read(&stats.concurrency_wakes),
        repatriated: read(&stats.repatriated),
        mayday: read(&stats.mayday),
        rescued: read(&stats.rescued),
        panics: read(&stats.panics),
        inlined: read(&stats.inlined),
    }
}

/// Workers that run an item of this queue now.
fn running(queue: &QueueCore, runtime: &Runtime) -> u64 {
    let mine = |desk: &&crossbeam_utils::CachePadded<crate::pool::Desk>| {
        desk.turn.load(Ordering::Acquire) & 1 == 1
            && std::ptr::eq(desk.queue.load(Ordering::Relaxed), queue)
    };
    let pools = runtime.shared().pools();
    pools.iter().map(|pool| pool.desks.iter().filter(mine).count() as u64).sum()
}

impl Monitor {
    /// What happened since `earlier`, per second. Queues that are new count from zero.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Rates {
        let seconds = match (self.at, earlier.at) {
            (Some(now), Some(then)) => now.saturating_duration_since(then).as_secs_f64(),
            _ => self.time_s - earlier.time_s,
        };
        let rates = |now: &QueueMonitor| {
            let then = earlier.queues.iter().find(|then| then.name == now.name);
            rates(now, &then.cloned().unwrap_or_default(), seconds.max(1e-9))
        };
        Rates { seconds, queues: self.queues.iter().map(rates).collect() }
    }
}

fn rates(now: &QueueMonitor, then: &QueueMonitor, seconds: f64) -> QueueRates {
    let started = now.started.saturating_sub(then.started);
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let started_per_s = started as f64 / seconds;
    QueueRates {
        name: now.name.clone(),
        total: now.started,
        in_flight: now.in_flight,
        started_per_s,
        cpu_percent: (now.cpu_time_ms - then.cpu_time_ms).max(0.0) / seconds / 10.0,
        cpu_intensive: now.cpu_intensive.saturating_sub(then.cpu_intensive),
        cm_wakeups: now.cm_wakeups.saturating_sub(then.cm_wakeups),
        repatriated: now.repatriated.saturating_sub(then.repatriated),
        mayday: now.mayday.saturating_sub(then.mayday),
        rescued: now.rescued.saturating_sub(then.rescued),
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<24} {:>12} {:>8} {:>12} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
            "queue",
            "total",
            "infl",
            "started/s",
            "CPU%",
            "CPUint",
            "CMwake",
            "repat",
            "mayday",
            "rescued"
        )?;
        for queue in &self.queues {
            writeln!(
                f,
                "{:<24} {:>12} {:>8} {:>12.0} {:>7.1} {:>7} {:>7} {:>7} {:>7} {:>7}",
                queue.name,
                queue.total,
                queue.in_flight,
                queue.started_per_s,
                queue.cpu_percent,
                queue.cpu_intensive,
                queue.cm_wakeups,
                queue.repatriated,
                queue.mayday,
                queue.rescued
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "scopes (default {})", self.default_scope)?;
        for (scope, pods) in &self.scopes {
            writeln!(f, "  {scope:<12} {}", pods.join(" | "))?;
        }
        writeln!(f, "pools")?;
        for pool in &self.pools {
            writeln!(
                f,
                "  {:<3} scope={} strict={} localize={} nice={} cpus={}",
                pool.number,
                pool.affinity_scope,
                pool.affinity_strict,
                pool.localize,
                pool.nice,
                pool.cpumask
            )?;
            for pod in &pool.pods {
                let shards: Vec<_> = pod.shards.iter().map(|s| s.cpus.as_str()).collect();
                writeln!(f, "      pod {} shards {}", pod.cpus, shards.join(" | "))?;
            }
        }
        writeln!(f, "queues")?;
        for queue in &self.queues {
            let limit = queue.max_active.map_or_else(|| "none".to_owned(), |n| n.to_string());
            writeln!(
                f,
                "  {:<24} pool={} scope={} strict={} cpus={} nice={} max_active={limit}{}{}{}",
                queue.name,
                queue.pool,
                queue.affinity_scope,
                queue.affinity_strict,
                queue.cpumask,
                queue.nice,
                if queue.ordered { " ordered" } else { "" },
                if queue.rescuer { " rescuer" } else { "" },
                if queue.drained { " drained" } else { "" },
            )?;
        }
        Ok(())
    }
}
