//! `tollgate redact`: what would be masked.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tollgate_redact::{DEFAULT_FILE_MAX, Detector, Detectors, MASK, Redactor};

use crate::cli::{RedactCommand, RedactTestArgs};
use crate::{escape, messages};

/// Most bytes that are read of what is no regular file.
const PIPE_MAX: u64 = 64 << 20;

pub(crate) fn run(command: &RedactCommand) -> Result<()> {
    match command {
        RedactCommand::Test(args) => test(args),
    }
}

/// What was found, in words.
struct Finding {
    line: usize,
    column: usize,
    rule: String,
    kind: Option<&'static str>,
    bytes: std::ops::Range<usize>,
}

fn test(args: &RedactTestArgs) -> Result<()> {
    let redactor = Redactor::new(detectors(args));
    let name = escape::shown(&args.file);
    let text = read(&args.file).with_context(|| format!("`{name}`"))?;
    redactor.to_read(0..0, text.len() as u64).with_context(|| format!("`{name}`"))?;
    let mut masked = text.clone();
    let mut findings = Vec::new();
    redactor.mask_all(&mut masked, |found| {
        let (rule, kind, bytes) = (found.rule.to_string(), found.kind, found.bytes);
        findings.push(Finding { line: 0, column: 0, rule, kind, bytes });
    });
    findings.sort_by_key(|finding| (finding.bytes.start, finding.bytes.end));
    place(&text, &mut findings);
    let mut out = io::stdout().lock();
    if args.masked {
        out.write_all(&masked)?;
    } else if args.json {
        writeln!(out, "{}", escape::json_text(&as_json(&args.file, &findings).to_string()))?;
    } else {
        print(&mut out, &args.file, &without_others(&text, masked), &findings)?;
    }
    Ok(())
}

/// At most as much as is masked in a view; a device or a pipe may have no end.
fn read(file: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = DEFAULT_FILE_MAX;
    let opened = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    let meta = opened.metadata()?;
    ensure!(!meta.is_dir(), "it is a directory; name a file");
    // As much memory as that is not filled before it is known to be in vain.
    let limit = if meta.is_file() { limit } else { PIPE_MAX };
    ensure!(meta.len() <= limit, "it is longer than {limit} bytes, the most that is masked");
    // A FIFO that nobody has open for writing is at its end at once; whoever has may take his time.
    let first = (&opened).take(limit + 1).read_to_end(&mut text);
    if first.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        rustix::io::ioctl_fionbio(&opened, false)?;
        (&opened).take(limit + 1 - text.len() as u64).read_to_end(&mut text)?;
    }
    // A pipe by its name in /proc is a link.
    let is_fifo = file.symlink_metadata().is_ok_and(|meta| meta.file_type().is_fifo());
    ensure!(!(is_fifo && text.is_empty()), "it is a FIFO, and nobody writes to it");
    ensure!(text.len() as u64 <= limit, "it is no file, and gives more than {limit} bytes");
    Ok(text)
}

/// The lines to show: what is a secret to a detector that was not asked for is not printed either.
fn without_others(text: &[u8], masked: Vec<u8>) -> Vec<u8> {
    let mut others = text.to_vec();
    Redactor::new(Detectors::default()).mask_all(&mut others, |_| {});
    let both = masked.into_iter().zip(others);
    both.map(|(own, other)| if other == MASK { MASK } else { own }).collect()
}

/// Those asked for; the default ones, and `env` for a file of that name.
fn detectors(args: &RedactTestArgs) -> Detectors {
    let env_file =
        args.file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".env"));
    let named = match args.detectors.as_slice() {
        [] if env_file => Detectors::default().and(&[Detector::Env]),
        [] if args.regexes.is_empty() => Detectors::default(),
        some => Detectors::only(some),
    };
    args.regexes.iter().cloned().fold(named, Detectors::and_own)
}

/// Line and column of each, in one walk.
fn place(text: &[u8], findings: &mut [Finding]) {
    let (mut at, mut line, mut line_start) = (0, 1, 0);
    for finding in findings {
        for (index, byte) in text[at..finding.bytes.start].iter().enumerate() {
            if *byte == b'\n' {
                line += 1;
                line_start = at + index + 1;
            }
        }
        at = finding.bytes.start;
        (finding.line, finding.column) = (line, 1 + at - line_start);
    }
}

fn print(out: &mut impl Write, file: &Path, masked: &[u8], findings: &[Finding]) -> Result<()> {
    for finding in findings {
        let kind = finding.kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        let Finding { line, column, rule, bytes, .. } = finding;
        let start = bytes.start + 1 - column;
        let rest = &masked[start..];
        let shown = rest.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        let shown: String = String::from_utf8_lossy(shown).chars().take(100).collect();
        let shown = escape::escaped(&shown);
        writeln!(
            out,
            "{}:{line}:{column}: {rule}{kind}, {} bytes: {shown}",
            escape::shown(file),
            bytes.len()
        )?;
    }
    let masked: usize = masked_bytes(findings);
    let number = messages::count(findings.len(), "secret");
    writeln!(out, "{number}, {masked} bytes masked")?;
    Ok(())
}

/// Bytes that at least one finding covers; they come in order.
fn masked_bytes(findings: &[Finding]) -> usize {
    let mut end = 0;
    let mut sum = 0;
    for Finding { bytes, .. } in findings {
        sum += bytes.end.saturating_sub(bytes.start.max(end));
        end = end.max(bytes.end);
    }
    sum
}

fn as_json(file: &Path, findings: &[Finding]) -> serde_json::Value {
    let list: Vec<_> = findings
        .iter()
        .map(|f| {
            json!({"line": f.line, "column": f.column, "offset": f.bytes.start,
                   "length": f.bytes.len(), "detector": f.rule, "kind": f.kind})
        })
        .collect();
    let mut fields = escape::in_json(file);
    fields.insert("masked_bytes".to_owned(), masked_bytes(findings).into());
    fields.insert("found".to_owned(), list.into());
    fields.into()
}
