//! How much of the CPUs the process's control group may use.

use std::fs;
use std::path::{Path, PathBuf};

/// CPUs' worth of time that the groups of this process leave it: the least `quota / period` of its
/// own group and those above. `None` when nothing is limited, or nothing can be read.
pub(crate) fn quota_cpus() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    quota_of(&groups, Path::new("/sys/fs/cgroup"))
}

/// As [`quota_cpus`], with the contents of `/proc/self/cgroup` and where groups are mounted.
fn quota_of(groups: &str, root: &Path) -> Option<f64> {
    groups.lines().filter_map(|line| quota_of_line(line, root)).reduce(f64::min)
}

fn quota_of_line(line: &str, root: &Path) -> Option<f64> {
    // `NUMBER:CONTROLLERS:PATH`; version 2 has number 0 and no controllers.
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
    if controllers.is_empty() {
        return least(root, path, quota_v2);
    }
    let cpu = controllers.split(',').any(|controller| controller == "cpu");
    cpu.then(|| least(&root.join(controllers), path, quota_v1)).flatten()
}

/// The least quota of a group and those above it.
fn least(mount: &Path, path: &str, quota: fn(&Path) -> Option<f64>) -> Option<f64> {
    let group: PathBuf = mount.join(path);
    let above = group.ancestors().take_while(|group| group.starts_with(mount));
    above.filter_map(quota).reduce(f64::min)
}

fn quota_v2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

fn quota_v1(group: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    ratio(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
}

/// `max` and -1 say that there is no limit.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    #[test]
    fn the_least_quota_up_the_tree_counts() {
        let root = group(&[
            ("cpu.max", "max 100000\n"),
            ("a/cpu.max", "150000 100000\n"),
            ("a/b/cpu.max", "400000 100000\n"),
        ]);
        assert_eq!(quota_of("0::/a/b\n", root.path()), Some(1.5));
        assert_eq!(quota_of("0::/\n", root.path()), None);
        assert_eq!(quota_of("0::/gone\n", root.path()), None);
    }

    #[test]
    fn version_1_is_read_too() {
        let root = group(&[
            ("cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n"),
            ("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"),
            ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        let groups = "3:memory:/x\n2:cpu,cpuacct:/x\n";
        assert_eq!(quota_of(groups, root.path()), Some(0.5));
    }

    #[test]
    fn what_makes_no_sense_is_no_limit() {
        let root = group(&[("cpu.max", "lots of\n"), ("z/cpu.max", "0 0\n"), ("y/cpu.max", "")]);
        for groups in ["0::/", "0::/z", "0::/y", "", "nonsense", "0:"] {
            assert_eq!(quota_of(groups, root.path()), None, "{groups}");
        }
    }
}
