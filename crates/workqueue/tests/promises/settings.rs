//! Settings of a runtime, of the environment and of the process, in a process of their own.

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use tollgate_workqueue::{
    AttributeError, BuildError, CpuSet, Queue, Runtime, SCOPE_VARIABLE, Scope, Topology,
};

use crate::process::{in_a_copy, kept, kept_with};
use crate::{LONG, until};

#[test]
fn the_environment_chooses_the_scope_and_the_program_overrides_it() {
    let test = "settings::the_environment_chooses_the_scope_and_the_program_overrides_it";
    kept_with(test, &[(SCOPE_VARIABLE, "numa")], || {
        let runtime = Runtime::builder().build().unwrap();
        assert_eq!(runtime.dump().default_scope, "numa");
        let runtime = Runtime::builder().default_scope(Scope::Cpu).build().unwrap();
        assert_eq!(runtime.dump().default_scope, "cpu");
    });
}

#[test]
fn a_scope_that_does_not_exist_is_an_error_that_names_the_variable() {
    let test = "settings::a_scope_that_does_not_exist_is_an_error_that_names_the_variable";
    kept_with(test, &[(SCOPE_VARIABLE, "socket")], || {
        let error = Runtime::builder().build().unwrap_err();
        assert!(matches!(error, BuildError::Environment { variable: SCOPE_VARIABLE, .. }));
        let text = error.to_string();
        assert!(text.contains(SCOPE_VARIABLE) && text.contains("socket"), "{text}");
        assert!(Runtime::builder().default_scope(Scope::Cpu).build().is_ok(), "not asked then");
    });
}

#[test]
fn the_default_scope_changes_while_items_are_queued() {
    kept("settings::the_default_scope_changes_while_items_are_queued", || {
        let runtime = Runtime::builder().build().unwrap();
        let chose = runtime.queue("chose").scope(Scope::Smt).build().unwrap();
        let default = runtime.queue("default").build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let mut issued = 0;
        for scope in [Scope::Cpu, Scope::System, Scope::Numa, Scope::Cache].repeat(10) {
            for queue in [&chose, &default] {
                for _ in 0..50 {
                    let runs = Arc::clone(&runs);
                    let body = move || {
                        runs.fetch_add(1, Ordering::SeqCst);
                    };
                    queue.post(body).unwrap();
                    issued += 1;
                }
            }
            runtime.set_default_scope(scope).unwrap();
            let dump = runtime.dump();
            let scopes: Vec<_> = dump.queues.iter().map(|q| q.affinity_scope.clone()).collect();
            assert_eq!(scopes, ["smt".to_owned(), format!("default ({scope})")]);
        }
        chose.flush().unwrap();
        default.flush().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), issued);
    });
}

#[test]
fn workers_keep_to_the_mask_of_the_runtime() {
    kept("settings::workers_keep_to_the_mask_of_the_runtime", || {
        let machine = Topology::current().unwrap();
        let one: CpuSet = machine.allowed().lowest().into_iter().collect();
        let runtime = Runtime::builder().cpumask(one.clone()).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let cpus = || -> CpuSet { set(&sched_getaffinity(None).unwrap()) };
        assert_eq!(queue.spawn(cpus).unwrap().wait().unwrap(), one);
        runtime.set_cpumask(None).unwrap();
        assert_eq!(queue.spawn(cpus).unwrap().wait().unwrap(), *machine.allowed());
        let nowhere = [tollgate_workqueue::CpuId(4000)].into_iter().collect();
        assert!(matches!(runtime.set_cpumask(Some(nowhere)), Err(AttributeError::Mask(_))));
        let empty = runtime.set_cpumask(Some(CpuSet::new()));
        assert!(matches!(empty, Err(AttributeError::Mask(_))));
    });
}

fn set(mask: &Mask) -> CpuSet {
    let cpus = (0..Mask::MAX_CPU).filter(|&cpu| mask.is_set(cpu));
    cpus.map(tollgate_workqueue::CpuId::from_index).collect()
}

/// Has the threads of this process use the first so many of these CPUs.
fn keep_cpus(all: &CpuSet, count: usize) {
    let mut mask = Mask::new();
    all.iter().take(count).for_each(|cpu| mask.set(cpu.index()));
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let id = task.unwrap().file_name().to_string_lossy().parse().unwrap();
        // A thread that ended meanwhile needs no mask.
        let _ = sched_setaffinity(rustix::thread::Pid::from_raw(id), &mask);
    }
}

/// The process loses a CPU and gets it back, as a cpuset does it to all threads at once.
#[test]
fn pods_are_rebuilt_when_the_process_has_other_cpus() {
    kept("settings::pods_are_rebuilt_when_the_process_has_other_cpus", || {
        let all = Topology::current().unwrap().allowed().clone();
        if all.len() < 2 {
            eprintln!("skipped: one CPU cannot be taken away");
            return;
        }
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").scope(Scope::Cpu).strict(true).build().unwrap();
        let (runs, mut issued) = (Arc::new(AtomicU32::new(0)), 0);
        let mut pods = || -> usize {
            for cpu in &all {
                let runs = Arc::clone(&runs);
                // Refused where the CPU is not the queue's at the moment.
                let body = move || {
                    runs.fetch_add(1, Ordering::SeqCst);
                };
                issued += u32::from(queue.post_on(cpu, body).is_ok());
            }
            let dump = runtime.dump();
            let pool = dump.queues[0].pool;
            dump.pools.iter().find(|p| p.number == pool).unwrap().pods.len()
        };
        assert_eq!(pods(), all.len());
        for (cpus, count) in [(1, 1), (all.len(), all.len())] {
            keep_cpus(&all, cpus);
            let start = Instant::now();
            while pods() != count {
                assert!(start.elapsed() < LONG, "the pods are not those of {cpus} CPUs");
                thread::sleep(Duration::from_millis(5));
            }
        }
        queue.flush().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), issued, "no item is lost over it");
    });
}

/// A mask that was right when it was set counts for as much as is left of it. It is no reason to refuse
/// a change of something else.
#[test]
fn attributes_change_after_a_cpu_of_the_mask_is_gone() {
    kept("settings::attributes_change_after_a_cpu_of_the_mask_is_gone", || {
        let all = Topology::current().unwrap().allowed().clone();
        if all.len() < 2 {
            eprintln!("skipped: one CPU cannot be taken away");
            return;
        }
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").cpumask(all.clone()).build().unwrap();
        queue.set("max_active=3").unwrap();
        keep_cpus(&all, 1);
        until("the pods are those of one CPU", || {
            queue.post(|| ()).unwrap();
            let dump = runtime.dump();
            let pool = dump.queues[0].pool;
            let pool = dump.pools.iter().find(|p| p.number == pool).unwrap();
            pool.pods.iter().all(|pod| pod.cpus == all.iter().next().unwrap().0.to_string())
        });
        queue.set("max_active=2").unwrap();
        queue.change(|attributes| attributes.nice = 1).unwrap();
        let now = queue.attributes();
        assert_eq!((now.max_active, now.nice), (Some(2), 1));
        assert_eq!(now.cpumask.as_ref(), Some(&all), "the CPUs may come back");
        let gone = all.iter().last().unwrap();
        let error = queue.set(&format!("cpumask={}", gone.0));
        assert!(matches!(error, Err(AttributeError::Mask(_))), "{error:?}");
        queue.flush().unwrap();
    });
}

#[test]
fn hooks_names_and_stacks_are_those_of_the_program() {
    kept("settings::hooks_names_and_stacks_are_those_of_the_program", || {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let seen = Arc::clone(&seen);
            move || seen.lock().unwrap().push(what)
        };
        let (tell, told) = mpsc::channel();
        let runtime = Runtime::builder()
            .thread_name("crypt")
            .stack_size(8 << 20)
            .on_thread_start(note("start"))
            .on_thread_stop(note("stop"))
            .on_panic(move |queue, panic| {
                tell.send((queue.to_owned(), panic.message().map(str::to_owned))).unwrap();
                panic!("a hook that panics changes nothing");
            })
            .max_workers(1)
            .build()
            .unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(queue.spawn(name).unwrap().wait().unwrap().as_deref(), Some("crypt-0.0"));
        // More than a thread has by default.
        let deep =
            || std::hint::black_box([1_u8; 3 << 20]).iter().map(|&n| u64::from(n)).sum::<u64>();
        assert_eq!(queue.spawn(deep).unwrap().wait().unwrap(), 3_u64 << 20);
        queue.post(|| panic!("posted")).unwrap();
        let item = queue.item(|| panic!("item"));
        item.queue().unwrap();
        assert!(queue.spawn(|| panic!("spawned")).unwrap().wait().is_err());
        queue.flush().unwrap();
        let told: Vec<_> = told.try_iter().map(|(queue, text)| (queue, text.unwrap())).collect();
        let expected = ["posted", "item"].map(|text| ("q".to_owned(), text.to_owned()));
        assert_eq!(told, expected, "who has a handle is told by that");
        drop((item, queue, runtime));
        assert_eq!(*seen.lock().unwrap(), ["start", "stop"]);
    });
}

#[test]
fn a_shutdown_gives_up_when_its_time_is_over() {
    kept("settings::a_shutdown_gives_up_when_its_time_is_over", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let (open, closed) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        queue.post(move || closed.recv().unwrap_or(())).unwrap();
        let start = Instant::now();
        assert!(!runtime.shutdown_timeout(Duration::from_millis(50)));
        assert!(start.elapsed() >= Duration::from_millis(50));
        assert!(queue.post(move || tell.send(()).unwrap()).is_err());
        drop(runtime);
        drop(open);
        until("the end of what ran", || queue.in_flight() == 0);
        assert!(told.recv().is_err(), "what was refused is dropped");

        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        for _ in 0..1000 {
            let runs = Arc::clone(&runs);
            let body = move || {
                runs.fetch_add(1, Ordering::SeqCst);
            };
            queue.post(body).unwrap();
        }
        assert!(runtime.shutdown_timeout(LONG));
        assert_eq!(runs.load(Ordering::SeqCst), 1000);
    });
}

#[test]
fn the_global_runtime_is_configured_once_and_before_its_use() {
    kept("settings::the_global_runtime_is_configured_once_and_before_its_use", || {
        let configure = tollgate_workqueue::configure_global;
        configure(Runtime::builder().thread_name("mine")).unwrap();
        let again = configure(Runtime::builder());
        assert!(matches!(again, Err(BuildError::GlobalExists)));
        let name = || thread::current().name().map(str::to_owned);
        let name = tollgate_workqueue::spawn(name).unwrap().wait().unwrap().unwrap();
        assert!(name.starts_with("mine-"), "{name}");
        assert_eq!(tollgate_workqueue::global_queue().name(), "default");
        assert_eq!(tollgate_workqueue::global_runtime().dump().queues.len(), 1);
        // Inside an item of another runtime, the free functions stay there.
        let other = Runtime::builder().thread_name("other").max_workers(1).build().unwrap();
        let queue = other.queue("q").build().unwrap();
        let names = || {
            let name = || thread::current().name().unwrap().to_owned();
            tollgate_workqueue::join(name, name)
        };
        let (a, b) = queue.spawn(names).unwrap().wait().unwrap();
        assert!(a.starts_with("other-") && b.starts_with("other-"), "{a} {b}");
    });
}

/// Only the thread that forks is copied: whoever uses the runtime of before is told, rather than
/// waiting for workers that do not exist.
#[test]
fn a_forked_process_is_told_that_it_has_no_workers() {
    kept("settings::a_forked_process_is_told_that_it_has_no_workers", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        queue.spawn(|| ()).unwrap().wait().unwrap();
        let status = in_a_copy(|| {
            let panics = |body: &dyn Fn()| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err()
            };
            let told = panics(&|| drop(queue.post(|| ())))
                && panics(&|| drop(queue.spawn(|| ())))
                && panics(&|| drop(queue.flush()))
                && queue.join(|| 1, || 2) == (1, 2);
            let new = Runtime::builder().build().unwrap();
            let works = new.queue("q").build().unwrap().spawn(|| 5).unwrap().wait().unwrap() == 5;
            drop((runtime, queue));
            i32::from(!(told && works))
        });
        assert_eq!(status, 0, "the child's wait status");
    });
}

/// The nice level of this thread.
#[expect(unsafe_code, reason = "getpriority(2)")]
fn nice_level() -> i32 {
    // SAFETY: no pointers; `who` 0 is the calling thread on Linux.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// From now on this thread, and those that it starts, may not lower a nice level.
fn give_up_privileges() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nice).maximum;
    setrlimit(Resource::Nice, Rlimit { current: Some(0), maximum }).unwrap();
    if rustix::process::geteuid().is_root() {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
}

/// A thread begins at the level of whoever starts it. Without privileges, a worker that is started
/// for an item of a nicer one could not come back from there.
#[test]
fn workers_have_the_level_of_their_pool_whoever_has_them_started() {
    kept("settings::workers_have_the_level_of_their_pool_whoever_has_them_started", || {
        give_up_privileges();
        let base = nice_level();
        if !(0..10).contains(&base) {
            eprintln!("skipped: the test runs at nice {base}, and needs a level from 0 to 9");
            return;
        }
        let runtime = Runtime::builder().build().unwrap();
        let nicer = runtime.queue("nicer").nice(base + 5).build().unwrap();
        let nice = runtime.queue("nice").nice(base + 2).build().unwrap();
        let usual = runtime.queue("usual").build().unwrap();
        let high = runtime.queue("high").high_priority().build().unwrap();
        let level = move |queue: &Queue| queue.spawn(nice_level).unwrap();
        let levels = nicer.spawn(move || {
            let [usual, nice, high] = [&usual, &nice, &high].map(level);
            (nice_level(), usual.wait().unwrap(), nice.wait().unwrap(), high.wait().unwrap())
        });
        let (nicer, usual, nice, high) = levels.unwrap().wait().unwrap();
        assert_eq!((nicer, usual, nice), (base + 5, base, base + 2));
        // What the system refuses, they do without.
        assert!(high <= base, "{high}");
    });
}

/// Where the one that was meant is dropped meanwhile, and another one has its memory.
#[test]
fn a_change_of_all_queues_leaves_a_later_queue_as_it_was_built() {
    kept("settings::a_change_of_all_queues_leaves_a_later_queue_as_it_was_built", || {
        let runtime = Runtime::builder().build().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for scope in [Scope::Cpu, Scope::Cache].into_iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    runtime.set_default_scope(scope).unwrap();
                }
            });
            let begun = Instant::now();
            let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| {
                for turn in 0.. {
                    if begun.elapsed() > Duration::from_secs(2) {
                        return;
                    }
                    drop(runtime.queue("first").build().unwrap());
                    let queue = runtime.queue("second").max_active(1).nice(turn % 8).build();
                    let queue = queue.unwrap();
                    thread::sleep(Duration::from_micros(200));
                    let now = queue.attributes();
                    assert_eq!((now.max_active, now.nice), (Some(1), turn % 8), "turn {turn}");
                }
            }));
            is_over.store(true, Ordering::Relaxed);
            outcome.unwrap_or_else(|panic| panic::resume_unwind(panic));
        });
    });
}
