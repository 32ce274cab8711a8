//! What all views of one server process have in common.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{bail, ensure};
use rustix::process::Resource;
use tollgate_haltpoll::KeepAwake;
use tollgate_view::Neighbours;

use super::served::Served;
use crate::audit::Recorder;
use crate::sandbox::Sandbox;
use crate::soft_limits::raise_open_files;

/// What all views of one server process have in common.
pub(crate) struct Common {
    pub(crate) sandbox: Arc<Sandbox>,
    /// Of DIR; the further views have theirs from it.
    recorder: Arc<Recorder>,
    dir: PathBuf,
    keep_awake: OnceLock<Arc<KeepAwake>>,
    share: DescriptorShare,
    neighbours: Option<Arc<Neighbours>>,
    pub(super) served: Arc<Served>,
}

impl Common {
    /// Of views of these directories.
    ///
    /// # Errors
    /// When one of them cannot be looked at.
    pub(crate) fn of(
        sandbox: Sandbox,
        recorder: Recorder,
        dir: &Path,
        share: DescriptorShare,
        directories: &[BorrowedFd<'_>],
    ) -> std::io::Result<Self> {
        let (sandbox, recorder) = (Arc::new(sandbox), Arc::new(recorder));
        let neighbours = match directories {
            [_] => None,
            several => Some(Arc::new(Neighbours::new(several)?)),
        };
        let (dir, keep_awake) = (dir.to_owned(), OnceLock::new());
        Ok(Self { sandbox, recorder, dir, keep_awake, share, neighbours, served: Arc::default() })
    }

    /// Where the views ask each other about files that have names in several of them.
    pub(crate) fn neighbours(&self) -> Option<Arc<Neighbours>> {
        self.neighbours.clone()
    }

    /// Who hears what happens in the view of `dir`.
    pub(crate) fn recorder(&self, dir: &Path) -> Arc<Recorder> {
        if dir == self.dir {
            return Arc::clone(&self.recorder);
        }
        Arc::new(self.recorder.further(dir))
    }

    /// What keeps CPUs awake for all of them.
    pub(crate) fn keep_awake(&self, mode: tollgate_haltpoll::Mode) -> Arc<KeepAwake> {
        Arc::clone(self.keep_awake.get_or_init(|| Arc::new(KeepAwake::start(mode))))
    }

    /// Most descriptors of one view; `None`: what the process may open.
    pub(crate) fn descriptors(&self) -> Option<usize> {
        self.share.0
    }
}

/// What the kernel's table of descriptors has room for from the start: 128 KiB of kernel memory.
const ROOM_FOR_DESCRIPTORS: u64 = 16_384;

/// Makes room for many descriptors at once, of which the process may open so many. The kernel doubles a
/// full table, and who needs the descriptor waits for an RCU grace period if there are other threads: 10 ms and more
/// (Linux 6.18, `expand_fdtable`) for the open of a file that happens to be the 257th. A table does not shrink.
fn grow_descriptor_table(may_open: u64) {
    let last = may_open.min(ROOM_FOR_DESCRIPTORS).saturating_sub(1);
    let Ok(last) = i32::try_from(last) else { return };
    // Standard input, or whatever took its place: `inherited.rs` leaves none of the three closed.
    let room = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), last);
    // Without it, the table grows when it has to.
    drop(room);
}

/// Descriptors beside those that the views hold on their directories.
const OTHER_DESCRIPTORS: u64 = 64;

/// Fewest descriptors for files: with fewer, opens and closes would fail at once.
const LEAST_DESCRIPTORS: u64 = 32;

/// Most descriptors of one of the views.
pub(crate) struct DescriptorShare(Option<usize>);

impl DescriptorShare {
    /// Takes what the hard limit allows; CMD of `run` was forked before and keeps its own. Several
    /// views have equal shares.
    ///
    /// # Errors
    /// When `wanted` is more than the process may open, or that is too little to serve files at all.
    pub(crate) fn of(wanted: Option<usize>, views: usize) -> anyhow::Result<Self> {
        raise_open_files();
        let now = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        grow_descriptor_table(now);
        let least = OTHER_DESCRIPTORS + LEAST_DESCRIPTORS;
        ensure!(
            now >= least,
            "this process may open {now} files (`ulimit -Hn`), and a server needs {least} at least; \
             allow more"
        );
        let most = now.saturating_sub(OTHER_DESCRIPTORS);
        match wanted {
            Some(wanted) if wanted as u64 > most => bail!(
                "--max-descriptors {wanted} is more than this process may open; at most {most} \
                 (`ulimit -n` less {OTHER_DESCRIPTORS})"
            ),
            None if views == 1 => Ok(Self(None)),
            wanted => {
                let all = wanted.unwrap_or(usize::try_from(most).unwrap_or(usize::MAX));
                Ok(Self(Some((all / views.max(1)).max(1))))
            }
        }
    }
}
