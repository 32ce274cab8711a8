//! `--memory`, `--processes`, `--cpu`: by a cgroup of CMD's own where one can be made, else by the
//! limits of a process, which hold for each process alone.

mod amounts;
mod cgroup;
mod place;

use rustix::process::{Resource, Rlimit};

use crate::cli::LimitArgs;
pub(super) use amounts::Limits;
use cgroup::Cgroup;

/// How the limits are kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// One for each hierarchy; several with version 1.
    pub(super) cgroups: Vec<Cgroup>,
    /// For each process.
    pub(super) of_process: Limits,
    /// What cannot be had, with why.
    pub(super) missing: Vec<String>,
}

impl Limits {
    pub(super) fn of(args: &LimitArgs) -> Self {
        Self {
            memory_bytes: args.memory.map(|size| size.0),
            processes: args.processes,
            cpu_millis: args.cpu.map(|cpu| cpu.0),
        }
    }

    /// Of a process that joins others.
    pub(super) fn of_process(memory_bytes: Option<u64>, processes: Option<u64>) -> Self {
        Self { memory_bytes, processes, cpu_millis: None }
    }

    /// Memory and processes of each process.
    pub(super) fn numbers(self) -> (Option<u64>, Option<u64>) {
        (self.memory_bytes, self.processes)
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Makes cgroups for what can be limited by one; the rest is limited by process, or missing.
    pub(super) fn keep(self) -> Kept {
        let mut kept = Kept::default();
        if self.is_empty() {
            return kept;
        }
        let (cgroups, left) = cgroup::make(self);
        kept.cgroups = cgroups;
        kept.of_process = Self { cpu_millis: None, ..left };
        if left.memory_bytes.is_some() {
            kept.missing.push("--memory holds for each process by itself".to_owned());
        }
        if left.processes.is_some() {
            let root = rustix::process::geteuid().is_root();
            let what = if root { "has no effect for root" } else { "counts all of the user" };
            kept.missing.push(format!("--processes {what}"));
        }
        if left.cpu_millis.is_some() {
            kept.missing.push("--cpu has no effect".to_owned());
        }
        kept
    }

    /// Limits the calling process and what it becomes and starts.
    ///
    /// # Errors
    /// The error of setrlimit(2).
    pub(super) fn apply(self) -> rustix::io::Result<()> {
        let limits = [(Resource::Data, self.memory_bytes), (Resource::Nproc, self.processes)];
        for (resource, limit) in limits {
            let Some(limit) = limit else { continue };
            // Not more than it has: only root could.
            let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
            let value = Some(limit.min(most));
            rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })?;
        }
        Ok(())
    }
}

impl Kept {
    /// Puts the calling process, and what it will start, into the cgroups.
    ///
    /// # Errors
    /// When the kernel does not let it.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        self.cgroups.iter().try_for_each(Cgroup::enter)
    }

    /// Where they are.
    pub(super) fn paths(&self) -> Vec<std::path::PathBuf> {
        self.cgroups.iter().map(|cgroup| cgroup.path().to_owned()).collect()
    }

    /// What could not be had, in words.
    pub(super) fn told(&self) -> Option<String> {
        (!self.missing.is_empty()).then(|| {
            format!(
                "no cgroup can be made here for all limits (none is writable, or its controllers \
                 are not delegated): {}",
                self.missing.join(", ")
            )
        })
    }

    /// Limits that CMD met, in words.
    pub(super) fn met(&self) -> Vec<String> {
        self.cgroups.iter().flat_map(Cgroup::met).collect()
    }
}
