#![doc = include_str!("../README.md")]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod engine;
mod error;
mod machine;
mod parallel;
mod plan;
pub mod pool;
mod region;
mod sync;
mod sys;
pub mod tune;
#[cfg(feature = "userfaultfd")]
pub mod uffd;
mod wipe;

pub use engine::{Chunk, ClearSpec, Clearer, Copier, CopySpec, Order, Store};
pub use error::{Errno, Error};
pub use machine::{HUGE_1G, HUGE_2M, Machine, MemoryLimit, NodeId, Reserved, Thp, base_page_bytes};
pub use parallel::{Executor, ScopedThreads, clear_parallel};
pub use plan::{Cell, ClearPlan, Heat, SMALL_BYTES, Situation};
pub use pool::{AtMaximum, Buffer, Pool, PoolBuilder, PoolStats};
pub use region::{Backing, Fallback, Prefault, Region, RegionOptions, Report, TouchAt};
pub use wipe::{wipe, wipe_cold, wipe_with};
