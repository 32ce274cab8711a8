//! Listing directories.

use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::{DirReply, Entry, FileHandle, NodeId, OpenReply, Opened, Request};
use tollgate_policy::Operation;

use crate::handles::OpenDir;
use crate::lower::{self, DirEntry, DirStream};
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

impl View {
    pub(crate) fn do_opendir(&self, req: &Request<'_>, id: NodeId) -> Result<Opened, Errno> {
        self.count(req, Count::readdir);
        let node = self.node(id)?;
        self.permit(req, &node, Operation::List, "opendir")?;
        let held = self.fds.hold()?;
        let path = self.fds.path(&node)?;
        let fd = self.fds.retrying(|| lower::open_dir(path.as_fd()))?;
        let handle =
            self.dirs.insert(OpenDir { stream: Mutex::new(DirStream::new(fd)), _held: held });
        Ok(Opened { handle, flags: OpenReply::empty(), backing: None })
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
        let mut looked_up = LookedUp { view: self, nodes: SmallVec::new() };
        let filled = self.node(id).and_then(|node| {
            let open = self.dirs.get(handle)?;
            let mut stream = open.stream.lock();
            stream.seek(offset)?;
            let lister = Lister { view: self, req, node: &node, plus };
            lister.fill(&mut stream, &mut reply, &mut looked_up)
        });
        let delivered = match filled {
            Ok(()) => reply.send(),
            Err(e) => {
                reply.error(e);
                false
            }
        };
        if delivered {
            looked_up.delivered();
        }
    }

    pub(crate) fn do_releasedir(&self, handle: FileHandle) {
        drop(self.dirs.remove(handle));
    }

    pub(crate) fn do_fsyncdir(&self, handle: FileHandle, data_only: bool) -> Result<(), Errno> {
        let open = self.dirs.get(handle)?;
        let stream = open.stream.lock();
        if data_only { rustix::fs::fdatasync(stream.fd()) } else { rustix::fs::fsync(stream.fd()) }
    }
}

/// Nodes that a reply counts a lookup of. The kernel counts them when it takes the reply; if it does
/// not, the lookups are taken back.
struct LookedUp<'a> {
    view: &'a View,
    /// As many as fit a reply of 4 KiB, the kernel's first size; more are kept on the heap.
    nodes: SmallVec<[NodeId; 32]>,
}

impl LookedUp<'_> {
    fn delivered(mut self) {
        self.nodes.clear();
    }
}

impl Drop for LookedUp<'_> {
    fn drop(&mut self) {
        for node in &self.nodes {
            self.view.do_forget(*node, 1);
        }
    }
}

struct Lister<'a> {
    view: &'a View,
    req: &'a Request<'a>,
    node: &'a std::sync::Arc<Node>,
    plus: bool,
}

impl Lister<'_> {
    fn fill(
        &self,
        stream: &mut DirStream,
        reply: &mut DirReply<'_>,
        looked_up: &mut LookedUp<'_>,
    ) -> Result<(), Errno> {
        let mut empty = true;
        loop {
            match stream.peek() {
                Ok(None) => return Ok(()),
                // What was listed is given; the error comes back with the next request.
                Err(_) if !empty => return Ok(()),
                Err(e) => return Err(e),
                Ok(Some(entry)) => {
                    if !reply.fits(entry.name.to_bytes().len(), self.plus) {
                        return Ok(());
                    }
                    self.add(&entry, reply, looked_up)?;
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
        looked_up: &mut LookedUp<'_>,
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
        if !self.plus && !self.view.admission.policy().can_hide() {
            reply.add(entry.ino, kind, entry.next_offset, name);
            return Ok(());
        }
        let dir_fd = self.view.fds.path(self.node)?;
        let stat = match lower::stat_at(dir_fd.as_fd(), entry.name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e),
        };
        if self.view.is_hidden(self.node, child, &stat)? {
            // The listing is not hidden itself.
            self.view.counters.add(self.req.worker(), Count::hidden, 1);
            return Ok(());
        }
        let ino = stat.attr(self.view.root_dev).ino;
        if !self.plus {
            reply.add(ino, kind, entry.next_offset, name);
            return Ok(());
        }
        let node = self.view.remember(&stat, self.node, child);
        looked_up.nodes.push(node.id);
        let added = reply.add_plus(&self.view.entry(&node, &stat), kind, entry.next_offset, name);
        debug_assert!(added, "it was seen to fit");
        Ok(())
    }
}
