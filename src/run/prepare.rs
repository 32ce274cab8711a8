//! What the options of `run` about the fence come to.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::ensure;

use super::environment::Environment;
use super::fence::{self, Fence};
use super::user::User;
use crate::cli::{FenceWhen, RunArgs};
use crate::messages;

/// The fence of CMD, `None` with `--fence off`, who CMD runs as, and with which environment.
///
/// # Errors
/// When a path or a user cannot be had, or a fence that is off is to be opened.
pub(super) fn fence_and_user(
    args: &RunArgs,
    dir: &Path,
) -> anyhow::Result<(Option<Fence>, Option<User>, Environment)> {
    let options = &args.fence;
    let user = options.user.as_deref().map(User::find).transpose()?;
    if options.fence == Some(FenceWhen::Off) {
        ensure!(options.allow.is_empty(), "--allow opens a fence, and --fence off leaves none");
        return Ok((None, user, Environment::open(&options.env)));
    }
    let home = match &user {
        Some(user) => user.home(),
        None => std::env::home_dir(),
    };
    let fence = Fence {
        allowed: fence::check(&options.allow, dir)?,
        home: fence::home_of(home),
        uid: user.as_ref().map_or_else(|| rustix::process::getuid().as_raw(), |user| user.uid),
        command: args.command.first().cloned(),
        programs: programs(args),
    };
    let shown: Vec<&Path> = fence.allowed.iter().map(|allowed| allowed.path.as_path()).collect();
    let command = args.command.first().map(OsString::as_os_str);
    let environment = Environment::fenced(&options.env, command, &shown);
    Ok((Some(fence), user, environment))
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
pub(super) fn tell_why_it_may_have_failed(args: &RunArgs, succeeded: bool) {
    // Who asked for the fence knows of it.
    if succeeded || args.quiet || args.fence.fence.is_some() {
        return;
    }
    messages::note(
        "outside of DIR, CMD changes nothing (`Read-only file system`), and /tmp, /run and changes \
         to the home directory are its own; `--allow PATH:rw` opens a path, `--fence off` all",
    );
}
