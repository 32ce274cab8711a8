//! How much of its stack a thread has left.

#![expect(unsafe_code, reason = "the C library is asked for the bounds of the stack")]

use std::cell::Cell;

thread_local! {
    /// The lowest address of this thread's stack, and the one below which nothing more is begun
    /// there; 0 when not asked yet.
    static FLOOR: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Whether at least a quarter of this thread's stack is left.
pub(crate) fn has_room() -> bool {
    if cfg!(miri) {
        return true;
    }
    let (lowest, floor) = match FLOOR.get() {
        (_, 0) => find_floor(),
        known => known,
    };
    let here = 0_u8;
    // A sanitizer keeps locals elsewhere: then there is no telling.
    !(lowest..=floor).contains(&std::ptr::from_ref(&here).addr())
}

#[cold]
fn find_floor() -> (usize, usize) {
    let floor = bounds().map_or((0, usize::MAX), |(lowest, len)| (lowest, lowest + len / 4));
    FLOOR.set(floor);
    floor
}

/// The lowest address of this thread's stack and its size in bytes.
fn bounds() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: `attributes` is valid for writing; it is initialised when 0 is returned.
    let found = unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) };
    if found != 0 {
        return None;
    }
    let (mut lowest, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes were initialised above; both places are valid for writing.
    let found =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut len) };
    // SAFETY: initialised above, and not used afterwards.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (found == 0).then_some((lowest.addr(), len))
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn room_ends_before_the_stack_does() {
        fn down(depth: usize) -> usize {
            let ballast = std::hint::black_box([0_u8; 4096]);
            if has_room() { down(depth + 1) + usize::from(ballast[7]) } else { depth }
        }
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let depth = thread.spawn(|| down(0)).unwrap().join().unwrap();
        assert!((8..=64).contains(&depth), "{depth} frames of more than 4 KiB in 256 KiB");
    }
}
