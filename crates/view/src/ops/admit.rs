//! From a node to a verdict: what the operations ask before they act.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_fuse::{Name, Request};
use tollgate_policy::{HEAD_LEN, Operation};

use crate::admission::{Refusal, Subject};
use crate::lower::{self, Stat};
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

impl View {
    /// What the policy judges, for an inode that exists and has the attributes `stat`.
    pub(crate) fn subject_of(&self, node: &Arc<Node>, stat: &Stat) -> Result<Subject<'_>, Errno> {
        let read_head = || lower::read_head(self.fds.path_once(node)?.as_fd(), HEAD_LEN);
        self.admission.subject(self.paths.of(node)?, stat, read_head)
    }

    /// Checks `operation` on an inode that exists; nothing to do if the policy cannot refuse.
    pub(crate) fn permit(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        operation: Operation,
        what: &'static str,
    ) -> Result<(), Errno> {
        if self.admission.is_trivial() {
            return Ok(());
        }
        let subject = self.subject_of(node, &self.stat(node)?)?;
        self.permit_subject(req, &subject, [operation], what)
    }

    pub(crate) fn permit_subject(
        &self,
        req: &Request<'_>,
        subject: &Subject<'_>,
        operations: impl IntoIterator<Item = Operation>,
        what: &'static str,
    ) -> Result<(), Errno> {
        self.admission
            .check(subject, operations, req.caller())
            .map_err(|refusal| self.refused(req, refusal, what, subject.path()))
    }

    /// Counts and records a refusal; returns its error.
    pub(crate) fn refused(
        &self,
        req: &Request<'_>,
        refusal: Refusal,
        what: &'static str,
        path: &[u8],
    ) -> Errno {
        let count = match refusal.errno {
            Errno::ROFS => Count::refused_read_only,
            Errno::XDEV | Errno::PERM | Errno::BUSY => Count::refused_weakening,
            _ => Count::refused_deny,
        };
        self.count(req, count);
        self.record_refusal(req, refusal, what, path);
        refusal.errno
    }

    pub(crate) fn is_hidden(
        &self,
        dir: &Arc<Node>,
        name: Name<'_>,
        stat: &Stat,
    ) -> Result<bool, Errno> {
        if !self.admission.policy().can_hide() {
            return Ok(false);
        }
        Ok(self.admission.is_hidden(&self.paths.of_child(dir, name)?, stat.mode()))
    }
}
