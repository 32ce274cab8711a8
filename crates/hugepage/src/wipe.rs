//! Wiping secrets: as fast as clearing, and never dropped by the compiler.

use std::sync::OnceLock;

use crate::engine::Clearer;
use crate::plan::{ClearPlan, Situation};

/// Overwrites `secret`, which was used a moment ago, with zeroes. What does not fit in half of the
/// last-level cache is wiped as [`wipe_cold`] does.
///
/// The stores are followed by an assembly barrier that is told the address: the compiler must
/// assume that all bytes are read there, so that it can neither drop the stores, though `secret` be
/// dead afterwards, nor move them past the end of the call. This is the guarantee of volatile
/// stores, at the speed of vector stores. Copies of the secret that the program made elsewhere
/// (registers, moved values, reallocated vectors) are not found.
pub fn wipe(secret: &mut [u8]) {
    wipe_with(plan().clearer(Situation::hot(secret.len())), secret);
}

/// As [`wipe`], for a secret that has not been used for a while and is no longer in the cache.
pub fn wipe_cold(secret: &mut [u8]) {
    wipe_with(plan().clearer(Situation::cold(secret.len())), secret);
}

/// As [`wipe`], with an engine of the caller's choice, such as one of a tuned plan.
pub fn wipe_with(clearer: &Clearer, secret: &mut [u8]) {
    clearer.clear(secret);
}

fn plan() -> &'static ClearPlan {
    static PLAN: OnceLock<ClearPlan> = OnceLock::new();
    PLAN.get_or_init(ClearPlan::detected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::os::unix::fs::FileExt;

    const LEN: usize = 64 << 10;

    /// Leaves `LEN` bytes of `mark` on the stack, wiped or not, and returns their address.
    #[inline(never)]
    fn secret_on_the_stack(mark: u8, wipe: impl Fn(&mut [u8])) -> u64 {
        let mut secret = [black_box(mark); LEN];
        let address = black_box(secret.as_mut_ptr()).expose_provenance() as u64;
        wipe(&mut secret);
        address
    }

    /// Bytes of `mark` that are left at an address of this process, read through the kernel: the
    /// compiler cannot know of it and so would have no reason to keep the stores.
    fn left(address: u64, mark: u8) -> usize {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut bytes = vec![0; LEN];
        memory.read_exact_at(&mut bytes, address).unwrap();
        bytes.iter().filter(|byte| **byte == mark).count()
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc/self/mem")]
    fn a_dead_secret_is_gone_and_an_unwiped_one_would_be_found() {
        let mark = 0xC3;
        // Deeper frames than these calls use stay as the function left them.
        let kept = left(secret_on_the_stack(mark, |_| ()), mark);
        assert!(kept > LEN / 2, "the control must find what was not wiped: {kept}");
        let gone = left(secret_on_the_stack(mark, wipe), mark);
        assert!(gone < LEN / 64, "{gone} bytes of a wiped secret are left");
        // The library's memset, which the compiler knows and would drop most readily.
        let plain = Clearer::plain();
        let gone = left(secret_on_the_stack(mark, |secret| wipe_with(&plain, secret)), mark);
        assert!(gone < LEN / 64, "{gone} bytes of a secret wiped by memset are left");
    }

    #[test]
    fn wipes_every_length() {
        for len in (0..300).chain([4095, 65_537]) {
            let mut secret = vec![1; len];
            wipe(&mut secret);
            assert!(secret.iter().all(|byte| *byte == 0));
            secret.fill(2);
            wipe_cold(&mut secret);
            assert!(secret.iter().all(|byte| *byte == 0));
        }
    }
}
