//! What is left to do when the last worker has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::forked::Maker;
use crate::panics::caught;

/// Counts a session's workers out. As a rule the rest is done by who waits for them in
/// [`crate::Running::wait`]. But nobody may call that for a long time after the workers failed: their
/// device, open and read by nobody, would have all callers wait. And where a handler gave its own session
/// up, nobody is left to wait for its thread.
pub(crate) struct Ending {
    left: AtomicUsize,
    failed: AtomicBool,
    given_up: AtomicBool,
    server: Maker,
    connection: Connection,
    fs: Arc<dyn Filesystem>,
}

impl Ending {
    pub(crate) fn new(workers: usize, connection: Connection, fs: Arc<dyn Filesystem>) -> Self {
        let (failed, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let (left, server) = (AtomicUsize::new(workers), Maker::this());
        Self { left, failed, given_up, server, connection, fs }
    }

    /// The connection to the kernel.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Nobody will call [`Ending::finish`]. For a worker's thread.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// A worker's thread ends, with its queue gone.
    pub(crate) fn worker_ended(&self, by_failure: bool) {
        if self.server.was_copied() {
            return;
        }
        if by_failure {
            self.failed.store(true, Ordering::SeqCst);
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        if self.given_up.load(Ordering::SeqCst) {
            // Its message was printed; this thread ends.
            let _ = caught(|| self.finish());
        } else if self.failed.load(Ordering::SeqCst) {
            self.connection.close();
        }
    }

    /// Closes the device and tells the file system. The workers have ended.
    pub(crate) fn finish(&self) {
        self.connection.close();
        self.fs.destroy();
    }
}
