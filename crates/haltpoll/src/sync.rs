//! Atomics and threads: std's, or the model checker's.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    thread::{Thread, current, park},
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    thread::{Thread, current, park},
};
