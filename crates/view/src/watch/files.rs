//! Changes of files by names that nobody watches.
//!
//! A mark on a directory reports what happens to a file by its name there. A further name in another
//! directory, or a new place, escapes it. So one mark on the file system reports changes of
//! attributes, of the number of names, and moves, of every inode; it does not report writes, which
//! would slow each of them. After such a report the attributes of that file are asked for again, and
//! expire as configured from then on, until it is found in a watched directory with one name.
//!
//! A server without privilege marks each file instead, see `inodes.rs`.
//!
//! The mark is on everybody's files. Where others change very many, it costs them, and looking at
//! the reports costs this process: then it is taken away for [`PAUSE`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::fanotify::Handle;
use super::shared::Shared;
use crate::lower;

/// Most reports in a second about what others change anywhere in the file system. Each takes this
/// process a look at a shard of the table.
const MAX_PER_SECOND: u32 = 20_000;
/// How long nothing is reported after there were more.
const PAUSE: Duration = Duration::from_secs(30);

/// How many reports came lately.
pub(super) struct Files {
    /// The root; `None` where nothing is reported.
    root: Option<OwnedFd>,
    second: Instant,
    reports: u32,
    resumes: Option<Instant>,
}

impl Files {
    /// Of changes in the file system of `root`, once they are reported.
    pub(super) fn new(root: BorrowedFd<'_>) -> Self {
        let root = lower::open_dir(root, c".").ok();
        Self { root, second: Instant::now(), reports: 0, resumes: None }
    }

    /// Begins to have changes reported.
    pub(super) fn start(&self, shared: &Shared) {
        if let Some(root) = &self.root {
            resume(shared, root.as_fd());
        }
    }

    /// When [`Files::read`] has something to do at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.resumes
    }

    /// Hands the number of each inode that others changed to `changed`. Returns whether reports were lost:
    /// then all that was kept has to go.
    pub(super) fn read(
        &mut self,
        shared: &Shared,
        own_pid: i32,
        buffer: &mut [u8],
        mut changed: impl FnMut(u64),
    ) -> bool {
        let (Some(group), Some(root)) = (&shared.files, &self.root) else { return false };
        if self.resumes.is_some_and(|at| at <= Instant::now()) {
            self.resumes = None;
            resume(shared, root.as_fd());
        }
        if shared.marks.has_strays() {
            return self.pause(shared);
        }
        loop {
            let Ok(events) = group.read(buffer) else { return self.pause(shared) };
            if events.is_empty() {
                return false;
            }
            for event in events.filter(|event| event.pid != own_pid) {
                if self.second.elapsed() >= Duration::from_secs(1) {
                    (self.second, self.reports) = (Instant::now(), 0);
                }
                self.reports += 1;
                let lost = event.mask & libc::FAN_Q_OVERFLOW != 0;
                if lost || self.reports > MAX_PER_SECOND {
                    return self.pause(shared);
                }
                if let Some(inode) = event.inode.and_then(|handle| handle.inode_number()) {
                    changed(inode);
                }
            }
        }
    }

    fn pause(&mut self, shared: &Shared) -> bool {
        if !shared.files_on.swap(false, Ordering::SeqCst) {
            // What is left of before the pause.
            return false;
        }
        if let (Some(group), Some(root)) = (&shared.files, &self.root) {
            if shared.each_file.load(Ordering::SeqCst) {
                shared.marks.remove_all(group);
            } else {
                let _ = group.unmark_file_system(root.as_fd());
            }
        }
        self.resumes = Some(Instant::now() + PAUSE);
        true
    }
}

fn resume(shared: &Shared, root: BorrowedFd<'_>) {
    let Some(group) = &shared.files else { return };
    // Where handles do not begin with the number of the inode, reports are of no use.
    let number = Handle::of(root, c".").ok().and_then(|handle| handle.inode_number());
    let stat = lower::stat_fd(root).ok();
    let tells_inodes = stat.is_some_and(|stat| number == Some(stat.key().ino()));
    let on = tells_inodes
        && match group.mark_file_system(root) {
            Err(Errno::PERM) => {
                shared.each_file.store(true, Ordering::SeqCst);
                true
            }
            marked => marked.is_ok(),
        };
    shared.files_on.store(on, Ordering::SeqCst);
}
