//! Making, removing and moving names.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use tollgate_fuse::{Entry, Name, NodeId, Request};
use tollgate_policy::{HEAD_LEN, InodeFacts, Kind, Operation, Policy};

use crate::admission::{Refusal, Subject};
use crate::fds::Descriptors;
use crate::idle::retire_now;
use crate::lower::{self, DirStream, ProcPath, Stat};
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

/// Entries that a directory rename looks at, below it, to see that no decision gets weaker. A
/// larger tree is not renamed but copied by the caller (`EXDEV`).
const MAX_SUBTREE: usize = 20_000;

/// A name in a directory, with the directory's descriptor.
struct Spot<'a> {
    dir: Arc<Node>,
    fd: Arc<OwnedFd>,
    name: Name<'a>,
}

impl Spot<'_> {
    fn stat(&self) -> Result<Stat, Errno> {
        lower::stat_at(self.fd.as_fd(), self.name.as_c_str())
    }

    fn stat_if_there(&self) -> Result<Option<Stat>, Errno> {
        match self.stat() {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl View {
    fn spot<'a>(&self, parent: NodeId, name: Name<'a>) -> Result<Spot<'a>, Errno> {
        let dir = self.node(parent)?;
        let fd = self.fds.path(&dir)?;
        Ok(Spot { dir, fd, name })
    }

    /// Makes a name by `make` as the caller and returns its entry.
    fn make_entry(
        &self,
        req: &Request<'_>,
        (parent, name): (NodeId, Name<'_>),
        umask: u32,
        kind: FileType,
        make: impl Fn(BorrowedFd<'_>, &CStr) -> Result<(), Errno>,
    ) -> Result<Entry, Errno> {
        self.count(req, Count::change_names);
        let spot = self.spot(parent, name)?;
        if !self.admission.is_trivial() {
            let path = self.paths.of_child(&spot.dir, name)?;
            let subject = self.admission.new_name(path, kind.as_raw_mode());
            self.permit_subject(req, &subject, [Operation::Create], "create")?;
        }
        self.make(req, umask, || make(spot.fd.as_fd(), name.as_c_str()))?;
        let stat = spot.stat()?;
        let (node, _) = self.remember(&stat, &spot.dir, name);
        self.record_name(req, "create", &node);
        Ok(self.entry(&spot.dir, &node, &stat))
    }

    pub(crate) fn do_mknod(
        &self,
        req: &Request<'_>,
        at: (NodeId, Name<'_>),
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Entry, Errno> {
        let kind = FileType::from_raw_mode(mode);
        let bits = Mode::from_raw_mode(mode & 0o7777);
        self.make_entry(req, at, umask, kind, |dir, name| {
            rustix::fs::mknodat(dir, name, kind, bits, lower::decode_device(rdev))
        })
    }

    pub(crate) fn do_mkdir(
        &self,
        req: &Request<'_>,
        at: (NodeId, Name<'_>),
        mode: u32,
        umask: u32,
    ) -> Result<Entry, Errno> {
        let bits = Mode::from_raw_mode(mode & 0o7777);
        self.make_entry(req, at, umask, FileType::Directory, |dir, name| {
            rustix::fs::mkdirat(dir, name, bits)
        })
    }

    pub(crate) fn do_symlink(
        &self,
        req: &Request<'_>,
        at: (NodeId, Name<'_>),
        target: &CStr,
    ) -> Result<Entry, Errno> {
        self.make_entry(req, at, 0, FileType::Symlink, |dir, name| {
            rustix::fs::symlinkat(target, dir, name)
        })
    }

    pub(crate) fn do_remove(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        directory: bool,
    ) -> Result<(), Errno> {
        self.count(req, Count::change_names);
        let what = if directory { "rmdir" } else { "unlink" };
        let spot = self.spot(parent, name)?;
        let stat = spot.stat()?;
        let node = self.table.find(&stat.key());
        self.permit_at(req, &spot, node.as_ref(), &stat, Operation::Write, what)?;
        if directory {
            self.admit_no_mount(req, &spot, what)?;
        }
        let last = self.before_last_name(&spot, node.as_ref(), &stat)?;
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let removed = rustix::fs::unlinkat(spot.fd.as_fd(), name.as_c_str(), flags);
        last.settle(removed.is_ok());
        removed?;
        if let Some(node) = &node {
            self.record_name(req, what, node);
            node.gone_from(&spot.dir, name);
        }
        Ok(())
    }

    /// Asks the policy about a name that exists, and about every other name of its inode.
    fn permit_at(
        &self,
        req: &Request<'_>,
        spot: &Spot<'_>,
        node: Option<&Arc<Node>>,
        stat: &Stat,
        operation: Operation,
        what: &'static str,
    ) -> Result<(), Errno> {
        if self.admission.is_trivial() {
            return Ok(());
        }
        let subject = self.subject_at(spot, node, stat)?;
        self.permit_subject(req, &subject, [operation], what)
    }

    /// What the policy judges for the name at `spot`, its path first.
    fn subject_at(
        &self,
        spot: &Spot<'_>,
        node: Option<&Arc<Node>>,
        stat: &Stat,
    ) -> Result<Subject<'_>, Errno> {
        let here = self.paths.of_child(&spot.dir, spot.name)?;
        let mut others = node.map(|node| self.paths.of(node)).transpose()?.unwrap_or_default();
        others.retain(|path| *path != here);
        let read_head = || {
            let fd = lower::open_path(spot.fd.as_fd(), spot.name.as_c_str())?;
            lower::read_head(fd.as_fd(), HEAD_LEN)
        };
        self.admission.subject(std::iter::once(here).chain(others), stat, read_head)
    }

    /// The name at `spot` is about to go. If it is the inode's last one and the kernel remembers
    /// the inode, whoever still has it open, or stands in it, needs a way to it that is no name.
    fn before_last_name<'n>(
        &self,
        spot: &Spot<'_>,
        node: Option<&'n Arc<Node>>,
        stat: &Stat,
    ) -> Result<LastName<'n>, Errno> {
        let Some(node) = node else { return Ok(LastName(None)) };
        if stat.nlink() > 1 && !node.is_dir() {
            return Ok(LastName(None));
        }
        if !self.admission.is_trivial() {
            node.keep_path(self.paths.of_child(&spot.dir, spot.name)?);
        }
        let kept = node.fd.lock().clone();
        // Nobody has it open: the registration would only keep the file's space.
        retire_now(node);
        let fd = match kept {
            Some(fd) => fd,
            None => Arc::new(
                self.fds.retrying(|| lower::open_path(spot.fd.as_fd(), spot.name.as_c_str()))?,
            ),
        };
        Descriptors::pin(node, fd);
        Ok(LastName(Some(node)))
    }

    pub(crate) fn do_link(
        &self,
        req: &Request<'_>,
        id: NodeId,
        new_parent: NodeId,
        new_name: Name<'_>,
    ) -> Result<Entry, Errno> {
        self.count(req, Count::change_names);
        let node = self.node(id)?;
        let spot = self.spot(new_parent, new_name)?;
        let _names = self.names.read();
        if !self.admission.is_trivial() {
            self.admit_link(req, &node, &spot)?;
        }
        let from = self.fds.path_once(&node)?;
        link_fd(from.as_fd(), &spot)?;
        let stat = spot.stat()?;
        let (known, _) = self.remember(&stat, &spot.dir, new_name);
        known.unpin();
        self.record_name(req, "link", &known);
        Ok(self.entry(&spot.dir, &known, &stat))
    }

    /// A further name must not open what the inode's other names keep closed (invariant 3).
    fn admit_link(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        spot: &Spot<'_>,
    ) -> Result<(), Errno> {
        let subject = self.subject_of(node, &self.stat(node)?)?;
        let path = self.paths.of_child(&spot.dir, spot.name)?;
        let target = subject.moved_to(path, &self.admission);
        self.permit_subject(req, &target, [Operation::Create], "link")?;
        if subject.any_name_weakens_to(&target) {
            let refusal = Refusal { errno: Errno::PERM, rule: None };
            return Err(self.refused(req, refusal, "link", target.path()));
        }
        Ok(())
    }

    pub(crate) fn do_rename(
        &self,
        req: &Request<'_>,
        (parent, name): (NodeId, Name<'_>),
        (new_parent, new_name): (NodeId, Name<'_>),
        flags: u32,
    ) -> Result<(), Errno> {
        self.count(req, Count::change_names);
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let (from, to) = (self.spot(parent, name)?, self.spot(new_parent, new_name)?);
        let stat = from.stat()?;
        let target = to.stat_if_there()?;
        let moves_dir = [Some(&stat), target.as_ref()]
            .into_iter()
            .flatten()
            .any(|s| s.file_type() == FileType::Directory);
        let (_shared, _exclusive) = if moves_dir {
            (None, Some(self.names.write()))
        } else {
            (Some(self.names.read()), None)
        };
        let node = self.table.find(&stat.key());
        let victim = target.as_ref().and_then(|t| self.table.find(&t.key()));
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if !self.admission.is_trivial() {
            self.admit_rename(req, (&from, node.as_ref(), &stat), &to)?;
            if let Some(target) = &target {
                self.permit_at(req, &to, victim.as_ref(), target, Operation::Write, "rename")?;
                if exchange {
                    self.admit_rename(req, (&to, victim.as_ref(), target), &from)?;
                }
            }
        }
        if moves_dir {
            self.admit_no_mount(req, &from, "rename")?;
            self.admit_no_mount(req, &to, "rename")?;
        }
        let last = match &target {
            Some(target) if !exchange && target.key() != stat.key() => {
                self.before_last_name(&to, victim.as_ref(), target)?
            }
            _ => LastName(None),
        };
        let renamed = rustix::fs::renameat_with(
            from.fd.as_fd(),
            name.as_c_str(),
            to.fd.as_fd(),
            new_name.as_c_str(),
            flags,
        );
        last.settle(renamed.is_ok());
        renamed?;
        self.note_rename(&from, &to, node.as_ref(), victim.as_ref(), exchange);
        if moves_dir {
            self.paths.directory_moved();
            // Names below it may be hidden now, or no longer.
            if let Some(watch) = self.watch.as_ref().filter(|_| self.admission.policy().can_hide())
            {
                watch.drop_everything();
            }
        }
        if node.as_ref().is_some_and(|node| node.io.lock().is_open()) {
            self.written_in(&to.dir);
        }
        if let Some(node) = &node {
            self.record_name(req, "rename", node);
        }
        Ok(())
    }

    /// Refuses to move or remove a directory that something is mounted on, or below. The kernel
    /// does so for the mount point itself, where it sees the mount; a directory above it would
    /// take the mount along to a name that other rules may cover.
    fn admit_no_mount(
        &self,
        req: &Request<'_>,
        spot: &Spot<'_>,
        what: &'static str,
    ) -> Result<(), Errno> {
        if self.mount_points.is_empty() {
            return Ok(());
        }
        let path = self.paths.of_child(&spot.dir, spot.name)?;
        let moved = Path::new(OsStr::from_bytes(&path));
        if self.mount_points.iter().any(|point| point.starts_with(moved)) {
            let refusal = Refusal { errno: Errno::BUSY, rule: None };
            return Err(self.refused(req, refusal, what, &path));
        }
        Ok(())
    }

    /// Brings the known names up to date after a rename.
    fn note_rename(
        &self,
        from: &Spot<'_>,
        to: &Spot<'_>,
        node: Option<&Arc<Node>>,
        victim: Option<&Arc<Node>>,
        exchange: bool,
    ) {
        let same = node.zip(victim).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        // Two names of one inode: rename(2) leaves both.
        if same && !exchange {
            return;
        }
        if let Some(victim) = victim {
            victim.gone_from(&to.dir, to.name);
            if exchange {
                victim.now_at(&from.dir, from.name);
            }
        }
        if let Some(node) = node {
            node.gone_from(&from.dir, from.name);
            node.now_at(&to.dir, to.name);
        }
    }

    /// May the inode at `from` take the name `to`? A weaker decision is `EXDEV`, so that `mv`
    /// copies through the view, where each byte is judged again.
    fn admit_rename(
        &self,
        req: &Request<'_>,
        (from, node, stat): (&Spot<'_>, Option<&Arc<Node>>, &Stat),
        to: &Spot<'_>,
    ) -> Result<(), Errno> {
        let subject = self.subject_at(from, node, stat)?;
        self.permit_subject(req, &subject, [Operation::Write], "rename")?;
        let new_path = self.paths.of_child(&to.dir, to.name)?;
        let target = subject.moved_to(new_path, &self.admission);
        self.permit_subject(req, &target, [Operation::Create], "rename")?;
        let is_dir = stat.file_type() == FileType::Directory;
        let weaker = subject.first_name_weakens_to(&target)
            || is_dir && self.subtree_weakens(from, subject.path(), target.path())?;
        if weaker {
            let refusal = Refusal { errno: Errno::XDEV, rule: None };
            return Err(self.refused(req, refusal, "rename", target.path()));
        }
        Ok(())
    }

    /// Would anything below the directory at `spot` get a weaker decision by moving from `old` to
    /// `new`? Also true when the tree is too large to tell.
    fn subtree_weakens(&self, spot: &Spot<'_>, old: &[u8], new: &[u8]) -> Result<bool, Errno> {
        let policy = self.admission.policy();
        if policy.subtree_move_is_neutral(old, new) {
            return Ok(false);
        }
        let top = lower::open_path(spot.fd.as_fd(), spot.name.as_c_str())?;
        let mut pending = vec![(top, Vec::new())];
        let mut seen = 0;
        while let Some((dir, below)) = pending.pop() {
            let mut stream = DirStream::new(lower::open_dir(dir.as_fd())?);
            while let Some(entry) = stream.peek()? {
                if entry.child_name().is_some() {
                    seen += 1;
                    let stat = lower::stat_at(dir.as_fd(), entry.name)?;
                    let rest = [&below[..], b"/", entry.name.to_bytes()].concat();
                    let (from, to) = ([old, &rest].concat(), [new, &rest].concat());
                    if seen > MAX_SUBTREE || may_weaken(policy, &from, &to, &stat) {
                        return Ok(true);
                    }
                    if stat.file_type() == FileType::Directory {
                        pending.push((lower::open_path(dir.as_fd(), entry.name)?, rest));
                    }
                }
                stream.advance();
            }
        }
        Ok(false)
    }
}

/// Would an inode get weaker by moving from path `from` to `to`? Also true where it takes a look
/// into the file to tell.
fn may_weaken(policy: &Policy, from: &[u8], to: &[u8], stat: &Stat) -> bool {
    let inode = InodeFacts { kind: Kind::from_mode(stat.mode()), size: stat.size(), head: None };
    let (from, to) = (policy.at(from), policy.at(to));
    [&from, &to].into_iter().any(|rules| rules.needs_head(inode.kind, inode.size))
        || from.weakens(&inode, &to, &inode)
}

/// An inode that may lose its last name, pinned until the outcome is known.
struct LastName<'n>(Option<&'n Arc<Node>>);

impl LastName<'_> {
    fn settle(self, gone: bool) {
        if let (Some(node), false) = (self.0, gone) {
            node.unpin();
        }
    }
}

/// Gives what `from` names the name at `spot`. The direct form needs a capability; the other goes
/// through the descriptor's magic link, which leads to the very inode.
fn link_fd(from: BorrowedFd<'_>, spot: &Spot<'_>) -> Result<(), Errno> {
    let (dir, name) = (spot.fd.as_fd(), spot.name.as_c_str());
    match rustix::fs::linkat(from, c"", dir, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT | Errno::PERM) => {
            let path = ProcPath::of(from);
            rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), dir, name, AtFlags::SYMLINK_FOLLOW)
        }
        result => result,
    }
}
