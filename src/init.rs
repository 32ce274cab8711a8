//! `tollgate init`.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Access, AtFlags, CWD};
use serde_json::json;
use tollgate_policy::Policy;

use crate::cli::InitArgs;
use crate::escape::{add_to_json, escaped, json_text, shown, word};
use crate::git::Repository;
use crate::policy_choice::IN_DIR;
use crate::presets::{self, Findings, Preset, Suits};
use crate::survey::{self, Survey};
use crate::{messages, tree};

/// Names of each kind that are said.
const MAX_SAID: usize = 8;

/// Writes a policy fitted to a directory, and says what was found there.
///
/// # Errors
/// When DIR cannot be read, or a policy is there and `--force` is not given.
pub(crate) fn run(args: &InitArgs) -> anyhow::Result<()> {
    let dir = directory(args.dir.as_deref())?;
    let file = match &args.output {
        Some(file) if file.as_os_str() == "-" => None,
        Some(file) => Some(file.clone()),
        None => Some(dir.join(IN_DIR)),
    };
    // To look through DIR may take long.
    if let Some(file) = &file {
        refuse_in_vain(file, args.force)?;
    }
    let findings = presets::look(&dir);
    let preset = args.preset.unwrap_or_else(|| suited(findings.suits));
    let text = preset.text(&findings);
    let policy = Policy::parse(&text, preset.name())?;
    let survey = survey::survey(&policy, &dir)?;
    match &file {
        Some(file) => write(file, &text, args.force)?,
        None if !args.json => print!("{text}"),
        None => {}
    }
    if let Some(text) = findings.warning(&dir) {
        messages::warn(&text);
    }
    if args.json {
        let report = report(&dir, preset, file.as_deref(), &findings, &survey);
        println!("{}", json_text(&format!("{report:#}")));
    } else {
        say(&dir, preset, file.as_deref(), &findings, &survey);
    }
    Ok(())
}

fn directory(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the working directory cannot be named")?;
    let dir = named.map_or_else(|| Repository::top_of(&here).unwrap_or(here), Path::to_owned);
    Ok(tree::open(&dir)?.0.path)
}

fn suited(suits: Suits) -> Preset {
    match suits {
        Suits::Node => Preset::Node,
        Suits::Python => Preset::Python,
        Suits::Rust => Preset::Rust,
        Suits::Any => Preset::Agent,
    }
}

/// What [`write()`] would be refused for.
fn refuse_in_vain(file: &Path, force: bool) -> anyhow::Result<()> {
    if !force && file.symlink_metadata().is_ok() {
        bail!(is_there(file));
    }
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let parent = parent.unwrap_or(Path::new("."));
    match rustix::fs::accessat(CWD, parent, access, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(errno) => cannot_be_written(file, errno.into()),
    }
}

fn is_there(file: &Path) -> String {
    let shown = shown(file);
    format!("`{shown}` is there already; replace it with --force, or name another --output")
}

fn cannot_be_written(file: &Path, error: std::io::Error) -> anyhow::Result<()> {
    let remedy = missing_directory(file, &error);
    Err(error).with_context(|| format!("`{}` cannot be written{remedy}", shown(file)))
}

fn write(file: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let shown = shown(file);
    let there = std::fs::symlink_metadata(file).ok();
    match there {
        // What a link leads to was not named, and a FIFO waits for a reader.
        Some(there) if force && !there.is_file() => {
            bail!("`{shown}` is there already and not a regular file; remove it first")
        }
        Some(there) if force => {
            return replace(file, text, &there)
                .with_context(|| format!("`{shown}` cannot be replaced"));
        }
        _ => {}
    }
    match crate::files::write_new(file, text.as_bytes(), 0o666) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => bail!(is_there(file)),
        Err(error) => cannot_be_written(file, error),
    }
}

/// Puts a new file in the place of `file`, whole at each moment, with its owner and permissions.
fn replace(file: &Path, text: &str, there: &Metadata) -> std::io::Result<()> {
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    let new = file.with_file_name(name);
    let mut opened = std::fs::File::create_new(&new)?;
    let written = std::io::Write::write_all(&mut opened, text.as_bytes()).and_then(|()| {
        let own = opened.metadata()?;
        if (own.uid(), own.gid()) != (there.uid(), there.gid()) {
            std::os::unix::fs::fchown(&opened, Some(there.uid()), Some(there.gid()))?;
        }
        opened.set_permissions(there.permissions())?;
        opened.sync_all()?;
        std::fs::rename(&new, file)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// What to do where the directory of the output is not there.
fn missing_directory(file: &Path, error: &std::io::Error) -> String {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        Some(parent) if error.kind() == std::io::ErrorKind::NotFound && !parent.exists() => {
            let (shown, word) = (shown(parent), word(parent));
            format!(": directory `{shown}` does not exist; make it: `mkdir -p {word}`")
        }
        _ => String::new(),
    }
}

/// On standard error, as standard output may carry the policy.
fn say(dir: &Path, preset: Preset, file: Option<&Path>, findings: &Findings, survey: &Survey) {
    let seen = match &findings.seen[..] {
        [] => "nothing that is known".to_owned(),
        names => names.join(", "),
    };
    messages::say(&format!("found in `{}`: {seen}", shown(dir)));
    let kept = kept(findings);
    if !kept.is_empty() {
        let list: Vec<_> = kept.iter().take(MAX_SAID).map(|path| escaped(path)).collect();
        let list = list.join(", ");
        let more = and_more(kept.len() - kept.len().min(MAX_SAID));
        messages::say(&format!("run later outside, kept as they are: {list}{more}"));
    }
    let covered = &survey.covered;
    if covered.files.is_empty() {
        messages::say("no file in it is a secret by this policy");
    } else {
        let first = covered.files.iter().take(MAX_SAID);
        let list: Vec<_> = first.map(|(path, _)| shown(path)).collect();
        let more = and_more(covered.count - list.len());
        messages::say(&format!("hidden or not to be read: {}{more}", list.join(", ")));
    }
    let uncovered = &survey.uncovered;
    for (path, why) in uncovered.files.iter().take(MAX_SAID) {
        messages::warn(&format!("`{}` can be read: {}", shown(path), escaped(why)));
    }
    if uncovered.count > MAX_SAID {
        messages::warn(&format!(
            "and {} more that look like secrets can be read (`tollgate check --dir DIR --json` \
             lists up to {})",
            uncovered.count - MAX_SAID,
            survey::MAX_LISTED
        ));
    }
    survey.advice_on_tracked().iter().for_each(|line| messages::warn(line));
    if let Some(file) = file {
        messages::say(&format!("wrote `{}` (preset `{}`)", shown(file), preset.name()));
        let repository = Repository::at(dir);
        if repository.is_some_and(|repository| repository.outside_of(dir).is_some()) {
            messages::note(
                "the repository lies outside of this directory: CMD cannot commit there",
            );
        }
        if file == dir.join(IN_DIR) {
            messages::say("`tollgate run -- CMD` uses it from now on");
        }
    }
}

fn and_more(number: usize) -> String {
    if number > 0 { format!(" and {number} more") } else { String::new() }
}

/// What was found that runs later outside.
fn kept(findings: &Findings) -> Vec<String> {
    let later = &findings.later;
    let paths = later.paths.iter().chain(&later.repositories);
    paths.map(|path| text(path)).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn report(
    dir: &Path,
    preset: Preset,
    file: Option<&Path>,
    findings: &Findings,
    survey: &Survey,
) -> serde_json::Value {
    let paths =
        |list: &[(PathBuf, String)]| list.iter().map(|one| text(&one.0)).collect::<Vec<_>>();
    let mut report = json!({
        "preset": preset.name(),
        "file": null,
        "found": findings.seen,
        "kept": kept(findings),
        "covered": paths(&survey.covered.files),
        "uncovered": paths(&survey.uncovered.files),
        "tracked": survey.tracked.iter().map(|one| text(&one.path)).collect::<Vec<_>>(),
    });
    if let serde_json::Value::Object(fields) = &mut report {
        add_to_json(fields, "dir", dir);
        file.iter().for_each(|file| add_to_json(fields, "file", file));
    }
    report
}
