//! What serves /dev/fuse in the place of rings that the kernel did not take.
//!
//! Needs FUSE over io_uring; where it is off this says so and passes.
#![expect(unsafe_code, reason = "seccomp(2)")]

mod common;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::clients::until;
use common::{Lower, can_mount};
use tollgate_fuse::*;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Has io_uring_enter(2) fail in this thread, which cannot register a ring then.
fn forbid_rings() {
    let step =
        |code: u32, jf, k| libc::sock_filter { code: code.try_into().unwrap(), jt: 0, jf, k };
    let forbidden = u32::try_from(libc::SYS_io_uring_enter).unwrap();
    let refusal = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap();
    let mut steps = [
        // The number of the call comes first in what is judged.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, forbidden),
        step(libc::BPF_RET | libc::BPF_K, 0, refusal),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    // SAFETY: the filter and its four steps live until the calls return, and are only read.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A worker in the place of a ring tells while it holds a request, as any worker of /dev/fuse.
#[test]
fn what_was_closed_is_released_once_those_who_fell_back_have_passed() {
    if !can_mount() {
        return;
    }
    if !std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "Y") {
        eprintln!("SKIPPED: {PARAMETER} is not Y");
        return;
    }
    // Worker 0 serves /dev/fuse; worker 1 has a ring. Without one, no ring is used.
    let hook = |worker| {
        if worker == 1 {
            forbid_rings();
        }
    };
    let config = SessionConfig {
        transport: TransportChoice::Uring,
        threads: 3,
        spin: Duration::from_micros(20),
        on_thread_start: Some(Arc::new(hook)),
        ..SessionConfig::default()
    };
    let (lower, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(lower.path().join("direct"), b"here").unwrap();
    let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
    let fs = Lower::new(lower.path());
    let running = Session::new(device, Arc::clone(&fs), config).start().unwrap();
    let connection = running.connection();
    assert_eq!(connection.transport().unwrap().in_use, TransportInUse::DevFuse);
    for round in 1..=20 {
        fs.releases_wait.store(true, Ordering::SeqCst);
        drop(File::open(at.path().join("direct")).unwrap());
        // Served by another worker, while the first one is at the RELEASE.
        assert!(std::fs::metadata(at.path().join(format!("missing-{round}"))).is_err());
        let mut passing = connection.passing();
        let early = (0..20).any(|_| {
            std::thread::sleep(Duration::from_micros(100));
            passing.is_over()
        });
        // First, or the session would not end.
        fs.releases_wait.store(false, Ordering::SeqCst);
        assert!(!early, "the RELEASE is not served yet");
        until("the workers have passed", || passing.is_over());
        assert_eq!(fs.released.load(Ordering::SeqCst), round, "a close is under way");
    }
}
