//! Finding inodes and their attributes.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use tollgate_fuse::{
    Attributes, Caller, Entry, FileHandle, Name, NodeId, Request, SetAttr, SetTime, Statx,
};
use tollgate_policy::Operation;

use super::sight::Sight;
use crate::admission::Asked;
use crate::content::Content;
use crate::content::asker::asked_by;
use crate::content::open::How;
use crate::content::to_open::ToOpen;
use crate::creds::without_fsetid;
use crate::handles::is_passthrough;
use crate::lower::{self, ProcPath, Stat};
use crate::mode::IoMode;
use crate::stats::Count;
use crate::table::Node;

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
        let seen = match self.sight(&dir, dir_fd.as_fd(), name)? {
            Sight::Inode(seen) => seen,
            Sight::Nothing => {
                dir.listed.has_no(name);
                return Ok(self.no_entry(&dir));
            }
            Sight::Hidden { mode, by } => {
                dir.listed.has_no(name);
                self.conceal(req, &dir, name, &by.rule)?;
                if let Some(watch) = self.watch.as_ref().filter(|_| by.further_name) {
                    // The kernel may have listed it.
                    watch.listing_expires(dir.id);
                }
                return Ok(self.hidden_entry(&dir, name, mode));
            }
        };
        self.would_conceal(req, &dir, name, seen.stat.mode())
            .inspect_err(|_| self.do_forget(seen.node.id, 1))?;
        let entry = self.entry(seen.around, &seen.node, &seen.stat, req.caller().pid);
        if seen.known {
            // It was asked for before: what comes next is covered, this reply is not.
            self.watch_dir(&dir);
        } else if dir.listed.lacks_attributes() && !seen.node.is_dir() {
            self.looked_up_after_listing(&dir);
        }
        Ok(entry)
    }

    /// A file whose attributes were not listed is looked up.
    fn looked_up_after_listing(&self, dir: &Node) {
        if let Some(dirs) = self.walkers.looked_up(dir.id)
            && let Some(watch) = &self.watch
        {
            watch.list_anew(dirs);
        }
    }

    pub(crate) fn do_forget(&self, node: NodeId, lookups: u64) {
        // What the node held (descriptors, a registration) goes with the last reference.
        if let Some(node) = self.table.forget(node, lookups) {
            if let Some(watch) = self.watch.as_ref().filter(|_| node.watched.level() > Level::None)
            {
                let fd = self.fds.path_once(&node).ok();
                watch.forgotten(&node, fd.as_ref().map(AsFd::as_fd));
            }
            if let Some(watch) = self.watch.as_ref().filter(|_| node.kept.mark() != 0) {
                // Without a name it is gone, and its mark with it.
                let path = node.place().map(|_| self.fds.path_once(&node));
                let path = path.as_ref().map(|path| path.as_ref().map(AsFd::as_fd).map_err(|e| *e));
                watch.forgotten_file(&node, path, || self.table.find(&node.key).is_some());
            }
            if node.listed.lacks_attributes() {
                self.walkers.forgotten(node.id);
            }
            self.twins.iter().for_each(|twins| twins.forgotten(&node));
            if node.pinned.load(Ordering::Relaxed) {
                self.forgotten_by_all(&node);
            }
            node.let_go();
            self.sweeper.forgotten();
            if node.pinned.load(Ordering::Relaxed) {
                self.closer.let_go(node, self.fds.hold_if_cheap());
            }
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
        let around = node.watched_in();
        self.mark_asked(&node, around);
        let stat = self.unless_overtaken(|| self.stat_handle(&node, handle))?;
        self.look_whether_hidden(&node, &stat);
        let attributes = self.attributes(&node, &stat, around, req.caller().pid);
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
        let around = node.watched_in();
        self.mark_asked(&node, around);
        let stat = self.unless_overtaken(|| self.stat_handle(&node, handle))?;
        self.look_whether_hidden(&node, &stat);
        let Attributes { attr, valid } = self.attributes(&node, &stat, around, req.caller().pid);
        let reply = Statx { attr, ..stat.statx(self.root_dev, valid) };
        self.watch_around(&node);
        Ok(reply)
    }

    /// Through the handle's own descriptor if it has one: that works without any name.
    fn stat_handle(&self, node: &Arc<Node>, handle: Option<FileHandle>) -> Result<Stat, Errno> {
        if let Some(file) =
            handle.filter(|h| !is_passthrough(*h)).and_then(|h| self.files.get(h).ok())
        {
            return lower::stat_fd(file.fd.as_fd());
        }
        let stat = self.stat(node)?;
        // A descriptor that is kept for the next open still names the file. Nobody has it open, so
        // a name was asked for, and that leads here no more.
        let is_file = stat.file_type() == FileType::RegularFile;
        let was_removed = is_file && stat.nlink() == 0 && node.place().is_some();
        if was_removed && !node.io.lock().is_open() {
            return Err(Errno::STALE);
        }
        Ok(stat)
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
            let leaves_a_part = set.size.is_some_and(|size| size > 0);
            let write = Asked::To(Operation::Write);
            let asked = if leaves_a_part { Asked::ChangeInPart } else { write };
            self.permit_through(req, &node, set.handle, asked, "setattr")?;
        }
        let _copying = self.copying(&node);
        let sealed = self.if_sealed(&node)?;
        let mut done = self.set_attributes(req.caller(), &node, set);
        if let (Some(held), Ok(_)) = (&sealed, &done) {
            done = self.must_lead_here_again(&node, held).and(done);
        }
        self.record_setattr(req, &node, set, done.as_ref().err().copied());
        done
    }

    fn set_attributes(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        set: &SetAttr,
    ) -> Result<Attributes, Errno> {
        let path = self.find_once(node)?;
        let fd = path.as_fd();
        if set.uid.is_some() || set.gid.is_some() || set.mode.is_some() {
            self.writers.changing(&self.fds, node);
        }
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(Uid::from_raw);
            let gid = set.gid.map(Gid::from_raw);
            let act = || rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH);
            self.powers.as_caller(caller, act)?;
        }
        if let Some(mode) = set.mode {
            let bits = Mode::from_raw_mode(mode & 0o7777);
            let act = || rustix::fs::chmod(ProcPath::of(fd).as_c_str(), bits);
            // The bit is dropped, not refused, for who is not in the group.
            if bits.contains(Mode::SGID) {
                self.powers.as_caller_in_groups(caller, act)?;
            } else {
                self.powers.as_caller(caller, act)?;
            }
            if !node.is_dir() {
                self.raised.by_mode(mode);
            }
        }
        if let Some(size) = set.size {
            self.truncate(caller, (node, fd), set, size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let act = || self.powers.as_caller(caller, || set_times(fd, set));
            self.contents.with_times(node, act)?;
        }
        let around = node.watched_in();
        let stat = lower::stat_fd(fd)?;
        Ok(self.counted_attributes(node, &stat, around))
    }

    fn truncate(
        &self,
        caller: Caller,
        (node, path): (&Arc<Node>, std::os::fd::BorrowedFd<'_>),
        set: &SetAttr,
        size: u64,
    ) -> Result<(), Errno> {
        let Some(handle) = set.handle else {
            if let Some(how) = self.how_of(node)? {
                return self.truncate_made(caller, (node, path), &how, set);
            }
            self.refuse_misplaced(caller, node, &lower::stat_fd(path)?, size == 0)?;
            return self.truncate_as(caller, path, size, set.kill_suidgid);
        };
        // Whoever has the file open for writing may do it, whatever the file's mode is by now.
        let user_file = if is_passthrough(handle) { None } else { self.files.get(handle).ok() };
        if let Some(made) = user_file.as_ref().and_then(|file| file.made.as_ref()) {
            self.drop_set_ids_of_made(caller, path, set.kill_suidgid)?;
            return self.set_len_of_made(caller, &*made.content, size);
        }
        let file = match user_file {
            Some(user_file) => Arc::clone(&user_file.fd),
            None => self.below(node, rustix::fs::OFlags::WRONLY)?,
        };
        let file = file.as_fd();
        self.act_on_data(caller, set.kill_suidgid, || rustix::fs::ftruncate(file, size))
    }

    /// How the bytes of a file are made, if the view makes them.
    pub(crate) fn how_of(&self, node: &Arc<Node>) -> Result<Option<How>, Errno> {
        if self.admission.is_trivial() || !self.admission.policy().makes_bytes() {
            return Ok(None);
        }
        Ok(How::of(&self.subject_of(node, &self.stat(node)?)?))
    }

    /// Truncates a file whose bytes the view makes, by name.
    fn truncate_made(
        &self,
        caller: Caller,
        (node, path): (&Arc<Node>, std::os::fd::BorrowedFd<'_>),
        how: &How,
        set: &SetAttr,
    ) -> Result<(), Errno> {
        let size = set.size.unwrap_or(0);
        let io = node.io.lock();
        if io.mode().is_some_and(|mode| mode != IoMode::Direct) {
            return Err(Errno::BUSY);
        }
        let open = || self.fds.retrying(|| lower::reopen(path, rustix::fs::OFlags::RDWR));
        let fd = Arc::new(self.powers.as_caller(caller, open)?);
        self.must_lead_here(node)?;
        self.drop_set_ids_of_made(caller, path, set.kill_suidgid)?;
        let path = self.path_for_log(node);
        let begins_anew = size == 0;
        let asked = (&self.powers, caller);
        let file = ToOpen { fd, node, is_new: false, writes: true, begins_anew, path, asked };
        let content = asked_by(caller, || self.contents.open(file, how))?;
        drop(io);
        self.set_len_of_made(caller, &*content, size)?;
        content.flush()
    }

    fn set_len_of_made(
        &self,
        caller: Caller,
        content: &dyn Content,
        size: u64,
    ) -> Result<(), Errno> {
        asked_by(caller, || content.set_len(size, &|act| self.powers.as_caller(caller, act)))
    }

    /// Drops the set-id bits of a file that is cut, whose bytes the view makes: what is cut there may be
    /// no byte of the lower file, or be written later, by a thread of the server. Before the content
    /// changes, so that no program runs with them and with what it has then.
    pub(crate) fn drop_set_ids_of_made(
        &self,
        caller: Caller,
        path: std::os::fd::BorrowedFd<'_>,
        kill_suidgid: bool,
    ) -> Result<(), Errno> {
        if kill_suidgid { self.powers.drop_set_ids(caller, path) } else { Ok(()) }
    }

    /// Truncates the file that an `O_PATH` descriptor names, if the caller may write it.
    pub(crate) fn truncate_as(
        &self,
        caller: Caller,
        fd: std::os::fd::BorrowedFd<'_>,
        size: u64,
        kill_suidgid: bool,
    ) -> Result<(), Errno> {
        self.act_on_data(caller, kill_suidgid, || truncate_path(fd, size))
    }

    /// Changes a file's data as the caller. The kernel says with most requests whether set-id bits
    /// are to go.
    pub(crate) fn act_on_data<T>(
        &self,
        caller: Caller,
        kill_suidgid: bool,
        act: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.powers.as_caller(caller, || if kill_suidgid { without_fsetid(&act) } else { act() })
    }
}

/// Truncates the file that an `O_PATH` descriptor names.
fn truncate_path(fd: std::os::fd::BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    let file = lower::reopen(fd, rustix::fs::OFlags::WRONLY)?;
    rustix::fs::ftruncate(file, size)
}

fn set_times(fd: std::os::fd::BorrowedFd<'_>, set: &SetAttr) -> Result<(), Errno> {
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
