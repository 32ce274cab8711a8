//! FUSE for Linux servers: wire format, requests, replies, mounting, transports.

pub mod types;

pub use types::*;
