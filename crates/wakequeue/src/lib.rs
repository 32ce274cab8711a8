//! Bounded FIFOs of work, grouped into pods such as last-level caches, and the workers that sleep
//! beside them.
//!
//! Items are pushed to the shard of the pusher's CPU. A worker takes from its own shard first, then
//! from the shards of its pod, and only then from other pods, where those have more work than they
//! can do. A push wakes at most one worker, of the same pod if it can, and nobody when a worker
//! that is already searching will see the item. `README.md` beside this code has the states, the
//! counters, the memory orderings and the proof that no wake-up is lost.
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
//!     queue.push(ShardId(0), item, grow).map_err(|error| error.to_string())?;
//! }
//! // The workers run what was accepted, and then end.
//! queue.close();
//! assert!(queue.push(ShardId(0), 10, |_| ()).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod item_cell;
mod parker;
mod patience;
mod pause;
pub mod placement;
mod pod;
mod queue;
mod ring;
mod shard;
pub mod sync;
mod worker;

pub use config::{Closed, Config, ConfigError, MAX_CAPACITY, MIN_CAPACITY, PushError};
pub use item_cell::ItemCell;
pub use patience::{Patience, Sharing};
pub use placement::{Layout, Load, PodIndex, ShardId, ShardPlan};
pub use queue::{Counters, WakeQueue};
pub use ring::Ring;
pub use worker::{Claim, Host, Next, Worker, WorkerId};
