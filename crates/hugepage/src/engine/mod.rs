//! Clear and copy engines: an order of chunks, a chunk size and a kind of store.
//!
//! [`ClearSpec`] and [`CopySpec`] say what is wanted; `check` turns them into a [`Clearer`] or a
//! [`Copier`], which hold only what this processor can do and cannot fail on its account.
//!
//! Whatever the specification, every byte of the buffer is written, at any alignment and length; the
//! stores are visible to another thread before anything that this thread stores later; and the
//! compiler cannot drop them, though the buffer be dead afterwards.
#![expect(unsafe_code, reason = "engines write whole buffers through raw pointers")]

mod kernel;
mod order;
mod portable;
mod spec;
#[cfg(test)]
mod tests;
#[cfg(all(not(miri), target_arch = "x86_64"))]
mod x86;

use std::mem::MaybeUninit;
use std::ops::Range;

pub use order::Order;
pub use spec::{Chunk, ClearSpec, CopySpec, Store};

use crate::error::Error;
use kernel::{ClearKernel, CopyKernel, Kernels, publish};
use order::Steps;

/// Clears buffers in one way. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Clearer {
    spec: ClearSpec,
    /// Stores for everything, or outside the window for the hybrid.
    bulk: ClearKernel,
    /// Cached stores for the hybrid's window.
    window: Option<ClearKernel>,
    weak: bool,
}

impl Clearer {
    pub(crate) fn new(spec: ClearSpec) -> Result<Self, Error> {
        let down = spec.order == Order::Descending;
        let pick = |kernels: Kernels| if down { kernels.clear_down } else { kernels.clear_up };
        if spec.store != Store::Hybrid {
            let kernels = kernel::kernels(spec.store)?;
            return Ok(Self { spec, bulk: pick(kernels), window: None, weak: kernels.weak });
        }
        let bulk = kernel::kernels(Store::best_non_temporal()?)?;
        let window = kernel::kernels(Store::best_cached())?;
        Ok(Self { spec, bulk: pick(bulk), window: Some(pick(window)), weak: true })
    }

    /// The C library's memset, which is always there.
    pub(crate) fn plain() -> Self {
        let spec = ClearSpec::forward(Store::Plain);
        Self { spec, bulk: kernel::PLAIN.clear_up, window: None, weak: false }
    }

    /// What it does.
    pub fn spec(&self) -> ClearSpec {
        self.spec
    }

    /// Clears `buffer`, with its first byte as the target.
    pub fn clear(&self, buffer: &mut [u8]) {
        self.clear_range(buffer.as_mut_ptr(), buffer.len(), 0);
    }

    /// Clears `buffer` so that the bytes round offset `target` are the likeliest to be in the cache
    /// afterwards, as far as order and store kind have a say in it.
    ///
    /// # Errors
    /// [`Error::TargetOutside`], with the buffer untouched.
    pub fn clear_towards(&self, buffer: &mut [u8], target: usize) -> Result<(), Error> {
        if target >= buffer.len() {
            return Err(Error::TargetOutside { target, len: buffer.len() });
        }
        self.clear_range(buffer.as_mut_ptr(), buffer.len(), target);
        Ok(())
    }

    /// Clears memory that holds nothing yet, and returns it as bytes.
    pub fn clear_uninit<'a>(&self, buffer: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        self.clear_range(buffer.as_mut_ptr().cast(), buffer.len(), 0);
        // SAFETY: `clear_range` wrote all bytes, and the borrow is passed on.
        unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), buffer.len()) }
    }

    /// The range is writable and exclusively the caller's, which the public functions get from a
    /// `&mut` slice.
    fn clear_range(&self, start: *mut u8, len: usize, target: usize) {
        let window = self.window.map_or(0..0, |_| self.spec.window_of(len, target));
        for chunk in Steps::new(self.spec.order, len, self.spec.chunk.bytes(), target).iter() {
            for part in without(chunk, &window) {
                // SAFETY: the steps and the parts of a chunk lie in `0..len`; `Clearer::new` checked
                // that the processor has the instructions.
                unsafe { (self.bulk)(start.add(part.start), part.len()) }
            }
        }
        if let Some(kernel) = self.window {
            // SAFETY: the window lies in `0..len`.
            unsafe { kernel(start.add(window.start), window.len()) }
        }
        publish(start, self.weak);
    }
}

/// The parts of `chunk` before and after `window`, without the empty ones.
fn without(chunk: Range<usize>, window: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let before = chunk.start..chunk.end.min(window.start.max(chunk.start));
    let after = chunk.start.max(window.end).min(chunk.end)..chunk.end;
    let whole = window.is_empty();
    let parts = if whole { [chunk, 0..0] } else { [before, after] };
    parts.into_iter().filter(|part| !part.is_empty())
}

/// Copies buffers in one way. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Copier {
    spec: CopySpec,
    bulk: CopyKernel,
    window: Option<CopyKernel>,
    weak: bool,
}

impl Copier {
    pub(crate) fn new(spec: CopySpec) -> Result<Self, Error> {
        let down = spec.clear.order == Order::Descending;
        let pick = |store: Store| -> Result<(CopyKernel, bool), Error> {
            let kernels = kernel::kernels(store)?;
            let (up, descending) = kernels.copy.ok_or_else(|| Error::Unsupported {
                what: format!("copying with {store}"),
                on: "any processor".into(),
                way_out: "it only clears: use a store kind that copies".into(),
            })?;
            Ok((if down { descending } else { up }, kernels.weak))
        };
        if spec.clear.store != Store::Hybrid {
            let (bulk, weak) = pick(spec.clear.store)?;
            return Ok(Self { spec, bulk, window: None, weak });
        }
        let (bulk, weak) = pick(Store::best_non_temporal()?)?;
        let (window, _) = pick(Store::best_cached())?;
        Ok(Self { spec, bulk, window: Some(window), weak })
    }

    /// The C library's memcpy, which is always there.
    pub(crate) fn plain() -> Self {
        let spec = CopySpec::forward(Store::Plain);
        Self { spec, bulk: kernel::PLAIN_COPY.0, window: None, weak: false }
    }

    /// What it does.
    pub fn spec(&self) -> CopySpec {
        self.spec
    }

    /// Copies `from` to `to`, with the first byte as the target.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], with `to` untouched.
    pub fn copy(&self, to: &mut [u8], from: &[u8]) -> Result<(), Error> {
        self.copy_range(to, from, 0)
    }

    /// Copies `from` to `to` so that the bytes round offset `target` come last or stay in the cache,
    /// as the specification says.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] and [`Error::TargetOutside`], with `to` untouched.
    pub fn copy_towards(&self, to: &mut [u8], from: &[u8], target: usize) -> Result<(), Error> {
        if target >= to.len() {
            return Err(Error::TargetOutside { target, len: to.len() });
        }
        self.copy_range(to, from, target)
    }

    fn copy_range(&self, to: &mut [u8], from: &[u8], target: usize) -> Result<(), Error> {
        let len = to.len();
        if from.len() != len {
            return Err(Error::LengthMismatch { source_bytes: from.len(), destination_bytes: len });
        }
        let clear = self.spec.clear;
        let window = self.window.map_or(0..0, |_| clear.window_of(len, target));
        let run = |kernel: CopyKernel, to: &mut [u8], part: Range<usize>| {
            let (to, from) = (&mut to[part.clone()], &from[part]);
            // SAFETY: two slices of equal length, one of them exclusive, so they do not overlap;
            // `Copier::new` checked that the processor has the instructions.
            unsafe { kernel(to.as_mut_ptr(), from.as_ptr(), to.len(), self.spec.prefetch_bytes) }
        };
        for chunk in Steps::new(clear.order, len, clear.chunk.bytes(), target).iter() {
            for part in without(chunk, &window) {
                run(self.bulk, to, part);
            }
        }
        if let Some(kernel) = self.window {
            run(kernel, to, window);
        }
        publish(to.as_mut_ptr(), self.weak);
        Ok(())
    }
}
