//! What holds on every machine.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::support::Machine;
use proptest::prelude::*;
use tollgate_topology::{
    CoreKind, CpuId, CpuSet, Distance, MAX_SHARD_CORES, Pods, Scope, Topology,
};

/// Machines of every shape: regular ones, and pieces of them that are left when some CPUs may not
/// be used, and real CPUs split into pretend LLCs.
fn machines() -> impl Strategy<Value = Topology> {
    let shape = (1..3u32, 1..4u32, 1..21u32, 1..4u32);
    (shape, any::<u64>(), 0..4usize).prop_map(|((nodes, llcs, cores, threads), seed, pretend)| {
        let text = format!("numa:{nodes} l3:{llcs} core:{cores} pu:{threads}");
        let whole = Topology::from_synthetic(&text).unwrap();
        let keep = |cpu: &CpuId| seed.rotate_left(cpu.0 * 7) & 3 != 0;
        let some: CpuSet = whole.cpus().iter().filter(keep).collect();
        let machine = whole.restricted(&some).unwrap_or(whole);
        if pretend == 0 { machine } else { machine.pretend_llcs(pretend).unwrap_or(machine) }
    })
}

fn assert_partition(topology: &Topology, pods: &Pods) {
    let mut seen = CpuSet::new();
    for (index, pod) in pods.iter().enumerate() {
        assert_eq!(pod.id.index(), index);
        assert!(!pod.cpus.is_empty() && !pod.cpus.intersects(&seen));
        assert!(pod.cpus.iter().all(|cpu| pods.pod_of(cpu) == Some(pod.id)));
        seen = seen.union(&pod.cpus);
    }
    assert_eq!(&seen, topology.allowed(), "every allowed CPU is in exactly one pod");
}

fn assert_finer(fine: &Pods, coarse: &Pods) {
    for pod in fine {
        let homes: BTreeSet<_> = pod.cpus.iter().map(|cpu| coarse.pod_of(cpu)).collect();
        assert_eq!(homes.len(), 1, "{} is cut by {}", pod.cpus, coarse.scope());
    }
}

fn assert_sound(topology: &Topology) {
    let scopes = Scope::ALL.map(|scope| topology.pods(scope));
    for pods in &scopes {
        assert_partition(topology, pods);
    }
    for pair in scopes.windows(2) {
        assert_finer(&pair[0], &pair[1]);
    }
}

fn cores_in(topology: &Topology, cpus: &CpuSet) -> usize {
    cpus.iter().map(|cpu| topology.core_of(cpu)).collect::<BTreeSet<_>>().len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn scopes_partition_and_nest(machine in machines()) {
        assert_sound(&machine);
    }

    #[test]
    fn shards_are_even_and_few(machine in machines()) {
        let shards = machine.pods(Scope::CacheShard);
        for llc in &machine.pods(Scope::Cache) {
            let sizes: Vec<usize> = shards
                .iter()
                .filter(|shard| shard.llc == llc.llc)
                .map(|shard| cores_in(&machine, &shard.cpus))
                .collect();
            let cores = cores_in(&machine, &llc.cpus);
            prop_assert_eq!(sizes.len(), cores.div_ceil(MAX_SHARD_CORES));
            prop_assert_eq!(sizes.iter().sum::<usize>(), cores);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            prop_assert!(*most <= MAX_SHARD_CORES && most - least <= 1, "{:?}", sizes);
        }
    }

    #[test]
    fn distance_is_an_order_of_nearness(machine in machines(), a in 0..400u32, b in 0..400u32) {
        let (a, b) = (CpuId(a), CpuId(b));
        let distance = machine.distance(a, b);
        prop_assert_eq!(distance, machine.distance(b, a));
        let online = machine.online().contains(a) && machine.online().contains(b);
        prop_assert_eq!(distance == Distance::FARTHEST, !online);
        if online {
            prop_assert_eq!(distance == Distance::SAME, a == b);
            prop_assert_eq!(distance <= Distance::SMT, machine.core_of(a) == machine.core_of(b));
            prop_assert_eq!(distance <= Distance::CACHE, machine.llc_of(a) == machine.llc_of(b));
            prop_assert_eq!(distance <= Distance::NODE, machine.node_of(a) == machine.node_of(b));
        }
    }

    #[test]
    fn pods_look_near_before_far(machine in machines()) {
        for scope in Scope::ALL {
            let pods = machine.pods(scope);
            for pod in &pods {
                let order = pods.by_distance(pod.id, &machine);
                prop_assert_eq!(order[0], pod.id);
                prop_assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), pods.len());
                let from = pod.cpus.lowest().unwrap();
                let to = |id: &_| machine.distance(from, pods[*id].cpus.lowest().unwrap());
                prop_assert!(order.iter().map(to).is_sorted());
            }
        }
    }

    #[test]
    fn pretend_llcs_are_as_many_as_asked(machine in machines(), count in 0..40usize) {
        let cpus = machine.allowed().len();
        match machine.pretend_llcs(count) {
            Err(_) => prop_assert!(count == 0 || count > cpus),
            Ok(split) => {
                prop_assert_eq!(split.llcs().len(), count);
                prop_assert_eq!(split.pods(Scope::Cache).len(), count);
                prop_assert_eq!(split.allowed(), machine.allowed());
                assert_sound(&split);
            }
        }
    }

    #[test]
    fn any_string_is_a_machine_or_an_error(
        text in "((numa|l3|core|pu|pod)(:[0-9]{0,3})?[ ]?){0,5}"
    ) {
        if let Ok(machine) = Topology::from_synthetic(&text) {
            // The check is quadratic in CPUs.
            if machine.cpus().len() <= 256 { assert_sound(&machine) }
        }
    }
}

proptest! {
    // Each case writes some hundred small files.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Virtual machines and patched kernels can report anything.
    #[test]
    fn any_sysfs_is_a_sound_machine_or_an_error(
        cpus in proptest::collection::vec((0..12u32, 0..12u32, 0..12u32), 1..12),
        nodes in proptest::collection::vec(0..3u32, 12),
    ) {
        if let Ok(machine) = Machine::new(&scrambled(&cpus, &nodes)).topology() {
            assert_sound(&machine);
            prop_assert_eq!(machine.allowed().len(), cpus.len());
            prop_assert!(!machine.to_string().is_empty());
        }
    }
}

/// Lists that name each CPU and two others, without symmetry or nesting; CPUs on several nodes.
fn scrambled(cpus: &[(u32, u32, u32)], nodes: &[u32]) -> String {
    let online = CpuSet::first(u32::try_from(cpus.len()).unwrap());
    let mut text = format!("present {online}\nonline {online}\n");
    for node in 0..3 {
        let on_node = |cpu: &CpuId| nodes[cpu.index()] == node || cpu.0 == node;
        let list: CpuSet = online.iter().filter(on_node).collect();
        let list = if list.is_empty() { "-".to_owned() } else { list.to_string() };
        writeln!(text, "node {node} {list} 10 20 3").unwrap();
    }
    // A later statement about a CPU replaces an earlier one.
    for (cpu, (a, b, c)) in cpus.iter().enumerate() {
        let own = CpuId::from_index(cpu);
        let near: CpuSet = [own, CpuId(*a)].into_iter().collect();
        let far: CpuSet = [own, CpuId(*b), CpuId(*c)].into_iter().collect();
        writeln!(text, "core {near}\ncache 2 {near}\ncache 3 {far}").unwrap();
    }
    text
}

#[test]
fn thirty_six_cores_are_8_7_7_7_7() {
    let machine = Topology::from_synthetic("core:36 pu:2").unwrap();
    let sizes: Vec<usize> = machine
        .pods(Scope::CacheShard)
        .iter()
        .map(|shard| cores_in(&machine, &shard.cpus))
        .collect();
    assert_eq!(sizes, [8, 7, 7, 7, 7]);
}

/// As many parts as there can be: work that grows with their square would take minutes here.
#[test]
fn the_largest_machines_are_cut_and_shown() {
    for (text, pods) in [
        ("numa:8192", [8192, 8192, 8192, 8192, 8192, 1]),
        ("l3:4096 pu:2", [8192, 4096, 4096, 4096, 1, 1]),
        ("core:8192", [8192, 8192, 1024, 1, 1, 1]),
    ] {
        let machine = Topology::from_synthetic(text).unwrap();
        assert_eq!(Scope::ALL.map(|scope| machine.pods(scope).len()), pods, "{text}");
        let split = machine.pretend_llcs(8192).unwrap();
        assert_eq!(split.pods(Scope::Cache).len(), 8192, "{text}");
        let parts = machine.nodes().len() + machine.llcs().len() + machine.cores().len();
        assert_eq!(machine.to_string().lines().count(), 1 + parts, "{text}");
    }
}

/// What is known of a machine goes along when some of its CPUs are taken away.
#[test]
fn kinds_nodes_and_masks_survive_restrictions_and_pretend_caches() {
    let machine = Topology::from_synthetic("numa:2 l3:2 core:2+2 pu:2").unwrap();
    assert_eq!(machine.cpus().len(), 24);
    let some: CpuSet = "1,4-7,12-15,23".parse().unwrap();
    let less = machine.restricted(&some).unwrap();
    assert_eq!((less.allowed(), less.online()), (&some, machine.online()));
    assert_eq!(less.kind_of(CpuId(4)), Some(CoreKind::Efficiency));
    assert_eq!(less.pods(Scope::Smt).len(), 7, "three cores with both threads, four with one");
    // The nodes have four and three of these cores: three runs cut them elsewhere than two do.
    let [apart, mixed] = [2, 3].map(|count| less.pretend_llcs(count).unwrap());
    assert_eq!((apart.nodes().len(), mixed.nodes().len()), (2, 1));
    for split in [&apart, &mixed] {
        assert_eq!((split.allowed(), split.cpus()), (&some, machine.cpus()));
        assert_eq!(split.memory_nodes(), machine.memory_nodes());
        assert_eq!(split.kind_of(CpuId(23)), Some(CoreKind::Efficiency));
        assert_eq!(split.kind_of(CpuId(1)), Some(CoreKind::Performance));
        assert!(split.restricted(&"0".parse().unwrap()).is_err(), "it was not allowed before");
    }
}

#[test]
fn synthetic_strings() {
    let machine = Topology::from_synthetic("numa:2 l3:4 core:8 pu:2").unwrap();
    assert_eq!(machine.cpus().len(), 128);
    assert_eq!((machine.cores().len(), machine.llcs().len(), machine.nodes().len()), (64, 8, 2));
    assert_eq!(machine.distance(CpuId(0), CpuId(64)).as_u8(), 20);
    assert_eq!(Topology::from_synthetic("core:4").unwrap().llcs().len(), 1);
    assert_eq!(Topology::from_synthetic("core:8192").unwrap().cpus().len(), 8192);
}

#[test]
fn bad_synthetic_strings_name_the_part() {
    let cases = [
        ("", "names no part"),
        ("numa:2 ccx:4", "\"ccx:4\" is none of"),
        ("numa", "\"numa\" has no count"),
        ("core:0", "\"core:0\" has a count"),
        ("core:-1", "\"core:-1\" has a count"),
        ("core:+2", "\"core:+2\" has a count"),
        ("numa:+2", "\"numa:+2\" has a count"),
        ("core:8++4", "\"core:8++4\" has a count"),
        ("core:8+0", "\"core:8+0\" has a count"),
        ("core:8+4+2", "\"core:8+4+2\" has a count"),
        ("core:2 l3:4", "\"l3:4\" is repeated or out of the order"),
        ("pu:2 pu:2", "\"pu:2\" is repeated"),
        ("core:8193", "more than 8192"),
        ("numa:9999 l3:9999 core:99999 pu:99999", "more than 8192"),
    ];
    for (text, message) in cases {
        let error = Topology::from_synthetic(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text:?}: {error}");
    }
}
