//! A recording of a program that writes to a terminal, as an SVG in which line after line appears.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// Width of the terminal in characters.
const COLUMNS: u16 = 104;
const ROWS: u16 = 60;
/// Longest pause between two lines that is shown.
const LONGEST_PAUSE: Duration = Duration::from_millis(700);
/// Shortest, so that lines written at once can be seen to follow each other.
const SHORTEST_PAUSE: Duration = Duration::from_millis(40);

/// Pixels.
const CHARACTER_WIDTH: f64 = 7.8;
const LINE_HEIGHT: f64 = 17.0;
const MARGIN: f64 = 16.0;

/// One line, and when it was complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Without its end.
    pub text: String,
    /// Since the start.
    pub at: Duration,
}

/// Runs a program in a terminal of its own until it ends.
///
/// # Errors
/// When it cannot be started, fails, or writes what is more than lines of text.
pub fn record(program: &Path, arguments: &[&str]) -> anyhow::Result<Vec<Line>> {
    let (ours, theirs) = terminal().context("cannot open a terminal")?;
    let copy = || theirs.try_clone().map(Stdio::from).context("cannot copy a descriptor");
    let mut command = Command::new(program);
    command.args(arguments).env("TERM", "dumb").env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    let start = Instant::now();
    let mut child =
        command.spawn().with_context(|| format!("`{}` cannot be started", program.display()))?;
    // The terminal reports its end once nobody else has it open.
    drop((command, theirs));
    let lines = read(&mut File::from(ours), start)?;
    let status = child.wait().context("the program is lost")?;
    if !status.success() {
        bail!("`{}` failed: {status}", program.display());
    }
    Ok(lines)
}

fn terminal() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    let name = rustix::pty::ptsname(&ours, Vec::new())?;
    let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
    let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&theirs, size)?;
    Ok((ours, theirs))
}

fn read(terminal: &mut File, start: Instant) -> anyhow::Result<Vec<Line>> {
    let (mut lines, mut line, mut bytes) = (Vec::new(), Vec::new(), [0; 4096]);
    // EIO is how a terminal says that its other side is closed.
    while let Ok(read @ 1..) = terminal.read(&mut bytes) {
        for &byte in &bytes[..read] {
            match byte {
                b'\n' => {
                    let text = String::from_utf8(std::mem::take(&mut line));
                    let text = text.context("the program does not write UTF-8")?;
                    let text = text.trim_end().to_owned();
                    lines.push(Line { text, at: start.elapsed() });
                }
                b'\r' => {}
                0x1b => bail!("the program writes control sequences, which are not recorded"),
                byte => line.push(byte),
            }
        }
    }
    Ok(lines)
}

/// The picture: `command` after a prompt, then the lines at their times, long pauses shortened.
#[must_use]
pub fn svg(command: &str, lines: &[Line]) -> String {
    let widest = lines.iter().map(|line| line.text.chars().count()).max().unwrap_or(0);
    let width = length(widest.max(40)) + 2.0 * MARGIN;
    let rows = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let height = f64::from(rows) * LINE_HEIGHT + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
         <title>{title}</title>\n<style>\n\
         text {{ font: 13px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; \
         white-space: pre; fill: #d8dee9; opacity: 0; animation: show 1ms linear forwards; }}\n\
         .prompt {{ fill: #a3be8c; }} .refused {{ fill: #ebcb8b; }}\n\
         @keyframes show {{ to {{ opacity: 1; }} }}\n\
         @media (prefers-reduced-motion: reduce) {{ text {{ opacity: 1; animation: none; }} }}\n\
         </style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1f2430\"/>\n",
        title = escaped(command)
    );
    let prompt = format!("$ {command}");
    text(&mut svg, 0, &prompt, "prompt", Duration::from_millis(200));
    let (mut shown, mut before) = (Duration::from_secs(1), Duration::ZERO);
    for (row, line) in (2u16..).zip(lines) {
        let pause = line.at.saturating_sub(before).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        (shown, before) = (shown + pause, line.at);
        text(&mut svg, row, &line.text, class(&line.text), shown);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Lines that tell of a refusal are in another colour.
fn class(line: &str) -> &'static str {
    let refusals = ["Permission denied", "Read-only file system", "No such file", "(no such name)"];
    if refusals.iter().any(|refusal| line.contains(refusal)) { "refused" } else { "" }
}

fn text(svg: &mut String, row: u16, line: &str, class: &str, at: Duration) {
    if line.trim().is_empty() {
        return;
    }
    let y = MARGIN + (f64::from(row) + 0.8) * LINE_HEIGHT;
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    // Every line is as wide as its characters in the table, whatever font there is.
    let length = length(line.chars().count());
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{y:.1}\" textLength=\"{length:.1}\"{class} \
         style=\"animation-delay:{:.2}s\" xml:space=\"preserve\">{}</text>",
        at.as_secs_f64(),
        escaped(line)
    );
}

fn length(characters: usize) -> f64 {
    f64::from(u16::try_from(characters).unwrap_or(u16::MAX)) * CHARACTER_WIDTH
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_a_terminal_and_its_lines_are_recorded() {
        let script = "test -t 1 && echo one; echo '  <two>' >&2; stty size <&1";
        let lines = record(Path::new("/bin/sh"), &["-c", script]).unwrap();
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["one", "  <two>", "60 104"]);
        let svg = svg("sh & co", &lines);
        assert!(svg.contains(">  &lt;two&gt;</text>") && svg.contains("$ sh &amp; co<"), "{svg}");
        assert_eq!(svg.matches("<text ").count(), 4);
    }

    #[test]
    fn failures_and_control_sequences_are_errors() {
        let sh = |script| record(Path::new("/bin/sh"), &["-c", script]).unwrap_err().to_string();
        assert!(sh("exit 3").contains("exit status: 3"));
        assert!(sh("printf '\\033[1m'").contains("control sequences"));
        assert!(record(Path::new("/no/such/program"), &[]).is_err());
    }

    #[test]
    fn long_pauses_are_shortened() {
        let line = |seconds| Line { text: "x".to_owned(), at: Duration::from_secs(seconds) };
        let svg = svg("x", &[line(1), line(100)]);
        assert!(svg.contains("delay:1.70s") && svg.contains("delay:2.40s"), "{svg}");
    }
}
