//! Huge-page buffers: cleared fast, cleared always.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod error;
mod machine;
mod region;
mod sys;

pub use error::{Errno, Error};
pub use machine::{HUGE_1G, HUGE_2M, Machine, MemoryLimit, NodeId, Reserved, Thp, base_page_bytes};
pub use region::{Backing, Fallback, Prefault, Region, RegionOptions, Report, TouchAt};
