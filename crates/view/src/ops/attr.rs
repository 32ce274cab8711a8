//! Finding inodes and their attributes.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use tollgate_fuse::{
    Attributes, Entry, FileHandle, Name, NodeId, Request, SetAttr, SetTime, Statx,
};
use tollgate_policy::Operation;

use crate::creds::without_fsetid;
use crate::handles::PASSTHROUGH_HANDLE;
use crate::lower::{self, ProcPath, Stat};
use crate::stats::Count;
use crate::table::{Node, Sighting};
use crate::view::View;
use crate::watched::Level;

impl View {
    pub(crate) fn do_lookup(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
    ) -> Result<Entry, Errno> {
        self.count(req, Count::lookup);
        let dir = self.node(parent)?;
        let dir_fd = self.fds.path(&dir)?;
        let stat = match lower::stat_at(dir_fd.as_fd(), name.as_c_str()) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(self.no_entry(&dir)),
            Err(e) => return Err(e),
        };
        if self.is_hidden(&dir, name, &stat)? {
            self.count(req, Count::hidden);
            return Ok(self.no_entry(&dir));
        }
        let (node, known) = self.remember(&stat, &dir, name);
        let entry = self.entry(&dir, &node, &stat);
        if known {
            // It was asked for before: what comes next is covered, this reply is not.
            self.watch_dir(&dir);
        }
        Ok(entry)
    }

    /// Counts a lookup. A directory seen elsewhere was moved behind our back: paths are stale.
    /// Also returns whether the inode was known by this name.
    pub(crate) fn remember(
        &self,
        stat: &Stat,
        dir: &Arc<Node>,
        name: Name<'_>,
    ) -> (Arc<Node>, bool) {
        let (node, sighting) = self.table.remember(stat, dir, name);
        if sighting == Sighting::Moved && node.is_dir() {
            self.paths.directory_moved();
        }
        (node, sighting == Sighting::Known)
    }

    pub(crate) fn do_forget(&self, node: NodeId, lookups: u64) {
        // What the node held (descriptors, a registration) goes with the last reference.
        if let Some(node) = self.table.forget(node, lookups) {
            if let Some(watch) = self.watch.as_ref().filter(|_| node.watched.level() > Level::None)
            {
                let fd = self.fds.path_once(&node).ok();
                watch.forgotten(&node, fd.as_ref().map(AsFd::as_fd));
            }
            node.let_go();
            self.sweeper.forgotten();
        }
    }

    pub(crate) fn do_getattr(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
    ) -> Result<Attributes, Errno> {
        self.count(req, Count::getattr);
        let node = self.node(node)?;
        let stat = self.stat_handle(&node, handle)?;
        let attributes = self.attributes(&node, &stat);
        self.watch_around(&node);
        Ok(attributes)
    }

    pub(crate) fn do_statx(
        &self,
        req: &Request<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
    ) -> Result<Statx, Errno> {
        self.count(req, Count::getattr);
        let node = self.node(node)?;
        let stat = self.stat_handle(&node, handle)?;
        let reply = stat.statx(self.root_dev, self.attr_valid(&node));
        self.watch_around(&node);
        Ok(reply)
    }

    /// Through the handle's own descriptor if it has one: that works without any name.
    fn stat_handle(&self, node: &Arc<Node>, handle: Option<FileHandle>) -> Result<Stat, Errno> {
        if let Some(file) =
            handle.filter(|h| *h != PASSTHROUGH_HANDLE).and_then(|h| self.files.get(h).ok())
        {
            return lower::stat_fd(file.fd.as_fd());
        }
        self.stat(node)
    }

    /// The kernel asks about attributes that it had: what covers them is watched from now on.
    fn watch_around(&self, node: &Arc<Node>) {
        if self.watch.is_none() {
            return;
        }
        if node.is_dir() {
            self.watch_dir(node);
        } else if let [place] = &node.places()[..] {
            self.watch_dir(&place.parent);
        }
    }

    pub(crate) fn do_setattr(
        &self,
        req: &Request<'_>,
        id: NodeId,
        set: &SetAttr,
    ) -> Result<Attributes, Errno> {
        self.count(req, Count::setattr);
        let node = self.node(id)?;
        // A truncation through a handle was decided when the handle was opened.
        let through_handle = set.handle.is_some() && set.size.is_some();
        if !through_handle {
            self.permit(req, &node, Operation::Write, "setattr")?;
        }
        let path = self.fds.path_once(&node)?;
        let fd = path.as_fd();
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(Uid::from_raw);
            let gid = set.gid.map(Gid::from_raw);
            rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = set.mode {
            rustix::fs::chmod(ProcPath::of(fd).as_c_str(), Mode::from_raw_mode(mode & 0o7777))?;
        }
        if let Some(size) = set.size {
            self.truncate(fd, set, size)?;
        }
        set_times(fd, set)?;
        let stat = lower::stat_fd(fd)?;
        Ok(self.attributes(&node, &stat))
    }

    fn truncate(
        &self,
        path: std::os::fd::BorrowedFd<'_>,
        set: &SetAttr,
        size: u64,
    ) -> Result<(), Errno> {
        let user_file =
            set.handle.filter(|h| *h != PASSTHROUGH_HANDLE).and_then(|h| self.files.get(h).ok());
        let act = || match user_file {
            Some(file) => rustix::fs::ftruncate(&file.fd, size),
            None => truncate_path(path, size),
        };
        if set.kill_suidgid { without_fsetid(act) } else { act() }
    }
}

/// Truncates the file that an `O_PATH` descriptor names.
pub(crate) fn truncate_path(fd: std::os::fd::BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    let file = lower::reopen(fd, rustix::fs::OFlags::WRONLY)?;
    rustix::fs::ftruncate(file, size)
}

fn set_times(fd: std::os::fd::BorrowedFd<'_>, set: &SetAttr) -> Result<(), Errno> {
    if set.atime.is_none() && set.mtime.is_none() {
        return Ok(());
    }
    let spec = |time: Option<SetTime>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(seconds, nanoseconds)) => {
            Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) }
        }
    };
    let times = Timestamps { last_access: spec(set.atime), last_modification: spec(set.mtime) };
    rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)
}
