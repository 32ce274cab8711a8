//! Walking while every CPU computes: what keeps CPUs awake must cost nothing there.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::contestants::{NOT_AWAKE, TOLLGATE};
use super::site::Site;
use super::walk;
use crate::harness::{Must, Report};

/// Measures the walking rows beside one computing process per CPU.
pub(super) fn run(site: &mut Site, files: usize, report: &mut Report) -> Result<()> {
    let tree = site.shared_tree(files)?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let suffix = format!(", beside {cpus} computing");
    report.section(&format!("programs over {files} files, beside {cpus} computing processes"));
    for name in ["find", "find again", "grep -r", "tar", "cp -r", "rm -rf"] {
        let name = format!("{name}{suffix}");
        report.must(Must::at_most((&name, TOLLGATE), 1.05).against(NOT_AWAKE).aim(1.0));
    }
    let _computing = (0..cpus).map(|_| Computing::start()).collect::<Result<Vec<_>>>()?;
    walk::rows(site, &tree, &suffix, report)
}

/// A process of normal priority that computes until it is dropped.
struct Computing(Child);

impl Computing {
    fn start() -> Result<Computing> {
        let mut shell = Command::new("sh");
        // Ends by itself should this program be killed: it looks for its parent now and then.
        shell.args([
            "-c",
            "while kill -0 $PPID; do i=0; while [ $i -lt 99999 ]; do i=$((i+1)); done; done",
        ]);
        let child = shell.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        child.map(Computing).context("cannot run sh")
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
