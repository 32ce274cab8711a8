//! Which process `tollgate wq` talks to.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use anyhow::bail;
use tollgate_control::Found;
use tollgate_workqueue::control::KIND;

use crate::cli::WqTarget;
use crate::escape::shown;
use crate::{control, messages};

/// What finds the right socket by itself.
const WITHOUT: &str = "without --socket, those of this user's programs are looked for";

/// How a program gets a socket, for those who find none.
const HINT: &str = "a program opens its socket with tollgate_workqueue::control::serve, or at a \
                    path of its own, to be given by --socket";

/// The socket that was meant.
///
/// # Errors
/// There is none, or more than one; or the directory of sockets is not private to this user.
pub(super) fn socket(target: &WqTarget) -> anyhow::Result<PathBuf> {
    if let Some(socket) = &target.socket {
        let found = socket.metadata();
        if let Err(error) = &found {
            bail!("control socket `{}`: {error}; {WITHOUT}; {HINT}", shown(socket));
        }
        if !found.is_ok_and(|found| found.file_type().is_socket()) {
            bail!("`{}` is not a socket; {WITHOUT}; {HINT}", shown(socket));
        }
        return Ok(socket.clone());
    }
    let discovery = control::directory().servers(KIND)?;
    for trouble in discovery.troubles {
        messages::warn(&messages::in_words(&trouble.into()));
    }
    let mut found = discovery.found;
    found.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    choose(&found, target.pid)
}

fn choose(found: &[Found], pid: Option<u32>) -> anyhow::Result<PathBuf> {
    let meant: Vec<_> = found.iter().filter(|found| pid.is_none() || found.pid == pid).collect();
    match (meant.as_slice(), pid) {
        ([one], _) => Ok(one.path.clone()),
        ([], None) => bail!("no program of this user has work queues to look into; {HINT}"),
        ([], Some(pid)) => {
            bail!("process {pid} has no work queues to look into; {}{HINT}", others(found))
        }
        (several, Some(pid)) => bail!(
            "process {pid} has {} runtimes: give --socket {}",
            several.len(),
            sockets(several.iter().copied())
        ),
        (_, None) => bail!(
            "more than one program has work queues: {}give --pid{}",
            others(found),
            unseen(found)
        ),
    }
}

fn sockets<'f>(found: impl Iterator<Item = &'f Found>) -> String {
    let paths: Vec<_> = found.map(|found| found.path.display().to_string()).collect();
    paths.join(" or ")
}

/// The processes that --pid can name.
fn others(found: &[Found]) -> String {
    let mut named: Vec<_> = found
        .iter()
        .filter_map(|found| found.pid)
        .map(|pid| format!("{pid} ({})", command(pid)))
        .collect();
    named.dedup();
    if named.is_empty() { String::new() } else { format!("there are {}; ", named.join(", ")) }
}

/// How to name the processes that --pid cannot.
fn unseen(found: &[Found]) -> String {
    let unseen = sockets(found.iter().filter(|found| found.pid.is_none()));
    if unseen.is_empty() {
        return unseen;
    }
    format!(", or for a process of another pid namespace --socket {unseen}")
}

fn command(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "gone".to_owned(), |name| name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn found(pid: Option<u32>, path: &str) -> Found {
        Found { path: path.into(), pid, uid: 0 }
    }

    #[test]
    fn one_is_chosen_and_everything_else_is_explained() {
        let one = [found(Some(7), "/d/a")];
        assert_eq!(choose(&one, None).unwrap(), Path::new("/d/a"));
        assert_eq!(choose(&one, Some(7)).unwrap(), Path::new("/d/a"));
        let error = |found: &[Found], pid| choose(found, pid).unwrap_err().to_string();
        assert!(error(&[], None).contains("control::serve"));
        assert!(error(&one, Some(8)).contains("process 8 has no work queues"));
        let two = [found(Some(4_000_000_000), "/d/a"), found(None, "/d/b")];
        let text = error(&two, None);
        assert!(text.contains("4000000000 (gone)"), "{text}");
        assert!(text.contains("another pid namespace --socket /d/b"), "{text}");
        let twice = [found(Some(7), "/d/a"), found(Some(7), "/d/b")];
        assert!(error(&twice, Some(7)).contains("--socket /d/a or /d/b"));
    }
}
