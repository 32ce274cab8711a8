//! What a runtime and its queues can be set to at most.

/// The most that `max_active` can be.
pub const MAX_MAX_ACTIVE: u32 = 65_536;
/// The highest priority.
pub const MIN_NICE: i32 = -20;
/// The lowest priority.
pub const MAX_NICE: i32 = 19;
/// The most queues of a runtime.
pub const MAX_QUEUES: usize = 4096;
/// The most pools: different combinations of scope, strict, localize, cpumask and nice.
pub const MAX_POOLS: usize = 256;
/// The longest name of a queue, in bytes.
pub const MAX_NAME_LEN: usize = 64;

/// Room for so many jobs stays in a list that has become empty. Growing to more again costs less than
/// running them did.
pub(crate) const KEPT_ROOM: usize = 1024;
