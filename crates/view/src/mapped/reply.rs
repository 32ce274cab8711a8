//! The answer to a write, and what is held until then.

use std::sync::Arc;

use rustix::io::Errno;
use tollgate_fuse::{Answer, NodeId, Reply};

use super::{Dropper, Writing, WrittenBack};

/// What a write holds of the pages that the kernel keeps of its file.
pub(crate) enum Holds {
    /// Nothing: the kernel keeps none that could be older.
    Nothing,
    Back(WrittenBack),
    Writing(Writing, NodeId, Arc<Dropper>),
}

/// The reply to a write, or to what makes a hole, which goes out when no older page of its range is left.
pub(crate) struct WriteReply<'q, T: 'static = u32> {
    reply: Reply<'q, T>,
    holds: Holds,
}

impl<'q, T: Answer + Send> WriteReply<'q, T> {
    pub(crate) fn new(reply: Reply<'q, T>, holds: Holds) -> Self {
        Self { reply, holds }
    }

    /// Unbinds it from the worker.
    pub(crate) fn detach(self) -> WriteReply<'static, T> {
        WriteReply { reply: self.reply.detach(), holds: self.holds }
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.reply.interrupted()
    }

    /// Nothing was written.
    pub(crate) fn error(self, errno: Errno) {
        let Self { reply, holds } = self;
        drop(holds);
        reply.error(errno);
    }

    /// What was written is in the file. So is a part of it where that failed.
    pub(crate) fn send(self, written: Result<T, Errno>) {
        let Self { reply, holds } = self;
        match holds {
            Holds::Writing(writing, node, dropper) => match writing.done(written.is_err()) {
                Some(bytes) => {
                    let reply = reply.detach();
                    dropper.drop_pages(node, bytes, move || {
                        writing.dropped();
                        reply.send(written);
                    });
                }
                None => {
                    drop(writing);
                    reply.send(written);
                }
            },
            Holds::Back(back) => {
                drop(back);
                reply.send(written);
            }
            Holds::Nothing => {
                reply.send(written);
            }
        }
    }
}
