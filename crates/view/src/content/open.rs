//! Opening a file whose bytes the view makes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_policy::{Made, Mode};

use crate::admission::Subject;
use crate::content::redactors::Redactors;
use crate::content::{Content, redacted};
use crate::table::Node;

/// A lower file that is to be opened as [`Content`].
pub(crate) struct ToOpen<'a> {
    /// Open for reading; for reading and writing if it is to be written.
    pub(crate) fd: Arc<OwnedFd>,
    /// Handles of one inode that need state in common find it by this.
    #[expect(dead_code, reason = "for sealed files")]
    pub(crate) node: &'a Arc<Node>,
    /// It was made by this request: it has no bytes, and needs what a file of its kind has.
    pub(crate) is_new: bool,
    pub(crate) writes: bool,
}

/// What opens such files.
#[derive(Default)]
pub(crate) struct Contents {
    redactors: Redactors,
}

impl Contents {
    /// Opens `file` as `how` says.
    ///
    /// # Errors
    /// `EACCES` for a file that must not be shown: of two domains at once, or too large to be
    /// masked.
    pub(crate) fn open(&self, file: ToOpen<'_>, how: &How) -> Result<Arc<dyn Content>, Errno> {
        match how {
            How::Redacted(made) => {
                if file.writes || file.is_new {
                    return Err(Errno::ROFS);
                }
                redacted::open(file.fd, self.redactors.of(&made.redactions))
            }
            How::Sealed(made) => match &made.domains[..] {
                [_domain] => Err(Errno::OPNOTSUPP),
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
