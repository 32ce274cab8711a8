//! Which process serves a view, found by the FUSE connection that it holds. Neither the view nor its
//! server is asked.

use std::fs;
use std::path::Path;

/// The process that holds the connection of this number in /sys/fs/fuse, as a process id of this pid
/// namespace. `None` as well where this process may not look (another user's server), where the server
/// is in another pid namespace, and on kernels that do not tell the connection of a descriptor (fdinfo
/// has it on Linux 6.18).
pub(crate) fn holder(number: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| of_process(*pid).contains(&number))
}

/// The numbers of the connections that a process holds, as far as [`holder`] can tell.
pub(crate) fn of_process(pid: u32) -> Vec<u32> {
    held(Path::new(&format!("/proc/{pid}")))
}

/// The same of a process or a thread, by its directory in /proc.
pub(crate) fn held(process: &Path) -> Vec<u32> {
    let is_fuse = |file: &fs::DirEntry| {
        // The text of a link in /proc: nothing is opened.
        fs::read_link(file.path()).is_ok_and(|target| target.ends_with("fuse"))
    };
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let infos =
        descriptors.filter(is_fuse).map(|file| process.join("fdinfo").join(file.file_name()));
    infos.filter_map(|info| number(&info)).collect()
}

fn number(info: &Path) -> Option<u32> {
    let text = fs::read_to_string(info).ok()?;
    text.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()
}
