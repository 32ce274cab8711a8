//! The privileged process.

mod check;
mod connection;
mod listening;
mod peer;
mod sandbox;

pub use listening::{listener, serve};
