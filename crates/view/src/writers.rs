//! Descriptors of files that somebody writes through the kernel.
//!
//! A server that has its files registered by somebody else may not open them whatever their mode.
//! For what the kernel leaves to it (ftruncate, fallocate, fsync, `SEEK_DATA`) it keeps a
//! descriptor of each one that is open to be written, so that who has it open goes on as on the
//! bare directory when the mode forbids writing: from the start (a file made with mode 444), or
//! since. What a registrar was shown is kept as it is. A file that is registered already is
//! opened once more, which costs 5 us, a sixth of an open and close: so not for those that are
//! closed again within [`DELAY`], unless the mode is changed through the view.
//!
//! Not longer than somebody writes, because nobody can execute the file meanwhile (ETXTBSY), and
//! as long as less than half of all descriptors are held.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::fds::Descriptors;
use crate::lower;
use crate::mode::Io;
use crate::table::Node;

/// Files that are open for less are not opened once more.
const DELAY: Duration = Duration::from_millis(5);
/// Most files that wait for that. Beyond it one is opened at once.
const MAX_WAITING: usize = 1024;

/// Owns the thread that opens files after the delay; dropping it ends the thread.
#[derive(Debug, Default)]
pub(crate) struct Writers(OnceLock<Option<Thread>>);

#[derive(Debug)]
struct Thread {
    waiting: SyncSender<Weak<Node>>,
    thread: JoinHandle<()>,
}

impl Writers {
    /// From now on descriptors are kept. Without a thread each file is opened at once.
    pub(crate) fn start(&self, fds: &Arc<Descriptors>) {
        self.0.get_or_init(|| {
            let (waiting, nodes) = sync_channel(MAX_WAITING);
            let fds = Arc::clone(fds);
            let builder = std::thread::Builder::new().name("tollgate-writer".to_owned());
            let thread = builder.spawn(move || run(&fds, &nodes)).ok()?;
            Some(Thread { waiting, thread })
        });
    }

    /// `node` was opened to be written, and has no descriptor.
    pub(crate) fn opened(&self, fds: &Descriptors, io: &mut Io, node: &Arc<Node>) {
        let Some(thread) = self.0.get() else { return };
        let waits = |thread: &Thread| thread.waiting.try_send(Arc::downgrade(node)).is_ok();
        if !thread.as_ref().is_some_and(waits) {
            keep(fds, io, node);
        }
    }

    /// The mode of `node` is about to change.
    pub(crate) fn changing(&self, fds: &Descriptors, node: &Arc<Node>) {
        if self.0.get().is_some() {
            keep(fds, &mut node.io.lock(), node);
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let Some(Thread { waiting, thread }) = self.0.take().flatten() else { return };
        drop(waiting);
        if thread.join().is_err() {
            tracing::error!("the thread that keeps descriptors panicked");
        }
    }
}

fn run(fds: &Descriptors, nodes: &Receiver<Weak<Node>>) {
    while let Ok(first) = nodes.recv() {
        std::thread::sleep(DELAY);
        let others = nodes.try_iter().take(MAX_WAITING);
        for node in std::iter::once(first).chain(others).filter_map(|node| node.upgrade()) {
            keep(fds, &mut node.io.lock(), &node);
        }
    }
}

/// Opens `node` if somebody writes it through the kernel and it has no descriptor yet.
fn keep(fds: &Descriptors, io: &mut Io, node: &Arc<Node>) {
    if !io.lacks_writable() {
        return;
    }
    let Some(held) = fds.hold_if_cheap() else { return };
    let Ok(named) = fds.path_once(node) else { return };
    // Neither truncation nor fsync minds the second flag, which spares two system calls. A lease is
    // not waited for.
    if let Ok(fd) = lower::reopen(named.as_fd(), OFlags::RDWR | OFlags::NONBLOCK) {
        io.keep_writable(fd, held);
    }
}
