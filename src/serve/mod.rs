//! A view with everything that serves it: session, audit log, control socket.

mod common;
mod device;
pub(crate) mod of_its_own;
mod queues;
mod served;
mod server;
mod spec;
mod state;

pub(crate) use common::Common;
pub(crate) use device::{mount_options, mount_over};
pub(crate) use server::Server;
pub(crate) use spec::Spec;

/// Where the view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// Over DIR itself, for one command.
    Run,
    /// At a mount point.
    Mount,
}

impl ServerKind {
    fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Mount => "mount",
        }
    }
}
