//! The built-in policies over real trees: what tools do there works, and secrets are kept.
//!
//! A tool that the machine lacks is skipped with a message. `tests/presets-all` runs everything
//! and fails where something is missing.

#[path = "../support/mounting.rs"]
mod mounting;

mod added;
mod further;
mod git;
mod harness;
mod init;
mod manifests;
mod moved;
mod named;
mod registries;
mod secrets;
mod services;
mod tools;
mod work_trees;
