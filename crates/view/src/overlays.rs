//! The mounts of overlays that views of this process lie on.

use std::sync::atomic::{AtomicU64, Ordering};

/// Mounts of overlays, as statx(2) numbers them; 0 where there is none. Their files may have any device.
static OVERLAYS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// `mount` is that of an overlay: the time of birth that it shows is that of the file in its layer. With the
/// first change the overlay copies the file to the upper layer, and has another time. To be called before
/// the keys of its inodes are asked for. What does not fit is taken for another file system.
pub(crate) fn add(mount: u64) {
    let add = |place: &AtomicU64| {
        let before = place.compare_exchange(0, mount, Ordering::Relaxed, Ordering::Relaxed);
        before.is_ok() || before == Err(mount)
    };
    let _ = OVERLAYS.iter().any(add);
}

/// Whether `mount` is that of an overlay.
pub(crate) fn has_mount(mount: u64) -> bool {
    let known = OVERLAYS.iter().map(|known| known.load(Ordering::Relaxed));
    known.take_while(|known| *known != 0).any(|known| known == mount)
}
