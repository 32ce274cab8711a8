//! `tollgate why`: in a `run`, what holds for a path, and which rule or option would change it.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tollgate_policy::{Facts, Kind, Operation, Policy, Verdict};
use tollgate_view::View;

use crate::cli::{CallerArg, WhyArgs};
use crate::control::{self, About, Report, Request, Warnings};
use crate::escape::{self, json_text, without_controls};
use crate::policy_choice::{BUILT_IN, IN_RUN};
use crate::policy_masked;

/// Who has no name in a user namespace (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_ID: u32 = 65_534;

/// A rule of the user's policy refuses it.
const CHANGED_OUTSIDE: &str =
    "a rule before it in the policy would allow it, which is changed outside";

/// What holds for a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    allowed: bool,
    errno: Option<String>,
    reason: String,
    /// What would allow it.
    remedy: Option<String>,
}

/// What the server of the fence says of a path outside of DIR.
#[derive(Debug, Deserialize)]
struct Place {
    what: String,
    to_read: Option<String>,
    to_write: Option<String>,
}

/// Asks the server of the view that this process is in, and the kernel.
///
/// # Errors
/// Outside of every `run`, and when its server does not answer.
pub(crate) fn run(args: &WhyArgs) -> anyhow::Result<()> {
    let dir = std::env::var_os(IN_RUN).map(PathBuf::from).context(
        "this is not inside of `tollgate run`; outside, `tollgate explain PATH` says what a policy \
         does",
    )?;
    let path = real(plain(&std::path::absolute(&args.path).context("PATH")?), &dir);
    let directory = path.is_dir() || args.path.as_os_str().as_bytes().ends_with(b"/");
    let about = About { path: path.clone(), write: args.write, directory };
    // As JSON has it, whose text is UTF-8.
    let named = dir.to_string_lossy();
    let of_dir = |reply: &Map<String, Value>| reply.get("dir").is_some_and(|dir| *dir == *named);
    // Another `run` may be over the same directory.
    let shown = connection_at(&dir);
    let is_own = |reply: &Map<String, Value>| of_dir(reply) && connection(reply) == shown;
    let replies = control::ask_for(&is_own, &Request::Why(about), Warnings::Left)?.replies;
    let of_dir = |reply: &&Report| of_dir(&reply.report);
    let own = replies.iter().find(|reply| is_own(&reply.report));
    let Some(own) = own.or_else(|| replies.iter().rev().find(of_dir)) else {
        bail!(
            "the server of `{0}` does not answer. It has no control socket if `run` warned of that at its \
             start; else it answers the user who started it, root, and the user of `--user` (by ${1}). \
             Ask outside: `tollgate explain --dir {0} PATH` for the policy, \
             and, where there is a socket, `tollgate status` for what was refused",
            escape::shown(&dir),
            control::FOR_GUEST
        );
    };
    // Others, too, that the policy has by `[[view]]`.
    let of_own = |reply: &&Report| {
        let dir = reply.report.get("dir");
        let further = own.report.get("further").and_then(Value::as_array);
        dir == own.report.get("dir")
            || further.is_some_and(|all| all.iter().any(|one| Some(one) == dir))
    };
    for reply in replies.iter().filter(of_own) {
        let dir = reply.report.get("dir").and_then(Value::as_str).unwrap_or_default();
        let served = connection(&reply.report);
        let is_elsewhere = served.is_some() && served != connection_at(Path::new(dir));
        // Several `run`s may be over one directory.
        let is_anothers = replies.iter().any(|other| {
            other.report.get("dir") == reply.report.get("dir")
                && connection(&other.report) == connection_at(Path::new(dir))
        });
        if is_elsewhere && !is_anothers && path.starts_with(dir) && !shows(reply, &path) {
            bail!(
                "`{}` is not what it was when `run` began: the directory was moved or removed \
                 outside, and the view went with it. What is at that path now is not behind the \
                 view, and no rule holds for it",
                escape::escaped(dir)
            );
        }
    }
    // Another directory of the same policy.
    let is_further = |reply: &&Report| {
        reply.report.get("dir") != own.report.get("dir") && of_own(reply) && shows(reply, &path)
    };
    let around = replies.iter().find(is_further).unwrap_or(own);
    let answer = match in_view(around).filter(|_| path.starts_with(&dir) || shows(around, &path)) {
        Some(answer) => as_it_is(answer, &path, args.write),
        None => {
            refuse_unknown_place(around, &path)?;
            outside(own, &replies, &path, args.write)?
        }
    };
    if args.json {
        let mut json = serde_json::to_value(&answer)?;
        json["write"] = args.write.into();
        if let Value::Object(fields) = &mut json {
            escape::add_to_json(fields, "path", &path);
        }
        println!("{}", json_text(&format!("{json:#}")));
        return Ok(());
    }
    let verdict = match &answer.errno {
        _ if answer.allowed => "yes".to_owned(),
        Some(errno) => format!("no ({errno})"),
        None => "no".to_owned(),
    };
    let remedy = answer.remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    let text = format!("{}: {verdict}, {}{remedy}", escape::shown(&path), answer.reason);
    println!("{}", without_controls(&text));
    Ok(())
}

/// Whether the server that replied serves what is at `path`.
fn shows(reply: &Report, path: &Path) -> bool {
    connection(&reply.report) == connection_at(path)
}

/// A view that was moved outside takes its rules along: none can be named where its server does not know
/// that the path is in it.
///
/// # Errors
/// When that is so.
fn refuse_unknown_place(reply: &Report, path: &Path) -> anyhow::Result<()> {
    let is_moved = reply.report.get("moved").and_then(Value::as_bool).unwrap_or_default();
    if is_moved && shows(reply, path) {
        let dir = reply.report.get("dir").and_then(Value::as_str).unwrap_or_default();
        bail!(
            "`{}` is in the view of `{}`, which was moved or removed outside: by which of its rules \
             cannot be told; start `run` again for the directory where it is now",
            escape::shown(path),
            escape::escaped(dir)
        );
    }
    Ok(())
}

/// Of a path in DIR of the server that replied.
fn in_view(reply: &Report) -> Option<Answer> {
    serde_json::from_value(reply.report.get("why")?.clone()).ok()
}

/// The number of the connection that a server has, where it is known.
fn connection(reply: &Map<String, Value>) -> Option<u64> {
    reply.get("connection")?.as_u64()
}

/// The number of the connection that serves what is at `path`, or above it if that does not exist.
fn connection_at(path: &Path) -> Option<u64> {
    let found = path.ancestors().find_map(|path| std::fs::symlink_metadata(path).ok())?;
    Some(rustix::fs::minor(found.dev()).into())
}

/// What the policy allows by its name may not exist, or be refused for what it holds or leads to.
fn as_it_is(answer: Answer, path: &Path, write: bool) -> Answer {
    let found = std::fs::symlink_metadata(path);
    if !answer.allowed {
        return answer;
    }
    if write {
        return by_permissions(answer, path);
    }
    // A directory above it may not be searched.
    let is_out_of_reach = found.as_ref().is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    if found.is_ok() || is_out_of_reach {
        let Err(errno) = opened(path) else { return answer };
        let what = match path.is_symlink() {
            true if std::fs::read_link(path).is_err() => {
                "a rule about symbolic links refuses this one"
            }
            true => "what the link leads to is hidden, refused or not there",
            false => "refused for its contents, its permissions or who asks",
        };
        let reason = format!("allowed by its name, but {what}");
        return Answer { allowed: false, errno: name_of(Some(errno)), reason, remedy: None };
    }
    let reason = format!("{}; there is nothing at this path now", answer.reason);
    Answer { reason, ..answer }
}

/// What the policy allows to be changed may be refused by permissions: those of the caller, of whom
/// without root a user namespace leaves one group.
fn by_permissions(answer: Answer, path: &Path) -> Answer {
    let refused = tried(path, true).err();
    let Some(errno @ (Errno::ACCESS | Errno::PERM)) = refused else {
        return by_other_names(answer, path);
    };
    let is_of_other = std::fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.uid() == OVERFLOW_ID && !rustix::process::geteuid().is_root());
    let (reason, remedy) = match is_of_other {
        true => (
            "allowed by the policy, but it belongs to another user, and its permissions do not give it to \
             you here: without root no supplementary group counts in `run`",
            Some(
                "where a group of yours may change it, root can start `run` by `--user`, with all groups; \
                 or make it yours, outside",
            ),
        ),
        false => ("allowed by the policy, but not by its permissions", None),
    };
    let (reason, remedy) = (reason.to_owned(), remedy.map(str::to_owned));
    Answer { allowed: false, errno: name_of(Some(errno)), reason, remedy }
}

/// What the policy allows under one name may be refused for another one of the same file.
fn by_other_names(answer: Answer, path: &Path) -> Answer {
    let has_others = std::fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.file_type().is_file() && meta.nlink() > 1);
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = || rustix::fs::open(path, flags, Mode::empty()).err();
    match has_others.then(opened).flatten() {
        Some(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOENT)) => Answer {
            allowed: false,
            errno: name_of(Some(errno)),
            reason: "allowed by this name, but the file has another one with stricter rules".into(),
            remedy: None,
        },
        _ => answer,
    }
}

/// Of a path outside of DIR: what the kernel says, and why.
fn outside(own: &Report, all: &[Report], path: &Path, write: bool) -> anyhow::Result<Answer> {
    let errno = tried(path, write).err();
    // In another view, as where one `run` is inside another.
    let around = all.iter().filter(|reply| connection(&reply.report) == connection_at(path));
    let refused = around.filter_map(in_view).find(|answer| !answer.allowed);
    if let (Some(answer), Some(_)) = (refused, errno) {
        let reason = format!("{}, in the policy of the `run` around this one", answer.reason);
        return Ok(Answer { reason, ..answer });
    }
    let place = own.report.get("outside").cloned().map(serde_json::from_value::<Place>);
    let Some(Ok(place)) = place else {
        let reason = "there is no fence: as its permissions say".to_owned();
        return Ok(Answer {
            allowed: errno.is_none(),
            errno: name_of(errno),
            reason,
            remedy: None,
        });
    };
    let remedy = if write { place.to_write } else { place.to_read };
    // The permissions outside are the same, but for private places.
    let is_private = place.what.contains("gone when");
    let by_permissions = matches!(errno, Some(Errno::ACCESS | Errno::PERM));
    let remedy = remedy.filter(|_| is_private || (errno.is_some() && !by_permissions));
    let reason = match errno {
        Some(Errno::ACCESS | Errno::PERM) => format!("by its permissions ({})", place.what),
        Some(Errno::NOENT) => format!("there is nothing at this path ({})", place.what),
        _ => place.what,
    };
    Ok(Answer { allowed: errno.is_none(), errno: name_of(errno), reason, remedy })
}

/// Whether the policy lets it be opened. Only a file or a directory is: others may do something then.
fn opened(path: &Path) -> rustix::io::Result<()> {
    let found = rustix::fs::stat(path)?;
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    if kind != rustix::fs::FileType::RegularFile && kind != rustix::fs::FileType::Directory {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::NOENT)) => Err(errno),
        _ => Ok(()),
    }
}

/// What the kernel answers to this process.
fn tried(path: &Path, write: bool) -> rustix::io::Result<()> {
    let asked = |path: &Path, access| rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS);
    if !write {
        return asked(path, Access::READ_OK);
    }
    match (asked(path, Access::WRITE_OK), path.parent()) {
        (Err(Errno::NOENT), Some(parent)) => asked(parent, Access::WRITE_OK | Access::EXEC_OK),
        (result, _) => result,
    }
}

fn name_of(errno: Option<Errno>) -> Option<String> {
    let name = match errno? {
        Errno::ACCESS => "EACCES",
        Errno::NOENT => "ENOENT",
        Errno::NOTDIR => "ENOTDIR",
        Errno::PERM => "EPERM",
        Errno::ROFS => "EROFS",
        other => return Some(format!("error {}", other.raw_os_error())),
    };
    Some(name.to_owned())
}

/// Without `.` and `..`, as they are written.
pub(crate) fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Where `path` leads to, without links on the way: rules are about real paths. A link that is the last part
/// of a path in DIR is judged itself.
fn real(path: PathBuf, dir: &Path) -> PathBuf {
    // What is below may be hidden, and a link may be refused.
    let known = path.ancestors().skip(1).find_map(|above| {
        let real = std::fs::canonicalize(above).ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    });
    let path = known.unwrap_or(path);
    let device = |path: &Path| path.symlink_metadata().ok().map(|found| found.dev());
    match std::fs::canonicalize(&path) {
        Ok(target) if !path.starts_with(dir) && device(&target) != device(&path) => target,
        _ => path,
    }
}

/// What is allowed by this name may be refused for another one of the same file, also one in the
/// directory of another view.
pub(crate) fn under_all_names(answer: Answer, view: &View, path: &Path, about: &About) -> Answer {
    if !answer.allowed || about.directory {
        return answer;
    }
    let (operation, who) = (operation(about), CallerArg::default());
    let Some(found) = view.refused_by_further_name(path, operation, &who.facts()) else {
        return answer;
    };
    let place = match &found.view {
        Some(view) => format!(" in the view of `{}`", escape::shown(view)),
        None => String::new(),
    };
    let by = by_rule(found.rule.as_deref());
    let reason = match found.is_unknown {
        false => format!(
            "allowed by this name, but the file has another one{place}, refused by {by} (conditions \
             on contents and callers aside)"
        ),
        true => format!(
            "allowed by this name, but not every name of the file{place} is known, and it is \
             refused by {by} until they are"
        ),
    };
    let errno = name_of(Some(found.errno));
    Answer { allowed: false, errno, reason, remedy: Some(CHANGED_OUTSIDE.to_owned()) }
}

fn operation(about: &About) -> Operation {
    match (about.write, about.directory) {
        (true, true) => Operation::Create,
        (true, false) => Operation::Write,
        (false, true) => Operation::List,
        (false, false) => Operation::Read,
    }
}

fn by_rule(rule: Option<&str>) -> String {
    rule.map_or_else(|| "the default".to_owned(), |rule| format!("rule `{rule}`"))
}

/// What the policy says of `path` in DIR, by its name.
pub(crate) fn in_dir(policy: &Policy, path: &Path, about: &About) -> Answer {
    let kind = if about.directory { Kind::Directory } else { Kind::File };
    let facts = Facts { path: path.as_os_str().as_bytes(), kind, size: 0, head: Some(&[]) };
    let who = CallerArg::default();
    let explanation = policy.explain(&facts, Some(operation(about)), &who.facts());
    let answer = explanation.operations.first();
    let by = by_rule(answer.and_then(|answer| answer.rule.as_deref()));
    let reason = format!("by {by} (conditions on contents and callers aside)");
    let built_in = answer.and_then(|answer| answer.rule.as_deref());
    let remedy = match built_in {
        Some(policy_masked::RULE) if !about.write => {
            "git does not have it; a rule of the policy that names it shows it"
        }
        Some(rule) if BUILT_IN.contains(&rule) => {
            "so it is under every policy but `none`; change it outside"
        }
        _ => CHANGED_OUTSIDE,
    };
    match answer {
        Some(answer) if answer.verdict != Verdict::Allow => Answer {
            allowed: false,
            errno: Some(answer.errno.unwrap_or("refused").to_owned()),
            reason,
            remedy: Some(remedy.to_owned()),
        },
        _ => Answer { allowed: true, errno: None, reason, remedy: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_is_promised_where_none_helps() {
        let [files, ..] = BUILT_IN;
        let text = format!(
            "[[rule]]\nname = '{files}'\npath = '.tollgate.toml'\naction = 'read-only'\n\
             [[rule]]\nname = 'own'\npath = 'a'\naction = 'deny'\n"
        );
        let policy = Policy::parse(&text, "p.toml").unwrap();
        let remedy = |path: &str| {
            let about = About { path: path.into(), write: true, directory: false };
            in_dir(&policy, Path::new(path), &about).remedy.unwrap()
        };
        assert!(remedy("a").contains("a rule before it"), "{}", remedy("a"));
        assert!(remedy(".tollgate.toml").contains("every policy but `none`"));
    }
}
