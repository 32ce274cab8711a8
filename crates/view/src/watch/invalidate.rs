//! The thread that turns reports into invalidations of the kernel's cache.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::{Connection, Name, NodeId};

use super::below::Below;
use super::fanotify::{self, Event, NAME_CHANGES};
use super::files::Files;
use super::shared::{Dirs, Shared, Todo, Tree};
use crate::fds::Descriptors;
use crate::idle::retire_if_deleted;
use crate::left::is_left;
use crate::links::Links;
use crate::lower::{self, DirStream, Stat};
use crate::table::{Node, Place, Table};
use crate::watched::Level;

/// When what was invalidated is invalidated again.
pub(super) const RESEND: Duration = Duration::from_millis(100);
/// Reports that come within this time are read together: a busy writer wakes the thread at most so
/// often.
const BATCH: Duration = Duration::from_millis(2);
/// The same where report after report is about nothing that the kernel has: files that others make
/// and remove elsewhere in the file system, as compilers do (a wake-up takes 24 us there).
const BATCH_OF_OTHERS: Duration = Duration::from_millis(10);
/// Bytes of reports read at once: some hundreds.
const BUFFER_LEN: usize = 64 << 10;
/// Most invalidations kept to be sent again. Beyond it all that is cached is dropped.
const MAX_RECENT: usize = 1 << 14;
/// How many nodes are looked at in the time in which a name is listed and looked up.
const NODES_FOR_A_NAME: u64 = 8;

/// What the kernel has to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stale {
    /// Attributes and cached pages.
    Inode(NodeId),
    Attributes(NodeId),
    Name(NodeId, CString),
    /// A name that nobody had before: what the kernel has there is new, or that there was nothing.
    NewName(NodeId, CString),
    /// A directory that has another path, and all that is below it.
    Moved(NodeId),
    /// Attributes and cached pages of the files in a directory.
    FilesIn(NodeId),
}

pub(super) struct Invalidator {
    shared: Arc<Shared>,
    connection: Connection,
    table: Arc<Table>,
    fds: Arc<Descriptors>,
    links: Arc<Links>,
    own_pid: i32,
    recent: VecDeque<(Instant, Stale)>,
    /// Directories with another path, looked for in the table together.
    moved: Vec<NodeId>,
    /// Directories whose files are to be dropped, together.
    files_in: Vec<NodeId>,
    /// Whether reports since the last pause were about something that the kernel has.
    concerned: bool,
    files: Files,
}

impl Invalidator {
    pub(super) fn new(shared: Arc<Shared>, connection: Connection, tree: Tree) -> Self {
        let Tree { table, fds, links } = tree;
        let own_pid = std::process::id().cast_signed();
        let files = Files::new(fds.root().as_fd());
        Self {
            shared,
            connection,
            table,
            fds,
            links,
            own_pid,
            recent: VecDeque::new(),
            moved: Vec::new(),
            files_in: Vec::new(),
            concerned: false,
            files,
        }
    }

    /// Runs until the watch is dropped; watches nothing for a time of `after`.
    pub(super) fn run(mut self, after: Duration) {
        if !after.is_zero() {
            if self.is_dropped_within(after) {
                return;
            }
            self.begin();
        }
        let mut buffer = vec![0; BUFFER_LEN];
        let mut pause = BATCH;
        loop {
            self.wait();
            let todo = std::mem::take(&mut *self.shared.todo.lock());
            if todo.stop {
                return;
            }
            if let Err(error) = self.take_reports(&mut buffer) {
                // Nothing is reported any more: what is cached must not be believed.
                tracing::error!(%error, "changes behind the view are no longer reported");
                self.stop_watching();
                return;
            }
            self.take_reports_of_files(&mut buffer);
            self.lower_written(&todo);
            if todo.everything {
                self.drop_everything();
            }
            for dir in &todo.list_anew {
                let _ = self.connection.invalidate_inode(*dir, 0, 0);
            }
            for dir in todo.listed {
                self.forget(Stale::Inode(dir));
            }
            for file in todo.hidden {
                if let Ok(file) = self.table.get(file) {
                    self.forget_names(&file);
                }
            }
            self.moved.extend(todo.moved);
            self.send_again();
            self.drop_moved();
            self.drop_files();
            let concerned = std::mem::take(&mut self.concerned);
            pause = if concerned { BATCH } else { (2 * pause).min(BATCH_OF_OTHERS) };
            std::thread::sleep(pause);
        }
    }

    /// From now on changes are reported.
    pub(super) fn begin(&self) {
        self.files.start(&self.shared);
        self.shared.begun.store(true, Ordering::Release);
    }

    fn is_dropped_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            if self.shared.todo.lock().stop {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            let Some(left) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else {
                return false;
            };
            let mut wake = [PollFd::new(&self.shared.wake, PollFlags::IN)];
            let _ = rustix::event::poll(&mut wake, Some(&left));
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
    }

    fn wait(&self) {
        let wanted = [&self.shared.group].into_iter().chain(&self.shared.files);
        let mut wanted: SmallVec<[_; 3]> =
            wanted.map(|group| PollFd::new(group, PollFlags::IN)).collect();
        wanted.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        let resend = self.recent.front().map(|(at, _)| *at + RESEND);
        let due = resend.into_iter().chain(self.files.due()).min();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        let due = due.and_then(|left| Timespec::try_from(left).ok());
        let _ = rustix::event::poll(&mut wanted, due.as_ref());
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
    }

    fn take_reports(&mut self, buffer: &mut [u8]) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        loop {
            let events = shared.group.read(buffer)?;
            if events.is_empty() {
                return Ok(());
            }
            for event in events {
                self.report(&event);
            }
        }
    }

    fn take_reports_of_files(&mut self, buffer: &mut [u8]) {
        let (mut changed, table) = (Vec::<Arc<Node>>::new(), Arc::clone(&self.table));
        let Ok(root_dev) = table.get(NodeId::ROOT).map(|root| root.key.dev()) else { return };
        let lost = self.files.read(&self.shared, self.own_pid, buffer, |inode| {
            for node in table.of_inode(root_dev, inode) {
                node.kept.changed(true);
                retire_if_deleted(&node);
                changed.push(node);
            }
        });
        for node in changed {
            self.forget(Stale::Attributes(node.id));
            if self.may_be_hidden_since(&node) {
                self.forget_names(&node);
            }
        }
        if lost {
            self.shared.counts.overflows.fetch_add(1, Ordering::Relaxed);
            self.drop_kept();
        }
    }

    /// Whether a name that others gave the file may hide those that the kernel has.
    fn may_be_hidden_since(&self, node: &Arc<Node>) -> bool {
        let is_file = !node.is_dir() && self.links.are_searched();
        let stat = || lower::stat_fd(self.fds.path_once(node).ok()?.as_fd()).ok();
        is_file && stat().is_some_and(|stat| stat.nlink() > 1)
    }

    /// The kernel looks a file up again, and lists the directories that it is in.
    fn forget_names(&mut self, node: &Node) {
        for Place { parent, name } in node.places() {
            self.forget(Stale::Name(parent.id, name.into()));
            self.forget(Stale::Inode(parent.id));
        }
    }

    /// Attributes of files expire as configured from now on: those that were kept for longer go.
    fn drop_kept(&mut self) {
        for node in self.table.all().iter().filter(|node| node.kept.is_kept()) {
            node.kept.changed(true);
            self.forget(Stale::Attributes(node.id));
        }
    }

    fn report(&mut self, event: &Event<'_>) {
        if event.mask & libc::FAN_Q_OVERFLOW != 0 {
            self.shared.counts.overflows.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("changes behind the view were lost; all that was cached is dropped");
            self.drop_everything();
            return;
        }
        if event.pid == self.own_pid {
            return;
        }
        let Some((handle, name)) = &event.place else { return };
        let Some(dir) = self.shared.dirs.lock().by_handle.get(handle).copied() else { return };
        self.shared.counts.changes.fetch_add(1, Ordering::Relaxed);
        if event.mask & NAME_CHANGES != 0
            && let Ok(at) = Name::new(name)
        {
            let name = (*name).to_owned();
            let is_new = event.mask & NAME_CHANGES == libc::FAN_CREATE;
            self.forget(if is_new { Stale::NewName(dir, name) } else { Stale::Name(dir, name) });
            self.forget(Stale::Inode(dir));
            // Who looked it up meanwhile had the kernel move it, with all that is cached below it.
            if event.mask & libc::FAN_ONDIR != 0
                && let Some(moved) = self.child(dir, at)
            {
                self.forget(Stale::Moved(moved.id));
            }
        }
        if event.mask & !(NAME_CHANGES | libc::FAN_ONDIR) != 0 {
            match Name::new(name) {
                Ok(name) => self.child_changed(dir, name),
                // The directory itself is reported as `.`.
                Err(_) => self.forget(Stale::Inode(dir)),
            }
        }
    }

    fn child_changed(&mut self, dir: NodeId, name: Name<'_>) {
        if let Some(child) = self.child(dir, name) {
            self.forget(Stale::Inode(child.id));
        }
    }

    /// What `name` in `dir` leads to now, if the kernel knows it.
    fn child(&self, dir: NodeId, name: Name<'_>) -> Option<Arc<Node>> {
        let stat = self.stat(dir, name)?;
        self.table.find_at(&stat.key(), &self.table.get(dir).ok()?, name)
    }

    /// Attributes of `name` in `dir`, if it is there.
    fn stat(&self, dir: NodeId, name: Name<'_>) -> Option<Stat> {
        let fd = self.fds.path(&self.table.get(dir).ok()?).ok()?;
        lower::stat_at(fd.as_fd(), name.as_c_str()).ok()
    }

    /// Files are written through the view: reports about them would slow each write down.
    fn lower_written(&mut self, todo: &Todo) {
        for dir in &todo.written {
            if let Ok(fd) = self.fds.path(dir) {
                let _ = self.shared.group.unmark(fd.as_fd(), fanotify::FILES);
            }
            self.forget(Stale::FilesIn(dir.id));
        }
    }

    /// Makes the kernel forget, now and once more after [`RESEND`].
    fn forget(&mut self, stale: Stale) {
        self.concerned = true;
        self.send(&stale);
        if self.recent.len() >= MAX_RECENT {
            self.recent.clear();
            self.drop_everything();
        }
        // A writer's reports are many and alike.
        if self.recent.iter().rev().take(4).all(|(_, last)| *last != stale) {
            self.recent.push_back((Instant::now(), stale));
        }
    }

    /// What is cached below directories that have another path now.
    fn drop_moved(&mut self) {
        if self.moved.is_empty() {
            return;
        }
        let links = Arc::clone(&self.links);
        let mut below = Below::new(&std::mem::take(&mut self.moved), &links);
        for node in self.table.all().iter().filter(|node| below.concerns(node)) {
            self.expire(node);
        }
    }

    /// What is cached of the files in directories. To list a few directories is cheaper than to look
    /// at each node, whose number can be a thousand times theirs.
    fn drop_files(&mut self) {
        let mut dirs: FxHashSet<_> = self.files_in.drain(..).collect();
        dirs.retain(|dir| self.drop_listed(*dir).is_none());
        if dirs.is_empty() {
            return;
        }
        let is_in = |place: &Place| dirs.contains(&place.parent.id);
        let all = self.table.all();
        for node in all.iter().filter(|node| !node.is_dir() && node.places().iter().any(is_in)) {
            self.send(&Stale::Inode(node.id));
        }
    }

    /// What is cached of the files that directory `dir` lists. `None` if it cannot be listed, or has
    /// more names than it is worth.
    fn drop_listed(&self, dir: NodeId) -> Option<()> {
        let node = self.table.get(dir).ok()?;
        let at = self.fds.path(&node).ok()?;
        let mut stream = DirStream::new(lower::open_dir(at.as_fd(), c".").ok()?);
        let mut left = self.table.len() / NODES_FOR_A_NAME;
        while let Some(entry) = stream.peek().ok()? {
            left = left.checked_sub(1)?;
            if entry.kind != libc::DT_DIR
                && let Ok(stat) = lower::stat_at(at.as_fd(), entry.name)
                && let Ok(name) = Name::new(entry.name)
                && let Some(file) = self.table.find_at(&stat.key(), &node, name)
            {
                let _ = self.connection.invalidate_inode(file.id, 0, 0);
            }
            stream.advance();
        }
        Some(())
    }

    fn send_again(&mut self) {
        while let Some((at, _)) = self.recent.front()
            && at.elapsed() >= RESEND
        {
            if let Some((_, stale)) = self.recent.pop_front() {
                self.send(&stale);
            }
        }
    }

    /// The kernel returns `ENOENT` for what it does not have, which is as good.
    fn send(&mut self, stale: &Stale) {
        let _ = match stale {
            Stale::Inode(node) => self.connection.invalidate_inode(*node, 0, 0),
            Stale::Attributes(node) => self.connection.invalidate_inode(*node, -1, 0),
            Stale::Name(dir, name) => match Name::new(name) {
                // The kernel may have looked up what is there now before this report came. If what it
                // has is another file, it notices when it asks.
                Ok(name) if is_left(self.stat(*dir, name).as_ref(), &self.table) => {
                    self.connection.invalidate_entry(*dir, name)
                }
                Ok(name) => self.connection.expire_entry(*dir, name),
                Err(_) => Ok(()),
            },
            // Somebody may look it up at this moment, and has it then: it stays in its place.
            Stale::NewName(dir, name) => match Name::new(name) {
                Ok(name) => self.connection.expire_entry(*dir, name),
                Err(_) => Ok(()),
            },
            Stale::Moved(dir) => {
                self.moved.push(*dir);
                Ok(())
            }
            Stale::FilesIn(dir) => {
                self.files_in.push(*dir);
                Ok(())
            }
        };
    }

    /// All that the kernel has of names and attributes: it asks again before it uses them. Names that
    /// do not exist cannot be listed; they expire after [`super::NEGATIVE`].
    fn drop_everything(&self) {
        self.table.all().iter().for_each(|node| self.expire(node));
    }

    /// Of which is not known whether anything changed. A directory whose name was forgotten would be
    /// nowhere for the processes in it, until somebody looks it up, and have no mounts.
    fn expire(&self, node: &Node) {
        let _ = self.connection.invalidate_inode(node.id, 0, 0);
        for place in node.places() {
            if let Ok(name) = Name::new(&place.name) {
                let _ = self.connection.expire_entry(place.parent.id, name);
            }
        }
    }

    fn stop_watching(&self) {
        for node in self.table.all() {
            node.watched.set(Level::None);
        }
        *self.shared.dirs.lock() = Dirs::default();
        self.shared.files_on.store(false, Ordering::SeqCst);
        self.drop_everything();
    }
}
