//! How many rings a session has, and how large they are.

/// How the rings of a session are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingReport {
    /// Threads, each with a ring.
    pub threads: usize,
    /// Threads beside them, which serve requests whose handlers may wait.
    pub helpers: usize,
    /// Queues, one for each possible CPU.
    pub queues: usize,
    /// Entries of each queue: requests that can be in the server's hands at a time.
    pub entries_per_queue: usize,
    /// Bytes of all entries' buffers together that may stay resident.
    pub buffer_bytes: usize,
}
