//! The view: a FUSE file system that shows a lower directory through a policy.
//!
//! See `docs/ARCHITECTURE.md` for the road of a request and the invariants that this crate keeps.

mod audit;
mod caller;
mod config;
mod creds;
mod fds;
mod gate;
mod io;
mod lower;
mod memory;
mod ops;
mod stats;
mod table;
mod view;

pub use audit::{Audit, AuditLevel, Event, Outcome};
pub use config::{Config, OpenError};
pub use stats::{Counts, Snapshot, Unavailable};
pub use view::View;
