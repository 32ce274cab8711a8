//! Tools of a programmer: git, compilers, whole builds.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;

use anyhow::{Context, Result, ensure};

use super::contestants::{BARE, TOLLGATE};
use super::options::TreeOptions;
use super::site::{Place, Site, settle, small_files};
use super::walk::SETTLED_AFTER;
use crate::harness::{Better, Must, Options, Report, Row};
use crate::programs::{self, checked, commit_all, has, timed_ms};
use crate::project::generate;

/// `git status` in a repository of 5,000 files, its index fresh.
pub(super) fn git_status(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    let files = options.pick(5_000, 500);
    let row = Row::new("git status", "ms", Better::Lower).warm_up();
    if !report.wants(&row) {
        return Ok(());
    }
    if !has("git") {
        report.note("git status: not measured: there is no `git` here.");
        return Ok(());
    }
    report.section(&format!("git, {files} files"));
    report.must(Must::at_most((row.name(), TOLLGATE), 1.8).against(BARE).aim(1.2));
    let original = site.lower().join("repository");
    generate(&original, &small_files(files, 0))?;
    commit_all(&original)?;
    copy_to_all(site, &original, "repository")?;
    let columns = site.columns();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let mut counts = Vec::new();
    report.measure(&row, &columns, |round, column| {
        let place = &site.places()[column];
        let mut git = Command::new("git");
        git.arg("-C").arg(place.work().join("repository")).args(["status", "--porcelain"]);
        let ((ms, output), requests) = match round {
            1 => place.counted(|| timed_ms(&mut git))?,
            _ => (timed_ms(&mut git)?, None),
        };
        ensure!(output.stdout.is_empty(), "git sees changes where there are none");
        counts.extend(requests.map(|requests| (column, requests)));
        Ok(ms)
    })?;
    for (column, requests) in counts {
        report.add_counts(&row, columns[column], requests);
    }
    Ok(())
}

/// 200 processes of a compiler; then the same with the directory for objects `native`.
pub(super) fn compile(site: &mut Site, options: &Options, report: &mut Report) -> Result<()> {
    let Some(compiler) = programs::compiler() else {
        report.note("compile: not measured: there is neither `cc` nor `rustc` here.");
        return Ok(());
    };
    let units = options.pick(200, 16);
    let row = Row::new("compile", "ms", Better::Lower).warm_up();
    let native = Row::new("compile, objects native", "ms", Better::Lower).warm_up();
    report.section(&format!("{units} processes of {compiler}, one per CPU at a time"));
    report.must(Must::at_most((row.name(), TOLLGATE), 1.15).against(BARE).aim(1.08));
    report.must(Must::at_most((native.name(), TOLLGATE), 1.05).against(BARE).aim(1.01));
    generate(&site.lower().join("units"), &small_files(80, units))?;
    for place in site.places() {
        std::fs::create_dir_all(place.lower_work().join("objects"))?;
    }
    site.settle()?;
    let columns = site.columns();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let sample = |place: &Place| {
        let objects = place.work().join("objects");
        programs::compile(compiler, &place.root.join("units"), &objects, units)
    };
    report.measure(&row, &columns, |_, column| sample(&site.places()[column]))?;
    if report.wants(&native) {
        compile_native(site, &native, sample, report)?;
    }
    Ok(())
}

fn compile_native(
    site: &mut Site,
    row: &Row,
    sample: impl Fn(&Place) -> Result<f64>,
    report: &mut Report,
) -> Result<()> {
    let can_be_native = |place: &&mut Place| {
        let one = &place.contestant;
        one.is_bare() || one.is_tollgate() && !one.has_policy()
    };
    let mut places: Vec<_> = site.places_mut().iter_mut().filter(can_be_native).collect();
    let policies = places.iter().map(|place| native_policy(place, "objects"));
    let policies = policies.collect::<Result<Vec<_>>>()?;
    if let Some(why) = places.iter().zip(&policies).find_map(|(p, policy)| refused(p, policy)) {
        report.note(format!("{}: not measured: {why}", row.name()));
        return Ok(());
    }
    let names: Vec<_> = places.iter().map(|place| place.name().to_owned()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    // One mount for all rounds, as in the row before: the two are to differ by the rule alone.
    for (place, policy) in places.iter_mut().zip(&policies) {
        place.remount(policy)?;
    }
    sleep(SETTLED_AFTER);
    let measured = report.measure(row, &names, |_, column| sample(&*places[column]));
    places.iter_mut().try_for_each(|place| place.remount(&[]))?;
    measured
}

/// `--policy FILE`, where FILE makes `directory` of the place's own directory native.
fn native_policy(place: &Place, directory: &str) -> Result<Vec<OsString>> {
    let work = place.lower_work();
    let name = work.file_name().context("it has a name")?.to_string_lossy().into_owned();
    let file = work.with_extension("native.toml");
    let rule = format!("[[rule]]\npath = \"{name}/{directory}\"\naction = \"native\"\n");
    std::fs::write(&file, rule)?;
    Ok(vec!["--policy".into(), file.into()])
}

/// Why this build of Tollgate does not take the policy, if it does not.
fn refused(place: &Place, policy: &[OsString]) -> Option<String> {
    if place.contestant.has_policy() {
        return Some(format!("column `{}` has a policy of its own", place.name()));
    }
    let binary = place.contestant.binary()?;
    let checked = checked(Command::new(binary).arg("check").arg(policy.last()?));
    checked.err().map(|error| format!("{error:#}"))
}

/// `cargo build` of this workspace, `target/` native where the policy can say so.
pub(super) fn cargo_build(site: &mut Site, tree: &TreeOptions, report: &mut Report) -> Result<()> {
    let row = Row::new("cargo build, target native", "s", Better::Lower);
    let plain = Row::new("cargo build", "s", Better::Lower);
    report.section(&format!("cargo build --package {} of this workspace", tree.cargo_package));
    report.must(Must::at_most((row.name(), TOLLGATE), 1.05).against(BARE).aim(1.02));
    let Some(sources) = workspace() else {
        report.note("cargo build: not measured: this program is not in its workspace.");
        return Ok(());
    };
    let build = format!("cargo build --quiet --offline --package {}", tree.cargo_package);
    for place in site.places() {
        let copy = place.lower_work().join("workspace");
        std::fs::create_dir_all(copy.join("target"))?;
        let list = "git ls-files -z | tar --create --null --files-from=- | tar --extract -C \"$1\"";
        checked(Command::new("sh").args(["-c", list, "sh"]).arg(&copy).current_dir(&sources))?;
    }
    let work = Build { directory: "workspace", command: &build, clean: "rm -rf target/*" };
    let native = |place: &Place| native_policy(place, "workspace/target");
    if let Some(why) = site.places().iter().find_map(|p| refused(p, &native(p).ok()?)) {
        report.note(format!("{}: not measured: {why}", row.name()));
    } else {
        work.measure(site, &row, native, report)?;
    }
    work.measure(site, &plain, |_| Ok(Vec::new()), report)
}

/// The tree that `--build` names.
pub(super) fn build(site: &mut Site, tree: &TreeOptions, report: &mut Report) -> Result<()> {
    let Some(sources) = &tree.build else {
        report.note("build: not measured: --build DIR names the sources.");
        return Ok(());
    };
    let row = Row::new("build", "s", Better::Lower);
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let command = tree.build_command.clone().unwrap_or_else(|| format!("make -j{cpus}"));
    report.section(&format!("`{command}` in a copy of {}", sources.display()));
    report.must(Must::at_most((row.name(), TOLLGATE), 1.07).against(BARE).aim(1.03));
    copy_to_all(site, sources, "build")?;
    let work = Build { directory: "build", command: &command, clean: &tree.build_clean };
    work.measure(site, &row, |_| Ok(Vec::new()), report)
}

/// A build in each column's own copy of the sources.
struct Build<'a> {
    directory: &'a str,
    command: &'a str,
    /// Run in the bare directory before each build.
    clean: &'a str,
}

impl Build<'_> {
    /// Seconds of each build, on a fresh mount.
    fn measure(
        &self,
        site: &mut Site,
        row: &Row,
        arguments: impl Fn(&Place) -> Result<Vec<OsString>>,
        report: &mut Report,
    ) -> Result<()> {
        let columns = site.columns();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let mut counts = Vec::new();
        report.measure(row, &columns, |round, column| {
            let place = &mut site.places_mut()[column];
            checked(&mut shell(self.clean, &place.lower_work().join(self.directory)))?;
            settle(&place.lower_work())?;
            let arguments = arguments(place)?;
            place.remount(&arguments)?;
            let mut build = shell(self.command, &place.work().join(self.directory));
            let ((ms, _), requests) = place.counted(|| timed_ms(&mut build))?;
            counts.extend(requests.filter(|_| round == 0).map(|requests| (column, requests)));
            Ok(ms / 1e3)
        })?;
        for place in site.places_mut() {
            place.remount(&[])?;
        }
        for (column, requests) in counts {
            report.add_counts(row, columns[column], requests);
        }
        Ok(())
    }
}

fn shell(command: &str, directory: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(directory);
    // Cargo's own settings of this program are not for the one that is measured.
    for name in ["CARGO_TARGET_DIR", "RUSTFLAGS", "MAKEFLAGS"] {
        shell.env_remove(name);
    }
    shell
}

/// The root of the workspace that this program was built in.
fn workspace() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let found = own.ancestors().find(|up| up.join("crates/fuse/Cargo.toml").is_file());
    found.map(Path::to_owned)
}

fn copy_to_all(site: &Site, original: &Path, name: &str) -> Result<()> {
    for place in site.places() {
        let to = place.lower_work().join(name);
        checked(Command::new("cp").arg("-a").arg(original).arg(&to))?;
    }
    site.settle()
}
