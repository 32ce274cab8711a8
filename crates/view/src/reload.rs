//! Another policy for a view that is being served.
//!
//! Every open, look-up and change that comes after [`View::replace_policy`] is judged by the new
//! policy. What the kernel remembers of names, attributes, links' targets and listings is expired,
//! so that it asks again. Twice: a reply that was on its way when the policy changed can come after
//! the first time.
//!
//! Nothing takes a handle back that is open: the kernel reads and writes the lower file of a
//! passthrough handle, and asks nobody. [`Reloaded`] says which ones the new policy would refuse.

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::{Connection, InitFlags, Name};
use tollgate_policy::{CallerFacts, Facts, Kind, Mode, Operation, Policy, Verdict};

use crate::concealed::Names;
use crate::mode::IoMode;
use crate::policies::MAX_POLICIES;
use crate::table::Node;
use crate::view::View;

/// When what was expired is expired again.
const AGAIN: Duration = Duration::from_millis(100);
/// Most paths in [`Reloaded::still_open`].
const MAX_PATHS: usize = 20;

/// What a change of the policy could not take back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Regular files that are open.
    pub open: usize,
    /// Those that the new policy refuses to read or to write to somebody, or wants to see every
    /// read and write of: who has them open goes on as before.
    pub not_revoked: usize,
    /// Their paths, at most twenty.
    pub still_open: Vec<Vec<u8>>,
}

/// Why a policy did not change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// Policies that were replaced stay in memory.
    #[error("this view has had {MAX_POLICIES} policies, the most there can be; start it again")]
    TooMany,
    /// Targets of links that were read once are kept by the kernel, for everybody.
    #[error(
        "the new policy tells callers apart at symbolic links, and the view was started with one \
         that does not; start it again"
    )]
    Links,
    /// The new policy redacts or seals files.
    #[error("no work queues or buffers for redacted and sealed files could be had")]
    WorkQueues,
    /// What is native is mounted at the start.
    #[error("the directories with the action `native` differ, and are mounted at the start alone")]
    Native,
}

impl View {
    /// Puts `policy` in force for every request from now on, and has the kernel ask again for what
    /// it remembers. Returns after a tenth of a second; not to be called by a handler of requests.
    ///
    /// # Errors
    /// [`ReloadError`]; the old policy stays in force.
    pub fn replace_policy(&self, policy: Arc<Policy>) -> Result<Reloaded, ReloadError> {
        let directories = |policy: &Policy| {
            policy.native().into_iter().map(|directory| directory.path).collect::<Vec<_>>()
        };
        if directories(&policy) != directories(self.admission.policy()) {
            return Err(ReloadError::Native);
        }
        let keeps_links = self
            .connection
            .get()
            .is_some_and(|connection| connection.has(InitFlags::CACHE_SYMLINKS));
        if keeps_links && policy.tells_callers_apart_at_links() {
            return Err(ReloadError::Links);
        }
        if policy.makes_bytes() && self.road.start().is_err() {
            return Err(ReloadError::WorkQueues);
        }
        self.admission.replace(policy).map_err(|_| ReloadError::TooMany)?;
        self.contents.policy_changed();
        let concealed = self.admission.concealed.take();
        let connection = self.connection.get();
        let expire = || connection.into_iter().for_each(|c| self.expire(c, &concealed));
        expire();
        let reloaded = self.not_revoked();
        std::thread::sleep(AGAIN);
        expire();
        Ok(reloaded)
    }

    /// How often the policy changed.
    #[must_use]
    pub fn policy_epoch(&self) -> usize {
        self.admission.epoch()
    }

    /// The kernel asks again for every name, and for all that it has of inodes whose contents it
    /// keeps: targets of symbolic links and listings. `ENOENT` for what it does not have is as
    /// good.
    fn expire(&self, connection: &Connection, concealed: &Names) {
        for node in self.table.all() {
            for place in node.places() {
                if let Ok(name) = Name::new(&place.name) {
                    let _ = connection.expire_entry(place.parent.id, name);
                }
            }
            if node.is_dir() || node.kind == FileType::Symlink {
                let _ = connection.invalidate_inode(node.id, 0, 0);
            }
        }
        for (dir, name) in concealed {
            if let Ok(name) = Name::new(name) {
                let _ = connection.expire_entry(*dir, name);
            }
        }
    }

    fn not_revoked(&self) -> Reloaded {
        let mut reloaded = Reloaded::default();
        for node in self.table.all() {
            let Some(mode) = node.io.lock().mode() else { continue };
            reloaded.open += 1;
            if let Ok(Some(path)) = self.refused_now(&node, mode) {
                reloaded.not_revoked += 1;
                if reloaded.still_open.len() < MAX_PATHS {
                    reloaded.still_open.push(path);
                }
            }
        }
        reloaded
    }

    /// The path of an open file under which the policy would not let everybody open it as it is
    /// open now.
    fn refused_now(&self, node: &Arc<Node>, open: IoMode) -> Result<Option<Vec<u8>>, Errno> {
        let stat = self.stat(node)?;
        let policy = self.admission.policy();
        let refused = |path: &Vec<u8>| {
            let kind = Kind::from_mode(stat.mode());
            let facts = Facts { path, kind, size: stat.size(), head: None };
            let nobody = CallerFacts { uid: u32::MAX, gid: u32::MAX, exe: None };
            let refuses =
                |operation| policy.decide(&facts, operation, &nobody).verdict != Verdict::Allow;
            let must_be_seen =
                open == IoMode::Passthrough && policy.mode(&facts).0 != Mode::Passthrough;
            must_be_seen || refuses(Operation::Read) || refuses(Operation::Write)
        };
        Ok(self.paths.of(node)?.into_iter().find(refused))
    }
}
