//! A bounded, thread-safe pool of buffers that are zero when taken.
//!
//! Each class has one shelf per NUMA node: a region cut into buffers, and lock-free lists of those
//! that are zeroed, those that are dirty and those that have no memory at the moment. A take looks
//! at the zeroed buffers of its own node, then at the dirty ones, of which it clears what the owner
//! will see, then at other nodes, then at buffers without memory. Only when every buffer is taken
//! does it come to the chosen behaviour [`AtMaximum`].

mod background;
mod buffer;
mod cleaner;
mod contained;
mod core;
mod counters;
mod filling;
mod handle;
mod heat;
mod leak;
mod lists;
#[cfg(all(test, loom))]
mod models;
mod options;
mod raw;
mod refs;
mod slot;
mod taking;
#[cfg(all(test, not(loom)))]
mod tests;
mod trim;
mod wait_list;

pub use background::{Background, Job};
pub use buffer::{Buffer, state};
pub use cleaner::{Cleaner, CleanerOptions, Step};
pub use core::AtMaximum;
pub use counters::PoolStats;
pub use filling::Filling;
pub use handle::Pool;
pub use options::PoolBuilder;
pub use raw::RawBuffer;
pub use taking::Taking;
