//! `tollgate learn`: the narrowest policy that allows what audit logs show.

mod allowed;
mod kept;
mod left_out;
mod names;
mod narrow;
mod seen;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use tollgate_policy::Policy;

use crate::audit::read::without_an_end;
use crate::cli::LearnArgs;
use crate::escape::escaped;
use crate::messages;
use crate::viewer;

use allowed::{Allowed, Reach};
use seen::{ALL, Seen};
use text::{beginning, list, rule_of};

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
        })
        .context("no policy is proposed from a log that cannot be read as a whole")?;
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
    let several = seen.runs.len() > 1 || seen.reloaded;
    ensure!(
        seen.refused_unnamed == 0 || !several,
        "{} refusals were counted without their paths, and the logs are of several runs or policies, so \
         what was allowed by one and refused by another cannot be told: name one run at a time, or \
         record less",
        seen.refused_unnamed
    );
    seen.leave_out_withheld();
    let made = seen.made_at.iter().map(String::as_str);
    let made = allowed::under_all_names(made, &[&seen.moved, &seen.linked])?;
    seen.leave_out_made(made);
    ensure!(
        !seen.granted.is_empty(),
        "nothing in the logs was granted{}: there is nothing to allow",
        if seen.both.is_empty() { "" } else { " that was not refused at another time" }
    );
    let text = policy(&seen, args.exact)?;
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
    // What is neither may be meant as either.
    if let Some(missing) =
        files.iter().find(|file| !file.exists() && !file.to_string_lossy().contains(['/', '.']))
    {
        bail!(
            "no file `{0}`, and no id of a run: those have {RUN_DIGITS} hexadecimal digits, as \
             `tollgate audit` shows them",
            missing.display()
        );
    }
    Ok((files, runs))
}

/// Writing to a `String` cannot fail.
macro_rules! say {
    ($to:expr) => { let _ = writeln!($to); };
    ($to:expr, $($what:tt)*) => { let _ = writeln!($to, $($what)*); };
}

fn policy(seen: &Seen, exact: bool) -> anyhow::Result<String> {
    let mut text = String::new();
    let dirs: Vec<_> = seen.dirs.iter().map(|dir| escaped(dir)).collect();
    say!(
        text,
        "# Proposed by `tollgate learn` from {} of {}.",
        messages::count(usize::try_from(seen.records).unwrap_or(usize::MAX), "event"),
        messages::count(seen.runs.len(), "run")
    );
    if !dirs.is_empty() {
        say!(text, "# Of {}.", dirs.join(", "));
    }
    say!(
        text,
        "# What is not named is refused. Read it before you use it: it allows what was done,"
    );
    say!(text, "# whether that was right or not.");
    let lost = seen.lost.counts();
    let unwritten = "could not be written";
    for (count, [of_one, of_several]) in
        lost.into_iter().zip([["was dropped", "were dropped"], [unwritten; 2]])
    {
        if count > 0 {
            let records = messages::count(usize::try_from(count).unwrap_or(usize::MAX), "record");
            let what = if count == 1 { of_one } else { of_several };
            say!(text, "# The logs lack {records} that {what}: something may be missing.");
        }
    }
    match seen.runs.difference(&seen.ended).count() {
        0 => {}
        endless => {
            say!(text, "# {}", without_an_end(endless));
        }
    }
    if seen.unnamed > 0 {
        let records =
            messages::count(usize::try_from(seen.unnamed).unwrap_or(usize::MAX), "record");
        say!(text, "# Left out: {records} of paths that a policy cannot name.");
    }
    left_out::add(seen, &mut text);
    say!(text, "default = \"deny\"");
    say!(text, "");
    listings(seen, &mut text)?;
    let refused = seen.refused_at.iter().map(String::as_str);
    let refused = allowed::under_all_names(refused, &[&seen.moved, &seen.linked])?;
    links(&refused, seen.refused_unnamed > 0, &mut text);
    let granted = seen.by_kind();
    let mut allowed = Allowed::default();
    let exact = exact || seen.refused_unnamed > 0;
    let apart = refused.union(&seen.made_at).cloned().collect();
    narrow::add_files(&granted.files, &apart, exact, &mut allowed);
    for (path, operations) in &granted.directories {
        allowed.add(path, Reach::Directories, *operations);
    }
    allowed.join(&seen.moved, &seen.linked)?;
    kept::add(seen, &allowed, &mut text)?;
    watched(seen, &allowed, &mut text)?;
    for ((directories, operations), globs) in allowed.globs() {
        rule(directories, operations, &globs, &mut text);
    }
    Ok(text)
}

/// What went through the server goes on doing so.
fn watched(seen: &Seen, allowed: &Allowed, text: &mut String) -> anyhow::Result<()> {
    let names = [&seen.moved, &seen.linked];
    let all = allowed::under_all_names(seen.watched.iter().map(String::as_str), &names)?;
    let mut watched = BTreeMap::<u8, BTreeSet<String>>::new();
    for name in all {
        let operations = allowed.on(&name, false);
        if operations != 0 {
            watched.entry(operations).or_default().insert(names::literal(&name));
        }
    }
    for (operations, globs) in watched {
        // A rule of `userspace` is about all operations.
        let others = seen::words(ALL & !operations);
        if !others.is_empty() {
            rule_of(&format!("watched, refused: {}", others.join(", ")), &globs, text);
            say!(text, "kind = \"file\"\noperation = {}\naction = \"deny\"", list(&others));
        }
        rule_of(&format!("watched: {}", seen::words(operations).join(", ")), &globs, text);
        say!(text, "kind = \"file\"\naction = \"userspace\"");
    }
    Ok(())
}

/// Listings that were granted are in no record; those that were refused are.
fn listings(seen: &Seen, text: &mut String) -> anyhow::Result<()> {
    let names = [&seen.moved, &seen.linked];
    let hidden = allowed::under_all_names(seen.hidden(), &names)?;
    let refused = allowed::under_all_names(seen.unlisted.iter().map(String::as_str), &names)?;
    let mut globs: BTreeSet<_> = hidden.iter().map(|path| names::at_any_depth(path)).collect();
    let named = refused.iter().filter(|path| !path.is_empty());
    globs.extend(named.map(|path| names::literal(path)));
    let others = if globs.is_empty() { "all" } else { "all others" };
    say!(text, "# Listings are not recorded, so {others} are allowed.");
    if !globs.is_empty() {
        beginning("refused listings", &globs, text);
        say!(text, "operation = \"list\"\naction = \"deny\"\n");
    }
    // All but DIR itself, or that as well.
    let path = if refused.contains("") { "*" } else { "**" };
    say!(
        text,
        "[[rule]]\nname = \"list\"\npath = \"{path}\"\noperation = \"list\"\naction = \"passthrough\""
    );
    Ok(())
}

/// What the text of a link says is looked up by its own name, under the same policy.
fn links(refused: &BTreeSet<String>, some_unnamed: bool, text: &mut String) {
    if some_unnamed {
        say!(text, "\n# Some refusals have no path, so symbolic links cannot be followed.");
        return;
    }
    say!(text, "\n# Following symbolic links is not recorded, so all others can be followed.");
    let globs = refused.iter().filter(|path| !path.is_empty());
    let globs: Vec<_> = globs.map(|path| names::at_any_depth(path)).collect();
    if !globs.is_empty() {
        beginning("refused links", &globs, text);
        say!(text, "kind = \"symlink\"\naction = \"deny\"\n");
    }
    say!(
        text,
        "[[rule]]\nname = \"links\"\npath = \"**\"\nkind = \"symlink\"\noperation = \"read\""
    );
    say!(text, "action = \"passthrough\"");
}

fn rule(directories: bool, operations: u8, globs: &[String], text: &mut String) {
    let words = seen::words(operations);
    let about = if directories { "directories: " } else { "" };
    rule_of(&format!("{about}{}", words.join(", ")), globs, text);
    if directories {
        say!(text, "kind = \"directory\"");
    }
    say!(text, "operation = {}\naction = \"passthrough\"", list(&words));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::read::parse;

    #[test]
    fn names_of_any_kind_make_a_policy() {
        let mut seen = Seen::default();
        for path in ["a\"b\\c", "new\nline", "star*", "{a,b}", "[x]", "\u{7f}\u{85}", "ü"] {
            let record = serde_json::json!({
                "time": "t", "event": "request", "operation": "open", "access": "read",
                "outcome": "passthrough", "path": path,
            });
            seen.take(&parse(record.to_string().as_bytes()).unwrap());
        }
        let text = policy(&seen, true).unwrap();
        let policy = Policy::parse(&text, "learned").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(policy.rules().len(), 3);
    }
}
