//! The overview of all commands, in groups, and hints for a wrong command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands by who needs them. One that is in no group stands in the last.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Fence a command", &["run", "init", "doctor", "demo"]),
    ("Policies", &["check", "explain", "why", "test", "learn", "brief"]),
    ("Views that are served", &["mount", "umount", "status", "top", "audit", "reload", "broker"]),
    ("Secrets in files", &["redact", "seal"]),
    ("For engineers", &["topology", "hugepage", "wq"]),
    (OTHER, &["completions", "help"]),
];
const OTHER: &str = "Other commands";
/// Widest line of help; see `max_term_width`.
const MAX_WIDTH: usize = 100;
/// Narrower than this, lines are not wrapped any more.
const MIN_WIDTH: usize = 40;

/// Whether the overview of all commands may be asked for.
pub(crate) fn wants_overview(arguments: &[OsString]) -> bool {
    let own = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    arguments.len() < 2
        || own.into_iter().any(|one| one == "help" || one == "-h" || one == "--help")
}

/// The command line with its commands in groups.
pub(crate) fn grouped(mut command: Command) -> Command {
    command.build();
    let commands = overview(&command, width());
    command.help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}\
         {}\n{{options}}{{after-help}}",
        heading("Options")
    ))
}

fn heading(text: &str) -> String {
    format!("\x1b[1m\x1b[4m{text}:\x1b[0m")
}

fn overview(command: &Command, width: usize) -> String {
    let all: Vec<&Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
    let column = all.iter().map(|one| one.get_name().len()).max().unwrap_or(0) + 4;
    let listed = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &heading(title);
        text.push('\n');
        let in_order = names.iter().filter_map(|name| all.iter().find(|it| it.get_name() == *name));
        let rest = all.iter().filter(|one| title == OTHER && !listed(one.get_name()));
        for one in in_order.chain(rest) {
            text += &entry(one, column, width);
        }
        text.push('\n');
    }
    text
}

/// A command's name and what it does, wrapped behind the column of names.
fn entry(command: &Command, column: usize, width: usize) -> String {
    let name = command.get_name();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let room = width.saturating_sub(column).max(MIN_WIDTH - column);
    let mut lines = vec![String::new()];
    for word in about.split_whitespace() {
        let line = lines.last_mut().expect("there is a line from the start");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= room {
            *line = format!("{line} {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    let indent = " ".repeat(column);
    let padding = " ".repeat(column - 2 - name.len());
    format!("  \x1b[1m{name}\x1b[0m{padding}{}\n", lines.join(&format!("\n{indent}")))
}

/// Of the terminal, else what COLUMNS says, at most [`MAX_WIDTH`].
fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = terminal.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let said = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    columns.or_else(said).unwrap_or(MAX_WIDTH).clamp(MIN_WIDTH, MAX_WIDTH)
}

/// Where the name of the command stands: behind the options that every command has.
fn place_of_command(arguments: &[OsString]) -> usize {
    let is_verbose = |word: &OsString| match word.as_bytes() {
        b"--verbose" => true,
        [b'-', letters @ ..] => !letters.is_empty() && letters.iter().all(|one| *one == b'v'),
        _ => false,
    };
    1 + arguments.iter().skip(1).take_while(|word| is_verbose(word)).count()
}

/// Whether the command is `run`, whose failures and wrong usage have an exit status of their own.
pub(crate) fn is_run(arguments: &[OsString]) -> bool {
    arguments.get(place_of_command(arguments)).is_some_and(|command| command == "run")
}

/// What to say when `run` was given a command without the two dashes before it.
pub(crate) fn hint_of_dashes(arguments: &[OsString], error: &clap::Error) -> Option<String> {
    let words: Vec<&str> = arguments.iter().filter_map(|one| one.to_str()).collect();
    if !is_run(arguments) || words.contains(&"--") || words.len() != arguments.len() {
        return None;
    }
    let run = place_of_command(arguments);
    if error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    let at = match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let at = words.iter().rposition(|word| word == wrong || word.starts_with(wrong))?;
            // An argument of the command: the command is the word before it.
            if wrong.starts_with('-') { at.checked_sub(1).filter(|at| *at > run)? } else { at }
        }
        ErrorKind::MissingRequiredArgument => words.len() - 1,
        _ => return None,
    };
    if at <= run || words[at].starts_with('-') {
        return None;
    }
    let missing = error.kind() == ErrorKind::MissingRequiredArgument;
    let (before, after) = if missing && Path::new(words[at]).is_dir() {
        (&words[1..=at], vec!["CMD"])
    } else {
        (&words[1..at], words[at..].to_vec())
    };
    Some(format!(
        "the command stands after two dashes: `tollgate {} -- {}`",
        before.join(" "),
        after.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    #[test]
    fn every_command_is_in_the_overview_once_and_no_line_is_too_wide() {
        let mut command = Cli::command();
        command.build();
        for width in [40, 72, 100] {
            let text = overview(&command, width);
            for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
                let name = format!("  \x1b[1m{}\x1b[0m", one.get_name());
                assert_eq!(text.matches(&name).count(), 1, "{name} in:\n{text}");
            }
            let plain = text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[4m", "");
            let widest = plain.lines().filter(|line| line.starts_with("  "));
            assert!(widest.map(|line| line.chars().count()).all(|len| len <= width), "{plain}");
        }
    }

    #[test]
    fn a_command_without_dashes_gets_a_hint_and_a_typing_mistake_does_not() {
        let hint = |words: &[&str]| {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            let error = <Cli as clap::Parser>::try_parse_from(&arguments).unwrap_err();
            hint_of_dashes(&arguments, &error)
        };
        let ends = |words: &[&str], end: &str| {
            assert!(hint(words).is_some_and(|hint| hint.ends_with(end)), "{:?}", hint(words));
        };
        ends(&["tollgate", "run", "p", "ls"], "`tollgate run p -- ls`");
        ends(&["tollgate", "run", "p", "ls", "-l"], "`tollgate run p -- ls -l`");
        ends(&["tollgate", "run", "ls", "-Z"], "`tollgate run -- ls -Z`");
        ends(&["tollgate", "run", "no-such-directory"], "`tollgate run -- no-such-directory`");
        ends(&["tollgate", "run", "/"], "`tollgate run / -- CMD`");
        ends(&["tollgate", "-v", "run", "p", "ls"], "`tollgate -v run p -- ls`");
        ends(&["tollgate", "--verbose", "run", "ls", "-Z"], "`tollgate --verbose run -- ls -Z`");
        assert_eq!(hint(&["tollgate", "-v", "run"]), None);
        assert_eq!(hint(&["tollgate", "run", "--polcy", "x", "p"]), None);
        assert_eq!(hint(&["tollgate", "run"]), None);
        assert_eq!(hint(&["tollgate", "mount", "p"]), None);
    }
}
