//! What is left of a `run`: threads that were killed, and wait in the kernel for the answer of a FUSE file system
//! that CMD serves itself. They keep its device open, so that its connection does not end, and with it
//! neither do they, nor their pid namespace.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::connection;
use crate::mountinfo::{self, MountInfo};
use crate::sys;

/// Most pid namespaces that lie in each other (`MAX_PID_NS_LEVEL`).
const LEVELS: usize = 32;

/// The pid namespace of CMD.
#[derive(Debug)]
pub(super) struct Namespace {
    fd: OwnedFd,
    /// Connections whose file systems were there before CMD, the views with them.
    before: Vec<u32>,
}

impl Namespace {
    /// That of the process, in which CMD has not been started.
    pub(super) fn of(process: u32) -> Option<Self> {
        let directory = format!("/proc/{process}");
        let before = mounted(&process.to_string());
        Some(Self { fd: of_process(Path::new(&directory))?, before })
    }

    /// The FUSE connections that killed threads hold, or that CMD mounted for them, one of which keeps them.
    pub(super) fn connections(&self) -> Vec<u32> {
        let threads = self.processes().flat_map(|process| threads(&process));
        let killed: Vec<_> = threads.filter(|thread| is_killed(thread)).collect();
        let of_mounts = killed
            .iter()
            .filter_map(|thread| Some(mounted(thread.strip_prefix("/proc").ok()?.to_str()?)));
        let held = killed.iter().map(|thread| connection::held(thread));
        let mut all: Vec<_> = held.chain(of_mounts).flatten().collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|number| !self.before.contains(number));
        all
    }

    /// Whether a process of it is there.
    pub(super) fn has_processes(&self) -> bool {
        self.processes().next().is_some()
    }

    fn processes(&self) -> impl Iterator<Item = PathBuf> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_number = |entry: &fs::DirEntry| {
            entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok())
        };
        all.filter(is_number).map(|entry| entry.path()).filter(|process| self.has(process))
    }

    /// Whether a process is in the namespace, or in one below it.
    fn has(&self, process: &Path) -> bool {
        let mut namespace = of_process(process);
        for _ in 0..LEVELS {
            let Some(here) = namespace else { return false };
            if is_same(&here, &self.fd) {
                return true;
            }
            namespace = sys::parent_namespace(here.as_fd()).ok();
        }
        false
    }
}

/// The connections of the FUSE file systems that a process, or a thread, sees.
fn mounted(process: &str) -> Vec<u32> {
    let mounts = mountinfo::read_of(process).unwrap_or_default();
    let fuse = mounts.iter().filter(|mount| mount.kind.starts_with("fuse"));
    fuse.filter_map(MountInfo::minor_number).collect()
}

/// Whether a thread has a SIGKILL that it has not died of yet.
fn is_killed(thread: &Path) -> bool {
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    status.lines().filter_map(pending).any(|set| set & 1 << (libc::SIGKILL - 1) != 0)
}

fn of_process(process: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(process.join("ns/pid"), flags, Mode::empty()).ok()
}

fn threads(process: &Path) -> Vec<PathBuf> {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path()).collect()
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let id = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    id(one).is_some_and(|one| id(other) == Some(one))
}
