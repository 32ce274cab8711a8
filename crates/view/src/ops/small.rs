//! Opening small files that are only read: see [`crate::small`].

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_fuse::{Name, NodeId, OpenReply, Opened, Request};

use crate::ahead::Next;
use crate::content::open::How;
use crate::lower::{self, Stat};
use crate::mode::{Io, IoMode, Pages};
use crate::small::MAX_BYTES;
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

/// Where an opener finds the content.
enum Content {
    /// In the pages that the kernel has.
    Cached,
    /// The kernel has to drop its pages and ask.
    Stale,
}

impl View {
    /// Opens `node`, which is only read and for which passthrough would do, from the view's page
    /// cache; `None` where it has to be opened in another way. It was `seen` in this request.
    pub(crate) fn open_small(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        io: &mut Io,
        (fd, stat): (Arc<OwnedFd>, Stat),
    ) -> Result<Option<Opened>, Errno> {
        let content = match (io.is_small(), io.is_open() || io.is_busy()) {
            (true, _) => joined(&stat, io),
            (false, true) => return Ok(None),
            // Who locks a file expects others to write it.
            (false, false) if node.locks.get().is_some() => return Ok(None),
            (false, false) => match self.first(req, node, io, fd, &stat)? {
                Some(content) => content,
                None => return Ok(None),
            },
        };
        io.opened_small();
        self.count(req, Count::open_cached);
        let flags = match content {
            Content::Cached => OpenReply::NOFLUSH | OpenReply::KEEP_CACHE,
            Content::Stale => {
                self.forget_attributes(node);
                OpenReply::NOFLUSH
            }
        };
        let handle = self.passthrough_handles.next_small(req.worker());
        Ok(Some(Opened { handle, flags, backing: None }))
    }

    /// Nobody has the file open.
    fn first(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        io: &mut Io,
        fd: Arc<OwnedFd>,
        stat: &Stat,
    ) -> Result<Option<Content>, Errno> {
        let version = stat.version();
        // Who opens a file that changed gets its new size, however it is opened.
        if matches!(io.pages, Pages::Of(before) | Pages::Dropped(before) if before != version) {
            io.pages = Pages::Unknown;
            self.forget_attributes(node);
        }
        if !self.small.suits(stat) {
            return Ok(None);
        }
        let content = match io.pages {
            Pages::Of(before) if before == version => {
                if io.take_read_ahead() {
                    self.count(req, Count::read_ahead_used);
                    self.ahead.used();
                }
                Content::Cached
            }
            before => match self.content(node, &fd, stat, before)? {
                Some(content) => {
                    if before == Pages::Nothing {
                        self.ahead.missed(node);
                    }
                    content
                }
                None => return Ok(None),
            },
        };
        // The file may lose its name, and the kernel its pages, while it is open.
        if !io.keeps() {
            let Some(held) = self.fds.hold_if_cheap() else { return Ok(None) };
            io.keep(held);
            node.fd.lock().get_or_insert(fd);
        }
        io.pages = match content {
            Content::Cached => Pages::Of(version),
            Content::Stale => Pages::Dropped(version),
        };
        self.sweeper.opened_small(node);
        Ok(Some(content))
    }

    /// Hands the content of the file `name` in `dir` to the kernel before anybody opens it, unless it
    /// is to be left. Returns which file that is, and whether it was handed over; `None` for one that
    /// cannot be opened as it is known.
    pub(crate) fn read_ahead(
        &self,
        dir: &Arc<Node>,
        name: &CStr,
        next: Next,
    ) -> Option<(NodeId, bool)> {
        let parent = self.fds.path(dir).ok()?;
        let known = |stat: &Stat| self.table.find_at(&stat.key(), dir, Name::new(name).ok()?);
        if next == Next::Leave {
            let stat = lower::stat_at(parent.as_fd(), name).ok()?;
            return Some((known(&stat)?.id, false));
        }
        let fd = self.fds.retrying(|| lower::open_path(parent.as_fd(), name)).ok()?;
        let stat = lower::stat_fd(fd.as_fd()).ok()?;
        let node = known(&stat)?;
        let is_read = self.hand_over(&node, Arc::new(fd), &stat).unwrap_or(false);
        if is_read {
            self.counters.add(0, Count::read_ahead, 1);
        }
        Some((node.id, is_read))
    }

    fn hand_over(&self, node: &Arc<Node>, fd: Arc<OwnedFd>, stat: &Stat) -> Result<bool, Errno> {
        if !self.small.suits(stat) || node.locks.get().is_some() {
            return Ok(false);
        }
        let trivial = self.admission.is_trivial();
        let subject = if trivial { None } else { self.subject_to_open(node, stat, true)? };
        if subject.as_ref().and_then(How::of).is_some() {
            return Ok(false);
        }
        let mut io = node.io.lock();
        // Who opens it meanwhile waits, and finds it read.
        if io.is_open()
            || io.is_busy()
            || io.pages != Pages::Nothing
            || self.mode_of(&io, subject.as_ref()) != IoMode::Passthrough
        {
            return Ok(false);
        }
        let Some(held) = self.fds.hold_if_cheap() else { return Ok(false) };
        let Some(Content::Cached) = self.content(node, &fd, stat, Pages::Nothing)? else {
            return Ok(false);
        };
        // For the OPEN that follows, as long as after one.
        if !io.keeps() {
            io.keep(held);
            node.fd.lock().get_or_insert(fd);
        }
        let lingers = io.is_read_ahead(stat.version());
        drop(io);
        if lingers {
            self.sweeper.linger(0, node);
        }
        Ok(true)
    }

    /// Reads the file and, if the kernel has nothing of it, hands it over. `None` if somebody may
    /// be about to change it.
    fn content(
        &self,
        node: &Node,
        path: &OwnedFd,
        stat: &Stat,
        before: Pages,
    ) -> Result<Option<Content>, Errno> {
        let file = self.fds.retrying(|| lower::reopen_once(path.as_fd()))?;
        if !lower::is_not_written(file.as_fd()) {
            return Ok(None);
        }
        // Of a file that changed the kernel has old attributes, and drops new pages when it
        // notices.
        if before != Pages::Nothing {
            return Ok(Some(Content::Stale));
        }
        let mut buffer = [MaybeUninit::<u8>::uninit(); MAX_BYTES];
        let (read, _) = rustix::io::pread(&file, &mut buffer[..], 0)?;
        if read.len() as u64 != stat.size() {
            return Ok(None);
        }
        // INIT comes before every other request.
        let connection = self.connection.get().ok_or(Errno::IO)?;
        let stored = connection.store(node.id, 0, read);
        Ok(Some(if stored.is_ok() { Content::Cached } else { Content::Stale }))
    }

    /// Makes the kernel ask for the size before the next read.
    fn forget_attributes(&self, node: &Node) {
        if let Some(connection) = self.connection.get() {
            // Attributes alone: this waits for no other request. The kernel drops the pages when
            // it gets the reply.
            let _ = connection.invalidate_inode(node.id, -1, 0);
        }
    }
}

/// Somebody has it open already.
fn joined(stat: &Stat, io: &mut Io) -> Content {
    let version = stat.version();
    if io.pages == Pages::Of(version) {
        return Content::Cached;
    }
    // Whoever opened it first may not have dropped the old pages yet.
    if io.pages != Pages::Dropped(version) {
        io.pages = Pages::Unknown;
    }
    Content::Stale
}
