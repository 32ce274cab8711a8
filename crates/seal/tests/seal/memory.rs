//! Stores in memory: one that keeps everything, and what a crash leaves of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use tollgate_seal::Store;

/// A write that is not durable yet.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) offset: usize,
    pub(crate) bytes: Vec<u8>,
    /// The store ended at `offset` before that.
    pub(crate) cuts: bool,
}

/// Keeps what is durable apart from what was written since, and fails after so many operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) durable: RefCell<Vec<u8>>,
    pub(crate) pending: RefCell<Vec<Write>>,
    pub(crate) now: RefCell<Vec<u8>>,
    pub(crate) operations: Cell<usize>,
    /// The operation that fails, and all after it.
    pub(crate) fails_at: Option<usize>,
    pub(crate) syncs_fail: Cell<bool>,
    /// The next sync fails, and what was to become durable never does, though it can be read: Linux
    /// takes pages that it could not write for written.
    pub(crate) next_sync_loses: Cell<bool>,
    pub(crate) reads: Cell<usize>,
    /// What begins there cannot be read.
    pub(crate) unreadable: Cell<Option<u64>>,
    /// Blocks of 4 KiB that take space.
    pub(crate) taken: RefCell<BTreeSet<usize>>,
    /// It gives back its end alone.
    pub(crate) has_no_holes: bool,
}

impl Memory {
    pub(crate) fn of(bytes: Vec<u8>) -> Memory {
        Memory {
            now: RefCell::new(bytes.clone()),
            durable: RefCell::new(bytes),
            ..Memory::default()
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.now.borrow().clone()
    }

    /// Whether the operation that failed was a sync: all that was written before it is there, and not
    /// durable.
    pub(crate) fn failed_in_sync(&self) -> bool {
        self.pending.borrow().last().is_some_and(|Write { offset, bytes, cuts }| {
            let now = self.now.borrow();
            if *cuts {
                now.len() == *offset
            } else {
                now.get(*offset..).is_some_and(|at| at.starts_with(bytes))
            }
        })
    }

    fn count(&self) -> io::Result<()> {
        let number = self.operations.get();
        self.operations.set(number + 1);
        match self.fails_at {
            Some(at) if number >= at => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

pub(crate) fn apply(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

impl Store for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.now.borrow().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        if self.unreadable.get() == Some(offset) {
            return Err(io::ErrorKind::Other.into());
        }
        let bytes = self.now.borrow();
        let start = usize::try_from(offset).unwrap();
        let part = bytes.get(start..start + buffer.len());
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        // What fails was begun.
        self.pending.borrow_mut().push(Write { offset, bytes: bytes.to_vec(), cuts: false });
        self.count()?;
        apply(&mut self.now.borrow_mut(), offset, bytes);
        self.taken.borrow_mut().extend(offset / 4096..(offset + bytes.len()).div_ceil(4096));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.count()?;
        if self.syncs_fail.get() {
            return Err(io::ErrorKind::Other.into());
        }
        let pending = self.pending.take();
        if self.next_sync_loses.take() {
            return Err(io::ErrorKind::Other.into());
        }
        let mut durable = self.durable.borrow_mut();
        for Write { offset, bytes, cuts } in pending {
            if cuts {
                durable.truncate(offset);
            }
            apply(&mut durable, offset, &bytes);
        }
        Ok(())
    }

    fn give_back(&self, bytes: Range<u64>) -> io::Result<()> {
        if self.has_no_holes {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let length = self.now.borrow().len();
        let place = |at: u64| usize::try_from(at).unwrap().min(length);
        let (offset, zeros) = (place(bytes.start), vec![0; place(bytes.end) - place(bytes.start)]);
        self.pending.borrow_mut().push(Write { offset, bytes: zeros.clone(), cuts: false });
        self.count()?;
        apply(&mut self.now.borrow_mut(), offset, &zeros);
        let gone = offset / 4096..(offset + zeros.len()) / 4096;
        self.taken.borrow_mut().retain(|block| !gone.contains(block));
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let offset = usize::try_from(length).unwrap();
        self.pending.borrow_mut().push(Write { offset, bytes: Vec::new(), cuts: true });
        self.count()?;
        self.now.borrow_mut().resize(offset, 0);
        self.taken.borrow_mut().retain(|block| *block < offset.div_ceil(4096));
        Ok(())
    }
}
