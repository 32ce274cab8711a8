//! System calls on the lower tree: always relative to a descriptor, one component at a time, and no
//! symbolic link is ever followed (invariant 4).

use std::cell::Cell;
use std::ffi::CStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use tollgate_fuse::{Attr, Name};

use crate::overlays;

/// What makes a lower inode itself. Inode numbers are reused after deletion; together with the time
/// of birth (nanoseconds; ext4, xfs, btrfs, tmpfs keep it) a reuse is recognised. Where a file
/// system keeps none the field is 0 and the number alone has to do; where it [changes](overlays::add), the
/// number and the type of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    dev: u64,
    ino: u64,
    born_ns: i64,
}

impl Key {
    /// A shard of `n` for this key. Inode numbers are dense, so a multiplication spreads them well.
    pub(crate) fn spread(&self, n: usize) -> usize {
        Self::spread_of(self.dev, self.ino, n)
    }

    /// The same for all keys of an inode number.
    pub(crate) fn spread_of(dev: u64, ino: u64, n: usize) -> usize {
        let mixed = (ino ^ dev).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        usize::try_from(mixed).expect("32 bits fit") % n
    }

    /// One that no lower inode has, for the node of this number.
    pub(crate) fn of_node(node: u64) -> Self {
        Self { dev: u64::MAX, ino: node, born_ns: 0 }
    }

    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }

    pub(crate) fn dev(&self) -> u64 {
        self.dev
    }

    /// The number that stat(2) on the view shows.
    pub(crate) fn shown_ino(&self, root_dev: u64) -> u64 {
        shown_ino(self.ino, self.dev, root_dev)
    }
}

/// Attributes of a lower inode as statx(2) gives them.
#[derive(Clone, Copy)]
pub(crate) struct Stat(Statx);

impl std::fmt::Debug for Stat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stat").field("key", &self.key()).field("mode", &self.0.stx_mode).finish()
    }
}

/// `STATX_ATTR_MOUNT_ROOT`: something is mounted there.
pub(crate) const MOUNT_ROOT: u64 = 0x2000;

fn device(major: u32, minor: u32) -> u64 {
    (u64::from(major) << 32) | u64::from(minor)
}

impl Stat {
    /// Device and inode number, made one: what tells two inodes apart.
    pub(crate) fn key(&self) -> Key {
        let kind = || i64::from(self.mode() & libc::S_IFMT);
        let born_ns = if overlays::has_mount(self.mount_id()) { kind() } else { self.born_ns() };
        Key { dev: self.dev(), ino: self.0.stx_ino, born_ns }
    }

    /// Whether other inodes may have this key, as on an overlay.
    pub(crate) fn may_share_key(&self) -> bool {
        overlays::has_mount(self.mount_id()) && self.file_type() != FileType::Directory
    }

    /// The time of birth, in nanoseconds since 1970; 0 if the file system keeps none.
    fn born_ns(&self) -> i64 {
        let born = &self.0.stx_btime;
        born.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(i64::from(born.tv_nsec))
    }

    pub(crate) fn dev(&self) -> u64 {
        device(self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(u32::from(self.0.stx_mode))
    }

    pub(crate) fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode)
    }

    pub(crate) fn size(&self) -> u64 {
        self.0.stx_size
    }

    pub(crate) fn nlink(&self) -> u32 {
        self.0.stx_nlink
    }

    /// The mount that it was found in, as /proc/self/mountinfo numbers them.
    pub(crate) fn mount_id(&self) -> u64 {
        self.0.stx_mnt_id
    }

    /// When it was changed last: its content, its attributes, or its names.
    pub(crate) fn changed(&self) -> (i64, u32) {
        (self.0.stx_ctime.tv_sec, self.0.stx_ctime.tv_nsec)
    }

    /// What tells this content from an earlier one.
    pub(crate) fn version(&self) -> Version {
        let ns = |t: &rustix::fs::StatxTimestamp| {
            t.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(t.tv_nsec))
        };
        let s = &self.0;
        Version { size: s.stx_size, modified_ns: ns(&s.stx_mtime), changed_ns: ns(&s.stx_ctime) }
    }

    /// When the content was changed last: seconds and nanoseconds.
    pub(crate) fn modified(&self) -> (i64, u32) {
        let time = &self.0.stx_mtime;
        (time.tv_sec, time.tv_nsec)
    }

    /// The kernel returns statx attributes as a bit set of `STATX_ATTR_*`.
    pub(crate) fn has_attribute(&self, bit: u64) -> bool {
        self.0.stx_attributes.bits() & bit != 0
    }

    /// As FUSE wants them. Inodes of another device than `root_dev` (a mount below DIR) get the
    /// device mixed into their number, because the view shows one device and tools compare numbers.
    pub(crate) fn attr(&self, root_dev: u64) -> Attr {
        let s = &self.0;
        let time = |t: &rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        Attr {
            ino: shown_ino(s.stx_ino, self.dev(), root_dev),
            size: s.stx_size,
            blocks: s.stx_blocks,
            atime: time(&s.stx_atime),
            mtime: time(&s.stx_mtime),
            ctime: time(&s.stx_ctime),
            mode: u32::from(s.stx_mode),
            nlink: s.stx_nlink,
            uid: s.stx_uid,
            gid: s.stx_gid,
            rdev: encode_device(s.stx_rdev_major, s.stx_rdev_minor),
            blksize: s.stx_blksize,
        }
    }

    /// The same with birth time and attribute bits.
    pub(crate) fn statx(&self, root_dev: u64, valid: Duration) -> tollgate_fuse::Statx {
        let s = &self.0;
        tollgate_fuse::Statx {
            mask: s.stx_mask & WANTED.bits(),
            attr: self.attr(root_dev),
            valid,
            attributes: s.stx_attributes.bits(),
            attributes_mask: s.stx_attributes_mask.bits(),
            btime: (s.stx_btime.tv_sec, s.stx_btime.tv_nsec),
        }
    }
}

/// Two looks at a file that find the same version find the same content, unless it changed within
/// the granularity of the file system's clock, or through a shared mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    size: u64,
    modified_ns: i64,
    changed_ns: i64,
}

impl Version {
    /// Of what this process alone changes, and counts.
    pub(crate) fn counted(changes: u64) -> Self {
        Self { size: changes, modified_ns: 0, changed_ns: 0 }
    }

    /// Whether the last change was so long before `now` (in seconds) that a further one will have
    /// another time. Not so for times of the future.
    pub(crate) fn is_settled(&self, now: i64) -> bool {
        /// No clock of a file system is coarser than 2 s.
        const SECONDS: i64 = 3;
        let latest = self.modified_ns.max(self.changed_ns);
        latest <= now.saturating_sub(SECONDS).saturating_mul(1_000_000_000)
    }
}

fn shown_ino(ino: u64, dev: u64, root_dev: u64) -> u64 {
    if dev == root_dev {
        ino
    } else {
        ino ^ dev.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(48)
    }
}

/// The kernel's `new_encode_dev`.
fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The inverse of [`encode_device`], as mknod(2) takes it.
pub(crate) fn decode_device(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);
/// What is asked of the lower file system: the mount is for this process alone.
const ASKED: StatxFlags = WANTED.union(StatxFlags::MNT_ID);

/// Attributes of `name` in directory `dir`.
pub(crate) fn stat_at(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, ASKED).map(Stat)
}

/// Attributes of what `fd` refers to.
pub(crate) fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(fd, c"", flags, ASKED).map(Stat)
}

/// A descriptor that names `name` in `dir` without opening it (`O_PATH`): neither a FIFO's nor a
/// device's open side effects can happen.
pub(crate) fn open_path(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// The same of what is at `path` below `dir`; no symbolic link is followed.
pub(crate) fn open_path_beneath(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), beneath)
}

/// What identifies the inode there.
pub(crate) fn key_beneath(dir: BorrowedFd<'_>, path: &Path) -> Result<Key, Errno> {
    let found = open_path_beneath(dir, path.as_os_str().as_bytes())?;
    Ok(stat_fd(found.as_fd())?.key())
}

/// Opens what an `O_PATH` descriptor names. Only for regular files and directories: the magic link
/// leads to the very inode, no name is walked.
///
/// # Errors
/// `EAGAIN` if somebody holds a lease on the file and does not give it up within [`LEASE_WAIT`];
/// at once with `O_NONBLOCK`.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = ProcPath::of(fd);
    let flags = (flags | OFlags::CLOEXEC) - OFlags::NOFOLLOW;
    let (dir, name) = path.in_descriptors();
    let open = |flags| rustix::fs::openat(dir, name, flags, Mode::empty());
    if flags.intersects(OFlags::PATH | OFlags::NONBLOCK) {
        return open(flags);
    }
    let begun = Instant::now();
    let opened = loop {
        match open(flags | OFlags::NONBLOCK) {
            Err(Errno::AGAIN) if begun.elapsed() < LEASE_WAIT => std::thread::sleep(LEASE_LOOK),
            opened => break opened?,
        }
    };
    let kept = rustix::fs::fcntl_getfl(&opened)? - OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&opened, kept)?;
    Ok(opened)
}

/// The same, of a regular file that is read at once and then closed: the descriptor keeps
/// `O_NONBLOCK`, which means nothing to such reads.
pub(crate) fn reopen_once(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    match reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK) {
        // A lease: to be waited for.
        Err(Errno::AGAIN) => reopen(fd, OFlags::RDONLY),
        fd => fd,
    }
}

/// How long a worker waits for the holder of a lease to give it up. The kernel would have it wait
/// for 45 s, and a caller who takes leases on a few files would stop all others.
const LEASE_WAIT: Duration = Duration::from_secs(1);
/// How often it looks.
const LEASE_LOOK: Duration = Duration::from_millis(2);

/// Opens directory `name` in `dir`, or with `.` that directory itself, for listing.
pub(crate) fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Whether directory `fd`, opened for listing, has the flag that makes it case-insensitive
/// (`chattr +F`, on file systems made for it).
pub(crate) fn is_caseless(fd: BorrowedFd<'_>) -> bool {
    /// `FS_CASEFOLD_FL`
    const CASEFOLD: u32 = 0x4000_0000;
    rustix::fs::ioctl_getflags(fd).is_ok_and(|flags| flags.bits() & CASEFOLD != 0)
}

/// `/proc/self/fd/N` on the stack, for calls that have no form on an `O_PATH` descriptor (xattrs,
/// truncate, chmod before fchmodat2).
pub(crate) struct ProcPath([u8; Self::LEN]);

impl ProcPath {
    const PREFIX: &'static [u8] = b"/proc/self/fd/";
    const LEN: usize = Self::PREFIX.len() + 11;

    pub(crate) fn of(fd: BorrowedFd<'_>) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[..Self::PREFIX.len()].copy_from_slice(Self::PREFIX);
        let mut digits = [0; 10];
        let mut rest = fd.as_raw_fd().unsigned_abs();
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(rest % 10).expect("a digit is below 10");
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[at..];
        bytes[Self::PREFIX.len()..Self::PREFIX.len() + digits.len()].copy_from_slice(digits);
        Self(bytes)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        // The array is one byte longer than prefix and digits can be.
        CStr::from_bytes_until_nul(&self.0).expect("a NUL ends the path")
    }

    /// The same from the directory of this process's descriptors on, if that could be opened: to walk
    /// to it takes a third of what it takes to open a file.
    fn in_descriptors(&self) -> (BorrowedFd<'static>, &CStr) {
        static HERE: OnceLock<Option<OwnedFd>> = OnceLock::new();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()).ok();
        match HERE.get_or_init(open) {
            Some(here) => {
                let name = CStr::from_bytes_until_nul(&self.0[Self::PREFIX.len()..]);
                (here.as_fd(), name.expect("a NUL ends the path"))
            }
            None => (rustix::fs::CWD, self.as_c_str()),
        }
    }
}

/// One entry of a directory, borrowed from the buffer that getdents64 filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirEntry<'a> {
    pub(crate) ino: u64,
    /// Where to go on after this entry.
    pub(crate) next_offset: u64,
    /// `DT_*`.
    pub(crate) kind: u8,
    pub(crate) name: &'a CStr,
}

impl<'a> DirEntry<'a> {
    /// The name, unless it is `.` or `..`.
    pub(crate) fn child_name(&self) -> Option<Name<'a>> {
        Name::new(self.name).ok()
    }
}

/// A directory being listed, with the entries that the kernel gave and nobody took yet.
#[derive(Debug)]
pub(crate) struct DirStream {
    fd: Arc<OwnedFd>,
    buffer: Vec<u8>,
    /// Unread part of `buffer`.
    unread: std::ops::Range<usize>,
    /// Cookie that the unread part (or the descriptor, when nothing is unread) goes on from.
    position: u64,
}

impl DirStream {
    /// Bytes per getdents64: what glibc asks for, and about one readdir reply.
    const BUFFER_LEN: usize = 32 << 10;

    /// A stream over `fd`, whose position in the directory nobody else uses.
    pub(crate) fn new(fd: impl Into<Arc<OwnedFd>>) -> Self {
        Self { fd: fd.into(), buffer: Vec::new(), unread: 0..0, position: 0 }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The cookie to go on from.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Goes on from the cookie `offset`, a no-op when the last reply ended there.
    pub(crate) fn seek(&mut self, offset: u64) -> Result<(), Errno> {
        if offset != self.position {
            rustix::fs::seek(&*self.fd, rustix::fs::SeekFrom::Start(offset))?;
            self.unread = 0..0;
            self.position = offset;
        }
        Ok(())
    }

    /// Reads again from the cookie where it stands: entries that were read and not taken may be
    /// stale.
    pub(crate) fn refresh(&mut self) -> Result<(), Errno> {
        if !self.unread.is_empty() {
            self.unread = 0..0;
            rustix::fs::seek(&*self.fd, rustix::fs::SeekFrom::Start(self.position))?;
        }
        Ok(())
    }

    /// The next entry, without taking it; `None` at the end.
    pub(crate) fn peek(&mut self) -> Result<Option<DirEntry<'_>>, Errno> {
        if self.unread.is_empty() {
            if self.buffer.is_empty() {
                self.buffer = SPARE.take().unwrap_or_else(|| vec![0; Self::BUFFER_LEN]);
            }
            let filled = getdents(self.fd.as_fd(), &mut self.buffer)?;
            self.unread = 0..filled;
        }
        parse_entry(&self.buffer[self.unread.clone()]).map(|e| e.map(|(entry, _)| entry))
    }

    /// Takes the entry that [`DirStream::peek`] showed.
    pub(crate) fn advance(&mut self) {
        if let Ok(Some((entry, len))) = parse_entry(&self.buffer[self.unread.clone()]) {
            self.position = entry.next_offset;
            self.unread.start += len;
        }
    }
}

thread_local! {
    /// A buffer of a stream that ended, for the thread's next one: a new one for each small directory
    /// costs as much as listing it.
    static SPARE: Cell<Option<Vec<u8>>> = const { Cell::new(None) };
}

impl Drop for DirStream {
    fn drop(&mut self) {
        if !self.buffer.is_empty() {
            // Of a thread that ends there may be none.
            let _ = SPARE.try_with(|spare| spare.set(Some(std::mem::take(&mut self.buffer))));
        }
    }
}

/// Parses the entry at the start of `bytes`: `ino u64, off i64, reclen u16, type u8, name, NUL`.
fn parse_entry(bytes: &[u8]) -> Result<Option<(DirEntry<'_>, usize)>, Errno> {
    const NAME_AT: usize = 19;
    if bytes.is_empty() {
        return Ok(None);
    }
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    let len = bytes.get(16..18).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    let entry = (|| {
        let len = usize::from(len?);
        let name = CStr::from_bytes_until_nul(bytes.get(NAME_AT..len)?).ok()?;
        Some((DirEntry { ino: word(0)?, next_offset: word(8)?, kind: bytes[18], name }, len))
    })();
    entry.map(Some).ok_or(Errno::IO)
}

/// getdents64(2) into `buffer`; returns how many bytes were filled, 0 at the end.
fn getdents(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    // `RawDir` hides how far it read; the raw call leaves parsing, and what is left over, to us.
    #[expect(unsafe_code, reason = "rustix has no getdents that leaves the buffer to its caller")]
    // SAFETY: the pointer and length describe `buffer`, exclusively borrowed for the call; the
    // kernel writes at most `len` bytes of plain data into it; the descriptor is open while
    // borrowed.
    let filled = unsafe {
        libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
    };
    usize::try_from(filled).map_err(|_| last_errno())
}

pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Whether nobody has the file behind `fd` open for writing, or mapped so: whether a read lease
/// would be granted. `fd` must be open for reading only. False also where leases are not to be had.
pub(crate) fn is_not_written(fd: BorrowedFd<'_>) -> bool {
    const F_SETSIG: i32 = 10;
    // Somebody who opens the file for writing while the lease stands has it broken by a signal to
    // this process: SIGURG, which is ignored unless somebody wants it, instead of SIGIO, which
    // would end it.
    let fcntl = |command, argument: i32| {
        #[expect(unsafe_code, reason = "rustix has no leases")]
        // SAFETY: these commands take an int; the descriptor is open while borrowed.
        let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
        result == 0
    };
    fcntl(F_SETSIG, libc::SIGURG)
        && fcntl(libc::F_SETLEASE, libc::F_RDLCK)
        && fcntl(libc::F_SETLEASE, libc::F_UNLCK)
}

/// Reads into `buffer` at `offset` until it is full or the file ends.
pub(crate) fn read_full(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    offset: u64,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(fd, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            // What was read is given; the error comes back with the next read.
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The first `len` bytes (or all, of a shorter file) of the regular file that an `O_PATH`
/// descriptor names. `None` for what is no regular file (a FIFO or a device put in its place), which
/// is not opened; for a file that somebody holds a write lease on, whose open would wait for up
/// to 45 s; and for a sealed one, whose bytes are not its content. With a further name where no rule
/// seals, that counts against the caller.
///
/// It is no access of the caller's: where the file is this process's own, or it has the right, the time of
/// access stays.
pub(crate) fn read_head(path: BorrowedFd<'_>, len: usize) -> Result<Option<Vec<u8>>, Errno> {
    let Some((fd, stat)) = open_head(path)? else { return Ok(None) };
    head_of(fd.as_fd(), &stat, len)
}

/// Opens a file for [`head_of`]; `None` for what is not opened, see [`read_head`].
pub(crate) fn open_head(path: BorrowedFd<'_>) -> Result<Option<(OwnedFd, Stat)>, Errno> {
    let stat = stat_fd(path)?;
    if stat.file_type() != FileType::RegularFile {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let fd = match reopen(path, flags | OFlags::NOATIME) {
        Err(Errno::PERM) => reopen(path, flags),
        fd => fd,
    };
    match fd {
        Err(Errno::AGAIN) => Ok(None),
        fd => Ok(Some((fd?, stat))),
    }
}

/// The first `len` bytes of a file with these attributes; `None` for a sealed one.
pub(crate) fn head_of(
    fd: BorrowedFd<'_>,
    stat: &Stat,
    len: usize,
) -> Result<Option<Vec<u8>>, Errno> {
    // Most files are short; a page more than their size, should they grow meanwhile.
    let size = usize::try_from(stat.size()).unwrap_or(usize::MAX);
    let mut head = vec![0; len.min(size.saturating_add(4096))];
    let read = read_full(fd, &mut head, 0)?;
    head.truncate(read);
    Ok((!tollgate_seal::begins_sealed(&head)).then_some(head))
}

/// Writes `data` at `offset`, as much as the file takes. An error after a part was written is
/// reported as a short write, as write(2) does it.
pub(crate) fn write_full(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes `data` at the end of the file, wherever that is by now. A part counts as above.
pub(crate) fn append_full(fd: BorrowedFd<'_>, data: &[u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        let rest = [IoSlice::new(&data[done..])];
        match rustix::io::pwritev2(fd, &rest, 0, ReadWriteFlags::APPEND) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The target of the symbolic link that `fd` (`O_PATH`) names, into `buffer`.
pub(crate) fn read_link<'b>(
    fd: BorrowedFd<'_>,
    buffer: &'b mut [MaybeUninit<u8>],
) -> Result<&'b [u8], Errno> {
    let (target, _) = rustix::fs::readlinkat_raw(fd, c"", &mut *buffer)?;
    Ok(target)
}

/// The path of `fd` as the kernel knows it at this moment; `None` for one that is too long.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let link = ProcPath::of(fd);
    let (dir, name) = link.in_descriptors();
    rustix::fs::readlinkat(dir, name, Vec::new()).ok().map(std::ffi::CString::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn proc_path_names_the_descriptor() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let path = ProcPath::of(file.as_fd());
        let expected = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(path.as_c_str().to_bytes(), expected.as_bytes());
    }

    #[test]
    fn a_look_at_the_head_is_no_access() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "head and more").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(5);
        file.set_times(std::fs::FileTimes::new().set_accessed(long_ago)).unwrap();
        let fd = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(read_head(fd.as_fd(), 4).unwrap().unwrap(), b"head");
        assert_eq!(path.metadata().unwrap().accessed().unwrap(), long_ago);
    }

    /// Between the attributes that were asked for and the content, another file can take the name:
    /// neither a FIFO nor a lease is waited for.
    #[test]
    fn content_is_read_of_regular_files_and_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let head = |name| read_head(open_path(fd.as_fd(), name).unwrap().as_fd(), 4).unwrap();
        std::fs::write(dir.path().join("file"), b"content").unwrap();
        assert_eq!(head(c"file").as_deref(), Some(&b"cont"[..]));
        rustix::fs::mknodat(&fd, c"fifo", FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(head(c"fifo"), None);
        let leased = std::fs::File::options().write(true).open(dir.path().join("file")).unwrap();
        // SAFETY: takes no pointer; the descriptor is open.
        #[expect(unsafe_code, reason = "rustix has no leases")]
        let taken = unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        if taken != 0 {
            println!("not shown: no lease can be taken here ({})", last_errno());
            return;
        }
        // SAFETY: as above; the break of the lease is signalled, and must not end this process.
        #[expect(unsafe_code, reason = "rustix has no signal dispositions")]
        unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
        }
        assert_eq!(head(c"file"), None);
        drop(leased);
        assert_eq!(head(c"file").as_deref(), Some(&b"cont"[..]));
    }

    #[test]
    fn the_content_of_a_sealed_file_is_not_known() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let head = || read_head(file.as_file().as_fd(), 64 << 10).unwrap();
        let mut sealed = vec![0; 8192];
        sealed[4096..4104].copy_from_slice(b"TGSEALED");
        std::fs::write(file.path(), &sealed).unwrap();
        assert_eq!(head(), None, "the first copy of the header is damaged");
        std::fs::write(file.path(), b"TGSEALED").unwrap();
        assert_eq!(head(), None);
        std::fs::write(file.path(), b"TGSEAL").unwrap();
        assert_eq!(head().as_deref(), Some(&b"TGSEAL"[..]));
    }

    #[test]
    fn device_numbers_survive_the_wire() {
        for (major, minor) in [(1, 3), (8, 0), (259, 4095), (4095, 1_048_575)] {
            assert_eq!(
                decode_device(encode_device(major, minor)),
                rustix::fs::makedev(major, minor)
            );
        }
    }

    #[test]
    fn a_version_is_settled_once_it_is_older_than_the_clock_is_coarse() {
        let at = |modified: i64, changed: i64| Version {
            size: 1,
            modified_ns: modified * 1_000_000_000,
            changed_ns: changed * 1_000_000_000,
        };
        assert!(at(90, 97).is_settled(100));
        assert!(!at(90, 98).is_settled(100), "changed 2 s ago");
        assert!(!at(98, 90).is_settled(100), "modified 2 s ago");
        assert!(!at(101, 90).is_settled(100), "the clock was set back");
        let beyond = Version { size: 1, modified_ns: i64::MAX, changed_ns: 0 };
        assert!(!beyond.is_settled(100));
    }

    #[test]
    fn who_writes_a_file_or_maps_it_so_is_noticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = std::fs::File::open(file.path()).unwrap();
        assert!(!is_not_written(reader.as_fd()), "open for writing by this test");
        let path = file.into_temp_path();
        // Where leases are not to be had, nothing is known of writers.
        if is_not_written(reader.as_fd()) {
            let writer = std::fs::File::options().append(true).open(&path).unwrap();
            assert!(!is_not_written(reader.as_fd()));
            drop(writer);
            assert!(is_not_written(reader.as_fd()));
        }
    }

    #[test]
    fn what_is_appended_goes_to_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first").unwrap();
        assert_eq!(append_full(file.as_file().as_fd(), b" second").unwrap(), 7);
        assert_eq!(std::fs::read(file.path()).unwrap(), b"first second");
    }

    #[test]
    fn a_listing_can_be_left_and_taken_up_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..3000 {
            std::fs::write(dir.path().join(format!("file-{i}")), b"").unwrap();
        }
        let open = || {
            DirStream::new(
                open_dir(std::fs::File::open(dir.path()).unwrap().as_fd(), c".").unwrap(),
            )
        };
        let mut stream = open();
        let mut seen = BTreeSet::new();
        let mut resume = None;
        while let Some(entry) = stream.peek().unwrap() {
            seen.insert(entry.name.to_owned());
            let offset = entry.next_offset;
            stream.advance();
            if seen.len() == 1500 {
                resume = Some((offset, seen.clone()));
            }
        }
        assert_eq!(seen.len(), 3002);
        let (offset, first_half) = resume.unwrap();
        let mut second = open();
        second.seek(offset).unwrap();
        let mut rest = BTreeSet::new();
        while let Some(entry) = second.peek().unwrap() {
            rest.insert(entry.name.to_owned());
            second.advance();
        }
        assert_eq!(rest.len() + first_half.len(), 3002);
        assert!(rest.is_disjoint(&first_half));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let _ = parse_entry(&bytes);
        }
    }
}
