//! Files that CMD gave a set-user-ID bit, or the like. They have no effect in the view, nor where DIR
//! is mounted `nosuid`; elsewhere, whoever may execute one gets the rights of its owner or group.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::escape::shown;

/// Directories that are looked at.
const DIRECTORIES_MAX: usize = 32_768;
/// Files that are named.
const TOLD_MAX: usize = 6;
/// How far the clock of file times may be behind.
const CLOCK: Duration = Duration::from_millis(20);

/// A line about such files in `dir` that changed since then. Wherever they are by now: programs that
/// write files often move them to their places afterwards.
pub(super) fn left_behind(dir: &Path, since: SystemTime) -> Option<String> {
    let since = since.checked_sub(CLOCK)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let since = (i64::try_from(since.as_secs()).ok()?, i64::from(since.subsec_nanos()));
    let Found { files, whole } = look(dir, |meta| (meta.ctime(), meta.ctime_nsec()) >= since);
    let part = if whole { "" } else { " (not all directories were looked at)" };
    if files.is_empty() {
        let unseen = "CMD gave a file a set-user-ID or set-group-ID bit, or capabilities";
        return (!whole).then(|| format!("{unseen}; it was not found{part}"));
    }
    let names: Vec<_> = files.iter().map(|file| format!("`{}`", shown(file))).collect();
    let told = names[..names.len().min(TOLD_MAX)].join(", ");
    let more = match names.len().saturating_sub(TOLD_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "CMD gave a set-user-ID or set-group-ID bit, or capabilities: {told}{more}{part}. Outside, \
         whoever may execute such a file in `{}` gets the rights of its owner or group: \
         `chmod ug-s FILE` and `setcap -r FILE` take that away",
        shown(dir)
    ))
}

struct Found {
    /// Relative to the directory.
    files: Vec<PathBuf>,
    whole: bool,
}

fn look(dir: &Path, is_new: impl Fn(&Metadata) -> bool) -> Found {
    let mut found = Found { files: Vec::new(), whole: true };
    let top = std::fs::metadata(dir).map_or(0, |meta| meta.dev());
    let (mut left, mut seen) = (vec![PathBuf::new()], 0);
    while let Some(inside) = left.pop() {
        seen += 1;
        let entries = std::fs::read_dir(dir.join(&inside)).ok();
        let Some(entries) = entries.filter(|_| seen <= DIRECTORIES_MAX) else {
            found.whole = false;
            continue;
        };
        for entry in entries.flatten() {
            // Links are not followed.
            let Ok(meta) = entry.metadata() else { continue };
            let path = inside.join(entry.file_name());
            if meta.is_dir() && (meta.dev() == top || !is_of_kernel(&entry.path())) {
                left.push(path);
            } else if meta.is_file() && is_new(&meta) && is_raised(&entry.path(), meta.mode()) {
                found.files.push(path);
            }
        }
    }
    found.files.sort();
    found
}

/// A proc or cgroup file system that is mounted inside.
fn is_of_kernel(path: &Path) -> bool {
    let opened = std::fs::File::open(path);
    opened.is_ok_and(|directory| tollgate_view::is_kernel_file_system(directory.as_fd()))
}

/// By its mode, or by an attribute. Without the right for a group to execute, the bit is no right.
fn is_raised(path: &Path, mode: u32) -> bool {
    let of_group = libc::S_ISGID | libc::S_IXGRP;
    mode & libc::S_ISUID != 0
        || mode & of_group == of_group
        || rustix::fs::lgetxattr(path, c"security.capability", &mut [0u8; 64][..]).is_ok()
}
