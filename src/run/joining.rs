//! A `run` that joins the session of another one: what its options come to.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use super::ended::CommandEnd;
use super::environment::Environment;
use super::limits::Limits;
use super::session::{self, Namespaces, Terms};
use super::start::Start;
use super::user::User;
use crate::cli::RunArgs;
use crate::escape::shown;
use crate::{messages, tree};

/// Runs CMD in the fence of the first.
///
/// # Errors
/// When options would change the fence, or CMD cannot be started.
pub(super) fn run(
    args: &RunArgs,
    name: &str,
    terms: &Terms,
    namespaces: &Namespaces,
) -> anyhow::Result<CommandEnd> {
    refuse_options_of_the_first(args, name)?;
    let command = args.command.first().map(OsString::as_os_str);
    let options = &args.fence.env;
    let shown_paths: Vec<_> = terms.shown.iter().map(PathBuf::as_path).collect();
    let mut environment = match terms.fenced {
        true => Environment::fenced(options, command, &shown_paths),
        false => Environment::open(options),
    };
    environment.missing().iter().for_each(|text| messages::warn(text));
    if !args.quiet {
        environment.told().iter().for_each(|text| messages::note(text));
    }
    let proxy = terms.proxy.iter().map(|(name, value)| (name.into(), value.into()));
    environment.set.splice(0..0, proxy);
    let start = Start {
        command: args.command.clone(),
        dir: terms.dir.clone(),
        cwd: working_directory(args, terms)?,
        environment,
        user: terms.user.as_deref().map(User::find).transpose()?,
        control: terms.control.as_ref().map(OsString::from),
        fenced: terms.fenced,
        whole_fence: terms.whole_fence,
        own_network: terms.own_network,
        limits: Limits::of_process(terms.memory_bytes, terms.processes),
        ends_with_parent: true,
    };
    if !args.quiet {
        messages::note(&format!(
            "joins session `{name}` over `{}`: its policy, its fence and its network hold",
            shown(&terms.dir)
        ));
    }
    session::join(&start, namespaces, &terms.cgroups)
}

/// What a second `run` of a session decides for itself.
const OF_EACH: &[&str] = &["--session", "--quiet", "--verbose", "--env", "--chdir"];
/// What would change the fence, the policy or the limits of all.
const OF_THE_FIRST: &[&str] = &[
    "--policy",
    "--audit",
    "--fence",
    "--allow",
    "--user",
    "--network",
    "--allow-host",
    "--memory",
    "--processes",
    "--cpu",
    "--require",
];

fn refuse_options_of_the_first(args: &RunArgs, name: &str) -> anyhow::Result<()> {
    let holds = format!("session `{name}` runs already, and what it was started with holds");
    if let Some(option) = args.given.iter().find(|one| OF_THE_FIRST.contains(&one.as_str())) {
        bail!("{holds}: leave out {option}, or choose another name");
    }
    let others = args.given.iter().filter(|one| !OF_EACH.contains(&one.as_str()));
    let others: Vec<&str> = others.map(String::as_str).collect();
    if !others.is_empty() {
        messages::warn(&format!("{holds}: without effect here: {}", others.join(", ")));
    }
    Ok(())
}

fn working_directory(args: &RunArgs, terms: &Terms) -> anyhow::Result<PathBuf> {
    let dir = &terms.dir;
    if let Some(named) = &args.dir {
        let given = shown(named);
        let named = match std::fs::canonicalize(named) {
            Ok(named) => named,
            Err(error) => bail!("DIR `{given}` {}", tree::why(&error)),
        };
        ensure!(named == *dir, "the session is over `{}`, not over `{given}`", shown(dir));
    }
    if let Some(path) = &args.chdir {
        return std::path::absolute(path).context("--chdir");
    }
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(dir));
    Ok(here.unwrap_or_else(|| dir.clone()))
}
