//! Opening a file whose bytes the view makes.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_policy::{Made, Mode};

use crate::admission::Subject;
use crate::audit::Audit;
use crate::content::damaged::tell;
use crate::content::redactors::Redactors;
use crate::content::sealed::Shown;
use crate::content::sealing::Sealing;
use crate::content::to_open::ToOpen;
use crate::content::{Content, redacted};
use crate::lower::Version;
use crate::masked::{MaskedCounter, MaskedStatus};
use crate::seal_keys::SealKeys;
use crate::table::Node;

/// What opens such files.
pub(crate) struct Contents {
    redactors: Redactors,
    /// In this view.
    masked: Arc<MaskedCounter>,
    audit: Option<Arc<dyn Audit>>,
    /// Only with keys.
    sealing: Option<Sealing>,
}

impl Contents {
    /// # Errors
    /// If a thread that sealed files need cannot be started.
    pub(crate) fn new(
        keys: Option<Arc<SealKeys>>,
        audit: Option<Arc<dyn Audit>>,
    ) -> std::io::Result<Self> {
        let sealing = keys.map(|keys| Sealing::new(keys, audit.clone())).transpose()?;
        let (redactors, masked) = (Redactors::default(), Arc::default());
        Ok(Self { redactors, masked, audit, sealing })
    }

    /// A sealed file lies where plain ones are expected.
    pub(crate) fn misplaced(&self, path: &[u8], inode: u64) {
        let shown = path.escape_ascii();
        tracing::error!(path = %shown, "a sealed file lies where no rule seals files");
        tell(&self.audit, path, inode, None);
    }

    /// What was masked so far.
    pub(crate) fn masked(&self) -> MaskedStatus {
        self.masked.status()
    }

    /// Whether the view has keys: then sizes below are not all those to be shown.
    pub(crate) fn has_keys(&self) -> bool {
        self.sealing.is_some()
    }

    /// What is shown of a sealed file with this version below. `rule` finds a descriptor and the
    /// domain, or that no rule seals the file; it is asked only about what is not known. `None`: what the
    /// lower file has.
    pub(crate) fn shown<F: AsFd>(
        &self,
        node: &Node,
        version: Version,
        rule: impl FnOnce() -> Result<Option<(F, Arc<str>)>, Errno>,
    ) -> Option<Shown> {
        let sealing = self.sealing.as_ref()?;
        if let Some(known) = sealing.known(node, version) {
            return known;
        }
        sealing.find_size(node, version, rule())
    }

    /// Why sealed files are only read here: `EWOULDBLOCK` if another server writes them.
    pub(crate) fn refuses_writers(&self) -> Option<Errno> {
        self.sealing.as_ref().and_then(Sealing::refuses_writers)
    }

    /// Runs `act`, which sets the times of the lower file.
    pub(crate) fn with_times<T>(&self, node: &Node, act: impl FnOnce() -> T) -> T {
        match &self.sealing {
            Some(sealing) => sealing.with_times(node, act),
            None => act(),
        }
    }

    /// The last name of `node` is gone. What waits to be made durable does not keep its space any longer than
    /// who has it open.
    pub(crate) fn removed(&self, node: &Node) {
        self.sealing.iter().for_each(|sealing| sealing.removed(node));
    }

    /// Before the lower file of `node` is used as a plain one, see [`Sealing::settle`].
    pub(crate) fn settle(&self, node: &Node) -> Result<(), Errno> {
        self.sealing.as_ref().map_or(Ok(()), |sealing| sealing.settle(node))
    }

    /// Nobody writes any more: makes durable what was written.
    pub(crate) fn finish(&self) {
        self.sealing.iter().for_each(Sealing::finish);
    }

    /// Another policy is in force.
    pub(crate) fn policy_changed(&self) {
        self.sealing.iter().for_each(Sealing::policy_changed);
    }

    /// Opens `file` as `how` says.
    ///
    /// # Errors
    /// `EACCES` for a file that must not be shown: to be masked and sealed at once, or of two domains,
    /// or too large to be masked.
    pub(crate) fn open(&self, file: ToOpen<'_>, how: &How) -> Result<Arc<dyn Content>, Errno> {
        if how.made().is_contradictory() {
            return Err(Errno::ACCESS);
        }
        match how {
            How::Redacted(made) => {
                if file.writes || file.is_new {
                    return Err(Errno::ROFS);
                }
                let redactor = self.redactors.of(&made.redactions);
                redacted::open(file, redactor, Arc::clone(&self.masked), self.audit.clone())
            }
            How::Sealed(made) => match &made.domains[..] {
                [domain] => {
                    // As a file system says it whose key is not there.
                    let sealing = self.sealing.as_ref().ok_or(Errno::NOKEY)?;
                    sealing.open(&file, domain)
                }
                _ => Err(Errno::ACCESS),
            },
        }
    }
}

/// How the bytes of a file are made.
#[derive(Clone, Debug)]
pub(crate) enum How {
    Redacted(Made),
    Sealed(Made),
}

impl How {
    /// What the rules say.
    pub(crate) fn made(&self) -> &Made {
        match self {
            Self::Redacted(made) | Self::Sealed(made) => made,
        }
    }

    /// How those of `subject` are; `None` if they are the lower file's own.
    pub(crate) fn of(subject: &Subject<'_>) -> Option<Self> {
        match subject.mode() {
            Mode::Redacted => Some(Self::Redacted(subject.made())),
            Mode::Sealed => Some(Self::Sealed(subject.made())),
            Mode::Passthrough | Mode::Userspace => None,
        }
    }
}
