//! What a server does besides serving.

/// What a server does besides serving.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Duties {
    /// It has started CMD: it ends processes of another user, and gives them its terminal back.
    pub(crate) runs: bool,
    /// It looks at callers by itself.
    pub(crate) looks: bool,
    /// It connects to a broker, again when that was started again.
    pub(crate) connects: bool,
    /// It serves its counters at a port.
    pub(crate) listens: bool,
    /// Requests come over `io_uring`.
    pub(crate) rings: bool,
}
