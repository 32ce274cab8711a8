//! System calls that CMD, as root, makes to get out: each is made with arguments that would go
//! through for root outside, and must fail, or come to nothing.
#![expect(unsafe_code, reason = "system calls that no library offers, as an attacker makes them")]

use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Stdio;

use io_uring::{IoUring, opcode, types};

use crate::project::{Project, SECRET, all, can_mount, text};

/// Runs [`attempt`] as CMD of `run`; its lines, `name: error number` or `name: found TEXT`.
fn attempts(project: &Project, what: &str, argument: &str, options: &[&str]) -> Vec<String> {
    let mut command = project.run_with(options);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "attempts::attempt", "--nocapture"]);
    command.env("ATTEMPT", what).env("ARGUMENT", argument).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    assert!(!all(&output).contains(SECRET), "{}", all(&output));
    let printed = text(&output.stdout);
    printed.lines().filter_map(|line| line.strip_prefix("> ")).map(str::to_owned).collect()
}

/// Not a test: what the others run as CMD.
#[test]
#[ignore = "a program for the other tests"]
fn attempt() {
    let argument = std::env::var("ARGUMENT").unwrap_or_default();
    match std::env::var("ATTEMPT").as_deref() {
        Ok("kernel") => kernel(),
        Ok("mounts") => mounts(),
        Ok("namespaces") => namespaces(),
        Ok("server") => server(argument.parse().unwrap()),
        Ok("network") => network(),
        Ok("terminal") => terminal(),
        Ok("ring") => ring(&argument),
        Ok("priorities") => priorities(),
        _ => {}
    }
}

fn say(name: &str, result: i64) {
    let error = Error::last_os_error().raw_os_error().unwrap_or_default();
    println!("> {name}: {}", if result < 0 { error } else { 0 });
}

/// A system call whose arguments are numbers, or addresses of what lives until it returns.
macro_rules! call {
    ($name:literal, $number:expr $(, $argument:expr)*) => {{
        // SAFETY: the kernel reads and writes within what the arguments point to, which outlives
        // the call; a call that is refused, as all are here, does neither.
        let result = unsafe { libc::syscall($number $(, $argument)*) };
        say($name, result);
        result
    }};
}

/// What reaches the whole machine.
fn kernel() {
    let path = CString::new("/tmp/swap").unwrap();
    // One page is enough to tell a permission from a format.
    std::fs::write("/tmp/swap", vec![0; 40 << 10]).unwrap();
    // An array of one element; `struct perf_event_attr` of a software clock: the first is `type`,
    // the second `size`.
    let map: [u32; 20] = [2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut clock = [0_u32; 34];
    clock[..2].copy_from_slice(&[1, 136]);
    let now = libc::timespec { tv_sec: 1_700_000_000, tv_nsec: 0 };
    let mut name = [0_u8; 64];
    // SAFETY: `name` has 64 writable bytes.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), 63) };
    let length = name.iter().position(|byte| *byte == 0).unwrap();
    call!("bpf", libc::SYS_bpf, 0, map.as_ptr(), 80);
    call!("perf_event_open", libc::SYS_perf_event_open, clock.as_ptr(), -1, 0, -1, 0);
    call!("userfaultfd", libc::SYS_userfaultfd, 0);
    call!("swapon", libc::SYS_swapon, path.as_ptr(), 0);
    call!("swapoff", libc::SYS_swapoff, path.as_ptr());
    call!("acct", libc::SYS_acct, path.as_ptr());
    // `LINUX_REBOOT_CMD_CAD_OFF`
    call!("reboot", libc::SYS_reboot, 0xfee1_dead_u32, 672_274_793, 0, 0);
    call!("clock_settime", libc::SYS_clock_settime, libc::CLOCK_REALTIME, &raw const now);
    call!("sethostname", libc::SYS_sethostname, name.as_ptr(), length);
    // `SYSLOG_ACTION_CONSOLE_ON`
    call!("syslog", libc::SYS_syslog, 7, 0, 0);
    call!("kexec_file_load", libc::SYS_kexec_file_load, -1, -1, 0, c"".as_ptr(), 4);
    call!("init_module", libc::SYS_init_module, 0, 0, c"".as_ptr());
    #[cfg(target_arch = "x86_64")]
    call!("iopl", libc::SYS_iopl, 3);
    call!("quotactl", libc::SYS_quotactl, 0x80_0002_u32, c"/dev/none".as_ptr(), 0, 0);
    call!("setpriority", libc::SYS_setpriority, 0, 0, -20);
    let round_robin = libc::sched_param { sched_priority: 50 };
    call!("realtime", libc::SYS_sched_setscheduler, 0, libc::SCHED_RR, &raw const round_robin);
    // The x32 forms of calls that the filter refuses.
    #[cfg(target_arch = "x86_64")]
    {
        call!("keyctl of x32", 0x4000_0000 + 250, 0, -3, 1);
        call!("ioctl of x32", 0x4000_0000 + 514, 0, libc::TIOCSTI, c"x".as_ptr());
    }
    for file in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/kcore",
        "/proc/sysrq-trigger",
        "/proc/1/mem",
    ] {
        match File::options().write(true).open(file) {
            Ok(_) => println!("> {file}: 0"),
            Err(error) => println!("> {file}: {}", error.raw_os_error().unwrap()),
        }
    }
}

/// The mount calls that came after mount(2).
fn mounts() {
    // `OPEN_TREE_CLONE`; `AT_RECURSIVE` is 0x8000.
    let clone = call!("open_tree of /", libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), 1);
    drop(owned(clone));
    let whole = call!("recursive", libc::SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), 0x8001);
    if let Some(whole) = owned(whole) {
        beneath(&whole);
    }
    // `MOUNT_ATTR_RDONLY` cleared.
    let attributes = [0_u64, 1, 0, 0];
    for (name, place) in
        [("writable /", c"/"), ("writable /etc", c"/etc"), ("writable /proc/sys", c"/proc/sys")]
    {
        let (set, size) = (libc::SYS_mount_setattr, 32);
        // SAFETY: as for `call`; the structure has 32 bytes.
        let result = unsafe {
            libc::syscall(set, libc::AT_FDCWD, place.as_ptr(), 0, attributes.as_ptr(), size)
        };
        say(name, result);
    }
    for kind in [
        "proc",
        "sysfs",
        "devtmpfs",
        "cgroup2",
        "cgroup",
        "debugfs",
        "tracefs",
        "securityfs",
        "configfs",
        "pstore",
        "efivarfs",
        "ext4",
        "fusectl",
    ] {
        let kind_c = CString::new(kind).unwrap();
        // SAFETY: as for `call`.
        let context = unsafe { libc::syscall(libc::SYS_fsopen, kind_c.as_ptr(), 1) };
        let Some(context) = owned(context) else { continue };
        // `FSCONFIG_CMD_CREATE`
        // SAFETY: as for `call`; no pointer is given.
        let made = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), 6, 0, 0, 0) };
        say(&format!("a new {kind}"), made);
    }
}

/// In a copy of all mounts, the view still covers what is beneath.
fn beneath(whole: &OwnedFd) {
    let dir = std::env::current_dir().unwrap();
    let below = |name: &str| dir.strip_prefix("/").unwrap().join(name);
    for name in [".env", "keys/id_rsa"] {
        let opened = rustix::fs::openat(
            whole,
            below(name),
            rustix::fs::OFlags::RDONLY,
            rustix::fs::Mode::empty(),
        );
        println!(
            "> {name} in a copy: {}",
            opened.map_or_else(rustix::io::Errno::raw_os_error, |_| 0)
        );
    }
    // Moved to a place in /tmp, and the view taken off it there.
    std::fs::create_dir_all("/tmp/copy").unwrap();
    let flags = 4;
    call!(
        "move_mount",
        libc::SYS_move_mount,
        whole.as_raw_fd(),
        c"".as_ptr(),
        libc::AT_FDCWD,
        c"/tmp/copy".as_ptr(),
        flags
    );
    let view = std::path::Path::new("/tmp/copy").join(below(""));
    let path = CString::new(view.as_os_str().as_bytes()).unwrap();
    call!("umount in a copy", libc::SYS_umount2, path.as_ptr(), libc::MNT_DETACH);
    if let Ok(text) = std::fs::read_to_string(view.join(".env")) {
        println!("> found {text}");
    }
}

fn owned(result: i64) -> Option<OwnedFd> {
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the call that gave it succeeded, and nobody else has it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ways from a namespace to the one around it.
fn namespaces() {
    // `NS_GET_PARENT`, `NS_GET_USERNS`
    for (name, file, command) in [
        ("the user namespace around", "user", 0xb702),
        ("the pid namespace around", "pid", 0xb702),
        ("the owner of the network", "net", 0xb701),
        ("the owner of the host name", "uts", 0xb701),
        ("the owner of the pid namespace", "pid", 0xb701),
    ] {
        let file = File::open(format!("/proc/self/ns/{file}")).unwrap();
        // SAFETY: the command takes no argument.
        let found = unsafe { libc::ioctl(file.as_raw_fd(), command) };
        say(name, found.into());
        if let Some(found) = owned(found.into()) {
            call!("entered", libc::SYS_setns, found.as_raw_fd(), 0);
        }
    }
    for name in ["user", "net", "uts", "cgroup", "mnt", "pid"] {
        match File::open(format!("/proc/1/ns/{name}")) {
            // SAFETY: no memory is involved.
            Ok(file) => say(name, unsafe { libc::setns(file.as_raw_fd(), 0) }.into()),
            Err(error) => println!("> {name} of init: {}", error.raw_os_error().unwrap()),
        }
    }
}

/// The server and init, by the ids that they have here and outside.
fn server(outside: i32) {
    for (whose, pid) in [("the server", outside), ("init", 1)] {
        for (name, request) in [("attach", libc::PTRACE_ATTACH), ("seize", libc::PTRACE_SEIZE)] {
            // SAFETY: these requests name no memory of this process.
            say(&format!("{name} to {whose}"), unsafe { libc::ptrace(request, pid, 0, 0) });
        }
        // SAFETY: no memory is involved.
        let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if let Some(process) = owned(process) {
            for fd in 0..64 {
                // SAFETY: no memory is involved.
                let taken =
                    unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
                if taken >= 0 {
                    println!("> a descriptor of {whose}: 0");
                }
            }
        } else {
            say(&format!("pidfd of {whose}"), -1);
        }
        let mut memory = [0_u8; 8];
        let here = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 8 };
        let there =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(0x1_0000), iov_len: 8 };
        // SAFETY: `here` names writable memory; `there` is checked by the kernel.
        let read = unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                pid,
                &raw const here,
                1,
                &raw const there,
                1,
                0,
            )
        };
        say(&format!("memory of {whose}"), read);
        for name in ["root", "cwd", "exe", "fd/0", "mem", "environ", "map_files"] {
            let path = format!("/proc/{pid}/{name}");
            let opened =
                std::fs::read_link(&path).map(|_| ()).or_else(|_| File::open(&path).map(|_| ()));
            if opened.is_ok() && name != "map_files" {
                println!("> {name} of {whose}: 0");
            }
        }
    }
    // SAFETY: no memory is involved; signal 0 asks only.
    say("a signal to the server", unsafe { libc::kill(outside, 0) }.into());
}

/// The network is shared, and its settings are not CMD's.
fn network() {
    for (name, family, kind, protocol) in [
        ("raw socket", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
        ("packet socket", libc::AF_PACKET, libc::SOCK_RAW, 3 << 8),
    ] {
        // SAFETY: no memory is involved.
        say(name, unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) }.into());
    }
    // Each a message that changes something: `AUDIT_SET`, `NFNL_MSG_BATCH_BEGIN`, `RTM_DELROUTE` of
    // nothing, `XFRM_MSG_FLUSHPOLICY`.
    for (name, protocol, message) in [
        ("audit", libc::NETLINK_AUDIT, 1001_u16),
        ("netfilter", libc::NETLINK_NETFILTER, 16),
        ("routes", libc::NETLINK_ROUTE, 25),
        ("transformations", libc::NETLINK_XFRM, 29),
    ] {
        netlink(name, protocol, message);
    }
}

/// Sends a message of 32 zero bytes, and says what the kernel answers.
fn netlink(name: &str, protocol: i32, message: u16) {
    // SAFETY: no memory is involved.
    let socket =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    let Some(socket) = owned(socket.into()) else {
        say(name, -1);
        return;
    };
    let mut request = [0_u8; 48];
    request[..4].copy_from_slice(&48_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&message.to_ne_bytes());
    // `NLM_F_REQUEST`, `NLM_F_ACK`
    request[6..8].copy_from_slice(&5_u16.to_ne_bytes());
    let sent = rustix::io::write(&socket, &request);
    let mut reply = [0_u8; 256];
    let error = match sent {
        Err(error) => error.raw_os_error(),
        Ok(_) => match rustix::io::read(&socket, &mut reply) {
            Ok(length) if length >= 20 => -i32::from_ne_bytes(reply[16..20].try_into().unwrap()),
            other => other.map_or_else(rustix::io::Errno::raw_os_error, |_| 0),
        },
    };
    println!("> {name}: {error}");
}

/// On a terminal of its own, so that nothing is typed anywhere if it succeeds.
fn terminal() {
    let Ok(master) = File::options().read(true).write(true).open("/dev/ptmx") else {
        println!("> no terminal");
        return;
    };
    for (name, command) in [
        ("TIOCSTI", libc::TIOCSTI),
        ("TIOCLINUX", libc::TIOCLINUX),
        ("TIOCEXCL", libc::TIOCEXCL),
        ("TIOCSETD", libc::TIOCSETD),
    ] {
        let byte = 6_u32;
        // SAFETY: the commands read four bytes at most.
        let result = unsafe { libc::ioctl(master.as_raw_fd(), command, &raw const byte) };
        say(name, result.into());
        // The kernel looks at the low half of the command, and so must the filter.
        let command = command | 1 << 32;
        // SAFETY: as above.
        let result =
            unsafe { libc::syscall(libc::SYS_ioctl, master.as_raw_fd(), command, &raw const byte) };
        say(&format!("{name} with more bits"), result);
    }
}

/// Lowers priorities: that of this process, and those of all in its group and of its user.
fn priorities() {
    // The lowest, which also a caller of low priority may set.
    let (idle, nice) = (3 << 13, 19);
    for (name, which) in [("process", 0), ("group", 1), ("user", 2)] {
        println!("> {name}");
        call!("setpriority", libc::SYS_setpriority, which, 0, nice);
        call!("ioprio_set", libc::SYS_ioprio_set, which + 1, 0, idle);
    }
}

/// A filter does not see what a ring is told to do.
fn ring(abstract_name: &str) {
    let Ok(mut ring) = IoUring::new(8) else {
        println!("> no ring");
        return;
    };
    let mut run = |name: &str, entry: io_uring::squeue::Entry| {
        // SAFETY: what the entry points to outlives the wait for it below.
        unsafe { ring.submission().push(&entry).unwrap() };
        ring.submit_and_wait(1).unwrap();
        let result = ring.completion().next().unwrap().result();
        println!("> {name}: {}", if result < 0 { -result } else { 0 });
    };
    let here = types::Fd(libc::AT_FDCWD);
    for (name, path, flags) in [
        ("hidden", ".env", libc::O_RDONLY),
        ("denied", "keys/id_rsa", libc::O_RDONLY),
        ("outside", "/etc/tollgate-test", libc::O_WRONLY | libc::O_CREAT),
        ("settings", "/proc/sys/kernel/core_pattern", libc::O_WRONLY),
    ] {
        let path = CString::new(path).unwrap();
        run(name, opcode::OpenAt::new(here, path.as_ptr()).flags(flags).mode(0o600).build());
    }
    let (old, new) = (c"keys/id_rsa", c"open");
    run("renamed", opcode::RenameAt::new(here, old.as_ptr(), here, new.as_ptr()).build());
    run("linked", opcode::LinkAt::new(here, old.as_ptr(), here, new.as_ptr()).build());
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) };
    let mut address = [0_u8; 110];
    address[0] = u8::try_from(libc::AF_UNIX).unwrap();
    address[3..3 + abstract_name.len()].copy_from_slice(abstract_name.as_bytes());
    let length = u32::try_from(3 + abstract_name.len()).unwrap();
    run(
        "connected",
        opcode::Connect::new(types::Fd(socket), address.as_ptr().cast(), length).build(),
    );
}

/// Every line names an error.
#[track_caller]
fn assert_refused(lines: &[String]) {
    assert!(!lines.is_empty());
    for line in lines {
        assert!(!line.ends_with(": 0") && !line.starts_with("found"), "{line} in {lines:#?}");
    }
}

#[test]
fn what_reaches_the_whole_machine_is_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let setting = |name: &str| {
        std::fs::read_to_string(name).ok().and_then(|text| text.trim().parse::<i32>().ok())
    };
    // What the machine gives every user is not CMD's in particular.
    let for_everybody = |line: &String| {
        line.starts_with("bpf: 0")
            && setting("/proc/sys/kernel/unprivileged_bpf_disabled") == Some(0)
            || line.starts_with("perf_event_open: 0")
                && setting("/proc/sys/kernel/perf_event_paranoid").is_some_and(|level| level <= 0)
            || line.starts_with("userfaultfd: 0")
                && setting("/proc/sys/vm/unprivileged_userfaultfd") == Some(1)
    };
    for options in [&[][..], &["--fence", "off"]] {
        let mut lines = attempts(&project, "kernel", "", options);
        lines.retain(|line| !for_everybody(line));
        assert_refused(&lines);
    }
}

#[test]
fn the_newer_mount_calls_lead_nowhere() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for options in [&[][..], &["--fence", "off"]] {
        let mut lines = attempts(&project, "mounts", "", options);
        // A copy of all mounts may be made and attached: it is locked together as these are.
        lines.retain(|line| !line.starts_with("recursive: ") && !line.starts_with("move_mount: "));
        if !options.is_empty() {
            // Without the fence they are writable.
            lines.retain(|line| {
                !line.starts_with("writable / ") && !line.starts_with("writable /etc")
            });
            lines.retain(|line| line != "writable /: 0");
        }
        assert_refused(&lines);
    }
}

#[test]
fn namespaces_around_are_out_of_reach() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    assert_refused(&attempts(&project, "namespaces", "", &[]));
}

#[test]
fn the_server_and_init_are_out_of_reach() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // A server that lives outside of CMD's pid namespace as CMD's own does, and whose id is known.
    let daemon = crate::project::Daemon::start(&project);
    let pid = daemon.status()["pid"].as_i64().unwrap().to_string();
    for options in [&[][..], &["--fence", "off"]] {
        assert_refused(&attempts(&project, "server", &pid, options));
    }
}

#[test]
fn the_network_is_used_and_not_changed() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    assert_refused(&attempts(&project, "network", "", &[]));
}

#[test]
fn nothing_is_typed_on_a_terminal() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let lines = attempts(&project, "terminal", "", &[]);
    let expected = format!(": {}", libc::EPERM);
    assert!(
        lines.iter().all(|line| line.ends_with(&expected) || line == "no terminal"),
        "{lines:?}"
    );
}

#[test]
fn a_ring_gets_no_further_than_system_calls() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("tollgate-ring-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let lines = attempts(&project, "ring", &name, &[]);
    assert_refused(&lines);
    assert_eq!(std::fs::read_to_string(project.path("dir/keys/id_rsa")).unwrap(), SECRET);
}

/// CMD is in the session of who called `run`, and can lower the share of the CPU that all of that get.
#[test]
fn the_share_of_the_session_is_as_before_when_run_has_ended() {
    if !can_mount() {
        return;
    }
    if !std::path::Path::new("/proc/self/autogroup").exists() {
        println!("skipped: this kernel has no autogroups");
        return;
    }
    let project = Project::new();
    let script = "$T run --quiet --policy none dir -- sh -c 'echo 19 >/proc/self/autogroup
         cut -d\" \" -f2- /proc/self/autogroup'; cut -d' ' -f2- /proc/self/autogroup";
    let output = std::process::Command::new("setsid")
        .args(["-w", "sh", "-c", script])
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(project.path(""))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "nice 19\nnice 0\n", "{output:?}");
}

#[test]
fn priorities_of_processes_outside_are_not_set() {
    if !can_mount() {
        return;
    }
    // SAFETY: no memory is involved.
    let own = || unsafe {
        let io = libc::syscall(libc::SYS_ioprio_get, 1, 0);
        (libc::getpriority(libc::PRIO_PROCESS, 0), io)
    };
    let (before, project) = (own(), Project::new());
    let of = |who: &str, error: i32| {
        [who.to_owned(), format!("setpriority: {error}"), format!("ioprio_set: {error}")]
    };
    let expected = [of("process", 0), of("group", libc::EPERM), of("user", libc::EPERM)].concat();
    for options in [&[][..], &["--fence", "off"]] {
        assert_eq!(attempts(&project, "priorities", "", options), expected, "{options:?}");
    }
    assert_eq!(own(), before);
}
