//! Listing directories.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::{
    Connection, DirReply, Entry, FileHandle, InitFlags, Name, NodeId, OpenReply, Opened, Request,
};
use tollgate_policy::Operation;

use super::admit::HiddenBy;
use super::sight::Sight;
use crate::handles::OpenDir;
use crate::lower::{self, DirEntry, DirStream, Stat};
use crate::moving::Turn;
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;
use crate::walkers::{NOTHING, Omit};
use crate::watched::Level;

/// What the kernel sends for a directory that was not opened. No open directory has it.
const NO_HANDLE: FileHandle = FileHandle(0);

impl View {
    pub(crate) fn do_opendir(&self, req: &Request<'_>, id: NodeId) -> Result<Opened, Errno> {
        self.count(req, Count::readdir);
        // Before the policy is asked: another one may follow.
        let epoch = self.admission.epoch();
        if self.lists_without_opening() {
            self.listings.go_unopened(epoch);
            return Err(Errno::NOSYS);
        }
        let node = self.node(id)?;
        self.permit(req, &node, Operation::List, "opendir")?;
        self.must_be_open_to(req.caller(), &node, None, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.watch_dir(&node);
        // What is listed is the same for every caller who may list; whether one may is asked here.
        let flags = match node.watched.level() {
            Level::Files => OpenReply::CACHE_DIR | OpenReply::KEEP_CACHE,
            Level::None | Level::Names => OpenReply::empty(),
        };
        let handle = self.dirs.insert(self.open_dir(req, &node)?);
        Ok(Opened { handle, flags, backing: None })
    }

    /// Whether directories are listed without OPENDIR, and the kernel keeps every listing until the
    /// directory's modification time changes. Not where a rule can refuse to list: the kernel would
    /// ask nobody.
    fn lists_without_opening(&self) -> bool {
        let offered = |connection: &Connection| connection.negotiated().offered;
        self.watch.is_some()
            && !self.lower_judges_callers
            && !self.admission.policy().may_refuse_listing()
            && self
                .connection
                .get()
                .is_some_and(|c| offered(c).contains(InitFlags::NO_OPENDIR_SUPPORT))
    }

    /// A policy that followed the one by which OPENDIR was refused may refuse to list, and one that
    /// is only recorded may say that it would.
    fn permit_unopened(&self, req: &Request<'_>, node: &Arc<Node>) -> Result<(), Errno> {
        if self.listings.were_unopened_at(self.admission.epoch())
            && !self.admission.would_refuse_listing()
        {
            return self.settle_place(node);
        }
        self.permit(req, node, Operation::List, "opendir")
    }

    fn open_dir(&self, req: &Request<'_>, node: &Arc<Node>) -> Result<OpenDir, Errno> {
        let held = self.fds.hold(req.caller().uid)?;
        let fd = self.fds.listable(node)?;
        Ok(OpenDir { stream: Mutex::new(DirStream::new(fd)), _held: held })
    }

    /// Fills `reply` from the cookie `offset` on; `plus` with a lookup of each entry.
    pub(crate) fn do_readdir(
        &self,
        req: &Request<'_>,
        id: NodeId,
        handle: FileHandle,
        offset: u64,
        plus: bool,
        mut reply: DirReply<'_>,
    ) {
        self.count(req, Count::readdir);
        let begins = plus && offset == 0;
        let (nodes, omit) = (SmallVec::new(), NOTHING);
        let mut given = Given { view: self, nodes, omit, omitted: 0, expires: false };
        let filled = self.node(id).and_then(|node| {
            let omit = if begins { self.walkers.lists(req.caller().pid) } else { NOTHING };
            if !node.listed.knows_files() {
                given.omit = omit;
            }
            let lister = Lister { view: self, req, node: &node, plus };
            if handle == NO_HANDLE && self.listings.are_unopened() {
                self.permit_unopened(req, &node)?;
                lister.list_unopened(offset, &mut reply, &mut given)?;
            } else {
                let open = self.dirs.get(handle)?;
                let mut stream = open.stream.lock();
                lister.fill(&mut stream, offset, &mut reply, &mut given)?;
            }
            if begins {
                self.attributes_left_out(req, &node, given.omitted);
            }
            Ok(())
        });
        let delivered = match filled {
            Ok(()) => reply.send(),
            Err(e) => {
                reply.error(e);
                false
            }
        };
        if let Some(watch) = self.watch.as_ref().filter(|_| given.expires) {
            watch.listing_expires(id);
        }
        if delivered {
            given.delivered();
        }
    }

    /// The kernel gets the first names of directory `node` without the attributes of `omitted` files.
    fn attributes_left_out(&self, req: &Request<'_>, node: &Node, omitted: u32) {
        let lacked = node.listed.lack_attributes(omitted > 0);
        if lacked || omitted > 0 {
            self.counters.add(req.worker(), Count::listed_by_name, omitted.into());
            self.walkers.omits(req.caller().pid, node.id, omitted);
        }
    }

    pub(crate) fn do_releasedir(&self, handle: FileHandle) {
        drop(self.dirs.remove(handle));
    }

    pub(crate) fn do_fsyncdir(
        &self,
        req: &Request<'_>,
        id: NodeId,
        handle: FileHandle,
        data_only: bool,
    ) -> Result<(), Errno> {
        let sync = |open: &OpenDir| {
            let stream = open.stream.lock();
            let fd = stream.fd();
            if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }
        };
        if handle == NO_HANDLE && self.listings.are_unopened() {
            return sync(&self.open_dir(req, &self.node(id)?)?);
        }
        sync(&*self.dirs.get(handle)?)
    }
}

/// What a reply gives besides names.
struct Given<'a> {
    view: &'a View,
    /// Nodes that it counts a lookup of. The kernel counts them when it takes the reply; if it does
    /// not, the lookups are taken back. As many as fit a reply of 4 KiB, the kernel's first size; more
    /// are kept on the heap.
    nodes: SmallVec<[NodeId; 32]>,
    /// Of which files it leaves the attributes out, and of how many it did.
    omit: Omit,
    omitted: u32,
    /// What it leaves out may be there at any moment, and nothing in the directory changes then.
    expires: bool,
}

impl Given<'_> {
    fn delivered(mut self) {
        self.nodes.clear();
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        for node in &self.nodes {
            self.view.do_forget(*node, 1);
        }
    }
}

/// How far a reply got.
enum Filled {
    InPart,
    /// Nothing follows what is in it.
    ToTheEnd,
}

struct Lister<'a> {
    view: &'a View,
    req: &'a Request<'a>,
    node: &'a std::sync::Arc<Node>,
    plus: bool,
}

impl Lister<'_> {
    /// Lists a directory that was not opened, and keeps the rest for the next request.
    fn list_unopened(
        &self,
        offset: u64,
        reply: &mut DirReply<'_>,
        given: &mut Given<'_>,
    ) -> Result<(), Errno> {
        let listings = &self.view.listings;
        if offset == 0 {
            self.view.watch_dir(self.node);
        } else if listings.take_end(self.node.id, offset) {
            return Ok(());
        }
        let open = match listings.take(self.node.id, offset) {
            Some(open) if offset != 0 => open,
            _ => self.view.open_dir(self.req, self.node)?,
        };
        let (position, filled) = {
            let mut stream = open.stream.lock();
            // What was read ahead may have waited for long, and the kernel caches what it gets.
            stream.refresh()?;
            let filled = self.fill(&mut stream, offset, reply, given)?;
            (stream.position(), filled)
        };
        match filled {
            // An empty reply is the end.
            Filled::ToTheEnd if position == offset => {}
            Filled::ToTheEnd => listings.keep_end(self.node.id, position),
            Filled::InPart => listings.keep(self.node.id, position, open),
        }
        Ok(())
    }

    fn fill(
        &self,
        stream: &mut DirStream,
        offset: u64,
        reply: &mut DirReply<'_>,
        given: &mut Given<'_>,
    ) -> Result<Filled, Errno> {
        stream.seek(offset)?;
        let mut empty = true;
        loop {
            match stream.peek() {
                Ok(None) => return Ok(Filled::ToTheEnd),
                // What was listed is given; the error comes back with the next request.
                Err(_) if !empty => return Ok(Filled::InPart),
                Err(e) => return Err(e),
                Ok(Some(entry)) => {
                    if !reply.fits(entry.name.to_bytes().len(), self.plus) {
                        return Ok(Filled::InPart);
                    }
                    self.add(&entry, reply, given)?;
                    empty = false;
                }
            }
            stream.advance();
        }
    }

    /// Adds one entry, unless it is hidden or vanished since it was listed. It is known to fit.
    fn add(
        &self,
        entry: &DirEntry<'_>,
        reply: &mut DirReply<'_>,
        given: &mut Given<'_>,
    ) -> Result<(), Errno> {
        let name = entry.name.to_bytes();
        let kind = u32::from(entry.kind);
        let Some(child) = entry.child_name() else {
            // `.` and `..`: shown, not looked up.
            if self.plus {
                let mut dots = Entry::negative(std::time::Duration::ZERO);
                dots.attr.ino = entry.ino;
                dots.attr.mode = kind << 12;
                reply.add_plus(&dots, kind, entry.next_offset, name);
            } else {
                reply.add(entry.ino, kind, entry.next_offset, name);
            }
            return Ok(());
        };
        if !self.plus && !self.view.can_hide() {
            reply.add(entry.ino, kind, entry.next_offset, name);
            return Ok(());
        }
        // A name that the kernel took for missing is there for it once it has the attributes.
        let may_omit = has_no_entries(entry) && !self.node.listed.may_have_no(child);
        if self.plus && may_omit && given.omit.covers(given.omitted) {
            return self.add_without_attributes(entry, child, reply, given);
        }
        let dir_fd = self.view.fds.path(self.node)?;
        if !self.plus {
            return self.add_name(entry, (child, dir_fd.as_fd()), reply, given);
        }
        let seen = match self.view.sight(self.node, dir_fd.as_fd(), child) {
            Ok(Sight::Inode(seen)) => seen,
            Ok(Sight::Nothing) => return Ok(()),
            Ok(Sight::Hidden { by, .. }) => {
                self.hides(&by, given);
                return Ok(());
            }
            // It may be about the directory, which is found anew then.
            Err(Errno::STALE) => return Err(Errno::STALE),
            // What is mounted there is not entered, or cannot be looked at; its name is there all the same.
            Err(_) => {
                if self.shows_unseen(entry, child, given)? {
                    self.add_unseen(entry, reply);
                }
                return Ok(());
            }
        };
        let (node, stat, around) = (seen.node, seen.stat, seen.around);
        given.nodes.push(node.id);
        let stat = self.view.watch_child(&node, (dir_fd.as_fd(), around), entry.name, stat);
        let found = self.view.entry(around, &node, &stat, self.req.caller().pid);
        let added = reply.add_plus(&found, kind, entry.next_offset, name);
        debug_assert!(added, "it was seen to fit");
        Ok(())
    }

    /// Adds a name without a lookup, unless it is hidden.
    fn add_name(
        &self,
        entry: &DirEntry<'_>,
        (child, dir): (Name<'_>, BorrowedFd<'_>),
        reply: &mut DirReply<'_>,
        given: &mut Given<'_>,
    ) -> Result<(), Errno> {
        if let Some(stat) = self.look_if_shown(entry, (child, dir), given)? {
            let ino = stat.map_or(entry.ino, |stat| stat.attr(self.view.root_dev).ino);
            reply.add(ino, u32::from(entry.kind), entry.next_offset, entry.name.to_bytes());
        }
        Ok(())
    }

    /// Adds the name of a file, unless it is hidden, and leaves its attributes to a look-up.
    fn add_without_attributes(
        &self,
        entry: &DirEntry<'_>,
        child: Name<'_>,
        reply: &mut DirReply<'_>,
        given: &mut Given<'_>,
    ) -> Result<(), Errno> {
        if self.view.can_hide() {
            let dir = self.view.fds.path(self.node)?;
            if self.look_if_shown(entry, (child, dir.as_fd()), given)?.is_none() {
                return Ok(());
            }
        }
        given.omitted += 1;
        self.add_unseen(entry, reply);
        Ok(())
    }

    /// What has this name, as far as it can be looked at; `None` if it vanished since it was listed, or is hidden.
    fn look_if_shown(
        &self,
        entry: &DirEntry<'_>,
        (child, dir): (Name<'_>, BorrowedFd<'_>),
        given: &mut Given<'_>,
    ) -> Result<Option<Option<Stat>>, Errno> {
        let stat = match lower::stat_at(dir, entry.name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(_) => return Ok(self.shows_unseen(entry, child, given)?.then_some(None)),
        };
        if let Some(by) = self.view.hidden_by(self.node, child, &stat, Turn::Free)? {
            self.hides(&by, given);
            return Ok(None);
        }
        Ok(Some(Some(stat)))
    }

    /// Whether a name is shown of which nothing but the listing is known.
    fn shows_unseen(
        &self,
        entry: &DirEntry<'_>,
        child: Name<'_>,
        given: &mut Given<'_>,
    ) -> Result<bool, Errno> {
        let by = self.view.hidden_by_path(self.node, child, u32::from(entry.kind) << 12)?;
        if let Some(by) = &by {
            self.hides(by, given);
        }
        Ok(by.is_none())
    }

    /// A name is left out. The listing is not hidden itself.
    fn hides(&self, by: &HiddenBy, given: &mut Given<'_>) {
        self.view.counters.add(self.req.worker(), Count::hidden, 1);
        given.expires |= by.further_name;
    }

    /// Adds a name of which nothing but the listing is known; the kernel looks it up by itself.
    fn add_unseen(&self, entry: &DirEntry<'_>, reply: &mut DirReply<'_>) {
        let kind = u32::from(entry.kind);
        let mut unseen = Entry::negative(std::time::Duration::ZERO);
        unseen.attr.ino = entry.ino;
        unseen.attr.mode = kind << 12;
        reply.add_plus(&unseen, kind, entry.next_offset, entry.name.to_bytes());
    }
}

/// Whether `entry` is known to be no directory.
fn has_no_entries(entry: &DirEntry<'_>) -> bool {
    !matches!(entry.kind, libc::DT_DIR | libc::DT_UNKNOWN)
}
