//! Views that are not mounted here, but for others: a mount namespace that was made while a view was
//! mounted has a mount of its own, and goes on with it when the view is unmounted here.

use std::collections::HashSet;
use std::fs;

use serde_json::{Value, json};

use crate::escape::escaped;
use crate::mountinfo::{self, MountInfo};

/// Whether the view of a report is mounted nowhere in the mount namespace of `mounts`. False where that
/// is not known, and of a `run`, whose mount is never here.
pub(crate) fn is_not_here(report: &Value, mounts: &[MountInfo]) -> bool {
    let number = report["connection"].as_u64().filter(|_| report["kind"] == "mount");
    number.is_some_and(|number| !shows(mounts, number))
}

fn shows(mounts: &[MountInfo], number: u64) -> bool {
    let number = u32::try_from(number).ok();
    let is_it = |mount: &MountInfo| mount.kind == mountinfo::VIEW && mount.minor_number() == number;
    mounts.iter().any(is_it)
}

/// A process of another mount namespace, the first one there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    name: String,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A process names itself as it likes.
        write!(f, "process {} ({})", self.pid, escaped(&self.name))
    }
}

impl Process {
    pub(crate) fn in_json(&self) -> Value {
        json!({ "pid": self.pid, "name": self.name })
    }
}

/// For whom the view with this connection is mounted besides: a process of each other mount namespace
/// that this process may look into.
pub(crate) fn elsewhere(number: u64) -> Vec<Process> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen: HashSet<_> = namespace("self").into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<_> = pids.collect();
    pids.sort_unstable();
    let is_another = |pid: &u32| namespace(&pid.to_string()).is_some_and(|it| seen.insert(it));
    let others = pids.into_iter().filter(is_another);
    let has_it =
        |pid: &u32| mountinfo::read_of(&pid.to_string()).is_ok_and(|mounts| shows(&mounts, number));
    let name = |pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Process { pid, name: name.trim_end().to_owned() }
    };
    others.filter(has_it).map(name).collect()
}

/// Some of them in words; empty if there are none.
pub(crate) fn in_words(processes: &[Process]) -> String {
    const NAMED: usize = 3;
    let named: Vec<_> = processes.iter().take(NAMED).map(ToString::to_string).collect();
    let more = processes.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

/// The verb for so many that have a view.
pub(crate) fn have(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_here_by_its_number_and_not_by_its_path() {
        let mount = |device: &str, kind: &str| MountInfo {
            kind: kind.to_owned(),
            ..MountInfo::example(1, device, "/", "/m")
        };
        let mounts = [mount("0:7", mountinfo::VIEW), mount("0:8", "ext4")];
        let report =
            |kind: &str, number: Option<u64>| json!({ "kind": kind, "connection": number });
        assert!(!is_not_here(&report("mount", Some(7)), &mounts));
        assert!(is_not_here(&report("mount", Some(8)), &mounts));
        assert!(!is_not_here(&report("mount", None), &mounts), "not known");
        assert!(!is_not_here(&report("run", Some(8)), &mounts));
    }

    #[test]
    fn who_has_it_is_named() {
        let process = |pid| Process { pid, name: "sh".to_owned() };
        assert_eq!(in_words(&[process(5)]), "process 5 (sh)");
        let strange = Process { pid: 5, name: "\u{1b}[2J".to_owned() };
        assert!(!in_words(&[strange]).contains('\u{1b}'));
        let many: Vec<_> = (1..6).map(process).collect();
        assert_eq!(in_words(&many), "process 1 (sh), process 2 (sh), process 3 (sh) and 2 more");
    }
}
