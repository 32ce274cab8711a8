//! What the machine has: huge-page pools, THP settings, nodes, memory limits, caches.
//!
//! Everything is read from `/proc` and `/sys` under a root that tests replace by a tree of their
//! own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tollgate_topology::{CpuId, CpuSet, LlcId, NodeId, Topology};

use crate::error::Error;
use crate::sys;
use crate::thp::Thp;

/// Size of a huge page that one page-middle-directory entry maps on x86-64 and on aarch64 with 4
/// KiB base pages.
pub const HUGE_2M: usize = 2 << 20;
/// Size of a huge page that one page-upper-directory entry maps.
pub const HUGE_1G: usize = 1 << 30;

/// The state of one pool of reserved huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reserved {
    /// Pages in the pool.
    pub total: usize,
    /// Pages that back nothing yet.
    pub free: usize,
    /// Free pages that are promised to a mapping already.
    pub promised: usize,
    /// Pages that may still be allocated beyond the pool (`nr_overcommit_hugepages`).
    pub overcommit: usize,
}

impl Reserved {
    /// Pages that a new mapping can have.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.saturating_sub(self.promised) + self.overcommit
    }
}

/// Reads the machine's state below a root directory.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    /// Read when it is first needed, which takes some hundred microseconds. Clones share it.
    topology: Arc<OnceLock<Topology>>,
    /// CPUs that a last-level cache is made for, where the processor says so.
    llc_sharers: Option<usize>,
}

impl Machine {
    /// This machine, with the CPUs and the NUMA nodes that the calling thread may use.
    #[must_use]
    pub fn current() -> Self {
        Self { llc_sharers: sys::llc_sharers(), ..Self::at(Path::new("/")) }
    }

    /// The machine that the `proc` and `sys` trees below `root` describe. Where these describe no
    /// CPU, it has one.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), topology: Arc::default(), llc_sharers: None }
    }

    /// The CPUs, caches and NUMA nodes. A snapshot of the moment when this value or a clone of it
    /// was first asked.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        self.topology.get_or_init(|| {
            let topology = if self.root == Path::new("/") {
                Topology::current()
            } else {
                Topology::from_sysfs(&self.root.join("sys"), None)
            };
            topology.unwrap_or_else(|error| one_cpu(error.to_string()))
        })
    }

    /// Sizes in bytes of the huge pages that the kernel can reserve, smallest first.
    #[must_use]
    pub fn huge_page_sizes(&self) -> Vec<usize> {
        let entries = fs::read_dir(self.root.join("sys/kernel/mm/hugepages"));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut sizes: Vec<usize> =
            names.filter_map(|name| parse_hugepages_name(name.to_str()?)).collect();
        sizes.sort_unstable();
        sizes
    }

    /// The pool of huge pages of `page_bytes`.
    ///
    /// # Errors
    /// [`Error::NoSuchPageSize`] when the kernel has no such pages.
    pub fn reserved(&self, page_bytes: usize) -> Result<Reserved, Error> {
        if !self.huge_page_sizes().contains(&page_bytes) {
            return Err(Error::NoSuchPageSize {
                page_bytes,
                available: list_or_none(&self.huge_page_sizes()),
            });
        }
        // A kernel without overcommit has no file for it; a file that is not there counts nothing.
        let count = |file: &str| {
            let path = format!("sys/kernel/mm/hugepages/hugepages-{}kB/{file}", page_bytes / 1024);
            self.number(&path).unwrap_or_default()
        };
        Ok(Reserved {
            total: count("nr_hugepages"),
            free: count("free_hugepages"),
            promised: count("resv_hugepages"),
            overcommit: count("nr_overcommit_hugepages").saturating_sub(count("surplus_hugepages")),
        })
    }

    /// The setting of transparent huge pages of 2 MiB for private memory: the setting of that size,
    /// which by default inherits the setting for all.
    #[must_use]
    pub fn thp(&self) -> Thp {
        self.thp_setting("enabled")
    }

    /// As [`Machine::thp`], for shared memory.
    #[must_use]
    pub fn shared_thp(&self) -> Thp {
        self.thp_setting("shmem_enabled")
    }

    fn thp_setting(&self, file: &str) -> Thp {
        let directory = "sys/kernel/mm/transparent_hugepage";
        let general = self.chosen(&format!("{directory}/{file}"));
        let sized = self.chosen(&format!("{directory}/hugepages-2048kB/{file}"));
        let word = match sized.as_deref() {
            None | Some("inherit") => general,
            _ => sized,
        };
        match word.as_deref() {
            Some("always" | "force") => Thp::Always,
            // "within_size" means never beyond the end of the file, and here the file ends with a
            // page.
            Some("madvise" | "advise" | "within_size") => Thp::Madvise,
            Some(_) => Thp::Never,
            None => Thp::Absent,
        }
    }

    /// Checks that memory can be allocated from `node`.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`] with the nodes that have memory.
    pub fn check_node(&self, node: NodeId) -> Result<(), Error> {
        let nodes = self.topology().memory_nodes();
        if nodes.contains(&node) {
            return Ok(());
        }
        let with_memory: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        Err(Error::NoSuchNode { node, with_memory: with_memory.join(", ") })
    }

    /// A line of `/proc/meminfo` in bytes.
    #[must_use]
    pub fn meminfo(&self, key: &str) -> Option<usize> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Size in bytes of the largest last-level cache of the CPUs that may be used, `None` where
    /// sysfs does not say.
    #[must_use]
    pub fn llc_bytes(&self) -> Option<usize> {
        let topology = self.topology();
        let caches = topology.allowed().iter().filter_map(|cpu| topology.llc_of(cpu));
        caches.filter_map(|llc| topology.llc_bytes(llc)).max()
    }

    /// The part of the largest last-level cache that falls to the CPUs that may be used, in bytes:
    /// all of it for a whole machine, 4 MiB for two CPUs of a processor on which 240 share 480 MiB.
    #[must_use]
    pub fn usable_llc_bytes(&self) -> Option<usize> {
        let topology = self.topology();
        let parts = topology.llcs().iter().zip(0..).filter_map(|(cpus, number)| {
            let bytes = topology.llc_bytes(LlcId(number))?;
            let sharers = self.llc_sharers.unwrap_or(0).max(cpus.len());
            let usable = cpus.intersection(topology.allowed()).len();
            // Without overflow: a cache is smaller than 2^40 bytes, and CPUs are at most 2^13.
            Some(bytes.saturating_mul(usable) / sharers)
        });
        parts.max()
    }

    /// As if each last-level cache were made for so many CPUs, for tests.
    #[cfg(test)]
    pub(crate) fn with_llc_sharers(self, sharers: usize) -> Self {
        Self { llc_sharers: Some(sharers), ..self }
    }

    /// What names this processor in a cache of measurements: vendor, family, model, stepping, name,
    /// microcode, last-level cache and number of CPUs that may be used, on one line.
    #[must_use]
    pub fn cpu_key(&self) -> String {
        let text = self.text("proc/cpuinfo").unwrap_or_default();
        let first = text.split("\n\n").next().unwrap_or_default();
        let keys = [
            "vendor_id",
            "cpu family",
            "model",
            "stepping",
            "model name",
            "microcode",
            "CPU implementer",
            "CPU part",
            "CPU variant",
            "CPU revision",
        ];
        let mut parts: Vec<String> = Vec::new();
        for line in first.lines() {
            if let Some((key, value)) = line.split_once(':')
                && keys.contains(&key.trim())
            {
                parts.push(format!("{}={}", key.trim(), value.trim()));
            }
        }
        let llc = self.llc_bytes().map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
        parts.push(format!("llc={llc}"));
        parts.push(format!("cpus={}", self.topology().allowed().len()));
        parts.join(";")
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    pub(crate) fn number(&self, path: &str) -> Option<usize> {
        self.text(path)?.parse().ok()
    }

    /// The word in brackets: `always [madvise] never`.
    fn chosen(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']').map(|(word, _)| word.to_owned())
    }
}

/// Prints sizes as a list, or the word "none".
fn list_or_none(sizes: &[usize]) -> String {
    if sizes.is_empty() {
        return "none".into();
    }
    let words: Vec<String> = sizes.iter().map(|size| format!("{size} bytes")).collect();
    words.join(", ")
}

fn parse_hugepages_name(name: &str) -> Option<usize> {
    name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Parses a size with an optional suffix `K`, `M` or `G` (powers of 1024, either case).
pub(crate) fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// A machine of which nothing is known.
fn one_cpu(why: String) -> Topology {
    let cpus = CpuSet::from_iter([CpuId(0)]);
    Topology::flat(cpus, why).expect("a set with a CPU is a topology")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_recorded_two_node_machine_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n");
        write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "6\n");
        write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "5\n");
        write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "2\n");
        write(root, "sys/devices/system/cpu/online", "0-5\n");
        for (cpu, kib) in [(0, 512), (2, 1024)] {
            let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache/index0");
            write(root, &format!("{cache}/level"), "3\n");
            write(root, &format!("{cache}/shared_cpu_list"), &format!("{cpu}\n"));
            write(root, &format!("{cache}/size"), &format!("{kib}K\n"));
        }
        write(root, "sys/devices/system/node/online", "0-1\n");
        write(root, "sys/devices/system/node/node0/cpulist", "0-1,4\n");
        write(root, "sys/devices/system/node/node1/cpulist", "2-3,5\n");
        write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write(root, "proc/meminfo", "MemTotal:       1024 kB\nMemFree: 3 kB\n");
        write(root, "proc/self/cgroup", "4:memory:/a/b\n0::/c\n");
        write(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9999\n");
        write(root, "sys/fs/cgroup/c/memory.max", "max\n");
        let machine = Machine::at(root);
        assert_eq!(machine.huge_page_sizes(), [HUGE_2M]);
        assert_eq!(machine.reserved(HUGE_2M).unwrap().available(), 3);
        assert!(matches!(machine.reserved(HUGE_1G), Err(Error::NoSuchPageSize { .. })));
        assert_eq!(machine.thp(), Thp::Madvise);
        assert_eq!(machine.topology().node_of(CpuId(5)), Some(NodeId(1)));
        assert_eq!(machine.llc_bytes(), Some(1 << 20), "the largest of those in use");
        assert_eq!(machine.usable_llc_bytes(), Some(1 << 20), "CPU 2 has it alone");
        let shared = machine.clone().with_llc_sharers(16);
        assert_eq!(shared.usable_llc_bytes(), Some(64 << 10), "one CPU of 16");
        let limit = machine.memory_limit().unwrap();
        assert_eq!((limit.bytes, limit.source.contains("memory/a/")), (9999, true));
        let text = machine.check_node(NodeId(7)).unwrap_err().to_string();
        assert!(text.contains("node 7") && text.contains("0, 1"), "{text}");
    }

    #[test]
    fn thp_of_the_size_overrides_the_general_setting() {
        let dir = tempfile::tempdir().unwrap();
        let base = "sys/kernel/mm/transparent_hugepage";
        assert_eq!(Machine::at(dir.path()).thp(), Thp::Absent);
        write(dir.path(), &format!("{base}/enabled"), "[always] madvise never");
        assert_eq!(Machine::at(dir.path()).thp(), Thp::Always);
        let sized = format!("{base}/hugepages-2048kB/enabled");
        write(dir.path(), &sized, "always inherit madvise [never]");
        assert_eq!(Machine::at(dir.path()).thp(), Thp::Never);
        write(dir.path(), &sized, "always [inherit] madvise never");
        assert_eq!(Machine::at(dir.path()).thp(), Thp::Always);
    }

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("12"), Some(12));
        assert_eq!(parse_size("x"), None);
        assert_eq!(parse_size("99999999999999999999G"), None);
    }
}
