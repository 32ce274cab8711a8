//! Open files and directories.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{BackingId, FileHandle};
use parking_lot::{Mutex, RwLock};
use rustix::fs::Dir;
use rustix::io::{Errno, Result};

use super::inodes::Inode;

/// An open file: its descriptor for what the kernel still asks, and its share of the backing id.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) fd: OwnedFd,
    _backing: Arc<BackingId>,
}

/// An open directory and the cookie of the entry that it would yield next.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) stream: Dir,
    pub(super) position: u64,
}

/// All handles. Bounded by the descriptors of the process.
#[derive(Debug, Default)]
pub(super) struct Files {
    next: AtomicU64,
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    directories: RwLock<HashMap<u64, Arc<Mutex<OpenDirectory>>>>,
}

impl Files {
    /// Makes a handle of `fd`, whose backing id is the inode's, or a new one from `register`.
    pub(super) fn open(
        &self,
        inode: &Inode,
        fd: OwnedFd,
        register: impl FnOnce(&OwnedFd) -> std::io::Result<BackingId>,
    ) -> std::io::Result<(FileHandle, Arc<BackingId>)> {
        let mut known = inode.backing.lock();
        let backing = match known.upgrade() {
            Some(backing) => backing,
            None => Arc::new(register(&fd)?),
        };
        *known = Arc::downgrade(&backing);
        let handle = self.next_handle();
        let file = OpenFile { fd, _backing: Arc::clone(&backing) };
        self.files.write().insert(handle, Arc::new(file));
        Ok((FileHandle(handle), backing))
    }

    /// The open file of a handle.
    pub(super) fn get(&self, handle: FileHandle) -> Result<Arc<OpenFile>> {
        self.files.read().get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    /// Drops a handle.
    pub(super) fn close(&self, handle: FileHandle) {
        // The descriptor is closed after the lock is gone.
        let file = self.files.write().remove(&handle.0);
        drop(file);
    }

    /// Makes a handle of an open directory.
    pub(super) fn open_directory(&self, fd: OwnedFd) -> Result<FileHandle> {
        let directory = OpenDirectory { stream: Dir::new(fd)?, position: 0 };
        let handle = self.next_handle();
        self.directories.write().insert(handle, Arc::new(Mutex::new(directory)));
        Ok(FileHandle(handle))
    }

    /// The open directory of a handle.
    pub(super) fn directory(&self, handle: FileHandle) -> Result<Arc<Mutex<OpenDirectory>>> {
        self.directories.read().get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    /// Drops a directory's handle.
    pub(super) fn close_directory(&self, handle: FileHandle) {
        let directory = self.directories.write().remove(&handle.0);
        drop(directory);
    }

    fn next_handle(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl OpenDirectory {
    /// Calls `entry` with name, inode number, kind and next cookie of all entries from `offset` on,
    /// until it returns that its buffer is full.
    pub(super) fn read(
        &mut self,
        offset: u64,
        mut entry: impl FnMut(&rustix::fs::DirEntry) -> bool,
    ) -> Result<()> {
        if offset != self.position {
            self.seek(offset)?;
        }
        while let Some(next) = self.stream.read() {
            let next = next?;
            if entry(&next) {
                let position = self.position;
                return self.seek(position);
            }
            self.position = next.offset().cast_unsigned();
        }
        Ok(())
    }

    fn seek(&mut self, offset: u64) -> Result<()> {
        self.stream.seek(offset.cast_signed())?;
        self.position = offset;
        Ok(())
    }
}
