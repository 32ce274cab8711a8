//! Programs at work in a source tree.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::site::{PEER, Site, TOLLGATE};
use crate::harness::{Better, Must, Options, Report, Row};
use crate::mounts::forget_names;
use crate::programs::{commit_all, compile, compiler, has, timed_ms};
use crate::project::{NEEDLE, Shape, generate};

fn shape(options: &Options) -> Shape {
    Shape {
        files: options.pick(3_000, 600),
        directories: options.pick(300, 60),
        file_bytes_max: 64 << 10,
        headers: 40,
        units: options.pick(40, 8),
    }
}

/// Makes each column's tree, with a git repository around it if there is git.
pub(super) fn prepare(site: &Site, options: &Options) -> Result<()> {
    for work in site.lower_works() {
        let project = work.join("project");
        generate(&project.join("src"), &shape(options))?;
        std::fs::create_dir(work.join("out"))?;
        if has("git") {
            commit_all(&project)?;
        }
    }
    site.settle()
}

/// Measures all rows.
pub(super) fn run(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    let Shape { files, directories, .. } = shape(options);
    report.section(&format!(
        "programs in a source tree of {files} files in {directories} directories"
    ));
    // The peer holds a descriptor per inode that the kernel remembers.
    forget_names()?;
    copy_and_remove(site, report)?;
    program(site, report, "find", "find", |project| {
        let mut find = Command::new("find");
        find.arg(project.join("src")).args(["-type", "f", "-size", "+0"]);
        find
    })?;
    program(site, report, "grep -r", "grep", |project| {
        let mut grep = Command::new("grep");
        grep.args(["-r", NEEDLE]).arg(project.join("src"));
        grep
    })?;
    program(site, report, "git status", "git", |project| {
        let mut git = Command::new("git");
        git.arg("-C").arg(project).args(["status", "--porcelain"]);
        git
    })?;
    compile_row(site, report, shape(options).units)?;
    for row in ["copy", "find", "grep -r", "git status", "compile", "rm -rf"] {
        report.must(Must::at_most((row, TOLLGATE), 0.9).against(PEER).aim(0.6));
    }
    Ok(())
}

fn copy_and_remove(site: &Site, report: &mut Report) -> Result<()> {
    let rows = ["copy", "rm -rf"].map(|name| Row::new(name, "ms", Better::Lower).warm_up());
    report.measure_many(&rows, &site.columns(), |_, column| {
        let work = site.places()[column].work();
        let (from, to) = (work.join("project/src"), work.join("copy"));
        site.settle()?;
        let copied = timed_ms(Command::new("cp").arg("-r").arg(&from).arg(&to))?;
        let removed = timed_ms(Command::new("rm").arg("-rf").arg(&to))?;
        ensure!(!to.try_exists()?, "rm -rf left {}", to.display());
        Ok(vec![copied.0, removed.0])
    })
}

/// One program over the tree, whose output must have as many lines in every column.
fn program(
    site: &Site,
    report: &mut Report,
    row: &str,
    program: &str,
    command: impl Fn(&Path) -> Command,
) -> Result<()> {
    if !has(program) {
        report.note(format!("{row}: not measured: there is no `{program}` here."));
        return Ok(());
    }
    let row = Row::new(row, "ms", Better::Lower).warm_up();
    let mut expected = None;
    report.measure(&row, &site.columns(), |_, column| {
        let (ms, output) = timed_ms(&mut command(&site.places()[column].work().join("project")))?;
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        let expected = *expected.get_or_insert(lines);
        ensure!(lines == expected, "{lines} lines of output, elsewhere {expected}");
        Ok(ms)
    })
}

/// As make would: a compiler process per source file, as many at once as there are CPUs.
fn compile_row(site: &Site, report: &mut Report, units: usize) -> Result<()> {
    let Some(compiler) = compiler() else {
        report.note("compile: not measured: there is neither `cc` nor `rustc` here.");
        return Ok(());
    };
    report.note(format!("compile: {units} processes of `{compiler}`, one per CPU at a time."));
    let row = Row::new("compile", "ms", Better::Lower).warm_up();
    report.measure(&row, &site.columns(), |_, column| {
        let work = site.places()[column].work();
        compile(compiler, &work.join("project/src"), &work.join("out"), units)
    })
}
