//! Any text as a synthetic machine and as a list of CPUs: an error, or what prints as it was meant.

use tollgate_topology::{CpuSet, Scope, Topology};

/// One input.
///
/// # Panics
/// If a list of CPUs does not survive being printed and read again, or a CPU is in no pod.
pub fn fuzz_one(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(set) = text.parse::<CpuSet>() {
        let again = set.to_string().parse::<CpuSet>();
        assert_eq!(again.as_ref(), Ok(&set), "printed as {set}");
    }
    let Ok(topology) = Topology::from_synthetic(text) else { return };
    // Large machines are well-formed, and only take long to cut into pods.
    if topology.cpus().len() <= 64 {
        for scope in Scope::ALL {
            drop(format!("{:?}", topology.pods(scope)));
        }
    }
}
