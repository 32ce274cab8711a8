//! An owned mapping.
#![expect(unsafe_code, reason = "madvise and munmap of an owned range")]

use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::errno::Errno;
use crate::error::Error;
use crate::memfd;
use crate::sys;

/// An owned mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// What is mapped, unless it is private memory.
    file: Option<OwnedFd>,
    /// The one process that has the mapping: a child of `fork` does not get it. 0 if one does.
    alone: AtomicU32,
}

impl Mapping {
    /// Takes over `[start, start + len)`, which nothing else unmaps.
    pub(super) fn adopt(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, file: None, alone: AtomicU32::new(0) }
    }

    /// Takes over a shared mapping of the whole of `file`.
    pub(super) fn of_file(start: NonNull<u8>, len: usize, file: OwnedFd) -> Self {
        Self { start, len, file: Some(file), alone: AtomicU32::new(0) }
    }

    /// Gives up the range without unmapping it.
    pub(super) fn leave(self) {
        let mapping = ManuallyDrop::new(self);
        debug_assert!(mapping.file.is_none(), "a file would stay open");
    }

    pub(super) fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address of the byte at `offset`.
    ///
    /// # Panics
    /// When the mapping is not longer than that.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.len, "byte {offset} of a region of {} bytes", self.len);
        // SAFETY: the byte lies in the mapping, by the line above.
        unsafe { self.start.add(offset) }
    }

    /// Gives the memory of a part back to the kernel. The caller is alone with its bytes.
    pub(super) fn release(&self, offset: usize, len: usize) -> Result<(), Error> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} of {} bytes", self.len);
        if let Some(file) = &self.file {
            let punched = memfd::punch(file, offset, len);
            return punched.map_err(|errno| Error::System { call: "fallocate", errno });
        }
        // SAFETY: the range lies in the mapping, by the assertion, and the caller gives up its
        // bytes.
        unsafe { sys::discard(self.at(offset), len) }
            .map_err(|errno| Error::System { call: "madvise(MADV_DONTNEED_LOCKED)", errno })
    }

    pub(super) fn advise(&self, advice: i32, call: &'static str) -> Result<(), Error> {
        // SAFETY: the range is mapped and owned by `self`; every advice given in this module keeps
        // the bytes (WIPEONFORK clears the child's copy, not this one).
        unsafe { sys::advise(self.start, self.len, advice) }
            .map_err(|errno| Error::System { call, errno })
    }

    /// A child of `fork` does not get the mapping.
    pub(super) fn dont_fork(&self) -> Result<(), Error> {
        self.advise(libc::MADV_DONTFORK, "madvise(MADV_DONTFORK)")?;
        self.alone.store(std::process::id(), Ordering::Relaxed);
        Ok(())
    }

    /// Faults in `[offset, offset + len)`. A refusal is an error, not a signal.
    pub(super) fn populate(&self, offset: usize, len: usize) -> Result<(), Error> {
        debug_assert!(offset + len <= self.len);
        // SAFETY: the range lies in the mapping, and populating keeps every byte as it is.
        let done = unsafe { sys::advise(self.start.add(offset), len, libc::MADV_POPULATE_WRITE) };
        done.map_err(|errno| match errno {
            Errno(libc::ENOMEM | libc::EFAULT) => Error::OutOfMemory {
                bytes: len,
                limit: "pages could not be faulted in: the cgroup or the node is full".into(),
                way_out: "raise memory.max or hugetlb.*.max of the cgroup, or drop the node".into(),
            },
            errno => Error::System { call: "madvise(MADV_POPULATE_WRITE)", errno },
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let alone = *self.alone.get_mut();
        if alone != 0 && alone != std::process::id() {
            // In a child that did not get it: whatever is there now is somebody else's.
            return;
        }
        // SAFETY: `self` owns the range, and whoever borrowed from it borrowed `self`.
        unsafe { sys::unmap(self.start, self.len) }
    }
}
