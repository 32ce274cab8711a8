//! Whether views can be mounted here, for every test that mounts.

use std::fs::OpenOptions;

/// Whether views can be mounted here. If not, says why, or fails where they have to be
/// (`TOLLGATE_REQUIRE_MOUNT=1`).
pub(crate) fn can_mount() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        "no /dev/fuse"
    } else {
        return true;
    };
    let required = std::env::var_os("TOLLGATE_REQUIRE_MOUNT").is_some_and(|value| value == "1");
    assert!(!required, "a mounted test is required here, but: {reason}");
    println!("skipped: {reason}");
    false
}
