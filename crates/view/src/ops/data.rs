//! Bytes that travel through this process, and what the kernel never passes through.

use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use tollgate_fuse::{FileHandle, NodeId, Reply, Request, StatFs, args};
use tollgate_hugepage::wipe;
use tollgate_policy::Operation;

use crate::content::AsAsker;
use crate::content::asker::asked_by;
use crate::handles::{UserFile, has_descriptor, is_passthrough, is_small};
use crate::lower;
use crate::mapped::{Change, Holds, MappedPages, Reading, WriteReply};
use crate::road::{Asking, Made, WriteAt};
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

/// Bytes copied between two looks at whether the caller was interrupted.
const COPY_STEP: u64 = 64 << 20;

impl View {
    /// Answers a read: at once, or where the file's bytes are made.
    pub(crate) fn answer_read(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: args::Read,
        reply: Reply<'_, [u8]>,
    ) {
        self.count(req, Count::read);
        let args::Read { handle, offset, size, for_cache } = args;
        // Of a file that is open in direct I/O, for a mapping.
        let mapped = if for_cache { self.mapped(id) } else { None };
        let reading = mapped.map(|pages| pages.read(offset..offset.saturating_add(size.into())));
        if let Some(made) = self.made(handle) {
            return self.read_made(req, (id, &made), (offset, size), reading, reply);
        }
        let read = |buffer: &mut [u8]| {
            let len = if is_small(handle) {
                // Pages that the kernel gave up in the meantime.
                let file = self.below(&self.node(id)?, OFlags::RDONLY)?;
                lower::read_full(file.as_fd(), buffer, offset)?
            } else {
                lower::read_full(self.user_file(handle)?.fd.as_fd(), buffer, offset)?
            };
            drop(reading);
            self.counters.add(req.worker(), Count::read_bytes, len as u64);
            self.record_span(req, id, "read", offset, len as u64);
            Ok(len)
        };
        reply.fill(size as usize, read);
    }

    /// What is known of the pages that the kernel keeps of a file, if somebody may write it past them.
    fn mapped(&self, id: NodeId) -> Option<Arc<MappedPages>> {
        self.node(id).ok()?.io.lock().mapped().cloned()
    }

    /// Writes to a lower file: the answer to the request.
    fn write_below(
        &self,
        req: &Request<'_>,
        (id, file): (NodeId, &UserFile),
        args: &args::Write<'_>,
        data: &[u8],
    ) -> Result<u32, Errno> {
        let args::Write { offset, from_cache, kill_suidgid, appends, .. } = *args;
        if file.append_only && !appends {
            return Err(Errno::PERM);
        }
        let write = || {
            if !appends {
                return lower::write_full(file.fd.as_fd(), data, offset);
            }
            // Where the kernel caches pages, it asks for the size before it reads again, and then drops
            // them.
            let (appends, fd) = (file.appends.as_ref().ok_or(Errno::BADF)?, file.fd.as_fd());
            let size = || Ok(lower::stat_fd(fd)?.size());
            let write = |_| lower::append_full(fd, data);
            appends.append((offset, self.most_written()), size, write)
        };
        let caller = if from_cache { file.opener } else { req.caller() };
        // Root keeps its privilege unless the kernel says otherwise, so it need not be looked at.
        let len = if caller.uid == 0 && !kill_suidgid {
            write()?
        } else {
            self.act_on_data(caller, kill_suidgid, write)?
        };
        self.counters.add(req.worker(), Count::write_bytes, len as u64);
        self.record_span(req, id, "write", offset, len as u64);
        u32::try_from(len).map_err(|_| Errno::IO)
    }

    /// Most bytes of one request to write.
    fn most_written(&self) -> u64 {
        self.connection.get().map_or(u32::MAX, |c| c.negotiated().max_write).into()
    }

    /// Answers a write: at once, or where the file's bytes are made.
    pub(crate) fn answer_write(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: args::Write<'_>,
        reply: Reply<'_, u32>,
    ) {
        self.count(req, Count::write);
        let file = match self.user_file(args.handle) {
            Ok(file) => file,
            Err(errno) => {
                reply.error(errno);
                return;
            }
        };
        let (holds, mut data) = self.beside_mappings(id, &file, &args);
        let reply = WriteReply::new(reply, holds);
        match &file.made {
            None => reply.send(self.write_below(req, (id, &file), &args, &data)),
            Some(made) => self.write_made(req, (id, &file, made), (&args, &data), reply),
        }
        if let Cow::Owned(bytes) = &mut data {
            wipe(bytes);
        }
    }

    /// What a write holds of the pages that the kernel keeps for mappings, and what it is to write. May
    /// wait for requests for such pages.
    fn beside_mappings<'d>(
        &self,
        id: NodeId,
        file: &UserFile,
        args: &args::Write<'d>,
    ) -> (Holds, Cow<'d, [u8]>) {
        let data = Cow::Borrowed(args.data);
        match &file.mapped {
            None => (Holds::Nothing, data),
            Some(pages) if args.from_cache => {
                let (back, data) = pages.write_back(args.offset, args.data);
                (Holds::Back(back), data)
            }
            Some(pages) => {
                // An append may go elsewhere, where others changed the size.
                let writing = pages.write(args.offset, Change::Bytes(args.data));
                (Holds::Writing(writing, id, Arc::clone(&self.dropper)), data)
            }
        }
    }

    /// The same for a request that makes zeroes of a range.
    pub(crate) fn hole_beside_mappings(&self, id: NodeId, args: &args::Fallocate) -> Holds {
        let mode = FallocateFlags::from_bits_retain(args.mode);
        let zeroes = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        let file = has_descriptor(args.handle).then(|| self.user_file(args.handle).ok());
        let mapped = file.flatten().and_then(|file| file.mapped.clone());
        match mapped.filter(|_| mode.intersects(zeroes)) {
            Some(pages) => {
                let writing = pages.write(args.offset, Change::Zeroes(args.length));
                Holds::Writing(writing, id, Arc::clone(&self.dropper))
            }
            None => Holds::Nothing,
        }
    }

    /// Answers a write of bytes that the view changes.
    fn write_made(
        &self,
        req: &Request<'_>,
        (id, file, made): (NodeId, &UserFile, &Arc<Made>),
        (args, data): (&args::Write<'_>, &[u8]),
        reply: WriteReply<'_>,
    ) {
        self.counters.add(req.worker(), Count::write_bytes, data.len() as u64);
        self.record_span(req, id, "write", args.offset, data.len() as u64);
        let caller = if args.from_cache { file.opener } else { req.caller() };
        let appends = file.appends.clone().filter(|_| args.appends);
        let place = match appends {
            None => WriteAt::Offset(args.offset),
            Some(appends) => {
                WriteAt::End { appends, offset: args.offset, most: self.most_written() }
            }
        };
        self.road.write(made, (data, place, args.durable), (asking(req), caller), reply);
    }

    /// Answers a read of bytes that the view makes. The records say what was asked for of the file
    /// as it is now.
    fn read_made(
        &self,
        req: &Request<'_>,
        (id, made): (NodeId, &Arc<Made>),
        (offset, size): (u64, u32),
        reading: Option<Reading>,
        reply: Reply<'_, [u8]>,
    ) {
        let end = offset.saturating_add(u64::from(size));
        let shown = made.content.size().map_or(0, |size| end.min(size).saturating_sub(offset));
        self.counters.add(req.worker(), Count::read_bytes, shown);
        self.record_span(req, id, "read", offset, shown);
        self.road.read(made, offset..end, reading, (asking(req), req.caller()), reply);
    }

    /// What makes the bytes of a handle, if they are not those of the lower file.
    pub(super) fn made(&self, handle: FileHandle) -> Option<Arc<Made>> {
        if !has_descriptor(handle) {
            return None;
        }
        self.files.get(handle).ok().and_then(|file| file.made.clone())
    }

    /// Passthrough handles have no descriptor here: the kernel never asks to read or write them.
    fn user_file(&self, handle: FileHandle) -> Result<Arc<UserFile>, Errno> {
        self.files.get(handle)
    }

    /// Errors of closing (a full network file system) come back through a close of a duplicate.
    pub(crate) fn do_flush(&self, handle: FileHandle) -> Result<(), Errno> {
        if !has_descriptor(handle) {
            return Ok(());
        }
        let file = self.user_file(handle)?;
        if let Some(made) = &file.made {
            made.content.flush()?;
        }
        close(rustix::io::fcntl_dupfd_cloexec(&file.fd, 0)?)
    }

    /// Answers fsync(2): at once, or where the file's bytes are made.
    pub(crate) fn answer_fsync(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: args::Fsync,
        reply: Reply<'_, ()>,
    ) {
        match self.made(args.handle) {
            Some(made) => {
                self.count(req, Count::other);
                self.road.commit(&made, args.data_only, req.caller(), reply);
            }
            None => {
                reply.send(self.do_fsync(req, id, args.handle, args.data_only));
            }
        }
    }

    pub(crate) fn do_fsync(
        &self,
        req: &Request<'_>,
        id: NodeId,
        handle: FileHandle,
        data_only: bool,
    ) -> Result<(), Errno> {
        self.count(req, Count::other);
        let node = self.node(id)?;
        let sync = |fd: &OwnedFd| {
            if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }
        };
        if has_descriptor(handle) {
            return sync(&self.user_file(handle)?.fd);
        }
        if let Some(error) = node.io.lock().sync_error {
            return Err(error);
        }
        let result = sync(&*self.below(&node, OFlags::RDONLY)?);
        if let Err(error) = result {
            node.io.lock().sync_error = Some(error);
        }
        result
    }

    /// A real descriptor on an open file whose handle has none, for what the kernel does not do
    /// itself: the one that is kept while somebody writes the file, which is open for both, or a new
    /// one.
    pub(super) fn below(&self, node: &Arc<Node>, flags: OFlags) -> Result<Arc<OwnedFd>, Errno> {
        let kept = node.io.lock().writable().cloned();
        if let Some(fd) = kept {
            return Ok(fd);
        }
        let path = self.fds.path_once(node)?;
        self.fds.retrying(|| lower::reopen(path.as_fd(), flags)).map(Arc::new)
    }

    /// Runs `act` on a descriptor of the handle.
    pub(super) fn with_file<T>(
        &self,
        id: NodeId,
        handle: FileHandle,
        flags: OFlags,
        act: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !has_descriptor(handle) {
            act(&*self.below(&self.node(id)?, flags)?)
        } else {
            act(&self.user_file(handle)?.fd)
        }
    }

    pub(crate) fn do_fallocate(
        &self,
        req: &Request<'_>,
        id: NodeId,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<(), Errno> {
        self.count(req, Count::other);
        let mode = FallocateFlags::from_bits_retain(mode);
        if let Some(made) = self.made(handle) {
            // The kernel leaves that to who has the file, and does not say whether it is to be done.
            let path = self.fds.path_once(&self.node(id)?)?;
            self.powers.drop_set_ids_by_capability(req.caller(), path.as_fd())?;
            // It may need new blocks, and those that are reserved for root are not for a user.
            let as_asker: AsAsker<'_> = &|act| self.powers.as_caller(req.caller(), act);
            return asked_by(req.caller(), || punch(&made, (offset, length), mode, as_asker));
        }
        let done = self.with_file(id, handle, OFlags::RDWR, |fd| {
            let act = || rustix::fs::fallocate(fd, mode, offset, length);
            self.powers.as_caller(req.caller(), act)
        });
        if done.is_err()
            && let Some(connection) = self.connection.get()
        {
            // A part may have been done, as on a full disk. Of attributes alone: that waits for nothing.
            let _ = connection.invalidate_inode(id, -1, 0);
        }
        done
    }

    pub(crate) fn do_copy_file_range(
        &self,
        req: &Request<'_>,
        from: (NodeId, FileHandle, u64),
        to: (NodeId, FileHandle, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        self.count(req, Count::other);
        let is_mapped = || self.mapped(to.0).is_some_and(|pages| pages.may_be_stored_into());
        if self.made(from.1).is_some() || self.made(to.1).is_some() || is_mapped() {
            // The kernel copies by reading and writing then, as any program would. Where this process copies,
            // it drops the pages afterwards, with what was stored into them meanwhile (`fuse_copy_file_range`).
            return Err(Errno::XDEV);
        }
        if self.kernel_copies && is_passthrough(from.1) && is_passthrough(to.1) {
            // "Never ask again": the kernel then moves the bytes itself, lower file to lower file,
            // and spares this request and the one for security.capability before it.
            return Err(Errno::NOSYS);
        }
        let (mut from_at, mut to_at) = (from.2, to.2);
        self.with_file(from.0, from.1, OFlags::RDONLY, |source| {
            self.with_file(to.0, to.1, OFlags::WRONLY, |target| {
                let mut done = 0;
                while done < length && !(done > 0 && req.interrupted()) {
                    let step = usize::try_from((length - done).min(COPY_STEP));
                    let step = step.map_err(|_| Errno::INVAL)?;
                    let copy = || {
                        rustix::fs::copy_file_range(
                            source,
                            Some(&mut from_at),
                            target,
                            Some(&mut to_at),
                            step,
                        )
                    };
                    match self.powers.as_caller(req.caller(), copy) {
                        Ok(0) => break,
                        Ok(n) => done += n as u64,
                        Err(_) if done > 0 => break,
                        Err(e) => return Err(e),
                    }
                }
                Ok(done)
            })
        })
    }

    pub(crate) fn do_statfs(&self, req: &Request<'_>, id: NodeId) -> Result<StatFs, Errno> {
        self.count(req, Count::other);
        let node = self.node(id)?;
        let fd = self.fds.path_once(&node)?;
        let fs = rustix::fs::fstatvfs(&fd)?;
        // A file system that says more than the wire can carry is told at its most.
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(StatFs {
            blocks: fs.f_blocks,
            bfree: fs.f_bfree,
            bavail: fs.f_bavail,
            files: fs.f_files,
            ffree: fs.f_ffree,
            bsize: narrow(fs.f_bsize),
            namelen: narrow(fs.f_namemax),
            frsize: narrow(fs.f_frsize),
        })
    }

    pub(crate) fn do_readlink(&self, req: &Request<'_>, id: NodeId, reply: Reply<'_, [u8]>) {
        self.count(req, Count::other);
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; libc::PATH_MAX as usize];
        let target = self.node(id).and_then(|node| {
            self.permit(req, &node, Operation::Read, "readlink")?;
            let fd = self.fds.path_once(&node)?;
            lower::read_link(fd.as_fd(), &mut buffer)
        });
        match target {
            Ok(target) => reply.data(target),
            Err(e) => reply.error(e),
        };
    }
}

fn asking(req: &Request<'_>) -> Asking {
    Asking { unique: req.unique(), thread: req.caller().pid }
}

/// fallocate(2) where the view makes the bytes: holes are made, space cannot be promised.
fn punch(
    made: &Made,
    (offset, length): (u64, u64),
    mode: FallocateFlags,
    as_asker: AsAsker<'_>,
) -> Result<(), Errno> {
    let zeroes = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
    let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
    if !keeps_size || !mode.intersects(zeroes) {
        return Err(Errno::OPNOTSUPP);
    }
    let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
    made.content.punch(offset..end, as_asker)
}

/// close(2) with its error, which dropping a descriptor would swallow.
fn close(fd: OwnedFd) -> Result<(), Errno> {
    use std::os::fd::IntoRawFd;
    #[expect(unsafe_code, reason = "no safe close reports its error")]
    // SAFETY: the descriptor was owned by the argument, which gave it up with `into_raw_fd`: it is
    // open, and nobody uses it after this.
    let result = unsafe { libc::close(fd.into_raw_fd()) };
    if result == 0 { Ok(()) } else { Err(lower::last_errno()) }
}
