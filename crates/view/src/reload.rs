//! Another policy for a view that is being served.
//!
//! Every open, look-up and change that comes after [`View::replace_policy`] is judged by the new
//! policy. What the kernel remembers of names, attributes, links' targets and listings is expired,
//! so that it asks again. Twice: a reply that was on its way when the policy changed can come after
//! the first time.
//!
//! Nothing takes a handle back that is open: the kernel reads and writes the lower file of a
//! passthrough handle, and asks nobody. [`Reloaded`] says which ones the new policy would refuse.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tollgate_fuse::{InitFlags, Name};
use tollgate_policy::{InodeFacts, Kind, Matched, Mode, Operation, Policy};

use crate::admission::Subject;
use crate::concealed::Names;
use crate::content::open::How;
use crate::lower;
use crate::mode::{IoMode, Uses};
use crate::moving::Turn;
use crate::neighbours::Place;
use crate::policies::MAX_POLICIES;
use crate::probe;
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
    /// The new policy is about parts of the directory, and two names may be one there.
    #[error(
        "the new policy is about parts of the directory: {0}, so that another spelling would escape its rules"
    )]
    Caseless(String),
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
        self.may_be_replaced_by(&policy)?;
        self.admission.replace(policy).map_err(|_| ReloadError::TooMany)?;
        self.contents.policy_changed();
        let mut concealed = self.admission.concealed.take();
        self.expire(&concealed);
        let reloaded = self.not_revoked();
        std::thread::sleep(AGAIN);
        // Also of who was on its way: by the old policy.
        concealed.extend(self.admission.concealed.take());
        self.expire(&concealed);
        Ok(reloaded)
    }

    /// Whether [`View::replace_policy`] would put `policy` in force, which it does not here.
    ///
    /// # Errors
    /// As [`View::replace_policy`].
    pub fn may_be_replaced_by(&self, policy: &Policy) -> Result<(), ReloadError> {
        let directories = |policy: &Policy| {
            policy.native().into_iter().map(|directory| directory.path).collect::<BTreeSet<_>>()
        };
        if directories(policy) != directories(self.admission.policy()) {
            return Err(ReloadError::Native);
        }
        let keeps_links = self
            .connection
            .get()
            .is_some_and(|connection| connection.has(InitFlags::CACHE_SYMLINKS));
        if keeps_links && policy.tells_callers_apart_at_links() {
            return Err(ReloadError::Links);
        }
        if policy.tells_names_apart()
            && let Some(place) = self.caseless.get_or_init(|| self.find_caseless())
        {
            return Err(ReloadError::Caseless(place.clone()));
        }
        if policy.makes_bytes() && self.road.start().is_err() {
            return Err(ReloadError::WorkQueues);
        }
        if self.admission.epoch() + 1 >= MAX_POLICIES { Err(ReloadError::TooMany) } else { Ok(()) }
    }

    /// Why names may not be told apart by their case, as it is looked for at the start if the first policy
    /// tells names apart.
    fn find_caseless(&self) -> Option<String> {
        let root = self.fds.root();
        let mount = lower::stat_fd(self.found()).ok()?.mount_id();
        let below = || self.links.caseless_below(root.as_fd()).as_deref().map(probe::is_caseless);
        probe::caseless(root.as_fd(), mount).or_else(below)
    }

    /// How often the policy changed.
    #[must_use]
    pub fn policy_epoch(&self) -> usize {
        self.admission.epoch()
    }

    /// The kernel asks again for what it has, and for names that were hidden.
    fn expire(&self, concealed: &Names) {
        self.place.expire();
        self.neighbours().for_each(Place::expire);
        let Some(connection) = self.connection.get() else { return };
        for (dir, name) in concealed {
            if let Ok(name) = Name::new(name) {
                let _ = connection.expire_entry(*dir, name);
            }
        }
    }

    fn not_revoked(&self) -> Reloaded {
        let mut reloaded = Reloaded::default();
        for node in self.table.all() {
            let (mode, uses) = {
                let io = node.io.lock();
                let Some(mode) = io.mode() else { continue };
                (mode, io.uses())
            };
            reloaded.open += 1;
            if let Ok(Some(path)) = self.refused_now(&node, mode, uses) {
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
    fn refused_now(
        &self,
        node: &Arc<Node>,
        open: IoMode,
        uses: Uses,
    ) -> Result<Option<Vec<u8>>, Errno> {
        let stat = self.stat(node)?;
        let subject = self.subject_of_open(node, &stat)?;
        if shows_too_much(node, open, &subject) {
            return Ok(Some(subject.path().to_vec()));
        }
        let facts =
            InodeFacts { kind: Kind::from_mode(stat.mode()), size: stat.size(), head: None };
        let refused = |policy: &Policy, path: &[u8]| {
            !policy.is_trivial() && refuses_somebody(&policy.at(path), &facts, uses)
        };
        let known = self.paths.of(node)?;
        let dir = node.place().map(|place| place.parent);
        let names = self.all_names(known.clone(), &stat, dir.as_ref(), Turn::Free);
        let policy = self.admission.policy();
        let own = || names.paths.iter().any(|path| refused(policy, path));
        let elsewhere = || {
            let mut names = names.elsewhere.names.iter();
            names.any(|(rules, path)| refused(&rules.policy, path))
        };
        // A name that somebody met it by says more than one that nobody did. Nobody gets there again
        // through a hidden directory.
        let is_refused = |path: &[u8]| refused(policy, path) || policy.hidden_above(path).is_some();
        let by_name = known.iter().position(|path| is_refused(path));
        let by_name = by_name.or_else(|| (own() || elsewhere()).then_some(0));
        Ok(by_name.and_then(|n| known.into_iter().nth(n)))
    }
}

/// Whether somebody would be refused what handles were opened for; of writing, to change a part of
/// the file, which is all that is left to them once they are open.
fn refuses_somebody(rules: &Matched<'_>, facts: &InodeFacts<'_>, uses: Uses) -> bool {
    uses.reads && rules.may_refuse(facts, Operation::Read)
        || uses.writes
            && (rules.may_refuse(facts, Operation::Write) || rules.may_refuse_in_part(facts))
}

/// Whether a handle that is open shows bytes which nobody would get now, or is served where nobody
/// sees the reads and writes that the policy wants to see. Small files are among those: their pages
/// are the kernel's. A sealed file that no rule seals any more opens for nobody.
fn shows_too_much(node: &Node, open: IoMode, subject: &Subject<'_>) -> bool {
    match How::of(subject) {
        Some(how) => !node.io.lock().may_be_made(Some(how.made())),
        None => {
            open != IoMode::Direct && subject.mode() != Mode::Passthrough
                || node.io.lock().shows_sealed()
        }
    }
}
