//! The view's operations without a mount: the test plays the kernel over the in-memory transport,
//! so that neither privilege nor `/dev/fuse` is needed.

mod audit;
mod closes;
mod data;
mod histories;
mod kernel;
mod lists;
mod meanwhile;
mod names;
mod nodes;
mod opens;
mod record;
mod xattrs;
