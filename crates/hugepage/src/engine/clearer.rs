//! The engine that clears.
#![expect(unsafe_code, reason = "writes whole buffers through raw pointers")]

use std::mem::MaybeUninit;

use super::kernel::{self, ClearKernel, Kernels, publish};
use super::order::{Order, Steps, without};
use super::spec::ClearSpec;
use super::store::Store;
use crate::error::Error;

impl ClearSpec {
    /// The engine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the processor lacks the instructions.
    pub fn check(self) -> Result<Clearer, Error> {
        Clearer::new(self)
    }
}

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
    #[must_use]
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
    #[must_use]
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
                // SAFETY: the steps and the parts of a chunk lie in `0..len`; `Clearer::new`
                // checked that the processor has the instructions.
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
