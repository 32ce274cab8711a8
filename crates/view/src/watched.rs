//! How closely a directory is watched for changes behind the view: see `watch/mod.rs`.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// How much is reported about a directory. Kept in its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    None,
    Names,
    Files,
}

/// The level of one directory, and whether files in it are written through the view.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    level: AtomicU8,
    written: AtomicBool,
}

impl Watched {
    pub(crate) fn level(&self) -> Level {
        match self.level.load(Ordering::Acquire) {
            0 => Level::None,
            1 => Level::Names,
            _ => Level::Files,
        }
    }

    /// Only while the lock of the watched directories is held.
    pub(crate) fn set(&self, level: Level) {
        self.level.store(level as u8, Ordering::Release);
    }

    pub(crate) fn is_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    pub(crate) fn set_written(&self) {
        self.written.store(true, Ordering::Relaxed);
    }
}
