//! System calls that the filter traps: they fail, are counted, and said once each.
#![expect(unsafe_code, reason = "a signal handler that answers for the kernel")]

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use super::names;

/// Larger than every call that the filter traps; see `NEWEST`.
const CALLS: usize = 512;

static COUNT: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicI64 = AtomicI64::new(-1);
/// A bit for each call that was said.
static SAID: [AtomicU64; CALLS / 64] = [const { AtomicU64::new(0) }; CALLS / 64];
static ENDS: AtomicBool = AtomicBool::new(false);

/// How many calls were refused, and the number of the last one.
pub(super) fn count() -> (u64, Option<i64>) {
    let last = LAST.load(Ordering::Relaxed);
    (COUNT.load(Ordering::Relaxed), (last >= 0).then_some(last))
}

/// Installs the handler of SIGSYS. With `ends`, it ends the process after it has said the call.
///
/// # Errors
/// The error of sigaction(2).
pub(super) fn answer(ends: bool) -> io::Result<()> {
    ENDS.store(ends, Ordering::Relaxed);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all fields of the structure may be zero; the mask is initialised before it is used;
    // the handler has the type that SA_SIGINFO asks for, and calls nothing but write(2) and abort(3),
    // which a handler may call.
    let result = unsafe {
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = refuse;
        let action = action.assume_init_mut();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGSYS, action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives the call that was trapped its result. Nothing here allocates or locks.
extern "C" fn refuse(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes the interrupted thread's context, which nobody else
    // uses until the handler returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let number = called(context);
    COUNT.fetch_add(1, Ordering::Relaxed);
    LAST.store(number, Ordering::Relaxed);
    if is_new(number) {
        say(number);
    }
    if ENDS.load(Ordering::Relaxed) {
        // SAFETY: abort has no precondition, and may be called by a handler.
        unsafe { libc::abort() };
    }
    answer_with(context, -i64::from(libc::EPERM));
}

fn is_new(number: i64) -> bool {
    let Ok(number) = usize::try_from(number) else { return false };
    let Some(word) = SAID.get(number / 64) else { return false };
    let bit = 1 << (number % 64);
    word.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

/// Says on standard error which call it was, in one write.
fn say(number: i64) {
    let mut line = Line { bytes: [0; 256], len: 0 };
    line.add(b"tollgate: warning: the sandbox refused this server the system call ");
    line.add(names::of(number).unwrap_or("number").as_bytes());
    line.add(b" (");
    line.add_number(number);
    line.add(b"), which fails with EPERM; please report it. `--sandbox off` allows all calls\n");
    // SAFETY: `bytes` has `len` readable bytes. A message that cannot be written is lost; the count
    // in `status` remains.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
}

/// Text built without memory from an allocator.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Line {
    fn add(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(free) = self.bytes.get_mut(self.len) {
                *free = *byte;
                self.len += 1;
            }
        }
    }

    fn add_number(&mut self, number: i64) {
        let mut divisor = 1_000;
        let mut begun = false;
        while divisor > 0 {
            let digit = u8::try_from(number / divisor % 10).unwrap_or_default();
            begun |= digit != 0 || divisor == 1;
            if begun {
                self.add(&[b'0' + digit]);
            }
            divisor /= 10;
        }
    }
}

/// The number of the call.
#[cfg(target_arch = "x86_64")]
fn called(context: &libc::ucontext_t) -> i64 {
    context.uc_mcontext.gregs[RAX]
}

#[cfg(target_arch = "x86_64")]
fn answer_with(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.gregs[RAX] = result;
}

/// `REG_RAX` as an index.
#[cfg(target_arch = "x86_64")]
const RAX: usize = 13;

#[cfg(target_arch = "aarch64")]
fn called(context: &libc::ucontext_t) -> i64 {
    context.uc_mcontext.regs[8].cast_signed()
}

#[cfg(target_arch = "aarch64")]
fn answer_with(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.regs[0] = result.cast_unsigned();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_leading_zeros() {
        for number in [0, 7, 41, 157, 469] {
            let mut line = Line { bytes: [0; 256], len: 0 };
            line.add_number(number);
            assert_eq!(&line.bytes[..line.len], number.to_string().as_bytes());
        }
    }
}
