//! Instructions of classic BPF, for filters of system calls.

/// Offsets into `struct seccomp_data`.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCHITECTURE: u32 = 4;
/// The low halves of the first and the second argument. The calls judged by them look at no more.
pub(super) const FIRST: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };
pub(super) const SECOND: u32 = FIRST + 8;

/// x86-64 numbers with this bit are the x32 form of the same call.
pub(super) const X32_BIT: u32 = 0x4000_0000;

pub(super) const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
pub(super) const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
pub(super) const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();

pub(super) fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

pub(super) fn and(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, value, 0, 0)
}

pub(super) fn skip_if(value: u32, skip: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, skip, 0)
}

pub(super) fn skip_unless(value: u32, skip: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, skip)
}

pub(super) fn skip_if_any_bit(value: u32, skip: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, value, skip, 0)
}

pub(super) fn give(result: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, result, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}
