//! Known machines, from their sysfs trees.

use crate::support::Machine;
use tollgate_topology::{
    CoreKind, CpuId, CpuSet, Distance, LlcId, MaskError, NodeId, PodId, Scope, Source, Topology,
    TopologyError,
};

fn machine(name: &str) -> Topology {
    Machine::load(name).topology().unwrap()
}

fn pods(topology: &Topology, scope: Scope) -> Vec<String> {
    topology.pods(scope).iter().map(|pod| pod.cpus.to_string()).collect()
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

#[test]
fn a_single_llc_desktop() {
    let machine = machine("desktop-single-llc");
    assert_eq!((machine.cores().len(), machine.llcs().len(), machine.nodes().len()), (8, 1, 1));
    assert_eq!(machine.siblings(CpuId(11)), Some(&set("3,11")));
    assert_eq!(pods(&machine, Scope::Smt)[3], "3,11");
    assert_eq!(pods(&machine, Scope::CacheShard), ["0-15"], "8 cores are not cut");
    assert_eq!(pods(&machine, Scope::System), ["0-15"]);
    assert_eq!(pods(&machine, Scope::Cpu).len(), 16);
}

#[test]
fn a_multi_ccx_desktop() {
    let machine = machine("multi-ccx");
    let caches = ["0-2,12-14", "3-5,15-17", "6-8,18-20", "9-11,21-23"];
    assert_eq!(pods(&machine, Scope::Cache), caches);
    assert_eq!(pods(&machine, Scope::CacheShard), caches);
    assert_eq!(machine.distance(CpuId(0), CpuId(0)), Distance::SAME);
    assert_eq!(machine.distance(CpuId(0), CpuId(12)), Distance::SMT);
    assert_eq!(machine.distance(CpuId(0), CpuId(14)), Distance::CACHE);
    assert_eq!(machine.distance(CpuId(0), CpuId(3)), Distance::NODE);
    let order = machine.pods(Scope::Cache).by_distance(PodId(2), &machine);
    assert_eq!(order, [PodId(2), PodId(3), PodId(0), PodId(1)], "wraps from its own number");
}

#[test]
fn two_sockets() {
    let machine = machine("two-socket");
    assert_eq!(pods(&machine, Scope::Numa), ["0-19,40-59", "20-39,60-79"]);
    assert_eq!(machine.node_of(CpuId(65)), Some(NodeId(1)));
    assert_eq!(machine.distance(CpuId(0), CpuId(20)).as_u8(), 21);
    let shards = machine.pods(Scope::CacheShard);
    let cores: Vec<usize> = shards.iter().map(|pod| pod.cpus.len() / 2).collect();
    assert_eq!(cores, [7, 7, 6, 7, 7, 6], "20 cores are 7 + 7 + 6, in each socket");
    assert_eq!(
        shards.by_distance(PodId(1), &machine),
        [1, 2, 0, 3, 4, 5].map(PodId),
        "the shards of the LLC come before those of the other node"
    );
}

#[test]
fn hybrid_cores() {
    let machine = machine("hybrid");
    assert_eq!(
        (machine.cores().len(), machine.llcs().len()),
        (16, 1),
        "the L2 clusters do not count"
    );
    assert_eq!(machine.kind_of(CpuId(15)), Some(CoreKind::Performance));
    assert_eq!(machine.kind_of(CpuId(16)), Some(CoreKind::Efficiency));
    assert_eq!(pods(&machine, Scope::CacheShard), ["0-15", "16-23"], "16 cores are 8 + 8");
    assert!(machine.to_string().contains("core 8  cpu 16  efficiency"), "{machine}");
}

#[test]
fn smt_switched_off() {
    let machine = machine("smt-off");
    assert_eq!(machine.cpus(), &set("0-15"));
    assert_eq!(machine.online(), &set("0-7"));
    assert_eq!(machine.siblings(CpuId(3)), Some(&set("3")));
    assert_eq!(machine.core_of(CpuId(8)), None);
    assert_eq!(machine.distance(CpuId(0), CpuId(8)), Distance::FARTHEST);
    assert!(machine.to_string().contains("offline: 8-15"), "{machine}");
    let error = machine.check_mask(&set("7-9")).unwrap_err();
    assert!(matches!(&error, MaskError::Offline { offline, .. } if *offline == set("8-9")));
}

#[test]
fn offline_cpus_leave_their_caches_smaller() {
    let machine = machine("offline-cpus");
    assert_eq!(
        pods(&machine, Scope::Cache),
        ["0-2,12-14", "3,5,15-17", "9-11,21-23", "18-19"],
        "pods are numbered by lowest CPU"
    );
    assert_eq!(machine.pods(Scope::Cache).pod_of(CpuId(4)), None);
}

#[test]
fn a_container_that_sees_2_of_64() {
    let machine = machine("container-2-of-64");
    assert_eq!(machine.online().len(), 64);
    assert_eq!(machine.allowed(), &set("6,41"));
    assert_eq!(pods(&machine, Scope::Cache), ["6", "41"], "they share no L3");
    assert_eq!(pods(&machine, Scope::Numa), ["6,41"]);
    let error = machine.check_mask(&set("5-6")).unwrap_err();
    assert!(matches!(&error, MaskError::NotAllowed { forbidden, .. } if *forbidden == set("5")));
    assert!(error.to_string().contains("some of 6,41"), "{error}");
    assert!(machine.to_string().contains("(not allowed)"), "{machine}");
}

#[test]
fn an_llc_over_two_nodes_counts_once_per_node() {
    let machine = machine("sub-numa");
    assert_eq!(pods(&machine, Scope::Cache), ["0-4,10-14", "5-9,15-19"]);
    assert_eq!(pods(&machine, Scope::CacheShard), ["0-4", "5-9", "10-14", "15-19"]);
    assert_eq!(machine.distance(CpuId(0), CpuId(5)).as_u8(), 11);
}

#[test]
fn a_large_llc_is_cut_into_shards() {
    let machine = machine("large-llc");
    let shards = machine.pods(Scope::CacheShard);
    assert_eq!(shards.len(), 9);
    assert!(shards.iter().all(|pod| pod.cpus.len() == 8 && pod.llc.is_some()));
    assert_eq!(machine.nodes().len(), 1, "a node without CPUs is none");
}

#[test]
fn packages_stand_in_for_caches_that_are_not_described() {
    let machine = machine("no-caches");
    assert_eq!(pods(&machine, Scope::Cache), ["0-3", "4-7"]);
    assert_eq!(pods(&machine, Scope::Smt), ["0-1", "2-3", "4-5", "6-7"]);
    assert_eq!(pods(&machine, Scope::Numa), ["0-7"]);
}

#[test]
fn a_small_guest() {
    let machine = machine("guest-2-cpus");
    assert_eq!((machine.cores().len(), machine.llcs().len()), (2, 1));
    let split = machine.pretend_llcs(2).unwrap();
    assert_eq!(pods(&split, Scope::Cache), ["0", "1"]);
    assert_eq!(split.source().to_string(), "split into 2 pretend LLCs");
    let error = machine.pretend_llcs(3).unwrap_err().to_string();
    assert!(error.contains("2 allowed CPUs into 3") && error.contains("1 to 2"), "{error}");
}

#[test]
fn the_machine_this_runs_on() {
    let machine = Topology::current().unwrap();
    assert!(!machine.allowed().is_empty() && machine.allowed().is_subset(machine.online()));
    // `available_parallelism` would not do: it counts a quota, too.
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(machine.allowed(), &set(mask).intersection(machine.online()));
    for cpu in machine.allowed() {
        assert!(machine.siblings(cpu).unwrap().contains(cpu));
    }
}

#[test]
fn a_tree_that_is_not_there() {
    let error = Topology::from_sysfs(std::path::Path::new("/nowhere"), None).unwrap_err();
    assert!(error.to_string().contains("/nowhere/devices/system/cpu/online"), "{error}");
}

#[test]
fn broken_files_are_named() {
    let cases = [
        ("system/cpu/online", "0-x"),
        ("system/cpu/cpu3/topology/core_cpus_list", "4"),
        ("system/cpu/cpu3/cache/index3/level", "three"),
        ("system/cpu/cpu3/cache/index3/shared_cpu_list", "0-2"),
        ("system/node/node0/distance", "10 20 30"),
        ("system/node/node0/distance", "1000"),
        ("system/node/node0/cpulist", "9999"),
    ];
    for (file, text) in cases {
        let tree = Machine::load("desktop-single-llc");
        tree.replace(file, text);
        let error = tree.topology().unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(text), "{file}: {error}");
    }
}

#[test]
fn a_file_that_is_too_long_is_not_read_in_part() {
    let machine = Machine::load("guest-2-cpus");
    machine.replace("system/cpu/online", &format!("0-1{},2", " ".repeat(64 * 1024)));
    let error = machine.topology().unwrap_err().to_string();
    assert!(error.contains("system/cpu/online") && error.contains("64 KiB"), "{error}");
}

#[test]
fn files_that_may_be_missing() {
    let tree = Machine::load("desktop-single-llc");
    tree.remove("system/cpu/present");
    tree.remove("system/node/node0/distance");
    tree.remove("system/cpu/cpu3/topology/core_cpus_list");
    let machine = tree.topology().unwrap();
    assert_eq!(machine.cpus(), &set("0-15"));
    assert_eq!(machine.siblings(CpuId(3)), Some(&set("3")));
}

#[test]
fn allowed_cpus_that_are_all_offline() {
    let mut tree = Machine::load("smt-off");
    tree.allowed = Some(set("8-15"));
    let error = tree.topology().unwrap_err();
    assert!(matches!(error, TopologyError::NothingAllowed { .. }));
    assert!(error.to_string().contains("8-15") && error.to_string().contains("0-7"), "{error}");
}

#[test]
fn masks() {
    let machine = machine("multi-ccx");
    assert!(matches!(machine.check_mask(&set("")), Err(MaskError::Empty { .. })));
    let error = machine.check_mask(&set("20-30")).unwrap_err();
    assert!(matches!(&error, MaskError::Absent { absent, .. } if *absent == set("24-30")));
    let restricted = machine.restricted(&set("0,12,3")).unwrap();
    assert_eq!(pods(&restricted, Scope::Cache), ["0,12", "3"]);
    assert!(matches!(restricted.check_mask(&set("1")), Err(MaskError::NotAllowed { .. })));
}

#[test]
fn a_flat_machine_says_why() {
    let machine = Topology::flat(set("1,3"), "sysfs is not mounted".to_owned()).unwrap();
    assert_eq!(pods(&machine, Scope::Cache), ["1,3"]);
    assert_eq!(pods(&machine, Scope::Smt), ["1", "3"]);
    assert!(matches!(machine.source(), Source::Flat(why) if why.contains("not mounted")));
    assert!(Topology::flat(CpuSet::new(), String::new()).is_err());
}

#[test]
fn the_tree_for_people() {
    let tree = Machine::load("offline-cpus").topology().unwrap().restricted(&set("0,12,18"));
    let text = tree.unwrap().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("3 of 19 CPUs online allowed (0,12,18); 1 node, 4 LLCs, 11 cores")
    );
    assert_eq!(lines[1], "node 0  cpus 0-3,5,9-19,21-23 (allowed: 0,12,18)");
    assert_eq!(lines[2], "├─ llc 0  cpus 0-2,12-14 (allowed: 0,12)");
    assert_eq!(lines[3], "│  ├─ core 0  cpus 0,12");
    assert_eq!(lines[4], "│  ├─ core 1  cpus 1,13 (not allowed)");
    assert_eq!(lines.last(), Some(&"   └─ core 10  cpu 19 (not allowed)"));
}

const CACHE_SIZES_AND_MEMORY: &str = "\
present 0-3
online 0-3
node 0 0-1 10 21 30
node 1 2-3 21 10 30
node 2 - 30 30 10
memory 0,2
cache 2 0 1 2 3
cache 3 0-1 2-3
cache-size 0-1 32768K";

#[test]
fn cache_sizes_and_nodes_with_memory_are_read() {
    let machine = Machine::new(CACHE_SIZES_AND_MEMORY).topology().unwrap();
    assert_eq!(machine.llc_bytes(LlcId(0)), Some(32 << 20));
    assert_eq!(machine.llc_bytes(LlcId(1)), None, "sysfs states no size");
    assert_eq!(machine.llc_bytes(LlcId(2)), None, "there is no such cache");
    // Node 1 has CPUs and no memory, node 2 has memory and no CPUs.
    assert_eq!(machine.memory_nodes().iter().copied().collect::<Vec<_>>(), [NodeId(0), NodeId(2)]);
    assert_eq!(machine.nodes().map(|(node, _)| node).collect::<Vec<_>>(), [NodeId(0), NodeId(1)]);
}

#[test]
fn without_a_list_of_nodes_with_memory_all_count() {
    let machine = machine("two-socket");
    assert_eq!(machine.memory_nodes().len(), 2);
}

#[test]
fn a_cache_size_that_is_none_is_named() {
    let machine = Machine::new(CACHE_SIZES_AND_MEMORY);
    machine.replace("system/cpu/cpu0/cache/index3/size", "plenty");
    let error = machine.topology().unwrap_err().to_string();
    assert!(error.contains("index3/size holds \"plenty\"; right would be such as"), "{error}");
}
