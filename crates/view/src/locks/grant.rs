//! The answer to a request for a lock.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;
use rustix::io::Errno;
use tollgate_fuse::{Connection, NodeId, Reply};

use crate::locks::file::{Ask, FileLocks};

/// A reply, and what comes before it.
pub(crate) struct Grant {
    pub(crate) ask: Ask,
    pub(crate) file: Arc<FileLocks>,
    pub(crate) reply: Reply<'static, ()>,
    /// The inode, if the kernel may hold pages of it: what others wrote below before they gave the
    /// lock up would not be seen.
    pub(crate) cached: Option<(Connection, NodeId)>,
}

impl Grant {
    pub(crate) fn interrupted(&self) -> bool {
        self.reply.interrupted()
    }

    pub(crate) fn refuse(self, error: Errno) {
        self.reply.error(error);
    }

    /// The lock is there.
    fn give(self) {
        if let Some((connection, node)) = &self.cached {
            drop_cached(connection, *node);
        }
        if !self.reply.ok(&()) {
            self.file.undo(&self.ask);
        }
    }
}

/// Makes the kernel read `node` again from below. Waits for reads of the inode that are under way,
/// so never from a thread that serves requests.
fn drop_cached(connection: &Connection, node: NodeId) {
    if let Err(error) = connection.invalidate_inode(node, 0, 0)
        && error.raw_os_error() != Some(libc::ENOENT)
    {
        tracing::warn!(%error, "pages cached before a lock was taken could not be dropped");
    }
}

/// Gives locks. Where pages have to be dropped first, on a thread of its own.
#[derive(Default)]
pub(crate) struct Granter(Mutex<Option<Sender<Grant>>>);

impl Granter {
    /// The lock that `grant` answers for is taken. Every grant is a request that somebody waits for,
    /// so there are no more of them than callers.
    pub(crate) fn give(&self, grant: Grant) {
        if grant.cached.is_none() {
            return grant.give();
        }
        let mut sender = self.0.lock();
        let left = match &*sender {
            Some(sender) => sender.send(grant).err().map(|unsent| unsent.0),
            None => Some(grant),
        };
        let Some(grant) = left else { return };
        let (to, from) = channel::<Grant>();
        let builder = std::thread::Builder::new().name("tollgate-grant".to_owned());
        match builder.spawn(move || from.into_iter().for_each(Grant::give)) {
            Ok(_) => {
                let sent = to.send(grant);
                debug_assert!(sent.is_ok(), "the thread takes what is sent");
                *sender = Some(to);
            }
            Err(error) => {
                tracing::error!(%error, "no thread to drop cached pages; a lock is refused");
                grant.file.undo(&grant.ask);
                grant.refuse(Errno::NOLCK);
            }
        }
    }
}
