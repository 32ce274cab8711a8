//! Man pages, one for each command, from the definition of the command line: for packages.

use std::io;
use std::path::Path;

use anyhow::{Context, bail};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::cli::{Cli, ManPagesArgs};
use crate::escape::shown;

/// Begins the part of a help text about exit codes.
const EXIT_STATUS: &str = "Exit status:";

/// Writes the pages into a directory.
///
/// # Errors
/// When the directory or a page cannot be written, or a command has no example.
pub(crate) fn run(args: &ManPagesArgs) -> anyhow::Result<()> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir)
        .with_context(|| format!("directory `{}` cannot be made", shown(dir)))?;
    let mut top = Cli::command().disable_help_subcommand(true);
    top.build();
    write(dir, &mut top, None)
}

/// The page of `command` and those of its subcommands.
fn write(dir: &Path, command: &mut Command, parent: Option<&str>) -> anyhow::Result<()> {
    let name = name(command);
    let file = dir.join(format!("{name}.1"));
    let page = page(command, parent).with_context(|| format!("page of `{name}`"))?;
    std::fs::write(&file, page)
        .with_context(|| format!("page `{}` cannot be written", shown(&file)))?;
    let below = command.get_subcommands_mut().filter(|command| !command.is_hide_set());
    below.into_iter().try_for_each(|command| write(dir, command, Some(&name)))
}

/// `tollgate-wq-dump`.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &mut Command, parent: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let help = Help::of(command);
    if help.examples.is_empty() {
        bail!("its help text has no example");
    }
    let usage = command.render_usage().to_string();
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    let others: Vec<_> = parent.map(str::to_owned).into_iter().chain(below.map(name)).collect();
    let man = Man::new(command.clone())
        .title(name(command).to_uppercase())
        .source(format!("tollgate {}", env!("CARGO_PKG_VERSION")))
        .manual("Tollgate");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    as_it_is(&mut page, "SYNOPSIS", &[usage.trim_start_matches("Usage: ").to_owned()])?;
    man.render_description_section(&mut page)?;
    prose(&mut page, &help.prose)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = help.exit_status {
        section(&mut page, "EXIT STATUS", vec![roman(text)])?;
    }
    as_it_is(&mut page, "EXAMPLES", &help.examples)?;
    section(&mut page, "SEE ALSO", see_also(&others))?;
    Ok(page)
}

/// What follows the options in a help text, by its parts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Help {
    /// Paragraphs.
    prose: Vec<String>,
    exit_status: Option<String>,
    /// Lines, without the indentation that they have in common.
    examples: Vec<String>,
}

impl Help {
    fn of(command: &Command) -> Self {
        let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let mut help = Self::default();
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
            let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
            if matches!(first, "Examples:" | "Example:") {
                let lines = rest.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
                help.examples.extend(lines.map(str::to_owned));
            } else if let Some(codes) = paragraph.strip_prefix(EXIT_STATUS) {
                help.exit_status = Some(codes.trim().to_owned());
            } else {
                help.prose.push(paragraph.to_owned());
            }
        }
        help
    }
}

fn see_also(pages: &[String]) -> Vec<Inline> {
    let mut line = Vec::new();
    for page in pages {
        let comma = if line.is_empty() { "" } else { ", " };
        line.extend([roman(comma), bold(page.clone()), roman("(1)")]);
    }
    line
}

fn prose(page: &mut Vec<u8>, paragraphs: &[String]) -> io::Result<()> {
    let mut roff = Roff::new();
    for paragraph in paragraphs {
        roff.control("PP", []).text([roman(paragraph.as_str())]);
    }
    roff.to_writer(page)
}

fn section(page: &mut Vec<u8>, heading: &str, text: Vec<Inline>) -> io::Result<()> {
    Roff::new().control("SH", [heading]).text(text).to_writer(page)
}

/// A section whose lines are not filled.
fn as_it_is(page: &mut Vec<u8>, heading: &str, lines: &[String]) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in lines {
        roff.text([roman(line.as_str())]);
    }
    roff.control("fi", []).to_writer(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_text_is_taken_apart() {
        let text = "How it works,\nin words.\n\nExamples:\n  a b\n    c\n\nExit status: 0\nor 1.";
        let help = Help::of(&Command::new("x").after_long_help(text));
        assert_eq!(help.prose, ["How it works,\nin words."]);
        assert_eq!(help.examples, ["a b", "  c"]);
        assert_eq!(help.exit_status.as_deref(), Some("0\nor 1."));
        assert_eq!(Help::of(&Command::new("x")), Help::default());
    }
}
