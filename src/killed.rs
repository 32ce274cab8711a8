//! Views that a killed server left, and that hang: a thread of the server is stuck in the kernel, where
//! it waits for a caller that waits for the server. It keeps /dev/fuse open, so that the connection does
//! not end.
//!
//! The process beside the server ends the connection (`sandbox::Mounter`), unless it was killed too, as
//! all processes of a service are. Whoever looks at a view asks here first.

use std::fs;
use std::path::Path;

use crate::connection;
use crate::mountinfo::{self, MountInfo};

/// Ends the connections of views of this mount namespace whose server was killed. The views stay, and
/// answer `ENOTCONN`. Nothing of a view is touched. Without the permission, or on kernels that do not
/// tell the connection of a descriptor, nothing happens.
pub(crate) fn end_connections() {
    let Ok(mut mounts) = mountinfo::read() else { return };
    mounts.retain(|mount| mount.kind == mountinfo::VIEW);
    let Ok(processes) = fs::read_dir("/proc") else { return };
    if mounts.is_empty() {
        return;
    }
    for process in processes.flatten().filter(|process| is_killed(&process.path())) {
        for number in connections(&process.path()) {
            if mounts.iter().filter_map(MountInfo::minor_number).any(|shown| shown == number) {
                let _ = fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1");
            }
        }
    }
}

/// Whether the first thread of a process has ended and others have not. A server ends with its first
/// thread.
pub(crate) fn is_killed(process: &Path) -> bool {
    let Ok(stat) = fs::read(process.join("stat")) else { return false };
    // The name before may hold anything.
    let after_name = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    matches!(after_name, Some(b'Z' | b'X'))
        && fs::read_dir(process.join("task")).is_ok_and(|threads| threads.count() > 1)
}

/// The numbers of the FUSE connections that the threads of a process hold. Its first one holds none any
/// more.
fn connections(process: &Path) -> Vec<u32> {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let mut held = threads.map(|thread| connection::held(&thread.path()));
    held.find(|numbers| !numbers.is_empty()).unwrap_or_default()
}
