//! How the CPU is shared with other sessions (sched(7), "The autogroup feature").
//!
//! CMD is in the session that `run` was called in, and whoever is may lower what all of that get, by
//! /proc/PID/autogroup. That is undone when `run` ends.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The share of this session, as it was. `None`: the kernel shares in another way.
pub(super) struct Autogroup(Option<(File, i32)>);

impl Autogroup {
    pub(super) fn of_this_session() -> Self {
        let file = File::options().read(true).write(true).open("/proc/self/autogroup").ok();
        Self(file.and_then(|file| nice(&file).map(|nice| (file, nice))))
    }

    /// Gives the session what it had. What this user may not give it is left as it is.
    pub(super) fn restore(self) {
        let Some((file, before)) = self.0 else { return };
        // Without privilege it can be changed every 100 ms, whoever changed it last.
        for _ in 0..10 {
            if nice(&file) == Some(before) {
                return;
            }
            match (&file).write(before.to_string().as_bytes()) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

/// As in `/autogroup-25 nice 0`.
fn nice(file: &File) -> Option<i32> {
    let mut text = [0; 64];
    let length = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length]).ok()?.split_ascii_whitespace().last()?.parse().ok()
}
