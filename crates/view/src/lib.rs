//! The view: a FUSE file system that shows a lower directory through a policy.
//!
//! See `docs/ARCHITECTURE.md` for the path of a request and the invariants that this crate keeps.

mod acl;
mod admission;
mod ahead;
mod anchors;
mod appends;
mod arrivals;
mod audit;
mod borders;
mod budget;
mod caller;
mod closer;
mod concealed;
mod config;
mod content;
mod creds;
mod fds;
mod free_to_read;
mod further_names;
mod handles;
mod idle;
mod known_content;
mod left;
mod links;
mod listings;
mod located;
mod locks;
mod lower;
mod making;
mod mapped;
mod masked;
mod memory;
mod mode;
mod mounts;
mod moving;
mod neighbours;
mod no_capabilities;
mod one_writer;
mod only_name;
mod ops;
mod overlays;
mod passthrough;
mod paths;
mod patience;
mod pauses;
mod policies;
mod probe;
mod raised;
mod recent_unlinks;
mod reload;
mod removed;
mod revalidate;
mod road;
mod seal_keys;
mod shares;
mod small;
mod stats;
mod sweeper;
mod sync;
mod table;
mod twins;
mod view;
mod walkers;
mod watch;
mod watched;
mod writers;

pub use audit::{Access, Audit, AuditLevel, Detail, Event, FileContent, Outcome};
pub use borders::is_kernel_file_system;
pub use caller::{Callers, ProcCallers};
pub use config::{Config, OpenError, SmallFiles, WatchMode};
pub use further_names::FurtherName;
pub use links::LinksStatus;
pub use locks::LockStatus;
pub use masked::{Masked, MaskedStatus};
pub use neighbours::Neighbours;
pub use reload::{ReloadError, Reloaded};
pub use seal_keys::SealKeys;
pub use shares::ShareStatus;
pub use stats::{ANOTHER_WRITES, Counts, DECISIONS, Snapshot, Unavailable, WRITING_SEALED};
pub use view::View;
pub use watch::WatchStatus;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
