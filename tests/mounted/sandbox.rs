//! What a server has given up once it serves.
#![expect(unsafe_code, reason = "ptrace and pidfd_getfd, as an attacker calls them")]

use std::fs;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::harness::{View, as_user, can_mount};

/// Numbers of capabilities that serving does not need, by `<linux/capability.h>`: SETPCAP, NET_ADMIN,
/// NET_RAW, IPC_OWNER, SYS_MODULE, SYS_RAWIO, SYS_CHROOT, SYS_PTRACE, SYS_BOOT, SYS_TIME,
/// AUDIT_CONTROL, MAC_OVERRIDE, MAC_ADMIN, SYSLOG, AUDIT_READ, PERFMON, BPF, CHECKPOINT_RESTORE.
const NOT_NEEDED: [u32; 18] =
    [8, 12, 13, 15, 16, 17, 18, 19, 22, 25, 30, 32, 33, 34, 37, 38, 39, 40];

fn use_it(view: &View) {
    fs::write(view.at("a"), "text").unwrap();
    fs::rename(view.at("a"), view.at("b")).unwrap();
    assert_eq!(fs::read(view.at("b")).unwrap(), b"text");
}

#[test]
fn a_server_gives_up_what_it_does_not_need() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), "", &["--sandbox", "on"]);
    use_it(&view);
    for (key, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapInh", "0000000000000000")] {
        let found = view.of_each_thread(key);
        assert!(
            found.len() >= 2 && found.iter().all(|value| value == expected),
            "{key}: {found:?}"
        );
    }
    for key in ["CapEff", "CapPrm", "CapBnd"] {
        for value in view.of_each_thread(key) {
            let held = u64::from_str_radix(&value, 16).unwrap();
            let too_many = NOT_NEEDED.iter().find(|bit| held & 1 << **bit != 0);
            assert_eq!(too_many, None, "{key} {value}");
        }
    }
    let report = view.server_report()["sandbox"].clone();
    assert_eq!((&report["mode"], &report["refused_calls"]), (&"on".into(), &0.into()), "{report}");
    for key in ["system_calls_not_restricted", "files_not_restricted"] {
        assert!(report[key].is_null(), "{report}");
    }
}

/// How CPUs are kept awake is found out by trying, once that is worth while. On a busy machine that may
/// be never: then there is nothing to be seen.
#[test]
fn a_sandboxed_server_keeps_cpus_awake_as_it_would_without() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), "", &["--keep-awake", "on"]);
    let begin = std::time::Instant::now();
    let report = loop {
        use_it(&view);
        let report = view.server_report()["keep_awake"].clone();
        if report["by"] != "measuring" || begin.elapsed().as_secs() >= 20 {
            break report.to_string();
        }
    };
    assert!(!report.contains("Permission denied"), "it gave up what it needs: {report}");
}

#[test]
fn a_server_without_the_sandbox_says_so() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), "", &["--sandbox", "off"]);
    use_it(&view);
    assert!(view.of_each_thread("Seccomp").iter().all(|value| value == "0"));
    assert_eq!(view.server_report()["sandbox"]["mode"], "off");
}

/// Everything that a server does at its end is on the list too: the harness expects a good end.
#[test]
fn a_sandboxed_server_unmounts_and_reloads() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    fs::create_dir_all(lower.path().join("native/below")).unwrap();
    let policy = "[[rule]]\npath = 'native'\naction = 'native'";
    let view = View::of(lower.path(), policy, &[]);
    fs::write(view.at("native/file"), "text").unwrap();
    let pid = Pid::from_raw(i32::try_from(view.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    use_it(&view);
    assert_eq!(view.server_report()["sandbox"]["refused_calls"], 0);
}

/// Another process of the server's user, which holds no capability, neither traces the server nor
/// takes a descriptor from it, nor reads its memory. As root the capabilities go, the user stays.
#[test]
fn the_server_cannot_be_traced_by_its_own_user() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let view = View::of(lower.path(), "", &[]);
    let pid = view.pid();
    as_user(0, 0, || {
        let none = rustix::thread::CapabilitySet::empty();
        let sets =
            rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let pid = i32::try_from(pid).unwrap();
        for request in [libc::PTRACE_ATTACH, libc::PTRACE_SEIZE] {
            // SAFETY: no memory of this process is named by these requests.
            let result = unsafe { libc::ptrace(request, pid, 0, 0) };
            assert_eq!((result, errno()), (-1, libc::EPERM));
        }
        let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        for descriptor in 0..32 {
            let taken = pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty());
            assert_eq!(taken.map(drop), Err(rustix::io::Errno::PERM), "{descriptor}");
        }
        for name in ["mem", "root/etc/passwd", "cwd/x", "environ", "fd/3", "maps"] {
            let path = format!("/proc/{pid}/{name}");
            let error = fs::File::open(&path).unwrap_err().raw_os_error();
            assert!(matches!(error, Some(libc::EACCES | libc::EPERM)), "{name}: {error:?}");
        }
    });
    use_it(&view);
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}
