//! Names of the queues.

/// A named work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Encryption.
    Seal,
    /// Masking.
    Redact,
    /// What waits for the lower file system.
    Io,
}
