//! What the machine says about keeping CPUs awake: read from /sys and /proc, below roots that tests
//! replace.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/sys`
    pub sys: PathBuf,
    /// `/proc`
    pub proc: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// A limit of CPU time that a control group has: what pollers use, its processes lack.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuQuota {
    /// The file that holds it.
    pub file: PathBuf,
    /// CPUs' worth of time.
    pub cpus: f64,
}

/// CPU time of the whole machine, in ticks, from `/proc/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTimes {
    pub(crate) total: u64,
    pub(crate) steal: u64,
    /// In the idle loop, also while that waits for a disk.
    pub(crate) idle: u64,
}

impl CpuTimes {
    /// Of 1,000 parts of the time since `before`, those in which the host ran something else.
    pub(crate) fn steal_permille_since(self, before: Self) -> u64 {
        self.permille_since(before, self.steal.saturating_sub(before.steal)).unwrap_or(0)
    }

    /// The same of those in which a CPU had nothing to do; `None` if no time has passed.
    pub(crate) fn idle_permille_since(self, before: Self) -> Option<u64> {
        self.permille_since(before, self.idle.saturating_sub(before.idle))
    }

    fn permille_since(self, before: Self, part: u64) -> Option<u64> {
        (part * 1_000).checked_div(self.total.saturating_sub(before.total))
    }
}

/// The CPU that thread `tid` ran on last, where `/proc` shows that thread. About 10 us.
#[must_use]
pub fn cpu_of_thread(tid: u32) -> Option<usize> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let path = format!("/proc/{tid}/stat");
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
    let mut stat = [0; 1024];
    let len = rustix::io::read(file, &mut stat).ok()?;
    parse_cpu(&stat[..len]).map(usize::from)
}

/// Field 39 of `/proc/TID/stat`. The second field is a name in parentheses that may hold anything,
/// so fields are counted from the last one closed.
fn parse_cpu(stat: &[u8]) -> Option<u16> {
    const FIELDS_AFTER_NAME: usize = 39 - 2;
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(FIELDS_AFTER_NAME - 1)?.parse().ok()
}

impl Roots {
    /// Whether a battery is being drained. One in a mouse or keyboard does not count.
    pub(crate) fn on_battery(&self) -> bool {
        let Ok(supplies) = fs::read_dir(self.sys.join("class/power_supply")) else { return false };
        supplies.flatten().any(|supply| {
            let is = |file: &str, value: &str| word(&supply.path().join(file)) == value;
            is("type", "Battery") && !is("scope", "Device") && is("status", "Discharging")
        })
    }

    /// The smallest quota below `cpus` CPUs in the process's control groups and all above them.
    ///
    /// In a container the groups above its own are out of sight; the file in the root that it sees
    /// is its own.
    pub(crate) fn cpu_quota(&self, cpus: usize) -> Option<CpuQuota> {
        let groups = fs::read_to_string(self.proc.join("self/cgroup")).ok()?;
        let mut quotas: Vec<CpuQuota> =
            groups.lines().filter_map(hierarchy).flat_map(|h| self.quotas(h)).collect();
        quotas.retain(|quota| quota.cpus < cpus as f64);
        quotas.into_iter().min_by(|a, b| a.cpus.total_cmp(&b.cpus))
    }

    fn quotas(&self, (hierarchy, group): (Hierarchy, &Path)) -> Vec<CpuQuota> {
        let base = self.sys.join("fs/cgroup");
        let mounts: &[&str] = match hierarchy {
            Hierarchy::Unified => &["", "unified"],
            Hierarchy::Cpu => &["cpu,cpuacct", "cpu"],
        };
        let levels = mounts.iter().flat_map(|mount| {
            let mount = base.join(mount);
            group.ancestors().map(move |level| mount.join(level)).collect::<Vec<_>>()
        });
        levels.filter_map(|level| quota_of(hierarchy, &level)).collect()
    }

    /// The driver and governor of idle CPUs, as `driver/governor`; `None` without cpuidle: then
    /// idle CPUs halt whatever latency is requested.
    pub(crate) fn idle_driver(&self) -> Option<String> {
        let idle = self.sys.join("devices/system/cpu/cpuidle");
        let driver = word(&idle.join("current_driver"));
        let governor = ["current_governor", "current_governor_ro"]
            .map(|file| word(&idle.join(file)))
            .into_iter()
            .find(|name| !name.is_empty());
        let none = driver.is_empty() || driver == "none";
        (!none).then(|| format!("{driver}/{}", governor.unwrap_or_default()))
    }

    /// Whether the idle loop has a state in which it polls.
    pub(crate) fn idle_can_poll(&self) -> bool {
        let state = self.sys.join("devices/system/cpu/cpu0/cpuidle/state0");
        self.idle_driver().is_some() && matches!(&*word(&state.join("name")), "POLL" | "poll")
    }

    /// The CPU that thread `tid` ran on last.
    pub(crate) fn cpu_of(&self, tid: u32) -> Option<u16> {
        parse_cpu(&fs::read(self.proc.join(format!("{tid}/stat"))).ok()?)
    }

    /// SMT siblings of `cpu`, itself among them.
    pub(crate) fn siblings(&self, cpu: u16) -> Vec<u16> {
        let topology = self.sys.join(format!("devices/system/cpu/cpu{cpu}/topology"));
        let list = ["core_cpus_list", "thread_siblings_list"]
            .map(|file| word(&topology.join(file)))
            .into_iter()
            .find(|list| !list.is_empty());
        cpu_list(&list.unwrap_or_default())
    }

    /// CPUs that are online.
    pub(crate) fn online_cpus(&self) -> usize {
        cpu_list(&word(&self.sys.join("devices/system/cpu/online"))).len()
    }

    pub(crate) fn cpu_times(&self) -> Option<CpuTimes> {
        let stat = fs::read_to_string(self.proc.join("stat")).ok()?;
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user nice system idle iowait irq softirq steal; guest times are part of user and nice.
        let fields: Vec<u64> =
            line.split_ascii_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
        let steal = *fields.get(7)?;
        Some(CpuTimes { total: fields.iter().sum(), steal, idle: fields[3] + fields[4] })
    }

    /// The machine's load at this moment; see [`Runnable`](crate::occupancy::Runnable).
    pub(crate) fn loadavg(&self) -> io::Result<File> {
        File::open(self.proc.join("loadavg"))
    }
}

/// A file's text without the end of its line; empty if it cannot be read.
fn word(file: &Path) -> String {
    fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// As in `0-3,8`; what is no number is left out.
fn cpu_list(list: &str) -> Vec<u16> {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    ranges.flatten().collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// Version 2.
    Unified,
    /// Version 1, with the controller `cpu`.
    Cpu,
}

/// A line of `/proc/self/cgroup`: `number:controllers:path`, the path without its first slash.
fn hierarchy(line: &str) -> Option<(Hierarchy, &Path)> {
    let mut fields = line.splitn(3, ':');
    let (_number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let hierarchy = match controllers {
        "" => Hierarchy::Unified,
        list if list.split(',').any(|name| name == "cpu") => Hierarchy::Cpu,
        _ => return None,
    };
    Some((hierarchy, Path::new(path.trim_start_matches('/'))))
}

fn quota_of(hierarchy: Hierarchy, level: &Path) -> Option<CpuQuota> {
    let (file, quota, period) = match hierarchy {
        Hierarchy::Unified => {
            // `max 100000`, or `50000 100000`.
            let file = level.join("cpu.max");
            let text = word(&file);
            let (quota, period) = text.split_once(' ')?;
            (file, quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
        }
        Hierarchy::Cpu => {
            // -1: none.
            let file = level.join("cpu.cfs_quota_us");
            let (quota, period) = (word(&file), word(&level.join("cpu.cfs_period_us")));
            (file, quota.parse().ok()?, period.parse().ok()?)
        }
    };
    (quota > 0.0 && period > 0.0).then(|| CpuQuota { file, cpus: quota / period })
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use tempfile::TempDir;

    struct Tree(TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let tree = Self(TempDir::new().unwrap());
            files.iter().for_each(|(name, text)| tree.write(name, text));
            tree
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn roots(&self) -> Roots {
            let under = |name| self.0.path().join(name);
            Roots { sys: under("sys"), proc: under("proc"), dev: under("dev") }
        }
    }

    #[test]
    fn a_battery_counts_while_it_drains_and_not_in_a_mouse() {
        let supply = "sys/class/power_supply";
        let tree = Tree::new(&[(&format!("{supply}/AC/type"), "Mains\n")]);
        assert!(!tree.roots().on_battery());
        tree.write(&format!("{supply}/hid/type"), "Battery\n");
        tree.write(&format!("{supply}/hid/scope"), "Device\n");
        tree.write(&format!("{supply}/hid/status"), "Discharging\n");
        assert!(!tree.roots().on_battery());
        tree.write(&format!("{supply}/BAT0/type"), "Battery\n");
        tree.write(&format!("{supply}/BAT0/status"), "Charging\n");
        assert!(!tree.roots().on_battery());
        tree.write(&format!("{supply}/BAT0/status"), "Discharging\n");
        assert!(tree.roots().on_battery());
        assert!(!Tree::new(&[]).roots().on_battery());
    }

    #[test]
    fn a_quota_is_found_at_every_level_and_the_smallest_counts() {
        let cgroup = "sys/fs/cgroup";
        let tree = Tree::new(&[("proc/self/cgroup", "0::/a.slice/b.service\n")]);
        assert_eq!(tree.roots().cpu_quota(4), None);
        tree.write(&format!("{cgroup}/a.slice/b.service/cpu.max"), "max 100000\n");
        assert_eq!(tree.roots().cpu_quota(4), None);
        tree.write(&format!("{cgroup}/a.slice/cpu.max"), "150000 100000\n");
        let quota = tree.roots().cpu_quota(4).unwrap();
        assert_eq!(quota.cpus, 1.5);
        assert!(quota.file.ends_with("a.slice/cpu.max"));
        // What the machine has anyway is no limit.
        assert_eq!(tree.roots().cpu_quota(1), None);
        tree.write(&format!("{cgroup}/cpu.max"), "50000 100000\n");
        assert_eq!(tree.roots().cpu_quota(4).unwrap().cpus, 0.5);
    }

    #[test]
    fn a_quota_of_version_1_counts_and_other_controllers_do_not() {
        let lines = "9:name=systemd:/x\n3:cpuset:/x\n1:cpu,cpuacct:/box\n0::/\n";
        let tree = Tree::new(&[
            ("proc/self/cgroup", lines),
            ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(tree.roots().cpu_quota(2), None);
        tree.write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "100000\n");
        assert_eq!(tree.roots().cpu_quota(2).unwrap().cpus, 1.0);
    }

    #[test]
    fn the_idle_loop_can_poll_only_with_a_driver_that_has_the_state() {
        let cpu = "sys/devices/system/cpu";
        let tree = Tree::new(&[(&format!("{cpu}/cpuidle/current_driver"), "none\n")]);
        tree.write(&format!("{cpu}/cpu0/cpuidle/state0/name"), "POLL\n");
        assert_eq!(tree.roots().idle_driver(), None);
        assert!(!tree.roots().idle_can_poll());
        tree.write(&format!("{cpu}/cpuidle/current_driver"), "haltpoll\n");
        tree.write(&format!("{cpu}/cpuidle/current_governor"), "haltpoll\n");
        assert_eq!(tree.roots().idle_driver().as_deref(), Some("haltpoll/haltpoll"));
        assert!(tree.roots().idle_can_poll());
        tree.write(&format!("{cpu}/cpu0/cpuidle/state0/name"), "C1\n");
        assert!(!tree.roots().idle_can_poll());
    }

    #[test]
    fn stolen_and_idle_time_are_shares_of_all_time() {
        let tree = Tree::new(&[("proc/stat", "cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 2\n")]);
        let first = tree.roots().cpu_times().unwrap();
        assert_eq!(first, CpuTimes { total: 100, steal: 10, idle: 70 });
        tree.write("proc/stat", "cpu  10 0 10 160 0 0 0 20 5 0\n");
        let then = tree.roots().cpu_times().unwrap();
        assert_eq!(then.steal_permille_since(first), 100);
        assert_eq!(then.idle_permille_since(first), Some(900));
        assert_eq!(
            (first.steal_permille_since(first), first.idle_permille_since(first)),
            (0, None)
        );
        tree.write("proc/stat", "cpu  10 0\n");
        assert_eq!(tree.roots().cpu_times(), None);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        let cpu = "sys/devices/system/cpu";
        let tree = Tree::new(&[
            (&format!("{cpu}/online"), "0-2,5\n"),
            (&format!("{cpu}/cpu2/topology/thread_siblings_list"), "2,66\n"),
        ]);
        assert_eq!(tree.roots().online_cpus(), 4);
        assert_eq!(tree.roots().siblings(2), [2, 66]);
        assert_eq!(tree.roots().siblings(3), [] as [u16; 0]);
    }

    #[test]
    fn the_cpu_of_a_thread_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        let tree = Tree::new(&[("proc/7/stat", &format!("7 (a) b (c 1) {}\n", fields.join(" ")))]);
        assert_eq!(tree.roots().cpu_of(7), Some(39));
        assert_eq!(tree.roots().cpu_of(8), None);
        tree.write("proc/8/stat", "8 (x) S 1 2\n");
        assert_eq!(tree.roots().cpu_of(8), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        let roots = Roots::default();
        assert!(roots.online_cpus() >= 1);
        assert!(roots.cpu_times().unwrap().total > 0);
        let _ = (roots.on_battery(), roots.cpu_quota(64), roots.idle_can_poll());
    }
}
