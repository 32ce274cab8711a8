//! `tollgate explain`.

mod look;
mod moved;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use rustix::io::Errno;
use serde::Serialize;
use tollgate_policy::{
    Condition, Explanation, Kind, MoveReport, Operation, Policy, Rule, RuleReport, Status, Verdict,
};

use crate::cli::{CallerArg, ExplainArgs, OperationArg};
use crate::escape::{escaped, json_text, shown, without_controls};
use crate::git::Repository;
use crate::messages;
use crate::policy_choice::{BUILT_IN, IN_DIR};
use crate::why::plain;
use crate::{accounts, policy_choice, policy_views, tree};

pub(crate) use look::{Found, look, relative};

/// Refused by choice of the policy, with `--exit-code`.
const REFUSED: u8 = 3;

/// Prints which rule decides over each path, and why.
///
/// # Errors
/// When the policy is wrong, a PATH is not in DIR, or a file cannot be opened; the other paths are
/// explained all the same.
pub(crate) fn run(args: &ExplainArgs, verbose: bool) -> anyhow::Result<ExitCode> {
    let here = std::env::current_dir().context("the working directory cannot be named")?;
    let top = match &args.dir {
        Some(dir) => tree::open(dir)?.0.path,
        None => Repository::top_of(&here).unwrap_or_else(|| here.clone()),
    };
    let origin = policy_choice::find(args.policy.as_deref(), &top, None)?;
    let origin = policy_views::of_directory(origin, &top)?;
    let policy = origin.in_force(&top)?;
    let place = Place {
        dir: args.dir.as_deref().unwrap_or(&top),
        top: &top,
        // Relative paths are meant from here, if here is inside.
        within: here.strip_prefix(&top).ok(),
        was_named: args.dir.is_some(),
    };
    ensure!(
        args.to.is_none() || args.paths.len() == 1,
        "`--to` is the new name of one PATH, and {} are given",
        args.paths.len()
    );
    let mut asker = args.caller.clone().unwrap_or_default();
    name_executable(&mut asker);
    let mut answers = Vec::new();
    let (mut imagined, mut there) = (Vec::new(), Vec::new());
    let mut failed = 0;
    for path in &args.paths {
        let (answer, basis) = match explain(args, &asker, &policy, path, &place) {
            Err(error) if args.paths.len() > 1 => {
                messages::say(&format!("explain: {}", messages::in_words(&error)));
                failed += 1;
                continue;
            }
            answer => answer?,
        };
        let is_made = matches!(&answer, Answer::Path(_)) && !answer.is_refused();
        if basis == Basis::Found && args.operation == Some(OperationArg::Create) && is_made {
            there.push(format!("`{}`", escaped(&path.to_string_lossy())));
        }
        answers.push(answer);
        if basis == Basis::Imagined {
            imagined.push(format!("`{}`", escaped(&path.to_string_lossy())));
        }
    }
    if let Some(own) = origin.tightened_by() {
        let own = origin.read(own, &top)?.policy;
        answers.iter_mut().for_each(|one| name_file_of_rules(one, &own));
    }
    if args.json {
        print_json(&answers, args.paths.len() > 1)?;
    } else {
        if !verbose {
            answers.iter_mut().for_each(leave_out_built_in);
        }
        for one in &answers {
            println!("{}", without_controls(&one.text(verbose)));
        }
        if !imagined.is_empty() && !policy.rules().is_empty() {
            messages::note(&format!(
                "not in `{}`, so taken for an empty file, or for a directory with a slash at its \
                 end: {}",
                shown(place.dir),
                imagined.join(", ")
            ));
        }
        if !there.is_empty() {
            messages::note(&format!(
                "there already, so open(2) with O_CREAT opens it, by what `read` and `write` get \
                 (EISDIR of a directory), and what makes new names alone gets EEXIST: {}",
                there.join(", ")
            ));
        }
    }
    ensure!(failed == 0, "{failed} of {} paths have no answer", args.paths.len());
    let refused = answers.iter().any(Answer::is_refused);
    Ok(if args.exit_code && refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

/// The answer to what was asked of a path.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Path(Explanation),
    Move(MoveReport),
}

impl Answer {
    fn is_refused(&self) -> bool {
        match self {
            Self::Path(one) => one.operations.iter().any(|one| one.errno.is_some()),
            Self::Move(one) => one.errno.is_some(),
        }
    }

    fn text(&self, verbose: bool) -> String {
        match self {
            Self::Path(one) if verbose => format!("{one:#}"),
            Self::Path(one) => one.to_string(),
            Self::Move(one) => one.to_string(),
        }
    }
}

/// What an answer goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// The file that is there.
    Found,
    /// What is not there, and would be so.
    Imagined,
    /// What is to be made, where this is already.
    Taken(Kind),
}

/// What is said of the number of rules goes by those of the policy, as in `check`: of those that are
/// built in, which come first, the ones about other paths are not counted.
fn leave_out_built_in(answer: &mut Answer) {
    let Answer::Path(explanation) = answer else { return };
    let is_built_in = |rule: &RuleReport| BUILT_IN.contains(&rule.name.as_str());
    let built_in = explanation.rules.iter().take_while(|rule| is_built_in(rule)).count();
    let is_elsewhere =
        |rule: &RuleReport| matches!(rule.status, Status::No { condition: Condition::Path, .. });
    let mut index = 0;
    explanation.rules.retain(|rule| {
        index += 1;
        index > built_in || !is_elsewhere(rule)
    });
}

/// Lines of rules are those of a file: with two policies, the rules of DIR's say so.
fn name_file_of_rules(answer: &mut Answer, own: &Policy) {
    let file = format!(" ({IN_DIR})");
    let complete = |name: &mut String, line: Option<usize>| {
        let is_own = |rule: &Rule| rule.name() == name && line.is_none_or(|it| it == rule.line());
        if own.rules().iter().any(is_own) {
            name.push_str(&file);
        }
    };
    let explanation = match answer {
        Answer::Path(explanation) => explanation,
        Answer::Move(report) => {
            let line = report.line;
            report.rule.iter_mut().for_each(|rule| complete(rule, line));
            return;
        }
    };
    for rule in &mut explanation.rules {
        complete(&mut rule.name, Some(rule.line));
    }
    for answer in &mut explanation.operations {
        if let Some(rule) = &mut answer.rule {
            complete(rule, answer.line);
        }
    }
}

/// One path as an object, several as a list.
fn print_json(answers: &[Answer], several: bool) -> anyhow::Result<()> {
    let text = match answers {
        [one] if !several => serde_json::to_string_pretty(one)?,
        list => serde_json::to_string_pretty(list)?,
    };
    println!("{}", json_text(&text));
    Ok(())
}

/// The directory whose files are looked at.
struct Place<'a> {
    dir: &'a Path,
    /// The same, absolute and without links.
    top: &'a Path,
    /// The working directory in it.
    within: Option<&'a Path>,
    /// By the user: then a path that is not there is a mistake.
    was_named: bool,
}

impl Place<'_> {
    /// `path` as it is named in DIR; it may be absolute, or lead up from the working directory.
    fn path_in_dir(&self, path: &OsStr) -> anyhow::Result<PathBuf> {
        let whole = plain(&self.top.join(self.within.unwrap_or(Path::new(""))).join(path));
        if let Ok(inside) = whole.strip_prefix(self.top) {
            return Ok(inside.to_owned());
        }
        // By another name of a directory above it.
        let real = whole.parent().and_then(|parent| parent.canonicalize().ok());
        let real = real.zip(whole.file_name()).map(|(parent, name)| parent.join(name));
        let inside = real.as_ref().and_then(|real| real.strip_prefix(self.top).ok());
        inside.map(Path::to_owned).with_context(|| {
            format!(
                "PATH `{}` is not in DIR `{}`",
                escaped(&path.to_string_lossy()),
                shown(self.top)
            )
        })
    }

    /// The real file at `path`; else, where that is no mistake, one that could be made there, of the
    /// kind that `given` says.
    fn look(&self, path: &OsStr, given: &OsStr, may_miss: bool) -> anyhow::Result<(Found, Basis)> {
        match look(self.dir, path) {
            Err(error) if (may_miss || !self.was_named) && is_missing(&error) => {
                Ok((Found::imagined(given), Basis::Imagined))
            }
            found => found.map(|found| (found, Basis::Found)),
        }
    }

    /// What is to be made at `path`.
    fn to_make(&self, path: &OsStr, kind: Kind) -> (Found, Basis) {
        let taken = look(self.dir, path).ok();
        (Found::new(kind), taken.map_or(Basis::Found, |taken| Basis::Taken(taken.kind)))
    }
}

/// Whether there is nothing at a path, of which [`look()`] says so.
pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<Errno>();
    cause.is_some_and(|errno| matches!(*errno, Errno::NOENT | Errno::NOTDIR))
}

/// Callers have the paths of their executables without symbolic links, so that nobody has one that
/// leads through some.
fn name_executable(asker: &mut CallerArg) {
    let Some(given) = &asker.exe else { return };
    let Some(real) = accounts::executable(given) else { return };
    messages::note(&format!(
        "exe=`{}` is a symbolic link to `{1}`, or behind one; the answer is for `{1}`, the path that \
         a caller has",
        escaped(given),
        escaped(&real)
    ));
    asker.exe = Some(real);
}

fn explain(
    args: &ExplainArgs,
    asker: &CallerArg,
    policy: &Policy,
    path: &OsStr,
    place: &Place<'_>,
) -> anyhow::Result<(Answer, Basis)> {
    ensure!(!path.is_empty(), "PATH is empty; `.` is the working directory");
    let in_dir = place.path_in_dir(path)?;
    let in_dir = in_dir.as_os_str();
    let (found, basis) = match args.operation {
        Some(OperationArg::Mkdir) => place.to_make(in_dir, Kind::Directory),
        Some(OperationArg::Symlink) => place.to_make(in_dir, Kind::Symlink),
        asked => place.look(in_dir, path, asked == Some(OperationArg::Create))?,
    };
    if let Some(given) = &args.to {
        ensure!(
            !given.as_os_str().is_empty(),
            "the new name of `--to` is empty; give a path in DIR"
        );
        ensure!(!in_dir.is_empty(), "DIR itself cannot be moved in a view");
        let to = place.path_in_dir(given)?;
        ensure!(!to.as_os_str().is_empty(), "nothing can be moved over DIR itself");
        let is_there = basis == Basis::Found;
        let found = if is_there { found } else { found.empty() };
        let has_slash = given.as_bytes().ends_with(b"/");
        let target = moved::Target { path: to.as_os_str(), has_slash };
        let from = (in_dir, &found, is_there);
        let report = moved::explain(policy, place.dir, from, target, &asker.facts())?;
        return Ok((Answer::Move(report), basis));
    }
    let facts = found.inode().at(in_dir.as_bytes());
    let operation = args.operation.map(operation);
    let explanation = match basis {
        Basis::Taken(kind) => policy.explain_taken(&facts, kind, &asker.facts()),
        _ => policy.explain(&facts, operation, &asker.facts()),
    };
    // Where the files are not looked at, it is there.
    let is_looked_at = operation == Some(Operation::Create) && place.was_named;
    let no_way = if is_looked_at { moved::no_way(place.dir, in_dir)? } else { None };
    let explanation = match no_way {
        Some((errno, _)) if explanation.hidden_above.is_none() => {
            explanation.without_directory(errno)
        }
        _ => explanation,
    };
    let is_hidden = || explanation.operations.iter().any(|one| one.verdict == Verdict::Hide);
    let is_as_named = found.kind == Kind::Directory || !path.as_bytes().ends_with(b"/");
    ensure!(
        is_as_named || is_hidden(),
        "PATH `{}` is a {}, so with a slash at its end there is no directory (ENOTDIR)",
        escaped(&path.to_string_lossy()),
        found.kind
    );
    Ok((Answer::Path(explanation), basis))
}

/// Making something is one operation, whatever it is.
fn operation(argument: OperationArg) -> Operation {
    match argument {
        OperationArg::Read => Operation::Read,
        OperationArg::Write => Operation::Write,
        OperationArg::Create | OperationArg::Mkdir | OperationArg::Symlink => Operation::Create,
        OperationArg::List => Operation::List,
    }
}
