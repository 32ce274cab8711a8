//! `tollgate status`: what servers report, and how it is shown.

#[cfg(test)]
mod forged;
mod report;
mod text;

use std::borrow::Cow;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tollgate_control::Found;

pub(crate) use report::{Report, VERSION, keep_awake, negotiated, transport};

use crate::cli::StatusArgs;
use crate::control::{self, Replies, Survey};
use crate::escape::{escaped, json_text, shown, without_controls};
use crate::lingering::{self, Process};
use crate::mountinfo::{self, MountInfo};
use crate::top::Measured;
use crate::umount::{self, Server};
use crate::{killed, other_paths, top};

/// Runs `tollgate status`.
///
/// # Errors
/// When MNT is given and no server of this user shows there; without MNT, when a server does not answer.
pub(crate) fn run(args: &StatusArgs, verbose: bool) -> anyhow::Result<()> {
    killed::end_connections();
    let mnt = args.mnt.as_deref();
    let mnt = mnt.map(crate::files::whole);
    if args.metrics {
        return metrics(mnt.as_deref());
    }
    if args.requests {
        return requests(mnt.as_deref(), args.json);
    }
    let Survey { mut reports, silent } = match &mnt {
        Some(mnt) => control::survey_at(mnt)?,
        None => control::survey()?,
    };
    let all = reports.clone();
    let mounts = mountinfo::read()?;
    for report in &mut reports {
        report["other_views"] = other_paths::other_views(report, &all).into();
        // The brief answer, to another user, says nothing of mounts.
        if report.get("brief").is_none() {
            report["mounted_elsewhere"] = mounted_elsewhere(report, &mounts);
        }
    }
    if let (Some(mnt), Some(path)) = (&args.mnt, &mnt) {
        reports.retain(|report| shows_at(report, path));
        if reports.is_empty() {
            let hint = of_directory(&all, path).unwrap_or_else(|| hint(path, &silent));
            bail!("no server of this user shows at `{}`; {hint}", shown(mnt));
        }
    }
    if args.json {
        println!("{}", json_text(&serde_json::to_string_pretty(&reports)?));
    } else if reports.is_empty() && silent.is_empty() {
        println!("{}", control::nobody(None, &silent));
    } else {
        let texts: Vec<_> = reports.iter().map(|report| text::text(report, verbose)).collect();
        print!("{}", texts.join("\n"));
    }
    // Whoever looks at the list alone would take them for ended.
    match control::no_answer(&silent) {
        Some(who) if args.mnt.is_none() => bail!("{who}, and is missing above"),
        _ => Ok(()),
    }
}

/// How long `status --requests` counts for its rates.
const INTERVAL: Duration = Duration::from_secs(1);

fn requests(mnt: Option<&Path>, json: bool) -> anyhow::Result<()> {
    match top::measure(mnt, INTERVAL)? {
        Measured::Rates(rates) if json => {
            println!("{}", json_text(&serde_json::to_string_pretty(&rates)?));
        }
        Measured::Rates(rates) => {
            let texts: Vec<_> = rates.iter().map(top::text).collect();
            print!("{}", texts.join("\n"));
        }
        Measured::Nobody(_) if mnt.is_none() && json => println!("[]"),
        Measured::Nobody(words) if mnt.is_none() => println!("{words}"),
        Measured::Nobody(words) | Measured::Unknown(words) => bail!(words),
    }
    Ok(())
}

fn metrics(mnt: Option<&Path>) -> anyhow::Result<()> {
    let (request, warnings) = (control::Request::Status, control::Warnings::Shown);
    let Replies { replies: mut servers, silent } = match mnt {
        Some(mnt) => control::ask_for(&control::is_at(mnt), &request, warnings)?,
        None => control::ask_all(&request, warnings)?,
    };
    servers.retain(|server| server.report.get("brief").is_none());
    servers.retain(|server| mnt.is_none_or(|mnt| control::is_at(mnt)(&server.report)));
    if mnt.is_some() && servers.len() > 1 {
        let mounts = mountinfo::read()?;
        let report = |server: &control::Report| Value::Object(server.report.clone());
        servers.retain(|server| !lingering::is_not_here(&report(server), &mounts));
    }
    match servers.as_slice() {
        [server] => {
            let counters = control::metrics(&server.found.path)?;
            print!("{}", for_output(&counters, std::io::stdout().is_terminal()));
        }
        [] => bail!(control::nobody(mnt, &silent)),
        several => bail!(of_several(mnt, several)),
    }
    Ok(())
}

/// That the counters of one server are not those of several. Of `run`s over one directory all show there.
fn of_several(mnt: Option<&Path>, servers: &[control::Report]) -> String {
    let Some(mnt) = mnt else {
        return "more than one server runs; give the mount point of one".to_owned();
    };
    let who = |server: &control::Report| match server.found.pid {
        Some(pid) => format!("process {pid}"),
        None => "one in another pid namespace".to_owned(),
    };
    format!(
        "more than one server shows at `{}` ({}), and `--metrics` prints the counters of one: start \
         each with a `--metrics-port` of its own",
        shown(mnt),
        servers.iter().map(who).collect::<Vec<_>>().join(", ")
    )
}

/// Counters as they came for who collects them; on a terminal nothing in them steers it.
fn for_output(counters: &str, is_terminal: bool) -> Cow<'_, str> {
    if is_terminal { without_controls(counters).into() } else { counters.into() }
}

/// Of a view that is not mounted here: processes for which it is. Null of one that is.
fn mounted_elsewhere(report: &Value, mounts: &[MountInfo]) -> Value {
    match report["connection"].as_u64() {
        Some(number) if lingering::is_not_here(report, mounts) => {
            lingering::elsewhere(number).iter().map(Process::in_json).collect()
        }
        _ => Value::Null,
    }
}

fn shows_at(report: &Value, path: &Path) -> bool {
    control::is_path(&report["mount_point"], path)
}

/// Where views of `dir` are, if it is the directory that some show.
fn of_directory(reports: &[Value], dir: &Path) -> Option<String> {
    let is_of = |report: &&Value| control::is_path(&report["dir"], dir);
    let at = |report: &Value| report["mount_point"].as_str().map(|at| format!("`{}`", escaped(at)));
    let all: Vec<_> = reports.iter().filter(is_of).filter_map(at).collect();
    (!all.is_empty()).then(|| format!("it is the directory that is shown at {}", all.join(", ")))
}

/// What to do about a view at `mnt`, absolute, that no server which answered shows; `silent` ones did not
/// answer.
fn hint(mnt: &Path, silent: &[Found]) -> String {
    let mounts = mountinfo::read().unwrap_or_default();
    let view = mountinfo::at(&mounts, mnt).filter(|mount| mount.kind == mountinfo::VIEW);
    match view.map(|view| umount::server_of(view, silent)) {
        Some(Server::Dead) => "its server is dead: clean up with `tollgate umount`".to_owned(),
        Some(Server::Silent(Some(pid))) => format!(
            "its server, process {pid}, does not answer: end that one, then `tollgate umount`"
        ),
        Some(Server::Silent(None)) => {
            "it may be that of a server that does not answer: end that one, then `tollgate umount`"
                .to_owned()
        }
        Some(Server::Runs(Some(pid))) => {
            format!("its server is process {pid}, of another user or without its socket")
        }
        Some(Server::Runs(None)) | None => "`tollgate status` lists those that run".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gave_a_mount_point_that_several_have_is_not_asked_for_it() {
        let server = |pid| control::Report {
            found: Found { path: "/s/view-1.sock".into(), pid, uid: 0 },
            report: serde_json::Map::new(),
        };
        let said = of_several(Some(Path::new("/a b")), &[server(Some(5)), server(None)]);
        assert!(said.contains("`/a b` (process 5, one in another pid namespace)"), "{said}");
        assert!(
            said.contains("--metrics-port") && !said.contains("give the mount point"),
            "{said}"
        );
        assert!(of_several(None, &[]).contains("give the mount point"));
    }
}
