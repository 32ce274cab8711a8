//! How much CMD may use.

/// What CMD may use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Limits {
    pub(super) memory_bytes: Option<u64>,
    pub(super) processes: Option<u64>,
    /// In thousandths of a CPU.
    pub(super) cpu_millis: Option<u64>,
}
