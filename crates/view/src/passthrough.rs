//! Whether passthrough is available, and why not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use tollgate_policy::Mode;

use crate::mode::IoMode;

/// Availability of passthrough, with the reason where it is missing.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    refused: AtomicBool,
    reason: OnceLock<String>,
    /// Files that were served by this process although the policy allows passthrough.
    fallbacks: AtomicU64,
}

/// Why a file is not registered.
#[derive(Debug)]
pub(crate) enum NotRegistered {
    /// This process may only read it, and who registers files for it takes no such file.
    OnlyRead,
    /// It is append-only. The kernel looks for that at the view's inode, which is not: it would let a
    /// handle be mapped to be written, or lose its `O_APPEND`.
    AppendOnly,
    /// The kernel, or who registers for this process, refused it.
    Refused(std::io::Error),
}

impl Passthrough {
    pub(crate) fn unavailable(&self, reason: impl Into<String>) {
        self.refused.store(true, Ordering::Relaxed);
        let reason = reason.into();
        if self.reason.set(reason.clone()).is_ok() {
            tracing::debug!(reason, "no passthrough: files are served by this process");
        }
    }

    pub(crate) fn is_available(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    pub(crate) fn fallbacks(&self) -> u64 {
        self.fallbacks.load(Ordering::Relaxed)
    }

    /// The mode of an inode for which the policy asks `wanted`.
    pub(crate) fn io_mode(&self, wanted: Mode) -> IoMode {
        match wanted {
            Mode::Userspace | Mode::Sealed | Mode::Redacted => IoMode::Direct,
            Mode::Passthrough if self.is_available() => IoMode::Passthrough,
            Mode::Passthrough => IoMode::Cached,
        }
    }

    /// A registration failed, so the file is served by this process. `EPERM` is about this process
    /// and stays so; `ELOOP` (stacked too deep) and the like are about the file.
    /// `by_other` is whether somebody else registers for this process: its refusal is about one
    /// file, and while it cannot be reached it may come back.
    pub(crate) fn registration_failed(&self, why: &NotRegistered, by_other: bool) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        let error = match why {
            NotRegistered::Refused(error) if !by_other => error,
            NotRegistered::Refused(error) => return tracing::debug!(%error, "not registered"),
            NotRegistered::OnlyRead | NotRegistered::AppendOnly => return,
        };
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM) => {
                self.unavailable("registering a backing file needs CAP_SYS_ADMIN");
            }
            Some(Errno::LOOP) => {
                let _ = self.reason.set(
                    "some lower files lie on a file system that is stacked too deep".to_owned(),
                );
            }
            _ => {
                let _ = self.reason.set(format!("the kernel refused a backing file: {error}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> NotRegistered {
        NotRegistered::Refused(errno.into())
    }

    #[test]
    fn a_missing_capability_is_about_the_process_and_a_stacked_file_about_itself() {
        let passthrough = Passthrough::default();
        passthrough.registration_failed(&error(Errno::LOOP), false);
        assert!(passthrough.is_available());
        assert!(passthrough.reason().unwrap().contains("stacked too deep"));
        passthrough.registration_failed(&error(Errno::PERM), false);
        assert_eq!(passthrough.io_mode(Mode::Passthrough), IoMode::Cached);
        assert_eq!(passthrough.io_mode(Mode::Userspace), IoMode::Direct);
        assert_eq!(passthrough.fallbacks(), 2);
    }

    #[test]
    fn what_somebody_else_refuses_is_about_one_file() {
        let passthrough = Passthrough::default();
        passthrough.registration_failed(&NotRegistered::OnlyRead, true);
        passthrough.registration_failed(&NotRegistered::AppendOnly, false);
        passthrough.registration_failed(&error(Errno::PERM), true);
        assert_eq!(passthrough.io_mode(Mode::Passthrough), IoMode::Passthrough);
        assert_eq!((passthrough.fallbacks(), passthrough.reason()), (3, None));
    }
}
