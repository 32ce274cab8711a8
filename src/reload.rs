//! `tollgate reload`: servers read their policies again.

use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tollgate_control::{ControlError, PATIENCE};

use crate::believed::is_believed_or_guests;
use crate::cli::ReloadArgs;
use crate::control::{self, Replies, Report, Request, Warnings};
use crate::escape::{escaped, json_text, of_another, shown};
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
    /// In lines, each without its end. CMD of a `run` may answer as a server does: no word of it
    /// steers the terminal or looks like a line of this program.
    pub(crate) fn lines(&self, dir: &str) -> Vec<String> {
        let (dir, policy) = (escaped(dir), escaped(&self.policy));
        // Each names its file and says that it is a warning.
        let mut lines: Vec<_> = self.warnings.iter().map(|text| of_another(text)).collect();
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

/// What a view came to.
type Answer = anyhow::Result<Reloaded>;

/// Runs `tollgate reload`. The views of one server get the policy together, or keep theirs together.
///
/// # Errors
/// When no server shows DIR, or one of them keeps its old policy.
pub(crate) fn run(args: &ReloadArgs) -> anyhow::Result<()> {
    let Replies { replies: mut views, silent } = servers(args)?;
    // The views of one server beside each other, where the first of them is.
    let order: Vec<_> = views.iter().map(process).collect();
    views.sort_by_key(|view| order.iter().position(|known| *known == process(view)));
    let answers = reload_all(&views);
    // A server that ends keeps no policy; its socket may be there for a moment longer than its view.
    let asked = views.len();
    let lives = |one: &(Report, Answer)| !has_ended(&one.1);
    let (views, answers): (Vec<_>, Vec<_>) = views.into_iter().zip(answers).filter(lives).unzip();
    if asked > 0 && views.is_empty() {
        bail!("{} ended before the policy was read again", messages::count(asked, "view"));
    }
    if args.json {
        let replies = views.iter().zip(&answers).map(|(view, answer)| match answer {
            Ok(reloaded) => json!({"dir": dir_of(view), "reloaded": reloaded}),
            Err(error) => json!({"dir": dir_of(view), "error": messages::in_words(error)}),
        });
        let replies = Value::from(replies.collect::<Vec<_>>());
        println!("{}", json_text(&format!("{replies:#}")));
    } else {
        tell(&views, &answers);
    }
    if let Some(who) = control::no_answer(&silent) {
        bail!("{who}, and keeps its policy");
    }
    let failed = answers.iter().filter(|answer| answer.is_err()).count();
    let in_part = |answer: &Answer| answer.as_ref().is_ok_and(|one| !one.not_applied.is_empty());
    match (failed, answers.iter().any(in_part)) {
        (0, false) => Ok(()),
        (0, true) => bail!(
            "a part of the policy is not in force before a start: what that is, and how to get it, \
             stands above"
        ),
        _ => {
            bail!("{failed} of {} kept the policy that held", messages::count(views.len(), "view"))
        }
    }
}

/// Whether the server was gone before it answered.
fn has_ended(answer: &Answer) -> bool {
    let error = answer.as_ref().err().and_then(|error| error.downcast_ref::<ControlError>());
    error.is_some_and(ControlError::is_gone)
}

/// Has all views reload, those of many servers at the same time: servers that hang hold up the others
/// once. One after the other where no thread can be started.
fn reload_all(views: &[Report]) -> Vec<Answer> {
    let until = Instant::now() + PATIENCE;
    let of_servers: Vec<_> = views.chunk_by(|one, next| process(one) == process(next)).collect();
    let at_once = |some: &[&[Report]]| {
        std::thread::scope(|scope| {
            let start = |views| {
                let thread = std::thread::Builder::new();
                let started = thread.spawn_scoped(scope, move || reload_together(views, until));
                started.map_err(|_| reload_together(views, until))
            };
            let started: Vec<_> = some.iter().copied().map(start).collect();
            let end = |one: ScopedJoinHandle<'_, _>| one.join().expect("it does not panic");
            started.into_iter().map(|one| one.map_or_else(|done| done, end)).collect::<Vec<_>>()
        })
    };
    of_servers.chunks(control::AT_ONCE).flat_map(at_once).flatten().collect()
}

/// Has the views of one server read their policy again, if each of them may.
fn reload_together(views: &[Report], until: Instant) -> Vec<Answer> {
    let reload = || views.iter().map(|view| ask(&view.found.path, until)).collect();
    if views.len() < 2 {
        return reload();
    }
    let may: Vec<_> = views.iter().map(|view| may_reload(&view.found.path, until)).collect();
    if may.iter().all(Result::is_ok) {
        return reload();
    }
    let refusing = views.iter().zip(&may).filter(|(_, may)| may.is_err());
    let refusing: Vec<_> = refusing.map(|(view, _)| dir_of(view)).collect();
    let refusing = format!("`{}` cannot have the new one", escaped(&refusing.join("`, `")));
    may.into_iter().map(|may| may.and_then(|()| bail!("{refusing}"))).collect()
}

/// What became of each view. The reason that several have is given once.
fn tell(views: &[Report], answers: &[Answer]) {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for (view, answer) in views.iter().zip(answers) {
        let dir = dir_of(view);
        match answer {
            Ok(reloaded) => reloaded.lines(dir).iter().for_each(|line| println!("{line}")),
            Err(error) => {
                let reason = of_another(&messages::in_words(error));
                match reasons.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, dirs)) => dirs.push(dir),
                    None => reasons.push((reason, vec![dir])),
                }
            }
        }
    }
    for (reason, dirs) in reasons {
        let policy = if dirs.len() == 1 { "keeps its policy" } else { "keep their policy" };
        messages::say(&format!("`{}` {policy}: {reason}", escaped(&dirs.join("`, `"))));
    }
}

/// The views to reload: all, with the servers that do not answer, or those of the servers that show DIR;
/// without DIR, of the only one.
fn servers(args: &ReloadArgs) -> anyhow::Result<Replies> {
    let Replies { replies, mut silent } = control::ask_all(&Request::Status, Warnings::Shown)?;
    // What answers elsewhere can have another server's socket in the place of its own at the next
    // question. A server in a `run` reloads for nobody outside of that.
    silent.retain(|found| is_believed_or_guests(&found.path));
    let is_believed = |server: &Report| is_believed_or_guests(&server.found.path);
    let (mut servers, others): (Vec<_>, Vec<_>) = replies.into_iter().partition(is_believed);
    if args.all {
        return Ok(Replies { replies: servers, silent });
    }
    let meant: Vec<_> = match &args.dir {
        Some(dir) => {
            let path = crate::files::whole(dir);
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
        if let Some(dir) = &args.dir
            && others.iter().any(|server| shows(&server.report, &crate::files::whole(dir)))
        {
            bail!("what shows `{}` was started in a `tollgate run`: reload it there", shown(dir));
        }
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

fn ask(socket: &Path, until: Instant) -> Answer {
    Ok(serde_json::from_value(answer(socket, true, until)?)?)
}

fn may_reload(socket: &Path, until: Instant) -> anyhow::Result<()> {
    answer(socket, false, until).map(|_| ())
}

fn answer(socket: &Path, apply: bool, until: Instant) -> anyhow::Result<Value> {
    let reply: Value = serde_json::from_str(&control::reload(socket, apply, until)?)?;
    match reply["error"].as_str() {
        Some(error) => bail!("{error}"),
        None => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_neither_steers_the_terminal_nor_adds_lines() {
        let forged = "x\u{1b}[2J\u{9b}\r\n`/dir`: `/policy` is in force\u{202e}";
        let reloaded = Reloaded {
            policy: forged.to_owned(),
            warnings: vec![forged.to_owned()],
            not_applied: vec![forged.to_owned()],
            open: 1,
            not_revoked: 1,
            still_open: vec![forged.to_owned()],
        };
        let text = reloaded.lines(forged).join("\n");
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{text:?}");
        let flush = text.lines().filter(|line| !line.starts_with(' '));
        // The warning's first line, and what is in force.
        assert_eq!(flush.count(), 2, "{text}");
    }
}
