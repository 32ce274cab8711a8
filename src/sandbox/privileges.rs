//! Privileges that a server does without.

use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::duties::Duties;

/// What every server needs: to act as any caller, to reach files whatever their modes (`DAC_*`,
/// `FOWNER`, `SYS_RESOURCE`; a caller's are dropped for each call), to register backing files and
/// watch DIR (`SYS_ADMIN`), to wake threads from SCHED_IDLE (`SYS_NICE`).
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::SETFCAP);

/// What a server with `duties` keeps.
fn needed(duties: Duties) -> CapabilitySet {
    let mut needed = KEPT;
    // CMD may run as another user.
    needed.set(CapabilitySet::KILL, duties.runs);
    needed.set(CapabilitySet::NET_BIND_SERVICE, duties.listens);
    // To read which program a caller runs, unless another process does that.
    needed.set(CapabilitySet::SYS_PTRACE, duties.looks);
    // Buffers of rings are locked memory.
    needed.set(CapabilitySet::IPC_LOCK, duties.rings);
    needed
}

/// Gives up, in the calling thread and those that it starts, all other capabilities and every way
/// to gain some. The process cannot be traced by its user's others any more, nor dump its memory.
///
/// # Errors
/// The error of prctl(2) or capset(2).
pub(super) fn give_up(duties: Duties) -> Result<(), Errno> {
    let needed = needed(duties);
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    let mut own = capabilities(None)?;
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(needed).iter() {
            // The kernel may be older than the list.
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
    own.effective &= needed;
    own.permitted &= needed;
    own.inheritable = CapabilitySet::empty();
    set_capabilities(None, own)
}
