//! `tollgate check`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use tollgate_policy::Policy;

use crate::cli::CheckArgs;
use crate::escape::{add_to_json, escaped, json_text, shown};
use crate::git::Repository;
use crate::policy_choice::Origin;
use crate::survey::{self, Survey};
use crate::{messages, policy_choice, policy_views, tree};

/// How many findings of a kind are printed as text.
const SHOWN: usize = 20;

/// Reads a policy; prints its warnings and what it amounts to, and with `--dir` what it does there.
///
/// # Errors
/// With file, line and column of what is wrong, or when DIR cannot be read.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let result = check(args);
    if let (true, Err(error)) = (args.json, &result) {
        let named = args.policy.as_ref().or(args.named.as_ref());
        let named = named.map(|name| name.to_string_lossy());
        let report = json!({"policy": named, "error": messages::in_words(error)});
        println!("{}", json_text(&format!("{report:#}")));
    }
    result
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let here = std::env::current_dir().context("the working directory cannot be named")?;
    let dir = args.dir.as_ref().map(|dir| tree::open(dir)).transpose()?.map(|(tree, _)| tree.path);
    let named = args.policy.as_ref().or(args.named.as_ref());
    // Where nothing is named, as `run` finds both.
    let around = || Repository::top_of(&here).filter(|_| named.is_none());
    let top = dir.clone().or_else(around).unwrap_or_else(|| here.clone());
    let top = top.as_path();
    let origin = match named {
        Some(name) => Origin::named(name),
        None => policy_choice::find(None, top, None)?,
    };
    let further = policy_views::of(&origin, named.is_some(), top, std::env::home_dir().as_deref())?;
    // A directory of the policy's own is looked at by its rules.
    let is_further = dir.as_deref().is_some_and(|dir| policy_views::is_among(&further, dir));
    let beside = Some(top).filter(|_| !is_further && (dir.is_some() || named.is_none()));
    policy_views::check_places(&further, beside)?;
    let origin = match dir.as_deref() {
        Some(dir) => policy_views::of_directory(origin, dir)?,
        None => origin,
    };
    let policy = if args.json { origin.parse(top)? } else { origin.load(top)? };
    let survey = dir.as_deref().map(|dir| survey::survey(&policy, dir)).transpose()?;
    if args.json {
        let mut report = report(&origin, &policy, survey.as_ref());
        let views = further.iter().map(|one| -> anyhow::Result<Value> {
            let mut view = self::report(&one.origin, &one.origin.parse(top)?, None);
            view["dir"] = one.dir.to_string_lossy().into();
            Ok(view)
        });
        report["views"] = views.collect::<anyhow::Result<Vec<_>>>()?.into();
        println!("{}", json_text(&format!("{report:#}")));
        return Ok(());
    }
    print_head(&origin, &policy);
    for one in &further {
        if one.origin != origin {
            print_head(&one.origin, &one.origin.load(top)?);
        }
    }
    if let Some(survey) = survey {
        print_survey(&policy, &survey);
    }
    Ok(())
}

fn print_head(origin: &Origin, policy: &Policy) {
    println!(
        "{}: {}, default {}, {}",
        escaped(&origin.to_string()),
        messages::count(policy.rules().len(), "rule"),
        policy.default_action(),
        messages::count(
            policy.warnings().len() + usize::from(origin.warning_of_empty(policy).is_some()),
            "warning"
        )
    );
}

fn print_survey(policy: &Policy, survey: &Survey) {
    let entries = match survey.entries {
        1 => "1 file or directory".to_owned(),
        entries => format!("{entries} files and directories"),
    };
    println!("{entries}; each rule decides over:");
    for (rule, decided) in policy.rules().iter().zip(&survey.decided) {
        println!("{decided:>9}  {} ({})", escaped(rule.name()), rule.action());
    }
    let idle = survey.decided.iter().filter(|decided| **decided == 0).count();
    if idle > 0 {
        println!(
            "{} nothing here",
            if idle == 1 {
                "1 rule decides over".into()
            } else {
                format!("{idle} rules decide over")
            }
        );
    }
    if survey.uncovered.files.is_empty() {
        println!("no file that looks like a secret can be read");
    } else {
        println!("look like secrets and can be read:");
        print_list(&survey.uncovered.files, survey.uncovered.count);
    }
    if !survey.repositories.is_empty() {
        println!(
            "git repositories that start programs when git enters them, `.git` at the top aside:"
        );
        print_list(&survey.repositories, survey.repositories.len());
    }
    survey.advice_on_tracked().iter().for_each(|line| messages::warn(line));
    survey.problems.iter().for_each(|line| messages::warn(line));
}

fn print_list(list: &[(PathBuf, String)], count: usize) {
    for (path, why) in list.iter().take(SHOWN) {
        println!("  {}: {}", shown(path), escaped(why));
    }
    if count > SHOWN {
        println!("  and {} more (--json lists up to {})", count - SHOWN, survey::MAX_LISTED);
    }
}

fn report(origin: &Origin, policy: &Policy, survey: Option<&Survey>) -> Value {
    let of_empty = origin.warning_of_empty(policy);
    let of_empty = of_empty.map(|text| json!({"line": null, "column": null, "message": text}));
    let of_rules = policy
        .warnings()
        .iter()
        .map(|one| json!({"line": one.line(), "column": one.column(), "message": one.message()}));
    let warnings: Vec<Value> = of_empty.into_iter().chain(of_rules).collect();
    let rules: Vec<Value> = policy
        .rules()
        .iter()
        .enumerate()
        .map(|(number, rule)| {
            json!({
                "name": rule.name(),
                "line": rule.line(),
                "action": rule.action(),
                "decides_over": survey.map(|survey| survey.decided[number]),
            })
        })
        .collect();
    let mut report = json!({
        "policy": origin.to_string(),
        "default": policy.default_action(),
        "rules": rules,
        "warnings": warnings,
    });
    if let Some(survey) = survey {
        report["entries"] = survey.entries.into();
        report["uncovered"] = pairs(&survey.uncovered.files, "why");
        report["covered"] = pairs(&survey.covered.files, "rule");
        report["tracked"] = survey
            .tracked
            .iter()
            .map(|one| {
                let about = json!({"verdict": one.verdict, "rule": one.rule,
                       "masked": one.is_masked, "skip_worktree": one.skip_worktree});
                at(&one.path, about)
            })
            .collect();
        report["repositories"] = pairs(&survey.repositories, "starts");
        report["problems"] = survey.problems.clone().into();
    }
    report
}

fn pairs(list: &[(PathBuf, String)], second: &str) -> Value {
    list.iter().map(|(path, what)| at(path, json!({second: what}))).collect()
}

/// The same object with the path that it is about.
fn at(path: &Path, mut about: Value) -> Value {
    if let Value::Object(fields) = &mut about {
        add_to_json(fields, "path", path);
    }
    about
}
