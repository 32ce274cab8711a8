//! How sessions end.

use std::fmt;
use std::io;

use rustix::io::Errno;
use thiserror::Error;

use crate::init::InitError;

/// Why a session did not start, or ended badly. The texts leave out what `source()` says: print the
/// chain.
#[derive(Debug, Error)]
pub enum SessionError {
    /// A configuration value out of range.
    #[error("{field} is {value}, but must be {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// The device is not mounted.
    #[error("/dev/fuse is open but not mounted: mount the device before starting the session")]
    NotMounted,
    /// The file system went before the handshake.
    #[error("the file system was unmounted before the session had started")]
    Gone,
    /// The handshake failed.
    #[error(transparent)]
    Init(#[from] InitError),
    /// [`crate::Filesystem::init`] failed.
    #[error("the file system did not start: {0}")]
    Filesystem(Errno),
    /// Receiving requests failed.
    #[error("receiving a FUSE request failed")]
    Receive(#[source] io::Error),
    /// Replying to the handshake failed.
    #[error("answering the FUSE handshake failed")]
    Reply(#[source] io::Error),
    /// A queue or thread could not be made.
    #[error(
        "worker {worker} could not be started: is a limit of processes too low (`ulimit -u`, `pids.max` of \
         a control group)?"
    )]
    Worker {
        /// Its index.
        worker: usize,
        /// Why.
        source: io::Error,
    },
    /// A worker thread panicked in its start hook.
    #[error("worker {worker} panicked while it started")]
    Panicked {
        /// Its index.
        worker: usize,
    },
    /// A worker thread panicked outside of any handler, after it had begun to serve.
    #[error("worker {worker} panicked between two requests")]
    PanickedServing {
        /// Its index.
        worker: usize,
    },
    /// [`crate::Running::wait`] was called in a copy of the process that serves.
    #[error(
        "this process was forked from the one that serves: it cannot wait for the session's end"
    )]
    Copy,
}

impl SessionError {
    pub(crate) fn config(field: &'static str, value: &impl fmt::Display, allowed: String) -> Self {
        Self::Config { field, value: value.to_string(), allowed }
    }
}

impl From<SessionError> for io::Error {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Filesystem(errno) => errno.into(),
            SessionError::Receive(e)
            | SessionError::Reply(e)
            | SessionError::Worker { source: e, .. } => Self::new(e.kind(), e),
            other => Self::other(other),
        }
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was aborted, through fusectl for example.
    Aborted,
    /// [`crate::Stopper::stop`] was called.
    Stopped,
}

/// The outcome of a session whose workers ended as `before` and `one`. An error outweighs an end,
/// and an end from outside outweighs a stop.
pub(crate) fn worse(
    before: Option<Result<Ended, SessionError>>,
    one: Result<Ended, SessionError>,
) -> Result<Ended, SessionError> {
    match (before, one) {
        (None | Some(Ok(Ended::Stopped)), one) => one,
        (Some(Ok(_)), Err(error)) => Err(error),
        (Some(before), _) => before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_text_and_its_cause_say_different_things() {
        let source = || io::Error::from_raw_os_error(22);
        for error in [
            SessionError::Receive(source()),
            SessionError::Reply(source()),
            SessionError::Worker { worker: 3, source: source() },
        ] {
            let cause = error.source().unwrap().to_string();
            assert!(!error.to_string().contains(&cause), "{error}");
        }
    }
}
