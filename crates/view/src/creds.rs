//! On whose behalf a thread works.
//!
//! New files must belong to the caller, and the lower file system must judge the caller's groups,
//! not the server's. Identity is switched per thread, by raw system calls, only around the call
//! that needs it, and always switched back, also when the call panics.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tollgate_fuse::Caller;

/// What this process may do with identities, found out once at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Powers {
    own_uid: u32,
    own_gid: u32,
    /// `CAP_SETUID` and `CAP_SETGID`: may act as the caller.
    may_switch: bool,
}

impl Powers {
    pub(crate) fn of_this_process() -> Self {
        let has =
            |set: CapabilitySet| capabilities(None).is_ok_and(|sets| sets.effective.contains(set));
        Self {
            own_uid: rustix::process::geteuid().as_raw(),
            own_gid: rustix::process::getegid().as_raw(),
            may_switch: has(CapabilitySet::SETUID | CapabilitySet::SETGID)
                && rustix::process::geteuid().is_root(),
        }
    }

    /// Whether new files can belong to whoever makes them.
    pub(crate) fn may_switch(self) -> bool {
        self.may_switch
    }

    /// Runs `make` as `caller`, with the caller's `umask` and, if the kernel told it, the one
    /// supplementary group that matters (that of the directory).
    ///
    /// The umask is the thread's own (see [`private_umask`]): the lower file system applies it, or
    /// the directory's default ACL instead of it, as it would for the caller.
    pub(crate) fn create_as<T>(
        self,
        caller: Caller,
        group: Option<u32>,
        umask: u32,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        set_umask(umask & 0o777);
        let needs_switch = caller.uid != self.own_uid || caller.gid != self.own_gid;
        if !self.may_switch || !needs_switch {
            return make();
        }
        let _switched = Switched::to(self, caller, group)?;
        make()
    }
}

/// Sets this thread's umask, unless it is so already: callers rarely differ. Nothing else depends
/// on it.
fn set_umask(umask: u32) {
    if OWN_UMASK.get() != Some(umask) {
        rustix::process::umask(Mode::from_raw_mode(umask));
        // Only a umask that no other thread can change is remembered.
        if OWN_UMASK.get().is_some() {
            OWN_UMASK.set(Some(umask));
        }
    }
}

thread_local! {
    /// The umask of a thread that has one of its own.
    static OWN_UMASK: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

/// Gives the calling thread a umask (and working directory) of its own. Once per worker thread,
/// before its first request.
///
/// # Errors
/// The error of unshare(2).
pub(crate) fn private_umask() -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "unshare can break invariants of other threads in general")]
    // SAFETY: CLONE_FS only detaches umask, root and working directory of this thread; no
    // descriptor or memory changes hands.
    unsafe {
        rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS)?;
    }
    let known = 0o077;
    rustix::process::umask(Mode::from_raw_mode(known));
    OWN_UMASK.set(Some(known));
    Ok(())
}

/// Runs `act` without `CAP_FSETID`, so that the lower file system drops set-id bits as it does for
/// an unprivileged writer. A process without the capability has nothing to drop.
pub(crate) fn without_fsetid<T>(act: impl FnOnce() -> T) -> T {
    let Ok(before) = capabilities(None) else { return act() };
    if !before.effective.contains(CapabilitySet::FSETID) {
        return act();
    }
    let mut lowered = before;
    lowered.effective.remove(CapabilitySet::FSETID);
    if set_capabilities(None, lowered).is_err() {
        return act();
    }
    let _restore = OnDrop(|| {
        if let Err(error) = set_capabilities(None, before) {
            tracing::error!(%error, "CAP_FSETID could not be taken back by this thread");
        }
    });
    act()
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A thread that acts as someone else until this is dropped.
struct Switched {
    own: Powers,
}

impl Switched {
    fn to(own: Powers, caller: Caller, group: Option<u32>) -> Result<Self, Errno> {
        // The real and saved ids stay, so that the way back is open. Groups first: they need
        // the privilege that the user id gives up.
        let guard = Self { own };
        let gid = Gid::from_raw(caller.gid);
        match group {
            Some(group) => rustix::thread::set_thread_groups(&[Gid::from_raw(group)])?,
            None => rustix::thread::set_thread_groups(&[])?,
        }
        rustix::thread::set_thread_res_gid(
            Gid::from_raw(own.own_gid),
            gid,
            Gid::from_raw(own.own_gid),
        )?;
        let own_uid = Uid::from_raw(own.own_uid);
        rustix::thread::set_thread_res_uid(own_uid, Uid::from_raw(caller.uid), own_uid)?;
        Ok(guard)
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        let uid = Uid::from_raw(self.own.own_uid);
        let gid = Gid::from_raw(self.own.own_gid);
        let back = rustix::thread::set_thread_res_uid(uid, uid, uid)
            .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
            .and_then(|()| rustix::thread::set_thread_groups(&[]));
        if let Err(error) = back {
            // A thread stuck in a foreign identity must not serve anyone else.
            tracing::error!(%error, "a thread could not take its own identity back; stopping");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn on_own_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn new_files_belong_to_the_caller_with_the_callers_umask() {
        let powers = Powers::of_this_process();
        if !powers.may_switch() {
            eprintln!("skipped: not root, so no identity can be switched");
            return;
        }
        on_own_thread(move || {
            private_umask().unwrap();
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
            let path = dir.path().join("new");
            let caller = Caller { uid: 1234, gid: 2345, pid: 0 };
            powers
                .create_as(caller, None, 0o027, || {
                    std::fs::OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .open(&path)
                        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                })
                .unwrap();
            let meta = std::fs::metadata(&path).unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (1234, 2345, 0o640));
            assert!(rustix::process::geteuid().is_root(), "identity came back");
        });
    }

    #[test]
    fn fsetid_is_dropped_for_the_call_only() {
        on_own_thread(|| {
            let before = capabilities(None).unwrap().effective;
            let inside = without_fsetid(|| capabilities(None).unwrap().effective);
            assert!(!inside.contains(CapabilitySet::FSETID));
            assert_eq!(capabilities(None).unwrap().effective, before);
        });
    }
}
