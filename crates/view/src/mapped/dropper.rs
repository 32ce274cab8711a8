//! The thread that has the kernel drop pages, and answers the writes that wait for that.
//!
//! The kernel writes back what somebody stored into them, and waits for pages that are being read: other
//! requests, which a thread of the transport must be there to answer. So none of those waits here.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;
use tollgate_fuse::{Connection, NodeId};

/// The end of the longest file.
const ALL: u64 = i64::MAX.unsigned_abs();

/// Owns the thread, which is there from the first write that needs it. Dropping it waits until all are answered.
pub(crate) struct Dropper {
    connection: Arc<OnceLock<Connection>>,
    thread: OnceLock<Option<Running>>,
}

/// As many writes wait as callers do in the kernel.
struct Running {
    waiting: Mutex<Option<Sender<Older>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Pages of a write that is done, and what follows once they are gone.
struct Older {
    node: NodeId,
    bytes: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

impl Dropper {
    pub(crate) fn new(connection: Arc<OnceLock<Connection>>) -> Self {
        Self { connection, thread: OnceLock::new() }
    }

    /// Has the kernel drop the pages of `bytes`, and goes on with `then`.
    pub(super) fn drop_pages(
        &self,
        node: NodeId,
        bytes: Range<u64>,
        then: impl FnOnce() + Send + 'static,
    ) {
        let older = Older { node, bytes, then: Box::new(then) };
        let running = self.thread.get_or_init(|| self.start());
        let refused = match running.as_ref().map(|running| running.waiting.lock()).as_deref() {
            Some(Some(waiting)) => waiting.send(older).map_err(|refused| refused.0).err(),
            _ => Some(older),
        };
        if let Some(older) = refused {
            older.drop_pages(&self.connection);
        }
    }

    /// Has the kernel write back and drop all pages of an inode, and goes on with `then`.
    pub(crate) fn drop_all(&self, node: NodeId, then: impl FnOnce() + Send + 'static) {
        self.drop_pages(node, 0..ALL, then);
    }

    fn start(&self) -> Option<Running> {
        let (waiting, writes) = channel();
        let connection = Arc::clone(&self.connection);
        let run = move || writes.iter().for_each(|older: Older| older.drop_pages(&connection));
        match Builder::new().name("tollgate-pages".to_owned()).spawn(run) {
            Ok(thread) => {
                let thread = Mutex::new(Some(thread));
                Some(Running { waiting: Mutex::new(Some(waiting)), thread })
            }
            Err(error) => {
                tracing::warn!(%error, "no thread for pages of mappings: requests wait for each other");
                None
            }
        }
    }
}

impl Older {
    fn drop_pages(self, connection: &OnceLock<Connection>) {
        let Self { node, bytes, then } = self;
        let length = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
        if let (Some(connection), Ok(start)) = (connection.get(), i64::try_from(bytes.start)) {
            // It fails if the kernel does not know the inode any more, or the connection has ended.
            let _ = connection.invalidate_inode(node, start, length);
        }
        then();
    }
}

impl Drop for Dropper {
    fn drop(&mut self) {
        let Some(Some(running)) = self.thread.get() else { return };
        *running.waiting.lock() = None;
        if let Some(thread) = running.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that drops pages panicked");
        }
    }
}
