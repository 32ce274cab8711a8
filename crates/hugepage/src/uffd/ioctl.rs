//! The system calls of userfaultfd, each checked against the kernel's header.
#![expect(unsafe_code, reason = "ioctls on raw addresses, and a shared mapping")]

use std::fs::File;
use std::io::Read;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::errno::Errno;

/// Bits of the ioctls that a registered range supports are numbered like the ioctls.
const COPY: u32 = 0x03;
const ZEROPAGE: u32 = 0x04;
const MOVE: u32 = 0x05;
const CONTINUE: u32 = 0x07;

/// `_IOC(direction, 0xAA, number, size)` of a call with argument `T`.
const fn request<T>(direction: u32, number: u32) -> libc::Ioctl {
    let size = size_of::<T>();
    assert!(size < 1 << 14);
    #[expect(clippy::cast_possible_truncation, reason = "checked in the line above")]
    let code = direction << 30 | (size as u32) << 16 | 0xAA << 8 | number;
    code as libc::Ioctl
}
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`.
#[repr(C)]
struct Transfer {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `struct uffdio_zeropage` and `struct uffdio_continue`.
#[repr(C)]
struct InPlace {
    range: Range,
    mode: u64,
    done: i64,
}

/// How a fault is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Copy,
    ZeroPage,
    Move,
    Continue,
}

impl Call {
    fn number(self) -> u32 {
        match self {
            Self::Copy => COPY,
            Self::ZeroPage => ZEROPAGE,
            Self::Move => MOVE,
            Self::Continue => CONTINUE,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Copy => "UFFDIO_COPY",
            Self::ZeroPage => "UFFDIO_ZEROPAGE",
            Self::Move => "UFFDIO_MOVE",
            Self::Continue => "UFFDIO_CONTINUE",
        }
    }
}

/// A userfaultfd.
#[derive(Debug)]
pub(super) struct Uffd(File);

/// Whose faults a [`Uffd`] sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sees {
    /// Those of user space and those of the kernel on behalf of a system call.
    All,
    /// Those of user space. A system call that touches a missing page fails with EFAULT.
    UserOnly,
}

impl Uffd {
    /// Opens one with `features`. Where the process may not see faults of the kernel itself
    /// (`vm.unprivileged_userfaultfd` is 0, and it has no CAP_SYS_PTRACE), one for faults of user
    /// space only.
    pub(super) fn open(features: u64) -> Result<(Self, Sees), Errno> {
        const USER_MODE_ONLY: i32 = 1;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let (fd, sees) = match Self::create(flags) {
            Err(Errno(libc::EPERM)) => (Self::create(flags | USER_MODE_ONLY)?, Sees::UserOnly),
            opened => (opened?, Sees::All),
        };
        let mut api = Api { api: 0xAA, features, ioctls: 0 };
        // SAFETY: `api` matches `struct uffdio_api` and lives through the call.
        check(unsafe {
            libc::ioctl(fd.as_raw_fd(), request::<Api>(READ_WRITE, 0x3F), &raw mut api)
        })?;
        Ok((Self(File::from(fd)), sees))
    }

    fn create(flags: i32) -> Result<OwnedFd, Errno> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).expect("a descriptor or -1");
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a descriptor that the kernel just gave out, and that nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Registers a range for faults on missing pages, and on present but unmapped ones if `minor`.
    /// Returns whether `call` can resolve them.
    pub(super) fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        minor: bool,
        call: Call,
    ) -> Result<bool, Errno> {
        let mode = if minor { 1 | 4 } else { 1 };
        let range = Range { start: start.as_ptr() as u64, len: len as u64 };
        let mut register = Register { range, mode, ioctls: 0 };
        self.call(request::<Register>(READ_WRITE, 0x00), &mut register)?;
        Ok(register.ioctls & 1 << call.number() != 0)
    }

    /// Maps `len` bytes at `to`: the pages or a copy of the bytes at `from`, or what the file or
    /// nothing holds. Returns how many bytes were mapped, and why not all: the kernel stops with
    /// EAGAIN in the middle, or with another error before the first page.
    ///
    /// # Safety
    /// Both ranges are the caller's. Moving leaves a hole at `from`, which then reads as zeroes, so
    /// nothing may rely on its bytes.
    pub(super) unsafe fn resolve(
        &self,
        call: Call,
        to: NonNull<u8>,
        from: NonNull<u8>,
        len: usize,
    ) -> (usize, Result<(), Errno>) {
        let (to, from, len) = (to.as_ptr() as u64, from.as_ptr() as u64, len as u64);
        let (done, result) = match call {
            Call::Copy | Call::Move => {
                let mut transfer = Transfer { to, from, len, mode: 0, done: 0 };
                let result =
                    self.call(request::<Transfer>(READ_WRITE, call.number()), &mut transfer);
                (transfer.done, result)
            }
            Call::ZeroPage | Call::Continue => {
                let mut in_place = InPlace { range: Range { start: to, len }, mode: 0, done: 0 };
                let result =
                    self.call(request::<InPlace>(READ_WRITE, call.number()), &mut in_place);
                (in_place.done, result)
            }
        };
        // A negative number is the error again.
        (usize::try_from(done).unwrap_or_default(), result)
    }

    /// Lets threads go on that wait for a page which is there.
    pub(super) fn wake(&self, start: NonNull<u8>, len: usize) -> Result<(), Errno> {
        let mut range = Range { start: start.as_ptr() as u64, len: len as u64 };
        self.call(request::<Range>(READ, 0x02), &mut range)
    }

    /// Waits up to `timeout` for faults, and returns the addresses of up to 16.
    pub(super) fn faults(&mut self, timeout: Duration) -> Result<Vec<u64>, Errno> {
        const MESSAGE: usize = 32;
        const EVENT_PAGEFAULT: u8 = 0x12;
        let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives through the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
        if ready <= 0 {
            let errno = Errno::last();
            return if ready == 0 || errno.0 == libc::EINTR { Ok(Vec::new()) } else { Err(errno) };
        }
        let mut messages = [0u8; 16 * MESSAGE];
        let read = match self.0.read(&mut messages) {
            Ok(read) => read,
            // Another server of the same range was faster.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(Errno::of(&error)),
        };
        let faults = messages[..read].chunks_exact(MESSAGE).filter(|m| m[0] == EVENT_PAGEFAULT);
        let address = |message: &[u8]| message[16..24].try_into().map(u64::from_ne_bytes).ok();
        Ok(faults.filter_map(address).collect())
    }

    fn call<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: each request is made with the size of its argument's type, which matches the
        // kernel's structure and lives through the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request, ptr::from_mut(argument)) })
    }
}

fn check(result: i32) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}
