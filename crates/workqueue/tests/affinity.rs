//! Where workers run: strict, soft and localized. Needs two CPUs; says so where there is one.

#![cfg(not(miri))]

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tollgate_workqueue::{CpuId, Runtime, Scope, Topology};

const LONG: Duration = Duration::from_secs(60);

/// The machine with each half of its CPUs taken for a last-level cache.
fn two_caches() -> Option<Topology> {
    let machine = Topology::current().unwrap();
    if machine.allowed().len() < 2 {
        eprintln!("skipped: one CPU has no other one to be brought back from");
        return None;
    }
    Some(machine.pretend_llcs(2).unwrap())
}

fn here() -> CpuId {
    CpuId::from_index(sched_getcpu())
}

/// Moves this thread to a CPU, where it stays until somebody moves it on.
fn go_to(cpu: CpuId) {
    let mut mask = Mask::new();
    mask.set(cpu.index());
    sched_setaffinity(None, &mask).unwrap();
}

#[test]
fn strict_workers_cannot_leave_their_pod() {
    let Some(machine) = two_caches() else { return };
    let runtime = Runtime::builder().topology(machine.clone()).build().unwrap();
    let strict = runtime.queue("strict").scope(Scope::Cache).strict(true).build().unwrap();
    for pod in &machine.pods(Scope::Cache) {
        let cpu = pod.cpus.lowest().unwrap();
        let allowed = strict.spawn_on(cpu, || sched_getaffinity(None).unwrap()).unwrap().wait();
        let allowed = allowed.unwrap();
        let allowed: Vec<_> = (0..Mask::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        assert_eq!(allowed, pod.cpus.iter().map(CpuId::index).collect::<Vec<_>>());
    }
    assert_eq!(runtime.monitor().queues[0].repatriated, 0);
}

/// Items drive their worker off to a CPU outside its pod, to stay there; the runtime brings it back
/// and gives it all its CPUs again. The pods are single CPUs or caches, so wherever an item runs,
/// every CPU of the other half is outside.
#[test]
fn soft_workers_are_brought_back() {
    let Some(machine) = two_caches() else { return };
    let runtime = Runtime::builder().topology(machine.clone()).build().unwrap();
    let soft = runtime.queue("soft").scope(Scope::Cache).build().unwrap();
    let pods = machine.pods(Scope::Cache);
    let outside = |pod: usize| pods.iter().nth(1 - pod).unwrap().cpus.lowest().unwrap();
    let all = machine.allowed().len();
    let (start, mut freed) = (Instant::now(), 0_u32);
    while runtime.monitor().queues[0].repatriated < 5 || freed < 5 {
        assert!(start.elapsed() < LONG, "{:?}, freed {freed}", runtime.monitor().queues[0]);
        for pod in 0..2 {
            let home = pods.iter().nth(pod).unwrap().cpus.lowest().unwrap();
            // Whose worker takes it, nobody knows; so both pods' workers are driven both ways.
            soft.spawn_on(home, {
                let there = outside(pod);
                move || go_to(there)
            })
            .unwrap()
            .wait()
            .unwrap();
            // More than the 32 items between two looks.
            let cpus = (0..40).map(|_| {
                soft.spawn_on(home, || sched_getaffinity(None).unwrap().count() as usize).unwrap()
            });
            let cpus: Vec<_> =
                cpus.collect::<Vec<_>>().into_iter().map(|cpus| cpus.wait().unwrap()).collect();
            freed += u32::from(cpus.last() == Some(&all));
        }
    }
}

/// Items start on the CPU that issued them, though the worker slept on another one.
#[test]
fn localized_workers_go_to_the_issuer() {
    let Some(machine) = two_caches() else { return };
    let runtime = Runtime::builder().build().unwrap();
    let local = runtime.queue("local").localize(true).build().unwrap();
    let cpus: Vec<_> = machine.allowed().iter().collect();
    let (mut right, mut rounds) = (0, 0);
    while rounds < 200 || runtime.monitor().queues[0].repatriated == 0 {
        let issuer = cpus[rounds % cpus.len()];
        right += u32::from(local.spawn_on(issuer, here).unwrap().wait().unwrap() == issuer);
        rounds += 1;
        assert!(rounds < 20_000, "no worker was ever moved");
    }
    // The system may move the thread on between its arrival and its look, but it seldom does.
    assert!(right as usize * 2 > rounds, "{right} of {rounds} started where they were issued");
}
