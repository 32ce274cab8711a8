//! The `redacted` benchmark: reading source text with its secrets masked, as root.
//!
//! One file of the sources of crates is read through a view that masks it, through one that only
//! lets each read pass the server (what masking costs is the difference), and bare. The lower file
//! is in the page cache; nothing of the views is. Before the first sample the file is left alone
//! for four seconds, as what changed a moment ago is not read ahead.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::harness::{Better, Column, Must, Options, Report, Row, interrupt};
use crate::mounts::{Launcher, Server};

const BARE: &str = "bare";
const USERSPACE: &str = "userspace";
const REDACTED: &str = "redacted";
const COLUMNS: [&str; 3] = [BARE, USERSPACE, REDACTED];
const MIB: usize = 1 << 20;
/// What the view's buffers may take, and what a server takes besides.
const BUDGET_MIB: f64 = 31.5 + 32.0;

/// What is measured: its name, bytes of a read, and how many read at once.
const WORKS: [(&str, usize, usize); 4] = [
    ("sequential read, 128 KiB", 128 << 10, 1),
    ("sequential read, 1 MiB", MIB, 1),
    ("two streams, 128 KiB, total", 128 << 10, 2),
    ("64 streams, 128 KiB, total", 128 << 10, 64),
];

/// Runs the benchmark.
///
/// # Errors
/// Without root, or if no source text is there.
pub(crate) fn run(options: &Options) -> Result<()> {
    let columns =
        [Column::new(BARE), Column::against(USERSPACE, BARE), Column::against(REDACTED, USERSPACE)];
    let mut report = Report::new("redacted", options, &columns);
    let site = Site::new(options.pick(100 * MIB, 25 * MIB))?;
    let measured = measure(&site, &mut report);
    // The servers' CPU time counts as the benchmark's own once they have ended.
    drop(site);
    if interrupt::requested() {
        report.note("Interrupted: the rest was not measured.");
    }
    report.finish()?;
    measured
}

fn measure(site: &Site, report: &mut Report) -> Result<()> {
    std::thread::sleep(Duration::from_secs(4));
    for (name, step, streams) in WORKS {
        let row = Row::new(name, "GB/s", Better::Higher).warm_up();
        report.measure(&row, &COLUMNS, |_, column| site.rate(column, step, streams))?;
    }
    let row = Row::new("memory of the server after 64 streams", "MiB", Better::Lower);
    report.measure(&row, &[REDACTED], |_, _| {
        site.rate(2, 128 << 10, 64)?;
        #[expect(clippy::cast_precision_loss, reason = "memory sizes are below 2^52")]
        Ok(site.redacted.resident_bytes()? as f64 / MIB as f64)
    })?;
    let first = (WORKS[0].0, REDACTED);
    report.must(Must::at_least(first, 0.5).aim(1.5));
    report.must(Must::at_least((WORKS[2].0, REDACTED), 1.3).against_cell(first).aim(1.7));
    report.must(Must::at_least((WORKS[3].0, REDACTED), 1.0).against_cell(first).aim(1.2));
    report.must(Must::at_most((row.name(), REDACTED), BUDGET_MIB));
    Ok(())
}

/// The file and its views.
struct Site {
    roots: [PathBuf; 3],
    length: usize,
    redacted: Server,
    _userspace: Server,
    _base: tempfile::TempDir,
}

impl Site {
    fn new(length: usize) -> Result<Site> {
        let base = tempfile::tempdir()?;
        let lower = base.path().join("lower");
        fs::create_dir(&lower)?;
        write_sources(&lower.join("text"), length)?;
        let launcher = Launcher::new()?;
        let serve = |name: &str, policy: &str| {
            let file = base.path().join(format!("{name}.toml"));
            fs::write(&file, policy)?;
            let arguments = ["--policy".as_ref(), file.as_os_str()];
            launcher.tollgate(&arguments, &lower, &base.path().join(name), None)
        };
        let userspace = serve(USERSPACE, "default = 'userspace'\n")?;
        let redact = "[[rule]]\npath = '**'\nkind = 'file'\naction = 'redact'\n";
        let redacted = serve(REDACTED, redact)?;
        let roots = [lower, base.path().join(USERSPACE), base.path().join(REDACTED)];
        Ok(Site { roots, length, redacted, _userspace: userspace, _base: base })
    }

    /// Bytes that `streams` readers of the whole file get in a nanosecond, together.
    fn rate(&self, column: usize, step: usize, streams: usize) -> Result<f64> {
        // Many streams read the beginning: the sum is what counts.
        let each = if streams > 2 { self.length / 16 } else { self.length };
        let path = self.roots[column].join("text");
        let begun = Instant::now();
        let read = std::thread::scope(|scope| {
            let readers: Vec<_> =
                (0..streams).map(|_| scope.spawn(|| read_all(&path, step, each))).collect();
            readers.into_iter().try_fold(0, |sum, reader| {
                let read = reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
                anyhow::Ok(sum + read)
            })
        })?;
        #[expect(clippy::cast_precision_loss, reason = "file sizes are below 2^52")]
        Ok(read as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }
}

fn read_all(path: &Path, step: usize, most: usize) -> Result<usize> {
    let file = File::open(path)?;
    let mut buffer = vec![0; step];
    let mut read = 0;
    while read < most {
        match file.read_at(&mut buffer, read as u64)? {
            0 => break,
            got => read += got,
        }
    }
    Ok(read)
}

/// Writes `length` bytes of Rust sources: those that cargo downloaded, or else this project's own,
/// again and again.
fn write_sources(path: &Path, length: usize) -> Result<()> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut file = File::create(path)?;
    let mut written = 0;
    while written < length {
        let before = written;
        for root in home.iter().map(|home| home.join("registry/src")).chain([own.join("crates")]) {
            append_sources(&root, &mut file, &mut written, length)?;
        }
        ensure!(written > before, "there is no source text below {}", own.display());
    }
    Ok(())
}

fn append_sources(dir: &Path, to: &mut File, written: &mut usize, length: usize) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        if *written >= length {
            break;
        }
        if path.is_dir() {
            append_sources(&path, to, written, length)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read(&path).with_context(|| format!("{}", path.display()))?;
            let text = &text[..text.len().min(length - *written)];
            to.write_all(text)?;
            *written += text.len();
        }
    }
    Ok(())
}
