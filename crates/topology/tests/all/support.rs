//! Makes a sysfs tree from the compact notation of `testdata/*.machine`.
//!
//! One statement a line, sets in the kernel's list notation:
//!
//! | statement | files under `devices/` |
//! |---|---|
//! | `present LIST`, `online LIST` | `system/cpu/present`, `online` |
//! | `node N LIST D...` | `system/node/nodeN/cpulist` (`-`: no CPU), `distance` |
//! | `core LIST...` | `system/cpu/cpuM/topology/core_cpus_list` of each CPU, and its level-1 caches |
//! | `cache LEVEL LIST...` | `system/cpu/cpuM/cache/indexI/{level,type,shared_cpu_list}` |
//! | `cache-size LIST SIZE` | `system/cpu/cpuM/cache/index3/size` of each CPU |
//! | `memory LIST` | `system/node/has_memory` |
//! | `package LIST...` | `system/cpu/cpuM/topology/package_cpus_list` |
//! | `pmu NAME LIST` | `NAME/cpus` |
//! | `allowed LIST` | none: the affinity mask |
//! | `old-names` | `thread_siblings_list`, `core_siblings_list` instead of the names of Linux 5.3 |

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tollgate_topology::{CpuSet, Topology, TopologyError};

/// A tree that lives as long as this.
pub(crate) struct Machine {
    dir: TempDir,
    pub(crate) allowed: Option<CpuSet>,
}

impl Machine {
    /// The machine of `testdata/NAME.machine`.
    pub(crate) fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        let path = path.join(format!("{name}.machine"));
        Self::new(&fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    pub(crate) fn new(notation: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::default();
        let lines = notation.lines().filter(|line| !line.starts_with('#'));
        writer.old_names = lines.clone().any(|line| line == "old-names");
        for line in lines {
            writer.statement(line);
        }
        if !writer.nodes.is_empty() {
            let nodes = writer.nodes.join(",");
            writer.write("system/node/online", &nodes);
        }
        writer.materialise(&dir.path().join("devices"));
        Self { dir, allowed: writer.allowed }
    }

    pub(crate) fn topology(&self) -> Result<Topology, TopologyError> {
        Topology::from_sysfs(self.dir.path(), self.allowed.clone())
    }

    /// Replaces a file under `devices/`.
    pub(crate) fn replace(&self, path: &str, text: &str) {
        let path = self.dir.path().join("devices").join(path);
        assert!(path.exists(), "{}", path.display());
        fs::write(path, text).unwrap();
    }

    /// Takes a file under `devices/` away.
    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.dir.path().join("devices").join(path)).unwrap();
    }
}

#[derive(Default)]
struct Writer {
    /// What each file under `devices/` will hold; a later statement replaces an earlier one.
    files: BTreeMap<PathBuf, String>,
    nodes: Vec<String>,
    allowed: Option<CpuSet>,
    old_names: bool,
}

impl Writer {
    fn statement(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [file @ ("present" | "online"), list] => {
                self.write(&format!("system/cpu/{file}"), list);
            }
            ["node", number, list, ref distances @ ..] => self.node(number, list, distances),
            ["core", ref lists @ ..] => {
                let name = if self.old_names { "thread_siblings_list" } else { "core_cpus_list" };
                self.each_cpu(lists, &format!("topology/{name}"));
            }
            ["package", ref lists @ ..] => {
                let name = if self.old_names { "core_siblings_list" } else { "package_cpus_list" };
                self.each_cpu(lists, &format!("topology/{name}"));
            }
            ["cache", level, ref lists @ ..] => self.caches(level, lists),
            ["cache-size", list, size] => {
                for cpu in &list.parse::<CpuSet>().unwrap() {
                    self.write(&format!("system/cpu/cpu{cpu}/cache/index3/size"), size);
                }
            }
            ["memory", list] => self.write("system/node/has_memory", list),
            ["pmu", name, list] => self.write(&format!("{name}/cpus"), list),
            ["allowed", list] => self.allowed = Some(list.parse().unwrap()),
            ["old-names"] => {}
            _ => panic!("not a statement: {line:?}"),
        }
    }

    fn node(&mut self, number: &str, list: &str, distances: &[&str]) {
        self.nodes.push(number.to_owned());
        let cpus = if list == "-" { "" } else { list };
        self.write(&format!("system/node/node{number}/cpulist"), cpus);
        self.write(&format!("system/node/node{number}/distance"), &distances.join(" "));
    }

    /// Level 2 follows the two level-1 caches of a core, level 3 follows level 2.
    fn caches(&mut self, level: &str, lists: &[&str]) {
        let index = level.parse::<u32>().unwrap();
        self.each_cpu(lists, &format!("cache/index{index}/shared_cpu_list"));
        let set: CpuSet = lists.join(",").parse().unwrap();
        for cpu in &set {
            let cache = format!("system/cpu/cpu{cpu}/cache");
            self.write(&format!("{cache}/index{index}/level"), level);
            self.write(&format!("{cache}/index{index}/type"), "Unified");
            for (index, kind) in ["Data", "Instruction"].iter().enumerate() {
                self.write(&format!("{cache}/index{index}/level"), "1");
                self.write(&format!("{cache}/index{index}/type"), kind);
                self.write(&format!("{cache}/index{index}/shared_cpu_list"), &cpu.to_string());
            }
        }
    }

    fn each_cpu(&mut self, lists: &[&str], file: &str) {
        for list in lists {
            for cpu in &list.parse::<CpuSet>().unwrap() {
                self.write(&format!("system/cpu/cpu{cpu}/{file}"), list);
            }
        }
    }

    fn write(&mut self, path: &str, text: &str) {
        self.files.insert(path.into(), format!("{text}\n"));
    }

    fn materialise(&self, devices: &Path) {
        let parents: BTreeSet<_> = self.files.keys().filter_map(|path| path.parent()).collect();
        for parent in parents {
            fs::create_dir_all(devices.join(parent)).unwrap();
        }
        for (path, text) in &self.files {
            fs::write(devices.join(path), text).unwrap();
        }
    }
}
