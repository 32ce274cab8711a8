//! What a passphrase costs.

/// What a guess at a passphrase costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassphraseCost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// How often it is gone through.
    pub passes: u32,
    /// How many threads can work on it.
    pub lanes: u32,
}

/// 256 MiB, three passes, four lanes: about a second.
impl Default for PassphraseCost {
    fn default() -> PassphraseCost {
        PassphraseCost { memory_kib: 256 << 10, passes: 3, lanes: 4 }
    }
}
