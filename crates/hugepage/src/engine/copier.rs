//! The engine that copies.
#![expect(unsafe_code, reason = "writes whole buffers through raw pointers")]

use std::ops::Range;

use super::kernel::{self, CopyKernel, publish};
use super::order::{Order, Steps, without};
use super::spec::CopySpec;
use super::store::Store;
use crate::error::Error;

impl CopySpec {
    /// The engine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the processor lacks the instructions, or the kind only clears.
    pub fn check(self) -> Result<Copier, Error> {
        Copier::new(self)
    }
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
    #[must_use]
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

    /// Copies `from` to `to` so that the bytes round offset `target` come last or stay in the
    /// cache, as the specification says.
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
