//! Named work queues that know the machine's caches.
//!
//! A queue separates who issues work from who runs it. Its *affinity scope* says which CPUs work
//! together (a core, a last-level cache, a NUMA node, all); items run near where they were issued,
//! and idle workers elsewhere help when there is too much. Attributes are set per queue and can be
//! changed while it runs. Queues of equal attributes share workers.
//!
//! ```
//! use tollgate_workqueue::{Runtime, Scope, blocking};
//!
//! let runtime = Runtime::builder().build()?;
//!
//! // Anything that is Send: its result comes back, by wait() or by .await.
//! let crypt = runtime.queue("crypt").scope(Scope::Cache).max_active(8).build()?;
//! let sum = crypt.spawn(|| (1..=10).sum::<u32>())?;
//! assert_eq!(sum.wait()?, 55);
//!
//! // One at a time, in order; no result, no allocation.
//! let log = runtime.queue("log").ordered().build()?;
//! for line in 0..3 {
//!     log.post(move || println!("line {line}"))?;
//! }
//! log.flush()?;
//!
//! // An item to be queued again and again, here and later.
//! let text = log.item(|| drop(blocking(|| std::fs::read_to_string("/etc/hostname"))));
//! text.queue()?;
//! text.queue_delayed(std::time::Duration::from_secs(60))?;
//! text.cancel_sync()?;
//!
//! // Attributes change while work is queued.
//! crypt.set("affinity_scope=numa")?;
//! crypt.change(|attributes| attributes.max_active = Some(2))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Inside an item, declare waits with [`blocking`], so that the pool can run something else
//! meanwhile.

mod alarm;
mod attributes;
mod blocking;
mod builder;
mod cgroup;
mod contained;
mod context;
#[cfg(feature = "control")]
pub mod control;
mod core;
mod cpu_accounts;
mod cpus;
mod deferral;
mod error;
mod forked;
mod forkjoin;
mod global;
mod handle;
mod held;
mod hooks;
mod housekeeper;
mod in_flight;
mod item;
mod job;
mod lane;
mod latency;
mod limit;
mod maxima;
mod nested;
mod observation;
mod observe;
mod own_thread;
mod placing;
mod pool;
mod queue;
mod queue_ref;
mod rescuer;
mod run;
mod runtime;
mod runtime_id;
mod sequence;
pub mod sharding;
mod shared;
mod stack;
mod starts;
mod stranded;
mod submit;
mod sys;
mod task;
mod timer;
mod tools;
mod watchdog;
mod whereabouts;
mod work;
mod worker;

pub use attributes::Attributes;
pub use blocking::blocking;
pub use core::WhenFull;
pub use cpus::SCOPE_VARIABLE;
pub use error::{AttributeError, BuildError, JoinError, Panic, SubmitError, WaitError};
pub use forkjoin::{Fork, MAX_HANDS};
pub use global::{
    configure_global, join, queue as global_queue, runtime as global_runtime, scope, spawn,
    spawn_blocking,
};
pub use handle::Handle;
pub use hooks::MIN_STACK_LEN;
pub use latency::Latency;
pub use maxima::{MAX_MAX_ACTIVE, MAX_NAME_LEN, MAX_NICE, MAX_POOLS, MAX_QUEUES, MIN_NICE};
pub use queue::{DEFAULT_BACKLOG, Queue, QueueBuilder};
pub use runtime::{Builder, Runtime};

pub use timer::MAX_DELAYED;
pub use tollgate_topology::{CpuId, CpuSet, Scope, Topology};
pub use tools::{
    Dump, Monitor, NodeActive, PodDump, PoolDump, QueueDump, QueueMonitor, QueueRates, Rates,
    ShardDump,
};
pub use work::{Queued, Work};

/// The examples in the README and on the page of the repository run.
#[cfg(doctest)]
mod examples {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/workqueue.md")]
    struct Page;
}
