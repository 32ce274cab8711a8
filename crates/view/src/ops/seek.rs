//! lseek(2) for data and holes.

use std::os::fd::AsFd;

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use tollgate_fuse::{FileHandle, NodeId, Reply, Request, args};

use crate::content::seek_in_data;
use crate::lower;
use crate::stats::Count;
use crate::view::View;

impl View {
    /// Answers a request for the next data or hole: at once, or where the file's bytes are made.
    pub(crate) fn answer_lseek(
        &self,
        req: &Request<'_>,
        id: NodeId,
        args: args::Lseek,
        reply: Reply<'_, u64>,
    ) {
        self.count(req, Count::other);
        let to = match sought(args) {
            Ok(to) => to,
            Err(errno) => {
                reply.error(errno);
                return;
            }
        };
        // What was stored through a mapping into a hole is not below yet. read(2) shows it, as the kernel
        // writes it back before, and who skips holes must not miss it: all counts as data.
        let stores = self.node(id).is_ok_and(|node| node.io.lock().may_have_stores());
        match self.made(args.handle) {
            Some(made) if stores => {
                reply.send(made.content.size().and_then(|size| seek_in_data(size, to)));
            }
            Some(made) => self.road.seek(&made, to, req.caller(), reply),
            None => {
                reply.send(self.seek_below(id, args.handle, to, stores));
            }
        }
    }

    fn seek_below(
        &self,
        id: NodeId,
        handle: FileHandle,
        to: SeekFrom,
        stores: bool,
    ) -> Result<u64, Errno> {
        // The descriptor's own position is used by nothing else: reads and writes carry offsets.
        self.with_file(id, handle, OFlags::RDONLY, |fd| match stores {
            true => seek_in_data(lower::stat_fd(fd.as_fd())?.size(), to),
            false => rustix::fs::seek(fd, to),
        })
    }
}

fn sought(args: args::Lseek) -> Result<SeekFrom, Errno> {
    match i32::try_from(args.whence).map_err(|_| Errno::INVAL)? {
        libc::SEEK_DATA => Ok(SeekFrom::Data(args.offset)),
        libc::SEEK_HOLE => Ok(SeekFrom::Hole(args.offset)),
        _ => Err(Errno::INVAL),
    }
}
