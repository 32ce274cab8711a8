//! End-to-end tests: the binary serves a real directory, the kernel is the client.
//!
//! They need root and /dev/fuse. Without, each says so and passes; with `TOLLGATE_REQUIRE_MOUNT=1`
//! it fails.

mod async_io;
mod bypass;
mod crash;
mod differential;
mod fsx;
mod harness;
mod keep_awake;
mod lower;
mod mapping;
mod modes;
mod nested;
mod scale;
mod snapshot;
mod unprivileged;
mod uring;
mod watch;
