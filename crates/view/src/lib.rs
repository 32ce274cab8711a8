//! The view: a FUSE file system that shows a lower directory through a policy.
//!
//! See `docs/ARCHITECTURE.md` for the path of a request and the invariants that this crate keeps.

mod admission;
mod audit;
mod budget;
mod caller;
mod config;
mod creds;
mod fds;
mod handles;
mod idle;
mod listings;
mod lower;
mod memory;
mod mode;
mod ops;
mod passthrough;
mod paths;
mod probe;
mod stats;
mod sweeper;
mod table;
mod view;
mod watch;
mod watched;

pub use audit::{Audit, AuditLevel, Event, Outcome};
pub use config::{Config, OpenError, WatchMode};
pub use stats::{Counts, DECISIONS, Snapshot, Unavailable};
pub use view::View;
pub use watch::WatchStatus;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
