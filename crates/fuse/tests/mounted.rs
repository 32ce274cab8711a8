//! A real kernel: mounts, passthrough, several queues, and every way to end.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use common::{Served, can_mount};
use tollgate_fuse::*;

#[test]
fn files_are_read_and_written_in_both_modes() {
    if !can_mount() {
        return;
    }
    let served = Served::new(SessionConfig::default());
    for (name, content) in [("pass", "through"), ("direct", "served")] {
        assert_eq!(fs::read_to_string(served.path(name)).unwrap(), content);
        let file = File::options().write(true).open(served.path(name)).unwrap();
        file.write_all_at(b"THR", 0).unwrap();
        let lower = fs::read(served.lower.path().join(name)).unwrap();
        assert_eq!(&lower[..3], b"THR");
    }
    let counts = served.connection().counts();
    assert!(served.connection().has(InitFlags::PASSTHROUGH));
    // The direct file alone reached the server.
    assert_eq!(counts.of(abi::opcode::WRITE), 1);
    // The kernel asks for `security.capability` once, not with every write.
    assert!(counts.of(abi::opcode::GETXATTR) <= 1, "{counts:?}");
}
