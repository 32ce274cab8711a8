//! Which process `tollgate wq` talks to.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tollgate_workqueue::control::{self, ControlError};

use crate::cli::WqTarget;

/// How a program gets a socket, for those who find none.
const HINT: &str = "a program opens its socket with tollgate_workqueue::control::serve_default, \
                    or at a path of its own, to be given by --socket";

/// A socket in the usual place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    pid: u32,
    path: PathBuf,
}

/// The socket that was meant.
///
/// # Errors
/// There is none, or more than one.
pub(super) fn socket(target: &WqTarget) -> anyhow::Result<PathBuf> {
    if let Some(socket) = &target.socket {
        return Ok(socket.clone());
    }
    choose(&alive(&control::directory())?, target.pid)
}

fn choose(found: &[Found], pid: Option<u32>) -> anyhow::Result<PathBuf> {
    let meant: Vec<_> =
        found.iter().filter(|found| pid.is_none_or(|pid| found.pid == pid)).collect();
    match (meant.as_slice(), pid) {
        ([one], _) => Ok(one.path.clone()),
        ([], None) => bail!("no program of this user has work queues to look into; {HINT}"),
        ([], Some(pid)) => {
            bail!("process {pid} has no work queues to look into; {}{HINT}", others(found))
        }
        (several, Some(pid)) => {
            let paths: Vec<_> =
                several.iter().map(|found| found.path.display().to_string()).collect();
            bail!(
                "process {pid} has {} runtimes: give --socket {}",
                paths.len(),
                paths.join(" or ")
            )
        }
        (_, None) => bail!("more than one program has work queues: {}give --pid", others(found)),
    }
}

fn others(found: &[Found]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let mut named: Vec<_> =
        found.iter().map(|found| format!("{} ({})", found.pid, command(found.pid))).collect();
    named.dedup();
    format!("there are {}; ", named.join(", "))
}

fn command(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "gone".to_owned(), |name| name.trim_end().to_owned())
}

/// The sockets that somebody listens at. Those of dead processes are removed.
///
/// # Errors
/// The directory belongs to somebody else, who could put sockets there that lead anywhere.
fn alive(directory: &Path) -> anyhow::Result<Vec<Found>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("`{}` cannot be read", directory.display()))?,
    };
    control::check_directory(directory)?;
    let mut found: Vec<_> =
        entries.flatten().filter_map(|entry| of_a_process(entry.path())).collect();
    found.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    found.retain(|found| !is_dead(found));
    Ok(found)
}

/// `wq-PID.sock` or `wq-PID-N.sock`.
fn of_a_process(path: PathBuf) -> Option<Found> {
    let name = path.file_name()?.to_str()?.strip_prefix("wq-")?.strip_suffix(".sock")?;
    let pid = name.split('-').next()?.parse().ok()?;
    Some(Found { pid, path })
}

fn is_dead(found: &Found) -> bool {
    // An empty request is answered with an error, which is an answer.
    match control::ask(&found.path, "") {
        Err(ControlError::Gone { .. }) => {
            // A process that starts has its socket a moment before it listens.
            if !Path::new(&format!("/proc/{}", found.pid)).exists() {
                // Another `wq` may have been faster.
                drop(std::fs::remove_file(&found.path));
            }
            true
        }
        Err(ControlError::System { source, .. }) => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Vec<Found> {
        names.iter().filter_map(|name| of_a_process(Path::new("/d").join(name))).collect()
    }

    #[test]
    fn names_are_told_apart() {
        let found = found(&["wq-7.sock", "wq-7-2.sock", "8.sock", "wq-x.sock", "wq-9.txt"]);
        assert_eq!(found.iter().map(|found| found.pid).collect::<Vec<_>>(), [7, 7]);
    }

    #[test]
    fn one_is_chosen_and_everything_else_is_explained() {
        let one = found(&["wq-7.sock"]);
        assert_eq!(choose(&one, None).unwrap(), Path::new("/d/wq-7.sock"));
        assert_eq!(choose(&one, Some(7)).unwrap(), Path::new("/d/wq-7.sock"));
        let error = |found: &[Found], pid| choose(found, pid).unwrap_err().to_string();
        assert!(error(&[], None).contains("serve_default"));
        assert!(error(&one, Some(8)).contains("process 8 has no work queues"));
        let two = found(&["wq-7.sock", "wq-4000000000.sock"]);
        assert!(error(&two, None).contains("4000000000 (gone)"), "{}", error(&two, None));
        let twice = found(&["wq-7.sock", "wq-7-2.sock"]);
        assert!(error(&twice, Some(7)).contains("--socket /d/wq-7.sock or /d/wq-7-2.sock"));
    }

    #[test]
    fn sockets_of_dead_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("tollgate");
        control::prepare(&directory).unwrap();
        let pid = std::process::id();
        // No process has such a number. Ours is alive, and may just be about to listen.
        let [dead, starting, live] =
            ["4000000000".to_owned(), format!("{pid}-2"), format!("{pid}")]
                .map(|name| directory.join(format!("wq-{name}.sock")));
        for path in [&dead, &starting] {
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
        let _server = control::Server::start(&live, |_| String::new()).unwrap();
        assert_eq!(alive(&directory).unwrap(), [Found { pid, path: live }]);
        assert!(!dead.exists() && starting.exists());
        assert!(alive(&parent.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn sockets_in_a_directory_open_to_others_are_not_asked() {
        let directory = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(directory.path(), mode).unwrap();
        let error = alive(directory.path()).unwrap_err().to_string();
        assert!(error.contains("mode 700"), "{error}");
        assert!(error.contains(directory.path().to_str().unwrap()), "{error}");
    }
}
