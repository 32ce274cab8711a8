//! Running other programs, and timing them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// Lines of a failed program's standard error that are shown.
const ERROR_LINES_MAX: usize = 4;

/// Whether a program of this name is in `PATH`.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|d: PathBuf| d.join(program)).any(|file| file.is_file())
}

/// Runs `command` and returns the milliseconds that it took, with its output.
///
/// # Errors
/// If it cannot be run, or fails; with its standard error.
pub(crate) fn timed_ms(command: &mut Command) -> Result<(f64, Output)> {
    let start = Instant::now();
    let output = checked(command)?;
    Ok((start.elapsed().as_secs_f64() * 1e3, output))
}

/// Runs `command`, whose standard output is a pipe: on /dev/null, grep would end at its first
/// match, and tar would not read the files.
///
/// # Errors
/// If it cannot be run, or fails; with its standard error.
pub(crate) fn checked(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first: Vec<_> = said.lines().take(ERROR_LINES_MAX).collect();
        bail!("{command:?}: {}: {}", output.status, first.join("\n"));
    }
    Ok(output)
}

/// Runs `command` and discards its output through a pipe. Returns milliseconds and the bytes
/// discarded.
///
/// # Errors
/// If it cannot be run, or fails.
pub(crate) fn timed_discard_ms(command: &mut Command) -> Result<(f64, u64)> {
    let start = Instant::now();
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.with_context(|| format!("cannot run {command:?}"))?;
    let mut output = child.stdout.take().context("its output is a pipe")?;
    let mut buffer = vec![0; 256 << 10];
    let mut bytes = 0;
    loop {
        match output.read(&mut buffer)? {
            0 => break,
            read => bytes += read as u64,
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok((start.elapsed().as_secs_f64() * 1e3, bytes))
}

/// Makes `directory` a git repository with everything in it committed.
///
/// # Errors
/// If git fails.
pub(crate) fn commit_all(directory: &Path) -> Result<()> {
    let git = |arguments: &[&str]| {
        checked(Command::new("git").arg("-C").arg(directory).args(arguments)).map(drop)
    };
    git(&["init", "--quiet"])?;
    git(&["add", "--all"])?;
    let identity = ["-c", "user.name=bench", "-c", "user.email=bench@invalid"];
    let commit = ["commit", "--quiet", "--no-gpg-sign", "--message", "all"];
    git(&[&identity[..], &commit[..]].concat())
}

/// The compiler that this machine has for a generated project: `cc`, else `rustc`.
pub(crate) fn compiler() -> Option<&'static str> {
    ["cc", "rustc"].into_iter().find(|compiler| has(compiler))
}

/// Compiles the first `units` units of the project in `source` to `out`, one process per unit, as
/// many at once as there are CPUs. Returns milliseconds.
///
/// # Errors
/// If a compiler fails, or leaves no output.
pub(crate) fn compile(compiler: &str, source: &Path, out: &Path, units: usize) -> Result<f64> {
    let next = AtomicUsize::new(0);
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = || -> Result<()> {
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                return Ok(());
            }
            checked(&mut compile_one(compiler, source, out, unit))?;
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread of the compile row panicked"),
        })
    })?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    ensure!(out.join("unit_0.o").try_exists()?, "the compiler left no output");
    Ok(ms)
}

fn compile_one(compiler: &str, source: &Path, out: &Path, unit: usize) -> Command {
    let mut command = Command::new(compiler);
    if compiler == "cc" {
        for directory in 0..4 {
            command.arg("-I").arg(source.join(format!("include/i{directory}")));
        }
        command.args(["-O0", "-c"]).arg(source.join(format!("units/unit_{unit}.c")));
    } else {
        command.args(["--edition=2021", "--crate-type=lib", "--emit=obj"]);
        command.arg(source.join(format!("units/unit_{unit}.rs")));
    }
    command.arg("-o").arg(out.join(format!("unit_{unit}.o")));
    command
}
