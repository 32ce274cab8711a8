//! The lower file of a node, for who opens it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::budget::Held;
use crate::lower;
use crate::ops::access::Access;
use crate::table::Node;
use crate::view::View;

/// The lower file of a node, opened as far as somebody needs it.
pub(super) struct LowerFile<'a> {
    view: &'a View,
    pub(super) node: &'a Arc<Node>,
    /// A real descriptor, from creating the file or from [`LowerFile::open_early`].
    pub(super) fd: Option<OwnedFd>,
    /// What counts that descriptor, if it was opened early.
    pub(super) held: Option<Held>,
    /// One that names it.
    path: Option<Arc<OwnedFd>>,
    /// One for reading and writing, to show to a registrar.
    pub(super) shown: Option<OwnedFd>,
    /// Whether it is append-only, if that was looked at.
    pub(super) append_only: Option<bool>,
}

impl<'a> LowerFile<'a> {
    pub(super) fn of(
        view: &'a View,
        node: &'a Arc<Node>,
        fd: Option<OwnedFd>,
        path: Option<Arc<OwnedFd>>,
    ) -> Self {
        // None is made so.
        let append_only = fd.is_some().then_some(false);
        Self { view, node, fd, held: None, path, shown: None, append_only }
    }

    /// A descriptor that names the file.
    pub(super) fn path(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(path) = &self.path {
            return Ok(Arc::clone(path));
        }
        let path = self.view.fds.path_once(self.node)?;
        Ok(Arc::clone(self.path.insert(path)))
    }

    /// The same of the file that `fd` was opened on.
    pub(super) fn naming(&self, fd: &OwnedFd) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(path) = &self.path {
            return Ok(Arc::clone(path));
        }
        self.view.fds.retrying(|| lower::reopen(fd.as_fd(), OFlags::PATH)).map(Arc::new)
    }

    /// A descriptor that names the file, to register: the kernel opens the backing file anew for
    /// each opener. Never one that can write: it would outlive the caller's own, and the file could
    /// not be executed meanwhile.
    pub(super) fn nameable(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        match &self.fd {
            Some(fd) => self.naming(fd),
            None => self.path(),
        }
    }

    /// A descriptor open for reading and writing, to show to a registrar: the one of a file just
    /// made, or a new one of what `named` names; `None` if there is no permission.
    pub(super) fn writable(&mut self, named: &OwnedFd) -> Option<BorrowedFd<'_>> {
        if self.fd.is_none() {
            let open = || lower::reopen(named.as_fd(), OFlags::RDWR);
            self.shown = self.view.fds.retrying(open).ok();
        }
        self.fd.as_ref().or(self.shown.as_ref()).map(AsFd::as_fd)
    }

    /// Opens it for a handle of user `uid` before anything else is done.
    pub(super) fn open_early(&mut self, uid: u32, access: Access) -> Result<(), Errno> {
        self.held = Some(self.view.fds.hold(uid)?);
        self.fd = Some(self.real(access)?);
        Ok(())
    }

    /// A descriptor to read and write through. An append-only file opens with `O_APPEND` alone.
    pub(super) fn real(&mut self, access: Access) -> Result<OwnedFd, Errno> {
        if let Some(fd) = self.fd.take() {
            return Ok(fd);
        }
        let path = self.path()?;
        let open = |flags| self.view.fds.retrying(|| lower::reopen(path.as_fd(), flags));
        match open(access.lower()) {
            Err(Errno::PERM) if access.only_appends() => {
                self.append_only = Some(true);
                open(access.lower() | OFlags::APPEND)
            }
            opened => opened,
        }
    }
}
