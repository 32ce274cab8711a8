//! Prints this machine in the notation of `testdata/*.machine`, so that it can become a test:
//!
//! ```sh
//! cargo run -p tollgate-topology --example record > crates/topology/testdata/NAME.machine
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tollgate_topology::{CpuSet, Topology};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = Topology::current()?;
    let cpu = Path::new("/sys/devices/system/cpu");
    println!("present {}", line(&cpu.join("present")).unwrap_or_default());
    println!("online {}", machine.online());
    for (node, cpus) in machine.nodes() {
        let path = format!("/sys/devices/system/node/node{node}/distance");
        println!("node {node} {cpus} {}", line(Path::new(&path)).unwrap_or_default());
    }
    println!("core {}", lists(cpu, machine.online(), "topology/core_cpus_list"));
    // Level 1 is taken to be that of the core.
    for index in 2..8 {
        let level = line(&cpu.join(format!("cpu0/cache/index{index}/level")));
        let shared = lists(cpu, machine.online(), &format!("cache/index{index}/shared_cpu_list"));
        if let Some(level) = level {
            println!("cache {level} {shared}");
        }
    }
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

/// The distinct values of a file of every CPU.
fn lists(dir: &Path, cpus: &CpuSet, file: &str) -> String {
    let values = cpus.iter().filter_map(|cpu| line(&dir.join(format!("cpu{cpu}")).join(file)));
    values.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
}

fn line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
