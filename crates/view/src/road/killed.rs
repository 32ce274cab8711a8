//! Whether a thread that waits in the kernel for an answer is being killed.

/// `SIGKILL` in the kernel's masks of signals. Every thread of a process has it pending that ends
/// by whatever signal.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// Whether `thread` is being killed; not if that cannot be told, as of a thread of another pid
/// namespace (0).
pub(super) fn is_killed(thread: u32) -> bool {
    let status = (thread != 0).then(|| std::fs::read(format!("/proc/{thread}/status")).ok());
    status.flatten().and_then(|status| pending(&status)).is_some_and(|mask| mask & KILL != 0)
}

/// The signals that wait for this one thread.
fn pending(status: &[u8]) -> Option<u64> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let mask = lines.find_map(|line| line.strip_prefix(b"SigPnd:"))?;
    u64::from_str_radix(std::str::from_utf8(mask).ok()?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_found_among_the_lines_of_the_kernel() {
        let status = b"Name:\tSigPnd:\nThreads:\t1\nSigPnd:\t0000000000000100\nShdPnd:\t0\n";
        assert_eq!(pending(status), Some(KILL));
        assert_eq!(pending(b"Name:\tx\nSigPnd:\tx\n"), None);
    }

    #[test]
    fn who_runs_is_not_being_killed() {
        assert!(!is_killed(std::process::id()) && !is_killed(0) && !is_killed(u32::MAX));
    }
}
