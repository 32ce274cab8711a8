//! FUSE for Linux servers: wire format, requests, replies, mounting, transports.
//!
//! Implement [`Filesystem`], mount a [`Device`] with [`mount()`], and serve it with a [`Session`].
//! A file that needs no further checks is registered with [`Connection::open_backing`] and opened
//! with [`OpenReply::PASSTHROUGH`]: the kernel then reads, writes and maps the lower file directly.

pub mod abi;
pub mod args;
mod asking;
pub mod blocking;
pub mod buffer;
mod connection;
mod counters;
mod device;
mod dispatch;
mod encode;
mod filesystem;
mod forked;
mod init;
mod interrupt;
mod latency;
pub mod memory;
pub mod message;
pub mod mount;
mod mounted;
pub mod operation;
mod panics;
mod passing;
mod registrar;
mod reply;
pub mod request;
pub mod session;
mod sync;
pub mod transport;
pub mod types;
mod uring;

pub use connection::{BackingFile, Connection};
pub use counters::RequestCounts;
pub use device::{Device, DeviceQueue, DeviceTransport};
pub use encode::{Answer, MAX_ANSWER_BYTES};
pub use filesystem::Filesystem;
pub use init::{InitError, InitFlags, Negotiated};
pub use latency::{CLASSES, Histogram, OperationLatency};
pub use message::{DecodeError, Message};
pub use mount::{
    Mount, MountError, MountOptions, clean_stale, mount, mount_device, replace_stale, stale,
    stale_in_time, unmount,
};
pub use mounted::{MountedQueue, MountedTransport, TransportChoice};
pub use operation::{Dialect, Operation};
pub use passing::Passing;
pub use registrar::Registrar;
pub use reply::{DirReply, Reply};
pub use request::{KeptRequest, Request};
/// The error numbers that handlers reply with: the type of the `rustix` crate.
#[doc(inline)]
pub use rustix::io::Errno;
pub use session::{Ended, Running, Session, SessionConfig, SessionError, Stopper};
#[doc(inline)]
pub use tollgate_haltpoll::{KeepAwake, PollingTime};
pub use transport::{TransportInUse, TransportReport};
pub use types::*;
pub use uring::{RingReport, UringUnavailable};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
