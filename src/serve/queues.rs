//! The socket at which `tollgate wq` finds the work queues of a view.

use std::sync::{Mutex, PoisonError};

use tollgate_control::{Reserve, Server};
use tollgate_workqueue::{Runtime, control as queues};

use crate::{control, messages};

/// A view has no work queues until its policy redacts or seals something, perhaps after a `reload`. By
/// then the process may make no socket any more: one without a name is made at the start.
#[derive(Debug, Default)]
pub(super) struct QueuesSocket(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// Not opened, and perhaps in reserve.
    Closed(Option<Reserve>),
    Open(#[expect(dead_code, reason = "dropping it closes the socket")] Server),
    /// The view ends.
    #[default]
    Over,
}

impl QueuesSocket {
    /// At the start: opens it for the queues that are there, else keeps one in reserve.
    pub(super) fn open_or_keep(&self, runtime: Option<&Runtime>) {
        let reserve = Reserve::new()
            .inspect_err(|error| tracing::debug!(%error, "no socket in reserve"))
            .ok();
        *self.lock() = State::Closed(reserve);
        if let Some(runtime) = runtime {
            self.open(runtime);
        }
    }

    /// The queues are there, since now or since long. Without the socket files are redacted and
    /// sealed, too.
    pub(super) fn open(&self, runtime: &Runtime) {
        let mut state = self.lock();
        let State::Closed(reserve) = &mut *state else { return };
        let directory = control::directory();
        let server = match reserve.take() {
            Some(reserve) => queues::serve_later(runtime, &directory, &reserve),
            None => queues::serve(runtime, &directory),
        };
        match server {
            Ok(server) => *state = State::Open(server),
            Err(error) => {
                let reason = messages::in_words(&error.into());
                messages::warn(&format!("`tollgate wq` will not show this server: {reason}"));
            }
        }
    }

    /// Removes the socket, for ever.
    pub(super) fn close(&self) {
        // Its thread ends, outside of the lock.
        let before = std::mem::take(&mut *self.lock());
        drop(before);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
