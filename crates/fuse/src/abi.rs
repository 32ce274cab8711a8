//! The kernel's FUSE interface, level 7.45: numbers and structures as they cross `/dev/fuse`.
//!
//! Field names follow `include/uapi/linux/fuse.h`, so that the two can be laid side by side. All
//! integers are in the byte order of the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(target_endian = "big")]
compile_error!(
    "replies to COPY_FILE_RANGE rely on little-endian order, and no big-endian machine was tried"
);

/// Major version of the protocol.
pub const KERNEL_VERSION: u32 = 7;
/// Newest minor version that this crate speaks.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// Oldest minor version that this crate speaks (Linux 5.4). Passthrough came with 7.40 (Linux 6.9).
pub const OLDEST_MINOR_VERSION: u32 = 31;

/// `fuse_getattr_in.getattr_flags`: the handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// `fuse_open_in.open_flags`: clear set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `fuse_read_in.read_flags`: the owner of the program's locks is given.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `fuse_write_in.write_flags`: written back from the page cache.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_release_in.release_flags`: a `flock` was taken through the handle.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `fuse_lk_in.lk_flags`: a `flock`, not a POSIX lock.
pub const LK_FLOCK: u32 = 1 << 0;
/// `fuse_fsync_in.fsync_flags`: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `fuse_setxattr_in.setxattr_flags`: clear set-group-id.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// Bit of `unique` that marks a request sent a second time (`FUSE_NOTIFY_RESEND`).
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Types up to this one are security contexts, not extensions.
pub const MAX_NR_SECCTX: u32 = 31;
/// Extension type of supplementary groups.
pub const EXT_GROUPS: u32 = 32;
/// Smallest buffer that the kernel accepts for reading requests, in bytes.
pub const MIN_READ_BUFFER: usize = 8192;

/// `fuse_setattr_in.valid`.
pub mod fattr {
    #![expect(missing_docs, reason = "the kernel's names say it")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Notification codes, sent as the `error` of a reply with `unique` 0.
pub mod notify {
    #![expect(missing_docs, reason = "the kernel's names say it")]
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
    /// A flag of `INVAL_ENTRY`.
    pub const EXPIRE_ONLY: u32 = 1;
}

/// Operation codes.
pub mod opcode {
    #![expect(missing_docs, reason = "the kernel's names say it")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SETUPMAPPING: u32 = 48;
    pub const REMOVEMAPPING: u32 = 49;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;

    /// One past the largest code known here; what has a greater one is counted under it.
    pub const LIMIT: u32 = 54;

    /// Operations of which [`crate::Operation::takes_long`] can be true.
    pub const MAY_TAKE_LONG: [u32; 7] =
        [FSYNC, FSYNCDIR, SETLKW, READ, WRITE, COPY_FILE_RANGE, COPY_FILE_RANGE_64];

    /// Operations that the kernel asks for regular files only.
    pub(crate) const OF_REGULAR_FILES: [u32; 7] = [OPEN, READ, WRITE, FSYNC, FLUSH, SETLK, SETLKW];

    /// The operation's name in the kernel, without `FUSE_`; "OTHER" for codes unknown here.
    #[must_use]
    pub fn name(opcode: u32) -> &'static str {
        usize::try_from(opcode).ok().and_then(|i| NAMES.get(i).copied()).unwrap_or("OTHER")
    }

    const NAMES: [&str; LIMIT as usize] = [
        "OTHER",
        "LOOKUP",
        "FORGET",
        "GETATTR",
        "SETATTR",
        "READLINK",
        "SYMLINK",
        "OTHER",
        "MKNOD",
        "MKDIR",
        "UNLINK",
        "RMDIR",
        "RENAME",
        "LINK",
        "OPEN",
        "READ",
        "WRITE",
        "STATFS",
        "RELEASE",
        "OTHER",
        "FSYNC",
        "SETXATTR",
        "GETXATTR",
        "LISTXATTR",
        "REMOVEXATTR",
        "FLUSH",
        "INIT",
        "OPENDIR",
        "READDIR",
        "RELEASEDIR",
        "FSYNCDIR",
        "GETLK",
        "SETLK",
        "SETLKW",
        "ACCESS",
        "CREATE",
        "INTERRUPT",
        "BMAP",
        "DESTROY",
        "IOCTL",
        "POLL",
        "NOTIFY_REPLY",
        "BATCH_FORGET",
        "FALLOCATE",
        "READDIRPLUS",
        "RENAME2",
        "LSEEK",
        "COPY_FILE_RANGE",
        "SETUPMAPPING",
        "REMOVEMAPPING",
        "SYNCFS",
        "TMPFILE",
        "STATX",
        "COPY_FILE_RANGE_64",
    ];
}

/// Declares structures of the wire, with their size checked against the kernel's.
macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[expect(missing_docs, reason = "the kernel's names say it")]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// Starts every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Starts every reply and notification.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    /// `struct fuse_attr`.
    FuseAttr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// Answer to LOOKUP and to what makes a name.
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: FuseAttr,
    }
    /// FORGET.
    ForgetIn = 8 { nlookup: u64 }
    /// One of BATCH_FORGET.
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    /// Head of BATCH_FORGET.
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    /// GETATTR.
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    /// Answer to GETATTR and SETATTR.
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: FuseAttr }
    /// STATX.
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// A time of STATX.
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    /// `struct fuse_statx`.
    FuseStatx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Answer to STATX.
    StatxOut = 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: FuseStatx,
    }
    /// MKNOD.
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR.
    MkdirIn = 8 { mode: u32, umask: u32 }
    /// RENAME.
    RenameIn = 8 { newdir: u64 }
    /// RENAME2.
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    /// LINK.
    LinkIn = 8 { oldnodeid: u64 }
    /// SETATTR.
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// OPEN and OPENDIR.
    OpenIn = 8 { flags: u32, open_flags: u32 }
    /// CREATE and TMPFILE.
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// Reply to OPEN and OPENDIR, and end of the reply to CREATE.
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: u32 }
    /// RELEASE and RELEASEDIR.
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FLUSH.
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE; the data follows.
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// Answer to WRITE, and to GETXATTR and LISTXATTR when they ask for a size.
    SizeOut = 8 { size: u32, padding: u32 }
    /// Answer to STATFS.
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// SETXATTR before 7.33, or without `FUSE_SETXATTR_EXT`.
    SetxattrCompatIn = 8 { size: u32, flags: u32 }
    /// SETXATTR.
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// GETXATTR and LISTXATTR.
    GetxattrIn = 8 { size: u32, padding: u32 }
    /// A byte range lock; also the reply to GETLK.
    WireFileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    /// GETLK, SETLK and SETLKW.
    LkIn = 48 { fh: u64, owner: u64, lk: WireFileLock, lk_flags: u32, padding: u32 }
    /// ACCESS.
    AccessIn = 8 { mask: u32, padding: u32 }
    /// INIT, the part that every kernel sends that this crate accepts.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// INIT, what follows [`InitIn`] with `FUSE_INIT_EXT`.
    InitInExt = 48 { flags2: u32, unused: [u32; 11] }
    /// Answer to INIT.
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// INTERRUPT.
    InterruptIn = 8 { unique: u64 }
    /// IOCTL; the input follows.
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// Head of the reply to IOCTL; the output follows.
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// FALLOCATE.
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// LSEEK.
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// Answer to LSEEK and to `COPY_FILE_RANGE_64`.
    U64Out = 8 { value: u64 }
    /// COPY_FILE_RANGE, both forms.
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// Head of a directory entry; the name follows, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    /// Head of an extension after a request's arguments.
    ExtHeader = 8 { size: u32, kind: u32 }
    /// Notification: drop an inode's cached data and attributes.
    NotifyInvalInode = 24 { ino: u64, off: i64, len: i64 }
    /// Notification: drop a name; the name follows with its NUL.
    NotifyInvalEntry = 16 { parent: u64, namelen: u32, flags: u32 }
    /// Notification: data for an inode's page cache; the bytes follow.
    NotifyStore = 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// Notification: a request with pages of an inode's cache is asked for.
    NotifyRetrieve = 32 { unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// Notification: a name was deleted; the name follows with its NUL.
    NotifyDelete = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    /// Argument of `FUSE_DEV_IOC_BACKING_OPEN`.
    BackingMap = 16 { fd: i32, flags: u32, padding: u64 }
}
