//! A bounded FIFO of work per last-level cache, and the workers that sleep beside it.
//!
//! Items are pushed to the shard of the pusher's CPU. A worker takes from its own shard first, then
//! from the shards it can see, nearest first. A push wakes at most one worker, the nearest, and
//! nobody when a worker that is already searching will see the item. `README.md` beside this code
//! has the states, the counters, the memory orderings and the proof that no wake-up is lost.
//!
//! The queue starts no threads: it says when one is wanted, and the caller starts it.
//!
//! ```
//! use std::{sync::Arc, thread};
//! use tollgate_wakequeue::{Claim, Config, Layout, Next, ShardId, WakeQueue};
//!
//! fn start(queue: Arc<WakeQueue<u64>>, claim: Claim) {
//!     thread::spawn(move || {
//!         let mut worker = queue.worker(claim);
//!         let grow = |claim| start(Arc::clone(&queue), claim);
//!         while let Next::Item(item) = queue.next(&mut worker, grow) {
//!             println!("{item}");
//!         }
//!     });
//! }
//!
//! let queue = Arc::new(WakeQueue::new(Layout::uniform(2, 1)?, Config::default())?);
//! for item in 0..10 {
//!     let grow = |claim| start(Arc::clone(&queue), claim);
//!     queue.push(ShardId(0), item, grow).map_err(|full| full.to_string())?;
//! }
//! queue.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod group;
mod parker;
mod patience;
mod place;
pub mod placement;
mod queue;
mod ring;
pub mod sync;
mod worker;

pub use config::{Config, ConfigError, Full, MAX_CAPACITY};
pub use patience::Patience;
pub use place::Place;
pub use placement::{Layout, Load, ShardId, ShardPlan};
pub use queue::{Counters, WakeQueue};
pub use ring::MIN_CAPACITY;
pub use worker::{Claim, Next, Worker, WorkerId};
