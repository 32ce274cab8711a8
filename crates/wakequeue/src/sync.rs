//! Every atomic, lock and futex of this crate and of `tollgate-workqueue`, behind one shim: std and
//! futex(2) in a build, the model checker's under `--cfg loom`.
//!
//! Orderings are written for the C++20 memory model. loom 0.7 treats `SeqCst` *accesses* as
//! `AcqRel` and models only `SeqCst` *fences* in full, so places whose proof needs the single total
//! order of their `SeqCst` accesses call [`seq_cst_gap`] between the two: a fence under loom,
//! nothing elsewhere.

#![cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "futex(2) has no safe wrapper that Miri understands")
)]

#[cfg(loom)]
pub use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

use std::time::Duration;

#[cfg(loom)]
pub use loom::sync::MutexGuard;
#[cfg(not(loom))]
pub use std::sync::MutexGuard;

/// A load, and a store, by a thread that looks at a place before it changes it.
///
/// loom 0.7 remembers only the latest access to a place when it looks for what to reorder. A thread
/// that loads a word and then changes it thereby hides from it that another thread loaded that word
/// before, and the order in which the other one sees the change is never tried: the model of an
/// item queued while it runs was explored in one single order, and found nothing when the rule
/// against running twice was taken out. Under loom these are exchanges, which count as changes
/// themselves.
///
/// Not for a load whose place in the order of things is to be proved: an exchange sees the latest
/// value, so a missing fence before it would not show.
pub trait Observe {
    /// What is there.
    type Value;

    /// A load, before a change of the same place.
    fn observe(&self, order: Ordering) -> Self::Value;

    /// A store, to a place that others [`observe`](Self::observe).
    fn publish(&self, value: Self::Value, order: Ordering);
}

macro_rules! observe {
    ($($atomic:ty => $value:ty),*) => {$(
        impl Observe for $atomic {
            type Value = $value;

            #[inline]
            fn observe(&self, order: Ordering) -> $value {
                #[cfg(not(loom))]
                return self.load(order);
                #[cfg(loom)]
                self.fetch_add(0, if order == Ordering::Relaxed { order } else { Ordering::Acquire })
            }

            #[inline]
            fn publish(&self, value: $value, order: Ordering) {
                #[cfg(not(loom))]
                self.store(value, order);
                #[cfg(loom)]
                self.swap(value, if order == Ordering::Relaxed { order } else { Ordering::Release });
            }
        }
    )*};
}

observe!(AtomicU32 => u32, AtomicU64 => u64, AtomicUsize => usize);

/// Between a `SeqCst` write and a `SeqCst` read of another location whose order matters.
#[inline]
pub fn seq_cst_gap() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// One turn of a busy-wait loop.
#[inline]
pub fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// Lets another runnable thread have this CPU.
#[inline]
pub fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

/// A mutex without poisoning: what it guards stays consistent because no user code runs under it.
#[derive(Debug, Default)]
pub struct Mutex<T>(Inner<T>);

#[cfg(loom)]
type Inner<T> = loom::sync::Mutex<T>;
#[cfg(not(loom))]
type Inner<T> = std::sync::Mutex<T>;

impl<T> Mutex<T> {
    /// A free mutex.
    pub fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A cell whose exclusive use is proved by the protocol around it; loom checks the claim.
#[derive(Debug)]
pub struct UnsafeCell<T>(CellInner<T>);

#[cfg(loom)]
type CellInner<T> = loom::cell::UnsafeCell<T>;
#[cfg(not(loom))]
type CellInner<T> = std::cell::UnsafeCell<T>;

impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(CellInner::new(value))
    }

    /// Runs `body` on a pointer for exclusive use; dereferencing it is the caller's `unsafe`.
    #[inline]
    pub fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(loom)]
        return self.0.with_mut(body);
        #[cfg(not(loom))]
        body(self.0.get())
    }
}

/// A 32-bit word on which threads can sleep.
#[derive(Debug)]
pub struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    gate: loom::sync::Mutex<()>,
    #[cfg(loom)]
    bell: loom::sync::Condvar,
}

impl Futex {
    /// A word holding `value`.
    #[must_use]
    pub fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            #[cfg(loom)]
            gate: loom::sync::Mutex::new(()),
            #[cfg(loom)]
            bell: loom::sync::Condvar::new(),
        }
    }

    /// The word itself, for everything except sleeping.
    #[inline]
    #[must_use]
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// Sleeps while the word holds `expected`, at most for `timeout`; may return early, so callers
    /// loop. Under loom a wait with a timeout returns at once when nobody else can run.
    #[cfg(not(loom))]
    pub fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let spec = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        });
        let spec_ptr = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word is a live, aligned u32 for the whole call (borrowed from self), and the
        // timespec is null or outlives the call (it is on this stack frame).
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                spec_ptr,
            );
        }
    }

    /// Wakes at most `count` sleepers.
    #[cfg(not(loom))]
    pub fn wake(&self, count: i32) {
        // SAFETY: FUTEX_WAKE only uses the address as a key; it never reads or writes through it.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                count,
            );
        }
    }

    /// Sleeps while the word holds `expected` (model: no timeout ever fires).
    #[cfg(loom)]
    pub fn wait(&self, expected: u32, _timeout: Option<Duration>) {
        let gate = self.gate.lock().unwrap();
        if self.word.load(Ordering::SeqCst) == expected {
            drop(self.bell.wait(gate).unwrap());
        }
    }

    /// Wakes at most `count` sleepers.
    #[cfg(loom)]
    pub fn wake(&self, count: i32) {
        drop(self.gate.lock().unwrap());
        match count {
            i32::MAX => self.bell.notify_all(),
            _ => (0..count).for_each(|_| self.bell.notify_one()),
        }
    }
}
