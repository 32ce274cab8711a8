//! End-to-end tests: the binary serves a real directory, the kernel is the client.
//!
//! They need root and /dev/fuse. Without, each says so and passes; with `TOLLGATE_REQUIRE_MOUNT=1`
//! it fails.

mod ahead;
mod append_only;
mod async_io;
mod bypass;
#[path = "../support/caseless.rs"]
mod caseless;
mod changing;
mod contents;
mod crash;
mod deep;
#[path = "../support/device.rs"]
mod device;
mod differential;
mod elsewhere;
mod ended;
mod executing;
mod free_to_read;
mod fsx;
mod harness;
mod held;
mod hung;
mod identity;
mod keep_awake;
mod link_counts;
mod links;
mod links_meanwhile;
mod locks;
mod lower;
mod made_meanwhile;
#[path = "../support/mapped.rs"]
mod mapped;
mod mapping;
mod modes;
#[path = "../support/mounting.rs"]
mod mounting;
mod moved_meanwhile;
mod nested;
mod open_and_renamed;
mod opened_meanwhile;
mod overlays;
mod places;
#[path = "../support/pty.rs"]
mod pty;
mod queues;
mod redacted;
mod removed_names;
mod renamed_above;
mod renamed_meanwhile;
mod replaced;
mod sandbox;
mod scale;
mod shares;
mod small;
mod snapshot;
mod soak;
mod space;
mod storm;
mod taken_over;
mod unprivileged;
mod uring;
mod walkers;
mod watch;
