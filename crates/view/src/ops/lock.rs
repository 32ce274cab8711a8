//! Locks: from a request to the owner's description of the lower file.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use tollgate_fuse::{Connection, FileHandle, FileLock, NodeId, Reply, Request, args};

use crate::caller::Callers;
use crate::handles::{is_in_place, is_passthrough};
use crate::locks::{
    Ask, Class, Description, FileLocks, Grant, Kind, OwnerId, Range, Source, Wanted,
};
use crate::lower;
use crate::shares::Taken;
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

/// The lower file of a handle.
struct LowerFile<'a> {
    uid: u32,
    view: &'a View,
    node: &'a Arc<Node>,
    handle: FileHandle,
}

impl Source for LowerFile<'_> {
    fn open(&self, writable: bool) -> Result<Description, Errno> {
        let fds = &self.view.fds;
        let path = fds.path_once(self.node)?;
        let held = fds.hold_for_lock(self.uid)?;
        let open = |access: OFlags| {
            // A lease of somebody outside is broken, but not waited for.
            fds.retrying(|| lower::reopen(path.as_fd(), access | OFlags::NONBLOCK))
        };
        let (fd, writable) = match writable {
            true => match open(OFlags::RDWR) {
                // A program that runs, or a file system that became read-only.
                Err(Errno::TXTBSY | Errno::ROFS) => (open(OFlags::RDONLY), false),
                // An append-only file; nobody writes through this.
                Err(Errno::PERM) => (open(OFlags::RDWR | OFlags::APPEND), true),
                opened => (opened, true),
            },
            false => (open(OFlags::RDONLY), false),
        };
        let fd = fd.map_err(|errno| if errno == Errno::AGAIN { Errno::NOLCK } else { errno })?;
        Ok(Description::new(fd, writable, held))
    }

    fn room(&self) -> Taken {
        self.view.locks.room(self.uid)
    }

    fn callers(&self) -> &dyn Callers {
        self.view.powers.callers()
    }

    fn is_writable(&self) -> bool {
        is_in_place(self.handle)
    }
}

impl View {
    pub(crate) fn do_setlk(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: &args::Setlk,
        reply: Reply<'_, ()>,
    ) {
        self.count(req, Count::other);
        let (node, file, ask) = match self.ask(req, id, args) {
            Ok(found) => found,
            Err(error) => {
                reply.error(error);
                return;
            }
        };
        let source =
            LowerFile { uid: req.caller().uid, view: self, node: &node, handle: args.handle };
        let cached = self.may_be_cached(&node, args.handle, &ask.wanted);
        match self.locks.set(&file, &ask, &source) {
            Ok(()) if cached.is_none() => {
                if !reply.ok(&()) {
                    file.undo(&ask);
                }
            }
            Ok(()) => self.locks.give(Grant { ask, file, reply: reply.detach(), cached }),
            Err(Errno::AGAIN) => {
                let grant = Grant { ask, file, reply: reply.detach(), cached };
                let closes = || self.connection.get().map(Connection::passing);
                self.locks.wait(req.unique(), args.wait, grant, closes);
            }
            Err(error) => {
                reply.error(error);
            }
        }
    }

    fn ask(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: &args::Setlk,
    ) -> Result<(Arc<Node>, Arc<FileLocks>, Ask), Errno> {
        let node = self.node(id)?;
        let class = if args.flock { Class::Whole } else { Class::Ranges };
        let (range, kind) = wanted(&args.lock)?;
        let ask = Ask {
            id: OwnerId { class, owner: args.owner },
            wanted: Wanted { class, range, kind },
            handle: args.handle,
            // The kernel does not say who unlocks.
            pid: if args.lock.pid == 0 { req.caller().pid } else { args.lock.pid },
            tid: req.caller().pid,
            uid: req.caller().uid,
        };
        let file = locks_of(&node)?;
        Ok((node, file, ask))
    }

    pub(crate) fn do_getlk(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: &args::Getlk,
    ) -> Result<FileLock, Errno> {
        self.count(req, Count::other);
        let node = self.node(id)?;
        let file = locks_of(&node)?;
        let (range, kind) = wanted(&args.lock)?;
        let kind = kind.ok_or(Errno::INVAL)?;
        let owner = OwnerId { class: Class::Ranges, owner: args.owner };
        let source =
            LowerFile { uid: req.caller().uid, view: self, node: &node, handle: args.handle };
        // The owner's own locks are not in its way.
        let description = match file.description(owner) {
            Some(own) => own,
            None => Arc::new(source.open(false)?),
        };
        let Some(found) = description.test(range, kind)? else {
            return Ok(FileLock { kind: libc::F_UNLCK.cast_unsigned(), ..args.lock });
        };
        let holder = || file.holder(found.range, kind, owner);
        Ok(FileLock {
            start: found.range.start,
            end: found.range.end,
            kind: number(found.kind),
            // 0: a lock outside the view that belongs to no process.
            pid: found.pid.or_else(holder).unwrap_or(0),
        })
    }

    /// The inode, if the kernel may hold pages that others changed before they gave `wanted` up.
    /// The pages of a passthrough file are the lower file's own.
    fn may_be_cached(
        &self,
        node: &Node,
        handle: FileHandle,
        wanted: &Wanted,
    ) -> Option<(Connection, NodeId)> {
        if wanted.kind.is_none() || is_passthrough(handle) {
            return None;
        }
        Some((self.connection.get()?.clone(), node.id))
    }

    /// A descriptor is closed: locks of the process on the file end.
    pub(crate) fn locks_flushed(&self, id: NodeId, owner: u64) {
        if let Ok(node) = self.node(id)
            && let Some(file) = node.locks.get()
        {
            self.locks.flushed(file, owner);
        }
    }

    /// Nobody has the handle open any more: locks that were taken through it end.
    pub(crate) fn locks_released(&self, node: &Node, handle: FileHandle) {
        if let Some(file) = node.locks.get() {
            self.locks.released(file, handle);
        }
    }
}

/// Directories are locked by the kernel alone, which asks nobody.
fn locks_of(node: &Node) -> Result<Arc<FileLocks>, Errno> {
    if node.kind != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    Ok(Arc::clone(node.locks.get_or_init(Arc::default)))
}

fn wanted(lock: &FileLock) -> Result<(Range, Option<Kind>), Errno> {
    let range = Range::new(lock.start, lock.end).ok_or(Errno::INVAL)?;
    let is = |kind: i32| lock.kind == kind.cast_unsigned();
    match () {
        () if is(libc::F_RDLCK) => Ok((range, Some(Kind::Read))),
        () if is(libc::F_WRLCK) => Ok((range, Some(Kind::Write))),
        () if is(libc::F_UNLCK) => Ok((range, None)),
        () => Err(Errno::INVAL),
    }
}

fn number(kind: Kind) -> u32 {
    match kind {
        Kind::Read => libc::F_RDLCK.cast_unsigned(),
        Kind::Write => libc::F_WRLCK.cast_unsigned(),
    }
}
