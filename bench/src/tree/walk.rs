//! Programs that walk a tree of small files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::contestants::{BARE, TOLLGATE};
use super::site::{Place, Site, settle};
use crate::harness::{Better, Must, Report, Row};
use crate::programs::{checked, timed_discard_ms, timed_ms};
use crate::project::NEEDLE;

/// Longer than the time for which the kernel may believe a name or an attribute (1 s by default):
/// what was learnt in one program is stale when the next one starts, unless the server keeps it
/// fresh.
const STALE_AFTER: Duration = Duration::from_millis(1_100);

/// A server that keeps CPUs awake begins 0.15 s after its start to measure, for up to 25 ms and on all
/// CPUs, whether that pays. It is over before somebody who mounts a view has typed a command.
pub(super) const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// What a row must reach, as a ratio to the bare directory, and the aim beyond.
type Goal = Option<(f64, f64)>;

/// A first `find` has no goal: the kernel alone takes twice the bare time to make its own names
/// (docs/benchmarks.md).
const ROWS: [(Step, &str, Goal); 7] = [
    (Step::Names, "find by name", None),
    (Step::Find, "find", None),
    (Step::FindAgain, "find again", Some((1.5, 1.15))),
    (Step::Grep, "grep -r", Some((3.0, 2.0))),
    (Step::Tar, "tar", Some((3.0, 2.0))),
    (Step::Copy, "cp -r", Some((1.5, 1.2))),
    (Step::Remove, "rm -rf", Some((2.5, 1.6))),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// On a fresh mount as the next one, without a look at any file.
    Names,
    /// On a fresh mount: the kernel knows no name of the view. Names and data below are in its
    /// cache.
    Find,
    FindAgain,
    Grep,
    Tar,
    /// From the bare tree into the view.
    Copy,
    Remove,
}

/// Measures all rows on a tree of `files` files, with their musts.
pub(super) fn run(site: &mut Site, files: usize, report: &mut Report) -> Result<()> {
    let tree = site.shared_tree(files)?;
    report.section(&format!("programs over {files} files of at most 16 KiB"));
    for (_, name, must) in ROWS {
        if let Some((limit, aim)) = must {
            report.must(Must::at_most((name, TOLLGATE), limit).against(BARE).aim(aim));
        }
        site.musts_of_users(name).into_iter().for_each(|must| report.must(must));
    }
    rows(site, &tree, "", report)
}

/// The rows with `suffix` after their names, without musts.
pub(super) fn rows(site: &mut Site, tree: &str, suffix: &str, report: &mut Report) -> Result<()> {
    let row = |name: &str| Row::new(&format!("{name}{suffix}"), "ms", Better::Lower).warm_up();
    let wanted: Vec<_> = ROWS.iter().filter(|(_, name, ..)| report.wants(&row(name))).collect();
    let steps: Vec<_> = wanted.iter().map(|(step, ..)| *step).collect();
    let rows: Vec<_> = wanted.iter().map(|(_, name, ..)| row(name)).collect();
    let (columns, mut counts, mut outputs) = (site.columns(), Vec::new(), Outputs::default());
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    report.measure_many(&rows, &columns, |round, column| {
        let place = &mut site.places_mut()[column];
        mount_afresh(place)?;
        let mut run = Run { place, tree, counting: round == 1 };
        let mut values = Vec::new();
        for (index, &step) in steps.iter().enumerate() {
            let (ms, output, requests) = run.step(step, &steps)?;
            outputs.check(step, output)?;
            values.push(ms);
            if let Some(requests) = requests {
                counts.push((index, column, requests));
            }
        }
        Ok(values)
    })?;
    for (row, column, requests) in counts {
        report.add_counts(&rows[row], columns[column], requests);
    }
    Ok(())
}

/// The kernel knows no name of the view then, and the server what waking a CPU costs.
pub(super) fn mount_afresh(place: &mut Place) -> Result<()> {
    place.remount(&[])?;
    if !place.contestant.is_bare() {
        sleep(SETTLED_AFTER);
    }
    Ok(())
}

/// One column in one round.
struct Run<'a> {
    place: &'a mut Place,
    tree: &'a str,
    counting: bool,
}

type Measured = (f64, u64, Option<crate::harness::Counts>);

impl Run<'_> {
    /// Milliseconds, the size of the output, and the requests if they are counted in this round.
    fn step(&mut self, step: Step, all: &[Step]) -> Result<Measured> {
        self.before(step, all)?;
        let mut command = self.command(step);
        let mut work = || match step {
            Step::Tar => timed_discard_ms(&mut command),
            _ => timed_ms(&mut command).map(|(ms, output)| (ms, lines(&output.stdout))),
        };
        let ((ms, output), requests) =
            if self.counting { self.place.counted(work)? } else { (work()?, None) };
        if step == Step::Copy && !all.contains(&Step::Remove) {
            checked(&mut self.command(Step::Remove))?;
        }
        Ok((ms, output, requests))
    }

    /// Brings the caches into the state that `step` expects.
    fn before(&mut self, step: Step, all: &[Step]) -> Result<()> {
        let knows_names = all.contains(&Step::Find) || all.contains(&Step::FindAgain);
        match step {
            Step::Find if all.contains(&Step::Names) => {
                mount_afresh(self.place)?;
            }
            Step::FindAgain => {
                if !all.contains(&Step::Find) {
                    checked(&mut self.command(Step::Find))?;
                }
                if !self.place.contestant.is_bare() {
                    sleep(STALE_AFTER);
                }
            }
            Step::Grep if !knows_names => drop(checked(&mut self.command(Step::Find))?),
            Step::Copy => {
                // Other servers hold a descriptor per inode, and would run out of them.
                if !self.place.contestant.is_bare() && !self.place.contestant.is_tollgate() {
                    self.place.remount(&[])?;
                }
                settle(&self.place.lower_work())?;
            }
            Step::Remove if !all.contains(&Step::Copy) => {
                checked(&mut self.command(Step::Copy))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn command(&self, step: Step) -> Command {
        self.place.command(self.program(step))
    }

    fn program(&self, step: Step) -> Command {
        let own = self.place.own(self.tree);
        let tree = self.place.root.join(&own);
        let copy = self.place.work().join("copy");
        match step {
            Step::Names => with("find", &[], &[tree]),
            Step::Find | Step::FindAgain => find(&tree),
            Step::Grep => with("grep", &["-r", NEEDLE], &[tree]),
            Step::Tar => {
                // Not the command's working directory, which is entered as root.
                let mut tar = with("tar", &["--create", "--file=-", "--directory"], &[tree]);
                tar.arg(".");
                tar
            }
            Step::Copy => {
                let bare = self.place.lower_work().with_file_name(&own);
                with("cp", &["-r"], &[bare, copy])
            }
            Step::Remove => with("rm", &["-rf"], &[copy]),
        }
    }
}

/// A `find` that needs the attributes of each file.
fn find(tree: &Path) -> Command {
    let mut find = Command::new("find");
    find.arg(tree).args(["-type", "f", "-size", "+0"]);
    find
}

fn with(program: &str, options: &[&str], paths: &[PathBuf]) -> Command {
    let mut command = Command::new(program);
    command.args(options).args(paths);
    command
}

fn lines(output: &[u8]) -> u64 {
    output.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// What each program printed, which must be the same in all columns and rounds.
#[derive(Default)]
struct Outputs(Vec<(Step, u64)>);

impl Outputs {
    fn check(&mut self, step: Step, output: u64) -> Result<()> {
        match self.0.iter().find(|(known, _)| *known == step) {
            Some((_, expected)) => {
                ensure!(output == *expected, "{step:?} printed {output}, elsewhere {expected}");
            }
            None => self.0.push((step, output)),
        }
        Ok(())
    }
}
