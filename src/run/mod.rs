//! `tollgate run`: CMD sees DIR through the policy, and nothing else of it; the rest of the machine
//! it reads.

mod aliases;
mod autogroup;
mod bpf;
mod builder;
mod circular;
mod ended;
mod environment;
mod fence;
mod filter;
mod front;
mod guard;
mod homes;
mod init;
mod job;
mod joining;
mod limits;
mod network;
mod plan;
mod prepare;
mod privilege;
mod raised;
mod refused;
mod require;
mod secrets;
mod session;
mod signals;
mod start;
mod streams;
mod stuck;
mod supervise;
mod user;
mod views;
mod waiting;
mod wire;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;

use crate::chroot;
use crate::cli::{Required, RunArgs};
use crate::control::Guest;
use crate::escape::{shown, word};
use crate::git::Repository;
use crate::messages;
use crate::mountinfo;
use crate::other_mounts;
use crate::policy_choice;
use crate::policy_places;
use crate::serve::{ServerKind, Spec};
use crate::sys::{self, Forked, SignalFd};
use crate::tree::{self, Tree};
use crate::user_config::UserConfig;
use autogroup::Autogroup;
pub(crate) use ended::{CommandEnd, EndedBySignal, NotExecuted};
use fence::Outside;
use homes::HomesOfUser;
use job::Job;
use network::Network;
use plan::Plan;
use refused::Refused;
use session::{Found, Session, Terms};
use streams::Streams;
use supervise::Running;
use views::{InOrder, Prepared};
use wire::Channel;

/// Runs CMD over a view of DIR until it ends.
///
/// # Errors
/// Everything that kept CMD from being started, and the loss of the processes in between.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<CommandEnd> {
    let autogroup = Autogroup::of_this_session();
    let end = in_views(args);
    autogroup.restore();
    end
}

fn in_views(args: &RunArgs) -> anyhow::Result<CommandEnd> {
    streams::refuse_doors()?;
    let session = match args.session.as_deref() {
        None => None,
        Some(name) => match session::find(name)? {
            Found::First(session) => match front::server()? {
                None => Some(session),
                Some(end) => {
                    session.leave_to_child();
                    return Ok(end);
                }
            },
            Found::Joined(terms, namespaces) => {
                let _streams = Streams::narrowed(terms.whole_fence)?;
                return joining::run(args, name, &terms, &namespaces);
            }
        },
    };
    let here = working_directory()?;
    let (tree, source) = tree::open(args.dir.as_deref().unwrap_or(&around(&here)))?;
    if tree.path.parent().is_none() {
        bail!("DIR is `/`: the view cannot cover the root of all paths; name a directory below it");
    }
    if args.dir.is_none() {
        refuse_home(&tree.path)?;
    }
    tree::refuse_kernel_file_system(&format!("DIR `{}`", shown(&tree.path)), &source)?;
    let cwd = start_directory(args.chdir.as_deref(), here, &tree)?;
    let command = args.command.first().map(OsString::as_os_str);
    let named = args.serve.policy.as_deref();
    let chosen = policy_choice::choose(named, &tree.path, command, args.quiet)?;
    let origin = chosen.origin.clone();
    let spec = Spec::load(&args.serve, chosen, &tree, &source, ServerKind::Run)?;
    let spec = spec.quietly_if(args.quiet);
    let top = tree.path.clone();
    let mut views = views::beside(args, &origin, Prepared { spec, source, tree })?;
    let (mut plan, mut terms) =
        prepare::plan(args, views.map(Prepared::shown), &own(&views), &cwd, session.is_some())?;
    circular::tell(&views);
    answer_guest(&mut views, &mut plan, &mut terms);
    if let Some(fence) = &plan.fence {
        let outside = Outside::of(fence, &top, &cwd);
        views.dir.spec = views.dir.spec.with_outside(move |path| json!(outside.place(path)));
    }
    let session = match session {
        Some(session) => Some((session.with(&terms)?, terms)),
        None => None,
    };
    let leaves = leaves_in(&plan, session.as_ref().map(|(session, _)| session));
    views.dir.spec = views.dir.spec.removing_in(leaves);
    // When nothing asks any more by which path they were opened.
    let _streams = Streams::narrowed(args.limits.require.contains(&Required::Fence))?;
    start(args, &plan, views, session)
}

/// What CMD must not get to change.
fn own(views: &InOrder<Prepared>) -> fence::Own {
    let files = views.all().flat_map(|view| view.spec.policy_files());
    fence::Own {
        log: views.dir.spec.log_files(),
        policy: files.flat_map(policy_places::places).collect(),
        configuration: UserConfig::places(),
    }
}

/// Has the servers answer CMD's user, where that is another one than theirs.
fn answer_guest(views: &mut InOrder<Prepared>, plan: &mut Plan, terms: &mut Terms) {
    let (own, uid) = (rustix::process::geteuid().as_raw(), plan.start.uid());
    let Some(control) = plan.control.as_mut().filter(|_| uid != own) else { return };
    let mut sockets = Vec::new();
    for view in views.all_mut() {
        match Guest::new(uid) {
            Ok(guest) => {
                sockets.push(guest.socket.clone());
                view.spec.answering(guest);
            }
            Err(error) => {
                let reason = messages::in_words(&error.into());
                return messages::warn(&format!("`tollgate why` will not answer CMD: {reason}"));
            }
        }
    }
    control.show_guest();
    plan.start.control = std::env::join_paths(&sockets).ok();
    terms.control = plan.start.control.as_ref().and_then(|all| all.clone().into_string().ok());
}

/// Where there is something to be removed when CMD has ended.
fn leaves_in(plan: &Plan, session: Option<&Session>) -> Vec<PathBuf> {
    let cgroups = plan.limits.paths();
    let paths = cgroups.iter().map(PathBuf::as_path).chain(session.map(Session::path));
    paths.filter_map(Path::parent).map(Path::to_owned).collect()
}

fn start(
    args: &RunArgs,
    plan: &Plan,
    views: InOrder<Prepared>,
    session: Option<(Session, Terms)>,
) -> anyhow::Result<CommandEnd> {
    // Before the fork, so that no signal comes between it and the signal descriptor.
    let job = Job::of_this_process(session.as_ref().and_then(|_| rustix::process::getppid()));
    sys::block_signals(&signals::read()).context("cannot block signals")?;
    let signals = SignalFd::new(&signals::read()).context("cannot read signals")?;
    let uid = plan.start.uid();
    let proxy = match &plan.network {
        Network::Hosts(hosts) => Some(network::start(hosts, uid)?),
        _ => None,
    };
    let (channel, child_channel) = Channel::pair()?;
    match sys::fork().context("cannot fork")? {
        Forked::Child => builder::run(plan, &child_channel),
        Forked::Parent(builder) => {
            drop(child_channel);
            if session.is_some() {
                // Only now: the processes of CMD stay in the terminal's group.
                front::leave_terminal(proxy.as_ref().map(|proxy| proxy.process))?;
            }
            let refused = Refused::of(uid);
            let mut running =
                Running::of(channel, (signals, job), builder, proxy, refused, session);
            let end = running.supervise(views, plan, args).map_err(chroot::or);
            running.collect();
            if let Ok(end) = &end {
                // 126 and 127: a shell did not find what it was to start.
                let failed = matches!(end, CommandEnd::Exited(1..=125));
                prepare::tell_why_it_may_have_failed(args, failed);
            }
            end
        }
    }
}

/// In DIR, changes are real. Whoever calls `run` in the home directory, or in one of it without a
/// repository of its own, may not mean all of it; a bind mount of it is the same place.
fn refuse_home(dir: &Path) -> anyhow::Result<()> {
    let mounts = mountinfo::read()?;
    let shows = |home: &Path| !other_mounts::paths_in(&mounts, dir, home).is_empty();
    if HomesOfUser::of(None).all().any(shows) {
        bail!(
            "DIR would be `{}`, with your home directory: CMD could change what your shell and \
             your session start later. Call it in a project, or name DIR if you mean that: \
             `tollgate run {} -- CMD`",
            shown(dir),
            word(dir)
        );
    }
    Ok(())
}

fn working_directory() -> anyhow::Result<PathBuf> {
    std::env::current_dir().context("the working directory cannot be named; change to another")
}

/// DIR where none is named: the top of the git working tree, else the directory itself.
fn around(directory: &Path) -> PathBuf {
    Repository::top_of(directory).unwrap_or_else(|| directory.to_owned())
}

/// Where CMD starts: `--chdir`, the working directory if it lies in DIR, else DIR.
fn start_directory(chdir: Option<&Path>, here: PathBuf, tree: &Tree) -> anyhow::Result<PathBuf> {
    let Some(path) = chdir else {
        return Ok(if here.starts_with(&tree.path) { here } else { tree.path.clone() });
    };
    let shown = shown(path);
    match std::fs::canonicalize(path) {
        Ok(directory) if directory.is_dir() => Ok(directory),
        Ok(_) => bail!("--chdir `{shown}` is not a directory"),
        Err(error) => bail!("--chdir `{shown}` {}", tree::why(&error)),
    }
}
