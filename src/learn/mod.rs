//! `tollgate learn`: the narrowest policy that allows what audit logs show.

mod narrow;
mod seen;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use tollgate_policy::Policy;

use crate::cli::LearnArgs;
use crate::escape::escaped;
use crate::viewer;

use seen::Seen;

/// Most refusals that are listed.
const MAX_REFUSED: usize = 50;
/// Digits of a run's id.
const RUN_DIGITS: usize = 16;

/// Runs `tollgate learn`.
///
/// # Errors
/// When a log cannot be read, no run of the ids given is in it, or nothing was granted.
pub(crate) fn run(args: &LearnArgs) -> anyhow::Result<()> {
    let (files, runs) = split(&args.inputs)?;
    let mut seen = Seen::default();
    for file in &files {
        viewer::records(file, |line| {
            let wanted = line.run.as_ref().is_some_and(|run| runs.contains(run));
            if runs.is_empty() || wanted {
                seen.take(&line);
            }
        })?;
    }
    if let Some(missing) = runs.iter().find(|run| !seen.runs.contains(*run)) {
        bail!("run {missing} is in none of the logs");
    }
    ensure!(
        seen.withheld_unnamed == 0,
        "{} records of what would have been refused were counted without their paths, so what else \
         was allowed cannot be told from them: record less at a time",
        seen.withheld_unnamed
    );
    seen.leave_out_withheld();
    ensure!(!seen.granted.is_empty(), "nothing in the logs was granted: there is nothing to allow");
    let text = policy(&seen, args.exact);
    // What is printed can be used.
    Policy::parse(&text, "the policy that was learned")
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    print!("{text}");
    Ok(())
}

/// Files, and ids of runs.
fn split(inputs: &[PathBuf]) -> anyhow::Result<(Vec<PathBuf>, Vec<String>)> {
    let id = |input: &PathBuf| {
        let text = input.to_str()?;
        let is = text.len() == RUN_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is && !input.exists()).then(|| text.to_owned())
    };
    let runs: Vec<_> = inputs.iter().filter_map(id).collect();
    let files: Vec<_> = inputs.iter().filter(|input| id(input).is_none()).cloned().collect();
    ensure!(!files.is_empty(), "name the audit log, too, that run {} is in", runs[0]);
    Ok((files, runs))
}

/// Writing to a `String` cannot fail.
macro_rules! say {
    ($to:expr, $($what:tt)*) => { let _ = writeln!($to, $($what)*); };
}

fn policy(seen: &Seen, exact: bool) -> String {
    let mut text = String::new();
    let dirs: Vec<_> = seen.dirs.iter().map(|dir| escaped(dir)).collect();
    say!(
        text,
        "# Proposed by `tollgate learn` from {} events of {} runs.",
        seen.records,
        seen.runs.len()
    );
    if !dirs.is_empty() {
        say!(text, "# Of {}.", dirs.join(", "));
    }
    say!(
        text,
        "# What is not named is refused. Read it before you use it: it allows what was done,"
    );
    say!(text, "# whether that was right or not.");
    if seen.dropped > 0 {
        say!(
            text,
            "# The logs lack {} records that were dropped: something may be missing.",
            seen.dropped
        );
    }
    if seen.unnamed > 0 {
        say!(text, "# Left out: {} records of paths that a policy cannot name.", seen.unnamed);
    }
    refusals(seen, &mut text);
    say!(text, "default = \"deny\"");
    say!(text, "");
    say!(text, "# Listings are not recorded, so all are allowed.");
    say!(
        text,
        "[[rule]]\nname = \"list\"\npath = \"**\"\noperation = \"list\"\naction = \"passthrough\""
    );
    let refused: BTreeSet<_> = seen.refused_paths().filter(|path| *path != seen::VARIOUS).collect();
    links(&refused, seen.refused_unnamed > 0, &mut text);
    for (operations, globs) in
        narrow::globs(&seen.granted, &refused, exact || seen.refused_unnamed > 0)
    {
        rule(operations, &globs, &mut text);
    }
    text
}

/// What the text of a link says is looked up by its own name, under the same policy.
fn links(refused: &BTreeSet<&str>, some_unnamed: bool, text: &mut String) {
    if some_unnamed {
        say!(text, "\n# Some refusals have no path, so symbolic links cannot be followed.");
        return;
    }
    say!(text, "\n# Following symbolic links is not recorded, so all others can be followed.");
    let globs: Vec<_> = refused.iter().filter(|path| !path.is_empty()).collect();
    if !globs.is_empty() {
        say!(text, "[[rule]]\nname = \"refused links\"\npath = [");
        for path in globs {
            // A name of DIR itself is meant at any depth, which is safe, and is not warned of.
            let deep = if path.contains('/') { "" } else { "**/" };
            say!(text, "    {},", quoted(&(deep.to_owned() + &narrow::literal(path))));
        }
        say!(text, "]\nkind = \"symlink\"\naction = \"deny\"\n");
    }
    say!(
        text,
        "[[rule]]\nname = \"links\"\npath = \"**\"\nkind = \"symlink\"\noperation = \"read\""
    );
    say!(text, "action = \"passthrough\"");
}

fn refusals(seen: &Seen, text: &mut String) {
    if seen.refused.is_empty() {
        return;
    }
    say!(text, "#\n# Refused, or to be refused, and so left out:");
    for ((path, operation, rule), count) in seen.refused.iter().take(MAX_REFUSED) {
        let (path, rule) = (escaped(path), escaped(rule));
        say!(
            text,
            "#   {operation} {path}: {count} times, by {rule}",
            operation = escaped(operation)
        );
    }
    if seen.refused.len() > MAX_REFUSED {
        say!(text, "#   and at {} more places", seen.refused.len() - MAX_REFUSED);
    }
    say!(text, "#");
}

fn rule(operations: u8, globs: &[String], text: &mut String) {
    let words = seen::words(operations);
    let list: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    say!(text, "\n[[rule]]\nname = \"{}\"\npath = [", words.join(", "));
    for glob in globs {
        say!(text, "    {},", quoted(glob));
    }
    say!(text, "]\noperation = [{}]\naction = \"passthrough\"", list.join(", "));
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", char as u32);
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_kind_make_a_policy() {
        let mut seen = Seen::default();
        for path in ["a\"b\\c", "new\nline", "star*", "{a,b}", "[x]", "\u{7f}\u{85}", "ü"] {
            seen.granted.insert(path.to_owned(), seen::READ);
        }
        let text = policy(&seen, true);
        let policy = Policy::parse(&text, "learned").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(policy.rules().len(), 3);
    }
}
