//! A server that somebody has taken over: one of its threads is made to call what an attacker would.
//! Root may do so from outside, as a debugger.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "ptrace, as a debugger calls it")]

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{View, can_mount};

/// Where a thread has room for text, below what it uses of its stack.
const BELOW_STACK: u64 = 8192;
/// Room for each of two texts.
const TEXT_LEN: u64 = 2048;
/// As a waiting system call returns when a signal came: the C library and Rust wait again.
const INTERRUPTED: i64 = -4;

/// The first thread of a process, held still.
struct Held {
    tid: libc::pid_t,
    before: libc::user_regs_struct,
    memory: fs::File,
}

impl Held {
    fn new(pid: u32) -> Self {
        let tid = libc::pid_t::try_from(pid).unwrap();
        let memory = fs::File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        request(libc::PTRACE_SEIZE, tid, 0);
        request(libc::PTRACE_INTERRUPT, tid, 0);
        wait(tid);
        let before = registers(tid);
        let held = Self { tid, before, memory: memory.unwrap() };
        let mut instruction = [0; 2];
        held.memory.read_exact_at(&mut instruction, before.rip - 2).unwrap();
        assert_eq!(instruction, [0x0f, 0x05], "it does not wait in a system call");
        held
    }

    /// Writes a text into its memory.
    fn text(&self, place: u64, text: &Path) -> u64 {
        let text = CString::new(text.to_str().unwrap()).unwrap();
        let at = self.before.rsp - BELOW_STACK + place * TEXT_LEN;
        self.memory.write_all_at(text.as_bytes_with_nul(), at).unwrap();
        at
    }

    /// What a system call returns to it.
    fn call(&self, number: libc::c_long, arguments: [u64; 5]) -> i64 {
        let mut registers = self.before;
        registers.rip -= 2;
        registers.rax = number.cast_unsigned();
        // The call that it waited in is not to be made again in place of this one.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8] = arguments;
        self.set(&registers);
        for _ in ["before the call", "after it"] {
            request(libc::PTRACE_SYSCALL, self.tid, 0);
            wait(self.tid);
        }
        self::registers(self.tid).rax.cast_signed()
    }

    fn set(&self, registers: &libc::user_regs_struct) {
        request(libc::PTRACE_SETREGS, self.tid, std::ptr::from_ref(registers) as usize);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut after = self.before;
        after.rax = INTERRUPTED.cast_unsigned();
        after.orig_rax = u64::MAX;
        self.set(&after);
        request(libc::PTRACE_DETACH, self.tid, 0);
    }
}

fn request(request: libc::c_uint, tid: libc::pid_t, data: usize) {
    // SAFETY: those of these requests that use `data` as an address get that of registers that live
    // until the call returns.
    let result = unsafe { libc::ptrace(request, tid, 0, data) };
    assert_eq!(result, 0, "request {request}: {}", std::io::Error::last_os_error());
}

fn registers(tid: libc::pid_t) -> libc::user_regs_struct {
    // SAFETY: registers are integers, which may all be zero.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, tid, std::ptr::from_mut(&mut registers) as usize);
    registers
}

fn wait(tid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` lives until the call returns.
    let found = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
    assert!(found == tid && libc::WIFSTOPPED(status), "{found} {status:#x}");
}

#[test]
fn a_server_that_is_taken_over_reaches_no_file_outside_of_the_directory() {
    if !can_mount() {
        return;
    }
    let around = tempfile::tempdir().unwrap();
    let (lower, other) = (around.path().join("lower"), around.path().join("other"));
    for (dir, name) in [(&lower, "inside"), (&other, "secret")] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join(name), "text").unwrap();
    }
    let view = View::of(&lower, "", &["--sandbox", "on"]);
    let held = Held::new(view.pid());
    let here = u64::from(libc::AT_FDCWD.cast_unsigned());
    let open = |path: &Path, flags: libc::c_int| {
        let flags = u64::from(flags.cast_unsigned());
        held.call(libc::SYS_openat, [here, held.text(0, path), flags, 0o600, 0])
    };
    assert!(open(&lower.join("inside"), libc::O_RDWR) >= 0);
    let refused = i64::from(-libc::EACCES);
    for path in ["/etc/passwd", "/etc", "/", "/dev/zero", "/bin/sh"].map(Path::new) {
        assert_eq!(open(path, libc::O_RDONLY), refused, "{path:?}");
    }
    let own = std::process::id();
    for name in ["root/etc/passwd", "mem", "cwd/Cargo.toml", "fd/0"] {
        let path = format!("/proc/{own}/{name}");
        assert_eq!(open(Path::new(&path), libc::O_RDONLY), refused, "{path}");
    }
    let secret = other.join("secret");
    for path in [&secret, &lower.join("../other/secret"), Path::new("/proc/self/root/etc/passwd")] {
        assert_eq!(open(path, libc::O_RDONLY), refused, "{path:?}");
    }
    for path in ["/proc/sys/kernel/core_pattern", "/etc/tollgate-test", "/tollgate-test"] {
        let result = open(Path::new(path), libc::O_WRONLY | libc::O_CREAT);
        assert_eq!(result, refused, "{path}");
    }
    let new = held.text(1, &other.join("new"));
    let inside = held.text(2, &lower.join("taken"));
    let old = held.text(0, &secret);
    for (what, number, arguments) in [
        ("mkdir", libc::SYS_mkdirat, [here, new, 0o700, 0, 0]),
        ("mknod", libc::SYS_mknodat, [here, new, u64::from(libc::S_IFREG), 0, 0]),
        ("symlink", libc::SYS_symlinkat, [old, here, new, 0, 0]),
        ("unlink", libc::SYS_unlinkat, [here, old, 0, 0, 0]),
        ("link into DIR", libc::SYS_linkat, [here, old, here, inside, 0]),
        ("link out of DIR", libc::SYS_linkat, [here, inside, here, new, 0]),
        ("rename into DIR", libc::SYS_renameat2, [here, old, here, inside, 0]),
        ("rename", libc::SYS_renameat2, [here, old, here, new, 0]),
    ] {
        let result = held.call(number, arguments);
        assert!(result < 0, "{what}: {result}");
    }
    drop(held);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "text");
    assert_eq!(fs::read_to_string(view.at("inside")).unwrap(), "text");
}
