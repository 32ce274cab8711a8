//! What the memory of a pool holds when the pool is gone. A pipe that pages were spliced into keeps
//! them: reading it shows what they held in the end.
#![expect(
    unsafe_code,
    reason = "vmsplice, and a buffer that somebody writes to who has it no more"
)]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use tollgate_hugepage::{Error, Pool, PoolBuilder, Prefault};

const BUFFER: usize = 16 << 10;
const WRITTEN: usize = 9000;

/// Both ends of a pipe.
fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors to an array that lives through the call.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the descriptors are new, and nobody else has them.
    unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) }
}

/// Has `pipe` refer to the pages of the buffer at `start`.
fn keep_pages(pipe: &File, start: *const u8) {
    let pages = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: BUFFER };
    // SAFETY: the pages are mapped, as the pool lives, and are only referred to.
    let kept = unsafe { libc::vmsplice(pipe.as_raw_fd(), &raw const pages, 1, 0) };
    assert_eq!(usize::try_from(kept), Ok(BUFFER), "{}", std::io::Error::last_os_error());
}

/// Bytes other than zero in all three buffers of a pool, after its end. One was withdrawn by the
/// leak check, one is dirty, and one was cleared for an owner who only read.
fn left_by(pool: PoolBuilder) -> usize {
    let pool = pool.class(BUFFER, 3).prefault(Prefault::Populate).leak_check(true).build().unwrap();
    let (mut pages, into) = pipe();
    let owned: Vec<_> = (0..3).map(|_| pool.take(BUFFER).unwrap()).collect();
    owned.iter().for_each(|buffer| keep_pages(&into, buffer.as_ptr()));
    let [mut dirty, cleared, leaking] = <[_; 3]>::try_from(owned).ok().unwrap();
    dirty[..WRITTEN].fill(7);
    let at = leaking.as_ptr().addr() as u64;
    // Whoever is next gets what was freed last.
    drop((dirty, cleared));
    drop(leaking);
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    memory.write_all_at(&[7; BUFFER], at).unwrap();
    let leak = pool.take(BUFFER).map(drop).unwrap_err();
    assert_eq!(leak, Error::Leak { offset: 0, byte: 7, canary: false });
    drop(pool);
    drop(into);
    let mut bytes = Vec::new();
    pages.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 3 * BUFFER);
    bytes.iter().filter(|byte| **byte != 0).count()
}

#[test]
fn nothing_is_left_in_the_memory_of_a_pool_of_secrets_withdrawn_buffers_included() {
    // Of other pools all is left: what is spliced is what the pool had.
    assert!(left_by(Pool::builder()) >= BUFFER + WRITTEN);
    assert_eq!(left_by(Pool::builder().secret()), 0);
}
