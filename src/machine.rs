//! `tollgate topology` and `tollgate hugepage tune`: what this machine is like.

use serde_json::{Value, json};
use tollgate_hugepage::tune::{self, Origin, TuneOptions, Tuning};
use tollgate_topology::{CpuId, Pods, Topology};

use crate::cli::{TopologyArgs, TuneArgs};

/// Prints CPUs, caches and nodes as a tree, and the pods of a scope.
///
/// # Errors
/// When the description is wrong, or the machine cannot be read.
pub(crate) fn topology(args: &TopologyArgs) -> anyhow::Result<()> {
    let topology = match &args.synthetic {
        Some(description) => Topology::from_synthetic(description)?,
        None => Topology::current()?,
    };
    let pods = args.scope.map(|scope| topology.pods(scope));
    if args.json {
        let value = topology_json(&topology, pods.as_ref());
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    print!("{topology}");
    if let Some(pods) = pods {
        println!("scope {} has {}:", pods.scope(), count(pods.len(), "pod"));
        pods.iter().for_each(|pod| println!("  pod {}: CPUs {}", pod.id, pod.cpus));
    }
    Ok(())
}

fn count(number: usize, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}

fn topology_json(topology: &Topology, pods: Option<&Pods>) -> Value {
    let cpu = |cpu: CpuId| {
        json!({
            "cpu": cpu.0,
            "online": topology.online().contains(cpu),
            "allowed": topology.allowed().contains(cpu),
            "core": topology.core_of(cpu).map(|core| core.0),
            "llc": topology.llc_of(cpu).map(|llc| llc.0),
            "node": topology.node_of(cpu).map(|node| node.0),
        })
    };
    let pod = |pod: &tollgate_topology::Pod| {
        json!({
            "pod": pod.id.0,
            "cpus": pod.cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>(),
            "llc": pod.llc.map(|llc| llc.0),
            "node": pod.node.map(|node| node.0),
        })
    };
    json!({
        "source": topology.source().to_string(),
        "cpus": topology.cpus().iter().map(cpu).collect::<Vec<_>>(),
        "scope": pods.map(|pods| pods.scope().to_string()),
        "pods": pods.map(|pods| pods.iter().map(pod).collect::<Vec<_>>()),
    })
}

/// Measures the ways to clear and copy memory and prints samples and choice.
///
/// # Errors
/// When a row of the plan is wrong, or there is no memory to measure on.
pub(crate) fn tune(args: &TuneArgs) -> anyhow::Result<()> {
    let standard = TuneOptions::standard();
    let options = TuneOptions {
        rounds: args.rounds.into(),
        overrides: args.plan.clone().or(standard.overrides),
        ..TuneOptions::uncached()
    };
    let tuning = tune::explain(&options)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&tuning_json(&tuning))?);
    } else {
        println!("{}", tuning.to_string().trim_end());
    }
    Ok(())
}

fn tuning_json(tuning: &Tuning) -> Value {
    let sample = |sample: &tune::Sample| {
        json!({
            "row": sample.row,
            "engine": sample.engine,
            "bytes": sample.bytes,
            "median_ns": sample.median_ns,
            "min_ns": sample.min_ns,
            "max_ns": sample.max_ns,
            "chosen": sample.chosen,
        })
    };
    let origin = match &tuning.origin {
        Origin::Measured => "measured".to_owned(),
        Origin::Cached(file) => file.to_string_lossy().into_owned(),
    };
    json!({
        "origin": origin,
        "plan": tuning.plan.to_string(),
        "working_set_bytes": tuning.working_set_bytes,
        "elapsed_ms": u64::try_from(tuning.elapsed.as_millis()).unwrap_or(u64::MAX),
        "notes": tuning.notes,
        "samples": tuning.samples.iter().map(sample).collect::<Vec<_>>(),
    })
}
