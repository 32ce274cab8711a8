//! How closely a directory is watched for changes behind the view: see `watch/mod.rs`.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

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

/// Whether the kernel was allowed to keep the attributes of a file until a change is reported. Kept
/// in its node.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    kept: AtomicBool,
    elsewhere: AtomicBool,
    /// The kernel compares its pages by the attributes.
    compared: AtomicBool,
    /// The generation of the mark on its inode; 0: none.
    mark: AtomicU32,
}

impl Kept {
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Self {
            kept: AtomicBool::new(false),
            elsewhere: AtomicBool::new(false),
            compared: AtomicBool::new(false),
            mark: AtomicU32::new(0),
        }
    }

    pub(crate) fn mark(&self) -> u32 {
        self.mark.load(Ordering::SeqCst)
    }

    pub(crate) fn set_mark(&self, generation: u32) {
        self.mark.store(generation, Ordering::SeqCst);
    }

    /// This process serves the file from now on, so that the kernel compares pages by its attributes.
    /// Returns whether it did not before.
    pub(crate) fn compare(&self) -> bool {
        !self.compared.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_compared(&self) -> bool {
        self.compared.load(Ordering::SeqCst)
    }

    /// The file was found at a name in a watched directory, and has no other.
    pub(crate) fn is_here(&self) {
        self.elsewhere.store(false, Ordering::Relaxed);
    }

    /// Whether it may have a name that nobody watches.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Relaxed)
    }

    /// The kernel is told to keep its attributes, if `still` holds after this was noted: whoever
    /// ends that looks at the note afterwards.
    pub(crate) fn keep_if(&self, still: impl FnOnce() -> bool) -> bool {
        self.kept.store(true, Ordering::SeqCst);
        still()
    }

    /// Whether the kernel may have been told so since the last change.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }

    /// Others changed it, or gave it a name `elsewhere`.
    pub(crate) fn changed(&self, elsewhere: bool) {
        self.kept.store(false, Ordering::SeqCst);
        if elsewhere {
            self.elsewhere.store(true, Ordering::Relaxed);
        }
    }
}
