//! A cgroup for CMD: made before it starts, removed when it has ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::amounts::Limits;
use super::place::{self, Place};
use crate::mountinfo;

/// How long it may take the kernel to count the last process out.
const PATIENCE: Duration = Duration::from_secs(2);
/// The period by which the use of CPUs is limited.
const CPU_PERIOD_US: u64 = 100_000;

/// Names of cgroups are this, a process id and a random number.
const PREFIX: &str = "tollgate-";

/// A directory in a hierarchy, removed with its value.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

/// What is written for one limit: the controller, and file and value in version 2 and in version 1.
struct Setting {
    controller: &'static str,
    new: Vec<(&'static str, String)>,
    old: Vec<(&'static str, String)>,
}

fn settings(limits: Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(bytes) = limits.memory_bytes {
        let value = bytes.to_string();
        settings.push(Setting {
            controller: "memory",
            // Where there is no swap, its file is missing.
            new: vec![("memory.max", value.clone()), ("memory.swap.max", "0".to_owned())],
            old: vec![
                ("memory.limit_in_bytes", value.clone()),
                ("memory.memsw.limit_in_bytes", value),
            ],
        });
    }
    if let Some(count) = limits.processes {
        // Init is one more.
        let value = count.saturating_add(1).to_string();
        let files = vec![("pids.max", value)];
        settings.push(Setting { controller: "pids", new: files.clone(), old: files });
    }
    if let Some(millis) = limits.cpu_millis {
        let quota = millis.saturating_mul(CPU_PERIOD_US) / 1000;
        settings.push(Setting {
            controller: "cpu",
            new: vec![("cpu.max", format!("{quota} {CPU_PERIOD_US}"))],
            old: vec![
                ("cpu.cfs_period_us", CPU_PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ],
        });
    }
    settings
}

/// Makes cgroups for `limits`, and answers what is left without one.
pub(super) fn make(limits: Limits) -> (Vec<Cgroup>, Limits) {
    let mut left = limits;
    let (Ok(own), Ok(mounts)) = (std::fs::read_to_string("/proc/self/cgroup"), mountinfo::read())
    else {
        return (Vec::new(), left);
    };
    let settings = settings(limits);
    if let Some(place) = place::find(None, &own, &mounts)
        && let Some(cgroup) = unified(&place, &settings)
    {
        return (vec![cgroup], Limits::default());
    }
    let mut made = Vec::new();
    for setting in settings {
        let place = place::find(Some(setting.controller), &own, &mounts);
        let Some(cgroup) = place.and_then(|place| Cgroup::in_directory(&place.own, &setting.old))
        else {
            continue;
        };
        made.push(cgroup);
        match setting.controller {
            "memory" => left.memory_bytes = None,
            "pids" => left.processes = None,
            _ => left.cpu_millis = None,
        }
    }
    (made, left)
}

/// One cgroup of version 2 for all limits: as near to this process's as there is one that hands its
/// controllers on. One with processes in it does not, but for the top.
fn unified(place: &Place, settings: &[Setting]) -> Option<Cgroup> {
    let files: Vec<_> = settings.iter().flat_map(|setting| setting.new.clone()).collect();
    place.own.ancestors().take_while(|path| path.starts_with(&place.top)).find_map(|above| {
        let handed_on = above.join("cgroup.subtree_control");
        let has = |text: &str| {
            let names: Vec<_> = text.split_whitespace().collect();
            settings.iter().all(|setting| names.contains(&setting.controller))
        };
        if !has(&std::fs::read_to_string(&handed_on).ok()?) {
            let all: Vec<_> =
                settings.iter().map(|setting| format!("+{}", setting.controller)).collect();
            std::fs::write(&handed_on, all.join(" ")).ok()?;
        }
        Cgroup::in_directory(above, &files)
    })
}

impl Cgroup {
    /// Makes one and writes its files; `None` where that cannot be.
    fn in_directory(above: &Path, files: &[(&str, String)]) -> Option<Self> {
        let mut id = [0; 8];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).ok()?;
        remove_leftovers(above);
        let (own, id) = (std::process::id(), u64::from_ne_bytes(id));
        let path = above.join(format!("{PREFIX}{own}-{id:016x}"));
        std::fs::create_dir(&path).ok()?;
        let cgroup = Self { path };
        for (name, value) in files {
            let file = cgroup.path.join(name);
            // Only the files about swap may be missing.
            let optional = name.contains("sw") && !file.exists();
            if !optional && std::fs::write(&file, value).is_err() {
                return None;
            }
        }
        Some(cgroup)
    }

    /// Puts the calling process into it.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        let file = self.path.join("cgroup.procs");
        std::fs::write(&file, "0")
            .with_context(|| format!("cannot enter `{}`", self.path.display()))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Limits that were met, in words.
    pub(super) fn met(&self) -> Vec<String> {
        let read = |name: &str| std::fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let counted = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            line.unwrap_or(0_u64)
        };
        // The same name in both versions, in different files.
        let killed = counted(&read("memory.events"), "oom_kill ")
            .max(counted(&read("memory.oom_control"), "oom_kill "));
        let refused = counted(&read("pids.events"), "max ");
        let mut met = Vec::new();
        if killed > 0 {
            met.push(format!("--memory ended processes of CMD: {killed}"));
        }
        if refused > 0 {
            met.push(format!("--processes kept CMD from starting processes, times: {refused}"));
        }
        met
    }
}

/// Removes those of killed servers. One with processes in it cannot be removed.
fn remove_leftovers(above: &Path) {
    let Ok(entries) = std::fs::read_dir(above) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let process = rest.and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let begin = Instant::now();
        // Busy until the kernel has counted the last process out.
        while let Err(error) = std::fs::remove_dir(&self.path) {
            let busy = error.raw_os_error() == Some(libc::EBUSY);
            if !busy || begin.elapsed() > PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_the_kernel_reads_them() {
        let limits =
            Limits { memory_bytes: Some(1 << 30), processes: Some(64), cpu_millis: Some(1500) };
        let settings = settings(limits);
        let new: Vec<_> = settings.iter().flat_map(|setting| setting.new.clone()).collect();
        let expected = [
            ("memory.max", "1073741824"),
            ("memory.swap.max", "0"),
            ("pids.max", "65"),
            ("cpu.max", "150000 100000"),
        ];
        assert_eq!(new, expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn the_nearest_cgroup_that_hands_controllers_on_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().to_owned();
        let own = top.join("user/session");
        std::fs::create_dir_all(&own).unwrap();
        let place = Place { top: top.clone(), own };
        let settings = settings(Limits { processes: Some(1), ..Limits::default() });
        assert!(unified(&place, &settings).is_none(), "none has the file");
        std::fs::write(top.join("cgroup.subtree_control"), "pids").unwrap();
        std::fs::write(top.join("user/cgroup.subtree_control"), "cpu memory pids").unwrap();
        let cgroup = unified(&place, &settings).unwrap();
        assert_eq!(cgroup.path().parent(), Some(top.join("user").as_path()));
        assert_eq!(std::fs::read_to_string(cgroup.path().join("pids.max")).unwrap(), "2");
    }
}
