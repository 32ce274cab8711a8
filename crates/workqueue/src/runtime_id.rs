//! Tells the runtimes of a process apart.

/// A runtime's number, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeId(u64);

impl RuntimeId {
    pub(crate) fn new() -> Self {
        // Not part of any protocol, hence outside the shim.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) & u64::from(u32::MAX);
        Self(u64::from(crate::forked::generation()) << 32 | number)
    }

    /// Of the process that built the runtime, see `forked`.
    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
