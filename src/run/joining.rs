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
    let writable: Vec<_> = terms.writable.iter().map(PathBuf::as_path).collect();
    let mut environment = match terms.fenced {
        true => Environment::fenced(options, command, &writable),
        false => Environment::open(options),
    };
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
        fenced: terms.fenced,
        whole_fence: false,
        own_network: terms.own_network,
        limits: Limits::of_process(terms.memory_bytes, terms.processes),
        ends_with_parent: true,
    };
    if !args.quiet {
        messages::note(&format!(
            "joins session `{name}` over `{}`: its policy, its fence and its network hold",
            terms.dir.display()
        ));
    }
    session::join(&start, namespaces, &terms.cgroups)
}

fn refuse_options_of_the_first(args: &RunArgs, name: &str) -> anyhow::Result<()> {
    let (fence, network, limits) = (&args.fence, &args.network, &args.limits);
    let given = [
        ("--policy", args.serve.policy.is_some()),
        ("--audit", args.serve.audit.is_some()),
        ("--fence", fence.fence.is_some()),
        ("--allow", !fence.allow.is_empty()),
        ("--user", fence.user.is_some()),
        ("--network", network.network.is_some()),
        ("--allow-host", !network.allow_host.is_empty()),
        ("--memory", limits.memory.is_some()),
        ("--processes", limits.processes.is_some()),
        ("--cpu", limits.cpu.is_some()),
        ("--require", !limits.require.is_empty()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => bail!(
            "session `{name}` runs already, and what it was started with holds: leave out \
             {option}, or choose another name"
        ),
        None => Ok(()),
    }
}

fn working_directory(args: &RunArgs, terms: &Terms) -> anyhow::Result<PathBuf> {
    let dir = &terms.dir;
    if let Some(named) = &args.dir {
        let shown = named.display();
        let named = match std::fs::canonicalize(named) {
            Ok(named) => named,
            Err(error) => bail!("DIR `{shown}` {}", tree::why(&error)),
        };
        ensure!(named == *dir, "the session is over `{}`, not over `{shown}`", dir.display());
    }
    if let Some(path) = &args.chdir {
        return std::path::absolute(path).context("--chdir");
    }
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(dir));
    Ok(here.unwrap_or_else(|| dir.clone()))
}
