//! The privileged process.

mod check;
mod connection;
mod listening;
mod log;
mod options;
mod sandbox;

pub use listening::{listener, serve};
pub use options::Options;
