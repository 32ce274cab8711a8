//! `tollgate umount`.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;
use tollgate_control::Found;
use tollgate_fuse::MountError;

use crate::believed::is_believed_or_guests;
use crate::cli::UmountArgs;
use crate::control::{self, Survey};
use crate::escape::shown;
use crate::mountinfo::{self, MountInfo};
use crate::{connection, killed, lingering, messages, native, tree};

/// Unmounts a view; of one whose server is dead, cleans up.
///
/// # Errors
/// When no view is mounted there, or when it is in use.
pub(crate) fn run(args: &UmountArgs) -> anyhow::Result<()> {
    killed::end_connections();
    let shown = shown(&args.mnt);
    let path = absolute(&args.mnt)?;
    let mounts = mountinfo::read()?;
    let view = match mountinfo::at(&mounts, &path) {
        Some(mount) if mount.kind == mountinfo::VIEW => mount,
        Some(mount) => {
            bail!("MNT `{shown}` is a mount of type {}, not a Tollgate view", mount.kind)
        }
        None if path.exists() => {
            bail!("MNT `{shown}` is not a mount point; `tollgate status` lists views")
        }
        None => bail!("MNT `{shown}` does not exist{}", crate::nearest::path(&args.mnt)),
    };
    // Others may not answer.
    let server = view.minor_number().and_then(connection::holder);
    let Survey { reports, silent } = match args.lazy {
        // Which directories are native does not matter: all that is mounted in it goes along.
        true => Survey::default(),
        false => control::survey_of(server).unwrap_or_default(),
    };
    let lazy = args.lazy || server_of(view, &silent) == Server::Dead;
    match native::unmount_view(&path, &native_directories(view, &reports), lazy) {
        Ok(()) => {
            tell_who_keeps(view);
            Ok(())
        }
        // Which directories in it are native, that one alone knows.
        Err(error) if is_busy(&error) && !silent.is_empty() => bail!(
            "MNT `{shown}` is in use, by a program or by native directories, and its server cannot \
             be asked: {}; detach it with `tollgate umount --lazy`",
            control::no_answer(&silent).unwrap_or_default()
        ),
        Err(error) if is_busy(&error) => bail!(
            "MNT `{shown}` is in use; end what works there, or detach it with `tollgate umount \
             --lazy`"
        ),
        Err(error) => match owner_who_is_not_us(view) {
            Some(user) => {
                bail!("MNT `{shown}` is the view of user {user}, who may unmount it, and root")
            }
            None => Err(error.into()),
        },
    }
}

/// The user who mounted the view, where that keeps us from unmounting it.
fn owner_who_is_not_us(view: &MountInfo) -> Option<u32> {
    let own = rustix::process::geteuid();
    let given =
        |option: &std::ffi::OsString| option.to_str()?.strip_prefix("user_id=")?.parse().ok();
    let owner = view.options.iter().find_map(given)?;
    (!own.is_root() && own.as_raw() != owner).then_some(owner)
}

/// Says for whom a view that was unmounted here is still mounted.
fn tell_who_keeps(view: &MountInfo) {
    let Some(number) = view.minor_number() else { return };
    let processes = lingering::elsewhere(number.into());
    if !processes.is_empty() {
        messages::note(&format!(
            "the view is unmounted here; in another mount namespace, {} still {} it, and its server \
             goes on until that ends",
            lingering::in_words(&processes),
            lingering::have(processes.len())
        ));
    }
}

/// Whether the view is in use, said by the kernel or by the helper, which has no other way to.
fn is_busy(error: &MountError) -> bool {
    let in_use = std::io::Error::from(rustix::io::Errno::BUSY).to_string();
    // Without the number that the standard library adds.
    let in_use = in_use.split(" (").next().unwrap_or_default();
    match error {
        MountError::Busy { .. } => true,
        MountError::Helper { message, .. } => message.contains(in_use),
        _ => false,
    }
}

/// The native directories of `view`, as its server reports them. Without a server to ask there is
/// nothing to do about them: the view is detached with all that is mounted in it.
///
/// CMD of a `run` can answer here, too. What it says is about its own view alone, if about any, and
/// names nothing outside of it.
fn native_directories(view: &MountInfo, reports: &[Value]) -> Vec<PathBuf> {
    let number = view.minor_number().map(u64::from);
    let shows = |report: &&Value| {
        control::is_path(&report["mount_point"], &view.point)
            && report["connection"].as_u64() == number
    };
    let native = reports.iter().find(shows).and_then(|report| report["native"].as_array());
    let directories = native.into_iter().flatten().filter_map(Value::as_str).map(PathBuf::from);
    directories.filter(|directory| is_below(directory)).collect()
}

/// Whether a path leads to below the directory that it is joined to.
fn is_below(path: &Path) -> bool {
    !path.as_os_str().is_empty()
        && path.components().all(|component| matches!(component, Component::Normal(_)))
}

/// What is known of the server of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// It is gone.
    Dead,
    /// It may hang: it, or one of which nobody knows what it shows, did not answer. Its process id, if
    /// it is known to be the one.
    Silent(Option<u32>),
    /// It runs; its process id, where this process may see it.
    Runs(Option<u32>),
}

/// What the server of `view` does, where `silent` ones of this user did not answer. The kernel is not
/// asked about a view whose server may hang: nobody could end this process then.
pub(crate) fn server_of(view: &MountInfo, silent: &[Found]) -> Server {
    match view.minor_number().and_then(connection::holder) {
        Some(pid) if silent.iter().any(|found| found.pid == Some(pid)) => Server::Silent(Some(pid)),
        Some(pid) => Server::Runs(Some(pid)),
        None if silent.iter().any(may_show_any) => Server::Silent(None),
        None if tollgate_fuse::stale(&view.point) => Server::Dead,
        None => Server::Runs(None),
    }
}

/// Whether nobody knows what a server shows. One that was started in a `run` shows nothing here, and
/// CMD of a `run` may be silent in its place.
fn may_show_any(server: &Found) -> bool {
    is_believed_or_guests(&server.path)
        && server.pid.is_none_or(|pid| connection::of_process(pid).is_empty())
}

/// Where a view is that a dead server left at `mnt`; `None` when there is none.
///
/// # Errors
/// When its server may hang.
pub(crate) fn dead_view(mnt: &Path) -> anyhow::Result<Option<PathBuf>> {
    let Ok(path) = absolute(mnt) else { return Ok(None) };
    let mounts = mountinfo::read()?;
    let Some(view) = mountinfo::at(&mounts, &path).filter(|mount| mount.kind == mountinfo::VIEW)
    else {
        return Ok(None);
    };
    let Survey { silent, .. } = control::survey().unwrap_or_default();
    match server_of(view, &silent) {
        Server::Dead => Ok(Some(path)),
        Server::Runs(_) => Ok(None),
        Server::Silent(Some(pid)) => bail!(
            "MNT `{}` shows a view whose server, process {pid}, does not answer: end that one, then \
             `tollgate umount`",
            shown(mnt)
        ),
        Server::Silent(None) => bail!(
            "MNT `{}` shows a view, which may be that of a server that does not answer: end that one, \
             then `tollgate umount`",
            shown(mnt)
        ),
    }
}

/// The path without symbolic links. The last component is not looked at: behind a dead server
/// nothing can be.
fn absolute(mnt: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(path) = std::fs::canonicalize(mnt) {
        return Ok(path);
    }
    let absolute = std::path::absolute(mnt).with_context(|| format!("MNT `{}`", shown(mnt)))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Ok(absolute);
    };
    match std::fs::canonicalize(parent) {
        Ok(parent) => Ok(parent.join(name)),
        Err(error) => bail!("MNT `{}` {}", shown(mnt), tree::why(&error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn native(reports: &[Value]) -> Vec<PathBuf> {
        native_directories(&MountInfo::example(1, "0:7", "/", "/v"), reports)
    }

    #[test]
    fn no_report_names_a_native_directory_outside_of_the_view() {
        let all = ["/other", "", ".", "..", "../other", "a/../../other", "./a", "a", "a/b"];
        let report = json!({ "connection": 7, "mount_point": "/v", "native": all });
        assert_eq!(native(&[report]), ["a", "a/b"].map(PathBuf::from));
    }

    #[test]
    fn only_the_report_of_this_very_view_counts() {
        let report = |connection: Value, point: &str, native: &str| json!({ "connection": connection, "mount_point": point, "native": [native] });
        let others = [
            report(json!(8), "/v", "of-another-view"),
            report(Value::Null, "/v", "of-any"),
            report(json!("7"), "/v", "of-any"),
            report(json!(7), "/w", "elsewhere"),
        ];
        assert!(native(&others).is_empty());
        let all = [&others[..], &[report(json!(7), "/v", "own")]].concat();
        assert_eq!(native(&all), [PathBuf::from("own")]);
    }
}
