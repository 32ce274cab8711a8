//! `tollgate reload`: servers read their policies again.

use std::path::Path;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::ReloadArgs;
use crate::control::{self, Replies, Report, Request, Warnings};
use crate::escape::{escaped, shown};
use crate::messages;

/// What a server says of a reload.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reloaded {
    /// The policy's file.
    pub(crate) policy: String,
    pub(crate) warnings: Vec<String>,
    /// What of the policy does not hold before the next start.
    #[serde(default)]
    pub(crate) not_applied: Vec<String>,
    /// Files that are open.
    pub(crate) open: usize,
    /// Those that the new policy would not let everybody open as they are open now.
    pub(crate) not_revoked: usize,
    /// Some of their paths.
    pub(crate) still_open: Vec<String>,
}

impl Reloaded {
    /// In lines, each without its end.
    pub(crate) fn lines(&self, dir: &str) -> Vec<String> {
        let (dir, policy) = (escaped(dir), escaped(&self.policy));
        // Each names its file and says that it is a warning.
        let mut lines = self.warnings.clone();
        let but = if self.not_applied.is_empty() { "" } else { ", but for this:" };
        lines.push(format!("`{dir}`: `{policy}` is in force{but}"));
        lines.extend(self.not_applied.iter().map(|text| format!("  {}", escaped(text))));
        if self.not_revoked > 0 {
            lines.push(format!(
                "  {} of {} open files cannot be taken back from who has them open:",
                self.not_revoked, self.open
            ));
            lines.extend(self.still_open.iter().map(|path| format!("    {}", escaped(path))));
            let more = self.not_revoked - self.still_open.len().min(self.not_revoked);
            if more > 0 {
                lines.push(format!("    and {more} more"));
            }
        }
        lines
    }
}

/// Runs `tollgate reload`.
///
/// # Errors
/// When no server shows DIR, or one of them keeps its old policy.
pub(crate) fn run(args: &ReloadArgs) -> anyhow::Result<()> {
    let Replies { replies: servers, silent } = servers(args)?;
    let mut in_part = 0;
    let mut failed = 0;
    let mut replies = Vec::new();
    for server in &servers {
        let dir = dir_of(server);
        let answer = ask(&server.found.path);
        failed += usize::from(answer.is_err());
        in_part += usize::from(answer.as_ref().is_ok_and(|one| !one.not_applied.is_empty()));
        match answer {
            Ok(reloaded) if !args.json => {
                reloaded.lines(dir).iter().for_each(|line| println!("{line}"));
            }
            Err(error) if !args.json => {
                let reason = messages::in_words(&error);
                messages::say(&format!("`{}` keeps its policy: {reason}", escaped(dir)));
            }
            Ok(reloaded) => replies.push(json!({"dir": dir, "reloaded": reloaded})),
            Err(error) => replies.push(json!({"dir": dir, "error": messages::in_words(&error)})),
        }
    }
    if args.json {
        println!("{:#}", Value::from(replies));
    }
    if let Some(who) = control::no_answer(&silent) {
        bail!("{who}, and keeps its policy");
    }
    match (failed, in_part) {
        (0, 0) => Ok(()),
        (0, _) => bail!(
            "a part of the policy is not in force, as a view begins and ends with its server: what \
             that is, and how to get it, stands above"
        ),
        _ => bail!(
            "{failed} of {} kept the policy that held",
            messages::count(servers.len(), "view")
        ),
    }
}

/// The views to reload: all, with the servers that do not answer, or those of the servers that show DIR;
/// without DIR, of the only one.
fn servers(args: &ReloadArgs) -> anyhow::Result<Replies> {
    let Replies { replies: mut servers, silent } =
        control::ask_all(&Request::Status, Warnings::Shown)?;
    if args.all {
        return Ok(Replies { replies: servers, silent });
    }
    let meant: Vec<_> = match &args.dir {
        Some(dir) => {
            let path = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
            let meant = servers.iter().filter(|server| shows(&server.report, &path));
            meant.map(process).collect()
        }
        None => servers.iter().map(process).collect(),
    };
    if let (None, [first, others @ ..]) = (&args.dir, &meant[..])
        && others.iter().any(|other| other != first)
    {
        let dirs: Vec<_> =
            servers.iter().map(|one| format!("`{}`", escaped(dir_of(one)))).collect();
        bail!("several servers run; name a directory, or `--all`: {}", dirs.join(", "));
    }
    // One server shows all directories of a policy, which it was started with.
    servers.retain(|server| meant.contains(&process(server)));
    if servers.is_empty() {
        match (&args.dir, control::no_answer(&silent)) {
            (Some(dir), Some(who)) => {
                bail!("no server that answers shows `{}`; {who}", shown(dir))
            }
            (Some(dir), None) => bail!(
                "no server of this user shows `{}`; `tollgate status` lists those that run",
                shown(dir)
            ),
            (None, _) => bail!("{}", control::nobody(None, &silent)),
        }
    }
    Ok(Replies { replies: servers, silent: Vec::new() })
}

/// What tells servers apart: the process id in the server's namespace, and here.
fn process(server: &Report) -> (Option<u64>, Option<u32>) {
    (server.report.get("pid").and_then(Value::as_u64), server.found.pid)
}

fn dir_of(server: &Report) -> &str {
    server.report.get("dir").and_then(Value::as_str).unwrap_or("?")
}

fn shows(report: &serde_json::Map<String, Value>, path: &Path) -> bool {
    let is = |key: &str| report.get(key).is_some_and(|member| control::is_path(member, path));
    is("dir") || is("dir_now") || is("mount_point")
}

fn ask(socket: &Path) -> anyhow::Result<Reloaded> {
    let reply: Value = serde_json::from_str(&control::reload(socket)?)?;
    match reply["error"].as_str() {
        Some(error) => bail!("{error}"),
        None => Ok(serde_json::from_value(reply)?),
    }
}
