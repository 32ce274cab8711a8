//! Prints this machine in the notation of `testdata/*.machine`, so that it can become a test:
//!
//! ```sh
//! cargo run -p tollgate-topology --example record > crates/topology/testdata/NAME.machine
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tollgate_topology::{CpuSet, Topology};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = Topology::current()?;
    let cpu = Path::new("/sys/devices/system/cpu");
    println!("present {}", line(&cpu.join("present")).unwrap_or_default());
    println!("online {}", machine.online());
    nodes(Path::new("/sys/devices/system/node"));
    println!("core {}", lists(cpu, machine.online(), "topology/core_cpus_list"));
    caches(cpu, machine.online());
    for pmu in ["cpu_core", "cpu_atom"] {
        if let Some(cpus) = line(&Path::new("/sys/devices").join(pmu).join("cpus")) {
            println!("pmu {pmu} {cpus}");
        }
    }
    if machine.allowed() != machine.online() {
        println!("allowed {}", machine.allowed());
    }
    Ok(())
}

/// Those without CPUs or without memory, too.
fn nodes(dir: &Path) {
    let online = line(&dir.join("online")).and_then(|list| list.parse::<CpuSet>().ok());
    for node in online.iter().flatten() {
        let of_node = |file| line(&dir.join(format!("node{node}")).join(file)).unwrap_or_default();
        let (cpus, distances) = (of_node("cpulist"), of_node("distance"));
        println!("node {node} {} {distances}", if cpus.is_empty() { "-" } else { &cpus });
    }
    if let Some(memory) = line(&dir.join("has_memory")) {
        println!("memory {memory}");
    }
}

/// Level 1 is taken to be that of the core. Where no cache is described, the packages.
fn caches(dir: &Path, online: &CpuSet) {
    let Some(first) = online.lowest() else { return };
    let mut some = false;
    for index in 0..8 {
        let of_cache = |file| format!("cache/index{index}/{file}");
        let level = line(&dir.join(format!("cpu{first}")).join(of_cache("level")));
        some |= level.is_some();
        if let Some(level) = level.filter(|level| level != "1") {
            println!("cache {level} {}", lists(dir, online, &of_cache("shared_cpu_list")));
            if level == "3" {
                for (size, cpus) in sizes(dir, online, &of_cache("size")) {
                    println!("cache-size {cpus} {size}");
                }
            }
        }
    }
    if !some {
        println!("package {}", lists(dir, online, "topology/package_cpus_list"));
    }
}

/// The CPUs that have each size.
fn sizes(dir: &Path, cpus: &CpuSet, file: &str) -> BTreeMap<String, CpuSet> {
    let mut sizes: BTreeMap<String, CpuSet> = BTreeMap::new();
    for cpu in cpus {
        if let Some(size) = line(&dir.join(format!("cpu{cpu}")).join(file)) {
            sizes.entry(size).or_default().insert(cpu);
        }
    }
    sizes
}

/// The distinct values of a file of every CPU.
fn lists(dir: &Path, cpus: &CpuSet, file: &str) -> String {
    let values = cpus.iter().filter_map(|cpu| line(&dir.join(format!("cpu{cpu}")).join(file)));
    values.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
}

fn line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
