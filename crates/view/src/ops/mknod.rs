//! mknod(2): pipes, sockets, devices, and regular files without opening them.

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use tollgate_fuse::{Entry, Name, NodeId, Request};

use crate::content::open::How;
use crate::lower;
use crate::view::View;

/// As who makes a file to write it opens it.
const TO_MAKE: OFlags = OFlags::RDWR.union(OFlags::EXCL);

impl View {
    pub(crate) fn do_mknod(
        &self,
        req: &Request<'_>,
        at: (NodeId, Name<'_>),
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Entry, Errno> {
        let kind = FileType::from_raw_mode(mode);
        if kind == FileType::RegularFile && self.would_seal(at)? {
            return self.make_and_close(req, at, mode, umask);
        }
        let bits = Mode::from_raw_mode(mode & 0o7777);
        let made = self.make_entry(req, ("mknod", at.0, at.1), umask, kind, |dir, name| {
            if kind == FileType::RegularFile && self.would_seal(at)? {
                // Its directory was moved since: the kernel asks again.
                return Err(Errno::STALE);
            }
            rustix::fs::mknodat(dir, name, kind, bits, lower::decode_device(rdev))
        })?;
        self.raised.by_mode(bits.as_raw_mode());
        Ok(made)
    }

    /// Whether a file of this name would be sealed: then an empty one below is none, and nobody could
    /// open it.
    fn would_seal(&self, (parent, name): (NodeId, Name<'_>)) -> Result<bool, Errno> {
        if self.admission.is_trivial() || !self.admission.policy().seals() {
            return Ok(false);
        }
        let path = self.paths.of_child(&self.node(parent)?, name)?;
        let subject = self.admission.new_name(path, FileType::RegularFile.as_raw_mode());
        Ok(matches!(How::of(&subject), Some(How::Sealed(_))))
    }

    /// Makes a file as open(2) does, and closes it.
    fn make_and_close(
        &self,
        req: &Request<'_>,
        (parent, name): (NodeId, Name<'_>),
        mode: u32,
        umask: u32,
    ) -> Result<Entry, Errno> {
        let made = self.do_create(req, parent, name, mode, umask, TO_MAKE.bits())?;
        let (id, handle) = (made.entry.node, made.opened.handle);
        // It is there already; an error is one of closing a file in which nothing was written.
        let _ = self.do_flush(handle);
        self.do_release(req, id, handle);
        Ok(made.entry)
    }
}
