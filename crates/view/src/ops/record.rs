//! What the audit log is told.
//!
//! Who is told nothing pays a comparison: paths are built, and callers looked up, only for records
//! that the log wants.

use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use tollgate_fuse::{Caller, Name, NodeId, Opened, Request, SetAttr};
use tollgate_policy::Mode;

use crate::admission::Subject;
use crate::audit::{Access, AuditLevel, Detail, Event, FileContent, Outcome};
use crate::handles::has_descriptor;
use crate::table::Node;
use crate::view::View;

/// A name in a directory.
pub(crate) type At<'a> = (&'a Arc<Node>, Name<'a>);

/// What a record is about.
#[derive(Clone, Copy, Debug)]
struct About<'a> {
    path: &'a [u8],
    inode: u64,
    rule: Option<&'a str>,
    detail: Detail<'a>,
}

impl View {
    /// The policy refuses, or would.
    pub(crate) fn record_refusal(
        &self,
        req: &Request<'_>,
        outcome: Outcome,
        rule: Option<&str>,
        what: &'static str,
        path: &[u8],
        detail: Detail<'_>,
    ) {
        let about = About { path, inode: 0, rule, detail };
        self.record(AuditLevel::Refused, req.caller(), what, outcome, about);
    }

    pub(crate) fn record_open(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        what: &'static str,
        asked: OFlags,
        opened: &Opened,
        subject: Option<&Subject<'_>>,
    ) {
        let outcome =
            if has_descriptor(opened.handle) { Outcome::Userspace } else { Outcome::Passthrough };
        self.record_opening(req, node, what, asked, outcome, subject);
    }

    /// The policy allowed an open, and the lower file system did not; returns its error.
    pub(crate) fn failed_open(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        what: &'static str,
        asked: OFlags,
        subject: Option<&Subject<'_>>,
        errno: Errno,
    ) -> Errno {
        self.record_opening(req, node, what, asked, Outcome::Failed(errno), subject);
        errno
    }

    fn record_opening(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        what: &'static str,
        asked: OFlags,
        outcome: Outcome,
        subject: Option<&Subject<'_>>,
    ) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let path = subject.map_or_else(|| self.audit_path(node), |s| s.path().to_vec());
        let about = About {
            path: &path,
            inode: self.shown_ino(node),
            rule: subject.and_then(Subject::mode_rule),
            detail: opening_of(asked, subject),
        };
        self.record(AuditLevel::Opens, req.caller(), what, outcome, about);
    }

    /// A name was made, removed or moved (`to`), or could not be.
    pub(crate) fn record_name(
        &self,
        req: &Request<'_>,
        what: &'static str,
        at: At<'_>,
        to: Option<At<'_>>,
        done: Result<Option<&Arc<Node>>, Errno>,
    ) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let path = |(dir, name): At<'_>| self.paths.of_child(dir, name).unwrap_or_default();
        let (from, to) = (path(at), to.map(path));
        let (outcome, node) = match done {
            Ok(node) => (Outcome::Done, node),
            Err(errno) => (Outcome::Failed(errno), None),
        };
        let about = About {
            path: &from,
            inode: node.map_or(0, |node| self.shown_ino(node)),
            rule: None,
            detail: to.as_deref().map_or(Detail::None, Detail::To),
        };
        self.record(AuditLevel::Opens, req.caller(), what, outcome, about);
    }

    /// The same for a name that could not be made, removed or moved; returns the error.
    pub(crate) fn failed_name(
        &self,
        req: &Request<'_>,
        what: &'static str,
        at: At<'_>,
        to: Option<At<'_>>,
        errno: Errno,
    ) -> Errno {
        self.record_name(req, what, at, to, Err(errno));
        errno
    }

    /// An inode got a further name `to`, or could not; it is not known by that name yet.
    pub(crate) fn record_link(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        (dir, name): At<'_>,
        failed: Option<Errno>,
    ) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let path = self.audit_path(node);
        let to = self.paths.of_child(dir, name).unwrap_or_default();
        let (inode, detail) = (self.shown_ino(node), Detail::To(&to));
        let about = About { path: &path, inode, rule: None, detail };
        let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
        self.record(AuditLevel::Opens, req.caller(), "link", outcome, about);
    }

    /// A file that was to be made in `dir` could not be; returns the error.
    pub(crate) fn failed_create(
        &self,
        req: &Request<'_>,
        (dir, name): At<'_>,
        asked: OFlags,
        errno: Errno,
    ) -> Errno {
        if self.audits(AuditLevel::Opens) {
            let path = self.paths.of_child(dir, name).unwrap_or_default();
            let about = About { path: &path, inode: 0, rule: None, detail: access_of(asked) };
            let failed = Outcome::Failed(errno);
            self.record(AuditLevel::Opens, req.caller(), "create", failed, about);
        }
        errno
    }

    /// What a setattr changed, each thing on its own; with `failed`, what it could not.
    pub(crate) fn record_setattr(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        set: &SetAttr,
        failed: Option<Errno>,
    ) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let owner = (set.uid.is_some() || set.gid.is_some())
            .then_some(("chown", Detail::Owner(set.uid, set.gid)));
        let mode = set.mode.map(|mode| ("chmod", Detail::Mode(mode & 0o7777)));
        let size = set.size.map(|size| ("truncate", Detail::Size(size)));
        // A truncation sets the times along.
        let times = (set.size.is_none() && (set.atime.is_some() || set.mtime.is_some()))
            .then_some(("utimes", Detail::None));
        let path = self.audit_path(node);
        let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
        for (what, detail) in [owner, mode, size, times].into_iter().flatten() {
            let about = About { path: &path, inode: self.shown_ino(node), rule: None, detail };
            self.record(AuditLevel::Opens, req.caller(), what, outcome, about);
        }
    }

    /// An extended attribute was set or removed, or could not be.
    pub(crate) fn record_attribute(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        what: &'static str,
        attribute: &[u8],
        failed: Option<Errno>,
    ) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let path = self.audit_path(node);
        let detail = Detail::Attribute(attribute);
        let about = About { path: &path, inode: self.shown_ino(node), rule: None, detail };
        let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
        self.record(AuditLevel::Opens, req.caller(), what, outcome, about);
    }

    /// Space of a file was allocated, which may have made it longer, or given up; or could not be.
    pub(crate) fn record_fallocate(
        &self,
        req: &Request<'_>,
        id: NodeId,
        (offset, bytes): (u64, u64),
        failed: Option<Errno>,
    ) {
        if !self.audits(AuditLevel::Opens) {
            return;
        }
        let Ok(node) = self.node(id) else { return };
        let (path, inode) = (self.audit_path(&node), self.shown_ino(&node));
        let about =
            About { path: &path, inode, rule: None, detail: Detail::Span { offset, bytes } };
        let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
        self.record(AuditLevel::Opens, req.caller(), "fallocate", outcome, about);
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
        let detail = Detail::Span { offset, bytes };
        let about = About { path: &path, inode: self.shown_ino(&node), rule: None, detail };
        self.record(AuditLevel::All, req.caller(), what, Outcome::Userspace, about);
    }

    pub(super) fn audits(&self, level: AuditLevel) -> bool {
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
            rule: about.rule,
            detail: about.detail,
        });
    }

    /// One path of `node`; empty if it has none any more.
    fn audit_path(&self, node: &Arc<Node>) -> Vec<u8> {
        self.paths.of(node).ok().and_then(|mut paths| paths.pop()).unwrap_or_default()
    }

    /// The inode number that stat(2) on the view gives.
    pub(crate) fn shown_ino(&self, node: &Node) -> u64 {
        node.key.shown_ino(self.root_dev)
    }
}

/// What an open asks for.
pub(crate) fn access_of(asked: OFlags) -> Detail<'static> {
    Detail::Access(access(asked))
}

fn access(asked: OFlags) -> Access {
    Access::from_flags(asked.bits().cast_signed())
}

/// What an open asks for, and of what.
fn opening_of(asked: OFlags, subject: Option<&Subject<'_>>) -> Detail<'static> {
    let content = match subject.map(Subject::mode) {
        Some(Mode::Redacted) => FileContent::Redacted,
        Some(Mode::Sealed) => FileContent::Sealed,
        Some(Mode::Userspace) => FileContent::Watched,
        Some(Mode::Passthrough) | None => FileContent::Lower,
    };
    Detail::Access(access(asked).of(content))
}
