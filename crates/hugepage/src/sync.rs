//! The atomics, locks and fences of the pool: the standard library's, or the model checker's under
//! `--cfg loom`. Nothing else in the pool's lists may synchronise.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
