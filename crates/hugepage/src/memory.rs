//! How much memory this process may have, and how much of that is left.

use std::path::Path;

use crate::error::Error;
use crate::machine::Machine;

/// The least of the limits on this process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: usize,
    /// The file that states it.
    pub source: String,
}

/// A memory cgroup that holds this process, or one of its ancestors.
struct Group {
    /// Its directory under the root.
    directory: String,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Left free in a cgroup for page tables and for what the kernel charges in batches, in bytes.
const MARGIN_BYTES: usize = 1 << 20;

impl Machine {
    /// The physical memory.
    pub(crate) fn physical_memory(&self) -> Option<MemoryLimit> {
        let bytes = self.meminfo("MemTotal")?;
        Some(MemoryLimit { bytes, source: "MemTotal in /proc/meminfo".into() })
    }

    /// The least of the physical memory and the memory limits of the cgroups (version 1 or 2) that
    /// hold this process. Hugetlb pages are not charged to these.
    #[must_use]
    pub fn memory_limit(&self) -> Option<MemoryLimit> {
        let limits = self.memory_groups().into_iter().filter_map(|group| group.limit(self));
        self.physical_memory().into_iter().chain(limits).min_by_key(|limit| limit.bytes)
    }

    /// Checks that `bytes` more can be faulted in without the kernel killing something for it. With
    /// base pages a fault at the limit of a cgroup, or with no memory left, starts the OOM killer
    /// instead of failing. What others allocate between this look and the fault cannot be excluded.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the limit that is too near.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let mut rooms: Vec<MemoryLimit> =
            self.memory_groups().into_iter().filter_map(|group| group.room(self)).collect();
        let swap = self.meminfo("SwapFree").unwrap_or_default();
        rooms.extend(self.meminfo("MemAvailable").map(|available| MemoryLimit {
            bytes: available.saturating_add(swap),
            source: "MemAvailable in /proc/meminfo".into(),
        }));
        let tightest = rooms.into_iter().min_by_key(|room| room.bytes);
        match tightest.filter(|room| room.bytes < bytes) {
            None => Ok(()),
            Some(MemoryLimit { bytes: left, source }) => Err(Error::OutOfMemory {
                bytes,
                limit: format!("{source} leaves {left} bytes"),
                way_out: "raise that limit, or ask for less".into(),
            }),
        }
    }

    /// The memory cgroups of this process, from its own to the outermost that can be seen.
    fn memory_groups(&self) -> Vec<Group> {
        // Without /proc there is nothing to go by.
        let text = self.text("proc/self/cgroup").unwrap_or_default();
        let mut groups = Vec::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (mount, version) = match controllers {
                "" => ("sys/fs/cgroup", Version::Two),
                list if list.split(',').any(|name| name == "memory") => {
                    ("sys/fs/cgroup/memory", Version::One)
                }
                _ => continue,
            };
            for ancestor in Path::new(path.trim_start_matches('/')).ancestors() {
                let directory = Path::new(mount).join(ancestor).to_string_lossy().into_owned();
                groups.push(Group { directory, version });
            }
        }
        groups
    }
}

impl Group {
    fn limit(&self, machine: &Machine) -> Option<MemoryLimit> {
        let file = format!("{}/{}", self.directory, self.pick("limit_in_bytes", "max"));
        // "max" is no number, and no limit.
        let bytes = machine.number(&file)?;
        Some(MemoryLimit { bytes, source: format!("/{file}") })
    }

    /// What can be charged to the group before the kernel kills: what is left, and what it can
    /// reclaim without swap.
    fn room(&self, machine: &Machine) -> Option<MemoryLimit> {
        let limit = self.limit(machine)?;
        let used = format!("{}/{}", self.directory, self.pick("usage_in_bytes", "current"));
        let left = limit.bytes.saturating_sub(machine.number(&used)?);
        let bytes = left.saturating_add(self.reclaimable(machine)).saturating_sub(MARGIN_BYTES);
        Some(MemoryLimit { bytes, source: limit.source })
    }

    fn reclaimable(&self, machine: &Machine) -> usize {
        let keys = match self.version {
            Version::One => ["total_inactive_file", "total_active_file"],
            Version::Two => ["inactive_file", "active_file"],
        };
        // A group without statistics counts as having nothing to reclaim.
        let text = machine.text(&format!("{}/memory.stat", self.directory)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let files = lines.filter(|(key, _)| keys.contains(key));
        files.filter_map(|(_, bytes)| bytes.parse::<usize>().ok()).sum()
    }

    fn pick(&self, one: &str, two: &str) -> String {
        format!("memory.{}", if self.version == Version::One { one } else { two })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let machine = Machine::at(root.path());
        (root, machine)
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn what_is_left_counts_what_can_be_reclaimed_at_every_level() {
        let group = "sys/fs/cgroup/a/b";
        let outer = "sys/fs/cgroup/a";
        let (_root, machine) = machine(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            (&format!("{group}/memory.max"), "104857600\n"),
            (&format!("{group}/memory.current"), "83886080\n"),
            (
                &format!("{group}/memory.stat"),
                "anon 5\ninactive_file 4194304\nactive_file 1048576\n",
            ),
            (&format!("{outer}/memory.max"), "max\n"),
            (&format!("{outer}/memory.current"), "999999999\n"),
        ]);
        // 100 MiB - 80 MiB + 5 MiB of file pages - 1 MiB of margin.
        assert_eq!(machine.check_room(24 * MIB), Ok(()));
        let error = machine.check_room(24 * MIB + 1).unwrap_err().to_string();
        let text = "(/sys/fs/cgroup/a/b/memory.max leaves 25165824 bytes)";
        assert!(error.contains(text), "{error}");
    }

    #[test]
    fn version_one_and_the_machine_itself_limit_too() {
        let group = "sys/fs/cgroup/memory/job";
        let (_root, machine) = machine(&[
            ("proc/self/cgroup", "4:cpu,memory:/job\n0::/\n"),
            (&format!("{group}/memory.limit_in_bytes"), "9223372036854771712\n"),
            (&format!("{group}/memory.usage_in_bytes"), "1000\n"),
            ("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 1024 kB\nSwapFree: 1024 kB\n"),
        ]);
        assert_eq!(machine.check_room(2 * MIB), Ok(()));
        let error = machine.check_room(2 * MIB + 1).unwrap_err().to_string();
        assert!(error.contains("MemAvailable in /proc/meminfo leaves 2097152"), "{error}");
        assert_eq!(machine.memory_limit().unwrap().bytes, 4 * MIB);
    }

    #[test]
    fn a_machine_of_which_nothing_is_known_has_room() {
        let (_root, machine) = machine(&[]);
        assert_eq!(machine.check_room(usize::MAX), Ok(()));
    }
}
