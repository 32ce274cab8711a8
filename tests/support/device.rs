//! A /dev/fuse for everybody, for tests with callers that are not root.
#![expect(unsafe_code, reason = "a mount namespace for one thread")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `test`, as root, on a thread in a mount namespace of its own, in which everybody may open
/// /dev/fuse, as distributions have it.
pub(crate) fn with_open_device(test: impl FnOnce() + Send) {
    let device = tempfile::tempdir().unwrap();
    let node = device.path().join("fuse");
    mknodat(CWD, &node, FileType::CharacterDevice, Mode::empty(), makedev(10, 229)).unwrap();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    let body = || {
        // SAFETY: the flags unshare no memory and no descriptors, only the thread's view of mounts,
        // root and working directory; this thread was made for that, and its children are to
        // inherit it.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount_bind(&node, "/dev/fuse").unwrap();
        test();
    };
    std::thread::scope(|scope| {
        let done = scope.spawn(body).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
