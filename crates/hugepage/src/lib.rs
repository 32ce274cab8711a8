#![doc = include_str!("../README.md")]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod check;
mod engine;
mod errno;
mod error;
mod machine;
mod memfd;
mod memory;
mod parallel;
mod plan;
pub mod pool;
mod region;
mod sync;
mod sys;
mod thp;
pub mod tune;
#[cfg(feature = "userfaultfd")]
pub mod uffd;
mod wipe;

pub use engine::{Chunk, ClearSpec, Clearer, Copier, CopySpec, Order, Store};
pub use errno::Errno;
pub use error::Error;
pub use machine::{HUGE_1G, HUGE_2M, Machine, Reserved};
pub use memory::MemoryLimit;
pub use parallel::{Executor, ScopedThreads, clear_parallel};
pub use plan::{Cell, ClearPlan, Heat, SMALL_BYTES, Situation};
pub use pool::{
    AtMaximum, Buffer, Filling, Pool, PoolBuilder, PoolStats, RawBuffer, Taking, state,
};
pub use region::{Backing, Fallback, Prefault, Region, RegionOptions, Report, TouchAt};
pub use sys::base_page_bytes;
pub use thp::Thp;
pub use tollgate_topology::NodeId;
pub use wipe::{wipe, wipe_cold, wipe_with};
