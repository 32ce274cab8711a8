//! A Unix control socket: a client sends one line of text, gets a reply, and the connection ends.
//!
//! It is for commands between processes of one user: a server that reports what it does, a tool
//! that changes a setting. Servers put their sockets into a private directory of the user, where
//! clients discover them. Both sides check who is at the other end.
//!
//! ```
//! use tollgate_control::{Directory, ask};
//!
//! # let home = tempfile::tempdir()?;
//! # let directory = Directory::at(home.path().join("example"));
//! # if false {
//! // "/run/example" for root, "example" in $XDG_RUNTIME_DIR, or "/tmp/example-UID".
//! let directory = Directory::of_user("example");
//! # }
//! let server = directory.serve("echo", |_peer, request| format!("<{request}>"))?;
//!
//! let discovery = directory.servers("echo")?;
//! assert_eq!(discovery.found[0].pid, Some(std::process::id()));
//! assert_eq!(ask(&discovery.found[0].path, "hello")?, "<hello>");
//! drop(server); // removes the socket
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Protocol
//!
//! The client connects and sends one line of UTF-8 that ends with a newline or with the end of the
//! stream. The server sends a reply that ends with a newline, then ends the stream. What the
//! request and the reply mean is up to the user of this crate. A request that cannot be handed to
//! the server's function gets a JSON object of one member, as [`error_reply`] makes it.
//!
//! | limit | value | at the limit |
//! |---|---|---|
//! | length of a request | [`REQUEST_MAX_BYTES`] | an error reply |
//! | time for a request to arrive | [`TIME_LIMIT`] | an error reply, then as for a reply to be taken |
//! | time for a reply to be taken | [`TIME_LIMIT`] | the server hangs up |
//! | clients of a server at a time | [`CLIENTS_MAX`] | more wait in the kernel's backlog |
//! | length of a reply | [`REPLY_MAX_BYTES`], or less ([`ask_at_most`]) | the client returns an error |
//! | time for a whole reply, connection included | [`PATIENCE`] | the client returns an error |
//! | sockets that a discovery asks | [`SERVERS_MAX`] | the rest is left out, with a report |
//! | time for which a discovery waits, in all | [`TIME_LIMIT`] | who takes no connection is reported |
//!
//! # Who is served
//!
//! Root and the user that the server runs as, and a guest whom the server names
//! ([`Server::start_for`]). Anybody else gets an error reply that says so. A client refuses to talk to a server of a third user, except that root talks to any.
//!
//! Neither side needs the other in its own pid namespace: [`Peer::pid`] is `None` for a process
//! that this namespace does not see, and such a process is served like any other. Who decides by the pid
//! asks [`Peer::still_has_pid`] afterwards.

mod client;
mod directory;
mod error;
pub mod fuzzing;
mod lock;
mod nested;
mod peer;
mod removal;
mod request;
mod reserve;
mod server;

pub use client::{REPLY_MAX_BYTES, ask, ask_at_most, ask_until};
pub use directory::{Directory, Discovery, Found, SERVERS_MAX};
pub use error::ControlError;
pub use nested::Nested;
pub use peer::Peer;
pub use request::{REQUEST_MAX_BYTES, error_reply};
pub use reserve::Reserve;
pub use server::{CLIENTS_MAX, Server};

/// How long a client waits for a whole reply: 10 seconds. A busy machine may leave a server without a CPU for
/// longer than [`TIME_LIMIT`], and what does not answer is not shown.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// How long a server waits for its client, and a client for a place in the backlog: 2 seconds.
pub const TIME_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
