//! Programs at work in a source tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::project::{NEEDLE, generate};
use super::site::{PEER, Place, Site, TOLLGATE, forget_names};
use crate::harness::{Better, Must, Options, Report, Row};

/// The source tree.
pub(super) struct Shape {
    pub(super) files: usize,
    pub(super) directories: usize,
    /// Headers that each C unit includes.
    pub(super) headers: usize,
    /// Files that are compiled.
    pub(super) units: usize,
}

fn shape(options: &Options) -> Shape {
    Shape {
        files: options.pick(3_000, 600),
        directories: options.pick(300, 60),
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
            git(&project, &["init", "--quiet"])?;
            git(&project, &["add", "--all"])?;
            let identity = ["-c", "user.name=bench", "-c", "user.email=bench@invalid"];
            let commit = ["commit", "--quiet", "--no-gpg-sign", "--message", "all"];
            git(&project, &[&identity[..], &commit[..]].concat())?;
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
    compile(site, report, shape(options).units)?;
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
fn compile(site: &Site, report: &mut Report, units: usize) -> Result<()> {
    let compiler = if has("cc") { "cc" } else { "rustc" };
    if !has(compiler) {
        report.note("compile: not measured: there is neither `cc` nor `rustc` here.");
        return Ok(());
    }
    report.note(format!("compile: {units} processes of `{compiler}`, one per CPU at a time."));
    let row = Row::new("compile", "ms", Better::Lower).warm_up();
    report.measure(&row, &site.columns(), |_, column| {
        let work = site.places()[column].work();
        let start = Instant::now();
        compile_all(&site.places()[column], compiler, units)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        ensure!(work.join("out/unit_0.o").try_exists()?, "the compiler left no output");
        Ok(ms)
    })
}

fn compile_all(place: &Place, compiler: &str, units: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = || -> Result<()> {
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                return Ok(());
            }
            checked(&mut compile_one(&place.work(), compiler, unit))?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread of the compile row panicked"),
        })
    })
}

fn compile_one(work: &Path, compiler: &str, unit: usize) -> Command {
    let (src, out) = (work.join("project/src"), work.join(format!("out/unit_{unit}.o")));
    let mut command = Command::new(compiler);
    if compiler == "cc" {
        for directory in 0..4 {
            command.arg("-I").arg(src.join(format!("include/i{directory}")));
        }
        command.args(["-O0", "-c"]).arg(src.join(format!("units/unit_{unit}.c")));
    } else {
        command.args(["--edition=2021", "--crate-type=lib", "--emit=obj"]);
        command.arg(src.join(format!("units/unit_{unit}.rs")));
    }
    command.arg("-o").arg(out);
    command
}

fn git(project: &Path, arguments: &[&str]) -> Result<()> {
    checked(Command::new("git").arg("-C").arg(project).args(arguments)).map(drop)
}

fn timed_ms(command: &mut Command) -> Result<(f64, Output)> {
    let start = Instant::now();
    let output = checked(command)?;
    Ok((start.elapsed().as_secs_f64() * 1e3, output))
}

/// Runs `command`, whose standard output is a pipe: on /dev/null, grep would end at its first match.
fn checked(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {}", output.status, said.trim());
    }
    Ok(output)
}

/// Whether a program of this name is in `PATH`.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|d: PathBuf| d.join(program)).any(|file| file.is_file())
}
