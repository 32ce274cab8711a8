//! What changes in the lower directory behind the view's back, so that the kernel can cache names
//! and attributes without asking again every second.
//!
//! A directory is watched once the kernel comes back to it (it is listed, or something in it is
//! looked up or asked about a second time), by a fanotify mark on its inode:
//!
//! | level | the kernel is told about | cached for [`LONG`] |
//! |---|---|---|
//! | [`Level::None`] | nothing | nothing: the timeouts of the configuration hold |
//! | [`Level::Names`] | names made, removed and moved; the directory's attributes | names; attributes of the directory |
//! | [`Level::Files`] | also writes to its files, and their attributes | also attributes of its files with one link, for [`FILES`] |
//!
//! A file can get a further name, or a new place, that no watched directory tells of; `files.rs` has
//! that reported, by one mark on the file system or one on each file (`inodes.rs`), and where it cannot be, attributes of files have the timeouts of the configuration.
//!
//! A directory in which a file is opened for writing through the view stays at `Names`: reports
//! about files would make each write some 0.1 us slower. The server's own changes carry its process
//! id and are left out, because the kernel knows them.
//!
//! What is outstanding when a report arrives is invalidated at once, and once more
//! [`invalidate::RESEND`] later: a reply made before the change may reach the kernel after the
//! first invalidation. What could still slip through is bounded by [`LONG`], and for names that do
//! not exist by [`NEGATIVE`], because names that nobody has cannot be listed and dropped when
//! reports are lost.

mod below;
mod fanotify;
mod files;
mod inodes;
mod invalidate;
mod shared;

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use serde::Serialize;
use tollgate_fuse::{Connection, NodeId};

use crate::table::Node;
use crate::watched::Level;
use fanotify::{Group, Handle};
use inodes::Marks;
use invalidate::Invalidator;
pub(crate) use shared::Tree;
use shared::{Counts, MAX_DIRECTORIES, MAX_MOVED, Shared};

/// How long the kernel may cache what is watched.
pub(crate) const LONG: Duration = Duration::from_secs(300);
/// How long the kernel may cache attributes of files in a watched directory. Not as long as names:
/// who writes a file through a shared mapping is reported when the mapping goes, and not before.
pub(crate) const FILES: Duration = Duration::from_secs(10);
/// How long the kernel may cache that a name does not exist in a watched directory.
pub(crate) const NEGATIVE: Duration = Duration::from_secs(10);

/// What is watched at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WatchStatus {
    /// Whether changes behind the view are reported.
    pub on: bool,
    /// Whether files that get names elsewhere are reported (without privilege those that are
    /// marked), so that attributes of files are cached beyond the timeout of the configuration.
    pub files: bool,
    /// Directories that are watched.
    pub directories: usize,
    /// Changes made by others that were reported.
    pub changes: u64,
    /// Times that reports were lost, so that all that was cached had to be dropped.
    pub overflows: u64,
}

/// Watches directories. Dropping it stops its thread.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    /// Set once the thread runs.
    running: AtomicBool,
    /// How long nothing is watched after that.
    after: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// # Errors
    /// `EPERM` without privilege, `ENOSYS` without fanotify in the kernel.
    pub(crate) fn new(after: Duration) -> Result<Self, Errno> {
        let shared = Shared {
            group: Group::new()?,
            files: Group::of_inodes().ok(),
            begun: AtomicBool::new(false),
            files_on: AtomicBool::new(false),
            each_file: AtomicBool::new(false),
            marks: Marks::new(),
            dirs: Mutex::default(),
            todo: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            counts: Counts::default(),
        };
        let shared = Arc::new(shared);
        Ok(Self { shared, running: AtomicBool::new(false), after, thread: Mutex::new(None) })
    }

    /// Begins to invalidate over `connection`. Nothing is watched before.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(&self, connection: Connection, tree: Tree) -> std::io::Result<()> {
        let invalidator = Invalidator::new(Arc::clone(&self.shared), connection, tree);
        let builder = std::thread::Builder::new().name("tollgate-watch".to_owned());
        let after = self.after;
        if after.is_zero() {
            invalidator.begin();
        }
        *self.thread.lock() = Some(builder.spawn(move || invalidator.run(after))?);
        self.running.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether [`Watch::raise`] would watch `node` more closely than it is.
    pub(crate) fn would_raise(&self, node: &Node) -> bool {
        let wanted = if node.watched.is_written() { Level::Names } else { Level::Files };
        node.watched.level() < wanted && self.shared.begun.load(Ordering::Acquire)
    }

    /// Watches `node`, the directory `name` in the directory `dir` (`.` for `dir` itself). What is
    /// asked about it after this is covered, if `still_there` confirms that the name is that of the
    /// node.
    pub(crate) fn raise(
        &self,
        node: &Node,
        dir: BorrowedFd<'_>,
        name: &CStr,
        still_there: impl FnOnce() -> bool,
    ) {
        let mut dirs = self.shared.dirs.lock();
        if dirs.by_node.len() >= MAX_DIRECTORIES || !self.would_raise(node) {
            return;
        }
        let (wanted, mask) = if node.watched.is_written() {
            (Level::Names, fanotify::NAMES)
        } else {
            (Level::Files, fanotify::NAMES | fanotify::FILES)
        };
        let marked = self.shared.group.mark(dir, name, mask);
        let Ok(handle) = marked.and_then(|()| Handle::of(dir, name)) else { return };
        if still_there() {
            dirs.by_handle.insert(handle.clone(), node.id);
            dirs.by_node.insert(node.id, handle);
            node.watched.set(wanted);
        }
    }

    /// A file in `dir` is opened for writing through the view, or made.
    pub(crate) fn written(&self, dir: &Arc<Node>) {
        if dir.watched.is_written() {
            return;
        }
        // The lock makes it exclude a concurrent `raise`.
        let dirs = self.shared.dirs.lock();
        dir.watched.set_written();
        if dir.watched.level() == Level::Files {
            dir.watched.set(Level::Names);
            self.shared.todo.lock().written.push(Arc::clone(dir));
            drop(dirs);
            self.shared.wake();
        }
    }

    /// The view moved directories: what is cached of them and of all below has to go. `None` is one
    /// that the table does not have.
    pub(crate) fn moved<'a>(&self, dirs: impl IntoIterator<Item = Option<&'a Arc<Node>>>) {
        let mut todo = self.shared.todo.lock();
        for dir in dirs {
            match dir {
                Some(dir) if todo.moved.len() < MAX_MOVED => todo.moved.push(dir.id),
                _ => todo.everything = true,
            }
        }
        drop(todo);
        self.shared.wake();
    }

    /// The kernel asks for the listings of `dirs` again when somebody lists them.
    pub(crate) fn list_anew(&self, dirs: Vec<NodeId>) {
        self.shared.todo.lock().list_anew.extend(dirs);
        self.shared.wake();
    }

    /// The kernel is not to keep the listing of `dir` that it gets now.
    pub(crate) fn listing_expires(&self, dir: NodeId) {
        self.shared.todo.lock().listed.insert(dir);
        self.shared.wake();
    }

    /// The kernel looks `file` up again, and lists the directories that it is in again: it was shown, and is
    /// hidden now because of a name elsewhere.
    pub(crate) fn hidden_since(&self, file: NodeId) {
        self.shared.todo.lock().hidden.insert(file);
        self.shared.wake();
    }

    /// The kernel forgot a directory; its id is never used again. Its mark is taken away through
    /// `fd`; where the directory is not found any more (`None`), the mark goes with the inode.
    pub(crate) fn forgotten(&self, node: &Node, fd: Option<BorrowedFd<'_>>) {
        let mut dirs = self.shared.dirs.lock();
        if let Some(handle) = dirs.by_node.remove(&node.id) {
            node.watched.set(Level::None);
            // Another node may have taken the directory's place: then the mark is that one's.
            if dirs.by_handle.get(&handle) != Some(&node.id) {
                return;
            }
            dirs.by_handle.remove(&handle);
            if let Some(fd) = fd {
                let _ = self.shared.group.unmark(fd, fanotify::NAMES | fanotify::FILES);
            }
        }
    }

    /// Whether changes of files by names that are not watched are reported: of those that are marked,
    /// where each has to be.
    pub(crate) fn reports_files(&self) -> bool {
        self.shared.files_on.load(Ordering::SeqCst)
    }

    /// Whether changes of `file` are reported, by whatever name.
    pub(crate) fn reports(&self, file: &Node) -> bool {
        self.reports_files() && (!self.marks_each_file() || self.shared.marks.cover(&file.kept))
    }

    fn marks_each_file(&self) -> bool {
        self.shared.each_file.load(Ordering::SeqCst)
    }

    /// Whether `file` would have to be marked to be reported.
    pub(crate) fn would_mark(&self, file: &Node) -> bool {
        self.marks_each_file() && self.reports_files() && !self.shared.marks.cover(&file.kept)
    }

    /// Has changes of `file`, which is `name` in `dir`, reported. What is asked about it after this is
    /// covered, if `still_there` confirms that the name is that of the file.
    pub(crate) fn mark(
        &self,
        file: &Node,
        dir: BorrowedFd<'_>,
        name: &CStr,
        still_there: impl FnOnce() -> bool,
    ) {
        let Some(group) = &self.shared.files else { return };
        let directories = self.shared.dirs.lock().by_node.len();
        self.shared.marks.add(group, &file.kept, (dir, name), directories, still_there);
    }

    /// The kernel forgot `file`. Its mark is taken away through `path`, where that still has to be
    /// done: not if the file was `met_again` since.
    pub(crate) fn forgotten_file(
        &self,
        file: &Node,
        path: Option<Result<BorrowedFd<'_>, Errno>>,
        met_again: impl FnOnce() -> bool,
    ) {
        let Some(group) = &self.shared.files else { return };
        if self.shared.marks.forgotten(group, &file.kept, path, met_again) {
            self.shared.wake();
        }
    }

    pub(crate) fn status(&self) -> WatchStatus {
        WatchStatus {
            on: self.running.load(Ordering::Acquire),
            files: self.reports_files(),
            directories: self.shared.dirs.lock().by_node.len(),
            changes: self.shared.counts.changes.load(Ordering::Relaxed),
            overflows: self.shared.counts.overflows.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.todo.lock().stop = true;
        self.shared.wake();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the watch thread panicked");
        }
    }
}
