//! On whose behalf a thread works.
//!
//! New files must belong to the caller, and the lower file system must judge the caller, not the
//! server: the kernel's own checks of a view go by attributes that it may have cached, and set-id
//! bits, reserved blocks and quota depend on who writes. Identity is switched per thread, by raw
//! system calls, only around the call that needs it, and always switched back, also when the call
//! panics.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tollgate_fuse::Caller;

use crate::caller::Callers;
use crate::lower;

/// Capabilities that a file system looks at.
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::SYS_ADMIN);

/// A user and a group that nobody is: the largest ids there are.
const NOBODY: u32 = u32::MAX - 1;

/// What this process may do with identities, found out once at the start.
#[derive(Clone)]
pub(crate) struct Powers {
    own_uid: u32,
    own_gid: u32,
    /// `CAP_SETUID` and `CAP_SETGID`: may act as the caller.
    may_switch: bool,
    /// What every thread has while it acts for the server itself.
    own: CapabilitySet,
    /// Who looks at callers.
    callers: Arc<dyn Callers>,
}

impl Powers {
    pub(crate) fn of_this_process(callers: Arc<dyn Callers>) -> Self {
        let own = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let has = |set: CapabilitySet| own.contains(set);
        Self {
            own,
            callers,
            own_uid: rustix::process::geteuid().as_raw(),
            own_gid: rustix::process::getegid().as_raw(),
            may_switch: has(CapabilitySet::SETUID | CapabilitySet::SETGID)
                && rustix::process::geteuid().is_root(),
        }
    }

    /// Who looks at callers.
    pub(crate) fn callers(&self) -> &dyn Callers {
        &*self.callers
    }

    /// Whether new files can belong to whoever makes them.
    pub(crate) fn may_switch(&self) -> bool {
        self.may_switch
    }

    /// Runs `make` as `caller`, with the caller's `umask` and, if the kernel told it, the one
    /// supplementary group that matters (that of the directory).
    ///
    /// The umask is the thread's own (see [`private_umask`]): the lower file system applies it, or
    /// the directory's default ACL instead of it, as it would for the caller.
    pub(crate) fn create_as<T>(
        &self,
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
        let _switched = Switched::to(self, caller, group.as_slice())?;
        make()
    }

    /// Runs `act` with the caller's file system identity and the capabilities that the caller has.
    ///
    /// The kernel does not tell the caller's supplementary groups. They are looked up when `act` is
    /// refused without them, so it must do nothing that it does not undo before it fails.
    pub(crate) fn as_caller<T>(
        &self,
        caller: Caller,
        mut act: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !self.may_switch {
            return act();
        }
        if caller.uid == self.own_uid {
            return self.with_less(self.lacking(caller), act);
        }
        match self.switched(caller, &[], &mut act) {
            Err(Errno::PERM | Errno::ACCESS) => {}
            result => return result,
        }
        self.as_caller_in_groups(caller, act)
    }

    /// The same with the caller's supplementary groups from the start: where they decide what is
    /// done and not only whether.
    pub(crate) fn as_caller_in_groups<T>(
        &self,
        caller: Caller,
        act: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !self.may_switch || caller.uid == self.own_uid {
            return self.as_caller(caller, act);
        }
        self.switched(caller, &groups_of(caller.pid), act)
    }

    /// Runs `write`, with which the server writes what it needs itself to a file of the caller: it finds
    /// room where the caller would, and set-id bits stay.
    pub(crate) fn with_room_of<T>(
        &self,
        caller: Caller,
        write: impl FnOnce() -> T,
    ) -> Result<T, Errno> {
        if !self.may_switch {
            return Ok(write());
        }
        let keeps = CapabilitySet::FSETID;
        if caller.uid == self.own_uid {
            return Ok(self.with_less(self.lacking(caller) - keeps, write));
        }
        let _switched = Switched::to(self, caller, &[])?;
        let mut sets = capabilities(None)?;
        sets.effective = (self.extra_capabilities(caller.pid) | keeps) & self.own;
        set_capabilities(None, sets)?;
        Ok(write())
    }

    /// Drops the set-id bits of the file that an `O_PATH` descriptor names, as writing it would for a
    /// caller without `CAP_FSETID`. Without privilege the lower file system does that with all that
    /// the server writes.
    pub(crate) fn drop_set_ids(&self, caller: Caller, path: BorrowedFd<'_>) -> Result<(), Errno> {
        let bits = Mode::SUID | Mode::SGID;
        if !self.may_switch || !Mode::from_raw_mode(lower::stat_fd(path)?.mode()).intersects(bits) {
            return Ok(());
        }
        // To no other owner. Which bits go with that is the kernel's to say; nothing else changes,
        // whatever others do with the file meanwhile.
        let drop = || rustix::fs::chownat(path, c"", None, None, AtFlags::EMPTY_PATH);
        if caller.uid == self.own_uid {
            return without_fsetid(drop);
        }
        // A group of the caller may keep its bit.
        let _switched = Switched::to(self, caller, &groups_of(caller.pid))?;
        let mut sets = capabilities(None)?;
        sets.effective = CapabilitySet::FOWNER & self.own;
        set_capabilities(None, sets)?;
        drop()
    }

    /// The same, unless the caller has `CAP_FSETID`: where the kernel does not tell.
    pub(crate) fn drop_set_ids_by_capability(
        &self,
        caller: Caller,
        path: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let keeps = if caller.uid == self.own_uid {
            !self.lacking(caller).contains(CapabilitySet::FSETID)
        } else {
            self.extra_capabilities(caller.pid).contains(CapabilitySet::FSETID)
        };
        if keeps { Ok(()) } else { self.drop_set_ids(caller, path) }
    }

    fn switched<T>(
        &self,
        caller: Caller,
        groups: &[u32],
        act: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let _switched = Switched::to(self, caller, groups)?;
        let more = self.extra_capabilities(caller.pid) & self.own;
        if !more.is_empty() {
            // They go again with the identity.
            let mut sets = capabilities(None)?;
            sets.effective = more;
            set_capabilities(None, sets)?;
        }
        act()
    }

    /// Capabilities over files of a thread that is not root's. Those of another user namespace do
    /// not hold for all files, and do not count.
    fn extra_capabilities(&self, tid: u32) -> CapabilitySet {
        let some = capabilities_of(tid).unwrap_or(CapabilitySet::empty()) & OF_FILES;
        if some.is_empty() || self.callers.is_of_this_user_namespace(tid) {
            some
        } else {
            CapabilitySet::empty()
        }
    }

    /// What the caller, of the server's own user, lacks of what the server has. A caller that cannot
    /// be looked at, because it is outside of the server's pid namespace, lacks nothing.
    fn lacking(&self, caller: Caller) -> CapabilitySet {
        let caller = capabilities_of(caller.pid).unwrap_or(CapabilitySet::all());
        (self.own & OF_FILES) - caller
    }

    /// Runs `act` without the capabilities in `less`.
    fn with_less<T>(&self, less: CapabilitySet, act: impl FnOnce() -> T) -> T {
        if less.is_empty() { act() } else { without(less, act) }
    }

    /// Runs `register`, whose credentials the kernel keeps for all reads and writes of a file in
    /// passthrough, whoever does them: those of nobody, so that set-id bits go, and so that reserved
    /// blocks and hard limits are not root's. `by_user` is whether reserved blocks go by the user.
    pub(crate) fn as_nobody<T>(&self, by_user: bool, register: impl FnOnce() -> T) -> T {
        if !self.may_switch {
            return without_fsetid(register);
        }
        let less = CapabilitySet::FSETID | CapabilitySet::SYS_RESOURCE;
        without(less, || {
            let _ids = FileIds::nobody(self, by_user);
            register()
        })
    }
}

/// The effective capabilities of thread `tid`, if it can be looked at.
fn capabilities_of(tid: u32) -> Option<CapabilitySet> {
    let tid = Pid::from_raw(i32::try_from(tid).ok()?)?;
    Some(capabilities(Some(tid)).ok()?.effective)
}

/// The supplementary groups of thread `tid`; none if it cannot be looked at.
fn groups_of(tid: u32) -> Vec<u32> {
    if tid == 0 {
        return Vec::new();
    }
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).collect()
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
    /// What the thread has, while it is known to act for itself: nobody else changes it then.
    static OWN_CAPABILITIES: std::cell::Cell<Option<CapabilitySets>> = const { std::cell::Cell::new(None) };
    /// The thread has no supplementary groups while it acts for itself.
    static HAS_NO_GROUPS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Powers {
    /// Prepares the calling thread to act for callers: a umask (and working directory) of its own,
    /// and no supplementary groups, which would count as the caller's. Once per worker thread,
    /// before its first request. Where the groups have to stay, the thread acts for its own user all
    /// the same.
    ///
    /// # Errors
    /// The error of unshare(2).
    pub(crate) fn prepare_thread(&self) -> Result<(), Errno> {
        if self.may_switch {
            match leave_groups() {
                Ok(()) => HAS_NO_GROUPS.set(true),
                Err(error) => GROUPS_STAY.call_once(|| tell_of_groups(error)),
            }
        }
        OWN_CAPABILITIES.set(capabilities(None).ok());
        private_umask()
    }
}

/// Said once for all threads.
static GROUPS_STAY: std::sync::Once = std::sync::Once::new();

/// A user namespace can forbid setgroups(2), also to who has none to leave.
fn leave_groups() -> Result<(), Errno> {
    if rustix::process::getgroups().is_ok_and(|groups| groups.is_empty()) {
        return Ok(());
    }
    rustix::thread::set_thread_groups(&[])
}

/// Nothing follows from it where there is no other user to act for.
fn tell_of_groups(error: Errno) {
    let map = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    if ["/proc/self/uid_map", "/proc/self/gid_map"].iter().all(|file| is_of_one(&map(file))) {
        return;
    }
    let setgroups = map("/proc/self/setgroups");
    let why =
        if setgroups.trim() == "deny" { " (this user namespace denies setgroups)" } else { "" };
    tracing::warn!(
        %error,
        "the server cannot leave its supplementary groups{why}: what other users than its own ask \
         for may be refused, with `Operation not permitted`"
    );
}

/// Whether an id map, lines of `inside outside count`, has a single id.
fn is_of_one(map: &str) -> bool {
    let mut counts = map.lines().map(|line| line.split_whitespace().nth(2));
    (counts.next(), counts.next()) == (Some(Some("1")), None)
}

/// Gives the calling thread a umask of its own.
fn private_umask() -> Result<(), Errno> {
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
    without(CapabilitySet::FSETID, act)
}

/// Runs `act` without the capabilities in `less`.
fn without<T>(less: CapabilitySet, act: impl FnOnce() -> T) -> T {
    let known = OWN_CAPABILITIES.get();
    let Ok(before) = known.map_or_else(|| capabilities(None), Ok) else { return act() };
    if !before.effective.intersects(less) {
        return act();
    }
    let lowered = CapabilitySets { effective: before.effective - less, ..before };
    if set_capabilities(None, lowered).is_err() {
        return act();
    }
    OWN_CAPABILITIES.set(None);
    let _restore = OnDrop(|| match set_capabilities(None, before) {
        Ok(()) => OWN_CAPABILITIES.set(known),
        Err(error) => {
            tracing::error!(%error, "capabilities could not be taken back by this thread");
        }
    });
    act()
}

/// A thread whose file system ids are nobody's until this is dropped. Its other ids, and what it may
/// do besides files, stay.
struct FileIds<'p> {
    own: &'p Powers,
    by_user: bool,
}

impl<'p> FileIds<'p> {
    fn nobody(own: &'p Powers, by_user: bool) -> Self {
        set_file_ids(libc::SYS_setfsgid, NOBODY);
        if by_user {
            set_file_ids(libc::SYS_setfsuid, NOBODY);
        }
        Self { own, by_user }
    }
}

impl Drop for FileIds<'_> {
    fn drop(&mut self) {
        if self.by_user {
            set_file_ids(libc::SYS_setfsuid, self.own.own_uid);
        }
        set_file_ids(libc::SYS_setfsgid, self.own.own_gid);
    }
}

/// setfsuid(2) or setfsgid(2). A process of root may always do it; an error could not be told from
/// success.
fn set_file_ids(call: libc::c_long, id: u32) {
    #[expect(unsafe_code, reason = "rustix has neither call")]
    // SAFETY: no memory is involved; the calls change ids of this thread alone.
    unsafe {
        libc::syscall(call, id);
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A thread that acts as someone else until this is dropped.
struct Switched<'p> {
    own: &'p Powers,
    /// It has other supplementary groups, too.
    in_groups: bool,
    /// What it has while it acts for itself, if that is known.
    capabilities: Option<CapabilitySets>,
}

impl<'p> Switched<'p> {
    fn to(own: &'p Powers, caller: Caller, groups: &[u32]) -> Result<Self, Errno> {
        // The real and saved ids stay, so that the way back is open. Groups first: they need
        // the privilege that the user id gives up.
        // Each call makes the kernel copy the thread's credentials and costs a microsecond.
        let in_groups = !(groups.is_empty() && HAS_NO_GROUPS.get());
        let gid = Gid::from_raw(caller.gid);
        if in_groups {
            let groups: smallvec::SmallVec<[Gid; 32]> =
                groups.iter().map(|group| Gid::from_raw(*group)).collect();
            // Where this is refused, there is nothing to take back, and it could not be.
            rustix::thread::set_thread_groups(&groups)?;
        }
        // Those of another user go with the identity.
        let guard = Self { own, in_groups, capabilities: OWN_CAPABILITIES.take() };
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

impl Drop for Switched<'_> {
    fn drop(&mut self) {
        let uid = Uid::from_raw(self.own.own_uid);
        let gid = Gid::from_raw(self.own.own_gid);
        let back = rustix::thread::set_thread_res_uid(uid, uid, uid)
            .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
            .and_then(|()| match self.in_groups {
                true => rustix::thread::set_thread_groups(&[]),
                false => Ok(()),
            });
        if let Err(error) = back {
            // A thread stuck in a foreign identity must not serve anyone else.
            tracing::error!(%error, "a thread could not take its own identity back; stopping");
            std::process::abort();
        }
        OWN_CAPABILITIES.set(self.capabilities);
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
        let powers = Powers::of_this_process(Arc::new(crate::caller::ProcCallers::default()));
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

    /// Also on a thread that had groups of its own, and was never prepared.
    #[test]
    fn a_thread_has_the_groups_that_are_asked_for_and_no_others() {
        let powers = Powers::of_this_process(Arc::new(crate::caller::ProcCallers::default()));
        if !powers.may_switch() {
            eprintln!("skipped: not root, so no identity can be switched");
            return;
        }
        on_own_thread(move || {
            let caller = Caller { uid: 1234, gid: 2345, pid: 0 };
            let own = || rustix::process::getgroups().unwrap();
            let inside = |groups: &[u32]| powers.switched(caller, groups, || Ok(own())).unwrap();
            rustix::thread::set_thread_groups(&[Gid::from_raw(5)]).unwrap();
            for is_prepared in [false, true] {
                if is_prepared {
                    rustix::thread::set_thread_groups(&[Gid::from_raw(6)]).unwrap();
                    powers.prepare_thread().unwrap();
                }
                assert_eq!((inside(&[]), own()), (vec![], vec![]));
                assert_eq!((inside(&[7, 8]), own()), ([7, 8].map(Gid::from_raw).into(), vec![]));
                assert_eq!((inside(&[]), own()), (vec![], vec![]));
            }
        });
    }

    #[test]
    fn a_map_of_one_id_is_told_from_others() {
        assert!(is_of_one("         0       1000          1\n"));
        for map in ["", "0 1000 1\n1 100000 65536\n", "0 0 4294967295\n"] {
            assert!(!is_of_one(map), "{map}");
        }
    }

    /// A worker knows what it has, and does not ask the kernel each time.
    #[test]
    fn what_a_prepared_thread_has_comes_back() {
        let powers = Powers::of_this_process(Arc::new(crate::caller::ProcCallers::default()));
        on_own_thread(move || {
            powers.prepare_thread().unwrap();
            let own = || capabilities(None).unwrap().effective;
            let before = own();
            let fsetid = CapabilitySet::FSETID;
            for _ in 0..2 {
                let (outer, inner) = without(fsetid, || (own(), without(fsetid, own)));
                assert!(!outer.intersects(fsetid) && outer == inner);
                let less = without(fsetid, || without(CapabilitySet::CHOWN, own));
                assert!(!less.intersects(fsetid | CapabilitySet::CHOWN));
                assert!(!powers.as_nobody(true, own).intersects(fsetid));
                assert_eq!(own(), before);
                if powers.may_switch() {
                    let caller = Caller { uid: 1234, gid: 2345, pid: 0 };
                    let switched = |act: &dyn Fn() -> CapabilitySet| {
                        powers.switched(caller, &[], || Ok(act())).unwrap()
                    };
                    assert!(switched(&own).is_empty(), "another user has none");
                    assert!(switched(&|| without(fsetid, own)).is_empty());
                    assert_eq!(own(), before);
                }
            }
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
