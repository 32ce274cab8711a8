//! How often a thread stopped running.
#![expect(unsafe_code, reason = "getrusage has no safe wrapper")]

/// Of one thread, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Switches {
    /// It slept.
    pub(crate) voluntary: u64,
    /// It was ready to run and others ran instead; `sched_yield` counts where it let somebody in.
    pub(crate) involuntary: u64,
}

impl Switches {
    /// Of the calling thread. Zeros if the kernel does not tell.
    pub(crate) fn of_this_thread() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the call writes the whole structure, or fails.
        let usage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return Self::default();
            }
            usage.assume_init()
        };
        let count = |switches| u64::try_from(switches).unwrap_or(0);
        Self { voluntary: count(usage.ru_nvcsw), involuntary: count(usage.ru_nivcsw) }
    }
}
