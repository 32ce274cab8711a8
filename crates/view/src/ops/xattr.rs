//! Extended attributes, POSIX ACLs among them.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Mode, XattrFlags};
use rustix::io::Errno;
use tollgate_fuse::{Caller, NodeId, Reply, Request};
use tollgate_policy::Operation;

use crate::acl::{self, is_acl};
use crate::creds::without_fsetid;
use crate::lower::{self, ProcPath};
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

/// The kernel's `XATTR_SIZE_MAX` and `XATTR_LIST_MAX`.
const MAX_LEN: usize = 64 << 10;
/// What a program may do that is executed, whoever its user is.
const CAPABILITIES: &CStr = c"security.capability";

impl View {
    pub(crate) fn do_setxattr(
        &self,
        req: &Request<'_>,
        id: NodeId,
        name: &CStr,
        value: &[u8],
        flags: u32,
        acl_kill_sgid: bool,
    ) -> Result<(), Errno> {
        self.count(req, Count::xattr);
        let node = self.node(id)?;
        self.permit(req, &node, Operation::Write, "setxattr")?;
        let _copying = self.copying(&node);
        // It may be an access control list.
        self.writers.changing(&self.fds, &node);
        let sealed = self.if_sealed(&node)?;
        let mut done = self.names_nobody_else(&node, name).and_then(|()| {
            self.set_attribute(req.caller(), &node, (name, value), flags, acl_kill_sgid)
        });
        if let (Some(held), Ok(_)) = (&sealed, &done) {
            done = self.must_lead_here_again(&node, held);
        }
        if done.is_ok() {
            self.raised.by_attribute(name);
        }
        self.record_attribute(req, &node, "setxattr", name.to_bytes(), done.err());
        done
    }

    /// A list that names whom the caller cannot see ([`Config::only_ids`]) is not set anew, as that
    /// would take away what they have.
    ///
    /// [`Config::only_ids`]: crate::Config::only_ids
    fn names_nobody_else(&self, node: &Arc<Node>, name: &CStr) -> Result<(), Errno> {
        let Some(ids) = self.only_ids.filter(|_| is_acl(name)) else { return Ok(()) };
        let fd = self.find_once(node)?;
        let mut list = vec![0; MAX_LEN];
        let path = ProcPath::of(fd.as_fd());
        match rustix::fs::getxattr(path.as_c_str(), name, &mut list[..]) {
            Ok(length) if acl::names_others(&list[..length], ids) => Err(Errno::OVERFLOW),
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn set_attribute(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        (name, value): (&CStr, &[u8]),
        flags: u32,
        acl_kill_sgid: bool,
    ) -> Result<(), Errno> {
        // The kernel (Linux 6.18) asks for it with a default ACL as well, which leaves the mode alone.
        let acl_kill_sgid = acl_kill_sgid && name == c"system.posix_acl_access";
        let fd = self.find_once(node)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let path = ProcPath::of(fd.as_fd());
        let act = || rustix::fs::setxattr(path.as_c_str(), name, value, flags);
        if !acl_kill_sgid && is_acl(name) {
            // It changes the mode; whether the set-group-id bit stays goes by groups.
            return self.powers.as_caller_in_groups(caller, act);
        }
        if !acl_kill_sgid {
            return self.powers.as_caller(caller, act);
        }
        self.powers.as_caller(caller, || without_fsetid(act))?;
        // The lower file system judges by this thread's groups; the caller is in none that counts.
        let mode = lower::stat_fd(fd.as_fd())?.mode();
        rustix::fs::chmod(path.as_c_str(), Mode::from_raw_mode(mode & 0o5777))
    }

    pub(crate) fn do_getxattr(
        &self,
        req: &Request<'_>,
        id: NodeId,
        name: &CStr,
        size: u32,
        reply: Reply<'_, [u8]>,
    ) {
        self.count(req, Count::xattr);
        let read = |buffer: &mut [u8]| {
            let node = self.node(id)?;
            if is_content(name) {
                self.permit(req, &node, Operation::Read, "getxattr")?;
            }
            let fd = self.find_once(&node)?;
            if name == CAPABILITIES
                && node.no_capabilities.may_be_known()
                && node.no_capabilities.holds(&lower::stat_fd(fd.as_fd())?)
            {
                return Err(Errno::NODATA);
            }
            let path = ProcPath::of(fd.as_fd());
            if let Some(ids) = self.only_ids.filter(|_| is_acl(name)) {
                let mut list = vec![0; MAX_LEN];
                let length = rustix::fs::getxattr(path.as_c_str(), name, &mut list[..])?;
                let list = acl::without_others(&list[..length], ids);
                if !buffer.is_empty() {
                    buffer.get_mut(..list.len()).ok_or(Errno::RANGE)?.copy_from_slice(&list);
                }
                return Ok(list.len());
            }
            // `rustix` takes an empty buffer for what it is, not for the question of the length.
            let got = self.powers.as_caller(req.caller(), || match buffer.is_empty() {
                true => rustix::fs::getxattr_query(path.as_c_str(), name),
                false => rustix::fs::getxattr(path.as_c_str(), name, &mut *buffer),
            });
            got.map_err(|errno| if is_no_label(name, errno) { Errno::OPNOTSUPP } else { errno })
        };
        reply_sized(size, reply, read);
    }

    pub(crate) fn do_listxattr(
        &self,
        req: &Request<'_>,
        id: NodeId,
        size: u32,
        reply: Reply<'_, [u8]>,
    ) {
        self.count(req, Count::xattr);
        let read = |buffer: &mut [u8]| {
            let fd = self.find_once(&self.node(id)?)?;
            let path = ProcPath::of(fd.as_fd());
            // Names of attributes that are root's alone are shown to root alone.
            self.powers.as_caller(req.caller(), || match buffer.is_empty() {
                true => rustix::fs::listxattr_query(path.as_c_str()),
                false => rustix::fs::listxattr(path.as_c_str(), &mut *buffer),
            })
        };
        reply_sized(size, reply, read);
    }

    pub(crate) fn do_removexattr(
        &self,
        req: &Request<'_>,
        id: NodeId,
        name: &CStr,
    ) -> Result<(), Errno> {
        self.count(req, Count::xattr);
        let node = self.node(id)?;
        self.permit(req, &node, Operation::Write, "removexattr")?;
        let _copying = self.copying(&node);
        let remove = || {
            let fd = self.find_once(&node)?;
            let act = || rustix::fs::removexattr(ProcPath::of(fd.as_fd()).as_c_str(), name);
            self.powers.as_caller(req.caller(), act)
        };
        let sealed = self.if_sealed(&node)?;
        let mut done = remove();
        if let (Some(held), Ok(_)) = (&sealed, &done) {
            done = self.must_lead_here_again(&node, held);
        }
        self.record_attribute(req, &node, "removexattr", name.to_bytes(), done.err());
        done
    }
}

/// Access control lists and security labels are what `ls -l` shows beside the mode: they can be
/// seen wherever the mode can. The rest is data that somebody put there.
fn is_content(name: &CStr) -> bool {
    !is_acl(name) && !name.to_bytes().starts_with(b"security.")
}

/// Replies to a request that asks either for bytes or, with `size` 0, for their number.
fn reply_sized(
    size: u32,
    reply: Reply<'_, [u8]>,
    read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) {
    if size == 0 {
        match read(&mut []).and_then(|len| u32::try_from(len).map_err(|_| Errno::OVERFLOW)) {
            Ok(size) => reply.size(size),
            Err(e) => reply.error(e),
        };
    } else {
        reply.fill((size as usize).min(MAX_LEN), read);
    }
}

/// Whether a file has no SELinux label, which each file has where SELinux is used. `ls -l` asks for that
/// of every file, until it is told that the file system has none: each time a request, as the kernel
/// keeps no attributes.
fn is_no_label(name: &CStr, errno: Errno) -> bool {
    name == c"security.selinux" && errno == Errno::NODATA
}
