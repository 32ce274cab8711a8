//! A machine from sysfs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::ids::{CpuId, NodeId};
use crate::source::{CoreKind, Raw, RawCpu, Source};

/// The most that is read of one file. A list of every other of 8192 CPUs takes 20 KiB.
const MAX_FILE_BYTES: usize = 64 * 1024;

/// The most caches a CPU is asked for; processors have 3 to 5.
const MAX_CACHES: usize = 16;

pub(crate) fn read(root: &Path) -> Result<Raw, TopologyError> {
    let devices = root.join("devices");
    let dir = devices.join("system/cpu");
    let online = need(list(&dir.join("online"))?, &dir.join("online"))?;
    let nodes = Nodes::read(&devices.join("system/node"))?;
    let hybrid = Hybrid::read(&devices)?;
    let (mut cores, mut caches) = (Keys::default(), Keys::default());
    let mut cpus = Vec::new();
    for id in &online {
        let cpu = dir.join(format!("cpu{id}"));
        let (llc, llc_bytes) = shared_cache(&cpu, id)?;
        cpus.push(RawCpu {
            id,
            core_key: cores.key(siblings(&cpu, id)?),
            llc_key: caches.key(llc),
            llc_bytes,
            node: nodes.of(id),
            kind: hybrid.of(id),
        });
    }
    // `possible` counts sockets that could be filled one day; `present` is what is there.
    let present = list(&dir.join("present"))?.unwrap_or_default();
    Ok(Raw {
        source: Source::Sysfs(root.to_owned()),
        cpus: present,
        online: cpus,
        latencies: nodes.latencies,
        memory_nodes: nodes.memory,
    })
}

/// The CPUs that the calling thread may run on, as the kernel states them: affinity and cpuset.
pub(crate) fn affinity() -> Result<CpuSet, TopologyError> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(mask) => Ok((0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|cpu| mask.is_set(*cpu))
            .map(CpuId::from_index)
            .collect()),
        // The fixed-size mask is too small for a kernel with more than 1024 CPUs.
        Err(rustix::io::Errno::INVAL) => affinity_in_words(),
        Err(error) => Err(TopologyError::Affinity(error.into())),
    }
}

fn affinity_in_words() -> Result<CpuSet, TopologyError> {
    let found = status_list("Cpus_allowed_list:")?;
    found.ok_or_else(|| TopologyError::Affinity(io::ErrorKind::InvalidData.into()))
}

/// The nodes that the calling thread may allocate from; `None` where the kernel does not say.
pub(crate) fn memory_mask() -> Option<BTreeSet<NodeId>> {
    let mask = status_list("Mems_allowed_list:").ok().flatten()?;
    Some(node_ids(&mask))
}

/// A line of this thread's status that holds a list.
fn status_list(key: &str) -> Result<Option<CpuSet>, TopologyError> {
    let path = Path::new("/proc/thread-self/status");
    let status = need(text(path)?, path)?;
    let found = status.lines().find_map(|line| line.strip_prefix(key));
    found.map(|found| parse_list(path, found)).transpose()
}

/// Node numbers have the notation of CPU numbers.
fn node_ids(list: &CpuSet) -> BTreeSet<NodeId> {
    list.iter().map(|number| NodeId(number.0)).collect()
}

/// The CPUs of the same core. The file had another name before Linux 5.3.
fn siblings(cpu: &Path, id: CpuId) -> Result<CpuSet, TopologyError> {
    for name in ["core_cpus_list", "thread_siblings_list"] {
        let path = cpu.join("topology").join(name);
        if let Some(found) = list(&path)? {
            return with_itself(path, found, id);
        }
    }
    Ok(CpuSet::from_iter([id]))
}

/// The CPUs that share the last cache level of a CPU, and its size in bytes. Where no cache is
/// described (some virtual machines) the die or the package stands in for it.
fn shared_cache(cpu: &Path, id: CpuId) -> Result<(CpuSet, Option<usize>), TopologyError> {
    let mut last: Option<(u32, PathBuf, CpuSet)> = None;
    for index in 0..MAX_CACHES {
        let dir = cpu.join(format!("cache/index{index}"));
        let (Some(level), Some(shared)) = (cache_level(&dir)?, list(&dir.join("shared_cpu_list"))?)
        else {
            break;
        };
        // Of a level with two caches (instructions, data) the first will do: they are shared alike.
        if last.as_ref().is_none_or(|(highest, ..)| level > *highest) {
            last = Some((level, dir, shared));
        }
    }
    match last {
        Some((_, dir, shared)) => {
            let bytes = cache_bytes(&dir)?;
            Ok((with_itself(dir.join("shared_cpu_list"), shared, id)?, bytes))
        }
        None => Ok((package(cpu, id)?, None)),
    }
}

/// The size of a cache: a number of KiB with the suffix `K`, as the kernel writes it.
fn cache_bytes(dir: &Path) -> Result<Option<usize>, TopologyError> {
    let path = dir.join("size");
    let parse = |found: String| {
        let kib = found.strip_suffix('K').and_then(|kib| kib.parse::<usize>().ok());
        let bytes = kib.and_then(|kib| kib.checked_mul(1024));
        bytes.ok_or(TopologyError::Value { path: path.clone(), found, right: "such as 32768K" })
    };
    text(&path)?.map(parse).transpose()
}

fn cache_level(dir: &Path) -> Result<Option<u32>, TopologyError> {
    number(&dir.join("level"), "a cache level, such as 3")
}

fn package(cpu: &Path, id: CpuId) -> Result<CpuSet, TopologyError> {
    for name in ["die_cpus_list", "package_cpus_list", "core_siblings_list"] {
        let path = cpu.join("topology").join(name);
        if let Some(found) = list(&path)? {
            return with_itself(path, found, id);
        }
    }
    // Nothing is known: the node, when there is one, is all that separates these CPUs.
    Ok(CpuSet::new())
}

fn with_itself(path: PathBuf, found: CpuSet, cpu: CpuId) -> Result<CpuSet, TopologyError> {
    if found.contains(cpu) {
        Ok(found)
    } else {
        Err(TopologyError::NotInOwnList { path, found, cpu })
    }
}

/// The NUMA nodes with CPUs. A kernel without NUMA has none; then all CPUs are on node 0.
struct Nodes {
    cpus: BTreeMap<NodeId, CpuSet>,
    latencies: BTreeMap<(NodeId, NodeId), u8>,
    /// The nodes with memory: `has_memory`, else `has_normal_memory` (a kernel without movable-only
    /// nodes), else all.
    memory: BTreeSet<NodeId>,
}

impl Nodes {
    fn read(dir: &Path) -> Result<Self, TopologyError> {
        let memory = BTreeSet::from([NodeId(0)]);
        let mut nodes = Self { cpus: BTreeMap::new(), latencies: BTreeMap::new(), memory };
        let Some(online) = list(&dir.join("online"))? else {
            return Ok(nodes);
        };
        let with_memory = match list(&dir.join("has_memory"))? {
            None => list(&dir.join("has_normal_memory"))?,
            found => found,
        };
        let memory = online.intersection(with_memory.as_ref().unwrap_or(&online));
        if !memory.is_empty() {
            nodes.memory = node_ids(&memory);
        }
        let online: Vec<NodeId> = node_ids(&online).into_iter().collect();
        for from in &online {
            let node = dir.join(format!("node{from}"));
            if let Some(cpus) = list(&node.join("cpulist"))?.filter(|cpus| !cpus.is_empty()) {
                nodes.cpus.insert(*from, cpus);
            }
            nodes.read_latencies(&node.join("distance"), *from, &online)?;
        }
        Ok(nodes)
    }

    /// One number for each online node, in order; nodes without CPUs have theirs too.
    fn read_latencies(
        &mut self,
        path: &Path,
        from: NodeId,
        online: &[NodeId],
    ) -> Result<(), TopologyError> {
        let Some(row) = text(path)? else {
            return Ok(());
        };
        let latencies: Result<Vec<u8>, _> = row.split_whitespace().map(u8::from_str).collect();
        let right = "one number from 0 to 255 for each node";
        let latencies = latencies
            .ok()
            .filter(|latencies| latencies.len() == online.len())
            .ok_or_else(|| TopologyError::Value { path: path.to_owned(), found: row, right })?;
        self.latencies
            .extend(online.iter().zip(latencies).map(|(to, latency)| ((from, *to), latency)));
        Ok(())
    }

    fn of(&self, cpu: CpuId) -> NodeId {
        let node = self.cpus.iter().find(|(_, cpus)| cpus.contains(cpu));
        node.map_or(NodeId(0), |(node, _)| *node)
    }
}

/// The two kinds of CPUs of a hybrid x86 processor, which the kernel lists as two PMUs.
struct Hybrid {
    fast: CpuSet,
    small: CpuSet,
}

impl Hybrid {
    fn read(devices: &Path) -> Result<Self, TopologyError> {
        let cpus = |name: &str| list(&devices.join(name).join("cpus"));
        Ok(Self {
            fast: cpus("cpu_core")?.unwrap_or_default(),
            small: cpus("cpu_atom")?.unwrap_or_default(),
        })
    }

    fn of(&self, cpu: CpuId) -> CoreKind {
        if self.small.contains(cpu) {
            CoreKind::Efficiency
        } else if self.fast.contains(cpu) {
            CoreKind::Performance
        } else {
            CoreKind::Uniform
        }
    }
}

/// Equal sets get equal keys.
#[derive(Default)]
struct Keys(HashMap<CpuSet, u32>);

impl Keys {
    fn key(&mut self, set: CpuSet) -> u32 {
        let next = u32::try_from(self.0.len()).expect("at most one key for each CPU");
        *self.0.entry(set).or_insert(next)
    }
}

fn list(path: &Path) -> Result<Option<CpuSet>, TopologyError> {
    text(path)?.map(|text| parse_list(path, &text)).transpose()
}

fn parse_list(path: &Path, text: &str) -> Result<CpuSet, TopologyError> {
    text.parse().map_err(|source| TopologyError::List { path: path.to_owned(), source })
}

fn number(path: &Path, right: &'static str) -> Result<Option<u32>, TopologyError> {
    let parse = |text: String| {
        text.parse().map_err(|_| TopologyError::Value {
            path: path.to_owned(),
            found: text.clone(),
            right,
        })
    };
    text(path)?.map(parse).transpose()
}

fn need<T>(value: Option<T>, path: &Path) -> Result<T, TopologyError> {
    value.ok_or_else(|| TopologyError::Read {
        path: path.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    })
}

/// The text of a file without the space around it; `None` when there is no such file. Half of a
/// list is another list, so a file that is too long is an error.
fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    let read = |file: File| {
        let mut text = String::new();
        file.take(MAX_FILE_BYTES as u64 + 1).read_to_string(&mut text)?;
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, "it is longer than 64 KiB");
        if text.len() > MAX_FILE_BYTES { Err(too_long()) } else { Ok(text) }
    };
    match File::open(path).and_then(read) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TopologyError::Read { path: path.to_owned(), source }),
    }
}
