//! A name in a directory, as the operations that change names meet it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_fuse::{Name, NodeId};
use tollgate_policy::HEAD_LEN;

use super::subtree::Beneath;
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

    /// The first bytes of what is there.
    pub(super) fn head(&self) -> Result<Option<Vec<u8>>, Errno> {
        let fd = lower::open_path(self.fd.as_fd(), self.name.as_c_str())?;
        lower::read_head(fd.as_fd(), HEAD_LEN)
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
