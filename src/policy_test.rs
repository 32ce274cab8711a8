//! `tollgate test`: what is expected of a policy, checked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_policy::{Facts, Kind, MAX_TEXT_LEN, Operation, OperationReport, Policy, Verdict};

use crate::cli::{self, TestArgs};
use crate::escape::{escaped, json_text};
use crate::explain::{self, Found};
use crate::policy_choice::Origin;
use crate::policy_file::{self, FoundIn};
use crate::{messages, nearest, policy_views, tree};

/// The tests that are taken where none are named.
const IN_DIR: &str = ".tollgate.tests.toml";

/// A file of expectations.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectations {
    /// A file, relative to this one, or a preset.
    policy: PathBuf,
    /// Where the files are, relative to this one; without, they are taken for empty ones.
    dir: Option<PathBuf>,
    #[serde(default)]
    test: Vec<toml::Spanned<Expectation>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectation {
    path: OneOrMany,
    /// Left out: all but `list`, and for directories that too.
    #[serde(default)]
    operation: Option<OneOrMany>,
    /// `uid=1000,exe=/usr/bin/node`
    #[serde(default, rename = "as")]
    caller: Option<String>,
    /// The file's bytes, instead of those in `dir`.
    content: Option<String>,
    expect: Expected,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn each(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Expected {
    Allow,
    ReadOnly,
    Deny,
    Hide,
    /// Any of the three refusals.
    Refuse,
    /// Written as a whole alone.
    Whole,
}

impl Expected {
    fn holds(self, Answer { verdict, as_a_whole }: Answer) -> bool {
        match self {
            Self::Allow => verdict == Verdict::Allow && !as_a_whole,
            Self::Whole => as_a_whole,
            Self::ReadOnly => verdict == Verdict::ReadOnly,
            Self::Deny => verdict == Verdict::Deny,
            Self::Hide => verdict == Verdict::Hide,
            Self::Refuse => verdict != Verdict::Allow,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::ReadOnly => "read-only",
            Self::Deny => "deny",
            Self::Hide => "hide",
            Self::Refuse => "refuse",
            Self::Whole => "whole",
        }
    }
}

/// What a policy answers.
#[derive(Clone, Copy, Debug)]
struct Answer {
    verdict: Verdict,
    /// Writing is allowed with `O_TRUNC` alone: who may not read the file for what it holds could
    /// exchange what tells.
    as_a_whole: bool,
}

impl Answer {
    fn word(self, operation: Operation) -> String {
        match (self.verdict, operation) {
            _ if self.as_a_whole => "whole".to_owned(),
            (Verdict::Hide, Operation::Create) => "hidden (EACCES)".to_owned(),
            (verdict, _) => verdict.to_string(),
        }
    }
}

/// An answer that was not expected.
struct Failure {
    line: usize,
    path: String,
    expected: Expected,
    why: Why,
}

enum Why {
    /// What was found instead.
    Other { operation: Operation, found: Answer, rule: String },
    /// There is no answer, for this reason.
    Unknown(String),
}

/// What came of all tests.
#[derive(Default)]
struct Outcome {
    checked: usize,
    failures: Vec<Failure>,
    /// Paths that are not in `dir`.
    not_there: Vec<String>,
}

/// Checks every expectation; status 1 if one does not hold.
///
/// # Errors
/// When a file cannot be read, or is wrong.
pub(crate) fn run(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let file = args.file.as_deref().unwrap_or(Path::new(IN_DIR));
    let found = args.file.is_none().then(|| FoundIn::tests(Path::new(".")));
    let shown = crate::escape::shown(file);
    let text = policy_file::read(file, found).map_err(|error| {
        let (reason, similar) = (messages::in_words(&error), nearest::file(file));
        anyhow!("tests `{shown}` cannot be read: {reason}{similar}; docs/policy.md has an example")
    })?;
    ensure!(
        text.len() <= MAX_TEXT_LEN,
        "tests `{shown}` have more than {MAX_TEXT_LEN} bytes, which is the most; split them"
    );
    let expectations: Expectations = toml::from_str(&text).map_err(|error| {
        anyhow!("tests `{shown}` are wrong\n{}", messages::in_toml(&shown, &text, &error))
    })?;
    let of_key = |key: &str| format!("tests `{shown}`: `{key}`");
    let base = file.parent().unwrap_or(Path::new(""));
    let dir = expectations.dir.as_ref().map(|dir| base.join(dir));
    let top = match &dir {
        Some(dir) => {
            let top = tree::open(dir).with_context(|| of_key("dir"))?.0.path;
            // What is expected could tell what foreign files hold.
            if let Some(found) = found {
                let place = std::fs::canonicalize(&top)?;
                found.must_hold(&place).with_context(|| of_key("dir"))?;
            }
            top
        }
        None => std::env::current_dir()?,
    };
    let policy = match Origin::named(&expectations.policy) {
        Origin::File(file) => {
            let file = base.join(file);
            let whole = policy_file::parse_all(&file, found);
            // As `explain` and the views go by the directory.
            whole.and_then(|whole| match &dir {
                Some(_) => policy_views::rules_for(whole, &file, &top),
                None => Ok(whole.policy),
            })
        }
        preset => preset.parse(&top),
    };
    let policy = policy.with_context(|| of_key("policy"))?;
    let mut outcome = Outcome::default();
    for test in &expectations.test {
        let line = text[..test.span().start].matches('\n').count() + 1;
        let place = || format!("{shown}:{line}");
        check(test.get_ref(), line, &policy, dir.as_deref(), &mut outcome).with_context(place)?;
    }
    if outcome.checked == 0 {
        bail!("tests `{shown}` expect nothing; write `[[test]]` with `path` and `expect`");
    }
    print(args.json, &shown, &outcome);
    Ok(ExitCode::from(u8::from(!outcome.failures.is_empty())))
}

/// Adds what comes of one test.
fn check(
    test: &Expectation,
    line: usize,
    policy: &Policy,
    dir: Option<&Path>,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let asker = match &test.caller {
        Some(text) => cli::caller(text).map_err(|error| anyhow!("as: {error}"))?,
        None => cli::CallerArg::default(),
    };
    ensure!(!test.path.each().is_empty(), "`path` is empty; give one, or a list of them");
    for path in test.path.each() {
        let plain = explain::relative(OsStr::new(path))?;
        let mut fail = |why| {
            let (path, expected) = (path.clone(), test.expect);
            outcome.failures.push(Failure { line, path, expected, why });
        };
        let found = match look(path, test.content.as_deref(), dir) {
            Err(error) if explain::is_missing(&error) => {
                outcome.not_there.push(path.clone());
                Found::imagined(OsStr::new(path))
            }
            Err(error) => {
                outcome.checked += 1;
                fail(Why::Unknown(messages::in_words(&error)));
                continue;
            }
            Ok(found) => found,
        };
        let head = found.head.as_deref();
        let facts = Facts { path: plain.as_bytes(), kind: found.kind, size: found.size, head };
        for operation in operations(test.operation.as_ref(), found.kind)? {
            outcome.checked += 1;
            // As a view answers: without what is only recorded, and below what is hidden.
            let answers = policy.explain(&facts, Some(operation), &asker.facts()).operations;
            for OperationReport { verdict, in_part, rule, .. } in answers {
                let as_a_whole = verdict == Verdict::Allow && in_part.is_some();
                let found = Answer { verdict, as_a_whole };
                if !test.expect.holds(found) {
                    let rule = rule.unwrap_or_else(|| "the default".to_owned());
                    fail(Why::Other { operation, found, rule });
                }
            }
        }
    }
    Ok(())
}

fn look(path: &str, content: Option<&str>, dir: Option<&Path>) -> anyhow::Result<Found> {
    match (content, dir) {
        (Some(content), _) => Ok(Found {
            kind: Kind::File,
            size: content.len() as u64,
            head: Some(content.as_bytes().to_vec()),
        }),
        (None, Some(dir)) => explain::look(dir, &explain::relative(OsStr::new(path))?),
        (None, None) => Ok(Found::imagined(OsStr::new(path))),
    }
}

fn operations(listed: Option<&OneOrMany>, kind: Kind) -> anyhow::Result<Vec<Operation>> {
    let Some(listed) = listed else {
        let about = |one: &Operation| *one != Operation::List || kind == Kind::Directory;
        return Ok(Operation::ALL.into_iter().filter(about).collect());
    };
    ensure!(!listed.each().is_empty(), "`operation` is empty; leave it out to mean all");
    let parse = |word: &String| word.parse().map_err(|error| anyhow!("operation: {error}"));
    listed.each().iter().map(parse).collect()
}

impl Failure {
    fn in_json(&self) -> Value {
        let Self { line, path, expected, .. } = self;
        let mut failure = json!({"line": line, "path": path, "expected": expected.word()});
        match &self.why {
            Why::Other { operation, found, rule } => {
                failure["operation"] = json!(operation);
                failure["found"] = found.word(*operation).into();
                failure["rule"] = json!(rule);
            }
            Why::Unknown(error) => failure["error"] = json!(error),
        }
        failure
    }

    /// Behind the name of the file.
    fn text(&self) -> String {
        let (line, expected) = (self.line, self.expected.word());
        match &self.why {
            Why::Other { operation, found, rule } => format!(
                "{line}: {operation} of `{}` is {} (by {}); expected: {expected}",
                escaped(&self.path),
                found.word(*operation),
                escaped(rule)
            ),
            Why::Unknown(error) => format!("{line}: {error}; expected: {expected}"),
        }
    }
}

fn print(json: bool, shown: &str, outcome: &Outcome) {
    let Outcome { checked, failures, not_there } = outcome;
    if json {
        let failures: Vec<_> = failures.iter().map(Failure::in_json).collect();
        let outcome = json!({"checked": checked, "failures": failures, "not_there": not_there});
        println!("{}", json_text(&format!("{outcome:#}")));
        return;
    }
    for one in failures {
        println!("{shown}:{}", one.text());
    }
    if !not_there.is_empty() {
        let paths = not_there.iter().map(|path| format!("`{}`", escaped(path)));
        messages::note(&format!(
            "not in `dir`, so taken for an empty file, or for a directory with a slash at its end: {}",
            paths.collect::<Vec<_>>().join(", ")
        ));
    }
    println!("{checked} checked, {}", messages::count(failures.len(), "failure"));
}
