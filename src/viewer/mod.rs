//! `tollgate audit`: shows an audit log.

mod files;
mod filter;
mod own;
mod show;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};

use crate::audit::read::{self, Line};
use crate::cli::AuditArgs;
use crate::escape::{escaped, json_text, shown};
use crate::messages;
use crate::soft_limits::raise_open_files;

use files::{Flow, Read, Reader};
use filter::{Filter, Fits};
use show::{Colours, Totals};

/// Most damaged lines that are named.
const MAX_NAMED: u64 = 20;

/// Runs `tollgate audit`.
///
/// # Errors
/// When the log cannot be read, or a line of it is damaged.
pub(crate) fn run(args: &AuditArgs) -> anyhow::Result<()> {
    let file = args.file.clone().map_or_else(own::only_log, Ok)?;
    let mut viewer = Viewer {
        filter: Filter::new(args)?,
        colours: Colours::of_stdout(),
        json: args.json,
        totals: Totals::default(),
        damaged: 0,
        not_told: 0,
        failed: None,
    };
    let last = each(&file, &mut |read| viewer.take(&read))?;
    if let (true, Some(last)) = (args.follow, last) {
        files::follow(&file, last, &mut |read| viewer.take(&read))
            .with_context(|| cannot_read(&file))?;
    }
    viewer.end()
}

/// The records of `file` and its rotated parts, in order, to `take`; damaged lines are named.
///
/// # Errors
/// When a file cannot be read, or lines were damaged, after all others were handed on.
pub(crate) fn records(file: &Path, mut take: impl FnMut(Line)) -> anyhow::Result<()> {
    let mut damaged = 0;
    each(file, &mut |read| {
        match line(&read) {
            Ok(line) => take(line),
            Err(problem) => name_damaged(&read, &problem, &mut damaged),
        }
        Flow::Continue
    })?;
    refuse_damaged(damaged)
}

/// Hands every line of `file` and its rotated parts on. Returns where FILE itself ended.
fn each(file: &Path, take: &mut impl FnMut(Read<'_>) -> Flow) -> anyhow::Result<Option<Reader>> {
    let mut last = None;
    // All parts are open at once.
    raise_open_files();
    for mut part in files::open_all(file).with_context(|| cannot_read(file))? {
        if part.read(false, take).with_context(|| cannot_read(part.path()))? == Flow::End {
            return Ok(None);
        }
        last = Some(part);
    }
    Ok(last)
}

fn cannot_read(file: &Path) -> String {
    format!("audit log `{}` cannot be read", shown(file))
}

fn line(read: &Read<'_>) -> Result<Line, String> {
    read.line.clone().and_then(read::parse)
}

fn name_damaged(read: &Read<'_>, problem: &str, damaged: &mut u64) {
    *damaged += 1;
    if *damaged <= MAX_NAMED {
        let place = format!("{}:{}", read.file.display(), read.number);
        messages::warn(&escaped(&format!("{place}: not a record: {problem}")));
    }
}

fn refuse_damaged(damaged: u64) -> anyhow::Result<()> {
    match damaged {
        0 => Ok(()),
        1 => bail!("1 line is damaged and was left out"),
        more => bail!("{more} lines are damaged and were left out"),
    }
}

struct Viewer {
    filter: Filter,
    colours: Colours,
    json: bool,
    totals: Totals,
    damaged: u64,
    /// Records that are shown because their paths are cut, and might fit.
    not_told: usize,
    /// Standard output takes no more.
    failed: Option<std::io::Error>,
}

impl Viewer {
    fn take(&mut self, read: &Read<'_>) -> Flow {
        let line = match line(read) {
            Ok(line) => line,
            Err(problem) => {
                name_damaged(read, &problem, &mut self.damaged);
                return Flow::Continue;
            }
        };
        match self.filter.fits(&line) {
            Fits::No => return Flow::Continue,
            Fits::Perhaps => self.not_told += 1,
            Fits::Yes => {}
        }
        self.totals.add(&line);
        let mut out = std::io::stdout().lock();
        let written = match (&read.line, self.json) {
            (Ok(bytes), true) => write_record(&mut out, bytes),
            _ => writeln!(out, "{}", show::text(&line, self.colours)),
        };
        match written {
            Ok(()) => Flow::Continue,
            Err(error) => {
                self.failed = Some(error);
                Flow::End
            }
        }
    }

    fn end(self) -> anyhow::Result<()> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        if !self.json {
            print!("{}", self.totals.text());
        }
        if self.not_told > 0 {
            let records = messages::count(self.not_told, "record");
            messages::note(&format!(
                "shown because the log has a part of the path alone, and the rest might fit: {records}"
            ));
        }
        refuse_damaged(self.damaged)
    }
}

/// A record as it is in the log, which others may have written to.
fn write_record(out: &mut impl Write, line: &[u8]) -> std::io::Result<()> {
    for chunk in line.utf8_chunks() {
        out.write_all(json_text(chunk.valid()).as_bytes())?;
        out.write_all(chunk.invalid())?;
    }
    out.write_all(b"\n")
}
