//! Attributes, sizes, times, holes, copies: what the kernel asks of an open file.

use libc::O_RDWR;
use rustix::io::Errno;
use tollgate_fuse::abi::{
    AttrOut, CopyFileRangeIn, FallocateIn, FlushIn, FsyncIn, GetattrIn, LseekIn, SetattrIn,
    StatfsOut, StatxIn, StatxOut, U64Out, opcode,
};
use zerocopy::IntoBytes;

use crate::kernel::{Handle, Played, ROOT};

const WATCHED: &str = "[[rule]]\npath = 'watched'\naction = 'userspace'\n";

/// One file of each I/O mode, open.
fn both() -> (Played, [(&'static str, Handle); 2]) {
    let view = Played::with(WATCHED, &[("plain", "0123456789"), ("watched", "0123456789")]);
    let handles = ["plain", "watched"].map(|name| (name, view.open(name, O_RDWR).unwrap()));
    assert!(handles[0].1.is_passthrough() && !handles[1].1.is_passthrough());
    (view, handles)
}

#[test]
fn attributes_are_the_lower_files() {
    let (view, handles) = both();
    for (name, handle) in handles {
        let meta = std::fs::metadata(view.below(name)).unwrap();
        let args = GetattrIn { getattr_flags: 1, dummy: 0, fh: handle.number };
        let out: AttrOut = view.ask(opcode::GETATTR, handle.node, &[args.as_bytes()]).unwrap();
        use std::os::unix::fs::MetadataExt;
        let expected = (meta.ino(), meta.size(), meta.mode(), meta.nlink(), meta.uid());
        let attr = out.attr;
        let nlink = u64::from(attr.nlink);
        assert_eq!((attr.ino, attr.size, attr.mode, nlink, attr.uid), expected);
        let args = StatxIn { sx_mask: 0xfff, ..StatxIn::default() };
        let out: StatxOut = view.ask(opcode::STATX, handle.node, &[args.as_bytes()]).unwrap();
        assert_eq!((out.stat.ino, out.stat.size), (meta.ino(), 10));
        assert_ne!(out.stat.btime.tv_sec, 0, "the time of birth comes too");
    }
}

#[test]
fn a_file_is_cut_and_extended() {
    let (view, handles) = both();
    for (name, handle) in handles {
        assert_eq!(view.set_size(name, 4).unwrap().size, 4);
        assert_eq!(std::fs::read(view.below(name)).unwrap(), b"0123");
        let args = SetattrIn {
            valid: 1 << 3 | 1 << 6,
            fh: handle.number,
            size: 6,
            ..SetattrIn::default()
        };
        let out: AttrOut = view.ask(opcode::SETATTR, handle.node, &[args.as_bytes()]).unwrap();
        assert_eq!(out.attr.size, 6);
        assert_eq!(std::fs::read(view.below(name)).unwrap(), b"0123\0\0");
    }
}

#[test]
fn times_modes_and_owners_are_set() {
    let (view, [(name, handle), _]) = both();
    assert_eq!(view.set_mode(name, 0o600).unwrap().mode, 0o100_600);
    let args = SetattrIn {
        valid: 1 << 4 | 1 << 5,
        atime: 1000,
        atimensec: 1,
        mtime: 2000,
        mtimensec: 2,
        ..SetattrIn::default()
    };
    let out: AttrOut = view.ask(opcode::SETATTR, handle.node, &[args.as_bytes()]).unwrap();
    assert_eq!((out.attr.atime, out.attr.atimensec), (1000, 1));
    assert_eq!((out.attr.mtime, out.attr.mtimensec), (2000, 2));
    // One of both, and "now".
    let args = SetattrIn { valid: 1 << 5 | 1 << 8, ..SetattrIn::default() };
    let out: AttrOut = view.ask(opcode::SETATTR, handle.node, &[args.as_bytes()]).unwrap();
    assert_eq!(out.attr.atime, 1000);
    assert!(out.attr.mtime > 1_700_000_000);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let args = SetattrIn { valid: 1 << 1 | 1 << 2, uid, gid, ..SetattrIn::default() };
    let out: AttrOut = view.ask(opcode::SETATTR, handle.node, &[args.as_bytes()]).unwrap();
    assert_eq!((out.attr.uid, out.attr.gid), (uid, gid));
}

#[test]
fn space_is_allocated_and_holes_are_found() {
    let (view, handles) = both();
    for (name, handle) in handles {
        let args = FallocateIn { fh: handle.number, length: 1 << 20, ..FallocateIn::default() };
        view.call(opcode::FALLOCATE, handle.node, &[args.as_bytes()]).unwrap();
        assert_eq!(std::fs::metadata(view.below(name)).unwrap().len(), 1 << 20);
        let seek = |offset, whence: i32| {
            let whence = whence.cast_unsigned();
            let args = LseekIn { fh: handle.number, offset, whence, padding: 0 };
            let out = view.ask(opcode::LSEEK, handle.node, &[args.as_bytes()]);
            out.map(|out: U64Out| out.value)
        };
        assert_eq!(seek(0, libc::SEEK_DATA), Ok(0));
        assert!(seek(0, libc::SEEK_HOLE).unwrap() > 0);
        assert_eq!(seek(1 << 21, libc::SEEK_DATA), Err(Errno::NXIO));
        assert_eq!(seek(0, libc::SEEK_SET), Err(Errno::INVAL));
    }
}

#[test]
fn data_is_made_durable() {
    let (view, handles) = both();
    for (_, handle) in handles {
        for fsync_flags in [0, 1] {
            let args = FsyncIn { fh: handle.number, fsync_flags, padding: 0 };
            view.call(opcode::FSYNC, handle.node, &[args.as_bytes()]).unwrap();
        }
        let args = FlushIn { fh: handle.number, ..FlushIn::default() };
        view.call(opcode::FLUSH, handle.node, &[args.as_bytes()]).unwrap();
    }
}

#[test]
fn a_range_is_copied_by_the_lower_file_system_or_by_the_kernel() {
    let view = Played::with(WATCHED, &[("plain", "0123456789"), ("watched", "0123456789")]);
    let plain = view.open("plain", O_RDWR).unwrap();
    let watched = view.open("watched", libc::O_WRONLY).unwrap();
    let copy = |from: Handle, to: Handle| {
        let args = CopyFileRangeIn {
            fh_in: from.number,
            off_in: 2,
            nodeid_out: to.node,
            fh_out: to.number,
            off_out: 20,
            len: 3,
            flags: 0,
        };
        view.call(opcode::COPY_FILE_RANGE, from.node, &[args.as_bytes()])
    };
    let copied = copy(plain, watched).unwrap();
    assert_eq!(copied[..4], 3_u32.to_ne_bytes());
    assert_eq!(std::fs::read(view.below("watched")).unwrap()[20..], *b"234");
    // Who has it open so may store into a mapping of it, which the kernel would drop after the copy.
    let in_place = view.open("watched", O_RDWR).unwrap();
    assert_eq!(copy(plain, watched).unwrap_err(), Errno::XDEV);
    assert_eq!(copy(plain, in_place).unwrap_err(), Errno::XDEV);
    // Between two passthrough files the kernel copies without this server, where that is as good.
    match copy(plain, plain) {
        Err(error) => assert_eq!(error, Errno::NOSYS),
        Ok(copied) => assert_eq!(copied[..4], 3_u32.to_ne_bytes()),
    }
}

#[test]
fn the_file_system_is_described() {
    let view = Played::new("");
    let out: StatfsOut = view.ask(opcode::STATFS, ROOT, &[]).unwrap();
    let real = rustix::fs::statvfs(view.lower()).unwrap();
    assert_eq!((out.blocks, u64::from(out.namelen)), (real.f_blocks, real.f_namemax));
}
