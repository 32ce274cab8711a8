//! What the options of `run` about the fence come to.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::ensure;

use super::environment::Environment;
use super::fence::{self, Control, Fence};
use super::homes::HomesOfUser;
use super::limits::Limits;
use super::network::Network;
use super::plan::Plan;
use super::require;
use super::session::Terms;
use super::start::Start;
use super::user::User;
use super::views::{InOrder, Shown};
use crate::cli::{FenceWhen, Required, RunArgs};
use crate::control;
use crate::escape::{shown, word};
use crate::git::Repository;
use crate::messages;

/// What the processes need to know, and the terms on which others join.
///
/// # Errors
/// When options contradict each other, or what they name cannot be had.
pub(super) fn plan(
    args: &RunArgs,
    views: InOrder<Shown>,
    own: &fence::Own,
    cwd: &Path,
    is_session: bool,
) -> anyhow::Result<(Plan, Terms)> {
    let network = Network::of(&args.network)?;
    let dir = views.dir.tree.path.clone();
    let (fence, user, mut environment) = fence_and_user(args, &views)?;
    if let Some(fence) = &fence {
        let shown: Vec<_> = views.all().map(|view| view.tree.path.clone()).collect();
        fence::refuse_own(&fence.allowed, own, &shown, fence.uid)?;
    }
    environment.missing().iter().for_each(|text| messages::warn(text));
    if !args.quiet {
        environment.told().iter().for_each(|text| messages::note(text));
    }
    if let Some(fence) = &fence
        && !args.quiet
    {
        tell_of_repository_outside(&dir, fence);
    }
    environment.set.splice(0..0, network.environment());
    let limits = Limits::of(&args.limits).keep();
    limits.told().iter().for_each(|text| messages::warn(text));
    require::before(&args.limits.require, args.fence.fence, &network, &limits)?;
    let start = Start {
        command: args.command.clone(),
        dir,
        cwd: cwd.to_owned(),
        environment,
        user,
        control: None,
        fenced: fence.is_some(),
        whole_fence: args.limits.require.contains(&Required::Fence),
        own_network: network.is_own(),
        limits: limits.of_process,
        ends_with_parent: false,
    };
    let control = Control::new(&control::directory());
    if fence.is_none() {
        fence::prepare_for_guests();
    }
    let plan = Plan { views, start, control, fence, network, limits, is_session };
    let terms = terms(args, &plan);
    Ok((plan, terms))
}

fn terms(args: &RunArgs, plan: &Plan) -> Terms {
    let text = |text: &OsString| text.to_string_lossy().into_owned();
    let proxy = plan.network.environment();
    let (memory_bytes, processes) = plan.limits.of_process.numbers();
    let allowed = plan.fence.as_ref().map_or(&[][..], |fence| &fence.allowed);
    let further = || plan.views.further().map(|view| view.tree.path.clone());
    Terms {
        dir: plan.tree().path.clone(),
        user: args.fence.user.clone(),
        control: None,
        fenced: plan.start.fenced,
        whole_fence: plan.start.whole_fence,
        own_network: plan.start.own_network,
        proxy: proxy.iter().map(|(name, value)| (text(name), text(value))).collect(),
        cgroups: plan.limits.paths(),
        memory_bytes,
        processes,
        shown: allowed.iter().map(|one| one.path.clone()).chain(further()).collect(),
        writable: allowed
            .iter()
            .filter(|one| one.writable)
            .map(|one| one.path.clone())
            .chain(further())
            .collect(),
    }
}

/// The fence of CMD, `None` with `--fence off`, who CMD runs as, and with which environment.
///
/// # Errors
/// When a path or a user cannot be had, or a fence that is off is to be opened.
fn fence_and_user(
    args: &RunArgs,
    views: &InOrder<Shown>,
) -> anyhow::Result<(Option<Fence>, Option<User>, Environment)> {
    let options = &args.fence;
    let user = options.user.as_deref().map(User::find).transpose()?;
    if options.fence == Some(FenceWhen::Off) {
        ensure!(options.allow.is_empty(), "--allow opens a fence, and --fence off leaves none");
        return Ok((None, user, Environment::open(&options.env)));
    }
    let homes = HomesOfUser::of(user.as_ref());
    let further: Vec<_> = views.further().map(|view| view.tree.path.clone()).collect();
    let fence = Fence {
        allowed: fence::check(&options.allow, &views.dir.tree.path, &further)?,
        further,
        home: homes.own,
        further_homes: homes.others,
        uid: user.as_ref().map_or_else(|| rustix::process::getuid().as_raw(), |user| user.uid),
        command: args.command.first().cloned(),
        programs: programs(args),
    };
    let allowed = fence.allowed.iter().map(|allowed| &allowed.path);
    let shown: Vec<&Path> = allowed.chain(&fence.further).map(PathBuf::as_path).collect();
    let command = args.command.first().map(OsString::as_os_str);
    let environment = Environment::fenced(&options.env, command, &shown);
    Ok((Some(fence), user, environment))
}

/// In a linked working tree, git reports a lock that it cannot take, and no reason. Where the top lies
/// above DIR it finds no repository.
fn tell_of_repository_outside(dir: &Path, fence: &Fence) {
    if let Some(top) = Repository::top_of(dir).filter(|top| top != dir)
        && std::env::home_dir().is_none_or(|home| top != home)
    {
        messages::note(&format!(
            "DIR is a part of the git repository `{}`, and git looks no further than DIR: \
             `tollgate run {} -- CMD` shows all of it",
            shown(&top),
            word(&top)
        ));
    }
    let outside = Repository::at(dir).and_then(|repository| repository.outside_of(dir));
    let Some([git_dir, common_dir]) = outside else { return };
    let is_open = |path: &PathBuf| {
        let mut writable = fence.allowed.iter().filter(|allowed| allowed.writable);
        path.starts_with(dir) || writable.any(|allowed| path.starts_with(&allowed.path))
    };
    if is_open(&git_dir) && is_open(&common_dir) {
        return;
    }
    messages::note(&format!(
        "the repository of DIR is `{}`, outside of DIR: git reads it and cannot commit; \
         `--allow {}:rw` opens it, with its hooks and settings",
        shown(&common_dir),
        word(&common_dir)
    ));
}

/// The files of CMD and of this program.
fn programs(args: &RunArgs) -> Vec<PathBuf> {
    let own = std::env::current_exe().ok();
    args.command.first().and_then(|command| program(command)).into_iter().chain(own).collect()
}

/// The file of a command, which is named by its path or found in `PATH`.
fn program(command: &OsStr) -> Option<PathBuf> {
    let path = Path::new(command);
    if path.components().count() > 1 {
        return std::fs::canonicalize(path).ok();
    }
    let all = std::env::var_os("PATH")?;
    std::env::split_paths(&all).find_map(|directory| {
        let file = directory.join(path);
        std::fs::canonicalize(file).ok().filter(|file| file.is_file())
    })
}

/// The kernel's error for a read-only mount has no room for a reason.
pub(super) fn tell_why_it_may_have_failed(args: &RunArgs, failed: bool) {
    // Who asked for the fence knows of it.
    if !failed || args.quiet || args.fence.fence.is_some() {
        return;
    }
    messages::note(
        "if CMD met `Read-only file system`: outside of DIR it changes nothing, and /tmp, /run and \
         changes to the home directory are its own; `--allow PATH:rw` opens a path, `--fence off` \
         all",
    );
}
