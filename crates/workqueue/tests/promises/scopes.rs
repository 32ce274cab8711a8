//! Where items run, together with limits.

use rustix::thread::sched_getcpu;
use tollgate_workqueue::{CpuId, CpuSet, Queue, Runtime, Scope};

use crate::process::kept;
use crate::two_caches;

#[test]
fn a_limit_does_not_lead_items_out_of_a_strict_scope() {
    kept("scopes::a_limit_does_not_lead_items_out_of_a_strict_scope", || {
        strays(|runtime| {
            runtime.queue("q").scope(Scope::Cache).strict(true).max_active(1).build().unwrap()
        });
    });
}

#[test]
fn order_does_not_lead_items_out_of_a_strict_scope() {
    kept("scopes::order_does_not_lead_items_out_of_a_strict_scope", || {
        strays(|runtime| {
            runtime.queue("q").scope(Scope::Cache).strict(true).ordered().build().unwrap()
        });
    });
}

#[test]
fn a_rescuer_in_reserve_does_not_lead_items_out_of_a_strict_scope() {
    kept("scopes::a_rescuer_in_reserve_does_not_lead_items_out_of_a_strict_scope", || {
        strays(|runtime| {
            runtime.queue("q").scope(Scope::Cache).strict(true).rescuer().build().unwrap()
        });
    });
}

/// Issues items for both caches in turn: each must run in its own.
fn strays(build: impl FnOnce(&Runtime) -> Queue) {
    let Some(machine) = two_caches() else { return };
    let runtime = Runtime::builder()
        .topology(machine.clone())
        // A rescuer that comes to help may run an item anywhere.
        .mayday_after(std::time::Duration::from_secs(3600))
        .build()
        .unwrap();
    let queue = build(&runtime);
    let pods: Vec<CpuSet> = machine.pods(Scope::Cache).iter().map(|pod| pod.cpus.clone()).collect();
    let mut handles = Vec::new();
    for turn in 0..200 {
        let pod = &pods[turn % 2];
        let here = || CpuId::from_index(sched_getcpu());
        handles.push((pod, queue.spawn_on(pod.lowest().unwrap(), here).unwrap()));
    }
    let outside = |(pod, handle): (&CpuSet, tollgate_workqueue::Handle<CpuId>)| {
        usize::from(!pod.contains(handle.wait().unwrap()))
    };
    let strays: usize = handles.into_iter().map(outside).sum();
    assert_eq!(strays, 0, "of 200 items, so many ran outside their scope");
}
