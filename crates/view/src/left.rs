//! Names that directories have left, because others moved these directly in DIR.
//!
//! The kernel keeps one dentry for a directory and moves it when a lookup finds the directory under
//! another name. It cannot while rename(2) runs between two directories, which holds the lock that
//! moving a dentry takes: that lookup fails with `ESTALE`, each time again, until the old dentry is
//! gone or somebody looks the new name up otherwise. So the kernel is told to forget the old name.
//! That waits for requests in the directory that it was in, and is done on a thread of its own.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::fs::FileType;
use tollgate_fuse::{Connection, Name, NodeId};

use crate::fds::Descriptors;
use crate::lower::{self, Stat};
use crate::table::{Place, Table};

/// Most names that wait. Those beyond it expire by themselves.
const MAX_WAITING: usize = 256;

/// Owns the thread; dropping it stops the thread.
#[derive(Default)]
pub(crate) struct LeftNames {
    running: Mutex<Option<Running>>,
}

struct Running {
    waiting: SyncSender<(NodeId, CString)>,
    thread: JoinHandle<()>,
}

impl LeftNames {
    /// From now on the kernel can be told.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(
        &self,
        connection: Connection,
        table: Arc<Table>,
        fds: Arc<Descriptors>,
    ) -> std::io::Result<()> {
        let (waiting, names) = sync_channel(MAX_WAITING);
        let builder = std::thread::Builder::new().name("tollgate-left".to_owned());
        let thread = builder.spawn(move || run(&names, &connection, &table, &fds))?;
        *self.running.lock() = Some(Running { waiting, thread });
        Ok(())
    }

    /// A directory that was at `place` is not there any more.
    pub(crate) fn add(&self, place: &Place) {
        if let Some(running) = &*self.running.lock() {
            let _ = running.waiting.try_send((place.parent.id, place.name.as_ref().into()));
        }
    }
}

impl Drop for LeftNames {
    fn drop(&mut self) {
        if let Some(Running { waiting, thread }) = self.running.get_mut().take() {
            drop(waiting);
            if thread.join().is_err() {
                tracing::error!("the thread that has names forgotten panicked");
            }
        }
    }
}

fn run(
    names: &Receiver<(NodeId, CString)>,
    connection: &Connection,
    table: &Table,
    fds: &Descriptors,
) {
    for (dir, name) in names {
        let Ok(name) = Name::new(&name) else { continue };
        let there = table.get(dir).and_then(|dir| fds.path(&dir));
        let there = there.and_then(|dir| lower::stat_at(dir.as_fd(), name.as_c_str())).ok();
        // What it does not have is as good.
        let _ = if is_left(there.as_ref(), table) {
            connection.invalidate_entry(dir, name)
        } else {
            connection.expire_entry(dir, name)
        };
    }
}

/// Whether the kernel can have nothing but the old directory at a name where `there` is now. To forget
/// another one would take away what is mounted there, and where processes are.
pub(crate) fn is_left(there: Option<&Stat>, table: &Table) -> bool {
    let Some(there) = there else { return true };
    there.file_type() == FileType::Directory && table.find(&there.key()).is_none()
}
