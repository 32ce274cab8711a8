//! Which kernels a store kind stands for on this processor, and how their stores are published.
#![cfg_attr(
    not(miri),
    expect(unsafe_code, reason = "a barrier that the compiler cannot see through")
)]

use super::portable;
use super::store::Store;
use crate::error::Error;

/// Clears `[start, start + len)`.
pub(super) type ClearKernel = unsafe fn(start: *mut u8, len: usize);
/// Copies `len` bytes, prefetching `prefetch_bytes` ahead.
pub(super) type CopyKernel =
    unsafe fn(to: *mut u8, from: *const u8, len: usize, prefetch_bytes: usize);

/// The kernels of one store kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    pub(super) clear_up: ClearKernel,
    pub(super) clear_down: ClearKernel,
    /// `None` for an instruction that only clears.
    pub(super) copy: Option<(CopyKernel, CopyKernel)>,
    /// Stores that other CPUs may see late, so that a fence must come before publishing.
    pub(super) weak: bool,
}

pub(super) const PLAIN_COPY: (CopyKernel, CopyKernel) = (portable::copy_up, portable::copy_down);

pub(super) const PLAIN: Kernels = Kernels {
    clear_up: portable::clear_up,
    clear_down: portable::clear_down,
    copy: Some(PLAIN_COPY),
    weak: false,
};

/// The kernels of `store`, where this processor has its instructions. [`Store::Hybrid`] is made of
/// two others and has none of its own.
pub(super) fn kernels(store: Store) -> Result<Kernels, Error> {
    if store == Store::Plain {
        return Ok(PLAIN);
    }
    of_processor(store).ok_or_else(|| Error::Unsupported {
        what: format!("the store kind {store}"),
        on: "this processor".into(),
        way_out: "use `plain`, or a plan from ClearPlan::detected".into(),
    })
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn of_processor(_store: Store) -> Option<Kernels> {
    None
}

#[cfg(all(not(miri), target_arch = "aarch64"))]
fn of_processor(store: Store) -> Option<Kernels> {
    use super::aarch64;
    Some(match store {
        Store::Zva if aarch64::zva_block().is_some() => Kernels {
            clear_up: aarch64::clear_zva_up,
            clear_down: aarch64::clear_zva_down,
            copy: None,
            weak: true,
        },
        Store::Stnp => Kernels {
            clear_up: aarch64::clear_stnp_up,
            clear_down: aarch64::clear_stnp_down,
            copy: Some((aarch64::copy_stnp_up, aarch64::copy_stnp_down)),
            weak: true,
        },
        _ => return None,
    })
}

#[cfg(all(not(miri), target_arch = "x86_64"))]
fn of_processor(store: Store) -> Option<Kernels> {
    use super::x86;
    let avx2 = std::arch::is_x86_feature_detected!("avx2");
    let avx512 = std::arch::is_x86_feature_detected!("avx512f");
    let kernels = |clear_up: ClearKernel, clear_down: ClearKernel, copy, weak| Kernels {
        clear_up,
        clear_down,
        copy,
        weak,
    };
    let pair = |up: CopyKernel, down: CopyKernel| Some((up, down));
    Some(match store {
        Store::Rep => kernels(
            x86::clear_rep_up,
            x86::clear_rep_down,
            pair(x86::copy_rep_up, x86::copy_rep_down),
            // Unordered among themselves only: a later store is ordered after all of them.
            false,
        ),
        Store::Avx2 if avx2 => kernels(
            x86::clear_avx2_up,
            x86::clear_avx2_down,
            pair(x86::copy_avx2_up, x86::copy_avx2_down),
            false,
        ),
        Store::NtAvx2 if avx2 => kernels(
            x86::clear_nt_avx2_up,
            x86::clear_nt_avx2_down,
            pair(x86::copy_nt_avx2_up, x86::copy_nt_avx2_down),
            true,
        ),
        Store::Avx512 if avx512 => kernels(
            x86::clear_avx512_up,
            x86::clear_avx512_down,
            pair(x86::copy_avx512_up, x86::copy_avx512_down),
            false,
        ),
        Store::NtAvx512 if avx512 => kernels(
            x86::clear_nt_avx512_up,
            x86::clear_nt_avx512_down,
            pair(x86::copy_nt_avx512_up, x86::copy_nt_avx512_down),
            true,
        ),
        Store::Clzero if x86::has_clzero() => {
            kernels(x86::clear_clzero_up, x86::clear_clzero_down, None, true)
        }
        _ => return None,
    })
}

impl Store {
    /// Whether this processor has it.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Hybrid => Self::best_non_temporal().is_ok(),
            store => kernels(store).is_ok(),
        }
    }

    /// The kinds that this processor has.
    pub fn supported() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|store| store.is_supported())
    }

    pub(super) fn best_non_temporal() -> Result<Self, Error> {
        let kinds = [Self::NtAvx512, Self::NtAvx2, Self::Stnp];
        kinds.into_iter().find(|store| kernels(*store).is_ok()).ok_or_else(|| Error::Unsupported {
            what: "a non-temporal store".into(),
            on: "this processor".into(),
            way_out: "use `plain`, or a plan from ClearPlan::detected".into(),
        })
    }

    pub(super) fn best_cached() -> Self {
        let kinds = [Self::Avx512, Self::Avx2];
        kinds.into_iter().find(|store| kernels(*store).is_ok()).unwrap_or(Self::Plain)
    }
}

/// Makes the stores before visible before any later store, and makes the compiler believe that all memory
/// reachable from `start` is read, so that it keeps the stores before though the buffer be dead.
#[cfg(not(miri))]
pub(super) fn publish(start: *mut u8, weak: bool) {
    #[cfg(target_arch = "x86_64")]
    if weak {
        super::x86::store_fence();
    }
    // Here even the stores of memset come in no order.
    #[cfg(target_arch = "aarch64")]
    super::aarch64::store_fence();
    let _ = weak;
    // SAFETY: no instruction at all. Without the options `nomem` and `readonly` the compiler must
    // assume that the assembly reads and writes what `start` points to.
    unsafe { std::arch::asm!("/* {0} */", in(reg) start, options(nostack, preserves_flags)) }
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Miri runs no assembly, and drops no stores.
#[cfg(miri)]
pub(super) fn publish(_start: *mut u8, _weak: bool) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
