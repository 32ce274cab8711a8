//! Why a ring ended.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::RingQueue;
use crate::transport::ReceiveError;

/// How long /dev/fuse may take to tell. The kernel marks the connection as ended before the device,
/// within one function.
const TOLD_WITHIN: Duration = Duration::from_millis(100);

impl RingQueue {
    /// The kernel ends the commands of a ring with the same error whether the file system was
    /// unmounted or the connection aborted. /dev/fuse tells the two apart.
    pub(super) fn why_ended(&mut self) -> ReceiveError {
        let Some(device) = self.shared.device.get().filter(|_| self.looks_at_device) else {
            return ReceiveError::Unmounted;
        };
        let start = Instant::now();
        while start.elapsed() < TOLD_WITHIN {
            // What is read until then needs no answer: nobody waits for replies any more.
            match rustix::io::read(&device.0, &mut self.device_buffers.request[..]) {
                Err(Errno::CONNABORTED) => return ReceiveError::Aborted,
                Err(Errno::NODEV) => break,
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
        ReceiveError::Unmounted
    }
}
