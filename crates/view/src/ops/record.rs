//! What the audit log is told.

use std::sync::Arc;

use tollgate_fuse::{Caller, NodeId, OpenReply, Request};
use tollgate_policy::RuleId;

use crate::admission::{Refusal, Subject};
use crate::audit::{AuditLevel, Event, Outcome};
use crate::table::Node;
use crate::view::View;

/// What a record is about.
#[derive(Clone, Copy, Debug)]
struct About<'a> {
    path: &'a [u8],
    inode: u64,
    rule: Option<RuleId>,
    /// Offset and bytes.
    span: Option<(u64, u64)>,
}

impl View {
    pub(crate) fn record_refusal(
        &self,
        req: &Request<'_>,
        refusal: Refusal,
        what: &'static str,
        path: &[u8],
    ) {
        let about = About { path, inode: 0, rule: refusal.rule, span: None };
        let outcome = Outcome::Refused(refusal.errno);
        self.record(AuditLevel::Refused, req.caller(), what, outcome, about);
    }

    pub(crate) fn record_open(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        what: &'static str,
        flags: OpenReply,
        subject: Option<&Subject<'_>>,
    ) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let path = subject.map_or_else(|| self.audit_path(node), |s| s.path().to_vec());
        let outcome = if flags.contains(OpenReply::PASSTHROUGH) {
            Outcome::Passthrough
        } else {
            Outcome::Userspace
        };
        let about = About { path: &path, inode: self.shown_ino(node), rule: None, span: None };
        self.record(AuditLevel::Opens, req.caller(), what, outcome, about);
    }

    /// A name was made, removed or moved.
    pub(crate) fn record_name(&self, req: &Request<'_>, what: &'static str, node: &Arc<Node>) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let path = self.audit_path(node);
        let about = About { path: &path, inode: self.shown_ino(node), rule: None, span: None };
        self.record(AuditLevel::Opens, req.caller(), what, Outcome::Done, about);
    }

    /// Bytes travelled through this process.
    pub(crate) fn record_span(
        &self,
        req: &Request<'_>,
        id: NodeId,
        what: &'static str,
        offset: u64,
        bytes: u64,
    ) {
        if !self.audits(AuditLevel::All) {
            return;
        }
        let Ok(node) = self.node(id) else { return };
        let path = self.audit_path(&node);
        let inode = self.shown_ino(&node);
        let about = About { path: &path, inode, rule: None, span: Some((offset, bytes)) };
        self.record(AuditLevel::All, req.caller(), what, Outcome::Userspace, about);
    }

    fn audits(&self, level: AuditLevel) -> bool {
        self.audit.as_ref().is_some_and(|audit| audit.level() >= level)
    }

    /// Hands a record to the audit log, if it wants records of this level.
    fn record(
        &self,
        level: AuditLevel,
        caller: Caller,
        operation: &'static str,
        outcome: Outcome,
        about: About<'_>,
    ) {
        let Some(audit) = self.audit.as_ref().filter(|audit| audit.level() >= level) else {
            return;
        };
        let exe = self.admission.caller_executable(caller);
        audit.record(&Event {
            operation,
            outcome,
            uid: caller.uid,
            gid: caller.gid,
            pid: caller.pid,
            exe: exe.as_deref(),
            inode: about.inode,
            path: about.path,
            rule: self.admission.rule_name(about.rule),
            offset: about.span.map(|(offset, _)| offset),
            bytes: about.span.map(|(_, bytes)| bytes),
        });
    }

    /// One path of `node`; empty if it has none any more.
    fn audit_path(&self, node: &Arc<Node>) -> Vec<u8> {
        self.paths.of(node).ok().and_then(|mut paths| paths.pop()).unwrap_or_default()
    }

    /// The inode number that stat(2) on the view gives.
    fn shown_ino(&self, node: &Node) -> u64 {
        node.key.shown_ino(self.root_dev)
    }
}
