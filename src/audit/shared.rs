//! What recording and writing share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;

use crossbeam_queue::ArrayQueue;

use super::busiest::Busiest as Counter;
use super::slot::Slot;

/// Events that can wait for the writer: about 11 MiB. What comes when all are taken is dropped.
pub(super) const SLOTS: usize = 4096;

#[derive(Debug)]
pub(super) struct Shared {
    /// Slots to fill.
    pub(super) free: ArrayQueue<Box<Slot>>,
    /// Slots to write, oldest first.
    pub(super) filled: ArrayQueue<Box<Slot>>,
    pub(super) dropped: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) failed: AtomicU64,
    /// The writer sleeps, or is about to, and must be woken.
    pub(super) asleep: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) writer: OnceLock<Thread>,
    /// Taken by the writer after a failure and by `status` only.
    pub(super) last_error: std::sync::Mutex<Option<String>>,
    /// Digests of policies that followed. Taken by the writer and by a reload.
    pub(super) reloads: std::sync::Mutex<Vec<Option<String>>>,
    /// Paths, and callers. Taken by the writer for each batch, and by `top`.
    pub(super) busiest: std::sync::Mutex<(Counter, Counter)>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl Shared {
    pub(super) fn new() -> Self {
        let free = ArrayQueue::new(SLOTS);
        for _ in 0..SLOTS {
            let pushed = free.push(Box::new(Slot::empty()));
            assert!(pushed.is_ok(), "there are as many places as slots");
        }
        Self {
            free,
            filled: ArrayQueue::new(SLOTS),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            writer: OnceLock::new(),
            last_error: std::sync::Mutex::new(None),
            reloads: std::sync::Mutex::default(),
            busiest: std::sync::Mutex::default(),
        }
    }

    /// Wakes the writer; only the first caller after it fell asleep pays the system call.
    pub(super) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }
}

/// A panic elsewhere does not make these values wrong.
pub(super) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
