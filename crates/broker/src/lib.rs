//! Passthrough without root: a small privileged process, the broker, registers backing files with
//! the kernel for FUSE servers of ordinary users.
//!
//! The kernel lets only `CAP_SYS_ADMIN` register a backing file, and checks nothing when it opens
//! one: whoever may register could read and write everything. So the broker takes two descriptors
//! over a socket, that of the server's `/dev/fuse` and that of a lower file, and registers only
//! what the server can read and write already. What it checks is in `server/check.rs`.
//!
//! [`Client`] is for the server; [`serve`] is the privileged process.

mod asking;
mod client;
mod protocol;
mod server;
mod trusted;

pub use asking::{DEFAULT_SOCKET, decode_reply};
pub use client::{Client, RegisterError, look};
pub use protocol::{MESSAGE_BYTES, Refusal, Reply, Request, VERSION, encode_reply};
pub use server::{listener, serve};
