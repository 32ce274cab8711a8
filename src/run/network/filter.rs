//! Sockets that a network namespace does not hold back: those to the machine that this one is a
//! guest of (vsock), and of other families that few programs use.
//!
//! A filter sees the arguments of `socket`. It does not see those of `socketcall`, and nothing of
//! what is asked of an io_uring; both are answered as by a kernel without them, and programs go on
//! with what every kernel has.

use crate::run::bpf::{
    ALLOW, ARCHITECTURE, FIRST, NUMBER, UNKNOWN, X32_BIT, and, give, load, skip_if, skip_unless,
};
use crate::sys;

/// Those of a network namespace: Unix, IPv4, IPv6, netlink.
const FAMILIES: [u32; 4] = [1, 2, 10, 16];
const NO_FAMILY: u32 = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT.cast_unsigned();
/// The same number on every architecture.
const IO_URING_SETUP: u32 = 425;

/// `AUDIT_ARCH_*`, the number of `socket`, and that of `socketcall` where there is one.
#[cfg(target_arch = "x86_64")]
const CALLS: &[(u32, u32, Option<u32>)] = &[(0xc000_003e, 41, None), (0x4000_0003, 359, Some(102))];
#[cfg(target_arch = "aarch64")]
const CALLS: &[(u32, u32, Option<u32>)] =
    &[(0xc000_00b7, 198, None), (0x4000_0028, 281, Some(102))];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: &[(u32, u32, Option<u32>)] = &[];

/// Installs the filter on this process and what it becomes.
///
/// # Errors
/// The error of seccomp(2).
pub(crate) fn restrict_sockets() -> std::io::Result<()> {
    sys::install_filter(&mut program())
}

fn program() -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for (architecture, socket, socketcall) in CALLS {
        let body = of_architecture(*socket, *socketcall);
        let past = u8::try_from(body.len()).expect("a few instructions");
        program.extend([load(ARCHITECTURE), skip_unless(*architecture, past)]);
        program.extend(body);
    }
    program.push(give(ALLOW));
    program
}

fn of_architecture(socket: u32, socketcall: Option<u32>) -> Vec<libc::sock_filter> {
    let mut body = vec![load(NUMBER), and(!X32_BIT)];
    for number in socketcall.into_iter().chain([IO_URING_SETUP]) {
        body.extend([skip_unless(number, 1), give(UNKNOWN)]);
    }
    body.extend([skip_if(socket, 1), give(ALLOW), load(FIRST)]);
    for family in FAMILIES {
        body.extend([skip_unless(family, 1), give(ALLOW)]);
    }
    body.push(give(NO_FAMILY));
    body
}
