//! `tollgate demo`: real programs over a small project with secrets, and what became of it.

mod probe;
mod project;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use probe::Sample;
use rustix::process::Signal;
use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy};

use crate::cli::DemoArgs;
use crate::inherited;
use crate::sys::{self, SignalFd};

/// Longest time that one program of the demo may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time that a program gets to end by itself.
const GRACE: Duration = Duration::from_secs(5);
const ENDING: &[libc::c_int] = &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Rounds of the speed table.
const ROUNDS: usize = 3;
/// Widest cell of the table of what happened.
const CELL_MAX_CHARS: usize = 40;

/// Runs the demo.
///
/// # Errors
/// When the project cannot be built, a program takes too long, or views do not work here: then the
/// demo shows what the policy would decide.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let mut home = tempfile::Builder::new()
        .prefix("tollgate-demo-")
        .tempdir()
        .context("cannot make a temporary directory")?;
    home.disable_cleanup(args.keep);
    // The directory is removed before a signal ends this process.
    let ending = inherited::without_ignored(ENDING);
    sys::block_signals(&ending).context("cannot block signals")?;
    let signals = SignalFd::new(&ending).context("cannot read signals")?;
    let demo = Demo::build(home.path(), signals)?;
    let shown = demo.show(args);
    if args.keep {
        println!("\nThe project is in {}, the policy beside it.", home.path().display());
        return shown;
    }
    let removed = home.close().context("the project could not be removed");
    if let Some(Ended(signal)) = shown.as_ref().err().and_then(|error| error.downcast_ref()) {
        sys::die_by_signal(*signal);
    }
    removed.and(shown)
}

/// A signal came that ends the demo.
#[derive(Debug)]
struct Ended(i32);

impl std::error::Error for Ended {}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ended by signal {}", self.0)
    }
}

/// Measures for [`run`], inside a view or outside; prints JSON.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn probe(dir: &Path) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&probe::measure(dir)?)?);
    Ok(())
}

struct Demo {
    signals: SignalFd,
    exe: PathBuf,
    /// The tree without Tollgate.
    bare: PathBuf,
    /// The same tree, seen through the policy.
    viewed: PathBuf,
    policy: PathBuf,
    audit: PathBuf,
    output: PathBuf,
    errors: PathBuf,
}

/// Has a program end, so that what it did is done when its files are removed.
fn end(child: &mut Child) -> anyhow::Result<()> {
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(child), Signal::TERM);
    let start = Instant::now();
    while start.elapsed() < GRACE {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    child.wait()?;
    Ok(())
}

impl Demo {
    fn build(home: &Path, signals: SignalFd) -> anyhow::Result<Self> {
        let home = fs::canonicalize(home).context("temporary directory")?;
        let demo = Self {
            signals,
            exe: std::env::current_exe().context("cannot find our own program")?,
            bare: home.join("bare"),
            viewed: home.join("project"),
            policy: home.join("policy.toml"),
            audit: home.join("audit.jsonl"),
            output: home.join("output"),
            errors: home.join("errors"),
        };
        project::build(&demo.bare)?;
        project::build(&demo.viewed)?;
        fs::write(&demo.policy, project::POLICY).context("cannot write the policy")?;
        Ok(demo)
    }

    fn show(&self, args: &DemoArgs) -> anyhow::Result<()> {
        println!("A project with secrets, and this policy:\n");
        project::POLICY.lines().for_each(|line| println!("{}", format!("    {line}").trim_end()));
        let (status, errors) = self.try_view()?;
        if !status.success() {
            println!("\nNo view can be mounted here, so nothing can be run through one:");
            println!("    {}", errors.trim());
            println!("\nWhat the policy decides, all the same:\n");
            decisions()?;
            bail!("no view can be shown on this machine; `tollgate doctor` says what is missing");
        }
        errors.lines().for_each(|line| println!("\n{line}"));
        self.show_programs()?;
        self.show_audit()?;
        if !args.no_speed {
            self.show_speed()?;
        }
        Ok(())
    }

    /// Runs one small command through a view: whether views work here, and the messages.
    fn try_view(&self) -> anyhow::Result<(ExitStatus, String)> {
        let status = self.finish(self.through_view(&["cat", "README.md"]))?;
        Ok((status, read(&self.errors)))
    }

    fn show_programs(&self) -> anyhow::Result<()> {
        println!("\nThe same commands in the bare directory and under `tollgate run`:\n");
        let mut rows = vec![["command", "bare", "through the policy"].map(str::to_owned)];
        for (shown, script) in scripts() {
            let bare = self.answer(self.bare(&script))?;
            let viewed = self.answer(self.through_view(&["sh", "-c", &script]))?;
            rows.push([shown.to_owned(), bare, viewed]);
        }
        print_table(&rows);
        Ok(())
    }

    fn bare(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).current_dir(&self.bare);
        command
    }

    fn through_view(&self, program: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command.arg("run").arg("--policy").arg(&self.policy);
        command.arg("--audit").arg(&self.audit).args(["--audit-level", "all"]);
        command.arg(&self.viewed).arg("--").args(program).current_dir(&self.viewed);
        command
    }

    /// The last line that a script printed.
    fn answer(&self, command: Command) -> anyhow::Result<String> {
        self.finish(command)?;
        let output = read(&self.output);
        let line = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("(nothing)");
        Ok(shorten(line.trim()))
    }

    fn finish(&self, mut command: Command) -> anyhow::Result<ExitStatus> {
        let (output, errors) = (File::create(&self.output)?, File::create(&self.errors)?);
        command.stdin(Stdio::null()).stdout(output).stderr(errors).env("LC_ALL", "C");
        let mut child = command.spawn().context("cannot start a program")?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                end(&mut child)?;
                bail!("a program took longer than {} s: {command:?}", PATIENCE.as_secs());
            }
            if sys::readable_within(&self.signals, Duration::from_millis(2))? {
                let arrived = self.signals.read()?;
                end(&mut child)?;
                bail!(Ended(arrived.signal));
            }
        }
    }

    fn show_audit(&self) -> anyhow::Result<()> {
        let text = read(&self.audit);
        let records: Vec<serde_json::Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let refused = records.iter().filter(|record| record["outcome"] == "refused");
        println!("\nThe audit log has {} records. The last refusals:\n", records.len());
        let mut rows = vec![["who", "what", "path", "rule"].map(str::to_owned)];
        let shown: Vec<_> = refused.collect();
        for record in shown.iter().rev().take(4).rev() {
            let word = |key: &str| record[key].as_str().unwrap_or("-").to_owned();
            let who = match record["exe"].as_str() {
                Some(exe) => exe.to_owned(),
                None => format!("pid {}, uid {}", record["pid"], record["uid"]),
            };
            rows.push([
                who,
                format!("{}: {}", word("operation"), word("errno")),
                word("path"),
                word("rule"),
            ]);
        }
        print_table(&rows);
        Ok(())
    }

    /// Native and view in turn, so that what else the machine does meets both.
    fn show_speed(&self) -> anyhow::Result<()> {
        let (mut native, mut viewed) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            native.push(self.sample(Command::new(&self.exe), &self.bare)?);
            let mut command = self.through_view(&[]);
            command.arg(&self.exe);
            viewed.push(self.sample(command, &self.viewed)?);
        }
        println!("\nTime per operation, medians of {ROUNDS} rounds, files in the page cache:\n");
        let mut rows = vec![["operation", "native", "view", "ratio"].map(str::to_owned)];
        for (name, pick) in operations() {
            let (native, viewed) = (median(&native, pick), median(&viewed, pick));
            let ratio = format!("{:.2}", viewed / native);
            rows.push([name.to_owned(), time(native), time(viewed), ratio]);
        }
        print_table(&rows);
        println!("\n`cargo run --release -p bench -- passthrough` measures with care.");
        Ok(())
    }

    fn sample(&self, mut command: Command, dir: &Path) -> anyhow::Result<Sample> {
        command.arg("demo-probe").arg(dir);
        let status = self.finish(command)?;
        if !status.success() {
            bail!("the measurement failed: {}", read(&self.errors).trim());
        }
        serde_json::from_str(&read(&self.output)).context("the measurement printed no figures")
    }
}

/// What is shown of a command, and the command. Each prints on standard output alone, so that what
/// Tollgate says of itself stays apart.
fn scripts() -> Vec<(&'static str, String)> {
    let grep = format!("grep -rl {} . 2>/dev/null | wc -l", project::SECRET);
    let mut scripts = vec![
        ("ls -A | grep env", "ls -A | grep env || echo '(no such name)'".to_owned()),
        ("cat .env", "cat .env 2>&1".to_owned()),
        ("cat keys/id_ed25519", "(cat <keys/id_ed25519) 2>&1".to_owned()),
        (
            "mv keys/id_ed25519 x",
            "mv keys/id_ed25519 x 2>&1 && mv x keys/id_ed25519 && echo moved".to_owned(),
        ),
        ("grep -r <the secret> .", format!("{grep} | sed 's/$/ files found/'")),
        ("echo >> docs/guide.md", "(echo >> docs/guide.md) 2>&1 && echo written".to_owned()),
        ("tail -n 1 logs/app.log", "tail -n 1 logs/app.log 2>&1".to_owned()),
        (
            "umount .; cat .env",
            "umount \"$PWD\" 2>/dev/null; cd \"$PWD\" && cat .env 2>&1".to_owned(),
        ),
    ];
    scripts.extend(compile());
    scripts
}

/// A compile with what is installed.
fn compile() -> Option<(&'static str, String)> {
    let run = "&& ./app && rm app";
    if have("cc") {
        Some(("cc src/*.c && ./app", format!("cc -o app src/main.c src/greet.c 2>&1 {run}")))
    } else if have("rustc") {
        Some(("rustc src/main.rs && ./app", format!("rustc -o app src/main.rs 2>&1 {run}")))
    } else {
        None
    }
}

fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

type Pick = fn(&Sample) -> f64;

fn operations() -> [(&'static str, Pick); 6] {
    [
        ("read 4 KiB", |sample| sample.read_4k_ns),
        ("write 4 KiB", |sample| sample.write_4k_ns),
        ("read 1 MiB", |sample| sample.read_1m_ns),
        ("open + close", |sample| sample.open_close_ns),
        ("stat", |sample| sample.stat_ns),
        ("read 4 KiB, `userspace`", |sample| sample.audited_read_4k_ns),
    ]
}

fn median(samples: &[Sample], pick: Pick) -> f64 {
    let mut values: Vec<_> = samples.iter().map(pick).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn time(nanoseconds: f64) -> String {
    format!("{:.2} us", nanoseconds / 1000.0)
}

/// Without a view: the policy's decision on each operation on some files.
fn decisions() -> anyhow::Result<()> {
    let policy = Policy::parse(project::POLICY, "policy.toml")?;
    let caller = CallerFacts { uid: 1000, gid: 1000, exe: None };
    let mut rows = vec![["path", "read", "write"].map(str::to_owned)];
    for path in [".env", "keys/id_ed25519", "docs/guide.md", "logs/app.log", "src/main.c"] {
        let facts = Facts { path: path.as_bytes(), kind: Kind::File, size: 100, head: None };
        let verdict = |operation| policy.decide(&facts, operation, &caller).verdict.to_string();
        rows.push([path.to_owned(), verdict(Operation::Read), verdict(Operation::Write)]);
    }
    print_table(&rows);
    Ok(())
}

fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn shorten(line: &str) -> String {
    if line.chars().count() <= CELL_MAX_CHARS {
        return line.to_owned();
    }
    // What went wrong is at the end of a message.
    let skip = line.chars().count() - CELL_MAX_CHARS + 3;
    format!("...{}", line.chars().skip(skip).collect::<String>())
}

/// Prints rows of equal length, the first one as the head.
fn print_table<const N: usize>(rows: &[[String; N]]) {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<_> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("    {}", cells.join("  ").trim_end());
        if number == 0 {
            println!("    {}", widths.map(|width| "-".repeat(width)).join("  "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_keeps_its_end() {
        assert_eq!(shorten("short"), "short");
        let long = format!("sh: {}: Permission denied", "x".repeat(100));
        let short = shorten(&long);
        assert_eq!(short.chars().count(), CELL_MAX_CHARS);
        assert!(short.starts_with("...") && short.ends_with(": Permission denied"));
    }

    #[test]
    fn the_bare_directory_can_be_measured() {
        let dir = tempfile::tempdir().unwrap();
        project::build(dir.path()).unwrap();
        let sample = probe::measure(dir.path()).unwrap();
        for (name, pick) in operations() {
            assert!(pick(&sample) > 0.0, "{name}");
        }
    }
}
