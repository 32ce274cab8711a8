//! A name in a directory, as the operations that change names meet it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_fuse::{Name, NodeId};
use tollgate_policy::HEAD_LEN;

use super::subtree::{Beneath, Top};
use crate::lower::{self, Stat};
use crate::ops::record::At;
use crate::table::{Node, Table};
use crate::view::View;

/// A name in a directory, with the directory's descriptor.
pub(super) struct Spot<'a> {
    pub(super) dir: Arc<Node>,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) name: Name<'a>,
}

/// A name that exists, and what it leads to.
#[derive(Clone, Copy)]
pub(super) struct Existing<'a> {
    pub(super) spot: &'a Spot<'a>,
    pub(super) node: Option<&'a Arc<Node>>,
    pub(super) stat: &'a Stat,
    /// Where it is: at another name if it was moved already.
    pub(super) here: &'a Spot<'a>,
}

impl<'a> Existing<'a> {
    pub(super) fn at(spot: &'a Spot<'a>, node: Option<&'a Arc<Node>>, stat: &'a Stat) -> Self {
        Self { spot, node, stat, here: spot }
    }

    /// Its first bytes.
    ///
    /// # Errors
    /// `ESTALE` if others have put something else in its place: that would be judged by these bytes.
    pub(super) fn head(&self) -> Result<Option<Vec<u8>>, Errno> {
        let (dir, name) = self.here.below();
        let fd = lower::open_path(dir, name)?;
        if lower::stat_fd(fd.as_fd())?.key() != self.stat.key() {
            return Err(Errno::STALE);
        }
        lower::read_head(fd.as_fd(), HEAD_LEN)
    }

    /// For a walk over what lies below it.
    pub(super) fn below(&self) -> Top<'_> {
        Top { at: self.here.below(), key: self.stat.key() }
    }
}

impl Spot<'_> {
    /// For a walk over what lies below it.
    pub(super) fn below(&self) -> Beneath<'_> {
        (self.fd.as_fd(), self.name.as_c_str())
    }

    /// For the audit log.
    pub(super) fn at(&self) -> At<'_> {
        (&self.dir, self.name)
    }

    /// The node of what was found there.
    pub(super) fn node_of(&self, table: &Table, stat: &Stat) -> Option<Arc<Node>> {
        table.find_at(&stat.key(), &self.dir, self.name)
    }

    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        lower::stat_at(self.fd.as_fd(), self.name.as_c_str())
    }

    pub(super) fn stat_if_there(&self) -> Result<Option<Stat>, Errno> {
        match self.stat() {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl View {
    pub(super) fn spot<'a>(&self, parent: NodeId, name: Name<'a>) -> Result<Spot<'a>, Errno> {
        let dir = self.node(parent)?;
        let fd = self.fds.path(&dir)?;
        self.settle_place(&dir)?;
        Ok(Spot { dir, fd, name })
    }
}
