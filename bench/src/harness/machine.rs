//! What was measured, and on what.

use std::process::Command;

use serde::Serialize;

/// The machine that a report comes from.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    /// Model name of the first CPU.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
}

impl Machine {
    /// Looks at /proc/cpuinfo and uname(2); what cannot be had reads `unknown`.
    pub(super) fn detect() -> Machine {
        Machine {
            cpu: cpu_model().unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

/// The commit of the working directory's repository, with `-dirty` when there are uncommitted
/// changes; `unknown` without git or repository.
pub(super) fn commit() -> String {
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
        .output()
        .ok()
        .filter(|output| output.status.success());
    match described {
        Some(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        None => "unknown".to_owned(),
    }
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
