//! Making files.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode as Permissions, OFlags};
use rustix::io::Errno;
use tollgate_fuse::{Created, Name, NodeId, Opened, Request};
use tollgate_policy::Operation;

use crate::admission::Subject;
use crate::content::open::How;
use crate::fds::Descriptors;
use crate::lower::{self, Stat};
use crate::ops::access::Access;
use crate::ops::lower_file::LowerFile;
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;
use crate::watched::Level;

/// The type bits of a regular file's mode.
const S_IFREG: u32 = libc::S_IFREG;

impl View {
    /// The flags for making a file that `access` asks for. What a registrar takes has to be open for
    /// both, and a file that was made without permission to write cannot be opened so again.
    fn flags_to_make(&self, access: Access) -> OFlags {
        let flags = access.lower();
        if self.others_register() { (flags - OFlags::ACCMODE) | OFlags::RDWR } else { flags }
    }

    pub(crate) fn do_create(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<Created, Errno> {
        self.count(req, Count::create);
        let dir = self.node(parent)?;
        let access = Access::new(flags);
        // Until it is open, too: who moves the directory looks at the modes of open files.
        let making = self.begin_to_make(req, &dir);
        let subject = self.admit_new(req, &dir, Some(name))?;
        self.written_in(&dir);
        let dir_fd = self.fds.path(&dir)?;
        // Always exclusively: a file that exists was not checked for this caller. ESTALE makes the
        // kernel look the name up again and take the way of an open.
        let access_below = match subject.as_ref().and_then(How::of) {
            Some(_) => access.made_new(),
            None => access,
        };
        let wanted =
            self.flags_to_make(access_below) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let fd = self.make(req, umask, || {
            rustix::fs::openat(
                dir_fd.as_fd(),
                name.as_c_str(),
                wanted,
                Permissions::from_raw_mode(mode & 0o7777),
            )
        });
        if matches!(fd, Err(Errno::EXIST)) {
            // Names may have to be searched for.
            drop(making);
            self.refuse_hidden(req, (&dir, dir_fd.as_fd()), name, "create")?;
        }
        let fd = match fd {
            Err(Errno::EXIST) if !access.flags.contains(OFlags::EXCL) => {
                return Err(Errno::STALE);
            }
            fd => fd.map_err(|errno| self.failed_create(req, (&dir, name), access.flags, errno))?,
        };
        let around = dir.watched.level();
        self.raised.by_mode(mode);
        let stat = lower::stat_fd(fd.as_fd())?;
        let (node, _) = self.remember(&stat, &dir, name);
        node.no_capabilities.made(&stat);
        let opened = self.finish_create(req, &node, access, fd, subject.as_ref());
        // What a view makes of a sealed file is part of making it.
        let made_here = subject.as_ref().and_then(How::of).is_some();
        let opened = opened.inspect_err(|_| unmake(&dir_fd, name, &stat, made_here))?;
        Ok(Created { entry: self.entry(around, &node, &stat, req.caller().pid), opened })
    }

    pub(crate) fn do_tmpfile(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<Created, Errno> {
        self.count(req, Count::create);
        let dir = self.node(parent)?;
        let access = Access::new(flags);
        let subject = self.admit_new(req, &dir, None)?;
        let dir_fd = self.fds.path(&dir)?;
        // O_EXCL here means "may never get a name"; it is passed on.
        let access_below = match subject.as_ref().and_then(How::of) {
            Some(_) => access.made_new(),
            None => access,
        };
        let wanted =
            self.flags_to_make(access_below) | OFlags::TMPFILE | (access.flags & OFlags::EXCL);
        let fd = self.make(req, umask, || {
            rustix::fs::openat(
                dir_fd.as_fd(),
                c".",
                wanted,
                Permissions::from_raw_mode(mode & 0o7777),
            )
        })?;
        self.raised.by_mode(mode);
        let stat = lower::stat_fd(fd.as_fd())?;
        // What fails from here on has to be forgotten: the kernel was told of nothing.
        let kept = self.fds.retrying(|| lower::reopen(fd.as_fd(), OFlags::PATH))?;
        let node = self.table.remember_unnamed(&stat);
        node.no_capabilities.made(&stat);
        Descriptors::pin(&node, Arc::new(kept));
        if let Some(subject) = &subject {
            node.keep_path(subject.path().to_vec());
        }
        let opened = self.finish_create(req, &node, access, fd, subject.as_ref())?;
        // It has no name, so none is cached, and nothing watches it.
        Ok(Created { entry: self.entry(Level::None, &node, &stat, req.caller().pid), opened })
    }

    fn finish_create(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        access: Access,
        fd: OwnedFd,
        subject: Option<&Subject<'_>>,
    ) -> Result<Opened, Errno> {
        let mut io = node.io.lock();
        let mode = self.mode_of(&io, subject);
        let mut lower = LowerFile::of(self, node, Some(fd), None);
        let opened = match subject.and_then(How::of) {
            Some(how) => self.open_made(req, &mut io, &how, access, &mut lower),
            None => self.open_in_mode(req, &mut io, mode, access, &mut lower),
        };
        drop(io);
        let opened = opened.map_err(|errno| {
            self.do_forget(node.id, 1);
            self.failed_open(req, node, "create", access.flags, subject, errno)
        })?;
        self.record_open(req, node, "create", access.flags, &opened, subject);
        Ok(opened)
    }

    /// Asks the policy about a name that is to be made in `dir`; without a name (`O_TMPFILE`) about
    /// a file of no name there.
    pub(crate) fn admit_new(
        &self,
        req: &Request<'_>,
        dir: &Arc<Node>,
        name: Option<Name<'_>>,
    ) -> Result<Option<Subject<'_>>, Errno> {
        if self.admission.is_trivial() {
            return Ok(None);
        }
        let name = match name {
            Some(name) => name,
            None => Name::new(c"#tmpfile")?,
        };
        let path = self.paths.of_child(dir, name)?;
        let subject = self.admission.new_name(path, S_IFREG);
        self.permit_subject(req, &subject, [Operation::Create], "create")?;
        Ok(Some(subject))
    }

    /// Runs `make` on the caller's behalf.
    pub(crate) fn make<T>(
        &self,
        req: &Request<'_>,
        umask: u32,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.powers
            .create_as(req.caller(), req.supplementary_group(), umask, || self.fds.retrying(make))
    }
}

/// Removes what was made at `name` and could not be opened, as for want of descriptors: its maker was
/// told that it is not there, and could neither make nor remove it. What others have used since stays.
/// `written`: the view itself may have written to it.
fn unmake(dir: impl AsFd, name: Name<'_>, made: &Stat, written: bool) {
    let found = lower::stat_at(dir.as_fd(), name.as_c_str());
    let is_as_made = |found: &Stat| {
        found.key() == made.key()
            && found.nlink() == made.nlink()
            && (written || found.size() == made.size())
    };
    if found.is_ok_and(|found| is_as_made(&found)) {
        let _ = rustix::fs::unlinkat(dir.as_fd(), name.as_c_str(), AtFlags::empty());
    }
}
