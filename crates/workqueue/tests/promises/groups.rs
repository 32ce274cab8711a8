//! Control groups of the machine: a quota of CPU time, and a set of CPUs that changes.
//!
//! Needs leave to make groups beneath the test's own, which root has where the hierarchies are
//! mounted and, with version 2, the controller is handed down. Elsewhere each test says why it is
//! skipped.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tollgate_workqueue::{Runtime, Scope, Topology};

use crate::process::{in_child, kept_with};
use crate::{LONG, until};

/// Where the child finds its group.
const GROUP: &str = "TOLLGATE_PROMISE_GROUP";

/// A control group, removed when dropped.
struct Group {
    path: PathBuf,
    /// Of version 2, whose files have other names.
    unified: bool,
}

impl Group {
    /// A new one beneath the process's own, or why there is none.
    fn new(controller: &str, name: &str) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let (parent, unified) = parent(&own, controller)
            .ok_or_else(|| format!("no hierarchy hands down the controller {controller}"))?;
        let path = parent.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path, unified })
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value)
    }

    /// Limits the group to one CPU's worth of time.
    fn limit_to_one_cpu(&self) -> io::Result<()> {
        if self.unified {
            return self.set("cpu.max", "20000 20000");
        }
        self.set("cpu.cfs_period_us", "20000")?;
        self.set("cpu.cfs_quota_us", "20000")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What ran inside may take a moment to be gone.
        let start = Instant::now();
        while fs::remove_dir(&self.path).is_err() && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The group to make others in, and whether it is of version 2.
fn parent(own: &str, controller: &str) -> Option<(PathBuf, bool)> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        if controllers.is_empty() {
            let root = Path::new("/sys/fs/cgroup");
            let path = root.join(path);
            let hands_down = |group: &&Path| {
                let down = fs::read_to_string(group.join("cgroup.subtree_control"));
                down.is_ok_and(|down| down.split_whitespace().any(|one| one == controller))
            };
            let mut above = path.ancestors().take_while(|group| group.starts_with(root));
            return above.find(hands_down).map(|group| (group.to_owned(), true));
        }
        let mount = Path::new("/sys/fs/cgroup").join(controllers);
        let group = mount.join(path);
        let group = if group.is_dir() { group } else { mount };
        let has = controllers.split(',').any(|one| one == controller);
        has.then_some((group, false)).filter(|(group, _)| group.is_dir())
    })
}

/// As [`kept_with`], in a child that belongs to a new group which `prepare` has set.
fn kept_in_group(
    test: &str,
    controller: &str,
    prepare: impl FnOnce(&Group) -> io::Result<()>,
    body: impl FnOnce(&Path),
) {
    if in_child(test) {
        let group = PathBuf::from(std::env::var_os(GROUP).unwrap());
        // All threads of this process.
        let joined = fs::write(group.join("cgroup.procs"), std::process::id().to_string());
        return match joined {
            Ok(()) => body(&group),
            Err(error) => eprintln!("skipped: {} cannot be joined: {error}", group.display()),
        };
    }
    let group = match Group::new(controller, "tollgate-promise") {
        Ok(group) => group,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    if let Err(error) = prepare(&group) {
        return eprintln!("skipped: {}: {error}", group.path.display());
    }
    let path: OsString = group.path.clone().into();
    kept_with(test, &[(GROUP, path.to_str().unwrap())], || unreachable!("this is no child"));
}

#[test]
fn no_more_items_compute_at_once_than_the_quota_of_the_group_has_cpus() {
    let test = "groups::no_more_items_compute_at_once_than_the_quota_of_the_group_has_cpus";
    if Topology::current().unwrap().allowed().len() < 2 {
        return eprintln!("skipped: one CPU computes one item at once anyway");
    }
    kept_in_group(test, "cpu", Group::limit_to_one_cpu, |_| {
        // Without the quota, which the program may overrule, several do.
        let free = Runtime::builder().concurrency(2).build().unwrap();
        until("two items at once", || most_at_once(&free) > 1);
        // A CPU that the hypervisor took away counts as used: an item of a moment may seem to have
        // computed for so long that another one may run beside it.
        let bound = Runtime::builder().cpu_intensive_after(LONG).build().unwrap();
        for _ in 0..20 {
            assert_eq!(most_at_once(&bound), 1, "the quota leaves one CPU");
        }
    });
}

/// The most of 200 short items that were seen to run at once.
fn most_at_once(runtime: &Runtime) -> u32 {
    let queue = runtime.queue("q").scope(Scope::System).build().unwrap();
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    for _ in 0..200 {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        let body = move || {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::hint::black_box((0..20_000).sum::<u64>());
            now.fetch_sub(1, Ordering::SeqCst);
        };
        queue.post(body).unwrap();
    }
    queue.flush().unwrap();
    most.load(Ordering::SeqCst)
}

#[test]
fn pods_follow_the_cpu_set_of_the_group() {
    let test = "groups::pods_follow_the_cpu_set_of_the_group";
    let machine = Topology::current().unwrap();
    let all = machine.allowed().clone();
    if all.len() < 2 {
        return eprintln!("skipped: one CPU cannot be taken away");
    }
    let every = all.to_string();
    let prepare = |group: &Group| {
        if !group.unified {
            // A group of version 1 begins without memory nodes, and takes nobody in.
            let parent = group.path.parent().unwrap_or(Path::new("/"));
            group.set("cpuset.mems", fs::read_to_string(parent.join("cpuset.mems"))?.trim())?;
        }
        group.set("cpuset.cpus", &every)
    };
    kept_in_group(test, "cpuset", prepare, |group| {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").scope(Scope::Cpu).strict(true).build().unwrap();
        let (runs, issued) = (Arc::new(AtomicU32::new(0)), AtomicU32::new(0));
        let pods = || {
            // There is work: nothing is looked at without.
            let runs = Arc::clone(&runs);
            let body = move || {
                runs.fetch_add(1, Ordering::SeqCst);
            };
            queue.post(body).unwrap();
            issued.fetch_add(1, Ordering::SeqCst);
            let dump = runtime.dump();
            let pool = dump.queues[0].pool;
            dump.pools.iter().find(|p| p.number == pool).unwrap().pods.len()
        };
        assert_eq!(pods(), all.len());
        let one = all.lowest().unwrap().to_string();
        for (cpus, count) in [(one.as_str(), 1), (every.as_str(), all.len())] {
            fs::write(group.join("cpuset.cpus"), cpus).unwrap();
            until(&format!("the pods of CPUs {cpus}"), || pods() == count);
        }
        queue.flush().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), issued.into_inner(), "no item is lost over it");
    });
}
